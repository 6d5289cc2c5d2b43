"""The bytes between peers: one fixed binary frame, arrays only, every length known from the agreement.

Layout, little endian::

    magic 4s | version u8 | kind u8 | dtype u8 | 0 | sender u32 | round u64 | rows u32 | dim u32
    | length u64 | run 32s | 0 0 0 0 | payload (length bytes) | SHA-256 of all that precedes | signature 64s

A `FrameCodec` states what the frames of one run must look like; `FrameCodec.decode` compares sizes with it
before it reads the payload, so nothing that arrives decides how much is allocated. There are seven kinds:
a row of numbers, a position (how far a peer is, what it has of the other), a request to drop one exchange
of one round or its answer, the head of a member's ledger, a member's receipts for the heads of all
others, news (heads and receipts of several members), and a summary of which heads and receipts a peer holds.

Rows, heads and receipts are signed with the key of the member's certificate, so they can be shown to others;
the other kinds concern two ends of one connection, and their signature is zero. Heads and receipts travel
inside news only.

A row begins with the digest of the sender's row before it to the same members, if that one may still be
requested, else with zeros. Its own digest, which is signed, covers both, so one signature stands for a whole
series of rows.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from sottovoce.errors import FrameError
from sottovoce.ledger.store import DIGEST, SIGNATURE, TRAILER, frame_digest

MAGIC = b"SVOC"
VERSION = 1
KINDS = ROW, POSITION, DROP, HEAD, RECEIPTS, NEWS, SUMMARY = 1, 2, 3, 4, 5, 6, 7
SIGNED = (ROW, HEAD, RECEIPTS)
HEADER = struct.Struct("<4sBBBxIQIIQ32s4x")
CONTROL = struct.Struct("<qq32s64sB7x")
HEADS = struct.Struct("<QQ32sqq32s32s")
_ROUND = struct.Struct("<Q")  # follows the sender in the header
_VERSION = struct.Struct("<QQ32s")  # with which heads and receipts begin
_RECEIPT = struct.Struct("<32sq32s")  # of one member
_SIGNED = struct.Struct("<BIQ")
_HELD = struct.Struct("<QQ8s8s")  # one line of a summary
_NEWS_BYTES = 1 << 18  # of one news frame, if not a single head and one member's receipts are longer
HEAD_FRAME = HEADER.size + HEADS.size + TRAILER  # length of a whole frame that holds a head
_KIND, _SENDER = 5, 8  # where the header holds the kind and the sender
_ANSWER = HEADER.size + CONTROL.size - 8  # where a position holds whether it asks for an answer
_NAMES = dict(
    zip(KINDS, ("row", "position", "drop", "head", "set of receipts", "news frame", "summary"), strict=True)
)
_DTYPES = {"float64": (1, "<f8"), "float32": (2, "<f4"), "int64": (3, "<i8"), "int32": (4, "<i4")}
NOTHING = bytes(DIGEST)
UNSIGNED = bytes(SIGNATURE)
_YES = b"\1" * DIGEST
_NOT_ZERO = "The frame's unused bytes must be zero."


class Frame(NamedTuple):
    """A frame that passed every check: who, which round, what kind, and its content."""

    kind: int
    sender: int
    round: int
    content: memoryview
    digest: bytes
    signature: bytes = UNSIGNED
    largest: float = 0.0  # magnitude of the numbers of a row; 0 for integers, which every mask covers

    @property
    def proof(self) -> bytes:
        """Digest and signature, which prove without the content that the sender sent it."""
        return self.digest + self.signature

    @property
    def previous(self) -> bytes:
        """The digest with which a row begins: of the row before it to the same members, or zeros."""
        return bytes(self.content[:DIGEST])


class Signer(Protocol):
    """Signs with a member's own key, in 64 bytes, and verifies with the certificates of all members."""

    def sign(self, content: bytes) -> bytes: ...

    def verify(self, node: int, content: bytes, signature: bytes) -> bool: ...


class OpenSigner:
    """Signatures that anybody can make, for simulations."""

    def __init__(self, node: int) -> None:
        self.node = node

    def sign(self, content: bytes) -> bytes:
        return hmac.digest(b"open seal %d" % self.node, content, "sha512")

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        return OpenSigner(node).sign(content) == signature


class Version(NamedTuple):
    """Orders what one member signed of one kind: the newer has more ledger rows, or a later sequence number.

    The first bytes of the nonce decide between two starts; those of the digest, which depend on data, only
    between frames of which an honest member signs one.
    """

    rows: int = 0
    sequence: int = 0
    nonce: bytes = bytes(8)
    digest: bytes = bytes(8)


Key = tuple[int, int]  # kind and author of a head or of receipts


class LedgerHead(NamedTuple):
    """The newest row of a member's ledger, and how far the member is.

    ``rows`` rows with the hash ``head``; ``at`` the round it waits for; ``chain`` the chain over the results
    of ``step`` steps, which all members must share. ``sequence`` grows with everything the member signs, and
    ``nonce`` is new at every start of its process, so that a receipt for this head is no older than that.
    """

    rows: int
    sequence: int
    nonce: bytes
    at: int
    step: int
    head: bytes
    chain: bytes


class Receipt(NamedTuple):
    """What a member holds of another: ``head`` is the digest of the newest head that it has on its disk.

    ``rows`` rows of the other came to it, one in each of the first rounds, and ``lineage`` is their hash.
    """

    head: bytes = NOTHING
    rows: int = 0
    lineage: bytes = NOTHING


class Receipts(NamedTuple):
    """The receipts of one member for the heads of all, in their order.

    ``rows``, ``sequence`` and ``nonce`` are as in a head. ``newer`` is the whole head of a member that has
    shown an older one after a start, or nothing: it proves to that member that its ledger is an older one.
    """

    rows: int
    sequence: int
    nonce: bytes
    receipts: tuple[Receipt, ...]
    newer: bytes


class Position(NamedTuple):
    """How far a peer is: the round it waits for, and the newest row it has of the one it writes to.

    ``highest`` is -1 when it has none; ``digest`` and ``signature`` are that row's; ``answer`` asks for a
    position and missing rows in return.
    """

    at: int
    highest: int
    digest: bytes
    signature: bytes
    answer: bool


@dataclass(frozen=True)
class FrameCodec:
    """What every frame of one run looks like.

    ``session`` names the run in 32 bytes; a row holds ``dim`` numbers, integers where sums are masked.
    Without a ``signer`` anybody can make the signatures, for simulations.

    Guarantees
    ----------
    `decode` returns a frame whose sizes, numbers and digest are as agreed, whose row is finite and whose
    signature is right, or raises `FrameError`; of a row, `require_signature` verifies it. It allocates at
    most one row, and never interprets a byte as anything but numbers.
    """

    session: bytes
    members: int
    rounds: int
    dim: int
    dtype: str
    signer: Signer | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        assert len(self.session) == DIGEST
        assert self.dtype in _DTYPES

    @staticmethod
    def kind_of(raw: bytes | memoryview) -> int:
        """Return the kind in a frame's header, 0 if it is too short for one; nothing else is read."""
        return raw[_KIND] if len(raw) > _KIND else 0

    @staticmethod
    def wants_answer(raw: bytes) -> bool:
        """Return whether a position or summary of this peer's own asks for an answer."""
        at = HEADER.size if FrameCodec.kind_of(raw) == SUMMARY else _ANSWER
        return raw[at : at + 1] == b"\1"

    @cached_property
    def _element(self) -> np.dtype[Any]:
        """Type of the numbers of a row."""
        return np.dtype(_DTYPES[self.dtype][1])

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Length of the payload by kind; of news, the largest."""
        row = DIGEST + self.dim * self._element.itemsize
        receipts = _VERSION.size + self.members * _RECEIPT.size + HEAD_FRAME
        several = min(self.members * (HEAD_FRAME + HEADER.size + receipts + TRAILER), _NEWS_BYTES)
        news = max(HEAD_FRAME, HEADER.size + receipts + TRAILER, several)
        summary = 8 + 2 * self.members * _HELD.size
        sizes = row, CONTROL.size, CONTROL.size, HEADS.size, receipts, news, summary
        return dict(zip(KINDS, sizes, strict=True))

    def _whole(self, kind: int) -> int:
        """Return the length of a whole frame of a kind."""
        return HEADER.size + self._sizes[kind] + TRAILER

    def _shape(self, kind: int) -> tuple[int, int, int]:
        """Return number of the element type, rows and dimension in the header of a kind."""
        return (_DTYPES[self.dtype][0], 1, self.dim) if kind == ROW else (0, 0, 0)

    @property
    def largest(self) -> int:
        """Length of the largest frame of the run."""
        return HEADER.size + max(self._sizes.values()) + TRAILER

    # ---- writing ---------------------------------------------------------------------------------

    def row(self, values: np.ndarray, *, sender: int, round: int, previous: bytes = NOTHING) -> bytes:
        """Return the frame of one row; the same bytes go to every neighbor and on every resend.

        ``previous`` is the digest of the row before it to the same members.
        """
        if self.dtype.startswith("int") and values.dtype != self.dtype:  # a cast would hide a missing mask
            raise FrameError(
                f"A masked row is {self.dtype} on the grid, got {values.dtype}; nothing was sent."
            )
        array = np.ascontiguousarray(values, self._element)
        if array.shape != (self.dim,) or not np.isfinite(array).all():
            raise FrameError(f"A row to send must hold {self.dim} finite numbers, got shape {array.shape}.")
        return self._frame(ROW, sender, array.data.cast("B"), round, previous=previous)

    def position(self, position: Position, *, sender: int) -> bytes:
        """Return the frame that informs a neighbor of this peer's position."""
        return self._frame(POSITION, sender, CONTROL.pack(*position))

    def head(self, head: LedgerHead, *, sender: int) -> bytes:
        """Return the signed frame with the head of this member's ledger."""
        return self._frame(HEAD, sender, HEADS.pack(*head))

    def receipts(self, receipts: Receipts, *, sender: int) -> bytes:
        """Return the signed frame with what this member holds of the others' ledgers."""
        each = b"".join(_RECEIPT.pack(*receipt) for receipt in receipts.receipts)
        newer = receipts.newer or bytes(HEAD_FRAME)
        return self._frame(RECEIPTS, sender, _VERSION.pack(*receipts[:3]) + each + newer)

    def news(self, items: Iterable[bytes], *, sender: int) -> Iterator[bytes]:
        """Yield frames, as few as possible, with heads and receipts that the other end does not hold yet."""
        parts: list[bytes] = []
        for item in [*sorted(items, key=self.kind_of), b""]:
            if parts and (not item or sum(map(len, parts)) + len(item) > self._sizes[NEWS]):
                heads = sum(self.kind_of(part) == HEAD for part in parts)
                yield self._frame(NEWS, sender, b"".join(parts), counts=(heads, len(parts) - heads))
                parts = []
            parts.append(item)

    def summary(self, versions: Mapping[Key, Version], *, sender: int, answer: bool) -> bytes:
        """Return the frame that says which head and receipts of every member this peer holds."""
        lines = (
            _HELD.pack(*versions.get((kind, v), Version()))
            for kind in (HEAD, RECEIPTS)
            for v in range(self.members)
        )
        return self._frame(SUMMARY, sender, bytes([answer]).ljust(8, b"\0") + b"".join(lines))

    def drop(self, round: int, *, sender: int, ask: bool, agreed: bool) -> bytes:
        """Return the frame that asks to drop the exchange of one round, or answers such a request.

        ``agreed`` is the answer: yes, both ends drop it; no, the row was used and is sent again.
        """
        content = CONTROL.pack(round, round, _YES if agreed else NOTHING, UNSIGNED, ask)
        return self._frame(DROP, sender, content, round)

    def _frame(
        self,
        kind: int,
        sender: int,
        content: bytes | memoryview,
        round: int = 0,
        counts: tuple[int, int] | None = None,
        previous: bytes = b"",
    ) -> bytes:
        dtype, rows, dim = self._shape(kind) if counts is None else (0, *counts)
        size = len(previous) + len(content)
        fields = MAGIC, VERSION, kind, dtype, sender, round, rows, dim, size, self.session
        head = HEADER.pack(*fields) + previous
        total = hashlib.sha256(head)
        total.update(content)
        digest, signature = total.digest(), UNSIGNED
        if kind in SIGNED:
            signature = self._signer(sender).sign(self._signed_content(kind, sender, round, digest))
        return b"".join((head, content, digest, signature))

    def _signer(self, sender: int) -> Signer:
        return OpenSigner(sender) if self.signer is None else self.signer

    def _signed_content(self, kind: int, sender: int, round: int, digest: bytes) -> bytes:
        """Return what is signed: a digest alone, so that it can be shown without the content."""
        return b"sottovoce frame\n" + self.session + _SIGNED.pack(kind, sender, round) + digest

    # ---- reading ---------------------------------------------------------------------------------

    def decode(self, raw: bytes) -> Frame:
        """Return the checked frame, or raise `FrameError`."""
        size = len(raw)
        if size < HEADER.size + TRAILER:
            raise FrameError(f"A frame has at least {HEADER.size + TRAILER} bytes, got {size}.")
        magic, version, kind, dtype, sender, number, rows, dim, length, session = HEADER.unpack_from(raw)
        if magic != MAGIC or version != VERSION:
            raise FrameError("The bytes are not a frame of this version.")
        if session != self.session:
            raise FrameError("The frame belongs to another run; compare the agreements.")
        if kind not in self._sizes:
            raise FrameError(f"Kind {kind} is not a kind of frame.")
        name, payload = _NAMES[kind], self._sizes[kind]
        if kind == NEWS:
            payload = self._news_payload(rows, dim)
        total = HEADER.size + payload + TRAILER
        if size != total or length != payload:
            raise FrameError(f"A {name} of this run takes {total} bytes, got {size}.")
        if (dtype, rows, dim) != (self._shape(kind) if kind != NEWS else (0, rows, dim)):
            raise FrameError(f"The {name} has another shape or element type than agreed.")
        if raw[7] or raw[68:72] != b"\0\0\0\0":
            raise FrameError(_NOT_ZERO)
        if sender >= self.members or number >= max(self.rounds, 1):
            raise FrameError(f"Sender {sender} or round {number} lies outside the run.")
        view = memoryview(raw)
        digest = hashlib.sha256(view[:-TRAILER]).digest()
        if digest != frame_digest(raw):
            raise FrameError("The frame's digest does not match its bytes.")
        content, signature = view[HEADER.size : -TRAILER], bytes(raw[-SIGNATURE:])
        if kind == ROW:
            return Frame(kind, sender, number, content, digest, signature, self._largest(content))
        frame = Frame(kind, sender, number, content, digest, signature)
        if kind in SIGNED:
            self.require_signature(frame)
        elif signature != UNSIGNED:
            raise FrameError(_NOT_ZERO)
        if number and kind not in (POSITION, DROP):
            raise FrameError(_NOT_ZERO)
        if kind in self._readers:  # the parts of news are read when they are newer than what is held
            self._readers[kind](frame)
        return frame

    def _largest(self, content: memoryview) -> float:
        """Return the largest magnitude in a row; 0 for integers, or raise if the row is not finite."""
        if self._element.kind == "i":
            return 0.0
        values = np.frombuffer(content, self._element, offset=DIGEST)
        largest = max(float(np.maximum.reduce(values)), -float(np.minimum.reduce(values)))
        if not math.isfinite(largest):  # NaN wins in both
            raise FrameError("The row holds NaN or infinity.")
        return largest

    @cached_property
    def _readers(self) -> dict[int, Callable[[Frame], object]]:
        return {
            POSITION: self.read_position,
            DROP: self.read_position,
            HEAD: self.read_head,
            RECEIPTS: self.read_receipts,
            SUMMARY: self.read_summary,
        }

    def _news_payload(self, heads: int, receipts: int) -> int:
        """Return the length of the payload of news with so many heads and receipts."""
        length = heads * self._whole(HEAD) + receipts * self._whole(RECEIPTS)
        if not 0 < length <= self._sizes[NEWS]:
            raise FrameError("The news holds nothing, or more than one frame can.")
        return length

    def peek_round(self, raw: bytes) -> int:
        """Return the round that a row states, of which nothing is checked."""
        if len(raw) != self._whole(ROW):
            raise FrameError(f"A row of this run takes {self._whole(ROW)} bytes, got {len(raw)}.")
        return int(_ROUND.unpack_from(raw, _SENDER + 4)[0])

    def require_signature(self, frame: Frame) -> None:
        """Raise `FrameError` unless the sender signed this frame."""
        if not self._signed(frame.kind, frame.sender, frame.round, frame.proof):
            raise FrameError(f"The signature of the frame is not that of member {frame.sender}.")

    def signed_row(self, sender: int, round: int, proof: bytes) -> bool:
        """Return whether ``sender`` signed a row for that round; ``proof`` is its digest and signature."""
        return self._signed(ROW, sender, round, proof)

    def _signed(self, kind: int, sender: int, round: int, proof: bytes) -> bool:
        content = self._signed_content(kind, sender, round, proof[:DIGEST])
        return self._signer(sender).verify(sender, content, proof[DIGEST:])

    def values(self, frame: Frame) -> np.ndarray:
        """Return the numbers of a row frame."""
        return np.frombuffer(frame.content, self._element, offset=DIGEST)

    def is_exact(self, row: np.ndarray | None) -> bool:
        """Whether the frame of a row holds every bit of it."""
        return row is not None and row.dtype == self._element

    def row_values(self, raw: bytes) -> np.ndarray:
        """Return the numbers of a row frame of this member's own, which need no check."""
        return np.frombuffer(raw, self._element, self.dim, HEADER.size + DIGEST).copy()

    def read_position(self, frame: Frame) -> Position:
        """Return the content of a position or drop frame."""
        at, highest, digest, signature, answer = CONTROL.unpack(frame.content)
        if not (0 <= at <= self.rounds and -1 <= highest < self.rounds and answer in (0, 1)):
            raise FrameError("The position lies outside the run.")
        if any(frame.content[-7:]) or (highest == -1 and digest + signature != NOTHING + UNSIGNED):
            raise FrameError("The position's unused bytes must be zero.")
        return Position(at, highest, digest, signature, bool(answer))

    def read_head(self, frame: Frame) -> LedgerHead:
        """Return the content of a frame that holds a head."""
        head = LedgerHead(*HEADS.unpack(frame.content))
        if not (0 <= head.at <= self.rounds and 0 <= head.step <= self.rounds) or frame.round:
            raise FrameError("The head lies outside the run.")
        return head

    def peek_head(self, raw: bytes) -> LedgerHead:
        """Return what a head would say if its signature were right; nothing is checked."""
        return LedgerHead(*HEADS.unpack_from(raw, HEADER.size))

    def peek_version(self, raw: bytes) -> tuple[Key, Version]:
        """Return the key and version of a part of news, of which nothing else is checked."""
        kind, (sender,) = self.kind_of(raw), struct.unpack_from("<I", raw, _SENDER)
        if kind not in (HEAD, RECEIPTS) or sender >= self.members or len(raw) != self._whole(kind):
            raise FrameError("A part of the news is neither a head nor receipts of a member.")
        rows, sequence, nonce = _VERSION.unpack_from(raw, HEADER.size)
        return (kind, sender), Version(rows, sequence, nonce[:8], frame_digest(raw)[:8])

    def parts(self, frame: Frame) -> Iterator[bytes]:
        """Yield the heads and receipts inside news; each is checked only by `decode`."""
        begin = 0
        while begin < len(frame.content):
            kind = HEAD if self.kind_of(frame.content[begin:]) == HEAD else RECEIPTS
            size = self._whole(kind)
            yield bytes(frame.content[begin : begin + size])
            begin += size

    def read_summary(self, frame: Frame) -> tuple[dict[Key, Version], bool]:
        """Return the versions that the other end holds, and whether it asks for an answer."""
        content, keys = frame.content, [(kind, v) for kind in (HEAD, RECEIPTS) for v in range(self.members)]
        if content[0] > 1 or any(content[1:8]) or frame.round:
            raise FrameError(_NOT_ZERO)
        lines = (Version(*line) for line in _HELD.iter_unpack(content[8:]))
        return dict(zip(keys, lines, strict=True)), bool(content[0])

    def read_receipts(self, frame: Frame) -> Receipts:
        """Return receipts; the head inside is checked like one that came alone."""
        content, end = frame.content, _VERSION.size + self.members * _RECEIPT.size
        receipts = tuple(Receipt(*each) for each in _RECEIPT.iter_unpack(content[_VERSION.size : end]))
        if any(not 0 <= each.rows <= self.rounds for each in receipts) or frame.round:
            raise FrameError("A receipt lies outside the run.")
        newer = bytes(content[end:])
        if not any(newer):
            newer = b""
        elif self.kind_of(newer) != HEAD or self.decode(newer).kind != HEAD:
            raise FrameError("What the receipts hold as a newer head is none.")
        rows, sequence, nonce = _VERSION.unpack_from(content)
        return Receipts(rows, sequence, nonce, receipts, newer)
