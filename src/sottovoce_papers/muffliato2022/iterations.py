"""Figure 1(c), bottom: accuracy over iterations, gossip and an aggregator with the same parameters.

Houses as in `housing`; every step draws a fresh Erdős-Rényi graph. ``same`` gives both the same noise, as the
paper does; ``equal loss`` gives gossip the noise at which its mean loss per step is the aggregator's.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import protocols
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.data import equal
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import curve_of, draw_curve, result
from sottovoce_papers.muffliato2022.housing import mean_accuracy, prepared, schedules
from sottovoce_papers.registry import Experiment, ResultTable


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
    started = time.perf_counter()
    config = replace(QUICK if quick else Config(), **options)
    data = prepared(config.seed)
    by_users: dict[str, Any] = {}

    def evaluate(rows: np.ndarray) -> dict[str, float]:
        return {"accuracy": mean_accuracy(rows, data)}

    for n in config.users:
        shards = data.shards(equal(data.n, n, np.random.default_rng(config.seed)))
        drawn, gossip, trees = schedules(n, config.steps, config.density, config.seed)
        rounds = gossip[0].rounds
        # over n it is gossip's mean share of the loss per step; the aggregator's is 1 / n
        rank = protocols.Gossip(drawn[0], rounds).view(0).rank
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
        by_users[f"n={n}"] = {"rounds": rounds, "rank": rank, "curves": {}}
        for name, plan in plans.items():
            streams = [np.random.default_rng([config.seed, 1 + r]) for r in range(config.runs)]
            results = [plan.run(shards, rng, every=1, evaluate=evaluate) for rng in streams]
            accuracies = [[row["accuracy"] for row in result.history] for result in results]
            curve = {"noise_multiplier": plan.noise_multiplier, **curve_of(accuracies)}
            by_users[f"n={n}"]["curves"][name] = curve
    return result("muffliato-iterations", started, config, metrics=by_users, seed=config.seed)


def table(record: dict[str, Any]) -> ResultTable:
    """Return the accuracy at the end, one line per method."""
    rows = tuple(
        (n, name, c["noise_multiplier"], c["median"][-1], c["least"][-1], c["most"][-1])
        for n, cell in record["metrics"].items()
        for name, c in cell["curves"].items()
    )
    columns = ("users", "method", "noise multiplier", "accuracy at the end (median)", "least", "most")
    note = "Same noise is the paper's comparison; equal loss gives both the same mean loss per step."
    return ResultTable(columns, rows, note, {"noise multiplier": "noise"})


def held(record: dict[str, Any]) -> bool:
    """Whether gossip with the same noise ends within two points of the aggregator."""
    ends = [
        (f["curves"]["aggregator"]["median"][-1], f["curves"]["gossip, same noise"]["median"][-1])
        for f in record["metrics"].values()
    ]
    return all(abs(a - g) <= 0.02 for a, g in ends)


def plot(record: dict[str, Any]) -> Any:
    """Draw accuracy over the steps, one panel per number of users."""
    by_users = record["metrics"]
    with drawing.figure_of(len(by_users), sharey=True) as (figure, panels):
        for panel, (n, one) in zip(panels, by_users.items(), strict=True):
            for k, (name, c) in enumerate(one["curves"].items()):
                draw_curve(panel, range(1, len(c["median"]) + 1), c, k, name, scale=100)
                if not k:  # lies under that of gossip with the same noise: wider, so that both are seen
                    panel.lines[-1].set(linewidth=6, alpha=0.45, marker="none")
            drawing.names(panel, "gradient step", "test accuracy (%)", f"houses, {n}: median, least and most")
    return figure


EXPERIMENTS = {
    "muffliato-iterations": Experiment(
        "Accuracy over iterations, gossip and aggregator with the same parameters",
        "Cyffers et al. 2022, figure 1(c), bottom", run, plot, table=table, held=held, config=Config,
        claim="With the same parameters gossip and a trusted aggregator behave similarly across iterations.",
    )
}  # fmt: skip
