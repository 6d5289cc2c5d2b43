"""Exact consensus: every step ends with the same row at all nodes, so the views of the steps compose.

After each step the model is common knowledge. What an adversary learns of a step is therefore the share h of
that step's averaging alone, and the losses of the steps add up for any objective.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel, tolerated_view
from sottovoce.accounting.observation.coalitions import (
    CONSENSUS_ASSUMPTIONS,
    coalition_assumptions,
    leakage_with_noise,
    round_up,
    steps_are_alike,
    worst_coalitions,
)
from sottovoce.accounting.query import Query
from sottovoce.accounting.release import MechanismKey, Release
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Protocol

if TYPE_CHECKING:
    from sottovoce.accounting.query import AccountablePlan, View

_CACHED_PROTOCOLS = 64  # protocols whose shares are remembered, so that equal steps are computed once
_BUFFERED_SHARES = 5_000_000  # shares of steps held in memory before they are counted

Tally = Counter[tuple[MechanismKey, float]]  # how many releases of a kind are observed to which share
Pair = tuple[int, int]  # number of the coalition, user


@dataclass(frozen=True)
class Consensus(ObservationModel):
    """Every step ends in exact consensus, so the model is common knowledge and the views of steps compose."""

    labels = ("exact",)
    common_model = True
    exact_pairs = True
    between_peers = True

    def guarantee(self, query: Query) -> Guarantee:
        """Return the exact guarantee against the worst coalition of the query."""
        if query.view == "local":
            return query.local_guarantee()
        protocol = _consensus_step(query, 0)
        if query.view == "outsider" and not protocol.masked:
            return query.local_guarantee()
        coalitions = worst_coalitions(query, protocol)
        if coalitions is None:
            return query.local_guarantee()
        curves = _TallyCurves(query)
        worst = Curve.worst([curves[tally] for tally in _tallies(query, coalitions, worst=True)])
        assumptions = (
            CONSENSUS_ASSUMPTIONS[:1]
            if query.view == "central"
            else coalition_assumptions(query, protocol, coalitions, CONSENSUS_ASSUMPTIONS)
        )
        return query.answer("exact", worst, assumptions)

    def guarantee_each(self, query: Query) -> dict[int, Guarantee]:
        """Return the guarantees of all users from one pass over the steps."""
        coalitions = query.coalitions
        if coalitions is None:
            return super().guarantee_each(query)
        protocol = _consensus_step(query, 0)
        assumptions = coalition_assumptions(query, protocol, coalitions, CONSENSUS_ASSUMPTIONS)
        curves = _TallyCurves(query)
        return {
            user: query.about(user).answer("exact", curves[tally], assumptions)
            for user, tally in zip(query.users(coalitions[0]), _tallies(query, coalitions), strict=True)
        }

    def default_view(
        self, plan: AccountablePlan, observer: int | None, user: int | None
    ) -> tuple[View, int | None]:
        """Return the network view, or as many colluders as masks tolerate."""
        return tolerated_view(plan, observer) or super().default_view(plan, observer, user)


def _consensus_step(query: Query, step: int) -> Protocol:
    """Return the protocol of one step, which must end in exact consensus."""
    protocol = query.plan.schedule(step)
    if not protocol.exact:
        raise InvalidInput(
            f"Every step must end in exact consensus, got {protocol!r} at step {step}; take a tree, an "
            "exchange or a masked sum."
        )
    return protocol


class _TallyCurves:
    """The curves of tallies; equal tallies have one curve."""

    def __init__(self, query: Query) -> None:
        self._method = query.method
        self._curves: dict[frozenset[tuple[tuple[MechanismKey, float], int]], Curve] = {}

    def __getitem__(self, tally: Tally) -> Curve:
        key = frozenset(tally.items())
        if key not in self._curves:
            self._curves[key] = Curve.total(
                kind.curve(count, share, self._method) for (kind, share), count in tally.items()
            )
        return self._curves[key]


def _tallies(query: Query, coalitions: list[tuple[int, ...]], *, worst: bool = False) -> list[Tally]:
    """Return, per coalition and user, how many releases of each kind are observed to which share.

    If only the ``worst`` is needed and all steps are alike, the largest share of a user decides, so one
    coalition per user is enough.

    Releases are run-length coded: between two steps at which the releases of some agent change, only the
    protocol can differ from step to step, and shares of recent protocols are not computed again.
    """
    plan = query.plan
    releases = [query.releases(u) for u in range(plan.n)]
    pairs = [(i, u) for i, coalition in enumerate(coalitions) for u in query.users(coalition)]
    if worst and len(coalitions) > 1 and steps_are_alike(query):
        pairs = _decisive_pairs(query, coalitions, pairs)
    tallies: dict[Pair, Tally] = {pair: Counter() for pair in pairs}
    for i, u in pairs:
        _count_unscheduled(tallies[i, u], releases[u], plan.steps)
    changes = {0, plan.steps}
    for own in releases:
        changes |= {s for r in own for s in (r.step, r.step + r.steps) if s < plan.steps}
    masked = plan.schedule(0).masked
    for start, end in pairwise(sorted(changes)):
        streams = [_Stream(senders, stds) for senders, stds in _streams(releases, start)]
        stride = end - start if plan.is_stationary else 1  # all steps of a stationary plan are alike
        for k in range(start, end, stride):
            protocol = _consensus_step(query, k)
            if protocol.masked != masked:
                raise InvalidInput(
                    f"The schedule mixes masked and unmasked steps (0 and {k}); take one kind for all."
                )
            for stream in streams:
                stream.add(query, protocol, coalitions, stride)
                if stream.is_large:
                    stream.count_into(tallies)
            query.report_progress(k + stride)
        for stream in streams:
            stream.count_into(tallies)
    return list(tallies.values())


def _decisive_pairs(query: Query, coalitions: list[tuple[int, ...]], pairs: list[Pair]) -> list[Pair]:
    """Return, per user, the coalition that learns the largest share of its release in every step."""
    streams = _streams([query.releases(u) for u in range(query.plan.n)], 0)
    if len(streams) != 1 or query.noise_stds() is None:
        return pairs
    protocol = _consensus_step(query, 0)
    shares = [_step_shares(query, protocol, coalition, streams[0][1]) for coalition in coalitions]
    largest: dict[int, tuple[float, int]] = {}
    for i, u in pairs:
        share = float(shares[i][u])
        if u not in largest or share > largest[u][0]:
            largest[u] = (share, i)
    return [(i, u) for u, (_, i) in largest.items()]


def _count_unscheduled(tally: Tally, releases: list[Release], steps: int) -> None:
    """Count in full what averaging does not hide: noise that is not Gaussian, joint releases, later steps."""
    for release in releases:
        if not release.sensitivity:
            continue
        kind = MechanismKey.from_release(release)._replace(user_rate=1.0)
        if release.joint:
            tally[kind, 1.0] += 1
        elif release.mechanism != "gaussian":
            tally[kind, 1.0] += release.draws
        else:
            late = min(release.steps, max(0, release.step + release.steps - steps))
            tally[kind, 1.0] += late * release.count


def _streams(releases: list[list[Release]], step: int) -> list[tuple[dict[int, Release], np.ndarray]]:
    """Return, per noisy value of a step, the release of every agent that sends it and the noise of all.

    The j-th value of one agent is averaged with the j-th of the others. An agent without one adds no noise.
    """
    values: list[list[Release]] = []
    for own in releases:
        now = [r for r in own if r.covers(step, r.stream) and r.mechanism == "gaussian" and not r.joint]
        values.append([r for r in now for _ in range(r.count)])
    streams = []
    for j in range(max(map(len, values), default=0)):
        senders = {u: drawn[j] for u, drawn in enumerate(values) if j < len(drawn)}
        stds = np.array([senders[u].noise_std if u in senders else 0.0 for u in range(len(values))])
        streams.append((senders, stds))
    return streams


class _Stream:
    """One noisy value per agent and step, over steps in which the releases do not change."""

    def __init__(self, senders: dict[int, Release], stds: np.ndarray) -> None:
        self.senders, self.stds = senders, stds
        # by id of the protocol, which stays alive here so that ids stay distinct: its place in the lists
        self._recent: OrderedDict[int, tuple[Protocol, int]] = OrderedDict()
        self._shares: list[np.ndarray] = []
        self._steps: list[int] = []

    def add(self, query: Query, protocol: Protocol, coalitions: list[tuple[int, ...]], steps: int) -> None:
        """Count ``steps`` more steps under ``protocol``."""
        if id(protocol) not in self._recent:
            self._recent[id(protocol)] = (protocol, len(self._shares))
            self._shares.append(np.array([_step_shares(query, protocol, c, self.stds) for c in coalitions]))
            self._steps.append(0)
            if len(self._recent) > _CACHED_PROTOCOLS:
                self._recent.popitem(last=False)
        self._steps[self._recent[id(protocol)][1]] += steps

    @property
    def is_large(self) -> bool:
        return bool(self._shares) and len(self._shares) * self._shares[0].size > _BUFFERED_SHARES

    def count_into(self, tallies: dict[Pair, Tally]) -> None:
        """Move the counted steps into the tallies of the pairs (coalition, user)."""
        if not self._shares:
            return
        stacked, steps = np.array(self._shares), np.array(self._steps)
        for (i, u), tally in tallies.items():
            release = self.senders.get(u)
            if release is None or not release.sensitivity:
                continue
            kind = MechanismKey.from_release(release)._replace(user_rate=1.0)
            values, at = stacked[:, i, u], np.zeros(1, dtype=int)
            if len(values) > 1:
                values, at = np.unique(values, return_inverse=True)
            for share, count in zip(values, np.bincount(at.ravel(), weights=steps), strict=True):
                if share > 0:
                    tally[kind, float(share)] += int(count)
                elif share < 0:  # no noise of its own: hidden by that of others, whose std is -share
                    tally[kind._replace(ratio=-float(share) / release.sensitivity), 1.0] += int(count)
        self._recent.clear()
        self._shares, self._steps = [], []


def _step_shares(
    query: Query, protocol: Protocol, coalition: tuple[int, ...], stds: np.ndarray
) -> np.ndarray:
    """Return (n,): the share h of one step's release that the coalition learns of every user.

    A user without noise of its own has no share: its entry is minus the std of the noise that hides it.
    """
    n, single = protocol.n, len(coalition) == 1
    if query.view == "central":
        blocks = [np.arange(n)]
    elif protocol.masked or single or protocol.knows_coalitions:
        blocks = protocol.blocks(coalition[0] if single and not protocol.masked else coalition)
    else:
        return round_up(leakage_with_noise(protocol.view(coalition), np.ones(n, dtype=int), stds))
    variance, shares = np.square(stds), np.zeros(n)
    for block in blocks:
        total = math.fsum(variance[block])
        if total == 0:
            shares[block] = 1.0
        else:
            hidden = -math.sqrt(total)
            shares[block] = np.where(variance[block] > 0, round_up(variance[block] / total), hidden)
    return shares
