"""Utility of noisy fixed-point iterations: equation (2) and the ADMM corollaries beside measured errors.

The operator is a gradient step on a strongly convex quadratic, R(u) = u - (2 / (beta + mu)) grad f(u), which
is tau-contractive with tau = (beta - mu) / (beta + mu). The bound promises that *some* relaxation lambda does
it; the best of a grid is measured.

Private ADMM on a synthetic Lasso: central, federated with client sampling, carried by a token.

Cyffers, Bellet, Basu 2023 and Bellet's 2024 talk: the three forms on one problem, at growing budgets. The
central form is accounted per record, the others per user (one record each here), federated with a secure
sum, the token locally. The paper's figures show central below federated below decentralized.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.algorithms import CentralADMM, FederatedADMM, TokenADMM
from sottovoce.algorithms.fixed_point import FixedPoint
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
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
        "fixed-point-utility", config, history=rows, metrics={"levels": len(rows)}, seed=config.seed
    )


def table(record: dict[str, Any]) -> ResultTable:
    rows = pick(record["history"], "noise_std", "bound", "error", "std", "relaxation")
    config = record["config"]
    columns = ("noise std", "paper: bound (2)", "ours: E |u - u*|^2", "std", "relaxation")
    note = f"dimension {config['dim']}, tau = {config['tau']:g}, {config['steps']} steps."
    return ResultTable(columns, rows, note, {"noise std": "noise"})


def held(record: dict[str, Any]) -> bool:
    """Whether the bound holds at every noise level."""
    return all(r["error"] <= r["bound"] for r in record["history"])


def plot(record: dict[str, Any]) -> Any:
    rows = record["history"]
    x = [r["noise_std"] for r in rows]
    with drawing.figure_of() as (figure, (axes,)):
        bars = [min(r["std"], 0.9 * r["error"]) for r in rows]
        drawing.error_bars(axes, x, [r["error"] for r in rows], bars, 0, "measured")
        drawing.error_bars(axes, x, [r["bound"] for r in rows], None, 1, "bound (2) as printed", paper=True)
        labels = "noise standard deviation", "squared distance to the fixed point"
        drawing.names(axes, *labels, "noisy fixed-point iterations", xscale="log", yscale="log")
    return figure


@dataclass(frozen=True)
class ADMMConfig:
    """Size of the problem, budgets and repetitions."""

    users: int = 1000
    dim: int = 64
    support: int = 8
    l1: float = 0.02
    epsilons: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    delta: float = 1e-6
    steps: int = 30
    visits: int = 5
    gammas: tuple[float, ...] = (0.3, 1.0, 3.0)
    relaxation: float = 0.8
    clip_norm: float = 1.0
    runs: int = 5
    seed: int = 0


ADMM_QUICK = ADMMConfig(
    users=120, dim=8, support=3, epsilons=(3.0, 30.0), steps=8, visits=2, gammas=(1.0,), runs=2
)


def lasso(config: ADMMConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return (X, y): rows of unit length, a sparse signal, a little label noise."""
    rng = np.random.default_rng(config.seed)
    X = rng.normal(size=(config.users, config.dim))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    w = np.zeros(config.dim)
    w[: config.support] = np.sign(rng.normal(size=config.support))
    scale = math.sqrt(config.dim) / 4
    return X * scale, X @ w * scale + 0.05 * rng.normal(size=config.users)


def run_admm(quick: bool = False, **options: Any) -> Result:
    """Return relative objective gaps of the three forms over the budgets, medians over runs."""
    config = replace(ADMM_QUICK if quick else ADMMConfig(), **options)
    X, y = lasso(config)
    n = config.users
    shards = Shards(X, y, np.arange(n + 1))
    model = GLM("squared", l1=config.l1)
    best = model.value(model.minimize(X, y), X, y)
    worst = model.value(np.zeros(config.dim), X, y)

    def plans(epsilon: float, gamma: float) -> dict[str, tuple[Any, Any]]:
        share: dict[str, Any] = {"objective": model, "gamma": gamma, "clip_norm": config.clip_norm}
        share["relaxation"] = config.relaxation
        spend: dict[str, Any] = {"epsilon": epsilon, "delta": config.delta}
        token: dict[str, Any] = {"users": n, "steps": config.visits * n, "cap": config.visits, **share}
        federated: dict[str, Any] = {"users": n, "steps": config.steps, "sample_rate": 0.2, **share}
        return {
            "central": (CentralADMM.for_budget(records=n, steps=config.steps, **spend, **share), (X, y)),
            "federated": (FederatedADMM.for_budget(view="central", **spend, **federated), shards),
            "token": (TokenADMM.for_budget(view="local", **spend, **token), shards),
        }

    def gap(plan: Any, data: Any, seed: int) -> float:
        w = plan.run(data, np.random.default_rng([config.seed, seed])).outputs["coef"]
        return (model.value(w, X, y) - best) / (worst - best)

    metrics: dict[str, Any] = {"objective": best, "at_zero": worst, "forms": {}}
    for epsilon in config.epsilons:
        candidates = [plans(epsilon, gamma) for gamma in config.gammas]
        for form in candidates[0]:
            plan, data = min((m[form] for m in candidates), key=lambda pair: gap(pair[0], pair[1], 0))
            fresh = [gap(plan, data, 1 + k) for k in range(config.runs)]
            view = {"central": "central", "federated": "central", "token": "local"}[form]
            row = {"epsilon": epsilon, "median": float(np.median(fresh)), "gaps": fresh, "gamma": plan.gamma}
            row |= {"noise_std": plan.noise_std, "label": plan.privacy(view).label}
            metrics["forms"].setdefault(form, []).append(row)
    return result("admm-lasso", config, metrics=metrics, paper="central below federated below decentralized")


def admm_table(record: dict[str, Any]) -> ResultTable:
    rows = []
    for form, cells in record["metrics"]["forms"].items():
        for row in cells:
            gaps = (row["median"], min(row["gaps"]), max(row["gaps"]))
            rows.append((form, row["epsilon"], *gaps, row["noise_std"], row["label"]))
    runs = record["config"].get("runs")
    columns = ("form", "epsilon", "gap, tuned (median)", "least", "most", "noise std", "label")
    note = f"Objective gap relative to the zero vector (1), {runs} runs at the best gamma of one other run."
    return ResultTable(columns, tuple(rows), note, {"epsilon": "epsilon", "noise std": "noise"})


def admm_held(record: dict[str, Any]) -> bool:
    """Whether the median gaps are ordered as in the paper at every budget."""
    forms = record["metrics"]["forms"]
    return all(
        c["median"] < f["median"] < t["median"]
        for c, f, t in zip(forms["central"], forms["federated"], forms["token"], strict=True)
    )


def plot_admm(record: dict[str, Any]) -> Any:
    with drawing.figure_of() as (figure, (axes,)):
        for k, (form, rows) in enumerate(record["metrics"]["forms"].items()):
            drawing.medians(axes, [r["epsilon"] for r in rows], [r["gaps"] for r in rows], k, form)
        drawing.level(axes, 1.0, "zero vector")
        drawing.names(
            axes, "privacy budget epsilon", "objective gap (share of the zero vector's)",
            "Private ADMM on a Lasso: median, least and most", xscale="log", yscale="log",
        )  # fmt: skip
    return figure


EXPERIMENTS = {
    "fixed-point-utility": Experiment(run, plot, table, held, config=Config),
    "admm-lasso": Experiment(run_admm, plot_admm, admm_table, admm_held, config=ADMMConfig),
}
