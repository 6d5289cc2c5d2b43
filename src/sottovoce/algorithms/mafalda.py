r"""MAFALDA-SGD: each node correlates its own noise over time, in the way that hurts the model least.

.. math:: \theta^{t+1} = W\Big(\theta^t - \nu\big(\mathrm{clip}_C(g_u^t)
          + \sum_{s \le t} (C_{loc}^{-1})_{ts}\, \xi_u^s\big)\Big),\qquad
          \xi \sim \mathcal N(0, (z\,\mathrm{sens}\,C)^2 I)

C_loc (lower triangular) minimises sens(X)^2 tr(M X^{-1}), X = C_loc^T C_loc, with the Gram matrix M of how
noise injected at step s spreads through the network until the end.

References: Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified Privacy Guarantees for Decentralized
Learning via Matrix Factorization" <https://arxiv.org/abs/2510.17480>. Departures: see
`sottovoce.privacy.correlated`, which finds C_loc and states its sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sottovoce.algorithms.decentralized import Gradients, LearningPlan
from sottovoce.algorithms.plan import View, known_view
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.correlated import TimeCorrelation, mafalda
from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import Gossip
from sottovoce.runners import Algorithm

__all__ = ["Mafalda"]


@dataclass(frozen=True, repr=False)
class Mafalda(LearningPlan):
    """D-SGD with optimally correlated local noise, at user level, for one round of gossip per step.

    Parameters are those of `LearningPlan`; ``noise_multiplier`` is the noise of an equivalent single release:
    the whole run, in which a user's data enter every step, is 2/z-GDP.

    Guarantees
    ----------
    "local", label "ldp": against anybody who sees every message, 2/z-GDP in all for a user, whatever the
    loss, since the factor's sensitivity scales the noise. Correlating noise over time needs all of it to stay
    secret, past steps included.

    Examples
    --------
    >>> import sottovoce as sv
    >>> gossip = sv.protocols.Gossip(sv.graphs.ring(8), 1)
    >>> plan = Mafalda(sv.objectives.GLM(), gossip, steps=9, learning_rate=0.1, clip=1.0, noise_multiplier=2)
    >>> plan.privacy().mu, plan.privacy().label
    (1.0, 'ldp')
    """

    name: str = field(default="mafalda-sgd", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level != "user":
            raise InvalidInput('MAFALDA is accounted at user level; leave level="user".')
        if type(self.schedule(0)) is not Gossip or self.schedule(0).rounds != 1:
            raise InvalidInput(f"MAFALDA averages by one round of Gossip, got {self.schedule(0)!r}.")

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the local guarantee, restated against weaker adversaries."""
        mu = 2 / self.noise_multiplier if self.noise_multiplier else math.inf
        local = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(mu))
        if known_view(view) == "local":
            return local
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if view == "central":
            return local.against(Adversary("central"))
        kind = "colluders" if len(listed) > 1 else ("network" if user is None else "pairwise")
        return local.against(Adversary(kind, tuple(listed), user))

    def correlation(self) -> TimeCorrelation:
        """Return the correlation of noise over time that this plan uses."""
        protocol = self.schedule(0)
        assert isinstance(protocol, Gossip)
        return _correlation(protocol.network, self.steps)

    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the text for the hosted agents; the state keeps each agent's fresh draws."""
        gradient = Gradients(self.objective, shards, agents, noise, clip=self.clip, noise_multiplier=0.0)
        if noise.protective:
            raise InvalidInput(
                "Correlated noise reuses past draws and is not on the grid of a protective source; simulate "
                "MAFALDA with a numpy Generator."
            )
        found = self.correlation()
        inverse = found.inverse
        std = self.noise_multiplier * self.clip * found.sens
        who = np.asarray(list(agents))
        nu, dim, T = self.learning_rate, shards.dim, self.steps

        def init() -> _State:
            return _State(np.zeros((shards.n, dim)), np.zeros((T, shards.n, dim)))

        def message(state: _State, k: int) -> np.ndarray:
            if std == 0:
                return state.theta - nu * gradient(state.theta, k)
            state.draws[k] = noise.perturb(np.zeros((shards.n, dim)), agents=who, step=k, std=std)
            z = np.tensordot(inverse[k, : k + 1], state.draws[: k + 1], axes=1)
            return state.theta - nu * (gradient(state.theta, k) + z)

        def update(state: _State, received: np.ndarray, k: int) -> _State:
            return state._replace(theta=received)

        return Algorithm(init, message, update, output=lambda state: state.theta)


class _State(NamedTuple):
    theta: np.ndarray
    draws: np.ndarray


@lru_cache(maxsize=32)
def _correlation(network: Network, steps: int) -> TimeCorrelation:
    return mafalda(network, steps, [range(steps)])
