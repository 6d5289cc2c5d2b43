"""The format of both ledgers: a file of lines, each chained to all before it by SHA-256.

A line is ``HASH CONTENT``: the hash, in hexadecimal, of the hash of the line before and of the content. A
changed, missing or exchanged line does not fit the chain. That the newest lines are missing shows elsewhere
(see `sottovoce.ledger`).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sottovoce._io import locked
from sottovoce.errors import DataError, LedgerError

MAGIC = hashlib.sha256(b"sottovoce ledger\n").digest()  # the hash before the first line
_HASH = 64  # characters of a hash


class Line(NamedTuple):
    """A line that fits the chain: its content, its hash, and where it begins and ends in the file."""

    content: bytes
    hash: bytes
    begin: int
    end: int


def chained(previous: bytes, content: bytes) -> tuple[bytes, bytes]:
    """Return a line as it is written, and its hash."""
    digest = hashlib.sha256(previous + content).digest()
    return b"%s %s\n" % (digest.hex().encode(), content), digest


def written(contents: Iterable[bytes]) -> bytes:
    """Return a whole file."""
    lines, head = [], MAGIC
    for content in contents:
        line, head = chained(head, content)
        lines.append(line)
    return b"".join(lines)


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines that fit the chain; ValueError for one that does not, unless it is the last.

    A crash can leave a last line half written, and zeros that were written ahead may follow. It was never
    acknowledged, so nothing was sent for it. New lines are added at the end of the last whole one.
    """
    head, end = MAGIC, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            content = line[_HASH + 1 : -1]
            whole, digest = chained(head, content)
            if whole != line:
                if any(rest.strip(b"\0") for rest in file):
                    raise ValueError(f"row {number} does not fit the chain")
                return
            yield Line(content, digest, end, end + len(line))
            head, end = digest, end + len(line)


def hash_at(file: int, begin: int) -> bytes:
    """Return the hash of the line that begins at a byte of an open file."""
    return bytes.fromhex(os.pread(file, _HASH, begin).decode())


@contextmanager
def explained(name: str, remedy: str) -> Iterator[None]:
    """Turn errors of the disk and of stored content into a `LedgerError`; ``remedy`` is for damage."""
    try:
        yield
    except BlockingIOError:
        raise LedgerError(f"{name} is in use by another process; stop it first.") from None
    except DataError as error:
        raise LedgerError(
            f"{name} cannot be written, so nothing was sent; make room or restore it and start again: {error}"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"{name} cannot be used ({error.strerror}), so nothing was sent; make room or restore it and "
            "start again."
        ) from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise LedgerError(f"{name} is damaged ({error}), so nothing was sent; {remedy}.") from None


@contextmanager
def exclusive(lock: Path, patience: float, name: str) -> Iterator[None]:
    """Keep other processes from a ledger until the block ends."""
    with ExitStack() as stack:
        with explained(name, ""):
            stack.enter_context(locked(lock, patience))
        yield
