"""What a peer hands to its run ledger and gets back from it, and the bytes of one row."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.release import MECHANISMS, Release

DIGEST, SIGNATURE = 32, 64
TRAILER = DIGEST + SIGNATURE  # a frame ends with its digest and the signature of it
_ADJACENCIES = get_args(Adjacency)
_RELEASE = struct.Struct("<IQddddQQIBB?")
_ROW = struct.Struct("<Q32siQQIIIII")
_HEARD = struct.Struct("<QI96s")
_FORGET = struct.Struct("<Q")
_HEAD = struct.Struct("<II")
INLINE = -1  # frame and state are in the row itself


class Entry(NamedTuple):
    """What one commit makes durable, all of it or nothing; a state of None keeps the previous state.

    ``same_keys`` promises that the state holds no other keys than the one before it, which may then stay
    readable.
    """

    round: int
    releases: tuple[Release, ...]
    frame: bytes
    state: bytes | None
    heard: tuple[tuple[int, int, bytes], ...]
    note: str = ""
    forget: tuple[int, ...] = ()
    heads: tuple[tuple[int, bytes], ...] = ()
    same_keys: bool = False


@dataclass
class StoredRun:
    """What a run ledger holds: the newest state, frames that may be requested again, and digests."""

    at: int = 0
    state: bytes | None = None
    outbox: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, bytes] = field(default_factory=dict)
    heard: dict[tuple[int, int], bytes] = field(default_factory=dict)  # digests with their signatures
    heads: dict[int, bytes] = field(default_factory=dict)  # the newest signed head of each other member
    releases: list[Release] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Row(NamedTuple):
    """One row of a run ledger: an entry, and where its frame and its encrypted state are.

    ``frame`` and ``state`` of the entry are empty where they are in the file with the number ``file``; then
    ``rest`` is the SHA-256 of all in that file but what ``digest`` stands for: the end of the frame, and the
    encrypted state.
    """

    entry: Entry
    digest: bytes  # of the frame, zeros without one
    file: int
    frame_size: int
    state_size: int
    rest: bytes = b""

    def pack(self) -> bytes:
        """Return the row as bytes."""
        entry, state = self.entry, self.entry.state or b""
        note = entry.note.encode()
        fixed = _ROW.pack(
            entry.round, self.digest, self.file, self.frame_size, self.state_size, len(entry.releases),
            len(entry.heard), len(entry.forget), len(entry.heads), len(note),
        )  # fmt: skip
        parts = [fixed, *map(_pack_release, entry.releases)]
        parts += [_HEARD.pack(*each) for each in entry.heard]
        parts += [_FORGET.pack(r) for r in entry.forget]
        for node, head in entry.heads:
            parts += [_HEAD.pack(node, len(head)), head]
        inline = [entry.frame, state] if self.file == INLINE else [self.rest]
        return b"".join([*parts, note, *inline])

    @classmethod
    def unpack(cls, raw: bytes) -> Row:
        """Read a row back."""
        at = _ROW.size
        r, digest, file, frame_size, state_size, *counts, note_size = _ROW.unpack_from(raw)

        def take(kind: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
            nonlocal at
            at += count * kind.size
            return kind.iter_unpack(raw[at - count * kind.size : at])

        releases = tuple(_unpack_release(*each) for each in take(_RELEASE, counts[0]))
        heard = tuple((step, sender, proof) for step, sender, proof in take(_HEARD, counts[1]))
        forget = tuple(step for (step,) in take(_FORGET, counts[2]))
        heads = []
        for _ in range(counts[3]):
            node, size = _HEAD.unpack_from(raw, at)
            at += _HEAD.size + size
            heads.append((node, raw[at - size : at]))
        note = raw[at : at + note_size].decode()
        at += note_size
        frame, state, rest = raw[at : at + frame_size], raw[at + frame_size :], b""
        if file != INLINE:
            frame, state, rest = b"", b"", raw[at:]
        if len(raw) != at + (frame_size + state_size if file == INLINE else DIGEST):
            raise ValueError("a row has another length than it says")
        entry = Entry(r, releases, frame, state or None, heard, note, forget, tuple(heads))
        return cls(entry, digest, file, frame_size, state_size, rest)


def _pack_release(each: Release) -> bytes:
    kinds = _ADJACENCIES.index(each.adjacency), MECHANISMS.index(each.mechanism)
    numbers = each.sensitivity, each.noise_std, each.sample_rate, each.user_rate
    return _RELEASE.pack(
        each.sender, each.step, *numbers, each.steps, each.count, each.stream, *kinds, each.joint
    )


def _unpack_release(
    sender: int, step: int, sensitivity: float, noise_std: float, sample_rate: float, user_rate: float,
    steps: int, count: int, stream: int, adjacency: int, mechanism: int, joint: bool,
) -> Release:  # fmt: skip
    return Release(
        sender, step, sensitivity, noise_std, _ADJACENCIES[adjacency], sample_rate, user_rate,
        MECHANISMS[mechanism], steps, count, joint, stream,
    )  # fmt: skip


def frame_digest(frame: bytes) -> bytes:
    """Return the digest that a frame ends with, before its signature."""
    return bytes(frame[-TRAILER:-SIGNATURE])
