"""The bytes between peers: one fixed binary frame, arrays only, every length known from the agreement.

Layout, little endian::

    magic 4s | version u8 | kind u8 | dtype u8 | 0 | sender u32 | round u64 | rows u32 | dim u32
    | length u64 | run 32s | 0 0 0 0 | payload (length bytes) | SHA-256 of all that precedes | signature 64s

A `FrameCodec` states what the frames of one run must look like; `FrameCodec.decode` compares sizes with it
before it touches the payload, so nothing that arrives decides how much is allocated. There are six kinds: a
row of numbers, a position (how far a peer is, what it has seen of the other), a refusal, a word about
leaving one exchange of one round out, the head of a member's ledger, and what a member has witnessed of
another's.

Rows, heads and what was witnessed are signed with the key of the member's certificate, so they can be shown
to others; the rest is said between two ends of one connection, and its signature is zero.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from sottovoce.errors import FrameError
from sottovoce.ledger.store import DIGEST, SIGNATURE, TRAILER, frame_digest

MAGIC = b"SVOC"
VERSION = 1
ROW, POSITION, REFUSAL, DROP, HEAD, WITNESS = 1, 2, 3, 4, 5, 6
SIGNED = (ROW, HEAD, WITNESS)
HEADER = struct.Struct("<4sBBBxIQIIQ32s4x")
CONTROL = struct.Struct("<qq32s64s32sB7x")
HEADS = struct.Struct("<Qqq32s32s32s")
WITNESSES = struct.Struct("<I4xqq32s32s")
_KIND = 5  # where the header holds the kind
_ANSWER = HEADER.size + CONTROL.size - 8  # where a position holds whether it asks for an answer
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f8"),
    2: np.dtype("<f4"),
    3: np.dtype("<i8"),
    4: np.dtype("<i4"),
}
_CODES = {"float64": 1, "float32": 2, "int64": 3, "int32": 4}
NOTHING = bytes(DIGEST)
UNSIGNED = bytes(SIGNATURE)
_YES = b"\1" * DIGEST


class Frame(NamedTuple):
    """A frame that passed every check: who, which round, what kind, and its content."""

    kind: int
    sender: int
    round: int
    content: memoryview
    digest: bytes
    signature: bytes = UNSIGNED

    @property
    def proof(self) -> bytes:
        """Digest and signature: what shows, without the content, that the sender has said it."""
        return self.digest + self.signature


class Signer(Protocol):
    """Who signs, and who checks: a member's own key and the certificates of all members."""

    def sign(self, content: bytes) -> bytes:
        """Return this member's signature of 64 bytes."""

    def verify(self, member: int, content: bytes, signature: bytes) -> bool:
        """Return whether a member signed ``content``."""


class OpenSigner:
    """Signatures that anybody can make: for simulations, where nobody forges them."""

    def __init__(self, member: int) -> None:
        self.member = member

    def sign(self, content: bytes) -> bytes:
        """Return a keyed hash under the member's number."""
        return hmac.digest(b"open seal %d" % self.member, content, "sha512")

    def verify(self, member: int, content: bytes, signature: bytes) -> bool:
        """Return whether it is the hash under that number."""
        return hmac.digest(b"open seal %d" % member, content, "sha512") == signature


class LedgerHead(NamedTuple):
    """The newest row of a member's ledger, and where it is.

    ``rows`` rows with the hash ``head``; ``at`` the round it waits for; ``chain`` the chain over what came
    of ``step`` steps, where all members must have the same. ``nonce`` is not zero when the member has just
    started and asks everybody what they hold of its ledger.
    """

    rows: int
    at: int
    step: int
    head: bytes
    chain: bytes
    nonce: bytes


class HeadReceipt(NamedTuple):
    """What a member holds of the ledger of ``about``: the newest signed head, whole, or nothing.

    ``rows`` rows of ``about`` came to it before round ``at``, in every one of these rounds, and ``lineage``
    is their chained hash; ``at`` is 0 where it did not get one in every round.
    """

    about: int
    at: int
    rows: int
    lineage: bytes
    nonce: bytes
    held: bytes


class Position(NamedTuple):
    """How far a peer is: the round it waits for, and the newest row it has of the one it writes to.

    ``highest`` is -1 when it has none; ``digest`` and ``signature`` are that row's, which only the other can
    have made; ``lineage`` is the hash of all rows of the other before round ``at``; ``answer`` asks for a
    position and for missing rows in return.
    """

    at: int
    highest: int
    digest: bytes
    signature: bytes
    lineage: bytes
    answer: bool


@dataclass(frozen=True)
class FrameCodec:
    """What every frame of one run looks like.

    Parameters
    ----------
    run : the 32 bytes that name the run (hash of the agreement).
    members : number of members; senders are numbered below it.
    rounds : number of rounds of the whole run.
    dim : how many numbers a row holds.
    dtype : ``"float64"`` or ``"float32"``; ``"int64"`` or ``"int32"`` where sums are masked.
    seal : who signs and checks; by default signatures that anybody can make, for simulations.

    Guarantees
    ----------
    `decode` returns a frame whose sizes, numbers, digest and signature are all as agreed and whose row is
    finite, or raises `FrameError`; it allocates at most one row, and never interprets a byte as anything but
    numbers.
    """

    run: bytes
    members: int
    rounds: int
    dim: int
    dtype: str
    signer: Signer | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        assert len(self.run) == DIGEST
        assert self.dtype in _CODES

    @staticmethod
    def kind_of(raw: bytes) -> int:
        """Return the kind that a frame of this program's own making bears; nothing else is looked at."""
        return raw[_KIND]

    @staticmethod
    def wants_answer(raw: bytes) -> bool:
        """Return whether a position frame of this program's own making asks for an answer."""
        return bool(raw[_ANSWER])

    @property
    def code(self) -> int:
        """Number of the element type on the wire."""
        return _CODES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Length of the numbers of one row."""
        return self.dim * DTYPES[self.code].itemsize

    @property
    def largest(self) -> int:
        """Length of the largest frame of the run."""
        most = max(self.row_bytes, CONTROL.size, HEADS.size, WITNESSES.size + self.head_bytes)
        return HEADER.size + most + TRAILER

    @property
    def head_bytes(self) -> int:
        """Length of a whole frame that holds a head."""
        return HEADER.size + HEADS.size + TRAILER

    def row(self, values: np.ndarray, *, sender: int, round: int) -> bytes:
        """Return the frame of one row; the same bytes go to every neighbor and on every resend."""
        whole = self.code > 2
        if whole and values.dtype != self.dtype:  # a cast would hide that no mask was added
            raise FrameError(
                f"A masked row is {self.dtype} on the grid, got {values.dtype}; nothing was sent."
            )
        array = np.ascontiguousarray(values, DTYPES[self.code])
        if array.shape != (self.dim,) or not np.isfinite(array).all():
            raise FrameError(f"A row to send must hold {self.dim} finite numbers, got shape {array.shape}.")
        return self._frame(ROW, self.code, sender, round, self.dim, array.data.cast("B"))

    def position(self, position: Position, *, sender: int) -> bytes:
        """Return the frame that tells a neighbor where this peer is."""
        content = CONTROL.pack(*position)
        return self._frame(POSITION, 0, sender, 0, 0, content)

    def head(self, head: LedgerHead, *, sender: int) -> bytes:
        """Return the signed frame that tells everybody the head of this member's ledger."""
        return self._frame(HEAD, 0, sender, 0, 0, HEADS.pack(*head))

    def witnessed(self, receipt: HeadReceipt, *, sender: int) -> bytes:
        """Return the signed frame that tells a member, by way of the others, what is held of its ledger."""
        held = receipt.held or bytes(self.head_bytes)
        return self._frame(WITNESS, 0, sender, 0, 0, WITNESSES.pack(*receipt[:-1]) + held)

    def refusal(self, held: bytes, *, sender: int, round: int) -> bytes:
        """Return the frame that says: another row of yours is already held for this round.

        ``held`` is that row's digest with its signature, which nobody but its sender can have made; the row
        itself is shown to nobody.
        """
        content = CONTROL.pack(round, round, held[:DIGEST], held[DIGEST:], NOTHING, 0)
        return self._frame(REFUSAL, 0, sender, round, 0, content)

    def signed_row(self, sender: int, round: int, digest: bytes, signature: bytes) -> bool:
        """Return whether ``sender`` signed a row of that digest for that round."""
        return self._signer(sender).verify(
            sender, self._signed_content(ROW, sender, round, digest), signature
        )

    def drop(self, round: int, *, sender: int, ask: bool, agreed: bool) -> bytes:
        """Return the frame that asks to leave out the exchange of one round, or answers such a question.

        ``agreed`` is the answer: yes, both ends leave it out; no, the row was used and comes again.
        """
        mark = _YES if agreed else NOTHING
        content = CONTROL.pack(round, round, mark, UNSIGNED, NOTHING, ask)
        return self._frame(DROP, 0, sender, round, 0, content)

    def decode(self, raw: bytes) -> Frame:
        """Return the checked frame, or raise `FrameError` and leave nothing behind."""
        size = len(raw)
        if size < HEADER.size + TRAILER:
            raise FrameError(f"A frame has at least {HEADER.size + TRAILER} bytes, got {size}.")
        magic, version, kind, dtype, sender, number, rows, dim, length, run = HEADER.unpack_from(raw)
        if magic != MAGIC or version != VERSION:
            raise FrameError("The bytes are not a frame of this version.")
        if run != self.run:
            raise FrameError("The frame belongs to another run; compare the agreements.")
        self._shape(kind, dtype, rows, dim, length, size)
        if raw[7] or raw[68:72] != b"\0\0\0\0":
            raise FrameError("The frame's unused bytes must be zero.")
        if sender >= self.members or number >= max(self.rounds, 1):
            raise FrameError(f"Sender {sender} or round {number} lies outside the run.")
        view = memoryview(raw)
        digest = hashlib.sha256(view[:-TRAILER]).digest()
        if digest != frame_digest(raw):
            raise FrameError("The frame's digest does not match its bytes.")
        frame = Frame(kind, sender, number, view[HEADER.size : -TRAILER], digest, bytes(raw[-SIGNATURE:]))
        if kind not in SIGNED:
            if frame.signature != UNSIGNED:
                raise FrameError("The frame's unused bytes must be zero.")
        elif not self._signer(sender).verify(
            sender, self._signed_content(kind, sender, number, digest), frame.signature
        ):
            raise FrameError(f"The signature of the frame is not that of member {sender}.")
        if kind == ROW:
            if not np.isfinite(self.values(frame)).all():
                raise FrameError("The row holds NaN or infinity.")
        elif kind == HEAD:
            self.read_head(frame)
        elif kind == WITNESS:
            self.read_witnessed(frame)
        else:
            self.read_position(frame)
        return frame

    def values(self, frame: Frame) -> np.ndarray:
        """Return the numbers of a row frame."""
        return np.frombuffer(frame.content, DTYPES[self.code])

    def read_position(self, frame: Frame) -> Position:
        """Return the content of a position or refusal frame."""
        at, highest, digest, signature, lineage, answer = CONTROL.unpack(frame.content)
        if not (0 <= at <= self.rounds and -1 <= highest < self.rounds and answer in (0, 1)):
            raise FrameError("The position lies outside the run.")
        if any(frame.content[-7:]) or (highest == -1 and digest + signature != NOTHING + UNSIGNED):
            raise FrameError("The position's unused bytes must be zero.")
        return Position(at, highest, digest, signature, lineage, bool(answer))

    def read_head(self, frame: Frame) -> LedgerHead:
        """Return the content of a frame that holds a head."""
        head = LedgerHead(*HEADS.unpack(frame.content))
        if not (0 <= head.at <= self.rounds and 0 <= head.step <= self.rounds) or frame.round:
            raise FrameError("The head lies outside the run.")
        return head

    def read_witnessed(self, frame: Frame) -> HeadReceipt:
        """Return what a member has witnessed; the head inside is checked like one that came alone."""
        content = frame.content
        about, at, rows, lineage, nonce = WITNESSES.unpack(content[: WITNESSES.size])
        held = bytes(content[WITNESSES.size :])
        if about >= self.members or not (0 <= at <= self.rounds and 0 <= rows <= at) or frame.round:
            raise FrameError("What was witnessed lies outside the run.")
        if any(content[4:8]):
            raise FrameError("The frame's unused bytes must be zero.")
        if not any(held):
            return HeadReceipt(about, at, rows, lineage, nonce, b"")
        inside = self.decode(held)
        if inside.kind != HEAD or inside.sender != about:
            raise FrameError("The head inside what was witnessed is not that member's.")
        return HeadReceipt(about, at, rows, lineage, nonce, held)

    def _shape(self, kind: int, dtype: int, rows: int, dim: int, length: int, size: int) -> None:
        if kind == ROW:
            expected, name = self.row_bytes, "row"
            shape_ok = dtype == self.code and rows == 1 and dim == self.dim
        elif kind in (POSITION, REFUSAL, DROP):
            expected, name = CONTROL.size, "position"
            shape_ok = dtype == 0 and rows == 0 and dim == 0
        elif kind in (HEAD, WITNESS):
            expected, name = HEADS.size, "head"
            if kind == WITNESS:
                expected, name = WITNESSES.size + self.head_bytes, "witnessed head"
            shape_ok = dtype == 0 and rows == 0 and dim == 0
        else:
            raise FrameError(f"Kind {kind} is not a kind of frame.")
        total = HEADER.size + expected + TRAILER
        if size != total or length != expected:
            raise FrameError(f"A {name} of this run takes {total} bytes, got {size}.")
        if not shape_ok:
            raise FrameError(f"The {name} has another shape or element type than agreed.")

    def _frame(
        self, kind: int, dtype: int, sender: int, round: int, dim: int, content: bytes | memoryview
    ) -> bytes:
        head = HEADER.pack(
            MAGIC, VERSION, kind, dtype, sender, round, int(kind == ROW), dim, len(content), self.run
        )
        total = hashlib.sha256(head)
        total.update(content)
        digest, signature = total.digest(), UNSIGNED
        if kind in SIGNED:
            signature = self._signer(sender).sign(self._signed_content(kind, sender, round, digest))
        return b"".join((head, content, digest, signature))

    def _signer(self, sender: int) -> Signer:
        return OpenSigner(sender) if self.signer is None else self.signer

    def _signed_content(self, kind: int, sender: int, round: int, digest: bytes) -> bytes:
        """Return what is signed: a digest alone, so that it can be shown without what it is of."""
        return b"sottovoce frame\n" + self.run + struct.pack("<BIQ", kind, sender, round) + digest
