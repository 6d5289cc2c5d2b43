"""Muffliato-SGD for networks: a noisy local step, then several rounds of gossip.

.. math:: \\hat\\theta_i = \\theta_i^k - \\eta_k \\tilde G_i(\\theta_i^k), \\qquad
          \\theta^{k+1} = \\mathrm{gossip}_K(\\hat\\theta)

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 3.
Departures from [1]: gradients are clipped record by record and lots are Poisson; only the local guarantee is
claimed, because equation (9) understates what a node learns and the linear formula is no guarantee for
networks (an honest node's gradient depends on parameters the observer does not see).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.dp_dsgd import NetworkPlan
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.protocols import Chebyshev, Gossip, Protocol
from sottovoce.runners import Algorithm

__all__ = ["DeepMuffliato", "deep_muffliato"]


@dataclass(frozen=True, repr=False)
class DeepMuffliato(NetworkPlan):
    """Muffliato-SGD on networks; ``gossip_rounds`` rounds per step, accelerated when there are several.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DeepMuffliato(NetObjective(torch.nn.Linear(2, 2)), [500] * 4, 10, noise_multiplier=2.0,
    ...                      network=sv.graphs.ring(4), gossip_rounds=3)
    >>> plan.cost()["rounds"]
    30
    """

    gossip_rounds: int = 1
    name: str = field(default="muffliato-sgd-net", init=False)
    uses_optimiser: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count(self.gossip_rounds, "gossip_rounds")

    def schedule(self) -> Protocol:
        """Return the gossip of one step."""
        kind = Gossip if self.gossip_rounds == 1 else Chebyshev
        return kind(self.network, self.gossip_rounds)

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of Muffliato-SGD."""
        return deep_muffliato(gradients, theta, lambda k: self.learning_rate(k, self.steps))


def deep_muffliato(gradients: NoisyGradients, theta: np.ndarray, rate: Callable[[int], float]) -> Algorithm:
    """Return the three functions of Algorithm 3 of [1].

    Examples
    --------
    >>> text = deep_muffliato(lambda theta, k: theta, np.ones((2, 1)), lambda k: 0.5)
    >>> text.message(text.init(), 0).tolist()
    [[0.5], [0.5]]
    """

    def message(state, k):  # type: ignore[no-untyped-def]
        return state - state.dtype.type(rate(k)) * gradients(state, k)

    return Algorithm(
        init=lambda: theta,
        message=message,
        update=lambda state, received, k: received,
        output=lambda state: state,
    )
