"""`sottovoce audit`: try to break the claims, view by view."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from sottovoce.cli import options
from sottovoce.cli.output import as_result, emit, progress, section_values, template


def audit(
    graph: options.RequiredGraph,
    rounds: options.Rounds = None,
    protocol: options.ProtocolOption = "gossip",
    target: Annotated[str, Option("--user", help="The node whose value is looked for.")] = "0",
    observers: Annotated[str | None, Option(help="Nodes that look: 3,5; else the standard views.")] = None,
    noise_multiplier: Annotated[float, Option(help="Noise over the radius of the values.")] = 1.0,
    runs: Annotated[int, Option(help="Runs per view.")] = 20_000,
    delta: Annotated[float, Option(help="Where epsilon is read.")] = 1e-2,
    confidence: Annotated[float, Option(help="Confidence of all views together.")] = 0.999,
    claim: Annotated[
        str, Option(help="exact (the accountant's), or published (equation (6), to see it fail).")
    ] = "exact",
    seed: Annotated[int, Option(help="Seed of the simulated runs.")] = 0,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Run a private averaging thousands of times and hold the best test against the claimed loss.

    \b
        sottovoce audit --graph path:3 --rounds 2 --user 2 --observers 0 --claim published
        sottovoce audit --graph ring:10 --protocol masked:tolerate=3
    """
    import numpy as np

    from sottovoce import _validate
    from sottovoce.accounting.wording import name_nodes
    from sottovoce.attacks.audit import audit_averaging, audit_outputs, published_claim, views_of
    from sottovoce.report.sections import section_of

    network = options.network_of(graph)
    averaging = options.protocol_of(network, protocol, rounds=rounds, seed=seed)
    _validate.positive(noise_multiplier, "noise_multiplier")
    _validate.probability(confidence, "confidence", zero=False, one=False)
    _validate.delta(delta)
    user = options.node_of(target, "--user", network)
    assert user is not None
    if observers:
        views = {"observers": options.node_list(observers, "--observers", network)}
    else:
        views = views_of(averaging, network, user)
    _validate.choice(claim, ("exact", "published"), "claim")
    count = len(views) + (not observers)
    common: dict[str, Any] = {
        "user": user,
        "sensitivity": 2.0,
        "noise_std": noise_multiplier,
        "runs": runs,
        "rng": np.random.default_rng(seed),
        "delta": delta,
        "level": (1 - confidence) / count,
    }
    audits, guarantee = {}, None
    with progress("auditing", count, quiet=json) as tick:
        for name, nodes in views.items():
            if claim == "published":
                guarantee = published_claim(network, averaging.rounds, user, nodes, noise_multiplier)
            audits[name] = audit_averaging(averaging, observers=nodes, guarantee=guarantee, **common)
            tick(len(audits))
        if not observers:
            audits["public"] = audit_outputs(averaging, **common)
    refuted = {name: outcome.verdict for name, outcome in audits.items() if outcome.refuted}
    config = {"graph": network.name, "protocol": averaging.name, "rounds": averaging.rounds, "user": user}
    config |= {"noise_multiplier": float(noise_multiplier), "runs": runs, "delta": delta}
    config |= {"confidence": confidence, "claim": claim}
    metrics = {
        "audits": {name: outcome.to_dict() for name, outcome in audits.items()},
        "refuted": sorted(refuted),
        "verdicts": {name: outcome.verdict for name, outcome in audits.items()},
    }
    result = as_result("audit", config, metrics)

    views_in_words = {name: name_nodes(outcome.view, network) for name, outcome in audits.items()}
    shown = section_values(section_of(result)) | {"views": views_in_words, "refuted": refuted}
    emit(result, json, template("audit", confidence=confidence, **shown), out)
