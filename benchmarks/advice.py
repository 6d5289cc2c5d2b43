"""Advice against pricing by hand; JSON seconds, ratios and their targets.

    python -m benchmarks.advice [--out FILE.json]

Lines: a mean of fifty members each, ``mean`` (anyone can reach anyone), ``mean_tree`` (a random tree, two
colluders, no keys) and ``mean_graph`` (a geometric graph, two colluders), with seconds of the clock and of
the processor, which says more on a shared machine; ``priced``, processor seconds per candidate of ``mean``
against making each of its plans with ``for_budget`` and asking the same views, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD, MuffliatoSGD
from sottovoce.objectives import GLM

N, EACH, EPSILON, DELTA, TARGET = 50, 200, 1.0, 1e-5, 10.0
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mean": (N, {}),
    "mean_tree": (nx.random_labeled_tree(N, seed=1), {"colluders": 2, "masks": False}),
    "mean_graph": (f"geometric:{N}:0.3:seed=1", {"colluders": 2}),
}


def by_hand() -> int:
    """The rival: one plan per protocol, calibrated by its own search and priced by view."""
    network = sv.graphs.complete(N)
    protocols = {
        "masked": ConsensusSGD,
        "tree": ConsensusSGD,
        "gossip": MuffliatoSGD,
        "chebyshev": MuffliatoSGD,
    }
    for protocol, kind in protocols.items():
        plan = kind.for_budget(
            GLM("squared", dim=1), protocol, network=network, steps=1, learning_rate=1.0, clip_norm=0.5,
            sizes=[EACH] * N, epsilon=EPSILON, delta=DELTA,
        )  # fmt: skip
        for view in ("local", "outsider", "network"):
            plan.privacy(view).epsilon(DELTA)
        plan.cost()
    return len(protocols)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, seconds of the clock, seconds of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Print one JSON object, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    sv.advise(4, epsilon=EPSILON, delta=DELTA, records=EACH)  # imports and compilation are not counted
    record: dict[str, Any] = {"command": "python -m benchmarks.advice", "members": N}
    for name, (members, options) in CASES.items():
        advice, clock, processor = timed(
            lambda members=members, options=options: sv.advise(
                members, epsilon=EPSILON, delta=DELTA, records=EACH, **options
            )
        )
        record[name] = {
            "seconds": round(clock, 2), "processor": round(processor, 2), "target": TARGET,
            "rows": len(advice.rows), "recommended": advice.recommended.name,
        }  # fmt: skip
    plans, _, rival = timed(by_hand)
    ours = record["mean"]["processor"] / record["mean"]["rows"]
    record["priced"] = {
        "ours": round(ours, 4), "by_hand": round(rival / plans, 4), "ratio": round(rival / plans / ours, 2),
        "rival": "for_budget and three views of each plan",
    }  # fmt: skip
    record["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
