"""Whole consortia in one process, with every fault a network and a power cut can make, from one seed.

A `World` runs the real `Core` of every member over simulated links, disks and clocks. Messages are delayed,
reordered, dropped, duplicated and cut off by partitions; machines lose power at any point of a commit and
lose whatever was not synced; state folders are rolled back or run twice. After every event the promises are
checked against what an outside observer of all wires and disks knows:

- I1: every row on a wire is in its sender's durable ledger, and the ledger has charged all that went into it;
- I2: one payload per (round, sender), for all time and all copies;
- I3: noise that reached a wire was drawn once for one value;
- I6: the final rows equal the stacked runner's on the noise that became durable, bit for bit.

Examples
--------
>>> world = World(seed=1, faults=Faults.none())
>>> world.run()
>>> world.finished, world.violations
(True, [])
"""

from __future__ import annotations

import copy
import hashlib
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.release import Spending
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.data.base import Shards
from sottovoce.errors import FrameError, LedgerError, PeerError
from sottovoce.ledger.store import Entry, StoredRun
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import RecordedNoise, SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.peers.core import Core, Timing
from sottovoce.peers.node_program import StepProgram
from sottovoce.peers.run_keys import MaskedRows
from sottovoce.peers.wire_format import ROW, FrameCodec, frame_digest
from sottovoce.runners import run_stacked
from sottovoce.secure_sum.masks import simulated_masks

__all__ = ["Faults", "SimulatedDisk", "World"]

RUN = b"a simulated run".ljust(32, b".")
CLIP, NOISE_MULTIPLIER = 0.25, 4.0


class PowerLoss(BaseException):
    """The machine went off in the middle of something."""


class Faults(NamedTuple):
    """How often things go wrong; rates per message, per commit or per world."""

    drop: float = 0.1
    duplicate: float = 0.1
    delay: float = 0.3
    partitions: int = 1
    power: float = 0.06
    random_power: int = 1
    rollback: float = 0.0
    clone: float = 0.0
    hop: float = 0.0  # seconds that every message takes, give or take a half

    @classmethod
    def none(cls) -> Faults:
        """Nothing goes wrong."""
        return cls(0, 0, 0.01, 0, 0, 0, 0, 0)


@dataclass
class SimulatedDisk:
    """A disk whose writes are lost at a power cut unless they were synced."""

    durable: list[Entry] = field(default_factory=list)
    pending: list[Entry] = field(default_factory=list)

    def write(self, entry: Entry) -> None:
        """Hand an entry to the operating system."""
        self.pending.append(entry)

    def sync(self) -> None:
        """Return when everything written is on the platter."""
        self.durable += self.pending
        self.pending.clear()

    def lose_power(self) -> None:
        """Forget what was not synced."""
        self.pending.clear()


class SimulatedStore:
    """A `Store` on a simulated disk, with power cuts at every point of a commit."""

    def __init__(self, disk: SimulatedDisk, interrupt: Callable[[], int]) -> None:
        self.disk, self.interrupt = disk, interrupt
        self._hashes = [hashlib.sha256(b"genesis").digest()]

    def newest(self) -> tuple[int, bytes]:
        """Return how many entries are durable, and their chained hash."""
        return len(self.disk.durable), self.row_hash(len(self.disk.durable))

    def row_hash(self, count: int) -> bytes:
        """Return the chained hash of the first ``count`` entries."""
        for entry in self.disk.durable[len(self._hashes) - 1 :]:
            content = repr((entry.round, entry.frame, entry.state, entry.note, entry.heads)).encode()
            self._hashes.append(hashlib.sha256(self._hashes[-1] + content).digest())
        return self._hashes[count]

    def load(self) -> StoredRun:
        """Return what the disk holds."""
        saved = StoredRun()
        for entry in self.disk.durable:
            saved.at = entry.round
            saved.state = saved.state if entry.state is None else entry.state
            saved.releases += entry.releases
            if entry.frame:
                saved.outbox[entry.round] = entry.frame
                saved.sent[entry.round] = frame_digest(entry.frame)
            for r in entry.forget:
                saved.outbox.pop(r, None)
            saved.heard.update({(r, s): proof for r, s, proof in entry.heard})
            saved.heads.update(entry.heads)
            if entry.note:
                saved.notes.append(entry.note)
        return saved

    def commit(self, entry: Entry) -> None:
        """Write and sync; the power may go before, between and after."""
        point = self.interrupt()
        if point == 1:
            raise PowerLoss
        self.disk.write(entry)
        if point == 2:
            raise PowerLoss
        self.disk.sync()
        if point == 3:
            raise PowerLoss


class Shape(NamedTuple):
    """A small consortium: the protocol of each step, the steps, the row length."""

    protocol: protocols.Protocol
    steps: int
    dim: int

    @property
    def plan(self) -> Any:
        """What the consortium runs."""
        return descent(self.protocol, self.steps, self.dim)


@lru_cache(maxsize=1)
def shapes() -> tuple[Shape, ...]:
    """Return the consortia that worlds are drawn from; every kind of protocol is among them."""
    path, ring = graphs.path(3), graphs.ring(4)
    return (
        Shape(protocols.Gossip(path, 3), 1, 2),
        Shape(protocols.Gossip(ring, 1), 3, 2),
        Shape(protocols.Chebyshev(ring, 3), 1, 1),
        Shape(protocols.FreshNoiseGossip(path, 3, 0.1, noise_std=CLIP * NOISE_MULTIPLIER), 1, 2),
        Shape(protocols.HypercubeExchange(4), 2, 1),
        Shape(protocols.Tree(graphs.star(4)), 2, 2),
        Shape(protocols.Tree(path, root=0), 2, 1),
    )


@lru_cache(maxsize=1)
def masked_shapes() -> tuple[Shape, ...]:
    """Return consortia whose sums are masked."""
    return (
        Shape(protocols.Masked(graphs.star(4)), 2, 2),
        Shape(protocols.Masked(graphs.path(3)), 3, 1),
        Shape(protocols.Masked(graphs.ring(4), tolerate=2), 2, 1),
    )


@lru_cache(maxsize=64)
def descent(protocol: protocols.Protocol, steps: int, dim: int) -> Any:
    """Return a plan of noisy gradient steps on one record per member, over whatever the protocol averages.

    Examples
    --------
    >>> descent(protocols.HypercubeExchange(2), 3, 1).name
    'consensus-sgd'
    """
    kind: Any = ConsensusSGD if protocol.reaches_consensus else MuffliatoSGD
    return kind(
        GLM("squared", dim=dim), protocol, steps=steps, learning_rate=0.5, clip_norm=CLIP,
        noise_multiplier=NOISE_MULTIPLIER, adjacency="user",
    )  # fmt: skip


def hosted(plan: Any, nodes: list[int], values: np.ndarray, noise: Any) -> tuple[Any, Any]:
    """Return algorithm and mechanism of some members, each with one record: its row of ``values``."""
    data = Shards(np.ascontiguousarray(values), np.ones(len(values)), np.arange(len(values) + 1))
    random = RunRandomness(noise, batches=0, start_seed=0)
    mechanism = plan.mechanism(data, nodes, random)
    return plan.algorithm(mechanism, plan.starting(data, random, nodes)), mechanism


def member_program(plan: Any, node: int, values: np.ndarray, noise: Any, seed: int = 0) -> StepProgram:
    """Return the computation of one member of a simulated consortium; the seed is that of its mask keys."""
    algorithm, mechanism = hosted(plan, [node], values[[node]], noise)
    masked = None
    if plan.grid is not None:
        masks = simulated_masks(plan.schedule(0), seed, run_id=RUN, bits=plan.grid.bits)
        masked = MaskedRows(plan.grid, masks[node], RUN)
    mechanism = mechanism.recording()
    return StepProgram(algorithm, plan.schedule, plan.steps, node=node, mechanism=mechanism, masked=masked)


def plan_wire(plan: Any, session: bytes, rounds: int) -> FrameCodec:
    """Return what the frames of a plan look like: float rows, or integers where sums are masked."""
    if plan.grid is None:
        return FrameCodec(session, plan.n, rounds, plan.width, "float64")
    return FrameCodec(session, plan.n, rounds, plan.grid.dim + plan.grid.checks, f"int{plan.grid.bits}")


class World:
    """One consortium, one seed, one schedule of faults.

    Parameters
    ----------
    seed : decides everything: the shape, the values, the noise, every fault.
    faults : how often things go wrong.
    budget : optional budget of every member.
    values : the members' private points; drawn from the seed if not given (for non-interference tests).
    shape : the consortium; drawn from the seed if not given.
    witness : rows after which all members must hold a ledger's head.
    timing : by default one with short intervals.
    step_seconds : how long a member computes at every step; it neither takes nor sends anything meanwhile.
    pace : seconds of a span: what has come is taken at the beginning of the next one and answered in its
        middle; 0 for at once.
    liars : so many other members are set back together with the one that is rolled back, know it, and say
        only what they could have said then; they hand on, or keep back, what others say as it suits them.

    Examples
    --------
    >>> world = World(seed=3, faults=Faults(power=0.3))
    >>> world.run()
    >>> world.violations, world.counts["power"] > 0
    ([], True)
    """

    def __init__(
        self,
        seed: int,
        faults: Faults = Faults(),  # noqa: B008 - immutable
        *,
        budget: Budget | None = None,
        values: np.ndarray | None = None,
        horizon: float = 30.0,
        drop_after: float = float("inf"),
        shape: Shape | None = None,
        witness: int = 2,
        liars: int | None = None,
        timing: Timing | None = None,
        step_seconds: float = 0.0,
        pace: float = 0.0,
    ) -> None:
        short = Timing(0.05, 0.05, 0.4, 1e9, drop_after=drop_after, witness=witness)
        self.timing, self.step_seconds, self.pace = timing or short, step_seconds, pace
        self.frames: Counter[int] = Counter()  # that were sent, by kind
        self.starts = 0
        self._busy: dict[int, float] = {}
        self.witness, self.liars = witness, liars
        self.lying: set[int] = set()
        self.rng = np.random.default_rng(seed)
        self.faults, self.budget = faults, budget
        self.drop_after = drop_after
        fitting = [s for s in shapes() if drop_after == float("inf") or s.protocol.name == "gossip"]
        self.shape = fitting[seed % len(fitting)] if shape is None else shape
        self.n = self.shape.protocol.n
        own = np.random.default_rng((seed, 1)).standard_normal((self.n, self.shape.dim))
        self.values = own if values is None else values
        self.tape: dict[tuple[int, int, int], np.ndarray] = {}
        self.draws = 0
        self.noise_seed = seed
        rounds = self.shape.protocol.rounds * self.shape.steps
        self.codec = plan_wire(self.shape.plan, RUN, rounds)
        self.disks = [SimulatedDisk() for _ in range(self.n)]
        self.cores: dict[int, Core | None] = {}
        self.on_wire: dict[tuple[int, int], bytes] = {}
        self.violations: list[str] = []
        self.log: list[tuple[Any, ...]] = []
        self.stopped: dict[int, PeerError] = {}
        self.counts = dict.fromkeys(
            ("rows", "bytes", "power", "dropped", "duplicated", "conflicts", "events"), 0
        )
        self.horizon = horizon
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._cuts = [self._partition() for _ in range(faults.partitions)]
        self._old: dict[int, SimulatedDisk] = {}
        self._copied = -1
        self.held: dict[tuple[int, int], dict[int, bytes]] = {}
        self.received_twice = False  # whether somebody honest had got the first version of such a row
        self.twice = 0  # rows of the member whose folder was copied that left in a second version
        self.silent, self._set_back = False, 0.0
        self.equivocated = False  # whether two payloads for one (round, sender) were held at one time

    @property
    def finished(self) -> bool:
        """Whether every member holds its final row."""
        return all(core is not None and core.finished for core in self.cores.values())

    @property
    def noticed(self) -> bool:
        """Whether somebody noticed a copied or rolled-back state folder."""
        return any(isinstance(error, LedgerError) for error in self.stopped.values()) or any(
            core is not None and core.incidents for core in self.cores.values()
        )

    def run(self, most_events: int = 20_000) -> None:
        """Run until everybody is finished and released, or nothing more can happen."""
        for v in range(self.n):
            self._at(self.rng.random() * 0.1, partial(self._boot, v))
        for _ in range(self.faults.random_power):
            self._at(self.rng.random() * 0.6, partial(self._power_loss, int(self.rng.integers(self.n))))
        if self.rng.random() < self.faults.rollback:
            self._plan_copy(rollback=True)
        elif self.rng.random() < self.faults.clone:
            self._plan_copy(rollback=False)
        while self._events and self.now < self.horizon and self.counts["events"] < most_events:
            self.now, _, event = heapq.heappop(self._events)
            self.counts["events"] += 1
            event()
        if not self.stopped and self._copied < 0:
            self._check_result()

    def expected(self) -> np.ndarray:
        """Return the stacked runner's rows on the noise that became durable."""
        noise = RecordedNoise(None, self.tape)
        algorithm, _ = hosted(self.shape.plan, list(range(self.n)), self.values, noise)
        state = run_stacked(algorithm, self._ran, self.shape.steps, noise=noise)
        return np.asarray(algorithm.output(state))

    def left_out(self) -> dict[int, set[tuple[int, int]]]:
        """Return, per round of the run, the edges that an end left out, as (end, other end)."""
        edges: dict[int, set[tuple[int, int]]] = {}
        for v in range(self.n):
            core = self.cores[v]
            for r, s in core.dropped if core is not None else ():
                edges.setdefault(r, set()).add((v, s))
        return edges

    def _ran(self, k: int) -> protocols.Protocol:
        """Return the protocol that step ``k`` really ran, without the exchanges that were left out."""
        protocol = self.shape.plan.schedule(k)
        rounds = protocol.rounds
        edges = {
            r - k * rounds: {(min(e), max(e)) for e in pairs}
            for r, pairs in self.left_out().items()
            if k * rounds <= r < (k + 1) * rounds
        }
        if not edges:
            return protocol
        assert protocol.network is not None
        return protocols.Dropout(protocol.network, rounds, edges=edges)

    # ---- machines --------------------------------------------------------------------------------

    def _boot(self, v: int, disk: SimulatedDisk | None = None, slot: int | None = None) -> None:
        slot = v if slot is None else slot
        if slot in self.stopped or self.cores.get(slot) is not None:
            return
        self.starts += 1
        store = SimulatedStore(self.disks[v] if disk is None else disk, self._interrupt)
        program = member_program(self.shape.plan, v, self.values, _WorldNoise(self, v), self.noise_seed)
        self.cores[slot] = core = Core(
            program,
            self.codec,
            store,
            Spending(self.budget),
            self.timing,
            fresh=lambda: self.rng.bytes(32),
        )
        if slot in self.lying:
            _lie(core, self.lying | {self._copied} if self.silent else set(range(self.n)))
        self._do(slot, lambda: core.start(self.now))
        self._tick(slot, core)

    def _tick(self, slot: int, core: Core) -> None:
        if self.cores.get(slot) is not core or core.failed or core.all_done:
            return
        wait = self._busy.get(slot, 0.0) - self.now
        if wait <= 0:
            self._do(slot, lambda: core.tick(self.now))
            wait = max(core.next_tick - self.now, 0.01)
        self._at(self._to_span(wait), lambda: self._tick(slot, core))

    def _power_loss(self, slot: int) -> None:
        if self.cores.get(slot) is None:
            return
        self.counts["power"] += 1
        self.log.append(("power", slot))
        self.cores[slot] = None
        disk = self._disk_of(slot)
        disk.lose_power()
        durable = {(r, s) for entry in disk.durable for r, s, _ in entry.heard}
        for key, holders in self.held.items():
            if key not in durable:
                holders.pop(slot, None)
        self._at(0.05 + self.rng.random() * 0.3, lambda: self._boot(slot % self.n, self._disk_of(slot), slot))

    def _disk_of(self, slot: int) -> SimulatedDisk:
        return self.disks[slot] if slot < self.n else self._old[slot]

    def _interrupt(self) -> int:
        faulty = self.now < 2.0 and self.rng.random() < self.faults.power
        return int(self.rng.integers(1, 4)) if faulty else 0

    def _plan_copy(self, rollback: bool) -> None:
        """Copy a state folder at one moment; later start from it, instead of or beside the real one."""
        v = int(self.rng.integers(self.n))
        slot = self.n + v
        with_it = self.rng.permutation([w for w in range(self.n) if w != v])[: self.liars or 0].tolist()
        self.silent = bool(self.rng.random() < 0.5)

        def copy_folder() -> None:
            for each in (v, *with_it):
                self._old[self.n + each] = SimulatedDisk(copy.copy(self.disks[each].durable))

        def use_copy() -> None:
            if v in self.stopped or len(self._old[slot].durable) == len(self.disks[v].durable):
                return  # nothing happened in between: the copy is as good as the original
            self._copied = v
            self.log.append(("copy", v, rollback))
            if rollback:
                self.lying = set(with_it)
                self._set_back = self.now if self.liars is not None else 0.0
                for each in (v, *with_it):
                    self.cores[each] = None
                    self.disks[each] = SimulatedDisk(self._old[self.n + each].durable)
                    self.stopped.pop(each, None)
                    self._boot(each)
            else:
                self._boot(v, self._old[slot], slot)

        # who plans it waits until the run is well under way
        slow = 1.0 if self.liars is None else 3.0
        early = float(self.rng.random() * 0.3 * slow)
        self._at(early, copy_folder)
        self._at(early + 0.05 + float(self.rng.random() * 0.6 * slow), use_copy)

    # ---- links -----------------------------------------------------------------------------------

    def _do(self, slot: int, action: Callable[[], list[tuple[int, bytes]]]) -> None:
        """Let one core act, put what it sends on the wires, and check the promises."""
        acting = self.cores.get(slot)
        step = self._step_of(acting)
        try:
            out = action()
        except PowerLoss:
            self._power_loss(slot)
            return
        except FrameError as error:
            self.log.append(("refused", slot, str(error)))
            return
        except PeerError as error:
            self.stopped[slot] = error
            self.cores[slot] = None
            self.log.append(("stopped", slot, type(error).__name__))
            return
        later = self.pace / 2
        if self._step_of(acting) != step:
            later = max(later, self.step_seconds)
            self._busy[slot] = self.now + self.step_seconds

        def send() -> None:
            for to, raw in out:
                self._send(slot, to, raw)

        if not later:
            send()
        elif out:
            self._at(later, lambda: send() if self.cores.get(slot) is acting else None)
        core = self.cores.get(slot)
        if core is not None:
            self.counts["conflicts"] = max(self.counts["conflicts"], len(core.incidents))

    @staticmethod
    def _step_of(core: Core | None) -> int:
        """Return how many steps a core has begun."""
        return core.program.progress()[0] + 1 if core is not None and core.program.begun else 0

    def _to_span(self, delay: float) -> float:
        """Return the delay until the beginning of the span after it."""
        if not self.pace:
            return delay
        return (math.floor((self.now + delay) / self.pace) + 1) * self.pace - self.now

    def _send(self, slot: int, to: int, raw: bytes) -> None:
        v = slot % self.n
        self.frames[FrameCodec.kind_of(raw)] += 1
        self.log.append(("send", v, to, len(raw)))
        self.counts["bytes"] += len(raw)
        if FrameCodec.kind_of(raw) == ROW:
            self._check_row(slot, v, raw)
        sure = self.now > 4.0  # after the storm every message arrives
        if not sure and (self.rng.random() < self.faults.drop or self._cut(v, to)):
            self.counts["dropped"] += 1
            return
        copies = 1 + int(not sure and self.rng.random() < self.faults.duplicate)
        self.counts["duplicated"] += copies - 1
        for _ in range(copies):
            delay = 0.001 + self.rng.exponential(self.faults.delay if not sure else 0.01) * self.rng.random()
            if self.faults.hop:
                delay += self.faults.hop * (0.5 + self.rng.random())
            self._at(self._to_span(delay), partial(self._deliver, v, to, raw, self.now))

    def _deliver(self, sender: int, to: int, raw: bytes, born: float) -> None:
        if born < self._set_back and {sender, to} & (self.lying | {self._copied}):
            return  # who sets a folder back in secret lets nothing through that was said before
        if self.now < self._busy.get(to, 0.0):
            again = partial(self._deliver, sender, to, raw, born)
            self._at(self._to_span(self._busy[to] - self.now), again)
            return
        for slot in (to, self.n + to):
            core = self.cores.get(slot)
            if core is not None and core.failed is None:
                if FrameCodec.kind_of(raw) == ROW:
                    self._remember(slot, sender, raw)
                self._do(slot, lambda core=core: core.receive(self.now, sender, raw))  # type: ignore[misc]

    def _remember(self, slot: int, sender: int, raw: bytes) -> None:
        """Note which payload each machine holds; what it has not committed it forgets when the power goes."""
        holders = self.held.setdefault((self.codec.decode(raw).round, sender), {})
        holders.setdefault(slot, raw)
        self.equivocated |= any(other != raw for other in holders.values())

    def _partition(self) -> tuple[float, float, set[int]]:
        start = float(self.rng.random() * 0.8)
        side = {v for v in range(self.n) if self.rng.random() < 0.5}
        return start, start + float(self.rng.random() * 0.8), side

    def _cut(self, a: int, b: int) -> bool:
        return any(s <= self.now <= e and (a in side) != (b in side) for s, e, side in self._cuts)

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), event))

    # ---- promises --------------------------------------------------------------------------------

    def _check_row(self, slot: int, v: int, raw: bytes) -> None:
        frame = self.codec.decode(raw)
        self.counts["rows"] += 1
        disk = self._disk_of(slot)
        if not any(entry.frame == raw for entry in disk.durable):
            self.violations.append(f"I1: row of round {frame.round} of {v} was sent before it was durable")
        charged = sum(release.draws for entry in disk.durable for release in entry.releases)
        core = self.cores[slot]
        assert core is not None
        program = core.program
        assert isinstance(program, StepProgram)
        needed = sum(1 for start in program.starts[: program.steps] if start <= frame.round)
        if charged < needed:
            self.violations.append(
                f"I1: {v} had charged {charged} of {needed} releases in round {frame.round}"
            )
        first = self.on_wire.setdefault((frame.round, v), raw)
        if first != raw and self._copied == v:
            self.twice += 1
            holders = self.held.get((frame.round, v), {})
            self.received_twice |= any(
                raw_held == first
                for slot_held, raw_held in holders.items()
                if slot_held not in self.lying | {v}
            )
        if first != raw and self._copied != v and v not in self.lying:
            self.violations.append(f"I2: two payloads of {v} for round {frame.round}")

    def _check_result(self) -> None:
        if not self.finished:
            self.violations.append("I6: the run did not finish")
            return
        rows = np.array([self.cores[v].program.result() for v in range(self.n)])  # type: ignore[union-attr]
        left_out = self.left_out()
        if any((w, v) not in pairs for pairs in left_out.values() for v, w in pairs):
            self.violations.append("an exchange was left out at one end only")
        if not left_out and rows.tobytes() != self.expected().tobytes():
            self.violations.append("I6: the final rows differ from the fault-free run")
        # a weight moved to the diagonal is added in another order, so the last bit may differ
        if left_out and not np.allclose(rows, self.expected(), rtol=1e-12, atol=1e-12):
            self.violations.append("I6: the final rows differ from the schedule that ran")


def _lie(core: Core, league: set[int]) -> None:
    """Make a core of one that is in league with whoever set it back: nothing it learns about that stops it.

    What members outside its ``league`` have signed it keeps back.
    """
    witnesses: Any = core.witnesses
    news_for = witnesses._news_for

    def filtered(s: int) -> Any:
        witnesses._behind[s] = {key for key in witnesses._behind[s] if key[1] in league}
        return news_for(s)

    def confirm(now: float, w: int, receipts: Any, raw: bytes) -> None:
        witnesses._put(raw)
        witnesses.confirmed[w] = 1 << 60
        witnesses.unanswered.discard(w)

    def take_sendable() -> list[tuple[int, bytes]]:
        rows, core.witnesses.withheld = core.witnesses.withheld, []
        return rows

    liar: Any = core
    liar._compare = lambda *arguments: True
    liar.incident = lambda *arguments: None
    witnesses._news_for, witnesses._confirm = filtered, confirm
    witnesses.take_sendable = take_sendable
    witnesses._same_chain = witnesses._require_contained = lambda *arguments: None


class _WorldNoise:
    """Fresh noise at every draw; the newest draw for (agent, step, stream) is the one that became durable."""

    protective = False

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node

    def perturb(self, values: np.ndarray, *, agents: Any, step: int, std: Any, stream: int = 0) -> np.ndarray:
        world = self.world
        world.draws += 1
        draw = SimulatedNoise(world.noise_seed).perturb(
            np.zeros((1, values.shape[1])), agents=[self.node], step=world.draws, std=1.0, stream=7
        )[0]
        world.tape[self.node, step, stream] = draw
        return values + np.asarray(std, values.dtype) * draw  # the tape keeps the draw as it is

    def slack(self, dim: int, std: float = 1.0) -> float:
        return 0.0
