"""Bellet 2023, talk on private decentralized learning: a walk's amplification, local and central DP-SGD.

A token on the complete graph; its network loss falls like ln^2 n / n against the local one, so that the walk
recovers the trade-off of central DP-SGD up to logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce._format import Quantity
from sottovoce.accounting.observation.random_walk import walk_loss
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.algorithms.random_walk_sgd import RandomWalkSGD
from sottovoce.data import Shards
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.muffliato2022.housing import complete_passage, mean_accuracy, prepared
from sottovoce_papers.registry import Experiment, ResultTable

ALPHA = 2.0


def amplification(
    quick: bool = False, *, sizes: tuple[int, ...] = (64, 256, 1024, 4096), visits: int = 20
) -> Result:
    """Return network over local loss of a walk of ``visits * n`` hops, at order 2 and sigma^2 = visits."""
    rows = []
    for n in sizes[:2] if quick else sizes:
        network = float(walk_loss(complete_passage(n, visits * n), ALPHA, math.sqrt(visits))[0])
        local = visits * ALPHA / (2 * visits)  # every expected visit in full
        rows.append({"n": n, "network": network, "local": local, "printed": math.log(n) ** 2 / n})
    config = {"visits": visits, "alpha": ALPHA}
    return result("walk-amplification", config, history=rows, metrics={"sizes": len(rows)})


def amplification_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (r["n"], r["local"], r["network"], r["network"] / r["local"], r["printed"]) for r in record["history"]
    )
    columns = ("users n", "local loss", "network loss", "ours: network / local", "paper: ln^2 n / n")
    note = f"Rényi loss of order 2, complete graph, {record['config']['visits']} visits a user."
    return ResultTable(columns, rows, note, dict.fromkeys(columns[1:4], "loss"))


def amplification_held(record: dict[str, Any]) -> bool:
    """Whether the ratio is below ln^2 n / n at every n."""
    return all(r["network"] / r["local"] <= r["printed"] for r in record["history"])


def plot_amplification(record: dict[str, Any]) -> Any:
    rows = record["history"]
    x = [r["n"] for r in rows]
    with drawing.figure_of() as (figure, (axes,)):
        ratios, printed = [r["network"] / r["local"] for r in rows], [r["printed"] for r in rows]
        drawing.error_bars(axes, x, ratios, None, 0, "walk: network over local loss")
        drawing.error_bars(axes, x, printed, None, 1, "ln^2 n / n (printed order)", paper=True)
        drawing.error_bars(axes, x, [1 / n for n in x], None, 2, "1 / n (central)", paper=True)
        drawing.level(axes, 1.0, "local privacy")
        labels = "number of users n", "loss (local = 1)", "random walk, complete graph"
        drawing.names(axes, *labels, xscale="log", yscale="log")
    return figure


@dataclass(frozen=True)
class LocalConfig:
    """One record per user; losses are Rényi losses of order 2, for replaced records."""

    users: int = 2000
    visits: int = 10
    losses: tuple[float, ...] = (0.05, 0.2, 1.0, 5.0)
    learning_rates: tuple[float, ...] = (0.02, 0.1, 0.5, 2.0)
    central_steps: int = 50
    runs: int = 5
    seed: int = 0


LOCAL_QUICK = LocalConfig(
    users=100, visits=3, losses=(0.2, 5.0), learning_rates=(0.1, 1.0), central_steps=5, runs=2
)


def against_local(quick: bool = False, **options: Any) -> Result:
    """Return accuracies of a walk at a network DP budget, one at a local DP budget, and central DP-SGD."""
    config = replace(LOCAL_QUICK if quick else LocalConfig(), **options)
    n, data = config.users, prepared(config.seed)
    chosen = np.random.default_rng(config.seed).permutation(data.n)[:n]
    X, y = data.X[chosen], data.y[chosen]
    shards, hops, complete = Shards(X, y, np.arange(n + 1)), config.visits * n, graphs.complete(n)
    model = GLM("logistic")
    walked: dict[str, Any] = {"clip_norm": 1.0, "adjacency": "user", "steps": hops, "path": "secret"}
    central: dict[str, Any] = {"records": n, "batch_size": n, "clip_norm": 1.0, "steps": config.central_steps}
    rows = []
    for loss in config.losses:
        multipliers = {
            "walk, network DP": 2 * _walk_sigma(n, hops, loss),
            "walk, local DP": 2 * math.sqrt(config.visits * ALPHA / (2 * loss)),
            "central DP-SGD": 2 * math.sqrt(config.central_steps * ALPHA / (2 * loss)),
        }
        for name, z in multipliers.items():

            def accuracy(rate: float, seed: int, name: str = name, z: float = z) -> float:
                rng = np.random.default_rng([config.seed, seed])
                if name == "central DP-SGD":
                    # steps of 10 times the walk's rate: one step reads all records, a hop one
                    plan: Any = DPSGD(model, learning_rate=10 * rate, noise_multiplier=z, **central)
                    return mean_accuracy(np.atleast_2d(plan.run((X, y), rng).outputs["coef"]), data)
                plan = RandomWalkSGD(model, complete, learning_rate=rate, noise_multiplier=z, **walked)
                return mean_accuracy(plan.run(shards, rng).outputs["rows"], data)

            rate = max(config.learning_rates, key=lambda r: accuracy(r, 0))
            values = [accuracy(rate, 1 + k) for k in range(config.runs)]
            row = {"loss": loss, "method": name, "noise_multiplier": z, "learning_rate": rate}
            rows.append({**row, "accuracies": values})
    metrics = {"losses": len(config.losses)}
    return result("walk-vs-local", config, history=rows, metrics=metrics, seed=config.seed)


def _walk_sigma(n: int, hops: int, loss: float) -> float:
    """The least noise over the sensitivity at which the walk's network loss of order 2 is ``loss``."""
    passage = complete_passage(n, hops)
    low, high = 1e-3, 1e3
    for _ in range(30):
        middle = math.sqrt(low * high)
        if walk_loss(passage, ALPHA, middle, final_public=True)[0] > loss:
            low = middle
        else:
            high = middle
    return high


def local_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (r["loss"], r["method"], r["noise_multiplier"], r["learning_rate"], float(np.median(r["accuracies"])),
         min(r["accuracies"]), max(r["accuracies"]))
        for r in record["history"]
    )  # fmt: skip
    settings = ("Rényi loss (order 2)", "method", "noise multiplier", "learning rate")
    columns = (*settings, "accuracy, tuned (median)", "least", "most")
    note = f"houses, {record['config']['users']:,} users with one record each, complete graph."
    held: dict[str, Quantity] = {"Rényi loss (order 2)": "loss", "noise multiplier": "noise"}
    return ResultTable(columns, rows, note, held)


def local_held(record: dict[str, Any]) -> bool:
    """Whether the walk with network DP is at or above the one with local DP, clearly so at some loss."""
    by: dict[str, list[float]] = {}
    for r in record["history"]:
        by.setdefault(r["method"], []).append(float(np.median(r["accuracies"])))
    gains = np.array(by["walk, network DP"]) - np.array(by["walk, local DP"])
    return bool((gains > -0.02).all() and gains.max() > 0.02)


def plot_local(record: dict[str, Any]) -> Any:
    with drawing.figure_of() as (figure, (axes,)):
        for k, name in enumerate(dict.fromkeys(r["method"] for r in record["history"])):
            line = [r for r in record["history"] if r["method"] == name]
            percent = [[100 * a for a in r["accuracies"]] for r in line]
            drawing.medians(axes, [r["loss"] for r in line], percent, k, name)
        drawing.names(
            axes, "Rényi loss of order 2", "test accuracy (%)", "houses: median, least and most", xscale="log"
        )
    return figure


EXPERIMENTS = {
    "walk-amplification": Experiment(
        amplification, plot_amplification, amplification_table, amplification_held
    ),
    "walk-vs-local": Experiment(against_local, plot_local, local_table, local_held, config=LocalConfig),
}
