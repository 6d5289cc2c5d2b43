"""A question about one plan, checked once: what is priced, against whom, about whom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from operator import attrgetter
from typing import Any, Protocol, get_args

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.guarantee import Adjacency, Adversary, Guarantee, Label, View
from sottovoce.accounting.observation.models import (
    Averaging,
    Consensus,
    Curator,
    Federation,
    ObservationModel,
)
from sottovoce.accounting.release import MechanismKey, Release, kinds
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Protocol as Averager

__all__ = ["AccountablePlan", "Query", "View", "question"]

POISSON = "Poisson sampling: every record enters every lot independently"
_COALITIONS = 4096  # more coalitions than this are not tried one by one


class AccountablePlan(Protocol):
    """What a plan must tell to be priced.

    ``accounting`` (``"pld"`` or ``"rdp"``) is optional. The noise of releases is in the unit of the rows
    that the schedule averages, so that the noise of one agent can be held against that of another.

    Examples
    --------
    >>> sorted(name for name in vars(AccountablePlan) if not name.startswith("_"))
    ['adjacency', 'assumptions', 'law', 'n', 'releases', 'schedule', 'steps']
    """

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def steps(self) -> int:
        """Number of steps."""

    @property
    def observation(self) -> ObservationModel:
        """How releases reach an observer."""

    @property
    def adjacency(self) -> str:
        """What neighboring data sets differ in."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every statement about this plan rests on."""

    def schedule(self, k: int) -> Averager:
        """Return the averaging of step ``k``."""

    def releases(self, agent: int) -> Sequence[Release]:
        """Return all that ``agent`` publishes."""


@dataclass(frozen=True)
class Query:
    """One checked question about one plan."""

    plan: Any
    view: View
    observers: tuple[int, ...]
    count: int | None
    user: int | None
    participations: int | None
    label: Label | None
    progress: Callable[[int], None] | None
    listed: dict[int, list[Release]] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        how: Method = getattr(self.plan, "accounting", "pld")
        return how

    @property
    def adversary(self) -> Adversary:
        """Whom the answer is about, in the form that composes."""
        kind: Any = self.view
        if kind in ("network", "pairwise"):
            kind = "pairwise" if self.observers and self.user is not None else "network"
        if kind in ("local", "outsider", "central"):
            return Adversary(kind, user=self.user)
        return Adversary(kind, self.observers, self.user, count=self.count)

    @property
    def coalitions(self) -> list[tuple[int, ...]] | None:
        """Every coalition that the answer covers; None where they are too many to try."""
        if self.view in ("outsider", "central"):
            return [()]
        if self.observers:
            return [self.observers]
        size = 1 if self.count is None else self.count
        others = [v for v in range(self.plan.n) if v != self.user]
        if math.comb(len(others), size) > max(_COALITIONS, self.plan.n):
            return None
        return list(combinations(others, size))

    def users(self, coalition: Iterable[int] = ()) -> list[int]:
        """Return the agents whose loss counts."""
        if self.user is not None:
            return [self.user]
        return sorted(set(range(self.plan.n)) - set(coalition))

    def releases(self, agent: int) -> list[Release]:
        """Return an agent's releases, checked and read from the plan once."""
        if agent not in self.listed:
            found = list(self.plan.releases(agent))
            for release in found:
                if release.adjacency != self.plan.adjacency:
                    raise InvalidInput(
                        f"the plan is for adjacency {self.plan.adjacency!r}, but agent {agent} lists a "
                        f"release under {release.adjacency!r}; price them apart."
                    )
            self.listed[agent] = found
        return self.listed[agent]

    def counts(self, agent: int, *, hidden: bool = False) -> Counter[MechanismKey]:
        """Return an agent's releases by kind; participation amplifies only where it is ``hidden``."""
        counted: Counter[MechanismKey] = Counter()
        for kind, count in kinds(self.releases(agent)).items():
            counted[kind if hidden else kind._replace(user_rate=1.0)] += count
        return counted

    def std(self, agent: int) -> float:
        """Return the agent's Gaussian noise, the least where it lists several."""
        stds = [r.noise_std for r in self.releases(agent) if r.mechanism == "gaussian"]
        return min(stds, default=0.0)

    def answer(self, label: Label, curve: Curve, assumptions: Iterable[str] = ()) -> Guarantee:
        """Return the guarantee against the adversary asked about, with what the plan assumes."""
        adjacency: Adjacency = self.plan.adjacency
        said = (*assumptions, *self._sampled(), *self.plan.assumptions)
        return Guarantee(self.adversary, adjacency, label, curve, said)

    def _sampled(self) -> tuple[str, ...]:
        if self.plan.adjacency == "user":
            return ()
        someone = range(self.plan.n) if self.user is None else [self.user]
        rates = (r.sample_rate for agent in someone for r in self.releases(agent) if r.sensitivity)
        return (POISSON,) if any(rate < 1 for rate in rates) else ()


def question(
    plan: AccountablePlan,
    view: View | None,
    observer: int | None,
    user: int | None,
    colluders: Iterable[int] | int,
    participations: int | None,
    label: Label | None,
    progress: Callable[[int], None] | None,
) -> Query:
    """Check who is asked about; nothing that was said about it may be without effect."""
    n = _validate.count(plan.n, "the number of agents")
    if label is not None and label not in get_args(Label):
        raise InvalidInput(f"label must be one of {', '.join(get_args(Label))}, got {label!r}.")
    some = isinstance(colluders, (int, np.integer))
    count = _validate.count(colluders, "colluders") if some else None  # type: ignore[arg-type]
    listed = () if some else tuple(colluders)  # type: ignore[arg-type]
    if view is None:
        view, count = _default(plan, observer, user, listed, count)
    if view not in get_args(View):
        raise InvalidInput(f"view must be one of {', '.join(get_args(View))}, got {view!r}.")
    if participations is not None:
        participations = _validate.count(participations, "participations", minimum=0)
        if not isinstance(plan.observation, Federation) or view != "local":
            raise InvalidInput("participations are for the local view of a federation; leave them out.")
    if isinstance(plan.observation, Curator) and view != "central":
        raise InvalidInput(f'The plan has a trusted curator: its only view is "central", got {view!r}.')
    about = None if user is None else _validate.nodes(user, n, "user")[0]
    if (listed or count is not None) and view != "colluders":
        raise InvalidInput(f'The {view} view takes no colluders; ask for view="colluders".')
    rows = view == "central" and isinstance(plan.observation, Averaging)
    if observer is not None and not (view in ("network", "pairwise", "colluders") or rows):
        raise InvalidInput(f"The {view} view is of no observer, got observer={observer}; leave it out.")
    if view == "pairwise" and (observer is None or about is None):
        raise InvalidInput("The pairwise view needs observer=... and user=....")
    if view == "colluders" and not listed and count is None:
        raise InvalidInput("The colluders view needs colluders=[...] or how many may collude, got none.")
    if count is not None and observer is not None:
        raise InvalidInput("Any so many colluders are nobody named; give observer=... or a number, not both.")
    named = (*listed, *(() if observer is None else (observer,)))
    observers = _validate.nodes(named, n, "observers") if named else ()
    if not rows:
        if about is not None and about in observers:
            raise InvalidInput(f"agent {about} knows its own records; name another observer or user.")
        size = count or len(observers) or int(view in ("network", "pairwise"))
        if n - size < 1:
            raise InvalidInput(
                f"{size} of {n} agents are observers, so nobody is left to protect; name fewer, or ask for "
                "the local view."
            )
    if len(observers) == 1 and view == "colluders":
        view = "network"
    return Query(plan, view, observers, count, about, participations, label, progress)


def _default(
    plan: AccountablePlan, observer: int | None, user: int | None, listed: tuple[int, ...], count: int | None
) -> tuple[View, int | None]:
    if isinstance(plan.observation, Curator):
        return "central", count
    if listed or count is not None:
        return "colluders", count
    if plan.n == 1:
        return "local", count  # there is no other member
    if observer is None and isinstance(plan.observation, (Averaging, Consensus, Federation)):
        tolerate = getattr(plan.schedule(0), "tolerate", None)
        if plan.schedule(0).masked and tolerate is not None and tolerate > 1:
            return "colluders", tolerate
    return "network" if observer is None or user is None else "pairwise", count


def named(law: ObservationModel) -> str:
    return f"A plan under the law {type(law).__name__}"


_but_the_sender = attrgetter(*(one.name for one in fields(Release) if one.name != "sender"))


def local_statement(asked: Query) -> Guarantee:
    """What own noise alone protects, restated against whoever is asked about."""
    curves: dict[frozenset[tuple[MechanismKey, int]], Curve] = {}
    said: tuple[str, ...] = ()
    alike = {  # of thousands of agents most release alike
        tuple(map(_but_the_sender, asked.releases(agent))): agent
        for agent in asked.users(asked.observers if asked.view != "central" else ())
    }
    for agent in alike.values():
        counts = asked.counts(agent)
        if asked.participations is not None:
            counts = Counter({kind: min(k, asked.participations) for kind, k in counts.items()})
            said = (f"the client takes part in {asked.participations} rounds",)
        key = frozenset(counts.items())
        if key not in curves:
            curves[key] = Curve.total(kind.curve(k, method=asked.method) for kind, k in counts.items())
    return asked.answer("ldp", Curve.worst(curves.values()), said)


def refused(asked: Query, label: str) -> InvalidInput:
    return InvalidInput(
        f"{named(asked.plan.observation)} has no {label} number for the {asked.view} view; leave label out "
        "for one that holds."
    )


def loudest(asked: Query, stds: np.ndarray) -> list[tuple[int, ...]]:
    """The colluders whose noise is missed most: the loudest, whichever of them may be the user."""
    size = 1 if asked.count is None else asked.count
    order = sorted((v for v in range(asked.plan.n) if v != asked.user), key=lambda v: -stds[v])
    pool = order[: size + (asked.user is None)]
    return [tuple(sorted(who)) for who in combinations(pool, size)]


def noise_stds(asked: Query) -> np.ndarray | None:
    """Return everybody's noise; None where somebody lists several, which one view does not cover."""
    for v in range(asked.plan.n):
        if len({r.noise_std for r in asked.releases(v) if r.mechanism == "gaussian"}) > 1:
            return None
    return np.array([asked.std(v) for v in range(asked.plan.n)])
