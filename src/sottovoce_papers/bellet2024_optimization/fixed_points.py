"""Utility of noisy fixed-point iterations: equation (2) and the ADMM corollaries beside measured errors.

The operator is a gradient step on a strongly convex quadratic, R(u) = u - (2 / (beta + mu)) grad f(u), which
is tau-contractive with tau = (beta - mu) / (beta + mu). The bound promises that *some* relaxation lambda does
it; the best of a grid is measured.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.algorithms.fixed_point import FixedPoint
from sottovoce.errors import InvalidInput
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.registry import Experiment, ResultTable, pick


@dataclass(frozen=True)
class Config:
    """Dimension, contraction, noise levels and the relaxations that are tried."""

    dim: int = 10
    tau: float = 0.5
    noises: tuple[float, ...] = (0.001, 0.01, 0.1)
    relaxations: tuple[float, ...] = (0.3, 1.0)
    steps: int = 60
    runs: int = 5
    seed: int = 0


QUICK = Config(noises=(0.01, 0.1), relaxations=(1.0,), steps=15, runs=2)


def fixed_point_bound(
    steps: int,
    distance: float,
    dim: int,
    noise_std: float,
    tau: float,
    *,
    q: float = 1.0,
    inexact: float = 0.0,
) -> float:
    """Return equation (2) as printed: a bound on E |u_k - u*|^2 after ``steps`` noisy iterations.

    ``distance`` is |u_0 - u*|^2, ``q`` the probability that a block moves, ``inexact`` bounds
    E |e_k|^2 by its square.
    """
    if not 0 <= tau < 1 or not 0 < q <= 1:
        raise InvalidInput(f"tau must be in [0, 1) and q in (0, 1], got tau = {tau:g} and q = {q:g}.")
    noise = math.sqrt(dim) * noise_std + inexact
    square = dim * noise_std**2 + inexact**2
    forgotten = (1 - q**2 * (1 - tau) / 8) ** steps * distance
    return forgotten + 8 * (noise / (math.sqrt(q) * (1 - tau)) + square / (q**3 * (1 - tau) ** 3))


def admm_order(
    n: int,
    dim: int,
    epsilon: float,
    tau: float,
    *,
    alpha: float = 2.0,
    lipschitz: float = 1.0,
    gamma: float = 1.0,
    sample_rate: float = 1.0,
) -> float:
    """Return the order of private ADMM's error as the talk's corollaries print it, without constants.

    ``sample_rate`` 1 is the centralized form, less the federated one.
    """
    if not 0 <= tau < 1 or not 0 < sample_rate <= 1:
        raise InvalidInput(
            f"tau must be in [0, 1) and sample_rate in (0, 1], got {tau:g} and {sample_rate:g}."
        )
    first = math.sqrt(dim * alpha) * lipschitz * gamma / (math.sqrt(epsilon * sample_rate) * n * (1 - tau))
    second = dim * alpha * (lipschitz * gamma) ** 2 / (epsilon * sample_rate**2 * n**2 * (1 - tau) ** 3)
    return first + second


def run(quick: bool = False, **options: Any) -> Result:
    """Return measured errors of the library's fixed-point iteration beside the bound, by noise level."""
    started = time.perf_counter()
    config = replace(QUICK if quick else Config(), **options)
    if not 0 < config.tau < 1:
        raise InvalidInput(f"tau must be between 0 and 1, got {config.tau:g}.")
    # eigenvalues from mu to beta = 1: R = I - 2 A / (1 + mu) has modulus at most tau
    mu = (1 - config.tau) / (1 + config.tau)
    A = np.diag(np.linspace(mu, 1.0, config.dim))
    target = np.ones(config.dim) / math.sqrt(config.dim)

    def operator(u: np.ndarray, data: Any) -> np.ndarray:
        return u - 2 / (1 + mu) * (u - target) @ A

    rows = []
    for noise in config.noises:
        by_relaxation = {}
        for relaxation in config.relaxations:
            plan = FixedPoint(
                operator, sensitivity=1.0, noise_std=noise, steps=config.steps, relaxation=relaxation,
                start=np.zeros((1, config.dim)),
            )  # fmt: skip
            ends = [
                plan.run(0.0, np.random.default_rng([config.seed, r])).outputs["blocks"][0]
                for r in range(config.runs)
            ]
            by_relaxation[relaxation] = [float(((end - target) ** 2).sum()) for end in ends]
        best = min(by_relaxation, key=lambda key: float(np.mean(by_relaxation[key])))
        errors = by_relaxation[best]
        row = {"noise_std": noise, "relaxation": best, "error": float(np.mean(errors))}
        bound = fixed_point_bound(config.steps, 1.0, config.dim, noise, config.tau)
        rows.append({**row, "std": float(np.std(errors)), "bound": bound})
    return result(
        "fixed-point-utility", started, config, history=rows, metrics={"levels": len(rows)}, seed=config.seed
    )


def table(record: dict[str, Any]) -> ResultTable:
    """Return bound and measured error by noise."""
    rows = pick(record["history"], "noise_std", "bound", "error", "std", "relaxation")
    config = record["config"]
    columns = ("noise std", "paper: bound (2)", "ours: E |u - u*|^2", "std", "relaxation")
    note = f"dimension {config['dim']}, tau = {config['tau']:g}, {config['steps']} steps."
    return ResultTable(columns, rows, note, {"noise std": "noise"})


def held(record: dict[str, Any]) -> bool:
    """Whether the bound holds at every noise level."""
    return all(r["error"] <= r["bound"] for r in record["history"])


def plot(record: dict[str, Any]) -> Any:
    """Draw bound and measured error over the noise."""
    rows = record["history"]
    x = [r["noise_std"] for r in rows]
    with drawing.figure_of() as (figure, (axes,)):
        bars = [min(r["std"], 0.9 * r["error"]) for r in rows]
        drawing.error_bars(axes, x, [r["error"] for r in rows], bars, 0, "measured")
        drawing.error_bars(axes, x, [r["bound"] for r in rows], None, 1, "bound (2) as printed", paper=True)
        labels = "noise standard deviation", "squared distance to the fixed point"
        drawing.names(axes, *labels, "noisy fixed-point iterations", xscale="log", yscale="log")
    return figure


EXPERIMENTS = {
    "fixed-point-utility": Experiment(
        "Noisy fixed-point iterations against their printed bound",
        "Bellet 2024 (talk); Cyffers et al. 2023", run, plot, table=table, held=held, config=Config,
        claim="A contractive operator with noise converges to a neighborhood of its fixed point.",
    )
}  # fmt: skip
