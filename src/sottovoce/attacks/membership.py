"""Membership inference with many runs: thousands of models trained together, with and without one record.

The setting is that of [1], Appendix D: three hundred digits of the classes 0, 1 and 2, one class per agent,
and a blank picture labeled 0 that the first agent may or may not hold. All models are trained as one
stacked computation by the library's own algorithms: the agents axis is (models x agents), the protocol is
applied to every model (`apply_to_copies`), noise comes from the library's noise source, and the claim that is
audited is the one the plan prints. Two kinds of evidence are looked at: the loss of the trained model on the
record, as in [1], and the messages themselves (white box), as an observer of the network sees them, projected
on the direction in which the record pulls.

References: [1] Bayrooti, Gao, Prorok 2023, Appendix D and Table 5. [2] Jagielski, Ullman, Oprea 2020.
Departures from [1]: a small network (the reproduction's has 195 parameters, theirs 38,424), so that ten
thousand models take minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as TypingProtocol

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.attacks.audit import Audit, audit_view, claim_about
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource, SimulatedNoise
from sottovoce.protocols import LinearProtocol, Protocol, as_linear
from sottovoce.protocols.base import Nodes
from sottovoce.runners import run_stacked

_TOGETHER = 1000  # copies that are trained as one array


@dataclass(frozen=True, eq=False)
class MembershipProblem:
    """Records of a few agents, and one record (the canary) that its owner may hold or not.

    ``images`` are ``(agents, records, side, side)``, ``labels`` ``(agents, records)``.
    """

    images: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    canary: np.ndarray = field(repr=False)
    canary_label: int
    owner: int

    @property
    def agents(self) -> int:
        """Number of agents."""
        return len(self.images)

    @property
    def sizes(self) -> list[int]:
        """Public number of records of each agent, the canary not counted."""
        return [len(x) for x in self.images]

    def merged(self) -> MembershipProblem:
        """Return the same records at one agent, for central DP-SGD."""
        shape = self.images.shape
        images = self.images.reshape(1, shape[0] * shape[1], *shape[2:])
        return MembershipProblem(images, self.labels.reshape(1, -1), self.canary, self.canary_label, 0)


@dataclass(frozen=True, eq=False)
class Trained:
    """What many trainings leave, beside the canary's loss ``(models,)`` under its owner's model.

    By name of a view: ``(models, features)`` what the observers saw, projected on the canary's direction, and
    ``(models, scores)`` what observers who hear everybody around the owner can add up (``decoded``).
    """

    losses: np.ndarray
    views: Mapping[str, np.ndarray]
    decoded: Mapping[str, np.ndarray] = field(default_factory=dict)


def digits_problem(
    images: np.ndarray, labels: np.ndarray, *, records: int = 100, side: int = 14
) -> MembershipProblem:
    """Return the setting of Bayrooti et al. 2023, Appendix D, from grey pictures in [0, 1].

    The first ``records`` pictures of each of the classes 0, 1, 2 go to agents 0, 1, 2; pictures are averaged
    down (or cut up) to ``side`` pixels and normalized by MNIST's public constants. The canary is a blank
    picture labeled 0.
    """
    pictures = _resized(np.asarray(images, dtype=np.float32), side)
    chosen = [np.flatnonzero(np.asarray(labels) == c)[:records] for c in range(3)]
    if min(len(rows) for rows in chosen) < records:
        raise InvalidInput(f"the setting needs {records} pictures of each of the classes 0, 1 and 2.")
    normalized = np.stack([(pictures[rows] - 0.1307) / 0.3081 for rows in chosen])
    blank = np.full((side, side), -0.1307 / 0.3081, dtype=np.float32)
    classes = np.repeat(np.arange(3)[:, None], records, axis=1)
    return MembershipProblem(normalized, classes, blank, 0, 0)


class StackedNet(TypingProtocol):
    """Many small networks as one array: the parameters of one model are one row of ``theta``."""

    @property
    def n_params(self) -> int:
        """Numbers in one row."""

    def patches(self, images: np.ndarray) -> np.ndarray:
        """Return what the first layer reads of every picture, computed once for all models."""

    def losses(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the loss ``(models, records)`` of every record under every row."""

    def clipped_sums(
        self, theta: np.ndarray, owner: np.ndarray, patches: np.ndarray, labels: np.ndarray,
        present: np.ndarray, clip_norm: float,
    ) -> np.ndarray:  # fmt: skip
        """Return the sum of clipped gradients of every row over its batch ``present``."""


class CopiesQuery:
    """Clipped sums of many copies of one problem (see `GradientQuery`).

    Row r belongs to agent ``r % agents`` of copy ``r // agents``. All copies share the records; each has
    batches and noise of its own, which the mechanism keys by the rows' numbers.
    """

    dtype = np.float32
    decay = 0.0
    compiled_descent = None

    def __init__(self, net: StackedNet, problem: MembershipProblem, *, member: bool, copies: int) -> None:
        self.net, self.dim = net, net.n_params
        n = problem.agents
        self.agents = np.tile(np.arange(n), copies)
        blank = np.broadcast_to(problem.canary, (n, 1, *problem.canary.shape))
        images = np.concatenate([problem.images, blank], axis=1)
        self.patches = np.stack([net.patches(x) for x in images])
        self.labels = np.concatenate([problem.labels, np.full((n, 1), problem.canary_label)], axis=1)
        self.is_member = np.ones((n, images.shape[1]), dtype=bool)
        self.is_member[:, -1] = False
        self.is_member[problem.owner, -1] = member

    @property
    def sizes(self) -> np.ndarray:
        """Record slots of every row, used or not."""
        return np.full(len(self.agents), self.is_member.shape[1])

    def reseed(self, seeds: Callable[[int], int]) -> None:
        """Do nothing: these sums draw no random numbers."""

    def sums(
        self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return the clipped sum of every row over the records that are present and in its batch."""
        rows = np.asarray(places, np.intp)
        agents = self.agents[rows]
        drawn = np.zeros((len(rows), self.is_member.shape[1]), dtype=bool)
        lengths = [len(batch) for batch in batches]
        drawn[np.repeat(np.arange(len(rows)), lengths), np.concatenate(batches)] = True
        present = drawn & self.is_member[agents]
        return self.net.clipped_sums(theta, agents, self.patches, self.labels, present, clip_norm)


def train_models(
    plan: GradientPlan,
    net: StackedNet,
    problem: MembershipProblem,
    *,
    member: bool,
    models: int,
    start: np.ndarray,
    rng: np.random.Generator,
    views: Mapping[str, tuple[int, ...]] | None = None,
    noise: NoiseSource | None = None,
) -> Trained:
    """Train ``models`` copies of a plan on the problem and return what an attacker looks at.

    ``member`` says whether the owner holds the canary, ``views`` by name whose messages are recorded; all
    models begin at ``start``. The noise source is a simulated one, by default seeded from ``rng``.
    """
    if plan.adjacency != "add-remove":
        raise InvalidInput("a membership audit adds or removes one record; make the plan with add-remove.")
    if plan.n != problem.agents:
        raise InvalidInput(f"the plan has {plan.n} agents, the problem {problem.agents}.")
    source = SimulatedNoise(int(rng.integers(2**62))) if noise is None else noise
    if source.protective:
        raise InvalidInput("an audit simulates what is released; give a simulated noise source, or none.")
    batches = int(rng.integers(2**62))
    assert plan.clip_norm is not None
    direction = _pull(net, problem, start, plan.clip_norm)
    losses: list[np.ndarray] = []
    seen: dict[str, list[np.ndarray]] = {name: [] for name in views or {}}
    decoded: dict[str, list[np.ndarray]] = {}
    for first in range(0, models, _TOGETHER):
        copies = min(_TOGETHER, models - first)
        query = CopiesQuery(net, problem, member=member, copies=copies)
        numbers = first * problem.agents + np.arange(copies * problem.agents)
        random = RunRandomness(source, batches, 0, tuple(numbers.tolist()))
        gradients = plan.mechanism(query, query.agents.tolist(), random)
        theta = np.tile(np.asarray(start, dtype=np.float32), (copies * problem.agents, 1))
        tap = _Tap(copies, direction, views or {}, np.asarray(start, float), problem.owner)
        algorithm = plan.algorithm(gradients, theta)
        with np.errstate(invalid="ignore", over="ignore"):
            state = run_stacked(algorithm, plan.schedule, plan.steps, mix=tap)
            rows = algorithm.output(state).reshape(copies, problem.agents, -1)[:, problem.owner]
            blank = np.nan_to_num(problem.canary)[None]  # a broken record has no loss; a blank one stands in
            losses.append(net.losses(rows, blank, np.array([problem.canary_label]))[:, 0])
        for name, features in tap.features().items():
            seen[name].append(features)
        for name, scores in tap.decoded.items():
            decoded.setdefault(name, []).append(scores)
    joined = ({name: np.concatenate(parts) for name, parts in each.items()} for each in (seen, decoded))
    return Trained(np.concatenate(losses), *joined)


def audit_membership(
    plan: GradientPlan,
    net: StackedNet,
    problem: MembershipProblem,
    *,
    models: int,
    start: np.ndarray,
    rng: np.random.Generator,
    views: Mapping[str, tuple[int, ...]] | None = None,
    delta: float = 1e-2,
    level: float = 0.05,
) -> tuple[dict[str, Audit], tuple[Trained, Trained]]:
    """Train half of ``models`` with and half without the canary, and hold the results against the claims.

    Returned are the audits by view, ``"loss"`` being that of the trained model's loss on the canary, and the
    two sets of trainings.

    Guarantees
    ----------
    Each audit errs with probability at most ``level``; for several together divide it by their number.
    """
    half = _validate.count(models, "models", minimum=20) // 2
    inside, outside = (
        train_models(plan, net, problem, member=member, models=half, start=start, rng=rng, views=views)
        for member in (True, False)
    )
    local = plan.privacy() if plan.n == 1 else plan.privacy("local", user=problem.owner)
    losses, who = (inside.losses, outside.losses), "the trained model's loss on the record"
    audits = {"loss": audit_view(*losses, local, view=who, delta=delta, level=level)}
    for name, observers in (views or {}).items():
        claim = claim_about(plan, problem.owner, observers)
        seen = [(inside.views[name], outside.views[name])]
        if name in inside.decoded:
            seen.append((inside.decoded[name], outside.decoded[name]))
        who = f"{name}: messages seen by " + ", ".join(map(str, observers))
        tests = [audit_view(*each, claim, view=who, delta=delta, level=level / len(seen)) for each in seen]
        audits[name] = max(tests, key=lambda audit: (audit.refuted, audit.bound.epsilon))
    return audits, (inside, outside)


class _Tap:
    """Exchanges rows for the runner and notes what some observers see, projected on one direction.

    Over one round of gossip an observer that hears the owner and all its neighbors knows what the owner's
    next row would be without its own gradient; the rest is the owner's. Rows hold sums of noisy gradients
    (DP-DSGD) or their differences (gradient tracking), so the rests are added up, once, twice and three
    times: a few scores besides all messages, to which a test is hard to fit.
    """

    def __init__(
        self,
        copies: int,
        direction: np.ndarray,
        views: Mapping[str, tuple[int, ...]],
        start: np.ndarray,
        owner: int,
    ) -> None:
        self._owner, self._copies, self._direction, self._views = owner, copies, direction, views
        self._start = start
        self._seen: dict[str, list[np.ndarray]] = {name: [] for name in views}
        self._expected: np.ndarray | None = None  # (copies, parts): the owner's next row, had it no records
        self._sums = [np.zeros(1)] * 3
        self.decoded: dict[str, np.ndarray] = {}

    def __call__(self, protocol: Protocol, rows: np.ndarray, step: int) -> np.ndarray:
        """Return the rows of all copies after a step's protocol."""
        if self._views:
            self._note(protocol, rows)
        return apply_to_copies(protocol, rows, self._copies, step)

    def _note(self, protocol: Protocol, rows: np.ndarray) -> None:
        parts = rows.reshape(self._copies, protocol.n, -1, len(self._direction))
        pulled = parts.astype(np.float64) @ self._direction
        pulled[:, :, 0] -= self._start @ self._direction
        broken = ~np.isfinite(pulled).all(axis=(1, 2))
        pulled[broken] = 0.0
        one_round = protocol.gossip_matrix_only and protocol.rounds == 1
        decoded = self._rests(as_linear(protocol), pulled) if one_round else None
        for name, observers in self._views.items():
            if decoded is not None and self._hears_all(as_linear(protocol), observers):
                self.decoded[name] = np.where(broken[:, None], np.nan, decoded)
            seen = observe_copies(protocol, pulled, observers)
            seen[:, broken] = np.nan
            self._seen[name].append(seen.transpose(1, 0, 2).reshape(self._copies, -1))

    def _rests(self, protocol: LinearProtocol, pulled: np.ndarray) -> np.ndarray:
        """Return (copies, 3 * parts): the owner's rests so far, added up once, twice and three times."""
        own = pulled[:, self._owner]
        rest = np.zeros_like(own) if self._expected is None else own - self._expected
        for k in range(3):
            rest = self._sums[k] = self._sums[k] + rest
        weights = protocol.matrix(0)[[self._owner]].toarray()[0]
        self._expected = np.einsum("w,cwp->cp", weights, pulled)
        return np.concatenate(self._sums, axis=1)

    def _hears_all(self, protocol: LinearProtocol, observers: tuple[int, ...]) -> bool:
        heard = {*observers, *protocol.senders(0, observers)}
        return heard >= {self._owner, *protocol.senders(0, self._owner)}

    def features(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(steps, axis=1) for name, steps in self._seen.items()}


def apply_to_copies(protocol: Protocol, rows: np.ndarray, copies: int, step: int) -> np.ndarray:
    """Return what the protocol makes of rows (copies x nodes) of many copies of its network.

    A copy that holds a row with NaN or infinity ends with NaN everywhere; the other copies go on.
    """
    stacked = rows.reshape(copies, protocol.n, -1)
    broken = ~np.isfinite(stacked).all(axis=(1, 2))[:, None, None]
    mixed = protocol.apply(_across(np.where(broken, np.zeros((), stacked.dtype), stacked)), step=step)
    out = mixed.reshape(protocol.n, copies, -1).transpose(1, 0, 2)
    return np.where(broken, np.asarray(np.nan, out.dtype), out).reshape(len(rows), -1)


def observe_copies(protocol: Protocol, parts: np.ndarray, observers: Nodes) -> np.ndarray:
    """Return what the observers of every copy see of rows (copies, nodes, dim), (messages, copies, dim)."""
    seen = protocol.observe(_across(parts), observers)
    return seen.reshape(len(seen), len(parts), -1)


def _across(stacked: np.ndarray) -> np.ndarray:
    """Return (copies, nodes, dim) as one row per node, the copies side by side."""
    return np.ascontiguousarray(stacked.transpose(1, 0, 2)).reshape(stacked.shape[1], -1)


def _pull(net: StackedNet, problem: MembershipProblem, start: np.ndarray, clip_norm: float) -> np.ndarray:
    """Return the unit direction in which the canary moves the first model."""
    patches = net.patches(np.nan_to_num(problem.canary)[None])[None]
    labels = np.array([[problem.canary_label]])
    row = np.asarray(start, dtype=np.float32)[None]
    g = net.clipped_sums(row, np.zeros(1, np.int64), patches, labels, np.ones((1, 1), bool), clip_norm)[0]
    return g.astype(np.float64) / max(float(np.linalg.norm(g)), 1e-30)


def _resized(images: np.ndarray, side: int) -> np.ndarray:
    """Average blocks of pixels, or repeat them, to get ``side`` x ``side`` pictures."""
    height = images.shape[-1]
    if height == side:
        return images
    if height % side == 0:
        k = height // side
        return images.reshape(len(images), side, k, side, k).mean(axis=(2, 4))
    index = np.arange(side) * height // side
    return images[:, index][:, :, index]
