"""DP-DSGT: decentralized gradient tracking with noisy gradients.

.. math:: \\theta_i^{k+1} = \\sum_j W_{ij}(\\theta_j^k - \\eta_k y_j^k), \\qquad
          y_i^{k+1} = \\sum_j W_{ij} y_j^k + \\tilde G_i^{k+1} - \\tilde G_i^k

References: [1] Bayrooti, Gao, Prorok 2023, Algorithm 2.
Departures from [1]: y starts at 0 (Algorithm 2 does not say); the subtracted gradient is the stored noisy
one, never recomputed; mixing is synchronous with a doubly stochastic W, which keeps sum y = sum G.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from sottovoce.algorithms.dp_dsgd import NetworkPlan
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.runners import Algorithm

__all__ = ["DPDSGT", "dp_dsgt"]


@dataclass(frozen=True, repr=False)
class DPDSGT(NetworkPlan):
    """Gradient tracking: messages hold parameters and tracked gradients, twice as long as DP-DSGD's.

    Guarantees
    ----------
    As DP-DSGD: ``steps`` sampled Gaussian releases per agent. Using a stored noisy gradient twice is
    post-processing.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DPDSGT(NetObjective(torch.nn.Linear(2, 2)), [500] * 4, 10, lot=50, noise_multiplier=2.0,
    ...               network=sv.graphs.ring(4))
    >>> plan.row_length
    12
    """

    name: str = field(default="dp-dsgt", init=False)
    uses_optimiser: ClassVar[bool] = False

    @property
    def row_length(self) -> int:
        """Parameters and tracked gradient."""
        return 2 * self.objective.n_params

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of DP-DSGT."""
        return dp_dsgt(gradients, theta, lambda k: self.learning_rate(k, self.steps))


class State(NamedTuple):
    """Parameters, tracked gradient, last noisy gradient; one row per agent."""

    theta: np.ndarray
    y: np.ndarray
    g: np.ndarray


def dp_dsgt(gradients: NoisyGradients, theta: np.ndarray, rate: Callable[[int], float]) -> Algorithm:
    """Return the three functions of Algorithm 2.

    Examples
    --------
    >>> text = dp_dsgt(lambda theta, k: theta, np.ones((2, 1)), lambda k: 0.5)
    >>> text.message(text.init(), 0).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    dim = theta.shape[1]

    def init():  # type: ignore[no-untyped-def]
        return State(theta, np.zeros_like(theta), np.zeros_like(theta))

    def message(state, k):  # type: ignore[no-untyped-def]
        return np.concatenate([state.theta, state.y], axis=1)

    def update(state, received, k):  # type: ignore[no-untyped-def]
        mixed, tracked = received[:, :dim], received[:, dim:]
        moved = mixed - mixed.dtype.type(rate(k)) * tracked
        g = gradients(moved, k)
        return State(moved, tracked + g - state.g, g)

    return Algorithm(init, message, update, output=lambda state: state.theta)
