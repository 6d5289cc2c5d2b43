"""Exact consensus: every step ends with the same row at all nodes, so the views of the steps compose.

After each step the model is common knowledge. What an adversary learns of a step is therefore the share h of
that step's averaging alone, and the losses of the steps add up for any objective.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.observation.coalitions import (
    CONSENSUS_ASSUMPTIONS,
    all_equal,
    coalition_assumptions,
    leakage_with_noise,
    steps_are_alike,
    worst_coalitions,
)
from sottovoce.accounting.question import Coalition, PrivacyQuestion
from sottovoce.accounting.release import Release, ReleaseKind, ShareCurves, round_up
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Protocol
from sottovoce.protocols.base import block_variances

_BUFFERED_SHARES = 5_000_000  # held before they are counted, so that equal steps are computed once
_MAX_MASK_BYTES = 2**30  # bit masks of the components of all trees
# for sampled steps over trees that change, whose worst coalition depends on the order
SAMPLED_ORDERS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)

Tally = Counter[tuple[ReleaseKind, float]]  # how many releases of a kind are observed to which share
Pair = tuple[int, int]  # number of the coalition, user


@dataclass(frozen=True)
class Consensus(ObservationModel):
    """Every step ends in exact consensus, so the model is common knowledge and the views of steps compose."""

    common_model = True
    exact_pairs = True
    between_peers = True
    masks_hide = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the exact guarantee against the worst coalition; the local one where they are too many."""
        if question.view == "local":
            return question.local_guarantee()
        protocol = _consensus_step(question, 0)
        coalitions = worst_coalitions(question)
        if coalitions is None and (curve := _curve_over_trees(question)) is not None:
            return question.answer("exact", curve, CONSENSUS_ASSUMPTIONS)
        if (question.view == "outsider" and not protocol.masked) or coalitions is None:
            return question.local_guarantee()
        curves = ShareCurves(question.method)
        for tally in _tallies(question, coalitions, worst=True):
            curves.add_tally(tally)
        assumptions: tuple[str, ...] = CONSENSUS_ASSUMPTIONS[:1]
        if question.view != "central":
            assumptions = coalition_assumptions(question, coalitions, CONSENSUS_ASSUMPTIONS)
        return question.answer("exact", curves.worst, assumptions)

    def guarantee_each(self, question: PrivacyQuestion) -> dict[int, Guarantee]:
        """Return the guarantees of all users from one pass over the steps."""
        coalitions = [question.observers]
        assumptions = coalition_assumptions(question, coalitions, CONSENSUS_ASSUMPTIONS)
        curves = ShareCurves(question.method)
        return {
            user: question.about(user).answer("exact", curves.add_tally(tally), assumptions)
            for user, tally in zip(question.users(coalitions[0]), _tallies(question, coalitions), strict=True)
        }


def _consensus_step(question: PrivacyQuestion, step: int) -> Protocol:
    """Return the protocol of one step, which must end in exact consensus."""
    protocol = question.plan.schedule(step)
    if not protocol.reaches_consensus:
        raise InvalidInput(
            f"Every step must end in exact consensus, got {protocol!r} at step {step}; take a tree, an "
            "exchange or a masked sum."
        )
    return protocol


def _curve_over_trees(question: PrivacyQuestion) -> Curve | None:
    """Return the loss to any so many members over trees that change; None where that is not known.

    Known is one Gaussian release in every step, with the same noise for all agents.
    """
    plan = question.plan
    trees = [_consensus_step(question, k).sum_tree for k in range(plan.steps)]
    stds, users, size = question.noise_stds(), question.users(), question.size
    single = [(0, plan.steps, 1, False, "gaussian")]
    work = math.comb(plan.n - 1, size) * len(users) * plan.steps
    memory = plan.n**2 * plan.steps * (plan.n // 64 + 1) * 8
    if stds is None or not all_equal(stds) or not stds.all() or None in trees or memory > _MAX_MASK_BYTES:
        return None
    for releases in map(question.releases, range(plan.n)):
        if [(r.step, r.steps, r.count, r.joint, r.mechanism) for r in releases] != single:
            return None
    from sottovoce.accounting import fresh_trees

    parents, depths = (np.array([getattr(t, name) for t in trees]) for name in ("parents", "depths"))
    masks = fresh_trees.components(parents, np.argsort(-depths, axis=1, kind="stable"))
    nodes = np.arange(1, plan.n + 1)
    shares = np.concatenate([[1.0], 1 / nodes])
    curves, tables = [], {}
    for done, user in enumerate(users, 1):
        (kind,) = question.counts(user)
        if kind.curve(1).is_gaussian:
            if work <= fresh_trees.MAX_WORK:
                (total,) = fresh_trees.largest_losses(masks, user, shares[None], size)
            else:
                total = fresh_trees.share_bound(masks, user, size)
            curves.append(Curve.gaussian(math.sqrt(float(round_up(total))) / kind.noise_to_sensitivity))
        elif work * len(SAMPLED_ORDERS) <= fresh_trees.MAX_WORK:
            if kind not in tables:
                per_size = [kind.curve(1, share, question.method) for share in shares]
                tables[kind] = np.array([[c.rdp(alpha) for c in per_size] for alpha in SAMPLED_ORDERS])
            # rounding of the sums takes far less than is added
            losses = fresh_trees.largest_losses(masks, user, tables[kind], size) * (1 + 1e-12)
            curves.append(Curve.from_rdp(SAMPLED_ORDERS, losses.tolist()))
        else:
            return None
        question.report_progress(done)
    return Curve.worst(curves)


def _tallies(question: PrivacyQuestion, coalitions: list[Coalition], *, worst: bool = False) -> list[Tally]:
    """Return, per coalition and user, how many releases of each kind are observed to which share.

    If only the ``worst`` is needed and all steps are alike, the largest share of a user decides, so one
    coalition per user is enough.

    Releases are run-length coded: between two steps at which the releases of some agent change, only the
    protocol can differ from step to step, and shares of recent protocols are not computed again.
    """
    plan = question.plan
    releases = [question.releases(u) for u in range(plan.n)]
    pairs = [(i, u) for i, coalition in enumerate(coalitions) for u in question.users(coalition)]
    if worst and len(coalitions) > 1 and steps_are_alike(question):
        pairs = _decisive_pairs(question, coalitions, pairs)
    tallies: dict[Pair, Tally] = {pair: Counter() for pair in pairs}
    for i, u in pairs:
        _count_unscheduled(tallies[i, u], releases[u], plan.steps)
    changes = {0, plan.steps} | {
        s for own in releases for r in own for s in (r.step, r.step + r.steps) if s < plan.steps
    }
    for start, end in pairwise(sorted(changes)):
        streams = _streams(releases, start)
        stride = end - start if plan.is_stationary else 1  # all steps of a stationary plan are alike
        for k in range(start, end, stride):
            protocol = _consensus_step(question, k)
            if protocol.masked != question.protocol.masked:
                raise InvalidInput(
                    f"The schedule mixes masked and unmasked steps (0 and {k}); take one kind for all."
                )
            for stream in streams:
                stream.add(question, protocol, coalitions, stride)
                if len(stream.steps) * len(coalitions) * plan.n > _BUFFERED_SHARES:
                    stream.count_into(tallies)
            question.report_progress(k + stride)
        for stream in streams:
            stream.count_into(tallies)
    return list(tallies.values())


def _decisive_pairs(question: PrivacyQuestion, coalitions: list[Coalition], pairs: list[Pair]) -> list[Pair]:
    """Return, per user, the coalition from which the least noise hides its release in every step."""
    streams = _streams([question.releases(u) for u in range(question.plan.n)], 0)
    if len(streams) != 1 or question.noise_stds() is None:
        return pairs
    protocol = _consensus_step(question, 0)
    hiding = [_hiding_variances(question, protocol, who, streams[0].stds) for who in coalitions]
    least: dict[int, int] = {}
    for i, u in pairs:
        if u not in least or hiding[i][u] < hiding[least[u]][u]:
            least[u] = i
    return [(i, u) for u, i in least.items()]


def _count_unscheduled(tally: Tally, releases: list[Release], steps: int) -> None:
    """Count in full what averaging does not hide: noise that is not Gaussian, joint releases, later steps."""
    for release in releases:
        if not release.sensitivity:
            continue
        kind = ReleaseKind.from_release(release)._replace(user_rate=1.0)
        if release.joint:
            tally[kind, 1.0] += 1
        elif release.mechanism != "gaussian":
            tally[kind, 1.0] += release.draws
        else:
            late = min(release.steps, max(0, release.step + release.steps - steps))
            tally[kind, 1.0] += late * release.count


def _streams(releases: list[list[Release]], step: int) -> list[_Stream]:
    """Return the noisy values of a step: the j-th value of one agent is averaged with the j-th of the others.

    An agent without one adds no noise.
    """
    values: list[list[Release]] = []
    for own in releases:
        now = [r for r in own if r.covers(step, r.stream) and r.mechanism == "gaussian" and not r.joint]
        values.append([r for r in now for _ in range(r.count)])
    streams = []
    for j in range(max(map(len, values), default=0)):
        senders = {u: drawn[j] for u, drawn in enumerate(values) if j < len(drawn)}
        stds = np.array([senders[u].noise_std if u in senders else 0.0 for u in range(len(values))])
        streams.append(_Stream(senders, stds))
    return streams


@dataclass
class _Stream:
    """One noisy value per agent and step, over steps in which the releases do not change."""

    senders: dict[int, Release]
    stds: np.ndarray
    hiding: dict[Protocol, np.ndarray] = field(default_factory=dict)
    steps: Counter[Protocol] = field(default_factory=Counter)

    def add(
        self, question: PrivacyQuestion, protocol: Protocol, coalitions: list[Coalition], steps: int
    ) -> None:
        """Count ``steps`` more steps under ``protocol``."""
        if protocol not in self.hiding:
            each = [_hiding_variances(question, protocol, who, self.stds) for who in coalitions]
            self.hiding[protocol] = np.array(each)
        self.steps[protocol] += steps

    def count_into(self, tallies: dict[Pair, Tally]) -> None:
        """Move the counted steps into the tallies of the pairs (coalition, user)."""
        stacked, steps = np.array(list(self.hiding.values())), np.array(list(self.steps.values()))
        for (i, u), tally in tallies.items() if self.hiding else ():
            release = self.senders.get(u)
            if release is None or not release.sensitivity:
                continue
            kind, own = ReleaseKind.from_release(release)._replace(user_rate=1.0), self.stds[u] ** 2
            # without noise of its own a user has no share: what hides it counts as its noise
            values = round_up(own / stacked[:, i, u]) if own else np.sqrt(stacked[:, i, u])
            values, at = np.unique(values, return_inverse=True)
            for value, count in zip(values.tolist(), np.bincount(at.ravel(), weights=steps), strict=True):
                if not own:
                    hidden = kind._replace(noise_to_sensitivity=value / release.sensitivity)
                    tally[hidden, 1.0] += int(count)
                elif value > 0:
                    tally[kind, value] += int(count)
        self.hiding.clear()
        self.steps.clear()


def _hiding_variances(
    question: PrivacyQuestion, protocol: Protocol, coalition: Coalition, stds: np.ndarray
) -> np.ndarray:
    """Return (n,): the variance of the noise that hides every user's release of one step from the coalition.

    It is that of the sum which the coalition sees of a user, infinite where it sees nothing. The share h that
    it learns is the variance of the user's own noise over this.
    """
    n, single, variances = protocol.n, len(coalition) == 1, np.square(stds)
    if question.view == "central":
        blocks = [np.arange(n)]
    elif protocol.masked or single or protocol.knows_coalitions:
        blocks = protocol.blocks(coalition[0] if single and not protocol.masked else coalition)
    else:
        h = leakage_with_noise(protocol.view(coalition), stds)
        return np.divide(variances, h, out=np.full(n, math.inf), where=h > 0)
    return block_variances(blocks, variances)
