"""The ledger of one run: every release, and the bytes it paid for, durable before they are sent.

SQLite in WAL mode with ``synchronous=FULL``: a commit returns after the log was synced to the disk. Rows are
chained by SHA-256, so a changed, missing or exchanged row is noticed. The chain cannot show that its newest
rows are missing; head files and the other members do (see `sottovoce.ledger`). Any doubt is an error, and
nothing is sent. The state is encrypted under a key that is overwritten after each commit (`StateKey`), so
neither database nor log tells the keys of past steps.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write, locked, shred, sync_folder
from sottovoce.accounting.release import Release
from sottovoce.errors import DataError, LedgerError
from sottovoce.ledger.lifetime import Charge, charge_from_row
from sottovoce.ledger.state_key import StateKey
from sottovoce.ledger.store import TRAILER, Entry, StoredRun, frame_digest

# files of a state folder; a session names the run and, under masks, its keys
LEDGER, HEAD_FILE, LOCK, SESSION_FILE, CONTINUED = "ledger.sqlite", "head", "lock", "session", "continued"
STATE_KEY = "state.key"
_HEARD = struct.Struct("<QI96s")
_HEAD = struct.Struct("<Q32s")
_PATIENCE = 0.15  # seconds: `peer status` holds the lock for a moment
_FORMAT = 1
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE chain (seq INTEGER PRIMARY KEY, round INTEGER NOT NULL, releases BLOB NOT NULL,
    frame_digest BLOB NOT NULL, state_digest BLOB NOT NULL, heard BLOB NOT NULL, note TEXT NOT NULL,
    heads_digest BLOB NOT NULL, hash BLOB NOT NULL);
CREATE TABLE heads (node INTEGER PRIMARY KEY, frame BLOB NOT NULL);
CREATE TABLE outbox (round INTEGER PRIMARY KEY, frame BLOB NOT NULL);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
"""
_PRAGMAS = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
PRAGMA trusted_schema=OFF;
"""


class RunLedger:
    """The durable ledger of one peer in one run.

    Parameters
    ----------
    folder : the state folder; created for the owner only if it does not exist.
    session : the 32 bytes that name frames and ledger: `Agreement.session`.
    node : the member's number.
    about : public facts that `peer status` shows (title, names of members, budget).
    head_file : a second file with the newest head, outside the folder.
    used : whether that file must exist because the lifetime ledger says that this ledger was in use.

    Guarantees
    ----------
    `commit` returns only when releases, frame and state are on the disk together and the key of the state
    before is not; if anything fails it raises `LedgerError`, and so does every later commit. Opening raises
    if the ledger is missing although the folder was used, is damaged, is older than a head file or its key,
    has lost one of them, belongs to another run or member, is in use, or cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        session: bytes,
        node: int,
        about: Mapping[str, object] | None = None,
        head_file: str | Path | None = None,
        used: bool = False,
    ) -> None:
        self.folder, self.session, self.node = Path(folder), session, node
        self._head_files: list[int] = []
        self._failed = self._closed = False
        with _explained(self.folder), ExitStack() as resources:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.stat().st_mode & 0o022:
                raise LedgerError(f"The state folder {folder} can be written by others; run chmod 700 on it.")
            resources.enter_context(locked(self.folder / LOCK, _PATIENCE))
            self._connection = self._connect(about or {})
            resources.callback(self._connection.close)
            content = _read_all(self._connection, session, node, self.folder / LEDGER)
            self._saved, self._count, self.head, self._state_digest = content
            self._key = StateKey(self.folder / STATE_KEY, self._saved.state, _genesis(session, node))
            resources.callback(self._key.close)
            self._saved.state = self._key.state
            # a ledger that cannot be written must be noticed before noise is drawn
            self._connection.execute(
                "INSERT INTO meta VALUES ('opened', 1) ON CONFLICT DO UPDATE SET value = value + 1"
            )
            # the head file is made before the first row, so a chain with rows and no head file has lost it
            self._open_head_file(resources, self.folder / HEAD_FILE, required=self._count > 0)
            if head_file is not None:
                self._open_head_file(resources, Path(head_file), required=used)
            self._resources = resources.pop_all()

    def load(self) -> StoredRun:
        """Return the content, checked when the ledger was opened."""
        return self._saved

    def commit(self, entry: Entry) -> None:
        """Append one row and return when it is on the disk."""
        if self._failed:
            raise LedgerError(f"The ledger in {self.folder} failed; nothing more is sent.")
        self._failed = True  # until the commit has succeeded
        heads = _heads_digest({**self._saved.heads, **dict(entry.heads)})
        if entry.state is not None:
            entry = entry._replace(state=self._key.encrypt(entry.state))
        row = _chained(self._count, self.head, entry, self._state_digest, heads)
        with _explained(self.folder):
            execute, executemany = self._connection.execute, self._connection.executemany
            execute("BEGIN IMMEDIATE")
            execute("INSERT INTO chain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if entry.frame:
                execute("INSERT INTO outbox VALUES (?, ?)", (entry.round, entry.frame))
            executemany("DELETE FROM outbox WHERE round = ?", [(r,) for r in entry.forget])
            executemany("INSERT OR REPLACE INTO heads VALUES (?, ?)", entry.heads)
            if entry.state is not None:
                execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (entry.state,))
            execute("COMMIT")
            self._count, self.head, self._state_digest = self._count + 1, row[-1], row[4]
            self._saved.heads.update(entry.heads)
            for descriptor in self._head_files:
                _write_head(descriptor, self._count, self.head)
            if entry.state is not None:
                self._key.advance()
        self._failed = False

    def newest(self) -> tuple[int, bytes]:
        """Return how many rows there are, and the hash of the last, which stands for the whole ledger."""
        return self._count, self.head

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows."""
        if count == self._count or self._closed:
            return self.head if count == self._count else _genesis(self.session, self.node)
        return _row_hash(self._connection, count, _genesis(self.session, self.node))

    def close(self) -> None:
        """Close the files; the ledger stays."""
        self._failed = self._closed = True
        self._head_files.clear()
        self._resources.close()

    # ---- opening ---------------------------------------------------------------------------------

    def _connect(self, about: Mapping[str, object]) -> sqlite3.Connection:
        path, session_file, continued = (
            self.folder / LEDGER,
            self.folder / SESSION_FILE,
            self.folder / CONTINUED,
        )
        if continued.exists():
            successor = continued.read_text(errors="replace")[:16]
            raise LedgerError(
                f"The run in {self.folder} continues as {successor}, which counts what it released; run that "
                "agreement, this one sends nothing more."
            )
        if session_file.exists():
            self._check_run(path, session_file)
        elif not path.exists():
            self._create(path, about)
        with ExitStack() as stack:
            connection = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            connection.executescript(_PRAGMAS)
            if not session_file.exists():
                if connection.execute("SELECT count(*) FROM chain").fetchone()[0]:
                    raise LedgerError(
                        f"The file {session_file}, which names the run, is missing; restore the state folder."
                    )
                atomic_write(session_file, self.session.hex() + "\n", mode=0o600)
            stack.pop_all()
        return connection

    def _check_run(self, path: Path, session_file: Path) -> None:
        """Check that a used folder belongs to this run."""
        named = session_file.read_text(errors="replace").strip()
        if named != self.session.hex():
            raise LedgerError(
                f"The state folder {self.folder} belongs to another run ({named[:16]}); choose another "
                "folder with --state, or the agreement of that run."
            )
        if not path.exists() or path.stat().st_size == 0:
            raise LedgerError(f"The ledger {path} is missing although the folder was used; restore it.")

    def _create(self, path: Path, about: Mapping[str, object]) -> None:
        """Create an empty ledger under another name first, so that a crash leaves no half ledger."""
        fresh = path.with_suffix(".new")
        for leftover in self.folder.glob(fresh.name + "*"):
            leftover.unlink()
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        meta = {"format": str(_FORMAT), "session": self.session.hex(), "node": str(self.node)}
        meta["about"] = json.dumps(about, sort_keys=True)
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            connection.executescript(f"BEGIN IMMEDIATE;{_TABLES}")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
        os.rename(fresh, path)
        sync_folder(self.folder)

    def _open_head_file(self, resources: ExitStack, path: Path, *, required: bool) -> None:
        """Open a file that holds the newest head, and check the chain against it."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        resources.callback(os.close, descriptor)
        self._head_files.append(descriptor)
        known = os.pread(descriptor, _HEAD.size, 0)
        if not known and required:
            raise LedgerError(
                f"The head of the ledger in {path} is missing although the ledger was used, so nothing shows "
                "that the ledger is the newest; restore that file."
            )
        if known and not _contains(self._connection, known, _genesis(self.session, self.node)):
            raise LedgerError(
                f"The ledger in {self.folder} is older than its head in {path}: rows are missing; "
                "use the newest folder, or close the run."
            )
        try:
            _write_head(descriptor, self._count, self.head)  # a crash may have left it one row behind
            if not known:  # synced once; later writes stay within these bytes, so none can tear it
                os.fsync(descriptor)
                sync_folder(path.parent)
        except OSError:
            if not known:
                os.ftruncate(descriptor, 0)
            raise


# ---- reading -------------------------------------------------------------------------------------------


def read_ledger(folder: str | Path, *, head_file: str | Path | None = None) -> dict[str, Any]:
    """Return the content of a state folder without disturbing a running peer.

    The keys: ``session``, ``node``, ``about``, ``saved`` (a `StoredRun` with its state encrypted), ``rows``,
    ``head`` (hex). A ledger older than the head in ``head_file`` is refused.
    """
    path = Path(folder) / LEDGER
    if not path.exists():
        raise LedgerError(f"{folder} is not a state folder: {path} does not exist.")
    with _explained(Path(folder)), ExitStack() as stack:
        # before the rows: a running peer writes the head after them
        known = None if head_file is None else Path(head_file).read_bytes()
        connection = stack.enter_context(
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))
        )
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        session, node = bytes.fromhex(meta["session"]), int(meta["node"])
        connection.execute("BEGIN")
        saved, count, head, _ = _read_all(connection, session, node, path)
        if known is not None and not _contains(connection, known, _genesis(session, node)):
            raise LedgerError(f"The ledger {path} is older than its head in {head_file}.")
        about = json.loads(meta["about"])
    facts = {"session": session.hex(), "node": node, "about": about}
    return {**facts, "saved": saved, "rows": count, "head": head.hex()}


def verify_ledger(folder: str | Path, head_file: Path | None = None) -> int:
    """Check the whole chain against the head in the folder and another one; return the number of rows."""
    heads = [Path(folder) / HEAD_FILE, *([] if head_file is None else [head_file])]
    return int(min(read_ledger(folder, head_file=each)["rows"] for each in heads))


def read_charge(folder: str | Path) -> Charge | None:
    """Return the charge of the run in a state folder, or None if it ran without a member directory."""
    row = read_ledger(folder)["about"].get("charge")
    return None if row is None else charge_from_row(row)


def _read_all(
    connection: sqlite3.Connection, session: bytes, node: int, path: Path
) -> tuple[StoredRun, int, bytes, bytes]:
    """Return the content, the number of rows, the last hash and the digest of the state, all checked.

    A ValueError says what is damaged.
    """
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    if meta.get("format") != str(_FORMAT):
        raise LedgerError(
            f"The ledger {path} has format {str(meta.get('format'))[:20]!r}, this program writes format "
            f"{_FORMAT}; finish that run with the version that began it, or agree on a new run."
        )
    if meta.get("session") != session.hex() or meta.get("node") != str(node):
        raise LedgerError(
            f"The ledger {path} belongs to another run or member; choose another folder with --state."
        )
    saved, head, count, state_digest, heads = StoredRun(), _genesis(session, node), 0, b"", _heads_digest({})
    for row in connection.execute("SELECT * FROM chain ORDER BY seq"):
        if row[0] != count or row[-1] != _chained_hash(head, row[:-1]):
            raise ValueError(f"row {count} does not fit the chain")
        _, saved.at, releases, sent, state_digest, heard, note, heads, head = row
        saved.releases += [Release.from_bytes(raw) for raw in releases.split(b"\n") if raw]
        if sent:
            saved.sent[saved.at] = sent
        saved.heard |= {(number, sender): digest for number, sender, digest in _HEARD.iter_unpack(heard)}
        saved.notes += [note] * bool(note)
        count += 1
    for r, frame in connection.execute("SELECT round, frame FROM outbox"):
        if not saved.sent.get(r) == frame_digest(frame) == hashlib.sha256(frame[:-TRAILER]).digest():
            raise ValueError(f"the stored row of round {r}")
        saved.outbox[r] = frame
    saved.heads = dict(connection.execute("SELECT node, frame FROM heads"))
    if _heads_digest(saved.heads) != heads:
        raise ValueError("the heads of other members")
    states = [value for (value,) in connection.execute("SELECT value FROM state")]
    if [hashlib.sha256(state).digest() for state in states] != [state_digest] * bool(state_digest):
        raise ValueError("the saved state")
    saved.state = states[0] if states else None
    if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
        raise ValueError("SQLite's own check")
    return saved, count, head, state_digest


def _row_hash(connection: sqlite3.Connection, count: int, genesis: bytes) -> bytes:
    """Return the hash of the last of the first ``count`` rows; empty if there are fewer."""
    if count == 0:
        return genesis
    row = connection.execute("SELECT hash FROM chain WHERE seq = ?", (count - 1,)).fetchone()
    return b"" if row is None else bytes(row[0])


def _contains(connection: sqlite3.Connection, known: bytes, genesis: bytes) -> bool:
    """Return whether the chain contains the row that a head file names."""
    if len(known) != _HEAD.size:
        return False
    count, head = _HEAD.unpack(known)
    return bool(_row_hash(connection, count, genesis) == head)


# ---- folders -------------------------------------------------------------------------------------------


@contextmanager
def at_rest(folder: str | Path) -> Iterator[None]:
    """Lock a state folder while its releases are counted; `LedgerError` if a peer is running on it."""
    with ExitStack() as stack:
        with _explained(Path(folder)), suppress(FileNotFoundError, NotADirectoryError):
            stack.enter_context(locked(Path(folder) / LOCK, _PATIENCE))
        yield


def is_locked(folder: str | Path) -> bool:
    """Return whether a process holds the lock of a state folder."""
    try:
        with open(Path(folder) / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # no folder, no peer
    return False


def give_up(folder: str | Path, session: str) -> None:
    """Mark a state folder as continued by ``session``, so that no peer opens it again."""
    if (Path(folder) / LEDGER).exists():
        with _explained(Path(folder)):
            atomic_write(Path(folder) / CONTINUED, session + "\n", mode=0o600)
            erase_state_key(folder)


def erase_state_key(folder: str | Path) -> None:
    """Erase the keys in the saved state of a run that is over; what it released stays readable."""
    with _explained(Path(folder)):
        shred(Path(folder) / STATE_KEY)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn errors of the disk, of SQLite and about stored content into a `LedgerError`."""
    try:
        yield
    except BlockingIOError:
        raise LedgerError(f"The state folder {folder} is in use by another process; stop it first.") from None
    except DataError as error:
        raise LedgerError(f"The state folder cannot be used, so nothing was sent: {error}") from None
    except OSError as error:
        raise LedgerError(
            f"The state folder {folder} cannot be used ({error.strerror}), so nothing was sent; make room or "
            "restore it and start again, or choose another."
        ) from None
    except sqlite3.Error as error:
        full = "full" in str(error) or "disk I/O" in str(error)
        remedy = "make room on the disk and start again" if full else "restore the state folder"
        raise LedgerError(f"The ledger in {folder} failed ({error}), nothing was sent; {remedy}.") from None
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise LedgerError(
            f"The ledger in {folder} is damaged ({error}), so nothing was sent; restore the state folder."
        ) from None


# ---- rows ----------------------------------------------------------------------------------------------


def _genesis(session: bytes, node: int) -> bytes:
    return hashlib.sha256(b"sottovoce ledger" + session + struct.pack("<I", node)).digest()


def _chained(count: int, head: bytes, entry: Entry, state: bytes, heads: bytes) -> tuple[Any, ...]:
    row = (
        count,
        entry.round,
        b"\n".join(release.to_bytes() for release in entry.releases),
        frame_digest(entry.frame),
        state if entry.state is None else hashlib.sha256(entry.state).digest(),
        b"".join(_HEARD.pack(*item) for item in entry.heard),
        entry.note,
        heads,
    )
    return (*row, _chained_hash(head, row))


def _chained_hash(previous: bytes, values: Iterable[bytes | int | str]) -> bytes:
    """Return the hash of the previous hash and all values, each with its length, so no two rows collide."""
    total = hashlib.sha256(previous)
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        total.update(struct.pack("<Q", len(raw)))
        total.update(raw)
    return total.digest()


def _heads_digest(heads: Mapping[int, bytes]) -> bytes:
    return hashlib.sha256(b"".join(struct.pack("<I", v) + heads[v] for v in sorted(heads))).digest()


def _write_head(descriptor: int, count: int, head: bytes) -> None:
    if os.pwrite(descriptor, _HEAD.pack(count, head), 0) != _HEAD.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
