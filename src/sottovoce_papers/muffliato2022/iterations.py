"""Figure 1(c), bottom: accuracy over iterations, gossip and an aggregator with the same parameters.

Houses as in `houses`; every step draws a fresh Erdős-Rényi graph. ``same`` gives both the same noise, as the
paper does; ``equal loss`` gives gossip the noise at which its mean loss per step is the aggregator's.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sottovoce.runners.base import Result, provenance_now
from sottovoce_papers import drawing
from sottovoce_papers.registry import Experiment, Shown

__all__ = ["EXPERIMENTS", "Config"]


@dataclass(frozen=True)
class Config:
    """Users, steps, one learning rate and the noise multiplier of the paper's comparison."""

    users: tuple[int, ...] = (2000, 4000)
    steps: int = 30
    learning_rate: float = 1.0
    noise_multiplier: float = 2.0
    density: float = 1.5
    runs: int = 3
    seed: int = 0


QUICK = Config(users=(64,), steps=4, runs=1)


def run(quick: bool = False, **options: Any) -> Result:
    """Return accuracy by step for both methods, with equal noise and at equal mean loss."""
    from sottovoce import graphs, protocols
    from sottovoce.algorithms.consensus_sgd import ConsensusSGD
    from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
    from sottovoce.data import equal
    from sottovoce.objectives import GLM
    from sottovoce_papers.muffliato2022.housing import mean_accuracy, prepared

    started = time.perf_counter()
    config = replace(QUICK if quick else Config(), **options)
    data = prepared(config.seed)
    found: dict[str, Any] = {}
    for n in config.users:
        shards = data.shards(equal(data.n, n, np.random.default_rng(config.seed)))
        drawn = [
            graphs.erdos_renyi(n, config.density, np.random.default_rng([config.seed, n, k]))
            for k in range(config.steps)
        ]
        rounds = protocols.rounds_for(drawn[0], noise_std=1.0, variance=1.0)
        gamma = protocols.Chebyshev(drawn[0], rounds).gamma
        gossip = [protocols.Chebyshev(g, rounds, gamma=gamma) for g in drawn]
        trees = [
            protocols.Tree(g, kind="uniform", rng=np.random.default_rng([config.seed, n, k, 1]))
            for k, g in enumerate(drawn)
        ]
        rank = (
            protocols.Gossip(drawn[0], rounds).view(0).rank
        )  # over n: gossip's mean share; the mean has 1/n
        common: dict[str, Any] = {
            "objective": GLM("logistic"),
            "steps": config.steps,
            "clip_norm": 1.0,
            "adjacency": "user",
            "learning_rate": config.learning_rate,
        }
        z = config.noise_multiplier
        plans = {
            "aggregator": ConsensusSGD(protocol=trees, noise_multiplier=z, **common),
            "gossip, same noise": MuffliatoSGD(protocol=gossip, noise_multiplier=z, **common),
            "gossip, equal loss": MuffliatoSGD(
                protocol=gossip, noise_multiplier=z * math.sqrt(rank), **common
            ),
        }
        found[f"n={n}"] = {"rounds": rounds, "rank": rank, "curves": {}}
        for name, plan in plans.items():
            curves = [
                [
                    row["accuracy"]
                    for row in plan.run(
                        shards, np.random.default_rng([config.seed, 1 + r]), every=1,
                        evaluate=lambda rows: {"accuracy": mean_accuracy(rows, data)},
                    ).history
                ]
                for r in range(config.runs)
            ]  # fmt: skip
            found[f"n={n}"]["curves"][name] = {
                "noise_multiplier": plan.noise_multiplier,
                "median": np.median(curves, axis=0),
                "least": np.min(curves, axis=0),
                "most": np.max(curves, axis=0),
            }
    return Result(
        "muffliato-iterations", config=asdict(config), metrics=found,
        provenance=provenance_now(started, seed=config.seed),
    )  # fmt: skip


def table(record: dict[str, Any]) -> Shown:
    """Return the accuracy at the end, one line per method."""
    rows = tuple(
        (n, name, c["noise_multiplier"], c["median"][-1], c["least"][-1], c["most"][-1])
        for n, found in record["metrics"].items()
        for name, c in found["curves"].items()
    )
    return Shown(
        ("users", "method", "noise multiplier", "accuracy at the end (median)", "least", "most"), rows,
        "Same noise is the paper's comparison; equal loss gives both the same mean loss per step.",
    )  # fmt: skip


def held(record: dict[str, Any]) -> bool:
    """Whether gossip with the same noise ends within two points of the aggregator."""
    ends = [
        (f["curves"]["aggregator"]["median"][-1], f["curves"]["gossip, same noise"]["median"][-1])
        for f in record["metrics"].values()
    ]
    return all(abs(a - g) <= 0.02 for a, g in ends)


def plot(record: dict[str, Any]) -> Any:
    """Draw accuracy over the steps, one panel per number of users."""
    found = record["metrics"]
    with drawing.figure_of(len(found), sharey=True) as (figure, panels):
        for panel, (n, one) in zip(panels, found.items(), strict=True):
            for k, (name, c) in enumerate(one["curves"].items()):
                y = 100 * np.array(c["median"])
                bars = [y - 100 * np.array(c["least"]), 100 * np.array(c["most"]) - y]
                drawing.error_bars(panel, range(1, len(y) + 1), y, bars, k, name)
                if not k:  # lies under that of gossip with the same noise: wider, so that both are seen
                    panel.lines[-1].set(linewidth=6, alpha=0.45, marker="none")
            drawing.names(panel, "gradient step", "test accuracy (%)", f"houses, {n}: median, least and most")
    return figure


EXPERIMENTS = {
    "muffliato-iterations": Experiment(
        "Accuracy over iterations, gossip and aggregator with the same parameters",
        "Cyffers et al. 2022, figure 1(c), bottom",
        run,
        plot,
        table=table,
        held=held,
        config=Config,
        claim="With the same parameters gossip and a trusted aggregator behave similarly across iterations.",
    )
}
