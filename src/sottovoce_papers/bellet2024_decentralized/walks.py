"""The walk against gossip for averaging: loss by distance at equal noise in the result, on several graphs.

Twice: by our accountants (the exact view; the walk's path is public), and as the talk draws it, the printed
formula of the walk against Theorem 1's formula (6) of gossip, neither of which is a bound of what is run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.accounting.published.formulas import published_loss, published_walk_loss
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import draw_curve, result
from sottovoce_papers.muffliato2022.losses import by_distance
from sottovoce_papers.registry import Experiment, ResultTable

METHODS = ("walk", "gossip", "walk, printed formula", "gossip, formula (6)")


def averaging(
    quick: bool = False, *, n: int = 64, visits: int = 8, draws: int = 5, observers: int = 6, seed: int = 0
) -> Result:
    """Return loss by distance of walk and gossip whose results carry the same noise, on four graphs.

    Gossip adds noise of variance s^2 once and keeps s^2 / n of it; a walk of T hops adds v in every hop and
    keeps v / T of it, so v = s^2 T / n. Losses are in units of gossip's local loss.
    """
    started = time.perf_counter()
    if quick:
        n, visits, draws, observers = 16, 3, 1, 2
    rng = np.random.default_rng(seed)
    d = n.bit_length() - 1
    networks = {
        "complete": graphs.complete(n),
        "hypercube": graphs.hypercube(d),
        "geometric": graphs.geometric(n, 2.2 * math.sqrt(math.log(n) / (math.pi * n)), rng),
        "ring": graphs.ring(n),
    }
    by_graph: dict[str, Any] = {}
    for name, network in networks.items():
        rounds = protocols.rounds_for(network)
        chebyshev = protocols.Chebyshev(network, rounds)
        remaining = float((chebyshev.apply(np.eye(network.n)) ** 2).sum(axis=1).mean())  # about 1 / n
        who = rng.choice(network.n, size=min(observers, network.n), replace=False).tolist()
        losses: dict[str, dict[int, list[float]]] = {method: {} for method in METHODS}
        hops = visits * network.n
        printed = published_walk_loss(network, hops) / (hops * remaining), published_loss(network, rounds)
        for _ in range(draws):
            walk = protocols.Walk(network, hops, rng, final_public=True)
            for v in who:
                # per unit of the walk's noise; the same noise in the result makes it kept * T times gossip's
                _add_by_distance(losses["walk"], network, v, walk.view(v).leakage() / (hops * remaining))
        for v in who:
            exact = protocols.Gossip(network, rounds).view(v).leakage()
            for method, loss in zip(METHODS[1:], (exact, *(table[:, v] for table in printed)), strict=True):
                _add_by_distance(losses[method], network, v, loss)
        by_graph[name] = {"n": network.n, "rounds": rounds, "hops": hops}
        for method, by in losses.items():
            mean = float(np.mean([x for values in by.values() for x in values]))
            by_graph[name][method] = {**by_distance(by), "mean": mean}
    config = {"n": n, "visits": visits, "draws": draws, "seed": seed}
    return result("walk-vs-gossip-averaging", started, config, metrics=by_graph, seed=seed)


def _add_by_distance(losses: dict[int, list[float]], network: Any, observer: int, loss: np.ndarray) -> None:
    for u, far in enumerate(network.distances_from(observer).tolist()):
        if u != observer:
            losses.setdefault(int(far), []).append(float(loss[u]))


def averaging_table(record: dict[str, Any]) -> ResultTable:
    """Return one line per graph and method."""
    rows = []
    for graph, f in record["metrics"].items():
        for method in METHODS:
            loss, count = f[method]["loss"], f["hops" if "walk" in method else "rounds"]
            rows.append((graph, method, count, f[method]["mean"], loss[0], loss[-1]))
    columns = ("graph", "method", "hops or rounds", "mean loss", "neighbors", "furthest")
    smaller = [graph for graph, f in record["metrics"].items() if _closer(f, *METHODS[2:])]
    note = (
        "Losses at the same noise in the result, in units of gossip's local loss (1). In the talk's "
        f"accounting neighbors learn less from the walk on: {', '.join(smaller) or 'none of the graphs'}."
    )
    return ResultTable(columns, tuple(rows), note, dict.fromkeys(columns[3:], "loss"))


def averaging_held(record: dict[str, Any]) -> bool:
    """Whether neighbors learn less from the walk than from gossip, on every graph."""
    return all(_closer(f, *METHODS[:2]) for f in record["metrics"].values())


def _closer(by_method: Mapping[str, Any], walk: str, gossip: str) -> bool:
    return bool(by_method[walk]["loss"][0] <= by_method[gossip]["loss"][0])


def plot_averaging(record: dict[str, Any]) -> Any:
    """Draw loss by distance, one panel per graph."""
    by_graph = record["metrics"]
    with drawing.figure_of(len(by_graph), width=3.0 * len(by_graph), sharey=True) as (figure, panels):
        for panel, (graph, f) in zip(panels, by_graph.items(), strict=True):
            for k, method in enumerate(METHODS):
                draw_curve(panel, f[method]["distances"], f[method], k, method, floor=1e-4, middle="loss")
            drawing.level(panel, 1.0, "local, gossip")
            labels = "distance (hops)", "loss at equal utility", f"{graph}, n = {f['n']}"
            drawing.names(panel, *labels, legend=panel is panels[0], yscale="log")
    return figure


EXPERIMENTS = {
    "walk-vs-gossip-averaging": Experiment(
        "Walk against gossip for averaging: loss by distance at equal utility",
        "Bellet 2024 (talk on walks)", averaging, plot_averaging, table=averaging_table,
        held=averaging_held,
        claim="At the same utility a walk incurs a smaller loss than gossip for close enough nodes.",
    ),
}  # fmt: skip
