"""DP-DSGD: decentralized SGD with per-sample clipping and Gaussian noise.

.. math:: \\theta_i^{k+1} = \\sum_j W_{ij}\\theta_j^k - \\eta_k \\tilde G_i(\\theta_i^k)

References: [1] Bayrooti, Gao, Prorok, "Differentially Private Decentralized Deep Learning with Consensus
Algorithms", 2023, Algorithm 1.
Departures from [1]: all agents compute from the same snapshot (their code mixes in place, agent after agent,
and takes the gradient at the mixed point); W is symmetric and doubly stochastic (theirs is row-normalised);
noise comes from a noise source, not from a published seed. A local optimiser may replace the plain step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sottovoce.algorithms.deep import DeepPlan
from sottovoce.algorithms.schedules import Optimiser, OptimiserState
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.protocols import Gossip, Protocol
from sottovoce.runners import Algorithm

__all__ = ["DPDSGD", "NetworkPlan", "dp_dsgd"]


@dataclass(frozen=True, repr=False)
class NetworkPlan(DeepPlan):
    """A plan whose agents are the nodes of a network.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> DPDSGD(NetObjective(torch.nn.Linear(2, 2)), [9, 9], 5, network=sv.graphs.ring(3))
    Traceback (most recent call last):
    ...
    sottovoce.errors.InvalidInput: the network has 3 nodes, but sizes are given for 2 agents.
    """

    network: Network = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.network, Network):
            raise InvalidInput(f"network must be a Network, got {type(self.network).__name__}.")
        if self.network.n != self.n:
            raise InvalidInput(
                f"the network has {self.network.n} nodes, but sizes are given for {self.n} agents."
            )

    def schedule(self) -> Protocol | Callable[[int], Protocol]:
        """Return one round of gossip per step."""
        return Gossip(self.network, rounds=1)


@dataclass(frozen=True, repr=False)
class DPDSGD(NetworkPlan):
    """Decentralized DP-SGD; one gossip round and one noisy gradient per step.

    Guarantees
    ----------
    Record level, against anyone who sees all messages: every message is a function of the agent's noisy
    gradients and of others' messages, so agent ``i`` pays for ``steps`` sampled Gaussian releases.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DPDSGD(NetObjective(torch.nn.Linear(2, 2)), [500] * 4, 10, lot=50, noise_multiplier=2.0,
    ...               network=sv.graphs.ring(4))
    >>> plan.cost()["messages"], plan.privacy("local").label
    (80, 'ldp')
    """

    name: str = field(default="dp-dsgd", init=False)

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of DP-DSGD."""
        return dp_dsgd(gradients, theta, lambda k: self.learning_rate(k, self.steps), self.optimiser)


class State(NamedTuple):
    """Parameters and optimiser moments, one row per agent."""

    theta: np.ndarray
    optimiser: OptimiserState


def dp_dsgd(
    gradients: NoisyGradients, theta: np.ndarray, rate: Callable[[int], float], optimiser: Optimiser
) -> Algorithm:
    """Return the three functions of Algorithm 1.

    Examples
    --------
    >>> text = dp_dsgd(lambda theta, k: theta, np.ones((2, 1)), lambda k: 0.5, Optimiser())
    >>> text.update(text.init(), np.array([[3.0], [3.0]]), 0).theta.tolist()
    [[2.5], [2.5]]
    """

    def init():  # type: ignore[no-untyped-def]
        return State(theta, optimiser.init(theta))

    def message(state, k):  # type: ignore[no-untyped-def]
        return state.theta

    def update(state, received, k):  # type: ignore[no-untyped-def]
        step, moments = optimiser.step(state.optimiser, gradients(state.theta, k), rate(k))
        return State(received - step, moments)

    return Algorithm(init, message, update, output=lambda state: state.theta)
