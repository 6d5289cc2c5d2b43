"""DP-SGD over exact consensus: every step ends with the same model everywhere.

.. math:: \\bar g^k = \\frac{1}{n} \\sum_i \\tilde G_i(\\theta^k), \\qquad
          \\theta^{k+1} = \\theta^k - \\eta_k\\, \\mathrm{opt}(\\bar g^k)

The mean is computed by a finite schedule, a fresh public spanning tree or hypercube exchange, after which all
agents hold bit-identical numbers. The model is then common knowledge, the views of different steps compose,
and what one agent learns of another's records is known exactly, for any loss: step k costs
SGM(q, z / sqrt(h)) with h the share of the schedule used, instead of SGM(q, z).

References: finite-time averaging by trees and by hypercube exchange is folklore; the guarantee is in
`sottovoce.privacy.consensus_guarantee`.
Departures: none; not one of the published algorithms. Iterate averaging is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.dp_dsgd import NetworkPlan
from sottovoce.algorithms.plan import View
from sottovoce.algorithms.schedules import Optimiser, OptimiserState
from sottovoce.errors import InvalidInput
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.privacy import Adversary, Curve, Guarantee, consensus_guarantee, consensus_leakage
from sottovoce.protocols import Exchange, Protocol, Tree
from sottovoce.runners import Algorithm

__all__ = ["DeepConsensus", "deep_consensus"]


@dataclass(frozen=True, repr=False)
class DeepConsensus(NetworkPlan):
    """Exact-consensus DP-SGD on a network.

    Parameters
    ----------
    averaging : ``"tree"`` (any connected graph, a fresh uniform spanning tree per step), ``"fixed-tree"`` or
        ``"exchange"`` (a power of two of agents, pairs along hypercube edges whatever the graph).
    schedule_seed : the public seed of the trees.
    average_from : share of the run after which iterates are averaged for the output; 1 gives the last one.

    Guarantees
    ----------
    ``local`` as for the other plans. ``pairwise``, ``network`` and ``colluders`` are exact: no message tells
    more than the sums the schedule moves, and no condition on the loss is needed.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DeepConsensus(NetObjective(torch.nn.Linear(2, 2)), [500] * 8, 10, noise_multiplier=8.0,
    ...                      network=sv.graphs.ring(8))
    >>> pair = plan.privacy("pairwise", observer=0, user=4)
    >>> pair.label, pair.epsilon(1e-5) < plan.get_epsilon(1e-5)
    ('exact', True)
    """

    averaging: Literal["tree", "fixed-tree", "exchange"] = "tree"
    schedule_seed: int = 0
    average_from: float = 1.0
    name: str = field(default="dp-consensus", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averaging not in ("tree", "fixed-tree", "exchange"):
            raise InvalidInput(f"averaging must be tree, fixed-tree or exchange, got {self.averaging!r}.")
        _validate.probability(self.average_from, "average_from")
        if self.averaging == "exchange":
            Exchange(self.n)

    def schedule(self) -> Protocol | Callable[[int], Protocol]:
        """Return the averaging of every step; trees are drawn from the public seed."""
        if self.averaging == "exchange":
            return Exchange(self.n)
        if self.averaging == "fixed-tree":
            return Tree(self.network)

        @lru_cache(maxsize=4)
        def tree(k: int) -> Protocol:
            rng = np.random.default_rng([self.schedule_seed, k])
            return Tree(self.network, kind="uniform", rng=rng)

        return tree

    def divisors(self) -> list[float]:
        """Return one divisor for all, so that the mean of the rows is the mean over all records."""
        total = sum(self.sizes) if self.lot is None else self.lot * self.n
        return [total / self.n] * self.n

    def _seen_by(self, view: View, observers: list[int], user: int | None, local: Guarantee) -> Guarantee:
        if view == "network" and not observers:
            found = [self._of(view, [v], user) for v in range(self.n) if v != user]
            return replace(found[0], adversary=Adversary(view, (), user), curve=_worst(found))
        if not observers:
            return super()._seen_by(view, observers, user, local)
        return self._of(view, observers, user)

    def _of(self, view: View, observers: list[int], user: int | None) -> Guarantee:
        users = [u for u in range(self.n) if u not in observers] if user is None else [user]
        if user in observers:
            raise InvalidInput(f"agent {user} knows its own records; name another observer or user.")
        if not users:
            raise InvalidInput("all agents are observers, so nobody is left to protect.")
        shares = self._shares(tuple(observers))
        found = [self._pair(shares[:, u], u, observers) for u in users]
        return replace(
            found[0],
            adversary=Adversary(view, observers, user),
            curve=_worst(found),
            assumptions=(*found[0].assumptions, *self.assumed),
        )

    def _pair(self, shares: np.ndarray, user: int, observers: list[int]) -> Guarantee:
        sampled = self.lot is not None and self.adjacency != "user"
        return consensus_guarantee(
            shares,
            sensitivity={"add-remove": 1.0, "replace-one": 2.0, "user": 2.0}[self.adjacency],
            noise_std=self.noise_multiplier[user],
            observers=observers,
            user=user,
            adjacency=self.adjacency,
            sample_rate=self.sample_rates[user] if sampled else None,
        )

    @cached_property
    def _protocols(self) -> list[Protocol]:
        schedule = self.schedule()
        return [schedule(k) if callable(schedule) else schedule for k in range(self.steps)]

    def _shares(self, observers: tuple[int, ...]) -> np.ndarray:
        return consensus_leakage(self._protocols, observers, self.noise_multiplier)

    def guarantees(self) -> list[Guarantee]:
        """Return the local statement and that against the worst single agent."""
        return [self.privacy("local"), self.privacy("network")] if all(self.noise_multiplier) else []

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of exact-consensus DP-SGD."""
        return deep_consensus(
            gradients, theta, lambda k: self.learning_rate(k, self.steps), self.optimiser,
            average_from=round(self.average_from * self.steps),
        )  # fmt: skip


class State(NamedTuple):
    """The common model, the optimiser, and the sum of the iterates to be averaged."""

    theta: np.ndarray
    optimiser: OptimiserState
    total: np.ndarray
    taken: np.ndarray


def deep_consensus(
    gradients: NoisyGradients,
    theta: np.ndarray,
    rate: Callable[[int], float],
    optimiser: Optimiser,
    *,
    average_from: int,
) -> Algorithm:
    """Return the three functions; what is received is the mean of all rows.

    Examples
    --------
    >>> text = deep_consensus(lambda theta, k: theta, np.ones((2, 1)), lambda k: 0.5, Optimiser(),
    ...                       average_from=9)
    >>> text.update(text.init(), np.array([[1.0], [1.0]]), 0).theta.tolist()
    [[0.5], [0.5]]
    """

    def init():  # type: ignore[no-untyped-def]
        return State(theta, optimiser.init(theta), np.zeros_like(theta), np.zeros((), np.int64))

    def message(state, k):  # type: ignore[no-untyped-def]
        return gradients(state.theta, k)

    def update(state, received, k):  # type: ignore[no-untyped-def]
        step, moments = optimiser.step(state.optimiser, received, rate(k))
        moved = state.theta - step
        if k < average_from:
            return State(moved, moments, state.total, state.taken)
        return State(moved, moments, state.total + moved, state.taken + 1)

    def output(state):  # type: ignore[no-untyped-def]
        return state.theta if state.taken == 0 else state.total / state.theta.dtype.type(state.taken)

    return Algorithm(init, message, update, output)


def _worst(guarantees: list[Guarantee]) -> Curve:
    return Curve.worst(guarantee.curve for guarantee in guarantees)
