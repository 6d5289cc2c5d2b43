"""Averaging: each agent releases its row once and one protocol averages the rows.

Exact where the coalitions can be tried, otherwise the local guarantee.

A coalition that observes messages learns the share h of a user's release, the squared length of the user's
unit vector projected on the span of the messages (`sottovoce.leakage`). The user's loss is then that of its
release with noise larger by 1 / sqrt(h).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.observation.coalitions import (
    AVERAGING_ASSUMPTIONS,
    ROUNDED_UP,
    all_equal,
    coalition_assumptions,
    leakage_with_noise,
    worst_coalitions,
)
from sottovoce.accounting.question import Coalition, PrivacyQuestion
from sottovoce.accounting.release import Release, ReleaseKind, ShareCurves
from sottovoce.noise.discrete import STEPS_PER_STD
from sottovoce.protocols import Protocol, as_linear


@dataclass(frozen=True)
class Averaging(ObservationModel):
    """Each agent releases its row once and a protocol averages the rows: exact if coalitions can be tried."""

    single_averaging = True
    step_is_averaging = True
    exact_pairs = True
    between_peers = True
    masks_hide = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the exact guarantee against the worst coalition; the local one where they are too many."""
        if question.view == "local" or (question.view == "outsider" and not question.protocol.masked):
            return question.local_guarantee()
        stds, coalitions = question.noise_stds(), worst_coalitions(question)
        if stds is None or coalitions is None:
            return question.local_guarantee()
        curves, any_rounded_up = ShareCurves(question.method), False
        for _, _, rounded_up in _user_curves(question, coalitions, stds, curves):
            any_rounded_up |= rounded_up
        return question.answer("exact", curves.worst, _assumptions(question, coalitions, any_rounded_up))

    def guarantee_each(self, question: PrivacyQuestion) -> dict[int, Guarantee]:
        """Return the guarantees of all users from one view."""
        stds, coalitions = question.noise_stds(), [question.observers]
        if stds is None:
            return super().guarantee_each(question)
        curves = _user_curves(question, coalitions, stds, ShareCurves(question.method))
        return {
            user: question.about(user).answer("exact", curve, _assumptions(question, coalitions, rounded_up))
            for user, curve, rounded_up in curves
        }


def _assumptions(question: PrivacyQuestion, coalitions: list[Coalition], rounded_up: bool) -> tuple[str, ...]:
    if question.view == "central":
        rows = _released_rows(question)
        which = f"the final row of node {rows[0]}" if len(rows) == 1 else "one final row"
        return (f"only {which} is released, and no message is seen",)
    assumptions = coalition_assumptions(question, coalitions, AVERAGING_ASSUMPTIONS)
    return (*assumptions, ROUNDED_UP) if rounded_up else assumptions


def _released_rows(question: PrivacyQuestion) -> tuple[int, ...]:
    """Return whose final row is released: that of the named node, or any of those that may differ."""
    protocol = question.protocol
    holders = tuple(range(protocol.n)) if protocol.ends_at is None else (protocol.ends_at,)
    return question.observers or ((0,) if protocol.reaches_consensus else holders)


def _user_curves(
    question: PrivacyQuestion, coalitions: list[Coalition], stds: np.ndarray, curves: ShareCurves
) -> Iterator[tuple[int, Curve, bool]]:
    """Yield the curve of each user against each coalition, and whether its share was rounded up."""
    rounding = _rounding_shift(question)
    for coalition, h, rounded_up in _coalition_shares(question, coalitions, stds):
        for user in question.users(coalition):
            counts = question.counts(user)
            share = _add_rounding(float(h[user]), counts, rounding)
            yield user, curves.add(counts, share, question.protocol.contributions(user)), rounded_up


def _coalition_shares(
    question: PrivacyQuestion, coalitions: list[Coalition], stds: np.ndarray
) -> Iterator[tuple[Coalition, np.ndarray, bool]]:
    """Yield, per coalition, the share h of every user's release, and whether it was rounded up."""
    protocol, n = question.protocol, question.plan.n
    if question.view == "central":
        for done, row in enumerate(_released_rows(question), 1):
            view = protocol.output_view(row)
            yield (), leakage_with_noise(view, stds), view.rounded_up
            question.report_progress(done)
        return
    if _sends_raw_rows(question):
        yield (), np.ones(n), False
        return
    single = question.size == 1 and len(coalitions) == n
    if single and protocol.linear and all_equal(stds):
        table = exact_loss(protocol, progress=question.progress)  # symmetric graphs need one observer only
        yield from ((coalition, table[:, coalition[0]], False) for coalition in coalitions)
        return
    positive = bool((stds > 0).all())
    for done, coalition in enumerate(coalitions, 1):
        if protocol.knows_coalitions and positive:  # disjoint sums are observed: no basis is needed
            observed = coalition[0] if len(coalition) == 1 else coalition
            yield coalition, protocol.shares(observed, stds), False
        else:
            view = protocol.view(coalition)
            yield coalition, leakage_with_noise(view, stds), view.rounded_up
        question.report_progress(done)


def _sends_raw_rows(question: PrivacyQuestion) -> bool:
    """Whether every agent sends its noisy row to some neighbor in the first round, as gossip does.

    Then the worst of all members, or of all coalitions, learns all of it, and no view has to be computed.
    """
    protocol = question.protocol
    if not protocol.sends_clear_rows or protocol.fresh_std or not protocol.rounds or protocol.n < 2:
        return False
    return question.any_members and len(as_linear(protocol).senders(0, range(protocol.n))) == protocol.n


def _rounding_shift(question: PrivacyQuestion) -> float:
    """Return by how many standard deviations rounding before fresh noise can move what is observed.

    Two neighboring data sets may round apart by a whole grid step in every coordinate, at every node and
    after every round but the last.
    """
    protocol = question.protocol
    if not protocol.fresh_std:
        return 0.0
    coordinates = protocol.n * max(protocol.rounds - 1, 0) * question.plan.width
    return math.sqrt(coordinates) / STEPS_PER_STD


def _add_rounding(h: float, counts: Counter[ReleaseKind], rounding: float) -> float:
    """Return the share with the rounding shift added: lengths of shifts add up at most."""
    if not rounding or h <= 0:
        return h
    largest = max((kind.noise_to_sensitivity for kind in counts), default=0.0)
    return float(min((math.sqrt(h) + rounding * largest) ** 2, max(h, 1.0)))


@dataclass(frozen=True)
class SingleAveraging:
    """The smallest plan that the accountant accepts: one averaging of rows with equal noise."""

    protocol: Protocol
    sensitivity: float
    noise_std: float
    steps: int = 1
    width: int = 1
    is_stationary: bool = True
    observation: ObservationModel = Averaging()
    adjacency: str = "user"
    accounting: str = "pld"
    assumptions: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return self.protocol.n

    def schedule(self, k: int) -> Protocol:
        return self.protocol

    def releases(self, agent: int) -> list[Release]:
        count = self.protocol.contributions(agent)
        release = Release(agent, 0, self.sensitivity, self.noise_std, steps=self.steps, count=max(count, 1))
        return [release] if count else []
