"""The one list of (algorithm, objective) that the contract tests go through: a line per algorithm.

A case says how to build a plan with some options, how the plain algorithm (no noise, no clip) reads in dense
numpy, written here and not taken from the library, and what it shares with others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.algorithms import (
    DPDSGD,
    DPDSGT,
    ConsensusFedAvg,
    ConsensusSGD,
    DPDiNNO,
    MuffliatoSGD,
    Optimiser,
)
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


@dataclass(frozen=True)
class Case:
    """One algorithm under contract."""

    name: str
    make: Callable[..., Any]
    plain: Callable[[Shards, int], np.ndarray]
    options: dict[str, Any]
    symmetric: bool = True  # whether renaming the agents along a symmetry of the ring renames the result
    tolerance: float = 1e-12
    steady: tuple[tuple[str, Any], ...] = ()  # options for a long run

    def plan(self, objective: Any = None, **changes: Any) -> Any:
        """Return the plan on four agents with ``changes``."""
        given = {
            "steps": 5, "learning_rate": RATE, "clip": 1.0, "noise_multiplier": 0.0, "sizes": [EACH] * N,
            **self.options, **changes,
        }  # fmt: skip
        return self.make(GLM("logistic") if objective is None else objective, network=RING, **given)

    def __repr__(self) -> str:
        return self.name


CASES = [
    Case("consensus-sgd", ConsensusSGD, plain_consensus, {"protocol": "exchange"}, symmetric=False),
    Case("consensus-tree", ConsensusSGD, plain_consensus, {}, symmetric=False),
    Case("consensus-fedavg", ConsensusFedAvg, plain_fedavg, {"local_steps": 3, "local_rate": 0.5}, False),
    Case("muffliato-sgd", MuffliatoSGD, plain_muffliato, {"protocol": "gossip:2"}),
    Case("dp-dsgd", DPDSGD, plain_dsgd, {}),
    Case("dp-dsgt", DPDSGT, plain_dsgt, {}),
    Case("dp-dinno", DPDiNNO, plain_dinno,
         {"rho": 0.4, "rho_growth": 1.1, "primal_steps": 2, "optimiser": Optimiser()},
         steady=(("rho_growth", 1.0),)),
]  # fmt: skip
