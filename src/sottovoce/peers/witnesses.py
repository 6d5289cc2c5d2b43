"""What members hold of each other's ledgers: a replicated map from member to newest signed head and receipts.

A ledger that was restored from a backup, copied or truncated is older than the head that others hold of it.
Nobody can forge such a head and nobody can answer for another member, so a member that lies can only stay
silent, and then nothing is drawn.

Every peer keeps, of every member, the newest head of its ledger and the newest receipts that it signed for
the heads of the others. A newer one replaces an older one and is passed on once to every contact that has not
shown it, together with what else is new: with the next row, or after a quarter of the time a row takes. What
is not news is not passed on, so the number of frames per row does not depend on how long a frame travels. A
peer that waits also sends its contacts a summary of what it holds, and both ends send what the other lacks;
this replaces lost frames.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sottovoce.errors import LedgerError, PeerError
from sottovoce.ledger.store import StoredRun, frame_digest
from sottovoce.peers.wire_format import (
    HEAD,
    NOTHING,
    RECEIPTS,
    Frame,
    Key,
    LedgerHead,
    Receipt,
    Receipts,
    Version,
)

if TYPE_CHECKING:
    from sottovoce.peers.core import Core

Outgoing = list[tuple[int, bytes]]
# New heads that one member may have signed: at once, a second, and per announcement that the rounds allow. An
# honest member stays far below; beyond it a head is neither stored nor passed on.
_HEADS, _HEADS_PER_SECOND, _HEADS_PER_ANNOUNCEMENT = 32.0, 1.0, 4.0
_RECEIPTS_PER_HEAD = 4  # of one member, and for each other member
_ISSUED = 256  # own heads whose receipts are recognized


class _Signed(NamedTuple):
    """A head or receipts of a member, as they are passed on."""

    version: Version
    raw: bytes


class Witnesses:
    """The heads and receipts this peer holds, and who holds the head of its own ledger.

    ``core.timing.witness`` is the number of rows after which all members must hold the head of this ledger; 0
    asks nobody. Every head of this process carries the 32 new bytes of ``nonce``, so a receipt for one of
    them was signed after the start.
    """

    def __init__(self, core: Core, stored: StoredRun, nonce: bytes) -> None:
        self.core, self.codec, self.every = core, core.codec, core.timing.witness
        self.node, self.contacts, members = core.program.node, core.program.contacts, core.codec.members
        asks = self.every > 0 and members > 1
        self.others = tuple(v for v in range(members) if v != self.node) if asks else ()
        self.nonce = nonce
        self.confirmed = dict.fromkeys(self.others, -1)  # rows of this ledger whose head each member holds
        self._by_all: float = -1 if asks else math.inf  # the least of them
        self.unanswered = set(self.others)
        self.announced = -1  # rows under the head that was last announced
        self.withheld: Outgoing = []  # with a head after every row: rows whose head not all hold yet
        self.heads: dict[int, LedgerHead] = {}  # of each other member, the newest
        self.not_durable: dict[int, bytes] = {}  # heads of others to be written with the next commit
        self.refused: list[tuple[int, str]] = []  # whose heads or receipts were too many, for the log
        self._map: dict[Key, _Signed] = {}  # the newest of each kind and member, this one included
        self._behind: dict[int, set[Key]] = {s: set() for s in self.contacts}  # what each contact lacks
        self._durable: dict[int, bytes] = {}  # digests of the heads that are on the disk
        self._issued: dict[bytes, int] = {}  # own heads of this process: digest -> rows
        self._sequence = 0
        self._newer = -1  # the member whose newest head goes with the receipts, as a proof
        self._patience = core.timing.retry_row / 4
        # when new receipts must be signed; those for stored heads may have been lost before the start
        self._receipts_by = -math.inf if stored.heads else math.inf
        self._quiet_until = -math.inf  # before that, news leaves only with a row
        self._rows_since_announced = 0
        self._recent: deque[int] = deque(maxlen=max(1, 2 * self.every - 1))
        self._chains: dict[int, bytes] = {}
        self._allowances: dict[Key, tuple[float, float, int]] = {}
        for v, raw in stored.heads.items():
            self.heads[v] = self.codec.read_head(self.codec.decode(raw))
            self._map[HEAD, v] = _Signed(self.codec.peek_version(raw)[1], raw)
            self._durable[v] = frame_digest(raw)

    # ---- state -----------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether too many rows are unconfirmed for another to be drawn."""
        return len(self._recent) == self._recent.maxlen and self._by_all < self._recent[0]

    @property
    def missing(self) -> tuple[int, ...]:
        """Members whose receipt is needed before another row is drawn."""
        return tuple(v for v, count in sorted(self.confirmed.items()) if count < self._recent[0])

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Members that have not shown the signed head of a finished ledger."""
        return tuple(v for v in self.others if v not in self.heads or self.heads[v].at < self.codec.rounds)

    @property
    def has_news(self) -> bool:
        """Whether some contact lacks something that this peer holds."""
        return any(self._behind.values())

    @property
    def exchange_at(self) -> float:
        """When `exchange` next has something to send."""
        if self.has_news or (self._receipts_by < math.inf and not self.core.expects_commit):
            return self._quiet_until
        return max(self._receipts_by, self._quiet_until)

    def agreeing(self, progress: tuple[int, bytes]) -> tuple[int, ...]:
        """Return the members that have signed the same chain after the last step."""
        chains = {v: (head.step, head.chain) for v, head in self.heads.items()}
        return tuple(v for v in self.others if progress[1] != NOTHING and chains.get(v) == progress)

    def state(self) -> tuple[object, ...]:
        """Return everything that decides the future of this object."""
        behind = [(s, sorted(keys)) for s, keys in sorted(self._behind.items())]
        return sorted(self._map.items()), sorted(self.confirmed.items()), sorted(self.unanswered), behind

    # ---- this peer's ledger ----------------------------------------------------------------------

    def announce(self) -> None:
        """Sign the head of this ledger; it is news for all contacts."""
        if not self.others:
            return
        rows, newest = self.core.store.newest()
        self._sequence += 1
        at, step, chain = self.core.position
        head = LedgerHead(rows, self._sequence, self.nonce, at, step, newest, chain)
        self.announced, self._rows_since_announced = rows, 0
        raw = self.codec.head(head, sender=self.node)
        self._issued[frame_digest(raw)] = rows
        if len(self._issued) > _ISSUED:
            del self._issued[next(iter(self._issued))]
        self._put(raw)

    def row_sent(self, now: float, rows: Outgoing) -> Outgoing:
        """Return what leaves after a new row was committed: the row, and news."""
        self._recent.append(self.core.store.newest()[0])
        self._rows_since_announced += 1
        if self._rows_since_announced >= self.every:
            self.announce()
        if self.every == 1 and self.others:
            self.withheld, rows = rows, []  # it leaves when all members hold its head
        return rows + self.exchange(now, with_row=True)

    def take_sendable(self) -> Outgoing:
        """Return withheld rows once all members hold their head."""
        if not self.withheld or self.blocked:
            return []
        rows, self.withheld = self.withheld, []
        return rows

    def committed(self) -> None:
        """Note that the heads held of others are on the disk."""
        self._durable.update({v: frame_digest(raw) for v, raw in self.not_durable.items()})
        self.not_durable.clear()

    def step_done(self, step: int, chain: bytes) -> None:
        """Compare the chain over the results so far with the chains that others have signed."""
        if chain == NOTHING or self._chains.get(step) == chain:
            return
        self._chains[step] = chain
        if len(self._chains) > 256:
            del self._chains[min(self._chains)]
        for v, head in self.heads.items():
            self._same_chain(v, head)

    # ---- exchange with contacts ------------------------------------------------------------------

    def exchange(self, now: float, *, with_row: bool = False) -> Outgoing:
        """Return one frame of news for every contact that lacks something, if it is time."""
        if not self.others or (now < self._quiet_until and not with_row):
            return []
        # while rows flow, receipts leave with a head: those of others are committed by then, and both go
        # round together
        announced = with_row and self._rows_since_announced == 0
        if self._receipts_by < math.inf and (
            announced or now >= self._receipts_by or not self.core.expects_commit
        ):
            self._sign_receipts()
        out = [(s, raw) for s in self.contacts if self._behind[s] for raw in self._news_for(s)]
        if out:
            self._quiet_until = now + min(self._patience, self.core.row_time / 4)
        return out

    def summaries(self, to: Iterable[int], *, answer: bool) -> Outgoing:
        """Return what this peer holds, without the content, for contacts that may lack some of it."""
        if not self.others:
            return []
        versions = {key: signed.version for key, signed in self._map.items()}
        raw = self.codec.summary(versions, sender=self.node, answer=answer)
        return [(s, raw) for s in to]

    def receive_summary(self, now: float, sender: int, frame: Frame) -> Outgoing:
        """Learn what a contact lacks; send it, and a summary in return if the contact asks for one."""
        if not self.others:
            return []
        versions, answer = self.codec.read_summary(frame)
        self._behind[sender] = {key for key, signed in self._map.items() if signed.version > versions[key]}
        return self.summaries([sender] if answer else [], answer=False) + self.exchange(now)

    def receive_news(self, now: float, via: int, frame: Frame) -> bool:
        """Take newer heads and receipts; return whether the last answer to the question after a start came.

        Signatures are verified before anything is taken, and only of what is newer than what is held or
        contradicts it.
        """
        if not self.others:
            return False
        parts = [(*self.codec.peek_version(raw), raw) for raw in self.codec.parts(frame)]
        wanted = [
            (key, version, self.codec.decode(raw), raw)
            for key, version, raw in parts
            if self._is_wanted(now, key, version, raw)
        ]
        waited = bool(self.unanswered)
        for (kind, author), version, part, raw in wanted:
            if author == self.node:
                self._own(kind, version, part)
            elif kind == HEAD:
                self._hold(now, author, self.codec.read_head(part), raw)
            else:
                self._confirm(now, author, self.codec.read_receipts(part), raw)
        for key, version, raw in parts:
            held = self._map.get(key)
            if held is not None and version == held.version:
                self._behind[via].discard(key)
            elif held is not None and self._is_set_back(key, raw):
                self._behind[via].add(key)
        return waited and not self.unanswered

    def take_refused(self) -> list[tuple[int, str]]:
        """Return whose heads or receipts were not taken since the last call, and why."""
        refused, self.refused = self.refused, []
        return refused

    def _is_wanted(self, now: float, key: Key, version: Version, raw: bytes) -> bool:
        """Whether a part of news is worth verifying: it is newer, or shows that a ledger was copied."""
        kind, author = key
        held = self._map.get(key)
        if author == self.node:
            newer = held is None or version > held.version
            return frame_digest(raw) not in self._issued and (newer or kind == HEAD)
        if held is not None and version <= held.version and not self._is_set_back(key, raw):
            return False
        if self._allowance(now, key) >= 1:
            return True
        sentence = f"Member {author} signed more heads or receipts than the rounds of this run need."
        if (author, sentence) not in self.refused:
            self.refused.append((author, sentence))
        return False

    def _is_set_back(self, key: Key, raw: bytes) -> bool:
        """Whether a part of news, if it is genuine, is of a ledger other or older than the one known."""
        known = self.heads.get(key[1])
        if key[0] != HEAD or known is None:
            return False
        head = self.codec.peek_head(raw)
        older = head.rows < known.rows and head.nonce != known.nonce
        return older or (head.rows == known.rows and head.head != known.head)

    def _allowance(self, now: float, key: Key) -> float:
        """Return how many more frames that a member signed are taken now, whoever passes them on."""
        scale = 1 if key[0] == HEAD else _RECEIPTS_PER_HEAD * len(self.others)
        at = self.core.program.at
        left, then, at_then = self._allowances.get(key, (scale * _HEADS, now, at))
        earned = (now - then) * _HEADS_PER_SECOND + (at - at_then) * _HEADS_PER_ANNOUNCEMENT / self.every
        left = min(scale * _HEADS, left + scale * earned)
        self._allowances[key] = left, now, at
        return left

    def _charge(self, kind: int, author: int) -> None:
        left, now, at = self._allowances[kind, author]
        self._allowances[kind, author] = left - 1, now, at

    def _put(self, raw: bytes) -> None:
        """Hold a frame in place of an older one; every contact lacks it until it was sent there or shown."""
        key, version = self.codec.peek_version(raw)
        self._map[key] = _Signed(version, raw)
        for keys in self._behind.values():
            keys.add(key)

    def _news_for(self, s: int) -> Iterable[bytes]:
        """Return the frames that bring a contact up to date."""
        keys, self._behind[s] = self._behind[s], set()
        return self.codec.news([self._map[key].raw for key in sorted(keys)], sender=self.node)

    def _sign_receipts(self) -> None:
        """Sign what is held of every member; only heads that are on the disk count."""
        if self.not_durable:
            self.core.commit_notes()
        self._sequence += 1
        self._receipts_by = math.inf
        receipts = []
        for v in range(self.codec.members):
            head, history = self._durable.get(v, NOTHING), self.core.heard_of.get(v)
            if history is None or history.complete < max(1, history.first) or not self.core.verified(v):
                receipts.append(Receipt(head))
            else:
                receipts.append(Receipt(head, history.complete, history.lineage(history.complete)))
        newer = self._map[HEAD, self._newer].raw if self._newer >= 0 else b""
        rows = self.core.store.newest()[0]
        content = Receipts(rows, self._sequence, self.nonce, tuple(receipts), newer)
        self._put(self.codec.receipts(content, sender=self.node))

    # ---- what others signed ----------------------------------------------------------------------

    def _own(self, kind: int, version: Version, part: Frame) -> None:
        """Take what this member signed before its last start: it must be in the ledger, and is superseded."""
        if kind == HEAD:
            self._require_contained(self.codec.read_head(part))
        held = self._map.get((kind, self.node))
        if held is None or version > held.version:
            self._sequence = max(self._sequence, version.sequence)
            if kind == HEAD:
                self.announce()
            else:
                self._receipts_by = -math.inf

    def _require_contained(self, head: LedgerHead) -> None:
        count = self.core.store.newest()[0]
        if head.rows > count or self.core.store.row_hash(head.rows) != head.head:
            problem = (
                f"Another member holds a head of this peer's ledger with {head.rows} rows, signed by this "
                f"peer, that the ledger of {count} rows does not contain: the state folder was copied or is "
                "an older one; continue from the newest folder only."
            )
            self.core.fail(LedgerError(problem))

    def _confirm(self, now: float, w: int, receipts: Receipts, raw: bytes) -> None:
        """Take the receipts of a member: for heads of this ledger, and for the rows of third members."""
        self._charge(RECEIPTS, w)
        self._put(raw)
        if receipts.newer:
            (_, author), version = self.codec.peek_version(receipts.newer)
            head = self.codec.peek_head(receipts.newer)  # verified with the receipts
            if author == self.node:
                self._require_contained(head)
            elif self._is_wanted(now, (HEAD, author), version, receipts.newer):
                self._hold(now, author, head, receipts.newer)
        for v, receipt in enumerate(receipts.receipts):
            if v == self.node:
                rows = self._issued.get(receipt.head)
                if rows is not None:
                    self.confirmed[w] = max(self.confirmed[w], rows)
                    self._by_all = min(self.confirmed.values())
                    self.unanswered.discard(w)
            elif v != w:
                self._same_rows(w, v, receipt)

    def _hold(self, now: float, v: int, head: LedgerHead, raw: bytes) -> None:
        """Keep the newest head of a member; two different heads of one length show a copied ledger."""
        self._charge(HEAD, v)
        known, held = self.heads.get(v), self._map.get((HEAD, v))
        if known is not None and held is not None and head.rows == known.rows and head.head != known.head:
            proof = self.codec.decode(held.raw).proof + self.codec.decode(raw).proof
            self.core.incident(v, f"two ledgers of member {v} with {head.rows} rows", proof)
        if held is None or self.codec.peek_version(raw)[1] > held.version:
            started = known is None or known.nonce != head.nonce
            self.heads[v], self.not_durable[v] = head, raw
            self._put(raw)
            # a member that has started waits for this receipt; others have `every` rows more
            wait = max(self._patience, min(4 * self._patience, self.every * self.core.row_time))
            self._receipts_by = min(self._receipts_by, now if started else now + wait)
            self._same_chain(v, head)
        elif self._newer != v:
            self._newer, self._receipts_by = v, now

    def _same_chain(self, v: int, head: LedgerHead) -> None:
        own = self._chains.get(head.step, NOTHING)
        if NOTHING not in (own, head.chain) and own != head.chain:
            proof = self.codec.decode(self._map[HEAD, v].raw).proof
            self.core.incident(v, f"member {v} has another model after step {head.step}", proof, fatal=True)
            problem = (
                f"Member {v} has signed another model after step {head.step} than this peer has: somebody "
                "between them sent different sums; compare ledgers with `peer compare`, everything spent is "
                "recorded."
            )
            self.core.fail(PeerError(problem))

    def _same_rows(self, w: int, v: int, receipt: Receipt) -> None:
        """Compare what another member heard of a third with what this peer heard, if both heard all."""
        at, own = receipt.rows, self.core.heard_of.get(v)
        if own is None or not max(1, own.first) <= at <= own.complete:
            return
        if own.lineage(at) != receipt.lineage:
            note = f"member {v} sent other rows to member {w} before round {at}"
            self.core.incident(v, note, fatal=True)
            problem = (
                f"Member {w} has signed that member {v} sent it other rows than this peer received before "
                f"round {at}; compare ledgers with `peer compare`, everything spent is recorded."
            )
            self.core.fail(PeerError(problem))
