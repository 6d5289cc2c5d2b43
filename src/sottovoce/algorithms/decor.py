r"""DECOR: gradients hidden by noise that neighbors share and that cancels in the mean.

.. math:: \theta^{t+1} = W\big(\theta^t - \eta_t(\mathrm{clip}_C(g_i) + \bar z_i
          + \sum_{j \in N(i)} z_{ij})\big),\qquad
          z_{ij} = -z_{ji} \sim \mathcal N(0, s_c^2 I),\quad \bar z_i \sim \mathcal N(0, s_d^2 I)

The update rule is that of Muffliato-SGD with one round of gossip (`muffliato_sgd`); only the noise differs
(`PairSharedNoise`).

References: Allouah et al. 2024, "The Privacy Power of Correlated Noise in Decentralized Learning",
Algorithm 1 <https://arxiv.org/abs/2405.01031>. Departures: the loss is the exact Gaussian one,
4 C^2 [(s_d^2 I + s_c^2 L_H)^{-1}]_ii per step, L_H the Laplacian of the honest subgraph, and not its bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce import _validate
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation import ObservationModel, PairCorrelated
from sottovoce.algorithms.gradient_plan import GradientData
from sottovoce.algorithms.muffliato_sgd import OneRoundPlan
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.correlated import PairSharedNoise
from sottovoce.noise.run_randomness import RunRandomness


@dataclass(frozen=True, repr=False)
class Decor(OneRoundPlan):
    """D-SGD with noise correlated along the edges of a network, at user level.

    Parameters are those of `GradientPlan` (the protocol is one round of `Gossip` on the network), and

    pair_multiplier : s_c / C, the noise each pair of neighbors shares, from a seed only the two know;
        ``noise_multiplier`` is s_d / C, each node's own.

    Guarantees
    ----------
    "local" counts each node's own noise alone, whoever knows the seeds. "outsider" (all messages seen, no
    seed), "network" and "colluders" (members, with the seeds of their own edges) are exact, for any loss,
    because the models are then known and each step is Gaussian with covariance s_d^2 I + s_c^2 L over the
    honest nodes. A peer that leaves after seeding leaves uncancelled noise, which hurts the model and
    nobody's privacy. Shared noise is simulated; a protective source is refused.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = Decor(sv.objectives.GLM(), "gossip:1", network="ring:16", steps=1, clip_norm=1.0,
    ...              noise_multiplier=0.5, pair_multiplier=3.0)
    >>> plan.privacy("outsider").mu < plan.privacy("network").mu < plan.privacy("local").mu
    True
    """

    pair_multiplier: float = 0.0

    name = "decor"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.noise_multiplier, tuple):
            raise InvalidInput(f"{self.name} takes one noise multiplier for all nodes.")
        _validate.clip(self.clip_norm or math.inf, noisy=self.pair_multiplier > 0)

    @property
    def observation(self) -> ObservationModel:
        (each,) = self.releases(0)
        pair_std = self.pair_multiplier * (self.clip_norm or 0.0)
        return PairCorrelated(self._gossip_network, each.noise_std, pair_std)

    def guarantees(self) -> list[Guarantee]:
        stated = [self.privacy("local"), self.privacy("outsider")]
        return [*stated, self.privacy("network")] if self.n <= 128 else stated

    def mechanism(self, data: GradientData, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        if not self.pair_multiplier:
            return super().mechanism(data, agents, random)
        hosted = [int(a) for a in agents]
        nodes = dict(zip(random.noise_ids_of(hosted), hosted, strict=True))
        pair_std = self.pair_multiplier * (self.clip_norm or 0.0)
        shared = PairSharedNoise(random.noise, self._gossip_network, pair_std, nodes)
        mechanism = super().mechanism(data, agents, replace(random, noise=shared))
        mechanism.noisy = True  # shared noise is added also where a node has none of its own
        return mechanism
