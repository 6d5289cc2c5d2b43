"""The bytes between peers: one fixed binary frame, arrays only, every length known from the agreement.

Layout, little endian::

    magic 4s | version u8 | kind u8 | dtype u8 | 0 | sender u32 | round u64 | rows u32 | dim u32
    | length u64 | run 32s | 0 0 0 0 | payload (length bytes) | SHA-256 of all that precedes | signature 64s

A `FrameCodec` states what the frames of one run must look like; `FrameCodec.decode` compares sizes with it
before it reads the payload, so nothing that arrives decides how much is allocated. There are six kinds: a
row of numbers, a position (how far a peer is, what it has of the other), a refusal, a request to drop one
exchange of one round or its answer, the head of a member's ledger, and a receipt for another member's head.

Rows, heads and receipts are signed with the key of the member's certificate, so they can be shown to others;
the other kinds concern two ends of one connection, and their signature is zero.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from sottovoce.errors import FrameError
from sottovoce.ledger.store import DIGEST, SIGNATURE, TRAILER, frame_digest

MAGIC = b"SVOC"
VERSION = 1
KINDS = ROW, POSITION, REFUSAL, DROP, HEAD, WITNESS = 1, 2, 3, 4, 5, 6
SIGNED = (ROW, HEAD, WITNESS)
HEADER = struct.Struct("<4sBBBxIQIIQ32s4x")
CONTROL = struct.Struct("<qq32s64s32sB7x")
HEADS = struct.Struct("<Qqq32s32s32s")
WITNESSES = struct.Struct("<I4xqq32s32s")
HEAD_FRAME = HEADER.size + HEADS.size + TRAILER  # length of a whole frame that holds a head
_KIND = 5  # where the header holds the kind
_ANSWER = HEADER.size + CONTROL.size - 8  # where a position holds whether it asks for an answer
_NAMES = {ROW: "row", HEAD: "head", WITNESS: "witnessed head"}  # the others are positions
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

    @property
    def proof(self) -> bytes:
        """Digest and signature, which prove without the content that the sender sent it."""
        return self.digest + self.signature


class Signer(Protocol):
    """Signs with a member's own key and verifies with the certificates of all members."""

    def sign(self, content: bytes) -> bytes:
        """Return this member's signature of 64 bytes."""

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether a member signed ``content``."""


class OpenSigner:
    """Signatures that anybody can make, for simulations."""

    def __init__(self, node: int) -> None:
        self.node = node

    def sign(self, content: bytes) -> bytes:
        return hmac.digest(b"open seal %d" % self.node, content, "sha512")

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        return OpenSigner(node).sign(content) == signature


class LedgerHead(NamedTuple):
    """The newest row of a member's ledger, and how far the member is.

    ``rows`` rows with the hash ``head``; ``at`` the round it waits for; ``chain`` the chain over the results
    of ``step`` steps, which all members must share. A ``nonce`` that is not zero is sent after a start and
    asks everybody what they hold of this ledger.
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
    is their chained hash; ``at`` is 0 if some round brought none.
    """

    about: int
    at: int
    rows: int
    lineage: bytes
    nonce: bytes
    held: bytes


class Position(NamedTuple):
    """How far a peer is: the round it waits for, and the newest row it has of the one it writes to.

    ``highest`` is -1 when it has none; ``digest`` and ``signature`` are that row's; ``lineage`` is the hash
    of all rows of the other before round ``at``; ``answer`` asks for a position and missing rows in return.
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
    signer : by default signatures that anybody can make, for simulations.

    Guarantees
    ----------
    `decode` returns a frame whose sizes, numbers, digest and signature are all as agreed and whose row is
    finite, or raises `FrameError`; it allocates at most one row, and never interprets a byte as anything but
    numbers.
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
    def kind_of(raw: bytes) -> int:
        """Return the kind in a frame's header, 0 if it is too short for one; nothing else is read."""
        return raw[_KIND] if len(raw) > _KIND else 0

    @staticmethod
    def wants_answer(raw: bytes) -> bool:
        """Return whether a position frame of this peer's own asks for an answer."""
        return bool(raw[_ANSWER])

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Length of the payload by kind."""
        sizes = dict.fromkeys((POSITION, REFUSAL, DROP), CONTROL.size)
        row = self.dim * np.dtype(self.dtype).itemsize
        return {**sizes, ROW: row, HEAD: HEADS.size, WITNESS: WITNESSES.size + HEAD_FRAME}

    def _shape(self, kind: int) -> tuple[int, int, int]:
        """Return number of the element type, rows and dimension in the header of a kind."""
        return (_DTYPES[self.dtype][0], 1, self.dim) if kind == ROW else (0, 0, 0)

    @property
    def largest(self) -> int:
        """Length of the largest frame of the run."""
        return HEADER.size + max(self._sizes.values()) + TRAILER

    # ---- writing ---------------------------------------------------------------------------------

    def row(self, values: np.ndarray, *, sender: int, round: int) -> bytes:
        """Return the frame of one row; the same bytes go to every neighbor and on every resend."""
        if self.dtype.startswith("int") and values.dtype != self.dtype:  # a cast would hide a missing mask
            raise FrameError(
                f"A masked row is {self.dtype} on the grid, got {values.dtype}; nothing was sent."
            )
        array = np.ascontiguousarray(values, _DTYPES[self.dtype][1])
        if array.shape != (self.dim,) or not np.isfinite(array).all():
            raise FrameError(f"A row to send must hold {self.dim} finite numbers, got shape {array.shape}.")
        return self._frame(ROW, sender, array.data.cast("B"), round)

    def position(self, position: Position, *, sender: int) -> bytes:
        """Return the frame that informs a neighbor of this peer's position."""
        return self._frame(POSITION, sender, CONTROL.pack(*position))

    def head(self, head: LedgerHead, *, sender: int) -> bytes:
        """Return the signed frame with the head of this member's ledger."""
        return self._frame(HEAD, sender, HEADS.pack(*head))

    def witnessed(self, receipt: HeadReceipt, *, sender: int) -> bytes:
        """Return the signed frame, forwarded by the others, with what is held of a member's ledger."""
        held = receipt.held or bytes(HEAD_FRAME)
        return self._frame(WITNESS, sender, WITNESSES.pack(*receipt[:-1]) + held)

    def refusal(self, held: bytes, *, sender: int, round: int) -> bytes:
        """Return the frame that refuses a second, different row for a round.

        ``held`` is digest and signature of the first row, which only its sender can have made; the row itself
        is not sent.
        """
        content = CONTROL.pack(round, round, held[:DIGEST], held[DIGEST:], NOTHING, 0)
        return self._frame(REFUSAL, sender, content, round)

    def drop(self, round: int, *, sender: int, ask: bool, agreed: bool) -> bytes:
        """Return the frame that asks to drop the exchange of one round, or answers such a request.

        ``agreed`` is the answer: yes, both ends drop it; no, the row was used and is sent again.
        """
        content = CONTROL.pack(round, round, _YES if agreed else NOTHING, UNSIGNED, NOTHING, ask)
        return self._frame(DROP, sender, content, round)

    def _frame(self, kind: int, sender: int, content: bytes | memoryview, round: int = 0) -> bytes:
        dtype, rows, dim = self._shape(kind)
        head = HEADER.pack(MAGIC, VERSION, kind, dtype, sender, round, rows, dim, len(content), self.session)
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
        return b"sottovoce frame\n" + self.session + struct.pack("<BIQ", kind, sender, round) + digest

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
        name, total = _NAMES.get(kind, "position"), HEADER.size + self._sizes[kind] + TRAILER
        if size != total or length != self._sizes[kind]:
            raise FrameError(f"A {name} of this run takes {total} bytes, got {size}.")
        if (dtype, rows, dim) != self._shape(kind):
            raise FrameError(f"The {name} has another shape or element type than agreed.")
        if raw[7] or raw[68:72] != b"\0\0\0\0":
            raise FrameError(_NOT_ZERO)
        if sender >= self.members or number >= max(self.rounds, 1):
            raise FrameError(f"Sender {sender} or round {number} lies outside the run.")
        view = memoryview(raw)
        digest = hashlib.sha256(view[:-TRAILER]).digest()
        if digest != frame_digest(raw):
            raise FrameError("The frame's digest does not match its bytes.")
        frame = Frame(kind, sender, number, view[HEADER.size : -TRAILER], digest, bytes(raw[-SIGNATURE:]))
        if kind in SIGNED:
            if not self._signed(kind, sender, number, digest, frame.signature):
                raise FrameError(f"The signature of the frame is not that of member {sender}.")
        elif frame.signature != UNSIGNED:
            raise FrameError(_NOT_ZERO)
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

    def signed_row(self, sender: int, round: int, digest: bytes, signature: bytes) -> bool:
        """Return whether ``sender`` signed a row of that digest for that round."""
        return self._signed(ROW, sender, round, digest, signature)

    def _signed(self, kind: int, sender: int, round: int, digest: bytes, signature: bytes) -> bool:
        content = self._signed_content(kind, sender, round, digest)
        return self._signer(sender).verify(sender, content, signature)

    def values(self, frame: Frame) -> np.ndarray:
        """Return the numbers of a row frame."""
        return np.frombuffer(frame.content, _DTYPES[self.dtype][1])

    def read_position(self, frame: Frame) -> Position:
        """Return the content of a position, refusal or drop frame."""
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
        """Return a receipt; the head inside is checked like one that came alone."""
        content = frame.content
        about, at, rows, lineage, nonce = WITNESSES.unpack(content[: WITNESSES.size])
        held = bytes(content[WITNESSES.size :])
        if about >= self.members or not (0 <= at <= self.rounds and 0 <= rows <= at) or frame.round:
            raise FrameError("What was witnessed lies outside the run.")
        if any(content[4:8]):
            raise FrameError(_NOT_ZERO)
        if not any(held):
            held = b""
        else:
            head = self.decode(held)
            if head.kind != HEAD or head.sender != about:
                raise FrameError("The head inside what was witnessed is not that member's.")
        return HeadReceipt(about, at, rows, lineage, nonce, held)
