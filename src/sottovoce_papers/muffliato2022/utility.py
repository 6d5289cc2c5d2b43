"""Table 1, Theorems 2 and 3, Remark 1: errors of Muffliato at one mean loss, predicted and measured.

For every graph and size the noise is set so that the exact mean loss of the protocol's view (order alpha,
over sampled observers) is epsilon; then values in [-1/2, 1/2] are averaged many times. Table 1 has orders
without constants and logarithms, so what is compared is how the error falls with n. The bounds are
E |x_v - mean|^2 / 2 <= 3 sigma^2 / n (Theorem 2, synchronous) and 2 sigma^2 / n (Theorem 3, randomized;
Remark 1 gives it fewer ticks with momentum).

Figure 1(c), bottom: accuracy over iterations, gossip and an aggregator with the same parameters.

Houses as in `housing`; every step draws a fresh Erdős-Rényi graph. ``same`` gives both the same noise, as the
paper does; ``equal loss`` gives gossip the noise at which its mean loss per step is the aggregator's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.accounting.published.formulas import published_utility
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.data import equal
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import curve_of, draw_curve, fitted_power, result
from sottovoce_papers.muffliato2022.housing import mean_accuracy, prepared, schedules
from sottovoce_papers.registry import Experiment, ResultTable

ALGORITHMS = ("synchronous", "randomized", "accelerated randomized")
SLOPES = {
    "expander": (-2.0, -2.0, -2.0), "torus": (-1.5, -1.0, -1.5), "complete": (-1.0, -2.0, -1.5),
    "ring": (-1.0, -1.0, -1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Sizes (powers of 4, so that every family has them), budget, observers and repetitions."""

    sizes: tuple[int, ...] = (16, 64, 256)
    randomized_sizes: tuple[int, ...] = (16, 64)
    epsilon: float = 1.0
    alpha: float = 2.0
    observers: int = 4
    runs: int = 200
    seed: int = 0


QUICK = Config(sizes=(16, 64), randomized_sizes=(16,), observers=1, runs=20)


def error_bound(noise_std: float, n: int, *, randomized: bool = False) -> float:
    """Return the bound on half the mean squared error after T_stop rounds: Theorem 2 or 3."""
    if n < 1:
        raise InvalidInput(f"n must be at least 1, got {n}.")
    return (2 if randomized else 3) * noise_std**2 / n


def run(quick: bool = False, **options: Any) -> Result:
    """Return predicted and measured errors by graph, algorithm and size."""
    config = replace(QUICK if quick else Config(), **options)
    rng = np.random.default_rng(config.seed)
    rows = []
    for algorithm in ALGORITHMS:
        sizes = config.sizes if algorithm == "synchronous" else config.randomized_sizes
        for family in SLOPES:
            rows += [_one(family, n, algorithm, config, rng) for n in sizes]
    metrics = {"slopes": _slopes(rows)}
    return result("muffliato-utility", config, history=rows, metrics=metrics, seed=config.seed)


def _graph(family: str, n: int) -> Any:
    side = math.isqrt(n)
    if family == "torus" and side * side != n:
        raise InvalidInput(f"sizes must be squares and powers of two, as 16,64,256, got {n}.")
    families = {
        "expander": lambda: graphs.hypercube(n.bit_length() - 1), "torus": lambda: graphs.torus(side, side),
        "complete": lambda: graphs.complete(n), "ring": lambda: graphs.ring(n),
    }  # fmt: skip
    return families[family]()


def _one(family: str, n: int, algorithm: str, config: Config, rng: np.random.Generator) -> dict[str, Any]:
    network = _graph(family, n)
    randomized = algorithm != "synchronous"
    if algorithm == "synchronous":
        protocol: Any = protocols.Chebyshev(network, protocols.rounds_for(network))
    else:
        kind = algorithm.replace(" ", "-")
        protocol = protocols.parse(f"{kind}:{protocols.rounds_for(network, kind=kind)}").at(
            network, seed=int(rng.integers(2**32))
        )
    who = rng.choice(n, size=min(config.observers, n), replace=False)
    # (1/n) sum over others of the exact share, as the paper defines the mean loss
    share = float(np.mean([np.delete(protocol.view(int(v)).leakage(), v).sum() / n for v in who]))
    sigma = math.sqrt(config.alpha * share / (2 * config.epsilon))
    values = rng.uniform(-0.5, 0.5, size=(n, config.runs))
    averaged = protocol.apply(values + sigma * rng.standard_normal(values.shape))
    squares = ((averaged - values.mean(axis=0)) ** 2).mean(axis=0)
    return {
        "graph": family, "n": n, "algorithm": algorithm,
        "rounds": protocol.rounds, "mean_share": share, "noise_std": sigma,
        "error": float(squares.mean()), "error_std": float(squares.std() / math.sqrt(config.runs)),
        "predicted": published_utility(
            network, config.epsilon, alpha=config.alpha, row=family,  # type: ignore[arg-type]
            randomized=randomized, accelerated=algorithm.startswith("accelerated"),
        ),
        "half_error_bound": error_bound(sigma, n, randomized=randomized),
    }  # fmt: skip


def _slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how log error falls with log n, measured by least squares, beside the table's power."""
    slopes: dict[str, dict[str, float]] = {}
    for k, algorithm in enumerate(ALGORITHMS):
        for family, powers in SLOPES.items():
            line = [r for r in rows if (r["graph"], r["algorithm"]) == (family, algorithm)]
            if len(line) > 1:
                fitted = fitted_power([r["n"] for r in line], [r["error"] for r in line])
                slopes[f"{family}, {algorithm}"] = {"printed": powers[k], "measured": fitted}
    return slopes


def table(record: dict[str, Any]) -> ResultTable:
    slopes = record["metrics"]["slopes"]
    rows = tuple(
        (r["graph"], r["algorithm"], r["n"], r["rounds"], r["mean_share"], r["predicted"], r["error"],
         r["error_std"], r["error"] / r["predicted"], r["error"] / 2, r["half_error_bound"])
        for r in record["history"]
    )  # fmt: skip
    columns = (
        "graph", "algorithm", "n", "rounds", "mean share", "paper: order", "ours: error", "± (mean)",
        "ours / order", "half error", "bound, theorem 2 or 3",
    )  # fmt: skip
    fitted = "; ".join(f"{name} {s['measured']:.2f} ({s['printed']:g})" for name, s in slopes.items())
    return ResultTable(
        columns, rows, f"Power of n in the error, measured (and printed, up to logarithms): {fitted}."
    )


def held(record: dict[str, Any]) -> bool:
    """Whether theorems 2 and 3 hold, and the synchronous expander is the best of its column."""
    rows = record["history"]
    largest = max(r["n"] for r in rows if r["algorithm"] == "synchronous")
    last = {r["graph"]: r["error"] for r in rows if (r["algorithm"], r["n"]) == ("synchronous", largest)}
    bounded = all(r["error"] / 2 <= r["half_error_bound"] for r in rows)
    return bounded and min(last, key=lambda name: last[name]) == "expander"


def plot(record: dict[str, Any]) -> Any:
    rows, config = record["history"], record["config"]
    with drawing.figure_of(3, sharey=True) as (figure, panels):
        for panel, algorithm in zip(panels, ALGORITHMS, strict=True):
            for k, family in enumerate(SLOPES):
                line = [r for r in rows if (r["graph"], r["algorithm"]) == (family, algorithm)]
                x = [r["n"] for r in line]
                drawing.error_bars(
                    panel, x, [r["error"] for r in line], [r["error_std"] for r in line], k, family
                )
                label = f"{family}, printed order"
                drawing.error_bars(panel, x, [r["predicted"] for r in line], None, k, label, paper=True)
            x = sorted({r["n"] for r in rows})
            best = [config["alpha"] / (n**2 * config["epsilon"]) for n in x]
            panel.plot(x, best, color=drawing.INK, lw=1, ls="--", label="trusted curator (order)")
            labels = "number of nodes n", "mean squared error of a node", f"{algorithm}, mean loss 1"
            drawing.names(panel, *labels, legend=panel is panels[0], xscale="log", yscale="log")
    return figure


@dataclass(frozen=True)
class IterationsConfig:
    """Users, steps, one learning rate and the noise multiplier of the paper's comparison."""

    users: tuple[int, ...] = (2000, 4000)
    steps: int = 30
    learning_rate: float = 1.0
    noise_multiplier: float = 2.0
    density: float = 1.5
    runs: int = 3
    seed: int = 0


ITERATIONS_QUICK = IterationsConfig(users=(64,), steps=4, runs=1)


def run_iterations(quick: bool = False, **options: Any) -> Result:
    """Return accuracy by step for both methods, with equal noise and at equal mean loss."""
    config = replace(ITERATIONS_QUICK if quick else IterationsConfig(), **options)
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
    return result("muffliato-iterations", config, metrics=by_users, seed=config.seed)


def iterations_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (n, name, c["noise_multiplier"], c["median"][-1], c["least"][-1], c["most"][-1])
        for n, cell in record["metrics"].items()
        for name, c in cell["curves"].items()
    )
    columns = ("users", "method", "noise multiplier", "accuracy at the end (median)", "least", "most")
    note = "Same noise is the paper's comparison; equal loss gives both the same mean loss per step."
    return ResultTable(columns, rows, note, {"noise multiplier": "noise"})


def iterations_held(record: dict[str, Any]) -> bool:
    """Whether gossip with the same noise ends within two points of the aggregator."""
    ends = [
        (f["curves"]["aggregator"]["median"][-1], f["curves"]["gossip, same noise"]["median"][-1])
        for f in record["metrics"].values()
    ]
    return all(abs(a - g) <= 0.02 for a, g in ends)


def plot_iterations(record: dict[str, Any]) -> Any:
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
    "muffliato-utility": Experiment(run, plot, table, held, config=Config),
    "muffliato-iterations": Experiment(
        run_iterations, plot_iterations, iterations_table, iterations_held, config=IterationsConfig
    ),
}
