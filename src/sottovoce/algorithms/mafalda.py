r"""MAFALDA-SGD: each node correlates its own noise over time, in the way that hurts the model least.

.. math:: \theta^{t+1} = W\Big(\theta^t - \eta_t\big(\mathrm{clip}_C(g_u^t)
          + \sum_{s \le t} (C_{loc}^{-1})_{ts}\, \xi_u^s\big)\Big),\qquad
          \xi \sim \mathcal N(0, (z\,\mathrm{sens}\,C)^2 I)

C_loc (lower triangular) minimizes sens(X)^2 tr(M X^{-1}), X = C_loc^T C_loc, with the Gram matrix M of how
noise injected at step s spreads through the network until the end. The update rule is that of Muffliato-SGD
with one round of gossip (`muffliato_sgd`); only the noise differs (`TimeCorrelatedNoise`).

References: Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified Privacy Guarantees for Decentralized
Learning via Matrix Factorization" <https://arxiv.org/abs/2510.17480>. Departures: see
`sottovoce.noise.correlated`, which finds C_loc and states its sensitivity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sottovoce.accounting.observation import TimeCorrelated
from sottovoce.accounting.release import Release
from sottovoce.algorithms.gradient_plan import GradientData
from sottovoce.algorithms.muffliato_sgd import OneRoundPlan
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.correlated import TimeCorrelatedNoise, TimeCorrelation, mafalda
from sottovoce.noise.run_randomness import RunRandomness


@dataclass(frozen=True, repr=False)
class Mafalda(OneRoundPlan):
    """D-SGD with optimally correlated local noise, at user level, for one round of gossip per step.

    Parameters are those of `GradientPlan`; ``noise_multiplier`` is the noise of an equivalent single release:
    the whole run, in which a user's data enter every step, is 2/z-GDP.

    Guarantees
    ----------
    "local", label "ldp": against anybody who sees every message, 2/z-GDP in all for a user, whatever the
    loss, since the factor's sensitivity scales the noise. Correlating noise over time needs all of it to stay
    secret, past steps included; so it is simulated, and a protective source is refused.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = Mafalda(sv.objectives.GLM(), "gossip:1", network="ring:8", steps=9, clip_norm=1.0,
    ...                noise_multiplier=2)
    >>> plan.privacy().mu, plan.privacy().label
    (1.0, 'ldp')
    """

    name = "mafalda"
    observation = TimeCorrelated()  # all steps of a node are one mechanism

    def releases(self, agent: int) -> Sequence[Release]:
        """Return the run of one node as a joint release: together the steps cost one."""
        (each,) = super().releases(agent)
        return (replace(each, joint=True),)

    def mechanism(self, data: GradientData, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        if any(self._noise_multipliers):
            random = replace(random, noise=TimeCorrelatedNoise(random.noise, correlation(self)))
        return super().mechanism(data, agents, random)


def correlation(plan: Mafalda) -> TimeCorrelation:
    """Return the correlation of noise over time that a plan uses."""
    return _correlation(plan._gossip_network, plan.steps)


@lru_cache(maxsize=32)
def _correlation(network: Network, steps: int) -> TimeCorrelation:
    return mafalda(network, steps, [range(steps)])
