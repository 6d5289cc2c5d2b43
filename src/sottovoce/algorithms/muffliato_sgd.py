r"""Muffliato-GD and -SGD: noisy local gradient steps, each followed by K rounds of gossip; D-SGD for K = 1.

.. math:: \theta^{t+1} = \mathrm{gossip}_K\big(\theta^t - \nu\,(g^t + z C\,\xi^t)\big),\qquad
          g_v = \mathrm{clip}_C(\nabla \ell_v(\theta_v))

References: Cyffers, Even, Bellet, Massoulié 2022 (M22), Algorithm 3 <https://arxiv.org/abs/2206.05091>.
Departures: noise is stated relative to the clip C and clipping comes before it (M22 passes the absolute
variance nu^2 sigma^2); user-level sensitivity is 2C; pairwise figures are the linear formula, labelled
"conditional", because equation (9) understates what later steps reveal. The guarantee is local.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sottovoce.algorithms.decentralized import Gradients, LearningPlan
from sottovoce.algorithms.plan import View, known_view
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Adversary, Guarantee
from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import LinearProtocol
from sottovoce.runners import Algorithm

__all__ = ["MuffliatoSGD", "muffliato_sgd"]


@dataclass(frozen=True, repr=False)
class MuffliatoSGD(LearningPlan):
    """Decentralized gradient descent with local noise and gossip.

    The schedule decides the variant: `Gossip` or `Chebyshev` on a fixed network, one round for D-SGD, a
    function of the step for fresh Erdős-Rényi graphs, `TimeVarying`, `Dropout` or `Refreshed` gossip.
    Parameters are those of `LearningPlan`.

    Guarantees
    ----------
    "local", valid for every loss and schedule: T releases of multiplier z, 2/z-GDP each at user level
    (replacement moves a clipped gradient by 2C), sampled Gaussian at record level. "pairwise", "network" and
    "colluders": the exact loss of the linear system, "conditional" (with one step it is averaging, and
    "exact"); for accelerated or refreshed gossip the local statement restated. Records that are not
    finite contribute nothing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = MuffliatoSGD(GLM("logistic"), sv.protocols.Gossip(sv.graphs.path(5), rounds=1), steps=5,
    ...                     learning_rate=0.5, clip=1.0, noise_multiplier=4.0)
    >>> plan.privacy("local").label, plan.privacy("pairwise", observer=0, user=4).label
    ('ldp', 'conditional')
    """

    name: str = field(default="muffliato-sgd", init=False)

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the local guarantee, or the linear formula for one node or a colluding set."""
        if known_view(view) == "local":
            return self.local()
        if view == "central":
            return self.local().against(Adversary("central"))
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if not listed:
            raise InvalidInput(f"The {view} view of learning needs observer=... (or colluders=...).")
        if self.level == "record" or not self._linear():
            kind = "colluders" if len(listed) > 1 else ("network" if user is None else "pairwise")
            return self.local().against(Adversary(kind, tuple(listed), user))
        from sottovoce.privacy import averaging_guarantee, learning_guarantee, learning_view

        size = {"sensitivity": 2 * self.clip, "noise_std": self.noise_multiplier * self.clip}
        if self.steps == 1:
            return averaging_guarantee(self.schedule(0).view(listed), user, **size)
        seen: Any = self.protocols()
        return learning_guarantee(learning_view(seen, self.steps, listed), user, **size)

    def _linear(self) -> bool:
        """Whether the linear view of learning covers the schedule (no memory, no fresh noise)."""
        first = self.schedule(0)
        return isinstance(first, LinearProtocol) and first.memory == 1 and not first.fresh_std

    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the text of the algorithm for the hosted agents."""
        return muffliato_sgd(
            self.objective, shards, agents, noise, learning_rate=self.learning_rate, clip=self.clip,
            noise_multiplier=self.noise_multiplier, level=self.level, sample_rate=self.sample_rate,
        )  # fmt: skip

    @classmethod
    def for_budget(cls, *, epsilon: float, delta: float, **options: Any) -> MuffliatoSGD:
        """Return the plan with the least noise whose local guarantee meets the budget.

        Examples
        --------
        >>> import sottovoce as sv
        >>> plan = MuffliatoSGD.for_budget(epsilon=5.0, delta=1e-5, objective=GLM(), steps=10,
        ...                                learning_rate=1.0, clip=1.0,
        ...                                protocol=sv.protocols.Gossip(sv.graphs.ring(6), 2))
        >>> 4.99 < plan.privacy().epsilon(1e-5) <= 5.0
        True
        """
        from sottovoce.algorithms.budget import least_noise

        trial = cls(noise_multiplier=1.0, **options)
        return least_noise(lambda z: replace(trial, noise_multiplier=z), epsilon, delta)


def muffliato_sgd(
    objective: GLM,
    shards: Shards,
    agents: Sequence[int],
    noise: NoiseSource,
    *,
    learning_rate: float,
    clip: float,
    noise_multiplier: float,
    level: str = "user",
    sample_rate: float | None = None,
) -> Algorithm:
    """Return the three functions of Muffliato-SGD for the agents hosted here.

    Examples
    --------
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> shards = Shards(np.eye(2), np.array([1.0, -1.0]), np.array([0, 1, 2]))
    >>> text = muffliato_sgd(GLM(), shards, [0, 1], SimulatedNoise(0), learning_rate=1.0, clip=1.0,
    ...                      noise_multiplier=0.0)
    >>> text.message(text.init(), 0).tolist()
    [[0.5, 0.0], [0.0, -0.5]]
    """
    gradient = Gradients(
        objective, shards, agents, noise, clip=clip, noise_multiplier=noise_multiplier, level=level,
        sample_rate=sample_rate, scale=learning_rate,
    )  # fmt: skip
    decay = 0.0 if level == "user" else objective.l2  # at user level l2 is inside the clip

    def init() -> np.ndarray:
        return np.zeros((shards.n, shards.dim))

    def message(theta: np.ndarray, k: int) -> np.ndarray:
        moved = theta - learning_rate * (gradient(theta, k) + decay * theta)
        return gradient.perturb(moved, k, learning_rate)

    def update(theta: np.ndarray, received: np.ndarray, k: int) -> np.ndarray:
        return received

    return Algorithm(init, message, update, output=lambda theta: theta)
