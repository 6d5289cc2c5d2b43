"""One peer's side of a run, without IO: bytes and ticks come in, bytes to send come out.

The order that carries the promises is in `Core._publish`: the spend and the very bytes to be sent are
committed to the store, which returns only when they are durable, and only then handed out for sending.
Everything else follows from it:

- a resend sends stored bytes; nothing is ever encoded or noised twice for a round;
- after a crash the peer goes on from its last commit; whatever was drawn later never left the machine;
- a row is consumed once, and a second, different row for the same round and sender is refused;
- a neighbour that is late past the deadline is either waited for, or, if the agreement says so and both
  ends agree, the exchange of that one round is left out at both ends and each keeps its own row for it;
- before anything new is drawn after a start, every contact has said what it has seen of this peer: a ledger
  that is older than that (restored, cloned, truncated) is noticed and nothing is sent.

The clock, the network, the disk and the randomness are the caller's: `sottovoce.peers.runtime` drives this
class with sockets and SQLite, `sottovoce.peers.simulator` with seeded faults.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from sottovoce.errors import FrameError, LedgerError, LostPeer, PeerError, SottovoceError
from sottovoce.peers.frames import DROP, NOTHING, POSITION, REFUSAL, ROW, Frame, Position, Wire
from sottovoce.privacy.releases import Release, Spending

__all__ = ["Core", "Entry", "Program", "Saved", "Store", "Timing"]


class Program(Protocol):
    """The computation of one node, round by round; see `sottovoce.peers.programs`."""

    node: int
    rounds: int
    contacts: tuple[int, ...]
    window: int

    @property
    def at(self) -> int:
        """The round it is in; `rounds` when finished."""

    @property
    def begun(self) -> bool:
        """Whether the first row exists."""

    def begin(self) -> None: ...

    def sends(self, r: int) -> tuple[int, ...]: ...

    def expects(self, r: int) -> tuple[int, ...]: ...

    def message(self) -> np.ndarray: ...

    def receive(self, rows: Mapping[int, np.ndarray]) -> None: ...

    def take_releases(self) -> tuple[Release, ...]: ...

    def result(self) -> np.ndarray: ...

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class Entry(NamedTuple):
    """What one commit makes durable, all of it or nothing; a state of None leaves the one before it."""

    round: int
    releases: tuple[Release, ...]
    frame: bytes
    state: bytes | None
    heard: tuple[tuple[int, int, bytes], ...]
    note: str = ""
    forget: tuple[int, ...] = ()


@dataclass
class Saved:
    """What a store holds: the newest state, frames that may be asked for again, and digests."""

    at: int = 0
    state: bytes | None = None
    outbox: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, bytes] = field(default_factory=dict)
    heard: dict[tuple[int, int], bytes] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Store(Protocol):
    """Where entries become durable. `commit` returns only when they are, or raises `LedgerError`."""

    def load(self) -> Saved: ...

    def commit(self, entry: Entry) -> None: ...


class Timing(NamedTuple):
    """Seconds: how soon to ask again (at the start; for a missing row), at most how late, when to give up.

    A row that is asked for is sent again, so asking for rows too eagerly costs traffic, never correctness.
    """

    ask: float = 0.1
    ask_row: float = 1.0
    ask_most: float = 4.0
    give_up: float = 600.0
    linger: float = 60.0  # a finished peer stays so long for neighbours that still need its last rows
    drop_after: float = math.inf  # only for gossip, where an exchange can be left out at both ends


Outgoing = list[tuple[int, bytes]]


class Core:
    """The state machine of one peer.

    Parameters
    ----------
    program : the node's computation.
    wire : what the frames of this run look like.
    store : where commits become durable.
    spending : the budget; a release that does not fit ends the run before anything is sent.
    timing : when to ask again and when to give up.

    Guarantees
    ----------
    Every row returned for sending was committed by `Store.commit` before, with all releases that went
    into it. At most one row exists per round. `receive` either raises `FrameError` and leaves the state as
    it was, or takes the frame. After any other error the core is finished: it returns nothing more to send.

    Examples
    --------
    `sottovoce.peers.simulator.World` runs whole consortia of cores.

    >>> from sottovoce.peers.simulator import Faults, World
    >>> world = World(seed=1, faults=Faults.none())
    >>> world.run()
    >>> world.finished, world.violations
    (True, [])
    """

    def __init__(
        self,
        program: Program,
        wire: Wire,
        store: Store,
        spending: Spending | None = None,
        timing: Timing = Timing(),  # noqa: B008 - immutable
    ) -> None:
        self.program, self.wire, self.store, self.timing = program, wire, store, timing
        self.spending = spending if spending is not None else Spending()
        saved = store.load()
        self.sent, self.heard, self.outbox = dict(saved.sent), dict(saved.heard), dict(saved.outbox)
        self.releases = list(saved.releases)  # everything charged so far, in order
        self.spending.add(*self.releases)
        if saved.state is not None:
            program.restore(saved.state)
        self.durable_at = saved.at
        self.incidents: list[str] = []
        self.dropped: set[tuple[int, int]] = set()  # exchanges left out at both ends: (round, member)
        self.proposed: set[tuple[int, int]] = set()  # asked for and not answered yet
        for note in saved.notes:
            self._recall(note)
        self.failed: SottovoceError | None = None
        self.inbox: dict[tuple[int, int], Frame] = {}
        self.passed: dict[int, int] = dict.fromkeys(program.contacts, -1)  # durable round of each contact
        self.unanswered: set[int] = set(program.contacts)
        self._highest: dict[int, tuple[int, bytes]] = {}
        for (r, sender), digest in self.heard.items():
            self._note_highest(sender, r, digest)
        self._given_out: dict[tuple[int, int], float] = {}  # when each stored row was last given out, to whom
        self._newly_heard: list[tuple[int, int, bytes]] = []
        self._notes: list[str] = []
        self._final = saved.at >= wire.rounds and saved.state is not None
        self._ask_at = 0.0
        self._ask_gap = timing.ask
        self._since = 0.0

    # ---- what the driver calls -------------------------------------------------------------------

    def start(self, now: float) -> Outgoing:
        """Say hello to every contact; nothing new is drawn before all have answered."""
        self._since = now
        self._ask_again_after(now)
        return self._go(self._positions(self.program.contacts, answer=True) + self._advance(now))

    def receive(self, now: float, sender: int, raw: bytes) -> Outgoing:
        """Take one frame that the transport received from ``sender`` (known from its certificate)."""
        self._alive()
        frame = self.wire.decode(raw)
        if frame.sender != sender:
            raise FrameError(
                f"The frame says sender {frame.sender}, but the certificate is of member {sender}."
            )
        if sender not in self.passed:
            raise FrameError(f"Member {sender} is not a neighbour in this run.")
        if frame.kind == ROW:
            return self._go(self._row(now, frame))
        position = self.wire.read_position(frame)
        if frame.kind == POSITION:
            return self._go(self._position(now, sender, position))
        if frame.kind == DROP:
            return self._go(self._drop(now, frame, position))
        assert frame.kind == REFUSAL
        return self._go(self._refused(sender, frame.round, position.digest))

    def tick(self, now: float) -> Outgoing:
        """Ask again for what is missing, and give up on a neighbour that stays away."""
        self._alive()
        if self.released or now < self._ask_at:
            return []
        waiting = self.waiting_for
        if waiting and not self.finished and now - self._since > self.timing.give_up:
            names = ", ".join(str(s) for s in waiting)
            self._fail(
                LostPeer(
                    f"Member {names} did not come back within {self.timing.give_up:g} seconds; the run "
                    f"ends at round {self.program.at} of {self.wire.rounds}, everything spent is recorded."
                )
            )
        self._ask_gap = min(2 * self._ask_gap, self.timing.ask_most)
        self._ask_at = now + self._ask_gap
        out = self._positions(waiting, answer=True)
        if not self.finished and not self.unanswered and now - self._since > self.timing.drop_after:
            out += self._propose(waiting)
        return out

    # ---- what the driver may look at -------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the result is durable."""
        return self._final

    @property
    def released(self) -> bool:
        """Whether nobody needs this peer any more: it and all its contacts have finished."""
        return self._final and all(at >= self.wire.rounds for at in self.passed.values())

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Contacts whose answer or row is missing."""
        if self._final:
            return tuple(s for s, at in sorted(self.passed.items()) if at < self.wire.rounds)
        if self.unanswered:
            return tuple(sorted(self.unanswered))
        return tuple(s for s in self.program.expects(self.program.at) if self._missing(s))

    @property
    def next_tick(self) -> float:
        """When `tick` next has something to do."""
        return self._ask_at

    def digest(self) -> str:
        """Hash of everything that decides the future of this peer."""
        state = hashlib.sha256()
        state.update(self.program.snapshot() if self.program.begun else b"not begun")
        waiting = {key: frame.digest for key, frame in self.inbox.items()}
        for part in (waiting, self.sent, self.heard, self.outbox, self.passed, self._highest):
            state.update(repr(sorted(part.items())).encode())  # type: ignore[attr-defined]
        state.update(repr((sorted(self.unanswered), self.durable_at, self.incidents, self._final)).encode())
        state.update(repr((sorted(self.dropped), sorted(self.proposed))).encode())
        state.update(repr(sorted(self.spending.counts.items())).encode())
        return state.hexdigest()

    # ---- frames ----------------------------------------------------------------------------------

    def _row(self, now: float, frame: Frame) -> Outgoing:
        r, sender = frame.round, frame.sender
        key = (r, sender)
        if key in self.dropped:
            return []
        held = self.heard.get(key) or (self.inbox[key].digest if key in self.inbox else None)
        if held is not None:
            if held == frame.digest:
                self.passed[sender] = max(self.passed[sender], r)
                return []
            note = f"second payload from member {sender} for round {r}"
            self._incident(note)
            return [(sender, self.wire.refusal(held, sender=self.program.node, round=r))]
        if r < self.program.at:
            raise FrameError(f"Round {r} is over; member {sender} was not expected in it.")
        if r > self.program.at + self.program.window:
            raise FrameError(f"Round {r} is too far ahead of round {self.program.at}.")
        if sender not in self.program.expects(r):
            raise FrameError(f"Member {sender} sends nothing to this peer in round {r}.")
        self.inbox[key] = frame
        self._note_highest(sender, r, frame.digest)
        self.passed[sender] = max(self.passed[sender], r)
        return self._advance(now)

    def _position(self, now: float, sender: int, position: Position) -> Outgoing:
        self._compare(sender, position.highest, position.digest)
        mine = [
            self.sent.get(r, NOTHING)
            for r in range(position.at)
            if sender in self.program.sends(r) and (r, sender) not in self.dropped
        ]
        open_question = any(s == sender and r < position.at for r, s in self.proposed)
        if _lineage(mine) != position.lineage and not open_question:
            self._compare(sender, position.at - 1, NOTHING)
        first = sender in self.unanswered
        asked = position.answer or first
        self.unanswered.discard(sender)
        self.passed[sender] = max(self.passed[sender], position.at)
        if first and not self.unanswered:
            self._ask_again_after(now)
        out = self._advance(now)
        if not asked:
            return out
        again: Outgoing = [
            (sender, frame)
            for r, frame in sorted(self.outbox.items())
            if r >= position.at and sender in self.program.sends(r) and self._due(now, r, sender)
        ]
        reply = self._positions([sender], answer=False) if position.answer else []
        return reply + again + out

    def _due(self, now: float, r: int, to: int) -> bool:
        """Whether a row may be sent once more: not while the last sending is probably still on its way."""
        due = now - self._given_out.get((r, to), -math.inf) >= self.timing.ask_row
        if due:
            self._given_out[r, to] = now
        return due

    def _drop(self, now: float, frame: Frame, word: Position) -> Outgoing:
        """Answer a neighbour that asks to leave an exchange out, or take its answer."""
        r, sender = frame.round, frame.sender
        key = (r, sender)
        if sender not in self.program.expects(r) or self.timing.drop_after == math.inf:
            raise FrameError(f"The exchange of round {r} cannot be left out in this run.")
        if not self.program.begun:
            return []  # it will be asked again
        if not word.answer:
            if key not in self.proposed:
                return []  # an answer to a question that is settled
            self._settle(key, word.digest != NOTHING)
            return self._advance(now)
        if key in self.dropped or r >= self.program.at:
            if key not in self.dropped:
                if r > self.program.at + self.program.window:
                    raise FrameError(f"Round {r} is too far ahead of round {self.program.at}.")
                self._settle(key, True)
            agreed = True
        else:
            agreed = False  # the other's row was used, so it must use ours
        answer = (sender, self.wire.drop(r, sender=self.program.node, ask=False, agreed=agreed))
        again = [(sender, self.outbox[r])] if not agreed and r in self.outbox else []
        return [answer, *again, *self._advance(now)]

    def _propose(self, late: Iterable[int]) -> Outgoing:
        """Ask late neighbours to leave this round's exchange out; it is durable before it is asked."""
        r = self.program.at
        fresh = [s for s in late if (r, s) not in self.proposed]
        for s in fresh:
            self.proposed.add((r, s))
            self._notes.append(f"ask {r} {s}")
        if fresh:
            self._commit_notes()
        return [(s, self.wire.drop(r, sender=self.program.node, ask=True, agreed=False)) for s in late]

    def _settle(self, key: tuple[int, int], left_out: bool) -> None:
        """Make the end of a question durable; only then may it decide anything."""
        self.proposed.discard(key)
        if left_out:
            self.dropped.add(key)
            self.inbox.pop(key, None)
        self._notes.append(f"{'drop' if left_out else 'keep'} {key[0]} {key[1]}")
        self._commit_notes()

    def _incident(self, note: str) -> None:
        """Keep what somebody did, on the disk before anybody learns that it was seen."""
        if note not in self.incidents:
            self.incidents.append(note)
            self._notes.append(note)
            self._commit_notes()

    def _commit_notes(self) -> None:
        """Commit notes alone; the state stays that of the last row: what came after it is not paid for."""
        try:
            self.store.commit(Entry(self.durable_at, (), b"", None, (), "; ".join(self._notes)))
        except SottovoceError as error:
            self._fail(error)
        self._notes.clear()

    def _recall(self, note: str) -> None:
        """Take a stored note up again."""
        for part in note.split("; "):
            word, *numbers = part.split(" ")
            if word not in ("ask", "drop", "keep"):
                self.incidents.append(part)
                continue
            key = (int(numbers[0]), int(numbers[1]))
            self.proposed.discard(key)
            if word == "ask":
                self.proposed.add(key)
            elif word == "drop":
                self.dropped.add(key)

    def _missing(self, s: int) -> bool:
        """Whether the present round still waits for ``s``: for its row, or for its answer to a question."""
        key = (self.program.at, s)
        return key not in self.dropped and (key not in self.inbox or key in self.proposed)

    def _refused(self, sender: int, r: int, held: bytes) -> Outgoing:
        self._compare(sender, r, held)
        return []

    def _compare(self, sender: int, highest: int, digest: bytes) -> None:
        """Stop if a contact has seen a row of this peer that its ledger does not know."""
        if highest >= 0 and self.sent.get(highest) != digest:
            self._fail(
                LedgerError(
                    f"Member {sender} holds another row of this peer for round {highest} than the ledger: "
                    "the state folder was copied or is an older one; go on from the newest folder only."
                )
            )

    # ---- progress --------------------------------------------------------------------------------

    def _advance(self, now: float) -> Outgoing:
        out: Outgoing = []
        if self.unanswered or self._final:
            return out
        try:
            if not self.program.begun:
                self.program.begin()
                out += self._publish(now)
            while not self._final:
                r = self.program.at
                wanted = self.program.expects(r) if r < self.wire.rounds else ()
                if any(self._missing(s) for s in wanted):
                    break
                taken = {s: self.inbox.pop((r, s)) for s in wanted if (r, s) not in self.dropped}
                for s, frame in taken.items():
                    self.heard[r, s] = frame.digest
                    self._newly_heard.append((r, s, frame.digest))
                rows = {s: self.wire.values(frame) for s, frame in taken.items()}
                for s in wanted:
                    if s not in rows:  # left out at both ends: its weight goes to this node's own row
                        rows[s] = self.program.message()
                self.program.receive(rows)
                out += self._publish(now)
                self._since = now
                self._ask_again_after(now)
        except SottovoceError as error:
            self._fail(error)
        except Exception as error:  # the program may be half way through a round: go no further with it
            self.failed = PeerError(
                f"This peer stopped at round {self.durable_at} of {self.wire.rounds} by a mistake in its "
                f"computation ({type(error).__name__}); everything spent is recorded, nothing more is sent."
            )
            raise self.failed from error
        return out

    def _publish(self, now: float) -> Outgoing:
        """Make the next row durable with its price, then give it out; in the last round, the result."""
        r = self.program.at
        finished = r >= self.wire.rounds
        to = () if finished else self.program.sends(r)
        if not to and not finished:
            return []
        releases = self.program.take_releases()
        self.spending.require(*releases)
        frame = b"" if finished else self.wire.row(self.program.message(), sender=self.program.node, round=r)
        forget = () if finished else self._forgettable()
        self.store.commit(
            Entry(
                r,
                releases,
                frame,
                self.program.snapshot(),
                tuple(self._newly_heard),
                "; ".join(self._notes),
                forget,
            )
        )
        # from here on the row and its price are durable
        self.releases += releases
        self.spending.add(*releases)
        self._newly_heard.clear()
        self._notes.clear()
        self.durable_at = r
        for old in forget:
            del self.outbox[old]
            for s in self.program.sends(old):
                self._given_out.pop((old, s), None)
        if finished:
            self._final = True
            return self._positions(self.program.contacts, answer=False)
        self.outbox[r] = frame
        self.sent[r] = frame[-32:]
        self._given_out.update({(r, s): now for s in to})
        return [(s, frame) for s in to]

    def _forgettable(self) -> tuple[int, ...]:
        """Rounds whose row every destination has durably used."""
        return tuple(r for r in self.outbox if all(self.passed[s] > r for s in self.program.sends(r)))

    def _positions(self, to: Iterable[int], *, answer: bool) -> Outgoing:
        out = []
        for s in to:
            highest, digest = self._highest.get(s, (-1, NOTHING))
            theirs = [self.heard[r, s] for r in range(self.durable_at) if (r, s) in self.heard]
            position = Position(self.durable_at, highest, digest, _lineage(theirs), answer)
            out.append((s, self.wire.position(position, sender=self.program.node)))
        return out

    def _note_highest(self, sender: int, r: int, digest: bytes) -> None:
        if r > self._highest.get(sender, (-1, NOTHING))[0]:
            self._highest[sender] = (r, digest)

    def _ask_again_after(self, now: float) -> None:
        self._ask_gap = self.timing.ask if self.unanswered else self.timing.ask_row
        self._ask_at = now + self._ask_gap

    # ---- ends ------------------------------------------------------------------------------------

    def _go(self, out: Outgoing) -> Outgoing:
        self._alive()
        return out

    def _alive(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _fail(self, error: SottovoceError) -> None:
        self.failed = error
        raise error


def _lineage(digests: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()
