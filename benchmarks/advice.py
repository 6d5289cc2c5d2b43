"""Advice against pricing by hand; JSON seconds, ratios and their targets.

    python -m benchmarks.advice

Lines: ``mean_50``, the whole advice for a mean of fifty members, against making each of its plans with
``for_budget`` and asking the same views, one after the other; ``priced``, seconds per candidate.
"""

from __future__ import annotations

import json
import time

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD, MuffliatoSGD
from sottovoce.objectives import GLM

N, EACH, EPSILON, DELTA = 50, 200, 1.0, 1e-5


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
            GLM("squared", dim=1), protocol, network=network, steps=1, learning_rate=1.0, clip=0.5,
            sizes=[EACH] * N, epsilon=EPSILON, delta=DELTA,
        )  # fmt: skip
        for view in ("local", "outsider", "network"):
            plan.privacy(view).epsilon(DELTA)
        plan.cost()
    return len(protocols)


def main() -> None:
    """Print one JSON object."""
    sv.advise(4, epsilon=EPSILON, delta=DELTA, records=EACH)  # imports and compilation are not counted
    begin = time.perf_counter()
    advice = sv.advise(N, epsilon=EPSILON, delta=DELTA, records=EACH)
    ours = time.perf_counter() - begin
    begin = time.perf_counter()
    plans = by_hand()
    rival = time.perf_counter() - begin
    record = {
        "mean_50": {"ours": round(ours, 3), "target": 10.0, "rows": len(advice.rows)},
        "priced": {
            "ours": round(ours / len(advice.rows), 4),
            "by_hand": round(rival / plans, 4),
            "ratio": round(rival / plans / (ours / len(advice.rows)), 2),
        },
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
