r"""Muffliato-GD and -SGD: a noisy local gradient step, then K rounds of gossip.

.. math:: \hat\theta_i = \theta_i^k - \eta_k \tilde G_i(\theta_i^k), \qquad
          \theta^{k+1} = \mathrm{gossip}_K(\hat\theta)

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 3.
Departures from [1]: noise is relative to the clip and clipping comes before it ([1] passes the absolute
variance nu^2 sigma^2); user-level sensitivity is 2C; pairwise figures are the linear formula, labeled
"conditional" and returned only on request, because equation (9) understates what later
steps reveal. The guarantee is local. Weights that are only row-stochastic are accepted, as by DP-DSGD: the
models then come together at a weighted mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.observation import LinearGossip
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.protocols import NamedProtocol, Protocol
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class MuffliatoSGD(GradientPlan):
    """Decentralized gradient descent with local noise and gossip.

    The schedule decides the variant: `Gossip` or `Chebyshev` on a fixed network, a function of the step for
    fresh Erdős-Rényi graphs, `TimeVarying`, `Dropout` or `FreshNoiseGossip` gossip. Parameters as
    `GradientPlan`.

    Guarantees
    ----------
    ``local``, valid for every loss and schedule, restated against weaker adversaries; against observers whom
    the last releases do not reach it is lower, and its label ``exact``. With one step it is averaging, and
    exact. ``label="conditional"`` gives the loss of the linear system at user level. Records that are not
    finite contribute nothing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = MuffliatoSGD(sv.objectives.GLM(), sv.protocols.Gossip(sv.graphs.path(5), rounds=1), steps=5,
    ...                     clip_norm=1.0, noise_multiplier=4.0, adjacency="user")
    >>> pair = {"observer": 0, "user": 4}
    >>> plan.privacy("pairwise", **pair).label, plan.privacy("pairwise", **pair, label="conditional").label
    ('exact', 'conditional')
    """

    name = "muffliato-sgd"
    one_batch_per_step = True
    needs = ("linear", "mixes")
    excludes = ("reaches_consensus",)
    uses_optimizer = False
    observation = LinearGossip()  # the linear formula is conditional; local privacy is valid

    @cached_property
    def schedule(self) -> Schedule:
        return self._schedule(self.protocol, row_noise=self._row_noise)

    def _row_noise(self, k: int) -> float:
        """Return the largest noise in a row that step ``k`` gossips: the rate times that of a gradient."""
        z, divisor = float(np.max(self.noise_multiplier)), 1.0
        if self.adjacency != "user" and (self.batch_size is not None or self.sizes is not None):
            divisor = min(self._divisors(self.sizes or [1]))
        return self.rate(k) * z * float(self.clip_norm or 1.0) / divisor or 1.0

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        return muffliato_sgd(mechanism.gradient_with_l2, start, self.rate)


@dataclass(frozen=True, repr=False)
class OneRoundPlan(GradientPlan):
    """Muffliato-SGD with one round of gossip on one network, at user level: `Decor` and `Mafalda`."""

    adjacency: Adjacency = "user"

    needs = ("gossip_matrix_only",)
    adjacencies = ("user",)
    uses_optimizer = False

    def _accepted(self, protocol: Protocol) -> Protocol:
        """Refuse what is not one round of gossip on one network in every step."""
        if not super()._accepted(protocol).gossip_matrix_only or protocol.rounds != 1:
            raise InvalidInput(f"{self.name} averages by one round of Gossip, got {protocol!r}.")
        if not isinstance(self.protocol, (Protocol, NamedProtocol)):
            raise InvalidInput(
                f"{self.name} takes one network for all steps; give one protocol, or its name."
            )
        return protocol

    @property
    def _gossip_network(self) -> Network:
        network = self.schedule(0).network
        assert network is not None
        return network

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        return muffliato_sgd(mechanism.gradient_with_l2, start, self.rate)


def muffliato_sgd(
    gradient: Callable[[np.ndarray, int], np.ndarray], start: np.ndarray, rate: Callable[[int], float]
) -> Algorithm:
    """Return Algorithm 3 of [1]; ``gradient(theta, k)`` gives what every hosted agent releases."""

    def message(state: State, k: int) -> np.ndarray:
        (theta,) = state.own
        moved: np.ndarray = theta - theta.dtype.type(rate(k)) * gradient(theta, k)
        return moved

    return Algorithm(
        init=lambda: State((), (start,)),
        message=message,
        update=lambda state, received, k: State((), (received,)),
        output=lambda state: state.own[0],
    )
