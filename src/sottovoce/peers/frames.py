"""The bytes between peers: one fixed binary frame, arrays only, every length known from the agreement.

Layout, little endian::

    magic 4s | version u8 | kind u8 | dtype u8 | 0 | sender u32 | round u64 | rows u32 | dim u32
    | length u64 | run 32s | 0 0 0 0 | payload (length bytes) | SHA-256 of all that precedes

A `Wire` states what the frames of one run must look like; `Wire.decode` compares sizes with it before it
touches the payload, so nothing that arrives decides how much is allocated. There are four kinds: a row
of numbers, a position (how far a peer is, what it has seen of the other), a refusal, and a word about
leaving one exchange of one round out.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sottovoce.errors import FrameError

__all__ = ["Frame", "Position", "Wire"]

MAGIC = b"SVOC"
VERSION = 1
ROW, POSITION, REFUSAL, DROP = 1, 2, 3, 4
HEADER = struct.Struct("<4sBBBxIQIIQ32s4x")
CONTROL = struct.Struct("<qq32s32sB7x")
DIGEST = 32
_KIND = 5  # where the header holds the kind
_ANSWER = HEADER.size + 80  # where a position holds whether it asks for an answer
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f8"),
    2: np.dtype("<f4"),
    3: np.dtype("<i8"),
    4: np.dtype("<i4"),
}
_CODES = {"float64": 1, "float32": 2, "int64": 3, "int32": 4}
NOTHING = bytes(DIGEST)
_YES = b"\1" * DIGEST


class Frame(NamedTuple):
    """A frame that passed every check: who, which round, what kind, and its content."""

    kind: int
    sender: int
    round: int
    content: memoryview
    digest: bytes


class Position(NamedTuple):
    """How far a peer is: the round it waits for, and the newest row it has of the one it writes to.

    ``highest`` is -1 when it has none; ``lineage`` is the hash of all rows of the other before round ``at``;
    ``answer`` asks for a position and for missing rows in return.
    """

    at: int
    highest: int
    digest: bytes
    lineage: bytes
    answer: bool


@dataclass(frozen=True)
class Wire:
    """What every frame of one run looks like.

    Parameters
    ----------
    run : the 32 bytes that name the run (hash of the agreement).
    members : number of members; senders are numbered below it.
    rounds : number of rounds of the whole run.
    dim : how many numbers a row holds.
    dtype : ``"float64"`` or ``"float32"``; ``"int64"`` or ``"int32"`` where sums are masked.

    Guarantees
    ----------
    `decode` returns a frame whose sizes, numbers and digest are all as agreed and whose row is finite, or
    raises `FrameError`; it allocates at most one row, and never interprets a byte as anything but numbers.

    Examples
    --------
    >>> import numpy as np
    >>> wire = Wire(run=bytes(32), members=3, rounds=10, dim=2, dtype="float64")
    >>> raw = wire.row(np.array([1.0, 2.0]), sender=1, round=4)
    >>> frame = wire.decode(raw)
    >>> frame.sender, frame.round, wire.values(frame).tolist()
    (1, 4, [1.0, 2.0])
    >>> wire.decode(raw[:-1])
    Traceback (most recent call last):
    sottovoce.errors.FrameError: A row of this run takes 120 bytes, got 119.
    """

    run: bytes
    members: int
    rounds: int
    dim: int
    dtype: str

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
        return HEADER.size + max(self.row_bytes, CONTROL.size) + DIGEST

    def row(self, values: np.ndarray, *, sender: int, round: int) -> bytes:
        """Return the frame of one row; the same bytes go to every neighbour and on every resend."""
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
        """Return the frame that tells a neighbour where this peer is."""
        content = CONTROL.pack(*position)
        return self._frame(POSITION, 0, sender, 0, 0, content)

    def refusal(self, held: bytes, *, sender: int, round: int) -> bytes:
        """Return the frame that says: another row of yours is already held for this round."""
        return self._frame(REFUSAL, 0, sender, round, 0, CONTROL.pack(round, round, held, NOTHING, 0))

    def drop(self, round: int, *, sender: int, ask: bool, agreed: bool) -> bytes:
        """Return the frame that asks to leave out the exchange of one round, or answers such a question.

        ``agreed`` is the answer: yes, both ends leave it out; no, the row was used and comes again.
        """
        mark = _YES if agreed else NOTHING
        return self._frame(DROP, 0, sender, round, 0, CONTROL.pack(round, round, mark, NOTHING, ask))

    def decode(self, raw: bytes) -> Frame:
        """Return the checked frame, or raise `FrameError` and leave nothing behind."""
        size = len(raw)
        if size < HEADER.size + DIGEST:
            raise FrameError(f"A frame has at least {HEADER.size + DIGEST} bytes, got {size}.")
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
        digest = hashlib.sha256(view[:-DIGEST]).digest()
        if digest != raw[-DIGEST:]:
            raise FrameError("The frame's digest does not match its bytes.")
        frame = Frame(kind, sender, number, view[HEADER.size : -DIGEST], digest)
        if kind == ROW:
            if not np.isfinite(self.values(frame)).all():
                raise FrameError("The row holds NaN or infinity.")
        else:
            self.read_position(frame)
        return frame

    def values(self, frame: Frame) -> np.ndarray:
        """Return the numbers of a row frame."""
        return np.frombuffer(frame.content, DTYPES[self.code])

    def read_position(self, frame: Frame) -> Position:
        """Return the content of a position or refusal frame."""
        at, highest, digest, lineage, answer = CONTROL.unpack(frame.content)
        if not (0 <= at <= self.rounds and -1 <= highest < self.rounds and answer in (0, 1)):
            raise FrameError("The position lies outside the run.")
        if any(frame.content[-7:]) or (highest == -1 and digest != NOTHING):
            raise FrameError("The position's unused bytes must be zero.")
        return Position(at, highest, digest, lineage, bool(answer))

    def _shape(self, kind: int, dtype: int, rows: int, dim: int, length: int, size: int) -> None:
        if kind == ROW:
            expected, name = self.row_bytes, "row"
            shape_ok = dtype == self.code and rows == 1 and dim == self.dim
        elif kind in (POSITION, REFUSAL, DROP):
            expected, name = CONTROL.size, "position"
            shape_ok = dtype == 0 and rows == 0 and dim == 0
        else:
            raise FrameError(f"Kind {kind} is not a kind of frame.")
        total = HEADER.size + expected + DIGEST
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
        digest = hashlib.sha256(head)
        digest.update(content)
        return b"".join((head, content, digest.digest()))
