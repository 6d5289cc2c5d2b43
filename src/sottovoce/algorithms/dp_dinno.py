"""DP-DiNNO: consensus ADMM for networks with noisy primal steps.

.. math:: y_i^{k+1} = y_i^k + \\rho_k \\sum_{j \\in N(i)} (\\theta_i^k - \\theta_j^k), \\qquad
          \\psi \\leftarrow \\psi - \\mathrm{opt}\\Big(\\tilde G_i(\\psi) + y_i^{k+1}
          + 2\\rho_k \\sum_{j \\in N(i)} \\big(\\psi - \\tfrac{\\theta_i^k + \\theta_j^k}{2}\\big)\\Big)

the second T times from :math:`\\psi = \\theta_i^k`, then :math:`\\theta_i^{k+1} = \\psi`.

References: [1] Bayrooti, Gao, Prorok 2023, Algorithm 3; [2] Yu, Vincent, Schwager 2022 (DiNNO).
Departures from [1]: line 15 prints psi + G, a descent step is meant; N(i) is without i (with it only
2 rho (psi - theta_i) is added); K*T releases are accounted, their code books K. As in their code and in
[2], Adam starts anew at every communication, so that with T = 1 its step is the sign of the gradient;
``fresh_moments=False`` keeps the moments, which oscillates against the moving dual variable.

With plain steps and T = 1 disagreement along an eigenvector of the graph's Laplacian with value l obeys
mu^2 - 2(1 - a) mu + (1 - a) = 0, a = rate * rho * l: it dies out if and only if rate * rho * l < 4/3 for the
largest l, which is at most twice the largest degree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.dp_dsgd import NetworkPlan
from sottovoce.algorithms.schedules import Optimiser, OptimiserState
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.protocols import NeighbourSum, Protocol
from sottovoce.runners import Algorithm

__all__ = ["DPDiNNO", "dp_dinno"]


@dataclass(frozen=True, repr=False)
class DPDiNNO(NetworkPlan):
    """Consensus ADMM; ``primal_steps`` noisy gradients per step, and each is paid for.

    Parameters
    ----------
    rho, rho_growth : penalty of the first step, and its factor per step; with SGD keep rate * rho below 2/3
        over the largest degree, or disagreement grows.
    primal_steps : T, optimiser steps on the penalised loss per communication.
    fresh_moments : forget the optimiser's moments at every communication.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DPDiNNO(NetObjective(torch.nn.Linear(2, 2)), [500] * 4, 10, lot=50, noise_multiplier=2.0,
    ...                network=sv.graphs.ring(4), primal_steps=2)
    >>> plan.releases(0)
    20
    """

    optimiser: Optimiser = field(default_factory=lambda: Optimiser("adam"))
    rho: float = 0.5
    rho_growth: float = 1.0003
    primal_steps: int = 1
    fresh_moments: bool = True
    name: str = field(default="dp-dinno", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(self.rho, "rho")
        _validate.positive(self.rho_growth, "rho_growth")
        _validate.count(self.primal_steps, "primal_steps")

    @property
    def gradients_per_step(self) -> int:
        """T noisy gradients per step."""
        return self.primal_steps

    def schedule(self) -> Protocol:
        """Return one round in which neighbours' rows are added up."""
        return NeighbourSum(self.network)

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of DP-DiNNO."""
        degrees = np.asarray(self.network.degrees, np.float32)[gradients.agents]
        return dp_dinno(
            gradients, theta, degrees,
            rate=lambda k: self.learning_rate(k, self.steps),
            rho=lambda k: self.rho * self.rho_growth**k,
            optimiser=self.optimiser, primal_steps=self.primal_steps, fresh_moments=self.fresh_moments,
        )  # fmt: skip


class State(NamedTuple):
    """Primal and dual variables and optimiser moments, one row per agent."""

    theta: np.ndarray
    y: np.ndarray
    optimiser: OptimiserState


def dp_dinno(
    gradients: NoisyGradients,
    theta: np.ndarray,
    degrees: np.ndarray,
    *,
    rate: Callable[[int], float],
    rho: Callable[[int], float],
    optimiser: Optimiser,
    primal_steps: int = 1,
    fresh_moments: bool = False,
) -> Algorithm:
    """Return the three functions of Algorithm 3; what is received is the sum over neighbours.

    Examples
    --------
    >>> text = dp_dinno(lambda theta, k, t: theta, np.ones((2, 1)), np.ones(2), rate=lambda k: 0.1,
    ...                 rho=lambda k: 0.5, optimiser=Optimiser())
    >>> text.update(text.init(), np.ones((2, 1)), 0).theta.tolist()
    [[0.9], [0.9]]
    """
    d = degrees[:, None]

    def init():  # type: ignore[no-untyped-def]
        return State(theta, np.zeros_like(theta), optimiser.init(theta))

    def message(state, k):  # type: ignore[no-untyped-def]
        return state.theta

    def update(state, received, k):  # type: ignore[no-untyped-def]
        r = state.theta.dtype.type(rho(k))
        y = state.y + r * (d * state.theta - received)
        middle = (d * state.theta + received) / 2
        moments = optimiser.init(theta) if fresh_moments else state.optimiser
        psi = state.theta
        for t in range(primal_steps):
            h = gradients(psi, k, t) + y + 2 * r * (d * psi - middle)
            step, moments = optimiser.step(moments, h, rate(k))
            psi = psi - step
        return State(psi, y, moments)

    return Algorithm(init, message, update, output=lambda state: state.theta)
