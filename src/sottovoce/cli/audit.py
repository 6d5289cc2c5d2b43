"""`sottovoce audit`: try to break the claims, view by view."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sottovoce._format import number
from sottovoce.cli.options import Out, ProtocolOption, Rounds, TreeOption, network_of, node_list, protocol_of
from sottovoce.cli.output import Json, as_record, finish, progress, safe, table


def audit(
    graph: Annotated[str, typer.Option("--graph", help="The graph, for example florentine or hypercube:4.")],
    rounds: Rounds = None,
    protocol: ProtocolOption = "gossip",
    tree: TreeOption = None,
    user: Annotated[int, typer.Option("--user", help="The node whose value is looked for.")] = 0,
    observers: Annotated[
        str | None,
        typer.Option("--observers", help="Nodes that look, as 3 or 3,5; by default the standard views."),
    ] = None,
    noise_multiplier: Annotated[
        float, typer.Option("--noise-multiplier", help="Noise std over the clip (the radius).")
    ] = 1.0,
    runs: Annotated[int, typer.Option("--runs", help="Runs per view.")] = 20_000,
    delta: Annotated[float, typer.Option("--delta", help="Where epsilon is read.")] = 1e-2,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Confidence of all views together.")
    ] = 0.999,
    claim: Annotated[
        str,
        typer.Option(
            "--claim", help="exact (the accountant's), or published (equation (6), to see it fail)."
        ),
    ] = "exact",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulated runs.")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Run a private averaging thousands of times and hold the best test against the claimed loss.

    \b
        sottovoce audit --graph path:3 --rounds 2 --user 2 --observers 0 --claim published
        sottovoce audit --graph ring:10 --protocol masked:tolerate=3
    """
    import numpy as np

    from sottovoce import _validate
    from sottovoce.attacks.audit import audit_averaging, audit_outputs, published_claim, views_of
    from sottovoce.errors import InvalidInput

    network = network_of(graph)
    averaging = protocol_of(network, protocol, rounds=rounds, tree=tree, fresh=None, seed=seed)
    z = _validate.positive(noise_multiplier, "noise_multiplier")
    _validate.probability(confidence, "confidence", zero=False, one=False)
    _validate.delta(delta)
    if observers:
        views = {"observers": node_list(observers, "--observers")}
    else:
        views = views_of(averaging, network, user)
    if claim not in ("exact", "published"):
        raise InvalidInput(f"claim must be exact or published, got {claim!r}.")
    rng = np.random.default_rng(seed)
    level = (1 - confidence) / (len(views) + (not observers))
    common: dict[str, Any] = {
        "user": user, "sensitivity": 2.0, "noise_std": z, "runs": runs, "rng": rng, "delta": delta,
        "level": level,
    }  # fmt: skip
    audits, printed = {}, claim == "published"
    with progress("auditing", len(views) + (not observers), quiet=json) as done:
        for name, who in views.items():
            guarantee = published_claim(network, averaging.rounds, user, who, z) if printed else None
            audits[name] = audit_averaging(averaging, observers=who, guarantee=guarantee, **common)
            done(len(audits))
        if not observers:
            audits["public"] = audit_outputs(averaging, **common)
    config = {
        "graph": network.name, "protocol": averaging.name, "rounds": averaging.rounds, "user": user,
        "noise_multiplier": z, "runs": runs, "delta": delta, "confidence": confidence, "claim": claim,
    }  # fmt: skip
    metrics = {
        "audits": {name: a.to_dict() for name, a in audits.items()},
        "refuted": sorted(name for name, a in audits.items() if a.refuted),
        "verdicts": {name: a.verdict for name, a in audits.items()},
    }

    from sottovoce.accounting.wording import name_nodes

    def text(screen: Any) -> None:
        rows = [
            [safe(name), safe(name_nodes(a.view, network)), number(a.mu_claimed), number(a.bound.mu),
             number(a.epsilon_claimed), number(a.bound.epsilon), f"{100 * a.tightness:.0f} %",
             "REFUTED" if a.refuted else "holds"]
            for name, a in audits.items()
        ]  # fmt: skip
        heads = ["view", "who", "μ claimed", "μ at least", "ε claimed", "ε at least", "tightness", ""]
        screen.print(table(heads, rows))
        for name, a in audits.items():
            if a.refuted:
                screen.print(safe(f"{name}: {a.verdict}"))
        screen.print(f"ε at δ = {delta:g}; all views together at confidence {100 * confidence:g} %.")
        if printed:
            screen.print("The claim audited is equation (6) of the Muffliato paper, which is not a bound.")

    finish(as_record("audit", config, metrics), json, out, text)
