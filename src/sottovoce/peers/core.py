"""The state machine of one peer, without IO: bytes and ticks come in, bytes to send come out.

`Core._publish` keeps the order on which the guarantees rest: releases and the bytes to be sent are committed
to the store, which returns only when they are durable; only then are the bytes returned for sending. So:

- a resend sends stored bytes; nothing is encoded or noised twice for a round;
- after a crash the peer continues from its last commit; what was drawn later never left the machine;
- a row is used once, and a second, different row for the same round and sender is refused;
- a neighbor that is late past the deadline is waited for, or, if the agreement says so and both ends agree,
  the exchange of that round is dropped at both ends and each uses its own row for it;
- after a start nothing new is drawn before every contact has answered what it has seen of this peer, and
  every member has signed a receipt for the new head of this ledger (`sottovoce.peers.witnesses`): an older
  ledger is noticed;
- an accusation counts only with the signature of the accused.

Who sent a row is known from the certificate of its connection; its signature is evidence for others. The
digest that is signed covers the digest of the sender's row before, so the signature of one row stands for a
series of rows, and at most `_UNVERIFIED` rows of a member wait for it. It is verified

- of the first row, of one that does not continue the series, of one that contradicts another or is beyond the
  bound, and of the next one after a start;
- before this peer signs which rows it received, and before its result stands.

Rows without a true signature are left out of receipts, and the run ends with an incident before another
series of that member, or the result, is used. It could have signed the few rows that were used until then
with the same content, so it gains nothing by it. Two series that it tells two others end in two signed
digests for one round.

Clock, network, disk and randomness belong to the caller, `sottovoce.peers.runtime`.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sottovoce.accounting.release import Release, Spending
from sottovoce.errors import FrameError, LedgerError, LostPeer, PeerError, SottovoceError
from sottovoce.ledger.store import DIGEST, Entry, StoredRun, frame_digest
from sottovoce.peers.node_program import StepProgram
from sottovoce.peers.wire_format import (
    DROP,
    NEWS,
    NOTHING,
    POSITION,
    ROW,
    SUMMARY,
    UNSIGNED,
    Frame,
    FrameCodec,
    Position,
)
from sottovoce.peers.witnesses import Outgoing, Witnesses

_KEPT = 256  # rows of each neighbor, and to each, whose digests are remembered one by one
_FIRST_INTERVAL = 0.2  # seconds that a row takes, as long as nothing is known
_UNVERIFIED = 16  # rows of one member that wait for a verified signature
_INCIDENTS = 16  # of one member that are recorded; each is a permanent row, and one member can cause many


class Store(Protocol):
    """Where entries become durable. `commit` returns only when they are, or raises `LedgerError`."""

    def load(self) -> StoredRun: ...

    def commit(self, entry: Entry) -> None: ...

    def newest(self) -> tuple[int, bytes]:
        """Return how many rows there are, and the hash of the last."""

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows."""


class Timing(NamedTuple):
    """Seconds. A question without an answer is asked again, each time after twice the interval before.

    A row that is asked for is sent again, so asking for rows too early costs traffic, never correctness.
    Where rows take longer than `retry_row`, the first question waits three times as long as the last rows,
    and after a long wait the interval is a quarter of it.
    """

    retry_start: float = 0.1  # the first interval of questions after a start
    retry_row: float = 1.0  # the first interval for a missing row
    retry_longest: float = 4.0
    give_up: float = 600.0
    linger: float = 60.0  # a finished peer stays so long for neighbors that still need its last rows
    drop_after: float = math.inf  # only for gossip, where an exchange can be dropped at both ends
    witness: int = 0  # rows after which all members must hold the head of this ledger; 0: nobody is asked


class RowHistory:
    """Digests and signatures of the rows of one member: recent ones by round, older ones hashed.

    The hash of all rows before any recent round costs the same after ten rounds and after a million.
    """

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.first = 0  # rows of earlier rounds are known as one hash only
        self.complete = 0  # a row came in every round before this one
        self._end = 0  # no row came in this round or a later one
        self.newest = -1, b""  # round and proof of the row that came last; it may not have been used yet
        self.unverified = 0  # rows up to the newest that no verified signature stands for
        self._all, self._settled = hashlib.sha256(), hashlib.sha256()

    def add(self, r: int, proof: bytes) -> None:
        """Note the row of a round, later than those before."""
        self.rows[r] = proof
        self.complete += r == self.complete
        self._end = r + 1
        self._all.update(proof[:DIGEST])

    def lineage(self, at: int) -> bytes:
        """Return the hash of all rows before round ``at``, which is not before `first`."""
        if at >= self._end:
            return self._all.digest()
        total = self._settled.copy()
        total.update(b"".join(proof[:DIGEST] for r, proof in self.rows.items() if r < at))
        return total.digest()

    def settle(self, before: int) -> None:
        """Keep the newest rows and those from round ``before`` on; hash the others."""
        while len(self.rows) > _KEPT and (r := next(iter(self.rows))) < before:
            self._settled.update(self.rows.pop(r)[:DIGEST])
            self.first = r + 1


class Core:
    """The state machine of one peer: what it sends, repeats, waits for and refuses, round by round.

    A release that does not fit ``spending`` ends the run before anything is sent. ``fresh`` returns 32 new
    random bytes, for the question after a start; ``bound`` is the largest number that clip and noise allow in
    a row of others, None if nothing bounds it.

    Guarantees
    ----------
    Every row returned for sending was committed by `Store.commit` before, with all releases that went
    into it. At most one row exists per round. `receive` either raises `FrameError` and leaves the state as
    it was, or takes the frame. After any other error the core is finished: it returns nothing more to send.
    """

    def __init__(
        self,
        program: StepProgram,
        codec: FrameCodec,
        store: Store,
        spending: Spending | None = None,
        timing: Timing = Timing(),  # noqa: B008 - immutable
        fresh: Callable[[], bytes] = lambda: os.urandom(32),
        bound: float | None = None,
    ) -> None:
        self.program, self.codec, self.store, self.timing = program, codec, store, timing
        self.bound, self.spending = bound, spending if spending is not None else Spending()
        saved = store.load()
        self.sent, self.outbox = dict(saved.sent), dict(saved.outbox)
        self.releases = list(saved.releases)  # everything charged so far, in order
        self.draws = 0  # how many draws of noise they are
        self._count(self.releases)
        if saved.state is not None:
            frame = saved.outbox.get(saved.at)
            program.restore(saved.state, None if frame is None else codec.row_values(frame))
        self.durable_at = saved.at
        self._durable_step = program.progress()[0] if saved.state is not None else -1
        self.finished = saved.at >= codec.rounds and saved.state is not None  # the result is durable
        self.incidents: list[str] = []
        self.proofs: list[str] = []  # of each incident that has one: two digests, each with its signature
        self.dropped: set[tuple[int, int]] = set()  # exchanges dropped at both ends: (round, member)
        self.proposed: set[tuple[int, int]] = set()  # asked for and not answered yet
        for note in saved.notes:
            self._recall(note)
        self.heard_of = {s: RowHistory() for s in program.contacts}
        self._oldest_sent = 0  # the digests of earlier rows were forgotten
        self.passed: dict[int, int] = dict.fromkeys(program.contacts, -1)  # durable round of each contact
        for (r, s), proof in sorted(saved.heard.items()):
            self.heard_of[s].add(r, proof)
            self.heard_of[s].newest, self.heard_of[s].unverified = (r, proof), _UNVERIFIED
        self.failed: SottovoceError | None = None
        self.inbox: dict[tuple[int, int], Frame] = {}
        self.unanswered: set[int] = set(program.contacts)
        self._forget_history()
        self._last_sent: dict[tuple[int, int], float] = {}  # when each stored row last went to whom
        self._newly_heard: list[tuple[int, int, bytes]] = []
        self._notes: list[str] = []
        self._intervals = deque([_FIRST_INTERVAL] * 2, maxlen=2)  # between the last rows of this peer
        self._row_at = math.nan
        self._ask_at = self._since = 0.0
        self._ask_gap = timing.retry_start
        self.witnesses = Witnesses(self, saved, fresh())

    # ---- what the driver calls -------------------------------------------------------------------

    def start(self, now: float) -> Outgoing:
        """Ask every contact for its position; nothing new is drawn before all have answered."""
        self._alive()
        self._since = now
        self._schedule_question(now)
        questions = self._positions(self.program.contacts, answer=True)
        self.witnesses.announce()
        questions += self.witnesses.summaries(self.program.contacts, answer=True)
        return questions + self.witnesses.exchange(now, with_row=True) + self._advance(now)

    def receive(self, now: float, sender: int, raw: bytes) -> Outgoing:
        """Take one frame that the transport received from ``sender`` (known from its certificate)."""
        self._alive()
        if sender not in self.passed:
            raise FrameError(f"Member {sender} is not a neighbor in this run.")
        if self.codec.kind_of(raw) == ROW:
            self._require_useful(sender, self.codec.peek_round(raw))
        frame = self.codec.decode(raw)
        if frame.sender != sender:
            raise FrameError(
                f"The frame says sender {frame.sender}, but the certificate is of member {sender}."
            )
        if frame.kind == ROW:
            return self._row(now, frame)
        if frame.kind == NEWS:
            return self._news(now, sender, frame)
        if frame.kind == SUMMARY:
            return self.witnesses.receive_summary(now, sender, frame)
        if frame.kind == POSITION:
            return self._position(now, sender, self.codec.read_position(frame))
        if frame.kind == DROP:
            return self._drop(now, frame, self.codec.read_position(frame))
        raise FrameError("Heads and receipts come inside news only.")

    def tick(self, now: float) -> Outgoing:
        """Ask again for what is missing, and give up on a neighbor that stays away."""
        self._alive()
        out = self.witnesses.exchange(now)
        if self.all_done or now < self._ask_at:
            return out
        waiting, waited = self.waiting_for, now - self._since
        if waiting and not self.finished and waited > self.timing.give_up:
            members = ", ".join(map(str, waiting))
            self.fail(LostPeer(f"Member {members} did not come back within {self.timing.give_up:g} seconds."))
        longest = max(self.timing.retry_longest, waited / 4)  # few questions, however long a frame travels
        self._ask_gap = max(self._first_gap, min(2 * self._ask_gap, longest))
        self._ask_at = now + self._ask_gap
        out += self._positions([s for s in waiting if s in self.passed], answer=True)
        if waiting:
            out += self.witnesses.summaries(self.program.contacts, answer=True)
        if not self.finished and not self.unanswered and waited > self.timing.drop_after:
            out += self._propose(waiting)
        return out

    # ---- what the driver may look at -------------------------------------------------------------

    @property
    def all_done(self) -> bool:
        """Whether nobody needs this peer any more: all have finished, and it has no news for a contact."""
        return self.finished and not self.waiting_for and not self.witnesses.has_news

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Members whose answer, receipt or row is missing."""
        if self.finished:
            late = {s for s, at in self.passed.items() if at < self.codec.rounds}
            return tuple(sorted(late.union(self.witnesses.unfinished)))
        if self._starting:
            return tuple(sorted(self.unanswered | self.witnesses.unanswered))
        if self.witnesses.blocked:
            return self.witnesses.missing
        return tuple(s for s in self.program.expects(self.program.at) if self._missing(s))

    @property
    def next_tick(self) -> float:
        """When `tick` next has something to do."""
        return min(self._ask_at, self.witnesses.exchange_at)

    @property
    def row_time(self) -> float:
        """Seconds between this peer's last rows; a single interruption does not count."""
        return min(self._intervals)

    def digest(self) -> str:
        """Hash of everything that decides the future of this peer."""
        inbox = {key: frame.digest for key, frame in self.inbox.items()}
        heard = {s: (list(h.rows.items()), h.newest, h.unverified) for s, h in self.heard_of.items()}
        tables = inbox, self.sent, heard, self.outbox, self.passed, self.spending.counts
        sets = self.unanswered, self.dropped, self.proposed
        rest = self.durable_at, self.incidents, self.finished, self.witnesses.state(), self.proofs
        state = [sorted(table.items()) for table in tables], [sorted(each) for each in sets], rest
        program = self.program.snapshot() if self.program.begun else b"not begun"
        return hashlib.sha256(program + repr(state).encode()).hexdigest()

    # ---- frames ----------------------------------------------------------------------------------

    def _require_useful(self, sender: int, r: int) -> None:
        """Refuse a row of a round that is over or far ahead, before its signature costs time."""
        if r < self.program.at and r not in self.heard_of[sender].rows and (r, sender) not in self.dropped:
            raise FrameError(f"Round {r} is over; a row of member {sender} for it is not expected.")
        self._require_near(r)

    def _row(self, now: float, frame: Frame) -> Outgoing:
        r, sender = frame.round, frame.sender
        if (r, sender) in self.dropped:
            return []
        ahead = self.inbox.get((r, sender))
        held = self.heard_of[sender].rows.get(r) if ahead is None else ahead.proof
        if held is not None:
            if held[:DIGEST] == frame.digest:
                self.passed[sender] = max(self.passed[sender], r)
                return []
            self.codec.require_signature(frame)
            proof = held + frame.proof if self.codec.signed_row(sender, r, held) else b""
            self.incident(sender, f"second payload from member {sender} for round {r}", proof)
            # shows a copy of the sender what the other one sent
            position = Position(self.durable_at, r, held[:DIGEST], held[DIGEST:], False)
            return [(sender, self.codec.position(position, sender=self.program.node))]
        if sender not in self.program.expects(r):
            raise FrameError(f"Member {sender} sends nothing to this peer in round {r}.")
        if self.bound is not None and frame.largest > self.bound:
            self.codec.require_signature(frame)
            note = f"row of member {sender} for round {r} beyond what clip and noise allow"
            self.incident(sender, note, frame.proof)
            raise FrameError(f"A {note} ({self.bound:.4g}) was refused.")
        self._require_evidence(frame)
        self.inbox[r, sender] = frame
        self.passed[sender] = max(self.passed[sender], r)
        return self._advance(now)

    def _require_evidence(self, frame: Frame) -> None:
        """Raise unless a row continues the series of its sender, or is signed and so is the series before."""
        history = self.heard_of[frame.sender]
        last, proof = history.newest
        continues = frame.round > last and frame.previous == proof[:DIGEST]
        waiting = history.unverified + 1
        if not continues or waiting > _UNVERIFIED:
            self.codec.require_signature(frame)
            waiting = 0
        if not continues and not self.verified(frame.sender):
            raise FrameError(f"The last rows of member {frame.sender} are not signed.")
        if frame.round > last:
            history.newest, history.unverified = (frame.round, frame.proof), waiting

    def verified(self, sender: int) -> bool:
        """Return whether a verified signature stands for every row that came from a member."""
        history = self.heard_of[sender]
        if history.unverified and self.codec.signed_row(sender, *history.newest):
            history.unverified = 0
        return not history.unverified

    def _require_near(self, r: int) -> None:
        if r > self.program.at + self.program.window:
            raise FrameError(f"Round {r} is too far ahead of round {self.program.at}.")

    def _position(self, now: float, sender: int, position: Position) -> Outgoing:
        if not self._compare(sender, position.highest, position.digest, position.signature):
            return []
        first = sender in self.unanswered
        self.unanswered.discard(sender)
        self.passed[sender] = max(self.passed[sender], position.at)
        if first and not self.unanswered:
            self._schedule_question(now)
        out = self._advance(now)
        if not (position.answer or first):
            return out
        again: Outgoing = []
        if not (self.witnesses.withheld or self.witnesses.unanswered):
            again = [
                (sender, frame)
                for r, frame in sorted(self.outbox.items())
                if r >= position.at and sender in self.program.sends(r) and self._due(now, r, sender)
            ]
        reply = self._positions([sender], answer=False) if position.answer else []
        return reply + again + out

    def _due(self, now: float, r: int, to: int) -> bool:
        """Whether a row may be sent once more: not while the last sending is probably still on its way."""
        way = max(self.timing.retry_row, self.row_time)
        due = now - self._last_sent.get((r, to), -math.inf) >= way
        if due:
            self._last_sent[r, to] = now
        return due

    def _compare(self, sender: int, highest: int, digest: bytes, signature: bytes) -> bool:
        """Stop if a contact proves a row of this peer that the ledger does not know; note mere claims."""
        if highest < self._oldest_sent or self.sent.get(highest) == digest:
            return True
        if self.codec.signed_row(self.program.node, highest, digest + signature):
            problem = (
                f"Member {sender} holds another row of this peer for round {highest} than the ledger: the "
                "state folder was copied or is an older one; go on from the newest folder only."
            )
            self.fail(LedgerError(problem))
        self.incident(sender, f"unfounded claim of member {sender} about round {highest}")
        return False

    # ---- exchanges that both ends drop -----------------------------------------------------------

    def _drop(self, now: float, frame: Frame, message: Position) -> Outgoing:
        """Answer a neighbor that asks to drop an exchange, or take its answer."""
        r, sender = frame.round, frame.sender
        key = (r, sender)
        if sender not in self.program.expects(r) or self.timing.drop_after == math.inf:
            raise FrameError(f"The exchange of round {r} cannot be dropped in this run.")
        if not self.program.begun:
            return []  # it will be asked again
        if not message.answer:
            if key not in self.proposed:
                return []  # this question has its answer
            self._record_answer(key, message.digest != NOTHING)
            return self._advance(now)
        # in an earlier round the other's row was used, so it must use ours
        agreed = key in self.dropped or r >= self.program.at
        if agreed and key not in self.dropped:
            self._require_near(r)
            self._record_answer(key, True)
        answer = (sender, self.codec.drop(r, sender=self.program.node, ask=False, agreed=agreed))
        again = [(sender, self.outbox[r])] if not agreed and r in self.outbox else []
        return [answer, *again, *self._advance(now)]

    def _propose(self, late: Iterable[int]) -> Outgoing:
        """Ask late neighbors to drop this round's exchange; the question is durable before it is asked."""
        r = self.program.at
        fresh = [s for s in late if (r, s) not in self.proposed]
        self.proposed.update((r, s) for s in fresh)
        self._notes += [f"ask {r} {s}" for s in fresh]
        if fresh:
            self.commit_notes()
        return [(s, self.codec.drop(r, sender=self.program.node, ask=True, agreed=False)) for s in late]

    def _record_answer(self, key: tuple[int, int], dropped: bool) -> None:
        """Make the answer to a question durable before it decides anything."""
        self.proposed.discard(key)
        if dropped:
            self.dropped.add(key)
            self.inbox.pop(key, None)
        self._notes.append(f"{'drop' if dropped else 'keep'} {key[0]} {key[1]}")
        self.commit_notes()

    def _missing(self, s: int) -> bool:
        """Whether the present round still waits for ``s``: for its row, or for its answer to a question."""
        key = (self.program.at, s)
        return key not in self.dropped and (key not in self.inbox or key in self.proposed)

    # ---- notes -----------------------------------------------------------------------------------

    def incident(self, member: int, note: str, proof: bytes = b"", *, fatal: bool = False) -> None:
        """Record what a member did, on the disk before anybody learns that it was seen.

        Of one member only the first few are recorded, and one that ends the run; ``member`` is -1 where
        nobody knows whose fault it is.
        """
        known = sum(f"member {member} " in f"{each} " for each in self.incidents)
        if note not in self.incidents and (fatal or known < _INCIDENTS):
            self.incidents.append(note)
            self._notes.append(note)
            if proof:
                self.proofs.append(f"{note}: {proof.hex()}")
                self._notes.append(f"proof {self.proofs[-1]}")
            self.commit_notes()

    def commit_notes(self) -> None:
        """Commit notes and heads alone; the state stays that of the last row."""
        try:
            self._commit(Entry(self.durable_at, (), b"", None, (), "; ".join(self._notes)))
        except SottovoceError as error:
            self.fail(error)
        self._notes.clear()

    def _recall(self, note: str) -> None:
        """Restore the state that a stored note describes."""
        for part in note.split("; "):
            word, *numbers = part.split(" ")
            if word == "proof":
                self.proofs.append(part.removeprefix("proof "))
            elif word not in ("ask", "drop", "keep"):
                self.incidents.append(part)
            else:
                key = (int(numbers[0]), int(numbers[1]))
                self.proposed.discard(key)
                if word != "keep":
                    (self.proposed if word == "ask" else self.dropped).add(key)

    # ---- witnesses -------------------------------------------------------------------------------

    @property
    def position(self) -> tuple[int, int, bytes]:
        """The durable round, the steps done, and the chain over their results."""
        return self.durable_at, *(self.program.progress() if self.program.begun else (0, NOTHING))

    @property
    def expects_commit(self) -> bool:
        """Whether a row will be committed soon, so that the heads of others can be committed with it."""
        waits = self._starting or self.witnesses.blocked
        return self.program.begun and not (self.finished or waits or self.timing.witness == 1)

    @property
    def _starting(self) -> bool:
        """Whether members have not answered the questions after the start."""
        return bool(self.unanswered or self.witnesses.unanswered)

    def _news(self, now: float, via: int, frame: Frame) -> Outgoing:
        if self.witnesses.receive_news(now, via, frame) and not self._starting:
            self._schedule_question(now)
        return self.witnesses.take_sendable() + self._advance(now) + self.witnesses.exchange(now)

    # ---- progress --------------------------------------------------------------------------------

    def _advance(self, now: float) -> Outgoing:
        out: Outgoing = []
        if self._starting or self.finished:
            return out
        try:
            if not self.program.begun:
                self.program.begin()
                out += self._publish(now)
            while not self.finished and not self.witnesses.blocked:
                r = self.program.at
                expected = self.program.expects(r) if r < self.codec.rounds else ()
                if any(self._missing(s) for s in expected):
                    break
                dropped = [s for s in expected if (r, s) in self.dropped]
                rows = {}
                for s in expected:
                    if s not in dropped:
                        frame = self.inbox.pop((r, s))
                        rows[s] = self.codec.values(frame)
                        self.heard_of[s].add(r, frame.proof)
                        self._newly_heard.append((r, s, frame.proof))
                # the weight of a neighbor dropped at both ends goes to this node's own row
                try:
                    self.program.receive(rows | {s: self.program.message() for s in dropped})
                finally:  # what is noticed about a sum is on the disk before the run goes on, or stops
                    for warning in self.program.take_warnings():
                        self.incident(-1, warning, fatal=True)
                out += self._publish(now)
                self._since = now
                self._schedule_question(now)
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
        """Make the next row durable with its releases, then return it; in the last round, the result."""
        r = self.program.at
        last = r >= self.codec.rounds
        to = () if last else self.program.sends(r)
        if not to and not last:
            return []
        if last:
            self._require_all_verified()
        releases = self.program.take_releases()
        if releases:
            self.spending.require(*releases)
        row = None if last else self.program.message()
        frame, node = b"", self.program.node
        if row is not None:
            frame = self.codec.row(row, sender=node, round=r, previous=self._previous(to))
        forget = () if last else self._forgettable()
        heard, notes = tuple(self._newly_heard), "; ".join(self._notes)
        state = self.program.snapshot(row if self.codec.is_exact(row) else None)
        # noise, batches and masks are drawn, and their keys replaced, at the beginning of a step only
        step, chain = self.program.progress()
        same_keys, self._durable_step = step == self._durable_step, step
        self._commit(Entry(r, releases, frame, state, heard, notes, forget, same_keys=same_keys))
        # from here on the row and its releases are durable
        if releases:
            self.releases += releases
            self._count(releases)
        self._newly_heard.clear()
        self._notes.clear()
        self.durable_at = r
        for old in forget:
            del self.outbox[old]
            for s in self.program.sends(old):
                self._last_sent.pop((old, s), None)
        self.witnesses.step_done(step, chain)
        if last:
            self.finished = True
            self.witnesses.announce()
            last_news = self.witnesses.exchange(now, with_row=True)
            return self._positions(self.program.contacts, answer=False) + last_news
        self.outbox[r] = frame
        self.sent[r] = frame_digest(frame)
        self._next_row = r + 1
        self._forget_history()
        self._last_sent.update({(r, s): now for s in to})
        if not math.isnan(self._row_at):
            self._intervals.append(now - self._row_at)
        self._row_at = now
        return self.witnesses.row_sent(now, [(s, frame) for s in to])

    def _previous(self, to: tuple[int, ...]) -> bytes:
        """Return the digest of the newest row to the same members; others must not learn of theirs."""
        rounds = (r for r in reversed(self.outbox) if self.program.sends(r) == to)
        return next((frame_digest(self.outbox[r]) for r in rounds), NOTHING)

    def _require_all_verified(self) -> None:
        """Stop before the result stands if the last rows of a member are not signed."""
        for s in self.heard_of:
            if not self.verified(s):
                self.incident(s, f"last rows of member {s} without its signature", fatal=True)
                raise PeerError(
                    f"The last rows of member {s} are not signed by it, so nothing shows what it sent; "
                    "everything spent is recorded. Continue without it by `peer membership`."
                )

    def _count(self, releases: Sequence[Release]) -> None:
        self.spending.add(*releases)
        self.draws += sum(release.draws for release in releases)

    def _commit(self, entry: Entry) -> None:
        """Commit, with the heads of others that came since the last time."""
        if self.witnesses.not_durable:
            entry = entry._replace(heads=tuple(sorted(self.witnesses.not_durable.items())))
        self.store.commit(entry)
        self.witnesses.committed()

    def _forgettable(self) -> tuple[int, ...]:
        """Rounds whose row every destination has durably used."""
        return tuple(r for r in self.outbox if all(self.passed[s] > r for s in self.program.sends(r)))

    def _forget_history(self) -> None:
        """Forget single digests of old rows; a row that is not in the outbox was confirmed by all."""
        for history in self.heard_of.values():
            history.settle(self.durable_at)
        while len(self.sent) > _KEPT and (r := next(iter(self.sent))) not in self.outbox:
            del self.sent[r]
            self._oldest_sent = r + 1

    def _positions(self, to: Iterable[int], *, answer: bool) -> Outgoing:
        out, at = [], self.durable_at
        for s in to:
            ahead = {r: frame.proof for (r, sender), frame in self.inbox.items() if sender == s}
            newest = (ahead or self.heard_of[s].rows).items()
            highest, proof = max(newest, default=(-1, NOTHING + UNSIGNED))
            position = Position(at, highest, proof[:DIGEST], proof[DIGEST:], answer)
            out.append((s, self.codec.position(position, sender=self.program.node)))
        return out

    def _schedule_question(self, now: float) -> None:
        """Ask for what is missing after the first interval."""
        self._ask_gap = self.timing.retry_start if self.unanswered else self._first_gap
        self._ask_at = now + self._ask_gap

    @property
    def _first_gap(self) -> float:
        """The first interval for what is missing: longer than rows take, so that none is asked for early."""
        return max(self.timing.retry_row, min(3 * self.row_time, self.timing.give_up / 8))

    # ---- ends ------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.failed is not None:
            raise self.failed

    def fail(self, error: SottovoceError) -> None:
        """End the run with an error; every later call raises it again."""
        self.failed = error
        raise error
