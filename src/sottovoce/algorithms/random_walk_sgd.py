r"""Random-walk SGD: the holder of a token takes one noisy step and passes the token on.

.. math:: \theta^{k+1} = \theta^k - \eta_k \tilde G_{v_k}(\theta^k), \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures: a public path (peers, neural nets) is accounted as it is: an agent pays for its own visits. At
record level batches are Poisson and clipped record by record. A path drawn during the run has a plan of its
own (`secret_walk_sgd`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sottovoce.accounting.release import Release
from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.algorithms.secret_walk_sgd import SecretWalkSGD
from sottovoce.algorithms.walk_plan import WalkPlan
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.protocols import Broadcast, Protocol, TokenPass, draw_path
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class RandomWalkSGD(WalkPlan):
    """SGD carried by a token over a network, for linear models, neural nets and peers.

    Parameters are those of `GradientPlan`, with a network (or its name) in place of the protocol, and these:

    Parameters
    ----------
    path : ``"public"``: drawn from the public ``seed``, or given as one node per step: everybody knows it
        before the run. ``"secret"``: drawn during the run, so that nobody knows it before, and nobody has to
        keep it from others after; at user level, for linear models simulated in one process. The plan is then
        a `SecretWalkSGD`.
    cap : contributions per node, all tokens together; beyond it a holder adds noise only (drawn paths).
    tokens : independent tokens, whose models are averaged in the end (drawn paths).
    feature_norm : public bound on |x|, for pairwise guarantees that use convexity (drawn paths).
    final_public : whether the last holder hands the model to everybody. If not, every node keeps the model
        it saw last; with a drawn path such a plan can be accounted but not run here, because the result of a
        run would hand the model out.

    Guarantees
    ----------
    An agent pays for each of its visits, and for nothing else; label "ldp" against everybody.

    Examples
    --------
    >>> import sottovoce as sv
    >>> from sottovoce.objectives import GLM
    >>> plan = RandomWalkSGD(GLM(), sv.graphs.ring(4), steps=10, clip_norm=1.0, noise_multiplier=2.0,
    ...                      adjacency="user", path=(0, 1, 2, 3, 0, 1, 2, 3, 0, 1))
    >>> [sum(r.draws for r in plan.releases(i)) for i in range(4)]
    [3, 3, 2, 2]
    >>> secret = RandomWalkSGD(GLM(), sv.graphs.complete(20), steps=400, learning_rate=0.5, clip_norm=1.0,
    ...                        noise_multiplier=8.0, adjacency="user", path="secret", cap=30)
    >>> secret.privacy("local").label, round(secret.privacy("local").mu, 3)
    ('ldp', 1.369)
    """

    @classmethod
    def _variant(cls, options: Mapping[str, Any]) -> type[Plan]:
        return SecretWalkSGD if options["path"] == "secret" else cls

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None or self.tokens != 1 or self.feature_norm is not None:
            raise InvalidInput('cap, tokens and feature_norm are for path="secret"; leave them out.')

    @cached_property
    def _holders(self) -> np.ndarray:
        """The holder of the token at every step of a public path."""
        if isinstance(self.path, tuple):
            return np.array(self.path)
        return _drawn_path(self.network, self.steps, self.seed)

    @cached_property
    def schedule(self) -> Schedule:
        """The hop of every step; at the end the model goes to all, edge by edge."""
        return self._schedule(self._hop)

    def _hop(self, k: int) -> Protocol:
        holder = int(self._holders[k])
        if k + 1 < self.steps:
            return TokenPass(self.n, holder, [int(self._holders[k + 1])])
        return Broadcast(self.network, holder) if self.final_public else TokenPass(self.n, holder, [])

    @cached_property
    def _visits(self) -> dict[int, list[tuple[int, int]]]:
        """Per node the (first step, steps) of every visit of the token."""
        visits: dict[int, list[tuple[int, int]]] = {}
        bounds = [0, *(np.flatnonzero(np.diff(self._holders)) + 1).tolist(), self.steps]
        for start, stop in itertools.pairwise(bounds):
            visits.setdefault(int(self._holders[start]), []).append((start, stop - start))
        return visits

    def releases(self, agent: int) -> Sequence[Release]:
        if agent not in self._releases:
            (whole,) = super().releases(agent)
            visits = self._visits.get(agent, [])
            self._releases[agent] = tuple(replace(whole, step=step, steps=steps) for step, steps in visits)
        return self._releases[agent]

    @cached_property
    def _releases(self) -> dict[int, tuple[Release, ...]]:
        return {}

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return the walk along the public path: in step k the holder steps and hands over.

        Only the holder computes and releases. Until the end the output is the token's model, where
        its holder is hosted, if it will be handed to everybody; otherwise what each agent saw last.
        """
        path, places = self._holders, {agent: place for place, agent in enumerate(mechanism.agents)}

        def message(state: State, k: int) -> np.ndarray:
            (theta,) = state.own
            place = places.get(int(path[k]))
            if place is None:
                return theta
            token = theta[[place]]
            gradient = mechanism.rows(token, k, 0, [place])
            if mechanism.decay.any():  # the l2 term holds no data and costs nothing
                gradient = gradient + mechanism.decay * token
            moved: np.ndarray = theta.copy()
            moved[[place]] -= theta.dtype.type(self.rate(k)) * gradient
            return moved

        def update(state: State, received: np.ndarray, k: int) -> State:
            return State(np.asarray(path[min(k + 1, len(path) - 1)]), (received,))

        def output(state: State) -> np.ndarray:
            (theta,) = state.own
            place = places.get(int(state.common)) if self.final_public else None
            return theta if place is None else np.repeat(theta[[place]], len(theta), axis=0)

        return Algorithm(lambda: State(np.asarray(path[0]), (start,)), message, update, output)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows[self._holders[-1]]}

    def _traffic(self) -> tuple[int, int]:
        """Return one row per hop to another node, and the broadcast of a public result."""
        hops = int((np.diff(self._holders) != 0).sum())
        return self.steps, hops + (self.n - 1 if self.final_public else 0)


@lru_cache(maxsize=32)
def _drawn_path(network: Network, steps: int, seed: int) -> np.ndarray:
    path = draw_path(network, steps, np.random.default_rng(seed))
    path.setflags(write=False)
    return path
