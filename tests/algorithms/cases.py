"""The one list of algorithms that the contract tests go through: a line per algorithm.

A case says how to build a plan with some options and, where one is known, how the plain algorithm (no noise,
no clip) reads in dense numpy, written here and not taken from the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

import sottovoce as sv
from sottovoce.algorithms import (
    DPCD,
    DPDSGD,
    DPDSGT,
    DPGCD,
    DPSGD,
    CentralADMM,
    ConsensusFedAvg,
    ConsensusNewton,
    ConsensusSGD,
    Decor,
    DPDiNNO,
    FederatedADMM,
    FixedPoint,
    Mafalda,
    MuffliatoSGD,
    RandomWalkSGD,
    TokenADMM,
)
from sottovoce.algorithms.mafalda import correlation
from sottovoce.data import Shards
from sottovoce.objectives import GLM

N, P, EACH = 4, 3, 12
RING = sv.graphs.ring(N)
W = RING.W.toarray()
A = RING.adjacency.toarray()
RATE = 0.3


def shards(seed: int = 0, each: int = EACH) -> Shards:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N * each, P))
    y = np.sign(X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=N * each))
    return Shards(X, y, np.arange(N + 1) * each)


def gradient(theta: np.ndarray, data: Shards) -> np.ndarray:
    """(n, p): the mean logistic gradient of every agent at its own row, written out."""
    rows = []
    for v in range(data.n):
        X, y = data.user(v)
        slope = -y / (1 + np.exp(y * (X @ theta[v])))
        rows.append(slope @ X / len(y))
    return np.array(rows)


# ---- the plain algorithms, dense ----------------------------------------


def plain_consensus(data: Shards, steps: int) -> np.ndarray:
    theta = np.zeros((N, P))
    for _ in range(steps):
        theta = theta - RATE * gradient(theta, data).mean(axis=0)
    return theta


def plain_fedavg(data: Shards, steps: int) -> np.ndarray:
    theta = np.zeros((N, P))
    for _ in range(steps):
        local = theta
        for _ in range(3):
            local = local - 0.5 * gradient(local, data)
        theta = theta - RATE * (theta - local).mean(axis=0)
    return theta


def plain_muffliato(data: Shards, steps: int) -> np.ndarray:
    theta = np.zeros((N, P))
    for _ in range(steps):
        theta = W @ W @ (theta - RATE * gradient(theta, data))
    return theta


def plain_dsgd(data: Shards, steps: int) -> np.ndarray:
    theta = np.zeros((N, P))
    for _ in range(steps):
        theta = W @ theta - RATE * gradient(theta, data)
    return theta


def plain_dsgt(data: Shards, steps: int) -> np.ndarray:
    theta, y, g = np.zeros((N, P)), np.zeros((N, P)), np.zeros((N, P))
    for _ in range(steps):
        theta = W @ theta - RATE * (W @ y)
        new = gradient(theta, data)
        y, g = W @ y + new - g, new
    return theta


def plain_dinno(data: Shards, steps: int, rho: float = 0.4, inner: int = 2) -> np.ndarray:
    theta, dual = np.zeros((N, P)), np.zeros((N, P))
    d = A.sum(axis=1)[:, None]
    for k in range(steps):
        r = rho * 1.1**k
        dual = dual + r * (d * theta - A @ theta)
        psi = theta
        for _ in range(inner):
            penalty = 2 * r * (d * psi - (d * theta + A @ theta) / 2)
            psi = psi - RATE * (gradient(psi, data) + dual + penalty)
        theta = psi
    return theta


# ---- one holder, tokens, servers and correlated noise ---------------------------------------------

M = 20  # records of the one holder
STEPS = 6
PATH = (0, 1, 2, 3, 3, 2)
SMOOTH = (0.3, 0.5, 0.2)


def spoiled(each: int, bad: Any, rows: int, parts: int = N) -> Shards:
    """Users, or one holder of all records, the first rows made bad."""
    data = shards(each=each)
    X = data.X.copy()
    if bad is not None:
        X[:rows] = bad
    return Shards(X, data.y, data.offsets if parts == N else np.array([0, len(X)]))


def one_holder(bad: Any = None) -> Shards:
    """All records in one part; the first may be made bad."""
    return spoiled(M // N, bad, 1, parts=1)


def users(bad: Any = None) -> Shards:
    """Four users; all records of the one that holds the token first, or of user 0, may be made bad."""
    return spoiled(5, bad, 5)


def one_record(bad: Any = None) -> Shards:
    """Four users; one record of user 0 may be made bad."""
    return spoiled(5, bad, 1)


def four_agents(bad: Any = None) -> Shards:
    """Four agents; one record of agent 0 may be made bad."""
    return spoiled(EACH, bad, 1)


def slopes(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gradients of the logistic losses, one row per record."""
    return (-y / (1 + np.exp(y * (X @ w))))[:, None] * X


def contraction(u: np.ndarray, data: Shards) -> np.ndarray:
    """A gradient step on gradients clipped by hand: replacing a record moves it by at most 2 * 0.7 / M."""
    rows = np.array([slopes(data.X[i : i + 1], data.y[i : i + 1], u[0])[0] for i in range(M)])
    rows /= np.maximum(1, np.abs(rows).max(axis=1))[:, None]  # so that squares do not overflow
    lengths = np.linalg.norm(rows, axis=1)
    return u - (rows * np.minimum(1, 0.7 / np.maximum(lengths, 1e-300))[:, None]).mean(axis=0)


def values(bad: Any = None) -> np.ndarray:
    """One row per node; that of node 0 may be made bad."""
    rows = np.random.default_rng(3).normal(size=(N, P)) / 4
    if bad is not None:
        rows[0] = bad
    return rows


@dataclass(frozen=True)
class Case:
    """One algorithm under contract: how its plan is built, on which data, and the units of its releases.

    ``plain`` is the algorithm without noise and clip, written in dense numpy. ``scale`` times a difference of
    what `sent` gives is a difference of first releases; ``noise`` is one that protects, ``std`` the deviation
    of what leaves, where it is not the release's own.
    """

    name: str
    make: Callable[..., Any]
    options: dict[str, Any]
    data: Callable[..., Any]
    scale: Callable[[Any, Any], float]
    noise: float
    plain: Callable[[Shards, int], np.ndarray] | None = None
    coef: str = "coef"
    place: int = 0
    std: Callable[[Any], float] | None = None
    squared: bool = False  # a prox by its normal equations, in place of the logistic loss
    clip_norm: float = 0.7
    first: Any = None  # what a plan is built on, where it is no model
    first_name: str = "objective"
    clip_name: str | None = "clip_norm"
    stepwise: bool = True  # whether it takes a number of steps
    takes_nan: bool = False  # values that are no numbers count as none instead of being refused
    path: bool = False  # whether a path names the agents
    symmetric: bool = True  # whether renaming the agents along a symmetry of the ring renames the result

    def plan(self, noise: float, /, **changes: Any) -> Any:
        """Return the plan with so much noise, in the plan's own unit."""
        model = GLM("squared" if self.squared else "logistic") if self.first is None else self.first
        settings = {self.first_name: model, **self.options, self.make.noise_field: noise, **changes}
        if self.stepwise:
            settings.setdefault("steps", STEPS)
        if self.clip_name is not None:
            settings.setdefault(self.clip_name, settings.pop("clip_norm", self.clip_norm))
        return self.make(**settings)

    def __repr__(self) -> str:
        return self.name


def decentralized(name: str, make: Callable[..., Any], plain: Callable[[Shards, int], np.ndarray],
                  symmetric: bool = True, **options: Any) -> Case:  # fmt: skip
    """A case of four agents on a ring that descend by the mean gradient of their records."""
    common = {"steps": 5, "learning_rate": RATE, "sizes": [EACH] * N, "network": RING}
    return Case(name, make, common | options, four_agents, unscaled, 0.7, plain, coef="rows", clip_norm=1.0,
                symmetric=symmetric)  # fmt: skip


def _coordinate(plan: Any, mechanism: Any) -> float:
    (j,) = mechanism.chosen(0, 1)
    return SMOOTH[j] * M / (plan.clip_norm * np.sqrt(SMOOTH[j] / sum(SMOOTH)))


def unscaled(plan: Any, mechanism: Any) -> float:
    return 1.0


HOLDER = {"records": M}
ADMM = {"gamma": 1.0}
NETWORK = {"network": RING, "learning_rate": RATE, "adjacency": "user"}
PLAIN = [  # with a dense twin
    decentralized("consensus-sgd", ConsensusSGD, plain_consensus, False, protocol="exchange"),
    decentralized("consensus-tree", ConsensusSGD, plain_consensus, False),
    decentralized("consensus-fedavg", ConsensusFedAvg, plain_fedavg, False, local_steps=3, local_rate=0.5),
    decentralized("muffliato-sgd", MuffliatoSGD, plain_muffliato, protocol="gossip:2"),
    decentralized("dp-dsgd", DPDSGD, plain_dsgd),
    decentralized("dp-dsgt", DPDSGT, plain_dsgt),
    decentralized("dp-dinno", DPDiNNO, plain_dinno, rho=0.4, rho_growth=1.1, primal_steps=2, optimizer="sgd"),
]
OTHERS = [
    Case("averaging", sv.PrivateAveraging, {"dim": P}, values, unscaled, 2.0, coef="rows",
         first=sv.protocols.Gossip(RING, 2), first_name="protocol", clip_name="radius", stepwise=False,
         takes_nan=True),
    Case("dp-sgd", DPSGD, {**HOLDER, "learning_rate": RATE}, one_holder, unscaled, 2.0),
    Case("dp-cd", DPCD, {**HOLDER, "smoothness": SMOOTH, "output": "last"}, one_holder, _coordinate, 3.0),
    Case("dp-gcd", DPGCD, {**HOLDER, "smoothness": SMOOTH}, one_holder, unscaled, 20.0),
    Case("admm", CentralADMM, {**HOLDER, **ADMM}, one_holder, unscaled, 0.2, squared=True),
    Case("fixed-point", FixedPoint,
         {"sensitivity": 1.4 / M, "start": np.zeros((1, P)), "relaxation": 0.5}, one_holder,
         lambda p, s: 2.0, 0.2, coef="blocks", first=contraction, first_name="operator", clip_name=None),
    Case("walk", RandomWalkSGD, {**NETWORK, "path": PATH}, users, lambda p, s: 1 / RATE, 2.0, path=True),
    Case("secret walk", RandomWalkSGD, {**NETWORK, "path": "secret"}, users, lambda p, s: 1 / RATE, 2.0,
         path=True),
    Case("token-admm", TokenADMM, {**ADMM, "users": N}, users, lambda p, s: 2 * N, 2.0, squared=True,
         path=True),
    Case("federated-admm", FederatedADMM, {**ADMM, "users": N, "sample_rate": 1.0}, users, unscaled, 2.0,
         squared=True),
    Case("decor", Decor, {**NETWORK, "pair_multiplier": 1.5}, users, lambda p, s: 1 / RATE, 2.0, coef="rows",
         std=lambda p: p.clip_norm * np.sqrt(2.0**2 + 2 * 1.5**2)),
    Case("consensus-newton", ConsensusNewton,
         {"network": RING, "protocol": "tree", "sizes": (5,) * N, "feature_norm": 2.0}, one_record,
         unscaled, 2.0),
    Case("mafalda", Mafalda, NETWORK, users, lambda p, s: 1 / RATE, 2.0, coef="rows",
         std=lambda p: p.clip_norm * 2.0 * correlation(p).sens * abs(correlation(p).inverse[0, 0])),
]  # fmt: skip
CASES = [*PLAIN, *OTHERS]


def prox_squared(v, x, y, step):
    """Return prox of (1/2)(x.w - y)^2 at ``v``."""
    return v - x * (step * (x @ v - y) / (1.0 + step * (x @ x)))


def prox_squared_batch(v, X, y, step):
    """Return prox of (1/2m)|Xw - y|^2 at ``v``: solve (I + step X'X/m) w = v + step X'y/m."""
    m = len(y)
    return np.linalg.solve(np.eye(len(v)) + (step / m) * (X.T @ X), v + (step / m) * (X.T @ y))


def prox_logistic(v, x, y, step):
    """Return prox of ln(1 + exp(-y x.w)) at ``v``; the margin m solves m = y x.v + step |x|^2 / (1 + e^m)."""
    start, reach = y * float(x @ v), step * float(x @ x)

    def pull(m):
        return 1.0 / (1.0 + math.exp(min(m, 700.0)))

    m = brentq(lambda m: m - start - reach * pull(m), start, start + reach, xtol=1e-15, rtol=1e-15)
    return v + (step * y * pull(m)) * x
