"""What a schedule discloses of the releases it averages: shares of averaging and of exact consensus."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.exact import AVERAGING_ASSUMPTIONS, CONSENSUS_ASSUMPTIONS, exact_loss
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.models import Averaging
from sottovoce.accounting.query import Query, local_statement, loudest, noise_stds
from sottovoce.accounting.release import MechanismKey, Release
from sottovoce.accounting.tree_noise import worst_tree_coalitions
from sottovoce.errors import InvalidInput
from sottovoce.leakage.view import GaussianView
from sottovoce.noise.samplers import STEPS_PER_STD
from sottovoce.protocols import Protocol as Averager
from sottovoce.protocols import as_linear

__all__ = [
    "assumed", "averaging", "averaging_each", "charge", "consensus", "consensus_each", "worst_coalitions",
]  # fmt: skip

_KEPT = 64  # protocols whose shares are remembered, so that equal steps are computed once
# of the assumptions of averaging and consensus, those that masks do not make superfluous
ALWAYS_ASSUMED = (AVERAGING_ASSUMPTIONS[1], CONSENSUS_ASSUMPTIONS[0], CONSENSUS_ASSUMPTIONS[2])


def averaging(asked: Query) -> Guarantee:
    """Price releases that one schedule averages, against every coalition asked about."""
    protocol = asked.plan.schedule(0)
    if asked.view == "local" or (asked.view == "outsider" and not protocol.masked):
        return local_statement(asked)
    if asked.view == "central":
        return _released_row(asked, protocol)
    coalitions = worst_coalitions(asked, protocol)
    if coalitions is None:
        return local_statement(asked)
    stds = noise_stds(asked)
    if stds is None:
        return local_statement(asked)
    curves: dict[Any, Curve] = {}
    rounding = _rounding(asked, protocol)
    counts: dict[int, Counter[MechanismKey]] = {}
    for who, h, owned in _seen(asked, protocol, coalitions, stds):
        for u in asked.users(who):
            if u not in counts:
                counts[u] = asked.counts(u)
            share = _with_rounding(float(h[u]), counts[u], rounding)
            charge(curves, counts[u], share, int(owned[u]), asked.method)
    said = assumed(asked, protocol, coalitions, AVERAGING_ASSUMPTIONS)
    return asked.answer("exact", Curve.worst(curves.values()), said)


def averaging_each(asked: Query) -> dict[int, Guarantee] | None:
    """Price one averaging against one named coalition, about every other user at once: one view for all.

    None where the local number is all that is known.
    """
    protocol, stds = asked.plan.schedule(0), noise_stds(asked)
    if stds is None or asked.coalitions is None:
        return None
    said = assumed(asked, protocol, asked.coalitions, AVERAGING_ASSUMPTIONS)
    rounding = _rounding(asked, protocol)
    found = {}
    for who, h, owned in _seen(asked, protocol, asked.coalitions, stds):
        for u in asked.users(who):
            curves: dict[Any, Curve] = {}
            share = _with_rounding(float(h[u]), asked.counts(u), rounding)
            charge(curves, asked.counts(u), share, int(owned[u]), asked.method)
            about = replace(asked, user=u, view=_about_one(asked))
            found[u] = about.answer("exact", Curve.worst(curves.values()), said)
    return found


def _about_one(asked: Query) -> Any:
    return "colluders" if len(asked.observers) > 1 else "network"


def _rounding(asked: Query, protocol: Averager) -> float:
    """Return by how many standard deviations rounding before fresh noise can move what is seen.

    A protective source rounds a mixed row to its grid before it adds fresh noise to it. Two worlds may round
    apart by a whole grid step in every coordinate, at every node and after every round but the last.
    """
    if not protocol.fresh_std:
        return 0.0
    places = protocol.n * max(protocol.rounds - 1, 0) * int(getattr(asked.plan, "width", 1))
    return math.sqrt(places) / STEPS_PER_STD


def _with_rounding(h: float, counts: Counter[MechanismKey], rounding: float) -> float:
    """Return the share with the rounding's shift on top: lengths of shifts add up at most."""
    if not rounding or h <= 0:
        return h
    ratio = max((kind.ratio for kind in counts), default=0.0)
    return float(min((math.sqrt(h) + rounding * ratio) ** 2, max(h, 1.0)))


def _seen(
    asked: Query, protocol: Averager, coalitions: list[tuple[int, ...]], stds: np.ndarray
) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray]]:
    """Yield, per coalition, the share h of every user's release and the noises each one's values carry."""
    n, single = protocol.n, asked.count in (None, 1)
    if _overheard(asked, protocol):
        yield (), np.ones(n), np.ones(n, dtype=int)
        return
    if single and len(coalitions) == n and protocol.linear and _all_equal(stds):
        table = exact_loss(protocol, progress=asked.progress)  # symmetric graphs need one observer only
        yield from ((who, table[:, who[0]], np.ones(n, dtype=int)) for who in coalitions)
        return
    by_blocks = protocol.knows_coalitions and bool((stds > 0).all())
    for done, who in enumerate(coalitions, 1):
        if by_blocks:  # what is seen are sums over disjoint sets: no basis is needed to know the shares
            yield who, _tree_shares(protocol, who, stds), np.ones(n, dtype=int)
            if asked.progress is not None:
                asked.progress(done)
            continue
        view = protocol.view(who)
        owned = np.bincount(view.owners[view.owners >= 0], minlength=n)
        yield who, _leakage(view, owned, stds), owned
        if asked.progress is not None:
            asked.progress(done)


def _overheard(asked: Query, protocol: Averager) -> bool:
    """Whether everybody's noisy row goes in clear to some neighbor in the first round, as gossip begins.

    Then the worst of all members, or of all coalitions, learns all of it, and no view has to be worked out.
    """
    if not protocol.sends_clear_rows or protocol.fresh_std or not protocol.rounds or protocol.n < 2:
        return False
    anyone = not asked.observers and asked.view in ("network", "colluders")
    return anyone and len(as_linear(protocol).senders(0, range(protocol.n))) == protocol.n


def _tree_shares(tree: Any, who: tuple[int, ...], stds: np.ndarray) -> np.ndarray:
    """Return h of every user against a coalition that sees one sum per component of the tree without it."""
    h, variances = np.zeros(tree.n), stds**2
    for block in tree.blocks(who[0] if len(who) == 1 else who):
        h[block] = variances[block] / variances[block].sum()
    return h


def _leakage(view: GaussianView, owned: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Return h in units of each user's own noise; all of it where somebody's noise is missing."""
    inside = np.array([v for v in np.flatnonzero(owned) if v not in view.observers], dtype=int)
    if not len(inside) or _all_equal(stds[inside]):
        return view.leakage()
    if not (stds[inside] > 0).all():
        return np.where(view.leakage() > 0, owned, 0).astype(float)
    known = np.full(view.n, stds[inside].min())  # the others' noise is not in the view
    known[inside] = stds[inside]
    return view.with_noise(known).leakage()


def charge(
    curves: dict[Any, Curve], counts: Counter[MechanismKey], h: float, owned: int, method: Method
) -> None:
    """Add the curve of a user of whose release the share ``h`` is seen; equal ones are kept once.

    A walk visits a user several times: its releases are so many, and h is in units of one of them.
    """
    share = _ceil(float(h))
    key = (frozenset(counts.items()), share, owned)
    if key in curves or share <= 0:
        return
    parts = []
    for kind, count in counts.items():
        if kind.mechanism == "gaussian" and kind.ratio > 0:
            parts.append(kind.curve(-(-count // max(owned, 1)), share, method))
        else:  # only Gaussian noise hides in the sum of others
            parts.append(kind.curve(count, 1.0, method))
    curves[key] = Curve.total(parts)


def _released_row(asked: Query, protocol: Averager) -> Guarantee:
    """What one final row tells: of every node, as far as rows may differ, unless one is named."""
    if asked.observers:
        rows = list(asked.observers)
    elif protocol.exact:
        rows = [0]
    else:
        rows = list(range(protocol.n)) if protocol.ends_at is None else [protocol.ends_at]
    stds = noise_stds(asked)
    if stds is None:
        return local_statement(asked)
    curves: dict[Any, Curve] = {}
    for done, row in enumerate(rows, 1):
        view = protocol.output_view(row)
        owned = np.bincount(view.owners[view.owners >= 0], minlength=protocol.n)
        h = _leakage(view, owned, stds)
        for u in asked.users():
            charge(curves, asked.counts(u), h[u], int(owned[u]), asked.method)
        if asked.progress is not None:
            asked.progress(done)
    said = _only_row(rows[0]) if len(rows) == 1 else "only one final row is released, and no message is seen"
    return asked.answer("exact", Curve.worst(curves.values()), (said,))


def _only_row(row: int) -> str:
    return f"only the final row of node {row} is released, and no message is seen"


def consensus(asked: Query) -> Guarantee:
    """Price releases that a schedule of exact consensus averages, step by step."""
    if asked.view == "local":
        return local_statement(asked)
    protocol = _exact(asked.plan.schedule(0), 0)
    if asked.view == "outsider" and not protocol.masked:
        return local_statement(asked)
    coalitions = worst_coalitions(asked, protocol)
    if coalitions is None:
        return local_statement(asked)
    tallies = _tallies(asked, coalitions, worst=True)
    curves: dict[frozenset[Any], Curve] = {}
    for tally in tallies:
        key = frozenset(tally.items())
        if key not in curves:
            curves[key] = Curve.total(kind.curve(k, h, asked.method) for (kind, h), k in tally.items())
    said = (
        CONSENSUS_ASSUMPTIONS[:1]
        if asked.view == "central"
        else assumed(asked, protocol, coalitions, CONSENSUS_ASSUMPTIONS)
    )
    return asked.answer("exact", Curve.worst(curves.values()), said)


def consensus_each(asked: Query) -> dict[int, Guarantee] | None:
    """Price a schedule of exact consensus against one named coalition, about every other user at once."""
    coalitions = asked.coalitions
    if coalitions is None:
        return None
    protocol = _exact(asked.plan.schedule(0), 0)
    said = assumed(asked, protocol, coalitions, CONSENSUS_ASSUMPTIONS)
    known: dict[frozenset[Any], Curve] = {}
    found = {}
    for u, tally in zip(asked.users(coalitions[0]), _tallies(asked, coalitions), strict=True):
        key = frozenset(tally.items())
        if key not in known:
            known[key] = Curve.total(kind.curve(k, h, asked.method) for (kind, h), k in tally.items())
        found[u] = replace(asked, user=u, view=_about_one(asked)).answer(
            "exact", Curve.worst([known[key]]), said
        )
    return found


Tally = Counter[tuple[MechanismKey, float]]


def _tallies(asked: Query, coalitions: list[tuple[int, ...]], *, worst: bool = False) -> list[Tally]:
    """Return, per coalition and user, how many releases of each kind are seen to each share.

    Where only the ``worst`` is asked for and all steps are alike, a user's largest share decides, so that one
    coalition for each user is enough.

    Releases are run-length coded: between two steps at which anybody's list changes, only the protocol can
    differ from step to step, and shares of protocols seen lately are not computed again.
    """
    plan = asked.plan
    releases = [asked.releases(u) for u in range(plan.n)]
    pairs = [(i, u) for i, who in enumerate(coalitions) for u in asked.users(who)]
    if worst and len(coalitions) > 1 and _alike(asked):
        pairs = _decisive(asked, coalitions, pairs)
    found: dict[tuple[int, int], Tally] = {pair: Counter() for pair in pairs}
    for i, u in pairs:
        _count_unscheduled(found[i, u], releases[u], plan.steps)
    cuts = {0, plan.steps}
    for listed in releases:
        cuts |= {s for r in listed for s in (r.step, r.step + r.steps) if s < plan.steps}
    veiled = plan.schedule(0).masked
    for start, end in pairwise(sorted(cuts)):
        streams = [_Stream(charged, stds) for charged, stds in _streams(releases, start)]
        # one look is enough where a plan says that all its steps are alike
        alike = end - start if getattr(plan, "is_stationary", False) else 1
        for k in range(start, end, alike):
            protocol = _exact(plan.schedule(k), k)
            if protocol.masked != veiled:
                raise InvalidInput(
                    f"The schedule mixes masked and unmasked steps (0 and {k}); take one kind for all."
                )
            for stream in streams:
                stream.add(asked, protocol, coalitions, alike)
                if stream.large:
                    stream.settle(found)
            if asked.progress is not None:
                asked.progress(k + alike)
        for stream in streams:
            stream.settle(found)
    return list(found.values())


def _decisive(
    asked: Query, coalitions: list[tuple[int, ...]], pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return, per user, the coalition that learns the largest share of what it publishes in every step."""
    streams = _streams([asked.releases(u) for u in range(asked.plan.n)], 0)
    if len(streams) != 1 or noise_stds(asked) is None:
        return pairs
    protocol = _exact(asked.plan.schedule(0), 0)
    most: dict[int, tuple[float, int]] = {}
    shares = [_shares(asked, protocol, who, streams[0][1]) for who in coalitions]
    for i, u in pairs:
        share = float(shares[i][u])
        if u not in most or share > most[u][0]:
            most[u] = (share, i)
    return [(i, u) for u, (_, i) in most.items()]


def _count_unscheduled(tally: Tally, releases: list[Release], steps: int) -> None:
    """Count in full what no schedule hides: other noise than Gaussian, joint releases, later steps."""
    for release in releases:
        kind = MechanismKey.of(release)._replace(user_rate=1.0)
        if not release.sensitivity:
            continue
        if release.joint:
            tally[kind, 1.0] += 1
        elif release.mechanism != "gaussian":
            tally[kind, 1.0] += release.draws
        else:
            late = min(release.steps, max(0, release.step + release.steps - steps))
            tally[kind, 1.0] += late * release.count


def _streams(releases: list[list[Release]], step: int) -> list[tuple[dict[int, Release], np.ndarray]]:
    """Return, per noisy value of a step, who publishes it and everybody's noise in it.

    The j-th value of one agent is averaged with the j-th of the others. Who adds none counts as noiseless.
    """
    values: list[list[Release]] = []
    for listed in releases:
        now = [r for r in listed if r.covers(step, r.stream) and r.mechanism == "gaussian" and not r.joint]
        values.append([r for r in now for _ in range(r.count)])
    found = []
    for j in range(max(map(len, values), default=0)):
        present = {u: drawn[j] for u, drawn in enumerate(values) if j < len(drawn)}
        stds = np.array([present[u].noise_std if u in present else 0.0 for u in range(len(values))])
        found.append((present, stds))
    return found


class _Stream:
    """One noisy value per agent and step, over steps in which the lists do not change."""

    def __init__(self, charged: dict[int, Release], stds: np.ndarray) -> None:
        self.charged, self.stds = charged, stds
        self._kept: OrderedDict[int, tuple[Averager, np.ndarray, list[int]]] = OrderedDict()
        self._shares: list[np.ndarray] = []
        self._times: list[list[int]] = []

    def add(
        self, asked: Query, protocol: Averager, coalitions: list[tuple[int, ...]], steps: int = 1
    ) -> None:
        """Count so many more steps under ``protocol``."""
        if id(protocol) not in self._kept:
            shares = np.array([_shares(asked, protocol, who, self.stds) for who in coalitions])
            times = [0]
            self._shares.append(shares)
            self._times.append(times)
            self._kept[id(protocol)] = (protocol, shares, times)  # alive, so that ids stay distinct
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept[id(protocol)][2][0] += steps

    @property
    def large(self) -> bool:
        return bool(self._shares) and len(self._shares) * self._shares[0].size > 5_000_000

    def settle(self, found: dict[tuple[int, int], Tally]) -> None:
        """Move what was counted into the tallies of the pairs (coalition, user)."""
        if not self._shares:
            return
        stacked = np.array(self._shares)
        times = np.array([entry[0] for entry in self._times])
        for (i, u), tally in found.items():
            release = self.charged.get(u)
            if release is None or not release.sensitivity:
                continue
            kind = MechanismKey.of(release)._replace(user_rate=1.0)
            values, at = stacked[:, i, u], np.zeros(1, dtype=int)
            if len(values) > 1:
                values, at = np.unique(values, return_inverse=True)
            for share, count in zip(values, np.bincount(at.ravel(), weights=times), strict=True):
                if share > 0:
                    tally[kind, float(share)] += int(count)
                elif share < 0:  # without noise of its own: hidden by that of others, whose std this is
                    tally[kind._replace(ratio=-float(share) / release.sensitivity), 1.0] += int(count)
        self._kept.clear()
        self._shares, self._times = [], []


def _shares(asked: Query, protocol: Averager, who: tuple[int, ...], stds: np.ndarray) -> np.ndarray:
    """Return (n,) the share h of one step's release that ``who`` learn of every user.

    A user without noise of its own has no share: it gets minus the std of the noise that hides it.
    """
    n = protocol.n
    if asked.view == "central":
        blocks = [np.arange(n)]
    elif protocol.masked or len(who) == 1 or protocol.knows_coalitions:
        blocks = protocol.blocks(who[0] if len(who) == 1 and not protocol.masked else who)
    else:
        view = protocol.view(who)
        return _ceil(_leakage(view, np.ones(n, dtype=int), stds))
    variance, found = np.square(stds), np.zeros(n)
    for block in blocks:
        total = math.fsum(variance[block])
        if total == 0:
            found[block] = 1.0
        else:
            found[block] = np.where(variance[block] > 0, _ceil(variance[block] / total), -math.sqrt(total))
    return found


def _exact(protocol: Averager, k: int) -> Averager:
    if not protocol.exact:
        raise InvalidInput(
            f"Every step must end in exact consensus, got {protocol!r} at step {k}; take a tree, an exchange "
            "or a masked sum."
        )
    return protocol


def worst_coalitions(asked: Query, protocol: Averager) -> list[tuple[int, ...]] | None:
    """Return the coalitions that must be tried; under certified masks and on one tree the worst are known."""
    size = asked.count if asked.count is not None else 1
    tolerate = protocol.tolerate
    anyone = not asked.observers and asked.view in ("network", "colluders")
    if anyone and protocol.masked and tolerate is not None and size <= tolerate:
        # all others stay in one component whoever colludes, so the loudest are missed most
        stds = noise_stds(asked)
        if stds is not None:
            return loudest(asked, stds)
    if anyone and size > 1 and protocol.sum_tree is not None and not protocol.masked and _alike(asked):
        stds = noise_stds(asked)
        if stds is not None and (stds > 0).all():
            worst = worst_tree_coalitions(protocol.sum_tree, stds**2, size)
            return sorted(set(worst)) if asked.user is None else [worst[asked.user]]
    return asked.coalitions


def _alike(asked: Query) -> bool:
    """Whether all steps are averaged by one protocol and everybody's releases are in the same steps."""
    plan = asked.plan
    if not (
        isinstance(plan.observation, Averaging) or plan.steps == 1 or getattr(plan, "is_stationary", False)
    ):
        return False
    shapes = {
        tuple((r.step, r.steps, r.count, r.joint) for r in asked.releases(u) if r.mechanism == "gaussian")
        for u in range(plan.n)
    }
    return len(shapes) == 1


def assumed(
    asked: Query, protocol: Averager, coalitions: list[tuple[int, ...]], plain: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what the statement rests on; masks hold against members that do not follow the protocol, too."""
    if not protocol.masked:
        return plain
    said = protocol.assumptions(coalitions[0])
    if asked.view != "outsider" and not asked.observers:
        # the worst coalition stands for all: what is said of its members only is not about them
        always = protocol.assumptions()
        said = (
            *(sentence for sentence in said if sentence in always),
            "computed for any members who tap every link and pool their keys, following the protocol or not",
        )
    kept = (sentence for sentence in plain if sentence in ALWAYS_ASSUMED)
    return (*said, *kept)


def _all_equal(stds: np.ndarray) -> bool:
    return bool(np.ptp(stds) <= 1e-12 * stds.max())


def _ceil(h: Any) -> Any:
    """Shares rounded upwards in the twelfth place: equal ones become equal, and none smaller."""
    up = np.ceil(np.asarray(h, dtype=float) * 1e12) / 1e12
    return float(up) if np.ndim(h) == 0 else up
