r"""SGD over exact consensus: after every step all nodes hold the same model, so pairwise guarantees hold.

.. math:: \theta^{t+1} = \mathrm{update}\Big(\theta^t,\ \frac1n\sum_u
          \big(\mathrm{clip}_C(\nabla\ell_u(\theta^t)) + z C\,\xi_u^t\big)\Big)

the mean being formed by a finite-time schedule (`Tree`, `Exchange`). Given the view so far the model is
public, hence each step is a Gaussian mechanism of which node v learns the share h_v(u), for any loss.
References: the finite-time schedules of `sottovoce.protocols.consensus`; the statement is derived there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sottovoce._validate import count, nodes, probability
from sottovoce.algorithms.decentralized import Gradients, LearningPlan
from sottovoce.algorithms.plan import View, known_view
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import Protocol
from sottovoce.protocols.consensus import ExactConsensus
from sottovoce.runners import Algorithm

__all__ = ["ConsensusSGD", "consensus_sgd"]

_ASSUMPTIONS = (
    "every step ends in exact consensus and all nodes apply the same update",
    "observers are honest but curious and share what they see",
    "the schedules are public and are the ones that ran",
)


@dataclass(frozen=True, repr=False)
class ConsensusSGD(LearningPlan):
    """Gradient descent on a common model, averaged exactly over a tree or a hypercube exchange.

    Parameters are those of `LearningPlan`, and

    momentum : heavy-ball factor in [0, 1), applied to the released mean (post-processing).
    sizes : records of every node (public). Needed at record level where they differ: the noise of a node is
        relative to its number of records, and a small node's loud noise is not hidden by large nodes.

    Guarantees
    ----------
    "pairwise", "network", "colluders": exact for any loss, convex or not, at user and at record level. Step
    t costs user u towards v a Gaussian of multiplier z / sqrt(h), h = h_v(u) of that step's schedule; h = 0
    costs nothing. "central": somebody who sees every model, h = 1/n for equal nodes. "local": every message
    seen. At record level without ``sizes`` all nodes must hold equally many records, and a run on other data
    is refused.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = ConsensusSGD(GLM("logistic"), sv.protocols.Exchange(4), steps=4, learning_rate=0.5, clip=1.0,
    ...                     noise_multiplier=4.0)
    >>> near, far = (plan.privacy("pairwise", observer=0, user=u) for u in (1, 3))
    >>> near.label, near.mu, round(far.mu, 6)
    ('exact', 1.0, 0.707107)
    """

    momentum: float = 0.0
    sizes: tuple[int, ...] | None = None
    name: str = field(default="consensus-sgd", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        probability(self.momentum, "momentum", one=False)
        _refuse_inexact(self.schedule(0))
        if self.sizes is not None:
            sizes = tuple(count(int(size), "a node's number of records") for size in self.sizes)
            if len(sizes) != self.n:
                raise InvalidInput(f"sizes must hold one number per node ({self.n}), got {len(sizes)}.")
            object.__setattr__(self, "sizes", sizes)

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the guarantee against one kind of adversary; all of them are valid."""
        if known_view(view) == "local":
            return self.local()
        if view == "central":
            curve = Curve.worst(self.step_curve(share, self.steps) for share in self._central_shares())
            return Guarantee(
                Adversary("central"), self.adjacency, "exact", curve, self._assuming(_ASSUMPTIONS[0])
            )
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if listed:
            return self._against(listed, user)
        each = [self._against([v], user) for v in range(self.n) if v != user]
        worst = Curve.worst(guarantee.curve for guarantee in each)
        return replace(each[0], adversary=Adversary("network", user=user), curve=worst)

    def shares(self, observers: int | Iterable[int]) -> np.ndarray:
        """Return (steps, n): the share h of every step's release that the observers learn, per user."""
        from sottovoce.privacy import consensus_leakage

        every = self.protocols()
        for protocol in {id(p): p for p in every}.values():
            _refuse_inexact(protocol)
        return consensus_leakage(every, observers, self._noise())

    def _noise(self) -> np.ndarray | None:
        """The nodes' noise levels, up to a factor; None where all are equal."""
        if self.level == "user" or self.sizes is None:
            return None
        return 1 / np.array(self.sizes, dtype=float)

    def _central_shares(self) -> np.ndarray:
        """What the mean of all rows tells of each node: its part of the noise in it."""
        noise = self._noise()
        return np.full(1, 1 / self.n) if noise is None else noise**2 / (noise**2).sum()

    def _assuming(self, *assumptions: str) -> tuple[str, ...]:
        even = self.level == "record" and self.sizes is None
        said = (*assumptions, *self.assumed)
        return (*said, "all nodes hold equally many records") if even else said

    def _against(self, observers: Sequence[int], user: int | None) -> Guarantee:
        h = self.shares(observers)
        users = (
            [u for u in range(self.n) if u not in observers] if user is None else nodes(user, self.n, "user")
        )
        curve = Curve.worst(self._of(h[:, u]) for u in users)
        kind = "colluders" if len(observers) > 1 else ("network" if user is None else "pairwise")
        return Guarantee(
            Adversary(kind, tuple(observers), user),
            self.adjacency,
            "exact",
            curve,
            self._assuming(*_ASSUMPTIONS),
        )

    def _of(self, h: np.ndarray) -> Curve:
        """The loss of a user whose releases the observers learn to the shares ``h``."""
        values, times = np.unique(np.ceil(h * 1e12) / 1e12, return_counts=True)
        return Curve.total(self.step_curve(float(v), int(k)) for v, k in zip(values, times, strict=True))

    def guarantees(self) -> list[Guarantee]:
        """Return the local and released-model statements, and for small networks the worst node's."""
        found = [self.privacy("local"), self.privacy("central")]
        return [*found, self.privacy("network")] if self.n**2 * self.steps <= 8192 else found

    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the text of the algorithm for the hosted agents."""
        self.check_sizes(shards, agents)
        return consensus_sgd(
            self.objective, shards, agents, noise, learning_rate=self.learning_rate, clip=self.clip,
            noise_multiplier=self.noise_multiplier, level=self.level, sample_rate=self.sample_rate,
            momentum=self.momentum,
        )  # fmt: skip

    def check_sizes(self, shards: Shards, agents: Sequence[int]) -> None:
        """Refuse data whose numbers of records are not those the statements were made for."""
        if self.level == "user":
            return
        wanted = None if self.sizes is None else [self.sizes[v] for v in agents]
        held = shards.sizes.tolist()
        if wanted is None and len(set(held)) > 1:
            raise DataError(
                f"nodes hold {min(held)} to {max(held)} records, so their noises differ; give the plan "
                "sizes=data.sizes for statements that account for it."
            )
        if wanted is not None and held != wanted:
            raise DataError(f"the plan was made for nodes with {wanted} records, the data have {held}.")

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, view: View = "local", who: dict[str, Any] | None = None,
        **options: Any,
    ) -> ConsensusSGD:  # fmt: skip
        """Return the plan with the least noise whose ``privacy(view, **who)`` meets the budget."""
        from sottovoce.algorithms.budget import least_noise

        trial = cls(noise_multiplier=1.0, **options)
        return least_noise(
            lambda z: replace(trial, noise_multiplier=z),
            epsilon,
            delta,
            statement=lambda plan: plan.privacy(view, **(who or {})),
        )


def _refuse_inexact(protocol: Protocol) -> None:
    if not isinstance(protocol, ExactConsensus):
        raise InvalidInput(f"Exact consensus needs a Tree or an Exchange, got {protocol.name}.")


class _State(NamedTuple):
    theta: np.ndarray
    velocity: np.ndarray


def consensus_sgd(
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
    momentum: float = 0.0,
) -> Algorithm:
    """Return the three functions of exact-consensus SGD for the agents hosted here.

    Examples
    --------
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> shards = Shards(np.eye(2), np.array([1.0, -1.0]), np.array([0, 1, 2]))
    >>> text = consensus_sgd(GLM(), shards, [0, 1], SimulatedNoise(0), learning_rate=1.0, clip=1.0,
    ...                      noise_multiplier=0.0)
    >>> text.message(text.init(), 0).tolist()
    [[-0.5, 0.0], [0.0, 0.5]]
    """
    gradient = Gradients(
        objective, shards, agents, noise, clip=clip, noise_multiplier=noise_multiplier, level=level,
        sample_rate=sample_rate,
    )  # fmt: skip
    decay = 0.0 if level == "user" else objective.l2

    def init() -> _State:
        return _State(np.zeros((shards.n, shards.dim)), np.zeros((shards.n, shards.dim)))

    def message(state: _State, k: int) -> np.ndarray:
        return gradient.perturb(gradient(state.theta, k), k, 1.0)

    def update(state: _State, received: np.ndarray, k: int) -> _State:
        velocity = momentum * state.velocity + received + decay * state.theta
        return _State(state.theta - learning_rate * velocity, velocity)

    return Algorithm(init, message, update, output=lambda state: state.theta)
