"""DP-SGD for networks, all records in one place: the baseline a decentralized method is measured against.

.. math:: \\theta^{k+1} = \\theta^k - \\eta_k\\, \\mathrm{opt}(\\tilde G(\\theta^k))

References: [1] Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1.
Departures from [1]: the divisor is the expected lot size, also for an empty lot (as in their code);
losses are accounted by privacy loss distributions instead of moments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sottovoce.algorithms.deep import DeepPlan
from sottovoce.algorithms.schedules import Optimiser, OptimiserState
from sottovoce.errors import InvalidInput
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.protocols import Exchange, Protocol
from sottovoce.runners import Algorithm

__all__ = ["DeepSGD", "deep_sgd"]


@dataclass(frozen=True, repr=False)
class DeepSGD(DeepPlan):
    """Central DP-SGD: one agent holds all records.

    Examples
    --------
    >>> import torch
    >>> from sottovoce.objectives.lots import AgentData
    >>> from sottovoce.objectives.nets import NetObjective
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(int)
    >>> data = AgentData(x, y, [np.arange(200)], test=(x, y), classes=2)
    >>> plan = DeepSGD.for_budget(
    ...     NetObjective(torch.nn.Linear(2, 2)), sizes=data.sizes, steps=20, learning_rate=1.0,
    ...     epsilon=2.0, delta=1e-5,
    ... )
    >>> plan.run(data, rng).metrics["accuracy"] > 80
    True
    """

    name: str = field(default="dp-sgd", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n != 1:
            raise InvalidInput(f"central DP-SGD has one agent that holds all records, got {self.n} agents.")

    def schedule(self) -> Protocol:
        """Return a protocol that sends nothing."""
        return Exchange(1)

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of DP-SGD."""
        return deep_sgd(gradients, theta, lambda k: self.learning_rate(k, self.steps), self.optimiser)


class State(NamedTuple):
    """Parameters and optimiser moments."""

    theta: np.ndarray
    optimiser: OptimiserState


def deep_sgd(
    gradients: NoisyGradients, theta: np.ndarray, rate: Callable[[int], float], optimiser: Optimiser
) -> Algorithm:
    """Return DP-SGD for whoever is hosted, each on its own: nothing received is used.

    Examples
    --------
    >>> deep_sgd(lambda theta, k: theta, np.ones((1, 2)), lambda k: 0.5, Optimiser()).init().theta.tolist()
    [[1.0, 1.0]]
    """

    def init():  # type: ignore[no-untyped-def]
        return State(theta, optimiser.init(theta))

    def message(state, k):  # type: ignore[no-untyped-def]
        return state.theta

    def update(state, received, k):  # type: ignore[no-untyped-def]
        step, moments = optimiser.step(state.optimiser, gradients(state.theta, k), rate(k))
        return State(state.theta - step, moments)

    return Algorithm(init, message, update, output=lambda state: state.theta)
