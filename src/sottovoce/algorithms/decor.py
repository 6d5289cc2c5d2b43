r"""DECOR: gradients hidden by noise that neighbours share and that cancels in the mean.

.. math:: \theta^{t+1} = W\big(\theta^t - \nu(\mathrm{clip}_C(g_i) + \bar z_i
          + \sum_{j \in N(i)} z_{ij})\big),\qquad
          z_{ij} = -z_{ji} \sim \mathcal N(0, s_c^2 I),\quad \bar z_i \sim \mathcal N(0, s_d^2 I)

References: Allouah et al. 2024, "The Privacy Power of Correlated Noise in Decentralized Learning",
Algorithm 1 <https://arxiv.org/abs/2405.01031>. Departures: the loss is the exact Gaussian one,
4 C^2 [(s_d^2 I + s_c^2 L_H)^{-1}]_ii per step, L_H the Laplacian of the honest subgraph, and not its bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sottovoce._validate import non_negative
from sottovoce.algorithms.decentralized import Gradients, LearningPlan
from sottovoce.algorithms.plan import View, known_view
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.correlated import decor_variances
from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import Gossip
from sottovoce.runners import Algorithm

__all__ = ["Decor"]

_SHARED = 1  # noise stream of the pairwise seeds


@dataclass(frozen=True, repr=False)
class Decor(LearningPlan):
    """D-SGD with noise correlated along the edges of a network, at user level.

    Parameters are those of `LearningPlan` (the protocol is one round of `Gossip` on the network), and

    pair_multiplier : s_c / C, the noise each pair of neighbours shares, from a seed only the two know;
        ``noise_multiplier`` is s_d / C, each node's own.

    Guarantees
    ----------
    "local" here means: all messages are public while the seeds of honest pairs stay secret. Label "exact",
    for any loss, because the models are then known and each step is Gaussian with covariance s_d^2 I +
    s_c^2 L. Nodes named as observer or colluders, under whatever view, drop out of the honest subgraph
    together with the seeds they know. A peer that leaves after seeding leaves uncancelled noise, which
    hurts the model and nobody's privacy.

    Examples
    --------
    >>> import sottovoce as sv
    >>> gossip = sv.protocols.Gossip(sv.graphs.ring(16), 1)
    >>> plan = Decor(sv.objectives.GLM(), gossip, steps=1, learning_rate=0.1, clip=1.0,
    ...              noise_multiplier=0.5, pair_multiplier=3.0)
    >>> round(plan.variance_share(), 5)
    0.38196
    """

    pair_multiplier: float = 0.0
    name: str = field(default="decor", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative(self.pair_multiplier, "pair_multiplier")
        if self.level != "user":
            raise InvalidInput('DECOR is accounted at user level; leave level="user".')
        if type(self.schedule(0)) is not Gossip or self.schedule(0).rounds != 1:
            raise InvalidInput(f"DECOR averages by one round of Gossip, got {self.schedule(0)!r}.")

    @property
    def network(self) -> Network:
        """The network whose edges share seeds."""
        protocol = self.schedule(0)
        assert isinstance(protocol, Gossip)
        return protocol.network

    def variance_share(self, colluders: Iterable[int] = (), user: int | None = None) -> float:
        """Return the worst user's entry of (s_d^2 I + s_c^2 L_H)^{-1}, in units of 1/C^2."""
        if self.noise_multiplier == 0:
            return math.inf
        entries = decor_variances(self.network, self.noise_multiplier, self.pair_multiplier, colluders)
        return float(entries[np.isfinite(entries)].max() if user is None else entries[user])

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the guarantee against somebody who sees every message but not the honest pairs' seeds."""
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if known_view(view) in ("network", "pairwise", "colluders") and not listed:
            raise InvalidInput(f"The {view} view of DECOR needs observer=... (or colluders=...).")
        if view in ("local", "central") and not listed:
            adversary = Adversary(view, user=user)
        else:
            kind = "colluders" if len(listed) > 1 else ("network" if user is None else "pairwise")
            adversary = Adversary(kind, tuple(listed), user)
        mu = 2 * math.sqrt(self.variance_share(listed, user))
        assumptions = (
            "all messages may be seen; the seeds that honest neighbours share stay secret",
            "honest pairs draw their shared noise afresh in every step",
        )
        return Guarantee(adversary, "user", "exact", Curve.gaussian(mu, self.steps), assumptions)

    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the text for the hosted agents; shared noise comes from the source by edge number.

        In a simulation one source knows all seeds. Between machines each pair's seed comes from a key
        agreement, and both ends call the same function of (seed, step).
        """
        gradient = Gradients(
            self.objective, shards, agents, noise, clip=self.clip,
            noise_multiplier=self.noise_multiplier, scale=self.learning_rate,
        )  # fmt: skip
        if noise.protective and self.pair_multiplier:
            raise InvalidInput(
                "Shared noise must be the same at both ends; a protective source gives each its own: "
                "simulate DECOR with a numpy Generator."
            )
        hosted = {int(v): row for row, v in enumerate(agents)}
        edges = self.network.edges
        mine = np.array([e for e, (u, v) in enumerate(edges) if u in hosted or v in hosted], dtype=int)
        nu, dim = self.learning_rate, shards.dim

        def shared(k: int) -> np.ndarray:
            total = np.zeros((len(hosted), dim))
            if not self.pair_multiplier or not len(mine):
                return total
            std = self.pair_multiplier * self.clip
            drawn = noise.perturb(np.zeros((len(mine), dim)), agents=mine, step=k, std=std, stream=_SHARED)
            for side, sign in ((0, 1.0), (1, -1.0)):
                ends = edges[mine, side]
                here = np.array([hosted.get(int(v), -1) for v in ends])
                np.add.at(total, here[here >= 0], sign * drawn[here >= 0])
            return total

        def message(theta: np.ndarray, k: int) -> np.ndarray:
            moved = theta - nu * (gradient(theta, k) + shared(k))
            return gradient.perturb(moved, k, nu)

        return Algorithm(
            init=lambda: np.zeros((shards.n, dim)),
            message=message,
            update=lambda theta, received, k: received,
            output=lambda theta: theta,
        )
