"""What both ledgers share: hash chains, the lock of a folder, and the form of an entry.

Rows are chained by SHA-256, so a changed, missing or exchanged row is noticed when a ledger is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.accounting.release import Release
from sottovoce.errors import LedgerError

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


def chained_hash(previous: bytes, values: Iterable[bytes | int | str]) -> bytes:
    """Return the hash of the previous hash and all values, each with its length, so no two rows collide."""
    total = hashlib.sha256(previous)
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        total.update(struct.pack("<Q", len(raw)))
        total.update(raw)
    return total.digest()


def canonical_json(row: Mapping[str, Any]) -> str:
    """Return the one way to write a row as JSON."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_hash(row: Mapping[str, Any]) -> str:
    """Return the hash of a row of JSON, in hex."""
    return hashlib.sha256(b"sottovoce book\n" + canonical_json(row).encode()).hexdigest()


def lock_folder(lock: Path, folder: Path) -> int:
    """Return the open lock file of a state folder, held by this process until it is closed."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for last in (False, False, False, True):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if not last:  # `peer status` holds the lock for a moment
                time.sleep(0.05)
    os.close(handle)
    raise LedgerError(f"The state folder {folder} is in use by another process; stop it first.")


def is_locked(lock: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        handle = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
