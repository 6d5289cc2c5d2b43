"""What a thief of a state folder can read: every state in its database, with the key in its key file.

SQLite's log keeps the pages that later commits have overwritten. Cut after any commit, it gives back the
database as it was then, with the state of that moment; the key file may open it or not.
"""

from __future__ import annotations

import hashlib
import hmac
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.ledger.run_ledger import LEDGER, STATE_KEY

_SUCCESSORS = 300  # keys that follow from the one in the file


class SavedState(NamedTuple):
    """The state after the row of one round, as a cut of the log gives it; ``plain`` is None if it is safe."""

    rows: int
    round: int
    plain: bytes | None


def saved_states(folder: Path, session: bytes, node: int) -> list[SavedState]:
    """Return all states that a copy of the folder still holds, oldest first, decrypted where that works."""
    key = (folder / STATE_KEY).read_bytes()
    keys = [key]
    while len(keys) < _SUCCESSORS:
        keys.append(hmac.digest(keys[-1], b"next", "sha256"))
    context = hashlib.sha256(b"sottovoce ledger" + session + struct.pack("<I", node)).digest()
    states = {}
    for database in _cuts(folder):
        with closing(sqlite3.connect(database)) as connection:
            for rows, r, sealed in connection.execute(
                "SELECT count(*), max(round), value FROM chain, state GROUP BY id"
            ):
                plain = _opened(sealed, keys, context)
                states[sealed] = SavedState(rows, r, plain)
    return list(states.values())


def contains(folder: Path, secret: bytes) -> bool:
    """Return whether a file of the folder contains 32 bytes, as they are or in hexadecimal."""
    contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return any(secret in content or secret.hex().encode() in content for content in contents)


def _cuts(folder: Path) -> Iterator[Path]:
    """Yield the database as it was after the last checkpoint and after each commit in the log since."""
    log = folder / f"{LEDGER}-wal"
    whole = log.read_bytes() if log.exists() else b""
    ends = [0]
    if len(whole) > 32:
        (page,) = struct.unpack_from(">I", whole, 8)
        frames = range(32, len(whole) - page - 23, 24 + page)
        # a frame that ends a commit says how large the database is after it
        ends += [at + 24 + page for at in frames if struct.unpack_from(">I", whole, at + 4)[0]]
    for end in ends:
        with tempfile.TemporaryDirectory() as room:
            shutil.copy(folder / LEDGER, room)
            if end:
                Path(room, log.name).write_bytes(whole[:end])
            yield Path(room, LEDGER)


def _opened(sealed: bytes, keys: Iterable[bytes], context: bytes) -> bytes | None:
    for key in keys:
        try:
            return AESGCM(key).decrypt(sealed[:12], sealed[12:], context)
        except (InvalidTag, ValueError):
            continue
    return None
