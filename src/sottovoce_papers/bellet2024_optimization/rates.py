"""Printed rates beside measured ones: excess risk of DP-SGD, and of Muffliato-GD (Cyffers et al. 2022).

Rates have no constants and no logarithms, so what is compared is how the error falls with the number of
records or nodes. The problem is logistic regression on unit vectors, whose gradients have length 1 at most,
so the clip changes nothing; with an l2 term mu it is mu-strongly convex. Without it descent needs steps in
proportion to n before the noise, and not the way still to go, decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import _validate, graphs, protocols
from sottovoce.algorithms import DPSGD, MuffliatoSGD
from sottovoce.algorithms.plan import Plan
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import fitted_power, result
from sottovoce_papers.registry import Experiment, ResultTable


def excess_risk_order(
    n: int,
    dim: int,
    epsilon: float,
    delta: float,
    *,
    lipschitz: float = 1.0,
    distance: float = 1.0,
    strong_convexity: float | None = None,
) -> float:
    """Return the excess risk of DP-SGD that the talk prints, without constants and further logarithms.

    Convex: ``sqrt(p ln(1/delta)) / (n epsilon) * lipschitz * distance``, the distance from the start to the
    minimizer; strongly convex: ``p ln(1/delta) / (n epsilon)^2 * lipschitz^2 / mu``. (The source's slide sets
    the root over p alone; Bassily, Smith, Thakurta 2014 have it over both.)
    """
    for name, value in (("epsilon", epsilon), ("lipschitz", lipschitz), ("distance", distance)):
        _validate.positive(value, name)
    _validate.probability(delta, "delta", zero=False)
    root = math.sqrt(_validate.count(dim, "dim") * math.log(1 / delta)) / (_validate.count(n, "n") * epsilon)
    if strong_convexity is None:
        return root * lipschitz * distance
    return root**2 * lipschitz**2 / _validate.positive(strong_convexity, "strong_convexity")


def descent_order(
    n: int, dim: int, noise_std: float, steps: int, strong_convexity: float, *, gradient_variance: float = 0.0
) -> float:
    """Return the excess risk by Theorem 5 of Cyffers et al. 2022: (D sigma^2 + rho^2) / (mu n T)."""
    noise = _validate.count(dim, "dim") * _validate.positive(noise_std, "noise_std") ** 2
    noise += _validate.non_negative(gradient_variance, "gradient_variance")
    every = _validate.count(n, "n") * _validate.count(steps, "steps")
    return noise / (_validate.positive(strong_convexity, "strong_convexity") * every)


@dataclass(frozen=True)
class RiskConfig:
    """Numbers of records, dimension, budget, strong convexity of the second problem, steps, repetitions."""

    sizes: tuple[int, ...] = (500, 2000, 8000, 32000)
    dim: int = 10
    epsilon: float = 1.0
    delta: float = 1e-5
    strong_convexity: float = 0.1
    steps: int = 60
    runs: int = 10
    seed: int = 0


@dataclass(frozen=True)
class DescentConfig:
    """Hypercubes by their number of nodes, noise of a node's gradient, records of a node, repetitions."""

    sizes: tuple[int, ...] = (8, 32, 128, 512)
    dim: int = 10
    noise_std: float = 1.0
    records: int = 20
    strong_convexity: float = 0.1
    runs: int = 20
    seed: int = 0


RISK_QUICK = RiskConfig(sizes=(500, 4000), runs=2)
DESCENT_QUICK = DescentConfig(sizes=(8, 64), runs=3)


def _records(rng: np.random.Generator, n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, dim))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    chance = 1 / (1 + np.exp(-3 * X @ np.ones(dim)))
    return X, np.where(rng.random(n) < chance, 1.0, -1.0)


def _risk(X: np.ndarray, y: np.ndarray, mu: float, coef: np.ndarray) -> float:
    return float(np.logaddexp(0, -y * (X @ coef)).mean() + mu / 2 * coef @ coef)


def _minimizer(X: np.ndarray, y: np.ndarray, mu: float) -> np.ndarray:
    """Newton's method; a hundred steps are far more than it takes."""
    coef = np.zeros(X.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(y * (X @ coef)))
        slope = -(y * chance) @ X / len(y) + mu * coef
        bend = (X * (chance * (1 - chance))[:, None]).T @ X / len(y) + mu * np.eye(X.shape[1])
        move = np.linalg.solve(bend, slope)
        coef = coef - move
        if np.abs(move).max() < 1e-12:
            break
    return coef


def run_risk(quick: bool = False, **options: Any) -> Result:
    """Return measured excess risks of DP-SGD beside the printed rates, by problem and number of records."""
    config = replace(RISK_QUICK if quick else RiskConfig(), **options)
    rows = []
    for problem, mu in (("convex", 0.0), ("strongly convex", config.strong_convexity)):
        for n in config.sizes:
            X, y = _records(np.random.default_rng([config.seed, n]), n, config.dim)
            best = _minimizer(X, y, mu)
            steps = config.steps if mu else math.ceil(config.steps * n / min(config.sizes))
            plan = DPSGD.for_budget(
                GLM(l2=mu, dim=config.dim), records=n, steps=steps, clip_norm=1.0, learning_rate=2.0,
                epsilon=config.epsilon, delta=config.delta, output="last" if mu else "mean",
            )  # fmt: skip
            excess = _risks(plan, (X, y), X, y, mu, n, config) - _risk(X, y, mu, best)
            order = excess_risk_order(
                n, config.dim, config.epsilon, config.delta, distance=float(np.linalg.norm(best)),
                strong_convexity=mu or None,
            )  # fmt: skip
            rows.append(_row(problem, n, excess, order))
    slopes = {"slopes": _slopes(rows)}
    return result("dpsgd-rates", config, history=rows, metrics=slopes, seed=config.seed)


def run_descent(quick: bool = False, **options: Any) -> Result:
    """Return measured excess risks of Muffliato-GD on hypercubes beside Theorem 5, by number of nodes."""
    config = replace(DESCENT_QUICK if quick else DescentConfig(), **options)
    rows, mu = [], config.strong_convexity
    smooth = 0.25 + mu
    for n in config.sizes:
        if n < 2 or n & (n - 1):
            raise InvalidInput(f"sizes must be powers of two, the nodes of a hypercube, got {n}.")
        network = graphs.hypercube(n.bit_length() - 1)
        X, y = _records(np.random.default_rng([config.seed, n]), n * config.records, config.dim)
        least = _risk(X, y, mu, _minimizer(X, y, mu))
        steps = math.ceil(4 * smooth / mu * math.log(4 * n))  # O(kappa) up to a logarithm
        rate = min(1 / smooth, math.log(n * steps) / (mu * steps))
        rounds = protocols.rounds_for(
            network, kind="descent", noise_std=config.noise_std, variance=1.0, dim=config.dim
        )
        plan = MuffliatoSGD(
            GLM(l2=mu, dim=config.dim), protocols.Chebyshev(network, rounds), steps=steps, clip_norm=1.0,
            noise_multiplier=config.noise_std, learning_rate=rate, adjacency="user",
        )  # fmt: skip
        shards = Shards(X, y, np.arange(n + 1) * config.records)
        excess = _risks(plan, shards, X, y, mu, n, config) - least
        order = descent_order(n, config.dim, config.noise_std, steps, mu)
        rows.append(_row("hypercube", n, excess, order) | {"steps": steps, "rounds": rounds})
    slopes = {"slopes": _slopes(rows)}
    return result("muffliato-rate", config, history=rows, metrics=slopes, seed=config.seed)


def _risks(
    plan: Plan, data: object, X: np.ndarray, y: np.ndarray, mu: float, n: int, config: Any
) -> np.ndarray:
    """Return the risk at the end of each run."""
    streams = [np.random.default_rng([config.seed, n, r]) for r in range(config.runs)]
    return np.array([_risk(X, y, mu, plan.run(data, rng).outputs["coef"]) for rng in streams])


def _row(problem: str, n: int, excess: np.ndarray, order: float) -> dict[str, Any]:
    return {
        "problem": problem, "n": n, "excess": float(excess.mean()),
        "std": float(excess.std() / math.sqrt(len(excess))), "order": order,
    }  # fmt: skip


def _slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the power of n with which measured and printed risks fall."""
    slopes = {}
    for problem in dict.fromkeys(r["problem"] for r in rows):
        line = [r for r in rows if r["problem"] == problem]
        if len(line) > 1:
            slopes[problem] = {
                name: fitted_power([r["n"] for r in line], [r[key] for r in line])
                for name, key in (("printed", "order"), ("measured", "excess"))
            }
    return slopes


def table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (r["problem"], r["n"], r["order"], r["excess"], r["std"], r["excess"] / r["order"])
        for r in record["history"]
    )
    fitted = "; ".join(
        f"{name} {s['measured']:.2f} ({s['printed']:.2f})" for name, s in record["metrics"]["slopes"].items()
    )
    columns = ("problem", "n", "paper: order", "ours: excess risk", "± (mean)", "ours / order")
    note = f"Power of n in the excess risk, measured (and printed): {fitted}."
    return ResultTable(columns, rows, note)


def held(record: dict[str, Any]) -> bool:
    """Whether the measured risk falls at least as fast as the printed rate, within a fifth of a power."""
    return all(s["measured"] <= s["printed"] + 0.2 for s in record["metrics"]["slopes"].values())


def plot(record: dict[str, Any]) -> Any:
    rows = record["history"]
    counted = "number of nodes n" if record["name"] == "muffliato-rate" else "number of records n"
    with drawing.figure_of() as (figure, (axes,)):
        for k, problem in enumerate(dict.fromkeys(r["problem"] for r in rows)):
            line = [r for r in rows if r["problem"] == problem]
            x = [r["n"] for r in line]
            drawing.error_bars(axes, x, [r["excess"] for r in line], [r["std"] for r in line], k, problem)
            label = f"{problem}, printed order"
            drawing.error_bars(axes, x, [r["order"] for r in line], None, k, label, paper=True)
        drawing.names(axes, counted, "excess risk", "measured and printed rate", xscale="log", yscale="log")
    return figure


EXPERIMENTS = {
    "dpsgd-rates": Experiment(run_risk, plot, table, held, config=RiskConfig),
    "muffliato-rate": Experiment(run_descent, plot, table, held, config=DescentConfig),
}
