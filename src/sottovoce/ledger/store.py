"""What a peer hands to its run ledger and gets back from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sottovoce.accounting.release import Release

DIGEST, SIGNATURE = 32, 64
TRAILER = DIGEST + SIGNATURE  # a frame ends with its digest and the signature of it


class Entry(NamedTuple):
    """What one commit makes durable, all of it or nothing; a state of None keeps the previous state."""

    round: int
    releases: tuple[Release, ...]
    frame: bytes
    state: bytes | None
    heard: tuple[tuple[int, int, bytes], ...]
    note: str = ""
    forget: tuple[int, ...] = ()
    heads: tuple[tuple[int, bytes], ...] = ()


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


def frame_digest(frame: bytes) -> bytes:
    """Return the digest that a frame ends with, before its signature."""
    return bytes(frame[-TRAILER:-SIGNATURE])
