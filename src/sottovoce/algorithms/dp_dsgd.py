r"""DP-DSGD: decentralized SGD with per-sample clipping and Gaussian noise.

.. math:: \theta_i^{k+1} = \sum_j W_{ij}\theta_j^k - \eta_k \tilde G_i(\theta_i^k)

References: [1] Bayrooti, Gao, Prorok, "Differentially Private Decentralized Deep Learning with Consensus
Algorithms", 2023, Algorithm 1.
Departures from [1]: all agents compute from the same snapshot (their code mixes in place, agent after agent,
and takes the gradient at the mixed point); the weights of a network are symmetric, so doubly stochastic, by
default (theirs is row-normalized); noise comes from a noise source, not from a published seed. A local
optimizer may replace the plain step. Row-stochastic weights are accepted too: the models then drift from the
mean towards that of the nodes with many neighbors, at the same privacy cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.accounting.observation import LocalOnly
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.optimizers import OptimizerState
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class DPDSGD(GradientPlan):
    """Decentralized DP-SGD: per step one noisy gradient and, by default, one gossip round.

    Parameters are those of `GradientPlan`.

    Guarantees
    ----------
    Against all others together: every message is a function of the agent's noisy gradients and of others'
    messages, so an agent releases ``steps`` gradients and nothing else. Releases that cannot reach named
    observers before the end are left out against these, and the label is then ``exact``.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = DPDSGD(sv.objectives.GLM(dim=5), sv.graphs.ring(4), steps=10, sizes=[500] * 4, batch_size=50,
    ...               clip_norm=1.0, noise_multiplier=2.0)
    >>> plan.cost()["messages"], plan.privacy("local").label
    (80, 'ldp')
    """

    name = "dp-dsgd"
    one_batch_per_step = True
    observation = LocalOnly(delay=1)  # what is drawn in a step is sent from the next one on
    needs = ("linear", "mixes")
    excludes = ("masked", "fresh_noise")

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 1 of [1]."""
        optimizer = self.optimizer

        def update(state: State, received: np.ndarray, k: int) -> State:
            (theta, moments), rate = state.own, self.rate(k)
            g = mechanism.gradient_with_l2(theta, k)
            return State((), DSGDVariables(*optimizer.descend(moments, g, rate, theta, received)))

        return Algorithm(
            init=lambda: State((), DSGDVariables(start, optimizer.init(start))),
            message=lambda state, k: state.own.theta,
            update=update,
            output=lambda state: state.own.theta,
        )


class DSGDVariables(NamedTuple):
    """Parameters and optimizer moments, one row per agent."""

    theta: np.ndarray
    moments: OptimizerState
