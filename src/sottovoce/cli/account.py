"""`sottovoce account`: what each participant learns about each other, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce._io import plain
from sottovoce.cli.options import (
    AddNoise,
    Draw,
    Graph,
    Matrix,
    Out,
    ProtocolOption,
    Rounds,
    TreeOption,
    Weights,
    network_of,
    node_list,
    protocol_of,
)
from sottovoce.cli.output import (
    Json,
    assumptions,
    finish,
    progress,
    safe,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.graphs import Network
    from sottovoce.protocols import Protocol

__all__ = ["account", "record"]

Observer = Annotated[int | None, typer.Option(help="The curious node; without it, every node in turn.")]
Collude = Annotated[str, typer.Option(help="Nodes that share all they see with the observer: 3,5.")]


def account(
    graph: Graph = None,
    matrix: Matrix = None,
    weights: Weights = None,
    protocol: ProtocolOption = "gossip",
    rounds: Rounds = None,
    observer: Observer = None,
    collude: Collude = "",
    tree: TreeOption = None,
    fresh: AddNoise = None,
    draw: Draw = 0,
    own_noise: Annotated[
        bool, typer.Option(help="Whether observers know the noise they drew themselves (they do).")
    ] = True,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier, noise over the clip (the radius): print epsilons.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget: print the least noise that meets it.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of every epsilon; 1e-5 by default.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Print what the papers' own formulas say of this network.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(help="With --published: how often every node takes part, in learning and walks; 1."),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show what each participant learns about each other, before anything runs.

    The exact loss is a share of local privacy: 0 when the observer learns
    nothing of a user, 1 when it can compute the user's noisy value. The
    published formula (Muffliato, eq. 6) is shown beside it; it is not a
    guarantee, and understates wherever the exact share is larger. Means are
    over all nodes, an observer counting 0 for itself, as in that paper.
    With --published stand the papers' other formulas too: mean loss, Corollary
    1, random graphs, walks, error bounds and the table of utilities. All carry
    the label published, and no budget accepts them.

    \b
    Examples:
      sottovoce account --graph hypercube:10 --rounds 10 --observer 0
      sottovoce account --graph florentine --protocol tree --noise 2
      sottovoce account --graph ring:16 --observer 0 --collude 3,5 --json
      sottovoce account --graph er:60:1.5:seed=3 --protocol chebyshev --published
    """
    from sottovoce.accounting.published.assessment import assess
    from sottovoce.errors import InvalidInput

    if steps is not None and not published:
        raise InvalidInput("--steps is about the papers' formulas for learning and walks; add --published.")
    network = network_of(graph, matrix, weights)
    averaging = protocol_of(network, protocol, rounds=rounds, tree=tree, fresh=fresh, seed=draw)
    together = node_list(collude, "--collude")
    with progress("every observer", network.n, quiet=json or observer is not None) as tick:
        assessment = assess(network, averaging, observer, together, own_noise, tick)
    assessment |= privacy_cost(averaging, observer, together, noise, epsilon, delta, network)
    if published:
        from sottovoce.accounting.published.assessment import published_bounds

        bounds = published_bounds(
            network, averaging, steps=1 if steps is None else steps, noise_std=noise, assessed=assessment
        )
        assessment["published_bounds"] = bounds
    payload = {k: v for k, v in assessment.items() if k != "_pairs"} | record(network, averaging, assessment)
    finish(payload, json, out, lambda screen: show(screen, network, assessment))


def privacy_cost(
    protocol: Protocol,
    observer: int | None,
    colluders: Sequence[int],
    noise: float | None,
    epsilon: float | None,
    delta: float | None,
    network: Network | None = None,
) -> dict[str, Any]:
    """Return guarantees at a noise multiplier, or the least noise for a budget; nothing without either.

    The numbers are those of the averaging plan itself, against everybody and against who was named.
    """
    from sottovoce import _validate
    from sottovoce.accounting.wording import name_nodes
    from sottovoce.advice.assessment import guarantee_rows
    from sottovoce.algorithms import PrivateAveraging

    if noise is not None:
        _validate.positive(noise, "--noise")
    if epsilon is not None:
        _validate.positive(epsilon, "--epsilon")
    at = 1e-5 if delta is None else _validate.delta(delta)
    if noise is None and epsilon is None:
        return {}
    who: dict[str, Any] = {"view": "network"}
    if observer is not None:
        who["observer"] = observer
    if colluders:
        who = {"view": "colluders", "colluders": sorted({observer, *colluders})}
    plan = PrivateAveraging(protocol, noise_std=1.0 if noise is None else noise, radius=1.0)
    stated = [plan.privacy("local"), plan.privacy(**who)]
    if noise is not None:
        if epsilon is not None:
            stated[-1].require(epsilon, at)
        return {"noise_multiplier": noise, "delta": at, "guarantees": guarantee_rows(stated, at, network)}
    assert epsilon is not None
    least = [
        plan.calibrated_to(epsilon, at, **adversary).noise_multiplier
        for adversary in ({"view": "local"}, who)
    ]
    return {
        "epsilon": epsilon,
        "delta": at,
        "noise_for_budget": [
            {
                "against": name_nodes(str(g.adversary), network),
                "label": g.label,
                "adjacency": g.adjacency,
                "noise_multiplier": z,
            }
            for g, z in zip(stated, least, strict=True)
        ],
    }


def record(network: Network, protocol: Protocol, assessment: dict[str, Any]) -> dict[str, Any]:
    """Return the account as a result record, with what a picture of it needs."""
    from sottovoce import __version__
    from sottovoce.accounting.published.assessment import by_distance

    metrics = {key: value for key, value in assessment.items() if key not in ("guarantees", "_pairs")}
    by = by_distance(network, assessment)
    drawn = {"edge_list": network.edges} if network.n <= 400 else {}
    labels = None if network.labels is None else [str(label) for label in network.labels]
    return plain(
        {
            "name": "account",
            "config": {
                "graph": network.name,
                "protocol": protocol.name,
                "rounds": protocol.rounds,
                "labels": labels,
            },
            "metrics": metrics | drawn | {"by_distance": by},
            "history": [],
            "guarantees": assessment.get("guarantees", []),
            "provenance": {"version": __version__},
        }
    )


def show(screen: Console, network: Network, assessment: dict[str, Any]) -> None:
    """Print the account for a person."""
    from sottovoce.accounting.published.assessment import by_distance

    observer = assessment["observer"]
    who = "every node in turn" if observer is None else f"node {safe(network.label(observer))}"
    if assessment.get("colluders"):
        who += " with " + ", ".join(safe(network.label(v)) for v in assessment["colluders"])
    screen.print(
        f"[bold]{safe(network.name)}[/bold]: {assessment['n']:,} nodes, {assessment['edges']:,} edges, "
        f"spectral gap {number(assessment['spectral_gap'])}; {assessment['protocol']}, "
        f"{assessment['rounds']} rounds; observer: {who}"
    )
    for note in assessment.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    rows = []
    for row in by_distance(network, assessment):
        shown = [row["distance"], row["pairs"], row["exact_mean"], row["exact_max"], row["determined"]]
        rows.append([*shown, row["published_mean"]] if assessment["mean_published"] is not None else shown)
    columns = ["distance", "pairs", "exact, mean", "exact, largest", "determined"]
    if assessment["mean_published"] is not None:
        columns.append("published (at most 1), mean")
    if rows:
        screen.print(table(columns, rows, title="Share of local privacy lost, by distance"))
    rank = "" if assessment["rank"] is None else f", {assessment['rank']} independent numbers seen"
    screen.print(
        f"mean exact {number(assessment['mean_exact'])}, largest {number(assessment['max_exact'])}{rank}"
    )
    if assessment["understated_pairs"] is not None:
        screen.print(
            f"mean published {number(assessment['mean_published'])}; the published formula understates "
            f"{100 * assessment['understated_pairs']:.0f}% of the pairs"
        )
    if "guarantees" in assessment:
        rows = [
            [g["against"], number(g["epsilon"]), assessment["delta"], g["adjacency"], g["label"]]
            for g in assessment["guarantees"]
        ]
        title = (
            f"At noise multiplier {assessment['noise_multiplier']:g} (noise over the clip, here the radius)"
        )
        screen.print(table(["against", "epsilon", "delta", "adjacency", "label"], rows, title=title))
        for line in assumptions(assessment["guarantees"]):
            screen.print(f"  assumes: {safe(line)}")
    if "noise_for_budget" in assessment:
        rows = [
            [g["against"], number(g["noise_multiplier"]), g["adjacency"], g["label"]]
            for g in assessment["noise_for_budget"]
        ]
        title = (
            f"Least noise multiplier for epsilon {assessment['epsilon']:g} at delta {assessment['delta']:g}"
        )
        screen.print(table(["against", "noise multiplier", "adjacency", "label"], rows, title=title))
    if "published_bounds" in assessment:
        show_published(screen, assessment["published_bounds"])


def show_published(screen: Console, bounds: dict[str, Any]) -> None:
    """Print the papers' formulas for a person, the exact loss beside each that has one."""
    steps = bounds["steps"]
    local = "local privacy is 1" if steps == 1 else f"local privacy is 1, of {steps:,} steps {steps:,}"
    rows = [
        [
            row["formula"],
            *(_or_dash(row[key]) for key in ("mean", "largest", "exact_mean", "exact_largest")),
            "–" if row["understated"] is None else f"{100 * row['understated']:.0f}%",
            row["bound"],
            row["label"],
        ]
        for row in bounds["losses"]
    ]
    columns = ["formula", "mean", "largest", "exact, mean", "largest", "understates", "a bound?", "label"]
    screen.print(table(columns, rows, title=f"Losses as the papers print them ({local})"))
    rows = [
        [
            row["formula"] + (": half of it" if row["what"].startswith("half") else ""),
            f"{number(row['value'])} {row['unit']}",
            row["bound"],
            row["label"],
        ]
        for row in bounds["errors"]
    ]
    columns = ["formula", "value", "a bound?", "label"]
    screen.print(table(columns, rows, title="Squared errors as the papers print them"))
    for source in dict.fromkeys(row["source"] for row in (*bounds["losses"], *bounds["errors"])):
        screen.print(f"{source}:")
        formulas = [r for r in (*bounds["losses"], *bounds["errors"]) if r["source"] == source]
        for line in dict.fromkeys(f"{r['formula'].split(',')[0]}: {r['why']}" for r in formulas):
            screen.print(f"  {safe(line)}")
    for line in bounds.get("left_out", ()):
        screen.print(f"left out: {safe(line)}")
    screen.print("The label published means: as printed, for reproduction. No budget accepts these numbers.")


def _or_dash(value: float | None) -> str:
    """Return a number as tables show it, a dash where there is none."""
    return "–" if value is None else number(value)
