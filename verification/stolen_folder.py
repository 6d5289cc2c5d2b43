"""What a thief of a state folder can read: every state in its ledger, with the key in its key file.

The ledger keeps the states of all rows, and files of large content may hold those of earlier ones; the key
file may open them or not.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.ledger.chain import read_lines
from sottovoce.ledger.run_ledger import LARGE, LEDGER, STATE_KEY
from sottovoce.ledger.store import INLINE, Row

_SUCCESSORS = 300  # keys that follow from the one in the file


class SavedState(NamedTuple):
    """The state after the row of one round; ``plain`` is None if it is safe."""

    rows: int
    round: int
    plain: bytes | None


def saved_states(folder: Path, session: bytes, node: int) -> list[SavedState]:
    """Return all states that a copy of the folder still holds, oldest first, decrypted where that works."""
    keys = [(folder / STATE_KEY).read_bytes()]
    while len(keys) < _SUCCESSORS:
        keys.append(hmac.digest(keys[-1], b"next", "sha256"))
    context = hashlib.sha256(b"sottovoce ledger" + session + struct.pack("<I", node)).digest()
    states = []
    for rows, line in enumerate(read_lines(folder / LEDGER)):
        if rows:
            row = Row.unpack(b64decode(line.content))
            if row.state_size:
                states.append(SavedState(rows, row.entry.round, _opened(_sealed(folder, row), keys, context)))
    return states


def _sealed(folder: Path, row: Row) -> bytes:
    """Return the encrypted state of a row, or what a later row has put in its place."""
    if row.file == INLINE:
        return row.entry.state or b""
    raw = (folder / LARGE.format(row.file)).read_bytes()
    return raw[row.frame_size : row.frame_size + row.state_size]


def contains(folder: Path, secret: bytes) -> bool:
    """Return whether a file of the folder contains 32 bytes, as they are or in hexadecimal."""
    contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return any(secret in content or secret.hex().encode() in content for content in contents)


def _opened(sealed: bytes, keys: Iterable[bytes], context: bytes) -> bytes | None:
    for key in keys:
        try:
            return AESGCM(key).decrypt(sealed[:12], sealed[12:], context)
        except (InvalidTag, ValueError):
            continue
    return None
