"""The walk against gossip for averaging: loss by distance at equal noise in the result, on several graphs."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from sottovoce.runners.base import Result, provenance_now
from sottovoce_papers import drawing
from sottovoce_papers.registry import Experiment, Shown

__all__ = ["EXPERIMENTS"]


def averaging(
    quick: bool = False, *, n: int = 64, visits: int = 8, draws: int = 5, observers: int = 6, seed: int = 0
) -> Result:
    """Return loss by distance of walk and gossip whose results carry the same noise, on four graphs.

    Gossip adds noise of variance s^2 once and keeps s^2 / n of it; a walk of T hops adds v in every hop and
    keeps v / T of it, so v = s^2 T / n. Both losses are in units of gossip's local loss. The path is public.
    """
    from sottovoce import graphs, protocols

    started = time.perf_counter()
    if quick:
        n, visits, draws, observers = 16, 3, 1, 2
    rng = np.random.default_rng(seed)
    d = n.bit_length() - 1
    listed = {
        "complete": graphs.complete(n),
        "hypercube": graphs.hypercube(d),
        "geometric": graphs.geometric(n, 2.2 * math.sqrt(math.log(n) / (math.pi * n)), rng),
        "ring": graphs.ring(n),
    }
    found: dict[str, Any] = {}
    for name, network in listed.items():
        rounds = protocols.rounds_for(network)
        chebyshev = protocols.Chebyshev(network, rounds)
        kept = float((chebyshev.apply(np.eye(network.n)) ** 2).sum(axis=1).mean())  # about 1 / n
        who = rng.choice(network.n, size=min(observers, network.n), replace=False).tolist()
        losses: dict[str, dict[int, list[float]]] = {"walk": {}, "gossip": {}}
        hops = visits * network.n
        for _ in range(draws):
            walk = protocols.Walk(network, hops, rng, final_public=True)
            for v in who:
                # per unit of the walk's noise; the same noise in the result makes it kept * T times gossip's
                _by_distance(losses["walk"], network, v, walk.view(v).leakage() / (hops * kept))
        for v in who:
            _by_distance(losses["gossip"], network, v, protocols.Gossip(network, rounds).view(v).leakage())
        found[name] = {"n": network.n, "rounds": rounds, "hops": hops}
        for method, by in losses.items():
            found[name][method] = {
                "distances": sorted(by),
                "loss": [float(np.mean(by[k])) for k in sorted(by)],
                "least": [float(np.min(by[k])) for k in sorted(by)],
                "most": [float(np.max(by[k])) for k in sorted(by)],
                "mean": float(np.mean([x for values in by.values() for x in values])),
            }
    return Result(
        "walk-vs-gossip-averaging",
        config={"n": n, "visits": visits, "draws": draws, "seed": seed},
        metrics=found,
        provenance=provenance_now(started, seed=seed),
    )


def _by_distance(kept: dict[int, list[float]], network: Any, observer: int, loss: np.ndarray) -> None:
    for u, far in enumerate(network.distances_from(observer).tolist()):
        if u != observer:
            kept.setdefault(int(far), []).append(float(loss[u]))


def averaging_table(record: dict[str, Any]) -> Shown:
    """Return one line per graph and method."""
    rows = tuple(
        (
            graph,
            method,
            f["hops"] if method == "walk" else f["rounds"],
            f[method]["mean"],
            f[method]["loss"][0],
            f[method]["loss"][-1],
        )
        for graph, f in record["metrics"].items()
        for method in ("walk", "gossip")
    )
    return Shown(
        ("graph", "method", "hops or rounds", "mean loss", "neighbors", "furthest"), rows,
        "Losses at the same noise in the result, in units of gossip's local loss (1).",
    )  # fmt: skip


def averaging_held(record: dict[str, Any]) -> bool:
    """Whether neighbors learn less from the walk than from gossip, on every graph."""
    found = record["metrics"].values()
    return all(f["walk"]["loss"][0] <= f["gossip"]["loss"][0] for f in found)


def plot_averaging(record: dict[str, Any]) -> Any:
    """Draw loss by distance, one panel per graph."""
    found = record["metrics"]
    with drawing.figure_of(len(found), width=3.0 * len(found), sharey=True) as (figure, panels):
        for panel, (graph, f) in zip(panels, found.items(), strict=True):
            for k, method in enumerate(("walk", "gossip")):
                middle = np.maximum(f[method]["loss"], 1e-4)
                bars = [
                    middle - np.maximum(f[method]["least"], 1e-4),
                    np.maximum(f[method]["most"], 1e-4) - middle,
                ]
                drawing.error_bars(panel, f[method]["distances"], middle, bars, k, method)
            drawing.level(panel, 1.0, "local, gossip")
            drawing.names(
                panel,
                "distance (hops)",
                "loss at equal utility",
                f"{graph}, n = {f['n']}",
                legend=panel is panels[0],
                yscale="log",
            )
    return figure


EXPERIMENTS = {
    "walk-vs-gossip-averaging": Experiment(
        "Walk against gossip for averaging: loss by distance at equal utility",
        "Bellet 2024 (talk on walks)",
        averaging,
        plot_averaging,
        table=averaging_table,
        held=averaging_held,
        claim="At the same utility a walk incurs a smaller loss than gossip for close enough nodes.",
    ),
}
