"""A question about privacy: the plan whose cost is computed, the adversary, and the user it is about."""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.guarantee import POISSON, Adjacency, Adversary, Guarantee, Label, ViewName
from sottovoce.accounting.release import Release, ReleaseKind, ShareCurves, count_by_kind
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Protocol

if TYPE_CHECKING:
    from sottovoce.accounting.observation.base import ObservationModel

SAMPLED_CLIENTS = "Poisson sampling: every client takes part in every round independently"
ONLY_ROWS_SENT = "observers see what is sent to them, and no other output is published"
Coalition: TypeAlias = tuple[int, ...]
_MAX_COALITIONS = 4096  # more coalitions than this are not tried one by one


class AccountablePlan(typing.Protocol):
    """The facts of a plan that the accountant and the ledger read; `RunnablePlan` adds what runners read.

    The noise of releases is in the unit of the rows that the schedule averages, so that the noise of one
    agent can be compared with that of another.
    """

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def steps(self) -> int:
        """Number of steps."""

    @property
    def width(self) -> int:
        """Numbers in one row that travels."""

    @property
    def is_stationary(self) -> bool:
        """Whether every step has the protocol of the first."""

    @property
    def observation(self) -> ObservationModel:
        """What an adversary observes of the releases."""

    @property
    def adjacency(self) -> str:
        """What neighboring data sets differ in."""

    @property
    def accounting(self) -> str:
        """How sampled steps are composed: ``"pld"`` or ``"rdp"``."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of every guarantee about this plan."""

    @property
    def schedule(self) -> Callable[[int], Protocol]:
        """The protocol of every step."""

    def releases(self, agent: int) -> Sequence[Release]:
        """Return everything that ``agent`` publishes."""


@dataclass(frozen=True)
class PrivacyQuestion:
    """One validated question about one plan, and the releases that answer it; `account` builds it."""

    plan: AccountablePlan
    view: ViewName
    observers: Coalition = ()
    count: int | None = None  # how many collude, if they are not named
    user: int | None = None
    participations: int | None = None
    label: Label | None = None
    progress: Callable[[int], None] | None = None
    _releases: dict[int, list[Release]] = field(default_factory=dict)
    _counts: dict[int, Counter[ReleaseKind]] = field(default_factory=dict)

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol of the first step."""
        return self.plan.schedule(0)

    @property
    def adversary(self) -> Adversary:
        """The adversary of the guarantee, in the form that composes."""
        view = self.view
        if view in ("local", "outsider", "central"):
            return Adversary(view, user=self.user)
        if view != "colluders":
            view = "pairwise" if self.observers and self.user is not None else "network"
        return Adversary(view, self.observers, self.user, count=self.count)

    @property
    def size(self) -> int:
        """How many observe, where they are not named."""
        return 1 if self.count is None else self.count

    @property
    def any_members(self) -> bool:
        """Whether the adversary is any member, or any group of `count` members."""
        return not self.observers and self.view in ("network", "colluders")

    @property
    def coalitions(self) -> list[Coalition] | None:
        """Every coalition that the guarantee covers; None where they are too many to try."""
        if self.view in ("outsider", "central"):
            return [()]
        if self.observers:
            return [self.observers]
        others = [v for v in range(self.plan.n) if v != self.user]
        if math.comb(len(others), self.size) > max(_MAX_COALITIONS, self.plan.n):
            return None
        return list(combinations(others, self.size))

    def largest_noise_coalitions(self, stds: np.ndarray) -> list[Coalition]:
        """Return the coalitions with the largest noise; several where one of them may be the user."""
        order = sorted((v for v in range(self.plan.n) if v != self.user), key=lambda v: -stds[v])
        candidates = order[: self.size + (self.user is None)]
        return [tuple(sorted(coalition)) for coalition in combinations(candidates, self.size)]

    def users(self, coalition: Iterable[int] = ()) -> list[int]:
        """Return the agents whose loss counts."""
        if self.user is not None:
            return [self.user]
        return sorted(set(range(self.plan.n)) - set(coalition))

    def about(self, user: int) -> PrivacyQuestion:
        """Return the question about one user against the named observers."""
        return replace(self, user=user, view="colluders" if len(self.observers) > 1 else "network")

    @property
    def method(self) -> Method:
        return cast(Method, self.plan.accounting)

    def releases(self, agent: int) -> list[Release]:
        """Return an agent's releases, checked and read from the plan once."""
        if agent not in self._releases:
            releases = list(self.plan.releases(agent))
            for release in releases:
                if release.adjacency != self.plan.adjacency:
                    raise InvalidInput(
                        f"the plan is for adjacency {self.plan.adjacency!r}, but agent {agent} lists a "
                        f"release under {release.adjacency!r}; account for them separately."
                    )
            self._releases[agent] = releases
        return self._releases[agent]

    def counts(self, agent: int) -> Counter[ReleaseKind]:
        """Return an agent's releases by kind."""
        if agent not in self._counts:
            self._counts[agent] = count_by_kind(self.releases(agent))
        return self._counts[agent]

    def noise_stds(self) -> np.ndarray | None:
        """Return the Gaussian noise of every agent; None where an agent lists several scales."""
        stds = np.zeros(self.plan.n)
        for v in range(self.plan.n):
            scales = {r.noise_std for r in self.releases(v) if r.mechanism == "gaussian"}
            if len(scales) > 1:
                return None
            stds[v] = scales.pop() if scales else 0.0
        return stds

    def answer(self, label: Label, curve: Curve, assumptions: Iterable[str] = ()) -> Guarantee:
        """Return the guarantee against the adversary of the question, with the assumptions of the plan."""
        adjacency = cast(Adjacency, self.plan.adjacency)
        sampling = (POISSON,) if self._samples_records() else ()
        assumptions = (*assumptions, *sampling, *self.plan.assumptions)
        return Guarantee(self.adversary, adjacency, label, curve, assumptions)

    def _samples_records(self) -> bool:
        if self.plan.adjacency == "user":
            return False
        agents = range(self.plan.n) if self.user is None else [self.user]
        return any(r.sample_rate < 1 for agent in agents for r in self.releases(agent) if r.sensitivity)

    def last_steps_in_reach(self, delay: int) -> np.ndarray:
        """Return (n,): the last step of which a release of each agent can reach the observers, -1 for none.

        A release travels from the step ``delay`` steps after its own on.
        """
        plan = self.plan
        reached = np.zeros(plan.n, dtype=bool)
        reached[list(self.observers)] = True
        last = np.full(plan.n, -1)
        for travels in range(plan.steps - 1 + delay, delay - 1, -1):
            if travels < plan.steps:
                reached = plan.schedule(travels).reaching(reached)
            last[reached & (last < 0)] = travels - delay
            if (last >= 0).all():
                break
        return last

    def local_guarantee(self, *, hidden: bool = False) -> Guarantee:
        """Return the local-DP guarantee, which holds against any adversary, also that of the question.

        ``hidden`` : agents that skip a round send noise alone, so no observer knows which agents took part.
        """
        return self.answer("ldp", *self._worst(map(self.releases, self._local_users), hidden))

    def guarantee_in_reach(self, delay: int) -> Guarantee:
        """Return the guarantee that leaves out releases which cannot reach named observers before the end.

        ``delay`` is the number of steps after which the rows that an agent sends contain its release. The
        guarantee holds against these observers only, and its label is ``exact``. It is the local-DP guarantee
        where nothing is left out or no observers are named.
        """
        local = self.local_guarantee()
        if not self.observers or self.view == "central":
            return local
        last = self.last_steps_in_reach(delay)
        in_reach = (_until(self.releases(agent), int(last[agent])) for agent in self._local_users)
        curve, assumptions = self._worst(in_reach, False)
        return local if curve == local.curve else self.answer("exact", curve, (*assumptions, ONLY_ROWS_SENT))

    @property
    def _local_users(self) -> list[int]:
        return self.users(self.observers if self.view != "central" else ())

    def _worst(self, releases: Iterable[Iterable[Release]], hidden: bool) -> tuple[Curve, tuple[str, ...]]:
        """Return the worst curve of the users with these releases, and what it assumes of participation."""
        curves = ShareCurves(self.method)
        assumptions: tuple[str, ...] = ()
        for own in releases:
            counts = count_by_kind(own)
            if hidden:
                counts = participation_hidden(counts)
            if self.participations is not None:
                known: Counter[ReleaseKind] = Counter()
                for kind, k in counts.items():
                    known[kind._replace(user_rate=1.0)] += k
                # which rounds they were is not known: each kind is charged as if all were of it
                counts = Counter({kind: min(k, self.participations) for kind, k in known.items()})
                assumptions = (f"the client takes part in {self.participations} rounds",)
            elif any(kind.user_rate < 1 for kind in counts):
                assumptions = (SAMPLED_CLIENTS,)
            curves.add(counts)
        return curves.worst, assumptions

    def report_progress(self, finished: int) -> None:
        if self.progress is not None:
            self.progress(finished)


def participation_hidden(counts: Counter[ReleaseKind]) -> Counter[ReleaseKind]:
    """Return releases of agents whose participation nobody sees, so that its sampling amplifies."""
    return Counter({kind._replace(hidden=True): k for kind, k in counts.items()})


def _until(releases: Iterable[Release], last: int) -> list[Release]:
    """Return the releases of the steps up to ``last``; a joint one is whole or not at all."""
    started = [r for r in releases if r.step <= last]
    return [r if r.joint else replace(r, steps=min(r.steps, last + 1 - r.step)) for r in started]
