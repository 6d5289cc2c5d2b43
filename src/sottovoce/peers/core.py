"""One peer's side of a run, without IO: bytes and ticks come in, bytes to send come out.

The order that carries the promises is in `Core._publish`: the spend and the very bytes to be sent are
committed to the store, which returns only when they are durable, and only then handed out for sending.
Everything else follows from it:

- a resend sends stored bytes; nothing is ever encoded or noised twice for a round;
- after a crash the peer goes on from its last commit; whatever was drawn later never left the machine;
- a row is consumed once, and a second, different row for the same round and sender is refused;
- a neighbor that is late past the deadline is either waited for, or, if the agreement says so and both
  ends agree, the exchange of that one round is left out at both ends and each keeps its own row for it;
- before anything new is drawn after a start, every contact has said what it has seen of this peer, and every
  member, by way of the others, which signed head of its ledger it holds: a ledger that is older than that
  (restored, cloned, truncated) is noticed and nothing is sent. Nobody can make up such a head, and nobody can
  answer for another: who lies can only keep silent, and then nothing is drawn.
- an accusation is a digest with the accused's own signature; one without is noted, and changes nothing.

The clock, the network, the disk and the randomness are the caller's: `sottovoce.peers.runtime` drives this
class with sockets and SQLite, the simulator in `verification` with seeded faults.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
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
    HeadReceipt,
    LedgerHead,
    Position,
)

__all__ = ["Core", "Program", "Store", "Timing"]


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
    fresh : 32 bytes that were never said before, for the question after a start.
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
        self._lineages: dict[int, list[bytes]] = {}
        for (r, sender), proof in sorted(self.heard.items()):
            self._note_highest(sender, r, proof)
            self._lengthen(sender, r, proof)
        self._witnessing(saved, fresh)
        self._given_out: dict[tuple[int, int], float] = {}  # when each stored row was last given out, to whom
        self._newly_heard: list[tuple[int, int, bytes]] = []
        self._notes: list[str] = []
        self._final = saved.at >= codec.rounds and saved.state is not None
        self._ask_at = 0.0
        self._ask_gap = timing.ask
        self._since = 0.0

    # ---- what the driver calls -------------------------------------------------------------------

    def start(self, now: float) -> Outgoing:
        """Say hello to every contact; nothing new is drawn before all have answered."""
        self._since = now
        self._ask_again_after(now)
        asked = self._positions(self.program.contacts, answer=True) + self._announce(self._nonce)
        return self._go(asked + self._advance(now))

    def receive(self, now: float, sender: int, raw: bytes) -> Outgoing:
        """Take one frame that the transport received from ``sender`` (known from its certificate)."""
        self._alive()
        frame = self.codec.decode(raw)
        if frame.kind in (HEAD, WITNESS):  # signed by whom it is of, whoever hands it on
            if sender not in self.passed:
                raise FrameError(f"Member {sender} is not a neighbor in this run.")
            return self._go(self._said(now, sender, frame, raw))
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
        acks = self._acknowledge(now >= self._ack_by)
        if self.released or now < self._ask_at:
            return acks
        waiting = self.waiting_for
        if waiting and not self.finished and now - self._since > self.timing.give_up:
            names = ", ".join(str(s) for s in waiting)
            self._fail(
                LostPeer(
                    f"Member {names} did not come back within {self.timing.give_up:g} seconds; the run "
                    f"ends at round {self.program.at} of {self.codec.rounds}, everything spent is recorded."
                )
            )
        self._ask_gap = min(2 * self._ask_gap, self.timing.ask_most)
        self._ask_at = now + self._ask_gap
        out = acks + self._positions([s for s in waiting if s in self.passed], answer=True)
        if self.unwitnessed or min(self.witnessed.values(), default=0) < self._announced:
            out += self._announce(self._nonce if self.unwitnessed else NOTHING)
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
        """Members who have not shown a signed head of a finished ledger."""
        return tuple(v for v in self.others if v not in self._heads or self._heads[v].at < self.codec.rounds)

    @property
    def compared(self) -> tuple[int, ...]:
        """Members who have signed the same chain after the last step."""
        done = self.program.progress()
        known = {v: (head.step, head.chain) for v, head in self._heads.items()}
        return tuple(v for v in self.others if done[1] != NOTHING and known.get(v) == done)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Contacts whose answer or row is missing."""
        if self._final:
            late = {s for s, at in self.passed.items() if at < self.codec.rounds}
            return tuple(sorted(late | set(self.unfinished if self.timing.witness else ())))
        if self.unanswered or self.unwitnessed:
            return tuple(sorted(self.unanswered | self.unwitnessed))
        if self._held():
            return tuple(v for v, count in sorted(self.witnessed.items()) if count < self._recent[0])
        return tuple(s for s in self.program.expects(self.program.at) if self._missing(s))

    @property
    def next_tick(self) -> float:
        """When `tick` next has something to do."""
        return min(self._ask_at, self._ack_by)

    def digest(self) -> str:
        """Hash of everything that decides the future of this peer."""
        state = hashlib.sha256()
        state.update(self.program.snapshot() if self.program.begun else b"not begun")
        waiting = {key: frame.digest for key, frame in self.inbox.items()}
        for part in (waiting, self.sent, self.heard, self.outbox, self.passed, self._highest):
            state.update(repr(sorted(part.items())).encode())
        state.update(repr((sorted(self.unanswered), self.durable_at, self.incidents, self._final)).encode())
        state.update(repr((sorted(self.dropped), sorted(self.proposed))).encode())
        state.update(repr((sorted(self.heads.items()), sorted(self.witnessed.items()))).encode())
        state.update(repr((sorted(self.unwitnessed), self._acks, self.proofs)).encode())
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
            self._incident(note, held + frame.proof)
            return [(sender, self.codec.refusal(held, sender=self.program.node, round=r))]
        if r < self.program.at:
            raise FrameError(f"Round {r} is over; member {sender} was not expected in it.")
        if r > self.program.at + self.program.window:
            raise FrameError(f"Round {r} is too far ahead of round {self.program.at}.")
        if sender not in self.program.expects(r):
            raise FrameError(f"Member {sender} sends nothing to this peer in round {r}.")
        if self.bound is not None and np.abs(self.codec.values(frame)).max(initial=0.0) > self.bound:
            note = f"row of member {sender} for round {r} beyond what clip and noise allow"
            self._incident(note, frame.proof)
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
            self._incident(f"member {sender} says that it heard other rows of this peer")
            return []
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
        if self._withheld or self.unwitnessed:
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
            self._commit_notes()
        return [(s, self.codec.drop(r, sender=self.program.node, ask=True, agreed=False)) for s in late]

    def _settle(self, key: tuple[int, int], left_out: bool) -> None:
        """Make the end of a question durable; only then may it decide anything."""
        self.proposed.discard(key)
        if left_out:
            self.dropped.add(key)
            self.inbox.pop(key, None)
        self._notes.append(f"{'drop' if left_out else 'keep'} {key[0]} {key[1]}")
        self._commit_notes()

    def _incident(self, note: str, proof: bytes = b"") -> None:
        """Keep what somebody did, on the disk before anybody learns that it was seen."""
        if note not in self.incidents:
            self.incidents.append(note)
            self._notes.append(note)
            if proof:
                self.proofs.append(f"{note}: {proof.hex()}")
                self._notes.append(f"proof {self.proofs[-1]}")
            self._commit_notes()

    def _commit_notes(self) -> None:
        """Commit notes alone; the state stays that of the last row: what came after it is not paid for."""
        try:
            self._commit(Entry(self.durable_at, (), b"", None, (), "; ".join(self._notes)))
        except SottovoceError as error:
            self._fail(error)
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
            self._fail(
                LedgerError(
                    f"Member {sender} holds another row of this peer for round {highest} than the ledger: "
                    "the state folder was copied or is an older one; go on from the newest folder only."
                )
            )
        self._incident(f"unfounded claim of member {sender} about round {highest}")
        return False

    # ---- witnesses -------------------------------------------------------------------------------

    def _witnessing(self, saved: StoredRun, fresh: Callable[[], bytes]) -> None:
        """Take up what is held of the others' ledgers, and ask what they hold of this one."""
        asks = bool(self.timing.witness) and self.codec.members > 1
        self.others = tuple(v for v in range(self.codec.members) if v != self.program.node) if asks else ()
        self.count, self._newest = self.store.newest()
        self.heads, self._heads = dict(saved.heads), {}
        for v, raw in saved.heads.items():
            self._heads[v] = self.codec.read_head(self.codec.decode(raw))
        self.witnessed = dict.fromkeys(self.others, -1)  # rows of this ledger whose head each one holds
        self.unwitnessed = set(self.others)
        self._nonce = fresh() if asks else NOTHING
        self._announced = -1  # rows under the head that was last told to all
        self._since_told = 0
        self._recent: deque[int] = deque(maxlen=max(1, 2 * self.timing.witness - 1))
        self._dirty: dict[int, bytes] = {}  # heads that are not on the disk yet
        self._acks: list[tuple[int, bytes, int]] = []
        self._ack_by = math.inf
        self._handed_on: dict[bytes, float] = {}
        self._withheld: Outgoing = []  # with a head after every row: rows whose head not all hold yet
        self._chains: dict[int, bytes] = {}

    def _held(self) -> bool:
        """Whether too many rows are unwitnessed for another to be drawn."""
        full = len(self._recent) == self._recent.maxlen
        return full and min(self.witnessed.values(), default=math.inf) < self._recent[0]

    def _announce(self, nonce: bytes) -> Outgoing:
        """Tell everybody the head of this ledger; with a nonce, and ask what they hold of it."""
        if not self.others:
            return []
        step, chain = self.program.progress() if self.program.begun else (0, NOTHING)
        head = LedgerHead(self.count, self.durable_at, step, self._newest, chain, nonce)
        self._announced, self._since_told = self.count, 0
        raw = self.codec.head(head, sender=self.program.node)
        return [(s, raw) for s in self.program.contacts]

    def _said(self, now: float, via: int, frame: Frame, raw: bytes) -> Outgoing:
        """Take a head, or what was witnessed, and hand it on to the others once."""
        if not self.others:
            return []
        if frame.sender == self.program.node:
            return []  # it has come round
        out: Outgoing = []
        if frame.kind == HEAD:
            head = self.codec.read_head(frame)
            self._hold(frame.sender, head, bytes(raw))
            entry = (frame.sender, head.nonce, via)
            if entry not in self._acks:
                self._acks.append(entry)
            self._ack_by = min(self._ack_by, now + 0.05)
            out += self._acknowledge(head.nonce != NOTHING or self._idle())
        else:
            said = self.codec.read_witnessed(frame)
            if said.about == self.program.node:
                return self._witness(now, frame.sender, said)
            if said.held:
                self._hold(said.about, self.codec.read_head(self.codec.decode(said.held)), said.held)
            self._same_rows(frame.sender, said)
        last = self._handed_on.get(frame.digest)
        if last is None or now - last >= self.timing.ask_row:
            if len(self._handed_on) > 4096:
                self._handed_on.clear()
            self._handed_on[frame.digest] = now
            out += [(s, bytes(raw)) for s in self.program.contacts if s not in (via, frame.sender)]
        return out

    def _idle(self) -> bool:
        """Whether no row is about to be committed that a head could be committed with."""
        waits = bool(self.unanswered or self.unwitnessed) or self._held()
        return self._final or waits or self.timing.witness == 1 or not self.program.begun

    def _hold(self, v: int, head: LedgerHead, raw: bytes) -> None:
        """Keep the newest head of a member; two different ones of one length show that it was copied."""
        known = self._heads.get(v)
        if known is not None and head.rows == known.rows and head.head != known.head:
            held = self.codec.decode(self.heads[v])
            self._incident(
                f"two ledgers of member {v} with {head.rows} rows", held.proof + self.codec.decode(raw).proof
            )
        if known is None or (head.rows, head.at) > (known.rows, known.at):
            self.heads[v], self._heads[v], self._dirty[v] = raw, head, raw
        self._same_chain(v, head)

    def _same_chain(self, v: int, head: LedgerHead) -> None:
        mine = self._chains.get(head.step)
        if mine is not None and NOTHING not in (mine, head.chain) and mine != head.chain:
            self._incident(
                f"member {v} has another model after step {head.step}", self.codec.decode(self.heads[v]).proof
            )
            self._fail(
                PeerError(
                    f"Member {v} has signed another model after step {head.step} than this peer has: "
                    "somebody between them sent different sums; compare ledgers with `peer compare`, "
                    "everything spent is recorded."
                )
            )

    def _same_rows(self, w: int, said: HeadReceipt) -> None:
        """Compare what another heard of a member with what this peer heard of it, where both heard all."""
        mine = self._lineages.get(said.about, [])
        if 0 < said.at == said.rows <= len(mine) and mine[said.at - 1] != said.lineage:
            self._incident(f"member {said.about} sent other rows to member {w} before round {said.at}")
            self._fail(
                PeerError(
                    f"Member {w} has signed that member {said.about} sent it other rows than this peer got "
                    f"before round {said.at}; compare ledgers with `peer compare`, everything spent is "
                    "recorded."
                )
            )

    def _acknowledge(self, hurry: bool) -> Outgoing:
        """Answer for the heads that are on the disk; in a hurry they are put there."""
        if not self._acks:
            self._ack_by = math.inf
            return []
        if self._dirty:
            if not hurry:
                return []
            self._commit_notes()
        out = []
        for v, nonce, via in self._acks:
            rounds = self._lineages.get(v, [])
            lineage = rounds[-1] if rounds else NOTHING
            said = HeadReceipt(v, len(rounds), len(rounds), lineage, nonce, self.heads.get(v, b""))
            out.append((via, self.codec.witnessed(said, sender=self.program.node)))
        self._acks.clear()
        self._ack_by = math.inf
        return out

    def _witness(self, now: float, w: int, said: HeadReceipt) -> Outgoing:
        """Take what a member holds of this ledger."""
        if said.held:
            head = self.codec.read_head(self.codec.decode(said.held))
            if head.rows > self.count or self.store.row_hash(head.rows) != head.head:
                self._fail(
                    LedgerError(
                        f"Member {w} holds a head of this peer's ledger with {head.rows} rows, signed by "
                        f"this peer, that the ledger of {self.count} rows does not contain: the state folder "
                        "was copied or is an older one; go on from the newest folder only."
                    )
                )
            self.witnessed[w] = max(self.witnessed[w], head.rows)
        if said.nonce == self._nonce:
            self.unwitnessed.discard(w)
            if not self.unwitnessed and not self.unanswered:
                self._ask_again_after(now)
        rows: Outgoing = []
        if self._withheld and not self._held():
            rows, self._withheld = self._withheld, []
        return rows + self._advance(now)

    # ---- progress --------------------------------------------------------------------------------

    def _advance(self, now: float) -> Outgoing:
        out: Outgoing = []
        if self.unanswered or self.unwitnessed or self._final:
            return out
        try:
            if not self.program.begun:
                self.program.begin()
                out += self._publish(now)
            while not self._final and not self._held():
                r = self.program.at
                wanted = self.program.expects(r) if r < self.codec.rounds else ()
                if any(self._missing(s) for s in wanted):
                    break
                taken = {s: self.inbox.pop((r, s)) for s in wanted if (r, s) not in self.dropped}
                for s, frame in taken.items():
                    self.heard[r, s] = frame.proof
                    self._lengthen(s, r, frame.proof)
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
            self._fail(error)
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
        self._chains[self.program.progress()[0]] = self.program.progress()[1]
        if len(self._chains) > 256:
            del self._chains[min(self._chains)]
        for v, head in self._heads.items():
            self._same_chain(v, head)
        if finished:
            self._final = True
            return self._positions(self.program.contacts, answer=False) + self._announce(NOTHING)
        self.outbox[r] = frame
        self.sent[r] = frame_digest(frame)
        self._given_out.update({(r, s): now for s in to})
        self._recent.append(self.count)
        self._since_told += 1
        told = self._announce(NOTHING) if self._since_told >= self.timing.witness else []
        rows = [(s, frame) for s in to]
        if self.timing.witness == 1 and self.others:
            self._withheld, rows = rows, []  # what all must know of first leaves when all know of it
        return rows + told + self._acknowledge(False)

    def _commit(self, entry: Entry) -> None:
        """Commit, with the heads of others that came since the last time."""
        self.store.commit(entry._replace(heads=tuple(sorted(self._dirty.items()))))
        self._dirty.clear()
        self.count, self._newest = self.store.newest()

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

    def _lengthen(self, sender: int, r: int, proof: bytes) -> None:
        """Lengthen the chained hash of a member's rows, as long as one came in every round."""
        rows = self._lineages.setdefault(sender, [])
        if len(rows) == r:
            rows.append(hashlib.sha256((rows[-1] if rows else NOTHING) + proof[:DIGEST]).digest())

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
