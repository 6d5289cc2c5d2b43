"""The state machine of one peer, without IO: bytes and ticks come in, bytes to send come out.

`Core._publish` keeps the order on which the guarantees rest: releases and the bytes to be sent are committed
to the store, which returns only when they are durable; only then are the bytes returned for sending. So:

- a resend sends stored bytes; nothing is encoded or noised twice for a round;
- after a crash the peer continues from its last commit; what was drawn later never left the machine;
- a row is used once, and a second, different row for the same round and sender is refused;
- a neighbor that is late past the deadline is waited for, or, if the agreement says so and both ends agree,
  the exchange of that round is dropped at both ends and each keeps its own row for it;
- after a start nothing new is drawn before every contact has said what it has seen of this peer, and every
  member which signed head of this ledger it holds (`sottovoce.peers.witnesses`): an older ledger is noticed;
- an accusation counts only with the signature of the accused.

Clock, network, disk and randomness belong to the caller: `sottovoce.peers.runtime` uses sockets and SQLite,
the simulator in `verification` seeded faults.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from sottovoce.accounting.release import Release, Spending
from sottovoce.errors import FrameError, LedgerError, LostPeer, PeerError, SottovoceError
from sottovoce.ledger.store import DIGEST, Entry, StoredRun, frame_digest
from sottovoce.peers.wire_format import (
    DROP,
    HEAD,
    NOTHING,
    POSITION,
    REFUSAL,
    ROW,
    UNSIGNED,
    WITNESS,
    Frame,
    FrameCodec,
    Position,
)
from sottovoce.peers.witnesses import Outgoing, Witnesses


class Program(Protocol):
    """The computation of one node, round by round; see `sottovoce.peers.node_program`."""

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

    def progress(self) -> tuple[int, bytes]:
        """Steps done, and the chain over what came of them; zero where members need not have the same."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class Store(Protocol):
    """Where entries become durable. `commit` returns only when they are, or raises `LedgerError`."""

    def load(self) -> StoredRun: ...

    def commit(self, entry: Entry) -> None: ...

    def newest(self) -> tuple[int, bytes]:
        """Return how many rows there are, and the hash of the last."""

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows."""


class Timing(NamedTuple):
    """Seconds: how soon to ask again (at the start; for a missing row), at most how late, when to give up.

    A row that is asked for is sent again, so asking for rows too eagerly costs traffic, never correctness.
    """

    ask: float = 0.1
    ask_row: float = 1.0
    ask_most: float = 4.0
    give_up: float = 600.0
    linger: float = 60.0  # a finished peer stays so long for neighbors that still need its last rows
    drop_after: float = math.inf  # only for gossip, where an exchange can be left out at both ends
    witness: int = 0  # rows after which all members must hold the head of this ledger; 0: nobody is asked


class Core:
    """The state machine of one peer.

    Parameters
    ----------
    program : the node's computation.
    codec : the frames of this run.
    store : where commits become durable.
    spending : the budget; a release that does not fit ends the run before anything is sent.
    timing : when to ask again and when to give up.
    fresh : returns 32 new random bytes, for the question after a start.
    bound : the largest number that clip and noise allow in a row of others; None where nothing bounds it.

    Guarantees
    ----------
    Every row returned for sending was committed by `Store.commit` before, with all releases that went
    into it. At most one row exists per round. `receive` either raises `FrameError` and leaves the state as
    it was, or takes the frame. After any other error the core is finished: it returns nothing more to send.
    """

    def __init__(
        self,
        program: Program,
        codec: FrameCodec,
        store: Store,
        spending: Spending | None = None,
        timing: Timing = Timing(),  # noqa: B008 - immutable
        fresh: Callable[[], bytes] = lambda: os.urandom(32),
        bound: float | None = None,
    ) -> None:
        self.bound = bound
        self.program, self.codec, self.store, self.timing = program, codec, store, timing
        self.spending = spending if spending is not None else Spending()
        saved = store.load()
        self.sent, self.heard, self.outbox = dict(saved.sent), dict(saved.heard), dict(saved.outbox)
        self.releases = list(saved.releases)  # everything charged so far, in order
        self.spending.add(*self.releases)
        if saved.state is not None:
            program.restore(saved.state)
        self.durable_at = saved.at
        self.incidents: list[str] = []
        self.proofs: list[str] = []  # of each incident that has one: two digests, each with its signature
        self.dropped: set[tuple[int, int]] = set()  # exchanges left out at both ends: (round, member)
        self.proposed: set[tuple[int, int]] = set()  # asked for and not answered yet
        for note in saved.notes:
            self._recall(note)
        self.failed: SottovoceError | None = None
        self.inbox: dict[tuple[int, int], Frame] = {}
        self.passed: dict[int, int] = dict.fromkeys(program.contacts, -1)  # durable round of each contact
        self.unanswered: set[int] = set(program.contacts)
        self._highest: dict[int, tuple[int, bytes]] = {}
        self.start_witnessing(saved, fresh())
        for (r, sender), proof in sorted(self.heard.items()):
            self._note_highest(sender, r, proof)
        self._given_out: dict[tuple[int, int], float] = {}  # when each stored row was last given out, to whom
        self._newly_heard: list[tuple[int, int, bytes]] = []
        self._notes: list[str] = []
        self._final = saved.at >= codec.rounds and saved.state is not None
        self._ask_at = 0.0
        self._ask_gap = timing.ask
        self._since = 0.0

    def start_witnessing(self, saved: StoredRun, nonce: bytes) -> None:
        """Begin with the heads of others in the store, and without a receipt for this ledger's own."""
        self.witnesses = Witnesses(
            self,
            saved,
            node=self.program.node,
            contacts=self.program.contacts,
            members=self.codec.members,
            every=self.timing.witness,
            resend=self.timing.ask_row,
            nonce=nonce,
            newest=self.store.newest(),
        )
        for (r, sender), proof in sorted(self.heard.items()):
            self.witnesses.heard(sender, r, proof)

    # ---- what the driver calls -------------------------------------------------------------------

    def start(self, now: float) -> Outgoing:
        """Say hello to every contact; nothing new is drawn before all have answered."""
        self._since = now
        self._ask_again_after(now)
        questions = self._positions(self.program.contacts, answer=True)
        questions += self.witnesses.announce(self.witnesses.nonce)
        return self._go(questions + self._advance(now))

    def receive(self, now: float, sender: int, raw: bytes) -> Outgoing:
        """Take one frame that the transport received from ``sender`` (known from its certificate)."""
        self._alive()
        frame = self.codec.decode(raw)
        if frame.kind in (HEAD, WITNESS):  # signed by whom it is of, whoever hands it on
            if sender not in self.passed:
                raise FrameError(f"Member {sender} is not a neighbor in this run.")
            return self._go(self._witness_frame(now, sender, frame, raw))
        if frame.sender != sender:
            raise FrameError(
                f"The frame says sender {frame.sender}, but the certificate is of member {sender}."
            )
        if sender not in self.passed:
            raise FrameError(f"Member {sender} is not a neighbor in this run.")
        if frame.kind == ROW:
            return self._go(self._row(now, frame))
        position = self.codec.read_position(frame)
        if frame.kind == POSITION:
            return self._go(self._position(now, sender, position))
        if frame.kind == DROP:
            return self._go(self._drop(now, frame, position))
        assert frame.kind == REFUSAL
        self._compare(sender, frame.round, position.digest, position.signature)
        return self._go([])

    def tick(self, now: float) -> Outgoing:
        """Ask again for what is missing, and give up on a neighbor that stays away."""
        self._alive()
        receipts = self.witnesses.receipts_due(now >= self.witnesses.receipts_by)
        if self.released or now < self._ask_at:
            return receipts
        waiting = self.waiting_for
        if waiting and not self.finished and now - self._since > self.timing.give_up:
            names = ", ".join(str(s) for s in waiting)
            self.fail(
                LostPeer(
                    f"Member {names} did not come back within {self.timing.give_up:g} seconds; the run "
                    f"ends at round {self.program.at} of {self.codec.rounds}, everything spent is recorded."
                )
            )
        self._ask_gap = min(2 * self._ask_gap, self.timing.ask_most)
        self._ask_at = now + self._ask_gap
        out = receipts + self._positions([s for s in waiting if s in self.passed], answer=True)
        out += self.witnesses.ask_again()
        if not self.finished and not self.unanswered and now - self._since > self.timing.drop_after:
            out += self._propose(waiting)
        return self._go(out)

    # ---- what the driver may look at -------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the result is durable."""
        return self._final

    @property
    def released(self) -> bool:
        """Whether nobody needs this peer any more: it and all its contacts have finished."""
        return (
            self._final
            and all(at >= self.codec.rounds for at in self.passed.values())
            and not (self.timing.witness and self.unfinished)
        )

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Members that have not shown a signed head of a finished ledger."""
        return self.witnesses.unfinished(self.codec.rounds)

    @property
    def compared(self) -> tuple[int, ...]:
        """Members that have signed the same chain after the last step."""
        return self.witnesses.agreeing(self.program.progress())

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Contacts whose answer or row is missing."""
        if self._final:
            late = {s for s, at in self.passed.items() if at < self.codec.rounds}
            return tuple(sorted(late | set(self.unfinished if self.timing.witness else ())))
        if self.unanswered or self.witnesses.unanswered:
            return tuple(sorted(self.unanswered | self.witnesses.unanswered))
        if self.witnesses.blocked:
            return self.witnesses.missing
        return tuple(s for s in self.program.expects(self.program.at) if self._missing(s))

    @property
    def next_tick(self) -> float:
        """When `tick` next has something to do."""
        return min(self._ask_at, self.witnesses.receipts_by)

    def digest(self) -> str:
        """Hash of everything that decides the future of this peer."""
        state = hashlib.sha256()
        state.update(self.program.snapshot() if self.program.begun else b"not begun")
        waiting = {key: frame.digest for key, frame in self.inbox.items()}
        for part in (waiting, self.sent, self.heard, self.outbox, self.passed, self._highest):
            state.update(repr(sorted(part.items())).encode())
        state.update(repr((sorted(self.unanswered), self.durable_at, self.incidents, self._final)).encode())
        state.update(repr((sorted(self.dropped), sorted(self.proposed))).encode())
        state.update(repr((self.witnesses.state(), self.proofs)).encode())
        state.update(repr(sorted(self.spending.counts.items())).encode())
        return state.hexdigest()

    # ---- frames ----------------------------------------------------------------------------------

    def _row(self, now: float, frame: Frame) -> Outgoing:
        r, sender = frame.round, frame.sender
        key = (r, sender)
        if key in self.dropped:
            return []
        held = self.heard.get(key) or (self.inbox[key].proof if key in self.inbox else None)
        if held is not None:
            if held[:DIGEST] == frame.digest:
                self.passed[sender] = max(self.passed[sender], r)
                return []
            note = f"second payload from member {sender} for round {r}"
            self.incident(note, held + frame.proof)
            return [(sender, self.codec.refusal(held, sender=self.program.node, round=r))]
        if r < self.program.at:
            raise FrameError(f"Round {r} is over; member {sender} was not expected in it.")
        if r > self.program.at + self.program.window:
            raise FrameError(f"Round {r} is too far ahead of round {self.program.at}.")
        if sender not in self.program.expects(r):
            raise FrameError(f"Member {sender} sends nothing to this peer in round {r}.")
        if self.bound is not None and np.abs(self.codec.values(frame)).max(initial=0.0) > self.bound:
            note = f"row of member {sender} for round {r} beyond what clip and noise allow"
            self.incident(note, frame.proof)
            raise FrameError(f"A {note} ({self.bound:.4g}) was refused.")
        self.inbox[key] = frame
        self._note_highest(sender, r, frame.proof)
        self.passed[sender] = max(self.passed[sender], r)
        return self._advance(now)

    def _position(self, now: float, sender: int, position: Position) -> Outgoing:
        if not self._compare(sender, position.highest, position.digest, position.signature):
            return []
        mine = [
            self.sent.get(r, NOTHING)
            for r in range(position.at)
            if sender in self.program.sends(r) and (r, sender) not in self.dropped
        ]
        open_question = any(s == sender and r < position.at for r, s in self.proposed)
        if _lineage(mine) != position.lineage and not open_question:
            # the newest row, with its signature, fits: so this is nothing that the other could show
            self.incident(f"member {sender} says that it heard other rows of this peer")
            return []
        first = sender in self.unanswered
        wants_answer = position.answer or first
        self.unanswered.discard(sender)
        self.passed[sender] = max(self.passed[sender], position.at)
        if first and not self.unanswered:
            self._ask_again_after(now)
        out = self._advance(now)
        if not wants_answer:
            return out
        again: Outgoing = [
            (sender, frame)
            for r, frame in sorted(self.outbox.items())
            if r >= position.at and sender in self.program.sends(r) and self._due(now, r, sender)
        ]
        if self.witnesses.withheld or self.witnesses.unanswered:
            again = []
        reply = self._positions([sender], answer=False) if position.answer else []
        return reply + again + out

    def _due(self, now: float, r: int, to: int) -> bool:
        """Whether a row may be sent once more: not while the last sending is probably still on its way."""
        due = now - self._given_out.get((r, to), -math.inf) >= self.timing.ask_row
        if due:
            self._given_out[r, to] = now
        return due

    def _drop(self, now: float, frame: Frame, word: Position) -> Outgoing:
        """Answer a neighbor that asks to leave an exchange out, or take its answer."""
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
        answer = (sender, self.codec.drop(r, sender=self.program.node, ask=False, agreed=agreed))
        again = [(sender, self.outbox[r])] if not agreed and r in self.outbox else []
        return [answer, *again, *self._advance(now)]

    def _propose(self, late: Iterable[int]) -> Outgoing:
        """Ask late neighbors to leave this round's exchange out; it is durable before it is asked."""
        r = self.program.at
        fresh = [s for s in late if (r, s) not in self.proposed]
        for s in fresh:
            self.proposed.add((r, s))
            self._notes.append(f"ask {r} {s}")
        if fresh:
            self.commit_notes()
        return [(s, self.codec.drop(r, sender=self.program.node, ask=True, agreed=False)) for s in late]

    def _settle(self, key: tuple[int, int], left_out: bool) -> None:
        """Make the end of a question durable; only then may it decide anything."""
        self.proposed.discard(key)
        if left_out:
            self.dropped.add(key)
            self.inbox.pop(key, None)
        self._notes.append(f"{'drop' if left_out else 'keep'} {key[0]} {key[1]}")
        self.commit_notes()

    def incident(self, note: str, proof: bytes = b"") -> None:
        """Keep what somebody did, on the disk before anybody learns that it was seen."""
        if note not in self.incidents:
            self.incidents.append(note)
            self._notes.append(note)
            if proof:
                self.proofs.append(f"{note}: {proof.hex()}")
                self._notes.append(f"proof {self.proofs[-1]}")
            self.commit_notes()

    def commit_notes(self) -> None:
        """Commit notes alone; the state stays that of the last row: what came after it is not paid for."""
        try:
            self._commit(Entry(self.durable_at, (), b"", None, (), "; ".join(self._notes)))
        except SottovoceError as error:
            self.fail(error)
        self._notes.clear()

    def _recall(self, note: str) -> None:
        """Take a stored note up again."""
        for part in note.split("; "):
            word, *numbers = part.split(" ")
            if word == "proof":
                self.proofs.append(part.removeprefix("proof "))
                continue
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

    def _compare(self, sender: int, highest: int, digest: bytes, signature: bytes) -> bool:
        """Stop if a contact shows a row of this peer that the ledger does not know; note mere words."""
        if highest < 0 or self.sent.get(highest) == digest:
            return True
        if self.codec.signed_row(self.program.node, highest, digest, signature):
            self.fail(
                LedgerError(
                    f"Member {sender} holds another row of this peer for round {highest} than the ledger: "
                    "the state folder was copied or is an older one; go on from the newest folder only."
                )
            )
        self.incident(f"unfounded claim of member {sender} about round {highest}")
        return False

    # ---- witnesses -------------------------------------------------------------------------------

    @property
    def position(self) -> tuple[int, int, bytes]:
        """The durable round, the steps done, and the chain over their results."""
        return self.durable_at, *(self.program.progress() if self.program.begun else (0, NOTHING))

    @property
    def expects_commit(self) -> bool:
        """Whether a row will be committed soon, so that the heads of others can be committed with it."""
        waits = bool(self.unanswered or self.witnesses.unanswered) or self.witnesses.blocked
        return self.program.begun and not (self._final or waits or self.timing.witness == 1)

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows."""
        return self.store.row_hash(count)

    def _witness_frame(self, now: float, via: int, frame: Frame, raw: bytes) -> Outgoing:
        answers, out = self.witnesses.receive(now, via, frame, raw)
        if answers is None:
            return out
        if answers and not self.witnesses.unanswered and not self.unanswered:
            self._ask_again_after(now)
        return out + self.witnesses.released() + self._advance(now)

    # ---- progress --------------------------------------------------------------------------------

    def _advance(self, now: float) -> Outgoing:
        out: Outgoing = []
        if self.unanswered or self.witnesses.unanswered or self._final:
            return out
        try:
            if not self.program.begun:
                self.program.begin()
                out += self._publish(now)
            while not self._final and not self.witnesses.blocked:
                r = self.program.at
                wanted = self.program.expects(r) if r < self.codec.rounds else ()
                if any(self._missing(s) for s in wanted):
                    break
                taken = {s: self.inbox.pop((r, s)) for s in wanted if (r, s) not in self.dropped}
                for s, frame in taken.items():
                    self.heard[r, s] = frame.proof
                    self.witnesses.heard(s, r, frame.proof)
                    self._newly_heard.append((r, s, frame.proof))
                rows = {s: self.codec.values(frame) for s, frame in taken.items()}
                for s in wanted:
                    if s not in rows:  # left out at both ends: its weight goes to this node's own row
                        rows[s] = self.program.message()
                self.program.receive(rows)
                out += self._publish(now)
                self._since = now
                self._ask_again_after(now)
        except SottovoceError as error:
            self.fail(error)
        except Exception as error:  # the program may be half way through a round: go no further with it
            self.failed = PeerError(
                f"This peer stopped at round {self.durable_at} of {self.codec.rounds} by a mistake in its "
                f"computation ({type(error).__name__}); everything spent is recorded, nothing more is sent."
            )
            raise self.failed from error
        return out

    def _publish(self, now: float) -> Outgoing:
        """Make the next row durable with its price, then give it out; in the last round, the result."""
        r = self.program.at
        finished = r >= self.codec.rounds
        to = () if finished else self.program.sends(r)
        if not to and not finished:
            return []
        releases = self.program.take_releases()
        self.spending.require(*releases)
        frame = b"" if finished else self.codec.row(self.program.message(), sender=self.program.node, round=r)
        forget = () if finished else self._forgettable()
        self._commit(
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
        self.witnesses.step_done(*self.program.progress())
        if finished:
            self._final = True
            return self._positions(self.program.contacts, answer=False) + self.witnesses.announce()
        self.outbox[r] = frame
        self.sent[r] = frame_digest(frame)
        self._given_out.update({(r, s): now for s in to})
        return self.witnesses.row_sent([(s, frame) for s in to])

    def _commit(self, entry: Entry) -> None:
        """Commit, with the heads of others that came since the last time."""
        self.store.commit(entry._replace(heads=self.witnesses.not_durable))
        self.witnesses.committed(self.store.newest())

    def _forgettable(self) -> tuple[int, ...]:
        """Rounds whose row every destination has durably used."""
        return tuple(r for r in self.outbox if all(self.passed[s] > r for s in self.program.sends(r)))

    def _positions(self, to: Iterable[int], *, answer: bool) -> Outgoing:
        out = []
        for s in to:
            highest, proof = self._highest.get(s, (-1, NOTHING + UNSIGNED))
            theirs = [self.heard[r, s][:DIGEST] for r in range(self.durable_at) if (r, s) in self.heard]
            position = Position(
                self.durable_at, highest, proof[:DIGEST], proof[DIGEST:], _lineage(theirs), answer
            )
            out.append((s, self.codec.position(position, sender=self.program.node)))
        return out

    def _note_highest(self, sender: int, r: int, proof: bytes) -> None:
        if r > self._highest.get(sender, (-1, NOTHING))[0]:
            self._highest[sender] = (r, proof)

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

    def fail(self, error: SottovoceError) -> None:
        self.failed = error
        raise error


def _lineage(digests: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()
