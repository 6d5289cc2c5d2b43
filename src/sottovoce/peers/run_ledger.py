"""The ledger on disk: every spend and the very bytes it paid for, durable before they are sent.

SQLite in WAL mode with ``synchronous=FULL``: a commit returns after the log was synced to the disk. Rows
are chained by SHA-256, so a changed, missing or exchanged row is noticed when the ledger is opened; what
the chain cannot show, that the newest rows are missing altogether, is shown by the anchor file beside it
and by the neighbors (see `sottovoce.peers.core`). Anything doubtful is an error, and then nothing is sent.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write, sync_folder
from sottovoce.accounting.release import Release
from sottovoce.errors import DataError, LedgerError
from sottovoce.peers.core import Entry, Saved
from sottovoce.peers.lifetime_ledger import RunCharge, charge_from_row
from sottovoce.peers.wire_format import TRAILER, digest_of

__all__ = ["SqliteLedger", "at_rest", "give_up", "read_charge", "read_ledger"]

LEDGER, ANCHOR, LOCK, MARK, OVER = "ledger.sqlite", "anchor", "lock", "run", "continued"
_HEARD = struct.Struct("<QI96s")
_ANCHOR = struct.Struct("<Q32s")
_TIDY = 32  # commits after which the log is emptied
_FORMAT = 1
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE chain (seq INTEGER PRIMARY KEY, round INTEGER NOT NULL, releases BLOB NOT NULL,
    frame_digest BLOB NOT NULL, state_digest BLOB NOT NULL, heard BLOB NOT NULL, note TEXT NOT NULL,
    heads_digest BLOB NOT NULL, hash BLOB NOT NULL);
CREATE TABLE heads (member INTEGER PRIMARY KEY, frame BLOB NOT NULL);
CREATE TABLE outbox (round INTEGER PRIMARY KEY, frame BLOB NOT NULL);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
"""


class SqliteLedger:
    """The durable store of one peer in one run.

    Parameters
    ----------
    folder : the state folder; made, for the owner only, if it does not exist.
    run : the 32 bytes that name the run.
    node : which member this is.
    about : public facts kept beside the ledger for `peer status` (the agreement, names).
    witness : a file outside the folder that holds the newest head too: a folder restored from a backup is
        older than it.
    witnessed : whether that file must exist, since a lifetime ledger says that this ledger was in use.

    Guarantees
    ----------
    `commit` returns only when spend, frame and state are on the disk together; if anything fails it raises
    `LedgerError`, and every later commit raises too. Opening raises if the ledger is missing although the
    folder was used, is damaged anywhere, is older than its anchor or its witness, has lost either, belongs to
    another run or member, is in use, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sottovoce.peers.core import Entry
    >>> from sottovoce.peers.wire_format import FrameCodec
    >>> folder = tempfile.mkdtemp()
    >>> ledger = SqliteLedger(folder, run=bytes(32), node=0)
    >>> release = Release(sender=0, step=0, sensitivity=1.0, noise_std=2.0)
    >>> frame = FrameCodec(bytes(32), 2, 1, 1, "float64").row(np.zeros(1), sender=0, round=0)
    >>> ledger.commit(Entry(0, (release,), frame, b"the state", ()))
    >>> ledger.close()
    >>> again = SqliteLedger(folder, run=bytes(32), node=0)
    >>> again.load().releases == [release], again.load().outbox == {0: frame}
    (True, True)
    >>> again.close()
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        run: bytes,
        node: int,
        about: dict[str, Any] | None = None,
        witness: str | Path | None = None,
        witnessed: bool = False,
    ) -> None:
        self.folder, self.run, self.node = Path(folder), run, node
        self._anchors: list[int] = []
        self._broken = False
        self._connection: sqlite3.Connection | None = None
        self._lock = self._claim()
        try:
            with self._explained():
                self._open(about or {})
            self._saved, self._count, self._head, self._state_digest = self._verify()
            # the anchor is made before the first row, so a chain with rows and no anchor has lost it
            self._open_anchor(self.folder / ANCHOR, required=self._count > 0)
            if witness is not None:
                with self._explained():
                    Path(witness).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._open_anchor(Path(witness), required=witnessed)
        except BaseException:
            self.close()
            raise

    # ---- the two calls of a store ----------------------------------------------------------------

    def load(self) -> Saved:
        """Return what was found, after the whole chain was checked."""
        return self._saved

    def commit(self, entry: Entry) -> None:
        """Append one row and return when it is on the disk."""
        if self._broken or self._connection is None:
            raise LedgerError(f"The ledger in {self.folder} failed before; nothing more is sent.")
        self._broken = True  # until all of it has gone well
        with self._explained():
            row = _chained(self._count, self._head, entry, self._state_digest, self._with(entry.heads))
            cursor = self._connection
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("INSERT INTO chain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if entry.frame:
                cursor.execute("INSERT INTO outbox VALUES (?, ?)", (entry.round, entry.frame))
            cursor.executemany("DELETE FROM outbox WHERE round = ?", [(r,) for r in entry.forget])
            cursor.executemany("INSERT OR REPLACE INTO heads VALUES (?, ?)", entry.heads)
            if entry.state is not None:
                cursor.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (entry.state,))
            cursor.execute("COMMIT")
            self._count, self._head, self._state_digest = self._count + 1, row[-1], row[4]
            self._saved.heads.update(entry.heads)
            for anchor in self._anchors:
                _mark_anchor(anchor, self._count, self._head)
            if self._count % _TIDY == 0:
                self.tidy()
        self._broken = False

    def newest(self) -> tuple[int, bytes]:
        """Return how many rows there are, and the hash of the last."""
        return self._count, self._head

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows."""
        if count == self._count:
            return self._head
        if count == 0 or self._connection is None:
            return _genesis(self.run, self.node)
        row = self._connection.execute("SELECT hash FROM chain WHERE seq = ?", (count - 1,)).fetchone()
        return b"" if row is None else bytes(row[0])

    def _with(self, heads: tuple[tuple[int, bytes], ...]) -> bytes:
        return _heads_digest({**self._saved.heads, **dict(heads)})

    @property
    def head(self) -> bytes:
        """Hash of the newest row: it stands for the whole ledger."""
        return self._head

    def tidy(self) -> None:
        """Empty the log of what was overwritten: keys of past steps are then nowhere in the folder."""
        if self._connection is not None:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the files; the ledger stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        while self._anchors:
            os.close(self._anchors.pop())
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- opening ---------------------------------------------------------------------------------

    def _claim(self) -> int | None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(
                f"The state folder {self.folder} cannot be written ({error.strerror}); choose another."
            ) from None
        if self.folder.stat().st_mode & 0o022:
            os.close(lock)
            raise LedgerError(
                f"The state folder {self.folder} can be written by others; run chmod 700 on it."
            )
        _take(lock, self.folder)
        return lock

    def _open(self, about: dict[str, Any]) -> None:
        path, mark, over = self.folder / LEDGER, self.folder / MARK, self.folder / OVER
        if over.exists():
            heir = over.read_text(errors="replace")[:16]
            raise LedgerError(
                f"The run in {self.folder} goes on as {heir}, for which what it released was counted; run "
                "that agreement, this one sends nothing more."
            )
        if mark.exists():
            self._belongs(path, mark)
        elif not path.exists():
            self._create(path, about)
        self._connection = connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA secure_delete=ON")  # an old state holds keys that must not outlive it
        if not mark.exists():
            if connection.execute("SELECT count(*) FROM chain").fetchone()[0]:
                raise LedgerError(f"The mark {mark} of the run is missing; restore the state folder.")
            try:
                atomic_write(mark, self.run.hex() + "\n", mode=0o600)
            except DataError as error:
                raise LedgerError(f"The state folder failed, so nothing was sent: {error}") from None

    def _belongs(self, path: Path, mark: Path) -> None:
        """Check a folder that was used before."""
        named = mark.read_text(errors="replace").strip()
        if named != self.run.hex():
            raise LedgerError(
                f"The state folder {self.folder} belongs to another run ({named[:16]}); choose another "
                "folder with --state, or the agreement of that run."
            )
        if not path.exists() or path.stat().st_size == 0:
            raise LedgerError(f"The ledger {path} is missing although the folder was used; restore it.")

    def _create(self, path: Path, about: dict[str, Any]) -> None:
        """Make an empty ledger under another name first: a crash here leaves no half ledger behind."""
        fresh = path.with_suffix(".new")
        for leftover in self.folder.glob(fresh.name + "*"):
            leftover.unlink()
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.strip().split(";")[:-1]:
                connection.execute(statement)
            facts = {"format": str(_FORMAT), "run": self.run.hex(), "node": str(self.node)}
            facts["about"] = json.dumps(about, sort_keys=True)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
            connection.execute("COMMIT")
        finally:
            connection.close()
        os.rename(fresh, path)
        sync_folder(self.folder)

    def _verify(self) -> tuple[Saved, int, bytes, bytes]:
        assert self._connection is not None
        with self._explained():
            saved, count, head, state = verified(self._connection, self.run, self.node, self.folder / LEDGER)
            # a chain that reads well but cannot be written must be found before noise is drawn
            self._connection.execute("BEGIN IMMEDIATE")
            again = "INSERT INTO meta VALUES ('opened', 1) ON CONFLICT DO UPDATE SET value = value + 1"
            self._connection.execute(again)
            self._connection.execute("COMMIT")
        return saved, count, head, state

    def _open_anchor(self, path: Path, *, required: bool) -> None:
        """Open a file that holds the newest head, check the chain against it, and keep it open."""
        with self._explained():
            anchor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._anchors.append(anchor)
            known = os.pread(anchor, _ANCHOR.size, 0)
            if not known and required:
                raise LedgerError(
                    f"The head of the ledger in {path} is missing although the ledger was used, so nothing "
                    "shows that the ledger is the newest; restore that file."
                )
            if known and not self._anchored(known):
                raise LedgerError(
                    f"The ledger in {self.folder} is older than its anchor {path}: rows are missing; "
                    "go on from the newest folder, or give the run up."
                )
            if not known:  # whole and synced once; later writes stay within these bytes, so none can tear it
                try:
                    _mark_anchor(anchor, self._count, self._head)
                    os.fsync(anchor)
                    sync_folder(path.parent)
                except OSError:
                    os.ftruncate(anchor, 0)
                    raise
            elif len(known) == _ANCHOR.size:
                # a crash may have left it a row behind; that row is about to be sent again
                _mark_anchor(anchor, self._count, self._head)

    def _anchored(self, known: bytes) -> bool:
        """Return whether the chain contains the anchored row."""
        assert self._connection is not None
        return _holds(self._connection, known, _genesis(self.run, self.node))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the disk and of SQLite into one sentence."""
        try:
            yield
        except UnicodeDecodeError:  # SQLite quotes what it stumbles over
            raise LedgerError(
                f"The ledger {self.folder / LEDGER} is damaged, so nothing was sent; restore the folder."
            ) from None
        except sqlite3.Error as error:
            full = "full" in str(error) or "disk I/O" in str(error)
            remedy = "make room on the disk and start again" if full else "restore the state folder"
            raise LedgerError(
                f"The ledger {self.folder / LEDGER} failed ({error}), so nothing was sent; {remedy}."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"The state folder {self.folder} failed ({error.strerror}), so nothing was sent; "
                "make room or restore it, and start again."
            ) from None


def verified(
    connection: sqlite3.Connection, run: bytes, node: int, path: Path
) -> tuple[Saved, int, bytes, bytes]:
    """Read the whole ledger and check it: chain, digests of frames and state, run and member."""

    def refuse(what: str) -> LedgerError:
        return LedgerError(
            f"The ledger {path} is damaged ({what}); restore the state folder, nothing was sent."
        )

    try:
        return _read_all(connection, run, node, path, refuse)
    except (TypeError, ValueError, struct.error):
        raise refuse("a value of another kind") from None


def _read_all(
    connection: sqlite3.Connection, run: bytes, node: int, path: Path, refuse: Callable[[str], LedgerError]
) -> tuple[Saved, int, bytes, bytes]:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    if meta.get("format") != str(_FORMAT):
        raise LedgerError(
            f"The ledger {path} has format {str(meta.get('format'))[:20]!r}, this program writes format "
            f"{_FORMAT}; finish that run with the version that began it, or agree on a new run."
        )
    if meta.get("run") != run.hex() or meta.get("node") != str(node):
        raise LedgerError(
            f"The ledger {path} belongs to another run or member; choose another folder with --state."
        )
    saved, head, count, state_digest, heads = Saved(), _genesis(run, node), 0, b"", _heads_digest({})
    rows = (
        "SELECT seq, round, releases, frame_digest, state_digest, heard, note, heads_digest, hash "
        "FROM chain ORDER BY seq"
    )
    for row in connection.execute(rows):
        if row[0] != count or row[-1] != _row_hash(head, row[:-1]):
            raise refuse(f"row {count} does not fit the chain")
        _, r, releases, frame_digest, state_digest, heard, note, heads, head = row
        _collect(saved, r, releases, frame_digest, heard, note)
        count += 1
    for r, frame in connection.execute("SELECT round, frame FROM outbox"):
        if not saved.sent.get(r) == digest_of(frame) == hashlib.sha256(frame[:-TRAILER]).digest():
            raise refuse(f"the stored row of round {r}")
        saved.outbox[r] = frame
    saved.heads = dict(connection.execute("SELECT member, frame FROM heads"))
    if _heads_digest(saved.heads) != heads:
        raise refuse("the heads of other members")
    states = [value for (value,) in connection.execute("SELECT value FROM state")]
    if [hashlib.sha256(state).digest() for state in states] != [state_digest] * bool(state_digest):
        raise refuse("the saved state")
    saved.state = states[0] if states else None
    if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
        raise refuse("SQLite's own check")
    return saved, count, head, state_digest


def read_ledger(folder: str | Path, *, witness: str | Path | None = None) -> dict[str, Any]:
    """Return what a state folder says, without disturbing a running peer.

    The keys: ``run``, ``node``, ``about``, ``saved`` (a `Saved`), ``rows``, ``head`` (hex). With a
    ``witness``, a ledger older than the head in that file, or without one, is refused.
    """
    path = Path(folder) / LEDGER
    if not path.exists():
        raise LedgerError(f"{folder} is not a state folder: {path} does not exist.")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            run, node = bytes.fromhex(meta["run"]), int(meta["node"])
            connection.execute("BEGIN")
            saved, count, head, _ = verified(connection, run, node, path)
            if witness is not None:
                known = Path(witness).read_bytes()
                if not _holds(connection, known, _genesis(run, node)):
                    raise LedgerError(f"The ledger {path} is older than its head in {witness}.")
        finally:
            connection.close()
    except (sqlite3.Error, KeyError, ValueError, OSError) as error:
        raise LedgerError(f"The ledger {path} cannot be read ({error}); restore the state folder.") from None
    return {
        "run": run.hex(),
        "node": node,
        "about": json.loads(meta["about"]),
        "saved": saved,
        "rows": count,
        "head": head.hex(),
    }


@contextmanager
def at_rest(folder: str | Path) -> Iterator[None]:
    """Hold a state folder while what left from it is counted, so that no peer releases more meanwhile.

    Raises `LedgerError` where a peer is running on it; a folder that is gone is at rest.
    """
    try:
        lock = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    except OSError as error:
        raise LedgerError(
            f"The state folder {folder} cannot be held ({error.strerror}), so nothing shows that no peer "
            "runs on it; make it readable."
        ) from None
    _take(lock, Path(folder))
    try:
        yield
    finally:
        os.close(lock)


def give_up(folder: str | Path, run: str) -> None:
    """Mark a state folder as one that goes on under another name, ``run``: no peer opens it again."""
    if (Path(folder) / LEDGER).exists():
        try:
            atomic_write(Path(folder) / OVER, run + "\n", mode=0o600)
        except DataError as error:
            raise LedgerError(f"The state folder failed, so nothing was sent: {error}") from None


def _take(lock: int, folder: Path) -> None:
    """Lock an open file, or close it and raise."""
    for patience in (True, True, True, False):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if patience:  # `peer status` looks at the lock for a moment, and must disturb nobody
                time.sleep(0.05)
    os.close(lock)
    raise LedgerError(f"The state folder {folder} is in use by another process; stop it first.")


def read_charge(folder: str | Path) -> RunCharge | None:
    """Return what the run in a state folder was charged with, or None if it was run without a member
    directory.
    """
    row = read_ledger(folder)["about"].get("charge")
    return None if row is None else charge_from_row(row)


def _holds(connection: sqlite3.Connection, known: bytes, genesis: bytes) -> bool:
    """Return whether the chain contains the row that an anchor names."""
    if len(known) != _ANCHOR.size:
        return False
    count, head = _ANCHOR.unpack(known)
    if count == 0:
        return bool(head == genesis)
    row = connection.execute("SELECT hash FROM chain WHERE seq = ?", (count - 1,)).fetchone()
    return row is not None and row[0] == head


def _collect(saved: Saved, r: int, releases: bytes, frame_digest: bytes, heard: bytes, note: str) -> None:
    saved.at = r
    saved.releases += [Release.from_bytes(raw) for raw in releases.split(b"\n") if raw]
    if frame_digest:
        saved.sent[r] = frame_digest
    for number, sender, digest in _HEARD.iter_unpack(heard):
        saved.heard[number, sender] = digest
    if note:
        saved.notes.append(note)


def _heads_digest(heads: dict[int, bytes]) -> bytes:
    return hashlib.sha256(b"".join(struct.pack("<I", v) + heads[v] for v in sorted(heads))).digest()


def _chained(count: int, head: bytes, entry: Entry, state: bytes, heads: bytes) -> tuple[Any, ...]:
    row = (
        count,
        entry.round,
        b"\n".join(release.to_bytes() for release in entry.releases),
        digest_of(entry.frame),
        state if entry.state is None else hashlib.sha256(entry.state).digest(),
        b"".join(_HEARD.pack(*item) for item in entry.heard),
        entry.note,
        heads,
    )
    return (*row, _row_hash(head, row))


def _row_hash(head: bytes, row: tuple[Any, ...]) -> bytes:
    """Hash of the previous hash and the fields, each with its length, so that no two rows look alike."""
    total = hashlib.sha256(head)
    for value in row:
        raw = value if isinstance(value, bytes) else str(value).encode()
        total.update(struct.pack("<Q", len(raw)))
        total.update(raw)
    return total.digest()


def _genesis(run: bytes, node: int) -> bytes:
    return hashlib.sha256(b"sottovoce ledger" + run + struct.pack("<I", node)).digest()


def _mark_anchor(anchor: int, count: int, head: bytes) -> None:
    if os.pwrite(anchor, _ANCHOR.pack(count, head), 0) != _ANCHOR.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
