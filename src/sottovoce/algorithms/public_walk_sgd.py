r"""Random-walk SGD on a public path: the holder of a token takes one noisy step and passes it on.

.. math:: \theta^{k+1} = \theta^k - \eta_k \tilde G_{v_k}(\theta^k), \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures: a public path (peers, networks) is accounted as it is: an agent pays for its own visits. At record
level batches are Poisson and clipped record by record. A path drawn during the run is another plan, in
`sottovoce.algorithms.secret_walk_sgd`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from sottovoce._validate import several
from sottovoce.accounting.release import Release
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, as_network
from sottovoce.mechanisms.base import GradientSource
from sottovoce.protocols import Broadcast, Protocol, TokenPass, Walk, draw_path
from sottovoce.protocols.registry import Capability
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class PublicWalkSGD(GradientPlan):
    """SGD carried by a token on a path that everybody knows before the run; see `RandomWalkSGD`.

    Guarantees
    ----------
    An agent pays for each of its visits, and for nothing else; label "ldp" against everybody.
    """

    path: Any = "public"
    cap: int | None = None
    tokens: int = 1
    feature_norm: float | None = None
    final_public: bool = True

    name: ClassVar[str] = "random-walk-sgd"
    needs: ClassVar[tuple[Capability, ...]] = ("token",)
    uses_optimizer: ClassVar[bool] = False
    sequential: ClassVar[bool] = True  # one holder at a time: ranks would only wait for each other

    @classmethod
    def _with_protocol(cls, options: dict[str, Any]) -> dict[str, Any]:
        protocol, network, path = options["protocol"], options["network"], options["path"]
        if protocol is not None and not (isinstance(protocol, str) and protocol == "walk"):
            if network is not None:
                raise InvalidInput(f"{cls.name} runs over walk, not over {protocol}.")
            network = protocol
        if network is None:
            raise InvalidInput(f"{cls.name} needs a network for its protocol walk.")
        network = as_network(network)
        if isinstance(path, str):
            if path not in ("public", "secret"):
                raise InvalidInput(f'path must be "public", "secret" or one node per step, got {path!r}.')
        else:
            path = tuple(int(v) for v in Walk(network, options["steps"], path=several(path, "path")).path)
        return {**options, "protocol": "walk", "network": network, "path": path}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_path()

    def _check_path(self) -> None:
        if self.cap is not None or self.tokens != 1 or self.feature_norm is not None:
            raise InvalidInput('cap, tokens and feature_norm are for path="secret"; leave them out.')

    # ---- the facts ------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.network.n)

    @cached_property
    def _holders(self) -> np.ndarray:
        """The holder of the token at every step of the path."""
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
        """Return one release per visit of the token."""
        if agent not in self._releases:
            (whole,) = super().releases(agent)
            visits = self._visits.get(agent, [])
            self._releases[agent] = tuple(replace(whole, step=step, steps=steps) for step, steps in visits)
        return self._releases[agent]

    @cached_property
    def _releases(self) -> dict[int, tuple[Release, ...]]:
        return {}

    def algorithm(self, source: GradientSource, start: np.ndarray) -> Algorithm:
        """Return the update rule of the agents that ``source`` hosts."""
        return random_walk_sgd(source, start, self.rate, self._holders, final_public=self.final_public)

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the final model: the last holder's."""
        return {"coef": rows[self._holders[-1]]}

    def _traffic(self) -> tuple[int, int]:
        """Return one row per hop to another node, and the broadcast of a public result."""
        hops = int((np.diff(self._holders) != 0).sum())
        return self.steps, hops + (self.n - 1 if self.final_public else 0)


def holders(plan: PublicWalkSGD) -> np.ndarray:
    """Return the holder of the token at every step of a public path."""
    return plan._holders


def published_losses(plan: PublicWalkSGD) -> np.ndarray:
    """Return the printed formula of [1], no guarantee: (n, n) losses over alpha, user by observer."""
    from sottovoce.accounting.published.formulas import published_walk_loss

    (release,) = GradientPlan.releases(plan, 0)
    per_visit = 1 / (2 * release.ratio**2)
    loss: np.ndarray = published_walk_loss(plan.network, plan.steps)
    return per_visit * plan.tokens * loss


@lru_cache(maxsize=32)
def _drawn_path(network: Network, steps: int, seed: int) -> np.ndarray:
    path = draw_path(network, steps, np.random.default_rng(seed))
    path.setflags(write=False)
    return path


def random_walk_sgd(
    source: GradientSource,
    start: np.ndarray,
    rate: Callable[[int], float],
    path: Sequence[int] | np.ndarray,
    *,
    final_public: bool = True,
) -> Algorithm:
    """Return the walk along a public path: in step k the holder ``path[k]`` steps and hands over.

    Only the holder computes and releases. Until the end the output is the token's model, where
    its holder is hosted, if it will be handed to everybody; otherwise what each agent saw last.
    """
    places = {agent: place for place, agent in enumerate(source.agents)}

    def message(state: State, k: int) -> np.ndarray:
        (theta,) = state.own
        place = places.get(int(path[k]))
        if place is None:
            return theta
        token = theta[[place]]
        gradient = source.rows(token, k, 0, [place])
        if source.decay:  # the l2 term holds no data and costs nothing
            gradient = gradient + theta.dtype.type(source.decay) * token
        moved: np.ndarray = theta.copy()
        moved[[place]] -= theta.dtype.type(rate(k)) * gradient
        return moved

    def update(state: State, received: np.ndarray, k: int) -> State:
        return State(np.asarray(path[min(k + 1, len(path) - 1)]), (received,))

    def output(state: State) -> np.ndarray:
        (theta,) = state.own
        place = places.get(int(state.common)) if final_public else None
        rows: np.ndarray = theta if place is None else np.repeat(theta[[place]], len(theta), axis=0)
        return rows

    return Algorithm(lambda: State(np.asarray(path[0]), (start,)), message, update, output)
