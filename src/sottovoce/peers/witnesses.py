"""What members hold of each other's ledgers: signed heads, receipts for them, and the rows they stand for.

A ledger that was restored from a backup, copied or truncated is older than the head that others hold of it.
Nobody can forge such a head and nobody can answer for another member, so a member that lies can only stay
silent, and then nothing is drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from typing import TYPE_CHECKING

from sottovoce.errors import FrameError, LedgerError, PeerError
from sottovoce.ledger.store import DIGEST, StoredRun
from sottovoce.peers.wire_format import HEAD, NOTHING, Frame, HeadReceipt, LedgerHead

if TYPE_CHECKING:
    from sottovoce.peers.core import Core

Outgoing = list[tuple[int, bytes]]
_RECEIPT_DELAY = 0.05  # seconds in which a row may be committed that a head can be committed with
_REMEMBERED = 4096  # digests of forwarded frames
# New heads that one member may have signed: at once, a second, and per announcement that the rounds allow. An
# honest member stays far below; beyond it a head is neither stored nor forwarded.
_HEADS, _HEADS_PER_SECOND, _HEADS_PER_ANNOUNCEMENT = 32.0, 1.0, 4.0
_RECEIPTS_PER_HEAD = 4  # by each other member, as it comes on several ways
_KEPT = 1024  # hashes of each member's rows, for the receipts of others that are behind


class Witnesses:
    """The heads this peer holds, and who holds the head of its own ledger.

    ``core.timing.witness`` is the number of rows after which all members must hold the head of this ledger; 0
    asks nobody. The answers to the question after a start must repeat the 32 new bytes of ``nonce``.
    """

    def __init__(self, core: Core, stored: StoredRun, nonce: bytes) -> None:
        self.core, self.codec, self.every = core, core.codec, core.timing.witness
        self.node, self.contacts, members = core.program.node, core.program.contacts, core.codec.members
        asks = self.every > 0 and members > 1
        self.others = tuple(v for v in range(members) if v != self.node) if asks else ()
        self.frames = dict(stored.heads)  # the newest signed head of each other member
        self.heads = {v: self._head(raw) for v, raw in stored.heads.items()}
        self.confirmed = dict.fromkeys(self.others, -1)  # rows of this ledger whose head each member holds
        self.unanswered = set(self.others)
        self.nonce = nonce if asks else NOTHING
        self.announced = -1  # rows under the head that was last announced
        self.receipts_by = math.inf  # when receipts must be sent
        self.withheld: Outgoing = []  # with a head after every row: rows whose head not all hold yet
        self.receipts: list[tuple[int, bytes, int]] = []  # due: whose head, its nonce, by which contact
        self._rows_since_announced = 0
        self._recent: deque[int] = deque(maxlen=max(1, 2 * self.every - 1))
        self.not_durable: dict[int, bytes] = {}  # heads of others to be written with the next commit
        self._forwarded: dict[bytes, float] = {}
        self._chains: dict[int, bytes] = {}
        self._rows_heard: dict[int, int] = {}  # of each member, in all its first rounds
        self._lineages: dict[int, deque[bytes]] = {}  # the chained hashes of the newest of them
        self._allowances: dict[tuple[int, int], tuple[float, float, int]] = {}
        for (r, sender), proof in sorted(stored.heard.items()):
            self.heard(sender, r, proof)

    def _head(self, raw: bytes) -> LedgerHead:
        return self.codec.read_head(self.codec.decode(raw))

    # ---- state -----------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether too many rows are unconfirmed for another to be drawn."""
        full = len(self._recent) == self._recent.maxlen
        return full and min(self.confirmed.values(), default=math.inf) < self._recent[0]

    @property
    def missing(self) -> tuple[int, ...]:
        """Members whose receipt is needed before another row is drawn."""
        return tuple(v for v, count in sorted(self.confirmed.items()) if count < self._recent[0])

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Members that have not shown the signed head of a finished ledger."""
        return tuple(v for v in self.others if v not in self.heads or self.heads[v].at < self.codec.rounds)

    def agreeing(self, progress: tuple[int, bytes]) -> tuple[int, ...]:
        """Return the members that have signed the same chain after the last step."""
        chains = {v: (head.step, head.chain) for v, head in self.heads.items()}
        return tuple(v for v in self.others if progress[1] != NOTHING and chains.get(v) == progress)

    def state(self) -> tuple[object, ...]:
        """Return everything that decides the future of this object."""
        frames, confirmed = sorted(self.frames.items()), sorted(self.confirmed.items())
        return frames, confirmed, sorted(self.unanswered), self.receipts

    # ---- this peer's ledger ----------------------------------------------------------------------

    def announce(self, nonce: bytes = NOTHING) -> Outgoing:
        """Send the head of this ledger to all contacts; with a nonce, ask what everybody holds of it."""
        if not self.others:
            return []
        rows, newest = self.core.store.newest()
        at, step, chain = self.core.position
        head = LedgerHead(rows, at, step, newest, chain, nonce)
        self.announced, self._rows_since_announced = rows, 0
        raw = self.codec.head(head, sender=self.node)
        return [(s, raw) for s in self.contacts]

    def ask_again(self) -> Outgoing:
        """Announce the head once more if somebody has not confirmed it."""
        if self.unanswered:
            return self.announce(self.nonce)
        return self.announce() if min(self.confirmed.values(), default=0) < self.announced else []

    def row_sent(self, rows: Outgoing) -> Outgoing:
        """Return what leaves after a new row was committed: the row, perhaps its head, and due receipts."""
        self._recent.append(self.core.store.newest()[0])
        self._rows_since_announced += 1
        head = self.announce() if self._rows_since_announced >= self.every else []
        if self.every == 1 and self.others:
            self.withheld, rows = rows, []  # it leaves when all members hold its head
        return rows + head + self.receipts_due(False)

    def take_sendable(self) -> Outgoing:
        """Return withheld rows once all members hold their head."""
        if not self.withheld or self.blocked:
            return []
        rows, self.withheld = self.withheld, []
        return rows

    def step_done(self, step: int, chain: bytes) -> None:
        """Compare the chain over the results so far with the chains that others have signed."""
        self._chains[step] = chain
        if len(self._chains) > 256:
            del self._chains[min(self._chains)]
        for v, head in self.heads.items():
            self._same_chain(v, head)

    # ---- frames of others ------------------------------------------------------------------------

    def receive(self, now: float, via: int, frame: Frame, raw: bytes) -> tuple[bool | None, Outgoing]:
        """Take a head or a receipt and forward it once.

        The first value is None for frames about other ledgers. For a receipt about this ledger it says
        whether the receipt answers the question after a start.
        """
        if not self.others or frame.sender == self.node:
            return None, []
        out: Outgoing = []
        new = frame.digest not in self._forwarded
        if frame.kind == HEAD:
            head = self.codec.read_head(frame)
            if new:
                self._charge(now, frame.sender)
            self._hold(frame.sender, head, bytes(raw))
            due = (frame.sender, head.nonce, via)
            if due not in self.receipts:
                self.receipts.append(due)
            self.receipts_by = min(self.receipts_by, now + _RECEIPT_DELAY)
            out += self.receipts_due(head.nonce != NOTHING or not self.core.expects_commit)
        else:
            receipt = self.codec.read_witnessed(frame)
            if receipt.about == self.node:
                return self._confirm(frame.sender, receipt), []
            if new:
                self._charge(now, frame.sender, _RECEIPTS_PER_HEAD * len(self.others))
            if receipt.held:
                head = self._head(receipt.held)
                if self._is_news(receipt.about, head):
                    self._charge(now, receipt.about)
                self._hold(receipt.about, head, receipt.held)
            self._same_rows(frame.sender, receipt)
        if now - self._forwarded.get(frame.digest, -math.inf) >= self.core.timing.retry_row:
            if len(self._forwarded) > _REMEMBERED:
                self._forwarded.clear()
            self._forwarded[frame.digest] = now
            out += [(s, bytes(raw)) for s in self.contacts if s not in (via, frame.sender)]
        return None, out

    def _charge(self, now: float, author: int, scale: int = 1) -> None:
        """Charge a signed frame to its author's allowance, whoever forwarded it; raise if there is none."""
        at = self.core.program.at
        left, then, at_then = self._allowances.get((author, scale), (scale * _HEADS, now, at))
        earned = (now - then) * _HEADS_PER_SECOND + (at - at_then) * _HEADS_PER_ANNOUNCEMENT / self.every
        left = min(scale * _HEADS, left + scale * earned)
        if left < 1:
            raise FrameError(
                f"Member {author} signed more heads or receipts than the rounds of this run need."
            )
        self._allowances[author, scale] = left - 1, now, at

    def _is_news(self, v: int, head: LedgerHead) -> bool:
        known = self.heads.get(v)
        return known is None or (head.rows, head.at) > (known.rows, known.at)

    def heard(self, sender: int, r: int, proof: bytes) -> None:
        """Extend the chained hash of a member's rows, as long as one came in every round."""
        rows = self._lineages.setdefault(sender, deque(maxlen=_KEPT))
        if self._rows_heard.get(sender, 0) == r:
            self._rows_heard[sender] = r + 1
            rows.append(hashlib.sha256((rows[-1] if rows else NOTHING) + proof[:DIGEST]).digest())

    def receipts_due(self, hurry: bool) -> Outgoing:
        """Return receipts for heads that are on the disk; in a hurry they are written first."""
        if self.receipts and self.not_durable:
            if not hurry:
                return []
            self.core.commit_notes()
        out = []
        for v, nonce, via in self.receipts:
            rows, lineages = self._rows_heard.get(v, 0), self._lineages.get(v)
            lineage = lineages[-1] if lineages else NOTHING
            receipt = HeadReceipt(v, rows, rows, lineage, nonce, self.frames.get(v, b""))
            out.append((via, self.codec.witnessed(receipt, sender=self.node)))
        self.receipts.clear()
        self.receipts_by = math.inf
        return out

    def _confirm(self, w: int, receipt: HeadReceipt) -> bool:
        """Take what a member holds of this ledger; return whether it answers the question after a start."""
        if receipt.held:
            head, count = self._head(receipt.held), self.core.store.newest()[0]
            if head.rows > count or self.core.store.row_hash(head.rows) != head.head:
                problem = (
                    f"Member {w} holds a head of this peer's ledger with {head.rows} rows, signed by this "
                    f"peer, that the ledger of {count} rows does not contain: the state folder was "
                    "copied or is an older one; continue from the newest folder only."
                )
                self.core.fail(LedgerError(problem))
            self.confirmed[w] = max(self.confirmed[w], head.rows)
        answers = receipt.nonce == self.nonce
        if answers:
            self.unanswered.discard(w)
        return answers

    def _hold(self, v: int, head: LedgerHead, raw: bytes) -> None:
        """Keep the newest head of a member; two different heads of one length show a copied ledger."""
        known = self.heads.get(v)
        if known is not None and head.rows == known.rows and head.head != known.head:
            proof = self.codec.decode(self.frames[v]).proof + self.codec.decode(raw).proof
            self.core.incident(v, f"two ledgers of member {v} with {head.rows} rows", proof)
        if self._is_news(v, head):
            self.frames[v], self.heads[v], self.not_durable[v] = raw, head, raw
        self._same_chain(v, head)

    def _same_chain(self, v: int, head: LedgerHead) -> None:
        own = self._chains.get(head.step, NOTHING)
        if NOTHING not in (own, head.chain) and own != head.chain:
            proof = self.codec.decode(self.frames[v]).proof
            self.core.incident(v, f"member {v} has another model after step {head.step}", proof, fatal=True)
            problem = (
                f"Member {v} has signed another model after step {head.step} than this peer has: somebody "
                "between them sent different sums; compare ledgers with `peer compare`, everything spent is "
                "recorded."
            )
            self.core.fail(PeerError(problem))

    def _same_rows(self, w: int, receipt: HeadReceipt) -> None:
        """Compare what another member heard of a third with what this peer heard, if both heard all."""
        v, at, own = receipt.about, receipt.at, self._lineages.get(receipt.about, deque())
        place = at - 1 - (self._rows_heard.get(v, 0) - len(own))  # among the hashes that are kept
        if at == receipt.rows and 0 <= place < len(own) and own[place] != receipt.lineage:
            note = f"member {v} sent other rows to member {w} before round {at}"
            self.core.incident(v, note, fatal=True)
            problem = (
                f"Member {w} has signed that member {v} sent it other rows than this peer received before "
                f"round {at}; compare ledgers with `peer compare`, everything spent is recorded."
            )
            self.core.fail(PeerError(problem))
