"""Table 1, Theorems 2 and 3, Remark 1: errors of Muffliato at one mean loss, predicted and measured.

For every graph and size the noise is set so that the exact mean loss of the protocol's view (order alpha,
over sampled observers) is epsilon; then values in [-1/2, 1/2] are averaged many times. Table 1 has orders
without constants and logarithms, so what is compared is how the error falls with n. The bounds are
E |x_v - mean|^2 / 2 <= 3 sigma^2 / n (Theorem 2, synchronous) and 2 sigma^2 / n (Theorem 3, randomized;
Remark 1 gives it fewer ticks with momentum).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.accounting.published.formulas import published_utility
from sottovoce.errors import InvalidInput
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
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
    started = time.perf_counter()
    config = replace(QUICK if quick else Config(), **options)
    rng = np.random.default_rng(config.seed)
    rows = []
    for algorithm in ALGORITHMS:
        sizes = config.sizes if algorithm == "synchronous" else config.randomized_sizes
        for family in SLOPES:
            rows += [_one(family, n, algorithm, config, rng) for n in sizes]
    metrics = {"slopes": _slopes(rows)}
    return result("muffliato-utility", started, config, history=rows, metrics=metrics, seed=config.seed)


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
                x, y = np.log([r["n"] for r in line]), np.log([r["error"] for r in line])
                fitted = float(np.polyfit(x, y, 1)[0])
                slopes[f"{family}, {algorithm}"] = {"printed": powers[k], "measured": fitted}
    return slopes


def table(record: dict[str, Any]) -> ResultTable:
    """Return predicted order and measured error, one line per graph, algorithm and size."""
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
    """Draw measured errors over n beside the printed orders, one panel per algorithm."""
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


EXPERIMENTS = {
    "muffliato-utility": Experiment(
        "Error of Muffliato by graph and algorithm at one mean loss",
        "Cyffers et al. 2022, Table 1, Theorems 2 and 3, Remark 1", run, plot, table=table, held=held,
        config=Config,
        claim="On an expander gossip nearly matches a trusted curator; on a ring it is local DP.",
    )
}  # fmt: skip
