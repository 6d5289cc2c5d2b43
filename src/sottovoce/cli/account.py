"""`sottovoce account`: what each participant learns about each other, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, number, plain, progress, safe, table
from sottovoce.errors import InvalidInput, Refused

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from sottovoce.graphs import Network
    from sottovoce.privacy import Guarantee
    from sottovoce.protocols import Protocol

__all__ = ["account", "assess"]

ALL_PAIRS = 4096  # nodes up to which every pair is computed
SLACK = 1e-9  # exact exceeds published by more than rounding
PUBLISHED_FOR = ("gossip", "chebyshev", "randomized")

Graph = Annotated[
    str | None,
    typer.Option(help="A graph: ring:64, hypercube:10, er:200:1.5:seed=3, florentine, file:edges.txt ..."),
]
Matrix = Annotated[Path | None, typer.Option(help="Gossip weights of your own instead: CSV or NPZ, n rows.")]
Weights = Annotated[str | None, typer.Option(help="metropolis, max_degree, lazy or uniform.")]
ProtocolOption = Annotated[
    str, typer.Option(help="gossip, chebyshev, tree, exchange, refreshed or randomized.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds of gossip; the theoretical number by default.")]
Observer = Annotated[int | None, typer.Option(help="The curious node; without it, every node in turn.")]
Collude = Annotated[str, typer.Option(help="Nodes that share all they see with the observer: 3,5.")]
TreeOption = Annotated[str, typer.Option(help="How a tree is drawn: bfs, capped or uniform.")]
Fresh = Annotated[float, typer.Option(help="refreshed: fresh noise per round, as a share of the noise.")]
Draw = Annotated[int, typer.Option("--draw", help="Seed of the public draws (trees, random edges).")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here, for sottovoce report.")]


def account(
    graph: Graph = None,
    matrix: Matrix = None,
    weights: Weights = None,
    protocol: ProtocolOption = "gossip",
    rounds: Rounds = None,
    observer: Observer = None,
    collude: Collude = "",
    tree: TreeOption = "bfs",
    fresh: Fresh = 0.1,
    draw: Draw = 0,
    own_noise: Annotated[
        bool, typer.Option(help="Whether observers know the noise they drew themselves (they do).")
    ] = True,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier (noise over sensitivity): print epsilons.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget: print the least noise that meets it.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of every epsilon; 1e-5 by default.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Say what each participant learns of each other, before anything runs.

    The exact loss is a share of local privacy: 0 when the observer learns
    nothing of a user, 1 when it can compute the user's noisy value. The
    published formula (Muffliato, eq. 6) is shown beside it; it is not a
    guarantee, and understates wherever the exact share is larger. Means are
    over all nodes, an observer counting 0 for itself, as in that paper.

    \b
    Examples:
      sottovoce account --graph hypercube:10 --rounds 10 --observer 0
      sottovoce account --graph florentine --protocol tree --noise 2
      sottovoce account --graph ring:16 --observer 0 --collude 3,5 --json
    """
    from sottovoce.cli.config import NetworkSection, ProtocolSection, checked

    sections = {"graph": graph, "matrix": matrix, "weights": weights}
    network = checked(NetworkSection, sections, "--graph").build()
    spoken = {"name": protocol, "rounds": rounds, "tree": tree, "fresh": fresh, "seed": draw}
    schedule = checked(ProtocolSection, spoken, "--protocol").build(network)
    with progress("every observer", network.n, quiet=json or observer is not None) as tick:
        found = assess(network, schedule, observer, numbers(collude, "--collude"), own_noise, tick)
    found |= priced(schedule, found, noise, epsilon, delta)
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, record(network, schedule, found))
    emit({k: v for k, v in found.items() if k != "_pairs"}, json, lambda screen: show(screen, network, found))
    if out is not None and not json:
        console().print(f"Record written to {out}.")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a comma-separated list.

    Examples
    --------
    >>> numbers("3, 5", "--collude"), numbers("", "--collude")
    ((3, 5), ())
    """
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise InvalidInput(f"{option} expects node numbers such as 3,5, got {text!r}.") from None


def assess(
    network: Network,
    protocol: Protocol,
    observer: int | None = None,
    colluders: Sequence[int] = (),
    own_noise: bool = True,
    tick: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return the exact and the published loss of one averaging, with the summaries.

    Means are those of `sottovoce.privacy.mean_loss`: over all users, the observers themselves counting 0.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.graphs.path(3)
    >>> found = assess(path, sv.protocols.Gossip(path, 2), observer=2)
    >>> found["exact"].round(6).tolist(), found["rank"], found["protocol"]
    ([1.0, 1.0, 0.0], 2, 'gossip')
    """
    import numpy as np

    from sottovoce.privacy import exact_loss

    n = network.n
    if observer is None and colluders:
        raise InvalidInput("Colluders join an observer; add --observer.")
    if observer is None and n > ALL_PAIRS:
        raise Refused(f"All pairs of {n:,} nodes are too many (at most {ALL_PAIRS:,}); add --observer.")
    if observer is None:
        h = exact_loss(protocol, own_noise=own_noise, progress=tick)
        others = ~np.eye(n, dtype=bool)
        rank = int(np.rint(h.sum(axis=0)).max()) if _one_noise_each(protocol) else None
    else:
        view = protocol.view({observer, *colluders}, own_noise)
        h, rank = view.leakage(), view.rank
        others = ~np.isin(np.arange(n), view.observers)
    published = published_for(network, protocol, observer, colluders)
    exact_others = h[others]
    return {
        "n": n,
        "edges": len(network.edges),
        "spectral_gap": network.spectral_gap,
        "protocol": protocol.name,
        "rounds": protocol.rounds,
        "observer": observer,
        "rank": rank,
        "exact": None if observer is None else h,
        "published": None if observer is None or published is None else published,
        "mean_exact": float(exact_others.sum() / h.size),
        "max_exact": float(exact_others.max(initial=0.0)),
        "mean_published": None if published is None else float(published[others].sum() / h.size),
        "understated_pairs": None
        if published is None
        else float((exact_others > published[others] + SLACK).mean()),
        **({"colluders": list(colluders)} if colluders else {}),
        **({} if own_noise else {"own_noise": False}),
        **({"notes": notes} if (notes := notes_on(network, protocol)) else {}),
        **({"_pairs": (h, published)} if observer is None else {}),
    }


def published_for(
    network: Network, protocol: Protocol, observer: int | None, colluders: Sequence[int]
) -> np.ndarray | None:
    """Return eq. (6) for all pairs or one observer, None where it was not published or is too large."""
    if protocol.name not in PUBLISHED_FOR or network.n > ALL_PAIRS:
        return None
    from sottovoce.privacy import published_loss

    # accelerated gossip has the messages of plain gossip, recombined: the formula is evaluated on those
    source = (
        {"source": protocol}
        if protocol.name == "randomized"
        else {"source": network, "rounds": protocol.rounds}
    )
    loss = published_loss(**source)
    return loss if observer is None else loss[:, [observer, *colluders]].sum(axis=1)


def notes_on(network: Network, protocol: Protocol) -> list[str]:
    """Return what a reader must know about a protocol on a network: here, links it lacks.

    Examples
    --------
    >>> import sottovoce as sv
    >>> notes_on(sv.graphs.ring(4), sv.protocols.Exchange(4))
    ['exchange pairs nodes 0 and 2, which are not joined in ring:4; it needs hypercube:2 or further links']
    """
    if protocol.name != "exchange":
        return []
    for level in range(protocol.rounds):
        for v in range(network.n):
            partner = v ^ (1 << level)
            if partner > v and partner not in network.neighbours(v):
                return [
                    f"exchange pairs nodes {v} and {partner}, which are not joined in {network.name}; "
                    f"it needs hypercube:{protocol.rounds} or further links"
                ]
    return []


def priced(
    protocol: Protocol,
    found: dict[str, Any],
    noise: float | None,
    epsilon: float | None,
    delta: float | None,
) -> dict[str, Any]:
    """Return guarantees at a noise multiplier, or the least noise for a budget; nothing if not asked."""
    from sottovoce import _validate

    if noise is not None:
        _validate.positive(noise, "--noise")
    if epsilon is not None:
        _validate.positive(epsilon, "--epsilon")
    if delta is not None:
        _validate.delta(delta)
    if noise is None and epsilon is None:
        return {}
    at = 1e-5 if delta is None else delta
    if noise is None:
        assert epsilon is not None
        return _calibrated(protocol, found, epsilon, at)
    said = _guarantees(protocol, found, noise)
    if epsilon is not None:
        said[-1].require(epsilon, at)
    return {
        "noise_multiplier": noise,
        "delta": at,
        "guarantees": [g.to_dict(delta=at) | {"against": str(g.adversary)} for g in said],
    }


def _guarantees(protocol: Protocol, found: dict[str, Any], multiplier: float) -> list[Guarantee]:
    """Return the local statement and the one about the observers accounted (the worst node without one)."""
    from dataclasses import replace

    from sottovoce.algorithms import Muffliato
    from sottovoce.privacy import Adversary, Curve, averaging_guarantee

    plan = Muffliato(protocol, noise_std=multiplier, radius=0.5)
    observers = [found["observer"] or 0, *found.get("colluders", ())]
    near = averaging_guarantee(plan.protocol.view(observers), None, sensitivity=1.0, noise_std=multiplier)
    if found["observer"] is None:
        curve = Curve.gaussian(found["max_exact"] ** 0.5 / multiplier)
        near = replace(near, adversary=Adversary("network"), curve=curve)
    return [plan.privacy("local"), near]


def _calibrated(protocol: Protocol, found: dict[str, Any], epsilon: float, delta: float) -> dict[str, Any]:
    from sottovoce.privacy import gaussian_mu

    allowed = gaussian_mu(epsilon, delta)
    at_one = _guarantees(protocol, found, 1.0)
    least = [g.mu / allowed for g in at_one]
    return {
        "epsilon": epsilon,
        "delta": delta,
        "noise_for_budget": [
            {"against": str(g.adversary), "label": g.label, "adjacency": g.adjacency, "noise_multiplier": z}
            for g, z in zip(at_one, least, strict=True)
        ],
    }


def record(network: Network, protocol: Protocol, found: dict[str, Any]) -> dict[str, Any]:
    """Return the account as a result record, with what a picture of it needs."""
    from sottovoce import __version__

    metrics = {key: value for key, value in found.items() if key not in ("guarantees", "_pairs")}
    by = by_distance(network, found)
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
            "guarantees": found.get("guarantees", []),
            "provenance": {"version": __version__},
        }
    )


def by_distance(network: Network, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Summarise the pairs at every distance from the observer (the nearest, where several collude)."""
    import numpy as np

    if found["observer"] is None:
        exact, published = found["_pairs"]
        if network.n > 1024:
            return []
        distance = np.array([network.distances_from(v) for v in range(network.n)])
    else:
        exact, published = found["exact"], found["published"]
        group = [found["observer"], *found.get("colluders", ())]
        distance = np.min([network.distances_from(v) for v in group], axis=0)
    rows = []
    for d in range(1, int(distance.max(initial=0)) + 1):
        at = distance == d
        row = {
            "distance": d,
            "pairs": int(at.sum()),
            "exact_mean": float(exact[at].mean()),
            "exact_max": float(exact[at].max()),
            "determined": int((exact[at] > 1 - 1e-8).sum()),
            # eq. (6) can exceed local privacy, which always holds: shown at most 1
            "published_mean": None if published is None else float(np.minimum(published[at], 1.0).mean()),
        }
        rows.append(row)
    return rows


def show(screen: Console, network: Network, found: dict[str, Any]) -> None:
    """Print the account for a person."""
    observer = found["observer"]
    who = "every node in turn" if observer is None else f"node {safe(network.label(observer))}"
    if found.get("colluders"):
        who += " with " + ", ".join(safe(network.label(v)) for v in found["colluders"])
    screen.print(
        f"[bold]{safe(network.name)}[/bold]: {found['n']:,} nodes, {found['edges']:,} edges, spectral gap "
        f"{number(found['spectral_gap'])}; {found['protocol']}, {found['rounds']} rounds; observer: {who}"
    )
    for note in found.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    rows = []
    for row in by_distance(network, found):
        shown = [row["distance"], row["pairs"], row["exact_mean"], row["exact_max"], row["determined"]]
        rows.append([*shown, row["published_mean"]] if found["mean_published"] is not None else shown)
    columns = ["distance", "pairs", "exact, mean", "exact, largest", "determined"]
    if found["mean_published"] is not None:
        columns.append("published (at most 1), mean")
    if rows:
        screen.print(table(columns, rows, title="Share of local privacy lost, by distance"))
    rank = "" if found["rank"] is None else f", {found['rank']} independent numbers seen"
    screen.print(f"mean exact {number(found['mean_exact'])}, largest {number(found['max_exact'])}{rank}")
    if found["understated_pairs"] is not None:
        screen.print(
            f"mean published {number(found['mean_published'])}; the published formula understates "
            f"{100 * found['understated_pairs']:.0f}% of the pairs"
        )
    if "guarantees" in found:
        rows = [
            [g["against"], number(g["epsilon"]), found["delta"], g["adjacency"], g["label"]]
            for g in found["guarantees"]
        ]
        title = f"At noise multiplier {found['noise_multiplier']:g} (noise over sensitivity)"
        screen.print(table(["against", "epsilon", "delta", "adjacency", "label"], rows, title=title))
        for line in dict.fromkeys(a for g in found["guarantees"] for a in g["assumptions"]):
            screen.print(f"  assumes: {line}")
    if "noise_for_budget" in found:
        rows = [
            [g["against"], number(g["noise_multiplier"]), g["adjacency"], g["label"]]
            for g in found["noise_for_budget"]
        ]
        title = f"Least noise multiplier for epsilon {found['epsilon']:g} at delta {found['delta']:g}"
        screen.print(table(["against", "noise multiplier", "adjacency", "label"], rows, title=title))


def _one_noise_each(protocol: Protocol) -> bool:
    """Whether coordinates are users, so that the leakage adds up to the rank."""
    return not getattr(protocol, "fresh_std", 0.0)
