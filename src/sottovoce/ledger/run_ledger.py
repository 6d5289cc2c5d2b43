"""The ledger of one run: every release, and the bytes it paid for, durable before they are sent.

Every commit appends one row (`sottovoce.ledger.chain`). Frames and states of more than a few kilobytes lie
beside the ledger in files that are overwritten in turn, and the row holds their digests. The chain cannot
show that its newest rows are missing; head files and the other members do (see `sottovoce.ledger`). Any doubt
is an error, and nothing is sent. The state is encrypted under a key that is overwritten after each commit
(`StateKey`), so the files do not tell the keys of past steps.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import math
import os
import struct
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce._io import atomic_write, shred, sync_folder
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.ledger.balance import Charge, charge_from_row
from sottovoce.ledger.chain import chained, exclusive, explained, hash_at, read_lines, written
from sottovoce.ledger.state_key import StateKey
from sottovoce.ledger.store import INLINE, TRAILER, Entry, Row, StoredRun, frame_digest

# files of a state folder
LEDGER, HEAD_FILE, LOCK, CONTINUED = "run.ledger", "head", "lock", "continued"
STATE_KEY, LARGE = "state.key", "large-{}"
_HEAD = struct.Struct("<Q32s")
_PATIENCE = 0.15  # seconds: `peer status` holds the lock for a moment
_FORMAT = 1
_SMALL = 4096  # bytes of frame and state up to which they are in the row itself
_ATTEMPTS = 3  # to read a ledger that a peer is writing
# zeros written ahead of the rows: they fit on the disk before noise is drawn, and a sync that need not record
# another size of the file takes less time
_AHEAD = 1 << 17


class Pending(NamedTuple):
    """A row that has its place in the chain and is not on the disk yet."""

    line: bytes
    file: int
    large: tuple[bytes, ...]
    rows: int  # up to and with this one
    hash: bytes
    key: bytes | None  # of its state


class RunLedger:
    """The durable ledger of one peer in one run.

    ``session`` names frames and ledger (`Agreement.session`), ``about`` holds public facts for `peer status`.
    ``head_file`` is a second file with the newest head, outside the folder; if the lifetime ledger says that
    this ledger was in use, ``used``, that file must exist.

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
            resources.enter_context(exclusive(self.folder / LOCK, _PATIENCE, _name(self.folder)))
            self._find_or_create(about or {})
            self._file = os.open(self.folder / LEDGER, os.O_RDWR | os.O_CLOEXEC)
            resources.callback(os.close, self._file)
            content = _read(self.folder, session, node)
            if content.compacted:
                raise LedgerError(
                    f"The run in {folder} has finished and its ledger was compacted; it sends nothing more."
                )
            self.about = content.about
            self._saved, self._begins = content.saved, content.begins
            self.head = self._durable_head = content.head
            self._count = self._durable = content.count
            self._frames, self._state_place = content.frames, content.state
            self._released: dict[int, int] = {}  # large files that rows do not need, and since which row
            self._large: dict[int, int] = {}  # those that are open
            resources.callback(self._close_large)
            # the head file is made before the first row, so a chain with rows and no head file has lost it
            self._open_head_file(resources, self.folder / HEAD_FILE, required=self._count > 0)
            if head_file is not None:
                self._open_head_file(resources, Path(head_file), required=used)
            self._key = StateKey(self.folder / STATE_KEY, self._saved.state, _context(session, node))
            resources.callback(self._key.close)
            self._saved.state = self._key.state
            self._size = self._require_room()
            self._resources = resources.pop_all()

    def load(self) -> StoredRun:
        """Return the content, checked when the ledger was opened."""
        return self._saved

    def commit(self, entry: Entry) -> None:
        """Append one row and return when it is on the disk."""
        self.write([self.prepare(entry)])

    def prepare(self, entry: Entry) -> Pending:
        """Give an entry its place in the chain; it is durable when `write` has returned."""
        self._require_whole()
        key, state = None, b""
        if entry.state is not None:
            state, key = self._key.encrypt(entry.state, same_keys=entry.same_keys)
        place = self._take_place(entry, len(entry.frame) + len(state) > _SMALL)
        digest = frame_digest(entry.frame) if entry.frame else bytes(32)
        inline, rest = entry._replace(state=state), b""
        if place != INLINE:
            inline, rest = entry._replace(frame=b"", state=None), _rest(entry.frame, state)
        row = Row(inline, digest, place, len(entry.frame), len(state), rest)
        line, self.head = chained(self.head, b64encode(row.pack()))
        self._begins.append(self._begins[-1] + len(line))
        self._count += 1
        large = () if place == INLINE else (entry.frame, state)
        return Pending(line, place, large, self._count, self.head, key)

    def write(self, rows: Sequence[Pending]) -> None:
        """Put prepared rows on the disk, in their order; return when they are there."""
        self._require_whole()
        self._failed = True  # until the rows are durable
        begin, end = (self._begins[row.rows + k] for row, k in ((rows[0], 0), (rows[-1], 1)))
        with _explained(self.folder):
            self._require_unchanged(self._begins[self._durable], begin)
            for row in rows:
                if row.large:
                    self._write_large(row)
            content = b"".join(row.line for row in rows)
            if end >= self._size:
                content, self._size = content + bytes(_AHEAD), end + _AHEAD
            _write(self._file, content, begin)
            os.fdatasync(self._file)
            for descriptor in self._head_files:
                _write_head(descriptor, rows[-1].rows, rows[-1].hash)
            keys = [row.key for row in rows if row.key is not None]
            if keys:
                self._key.advance(keys[-1])
        self._durable, self._durable_head = rows[-1].rows, rows[-1].hash
        self._failed = False

    def _require_unchanged(self, newest: int, end: int) -> None:
        """Raise if another process wrote to the ledger: its newest row begins and ends where it did."""
        about, row = os.fstat(self._file), os.pread(self._file, end - newest + 1, newest)
        same = row.startswith(self._durable_head.hex().encode()) and row.endswith(b"\n\0")
        if not same or about.st_size != self._size or not about.st_nlink:
            raise LedgerError(
                f"The ledger in {self.folder} was replaced, or another process writes to it, so nothing "
                "was sent; stop all peers and start one."
            )

    def newest(self) -> tuple[int, bytes]:
        """Return how many rows there are, and the hash of the last, which stands for the whole ledger."""
        return self._count, self.head

    def row_hash(self, count: int) -> bytes:
        """Return the hash of the last of the first ``count`` rows; empty if there are fewer."""
        if count == self._count:
            return self.head
        return b"" if self._closed or count > self._durable else hash_at(self._file, self._begins[count])

    def compact(self) -> None:
        """Replace the ledger of a finished run by one line without frames, state and digests of rows.

        Its releases, incidents, the newest head of each other member and its own newest head stay.

        Guarantees
        ----------
        A crash at any point leaves the whole ledger or the compacted one; both fit the head files, which are
        synced before the ledger is replaced.
        """
        saved = self._saved
        if saved.state is None or saved.at < self.about.get("rounds", math.inf):
            raise ConfigError(f"The run in {self.folder} has not finished; only a finished one is compacted.")
        content = {
            "at": saved.at,
            "rows": self._count,
            "head": self.head.hex(),
            "releases": [release.to_dict() for release in _merged(saved.releases)],
            "notes": saved.notes,
            "heads": {str(node): head.hex() for node, head in saved.heads.items()},
        }
        with _explained(self.folder):
            for descriptor in self._head_files:
                os.fsync(descriptor)
            header = _header(self.session, self.node, self.about) | {"compacted": content}
            atomic_write(self.folder / LEDGER, _first_line(header), mode=0o600)
        self._failed = True

    def close(self) -> None:
        """Close the files; the ledger stays, without the zeros written ahead."""
        if not (self._failed or self._closed):
            with suppress(OSError):
                os.ftruncate(self._file, self._begins[self._durable + 1])
        self._failed = self._closed = True
        self._head_files.clear()
        self._resources.close()

    # ---- large frames and states -----------------------------------------------------------------

    def _take_place(self, entry: Entry, large: bool) -> int:
        """Return the number of the file for frame and state, one that no durable row needs."""
        needed, place = {*self._frames.values(), self._state_place}, INLINE
        if large:
            numbers, released = itertools.count(), self._released
            place = next(k for k in numbers if k not in needed and released.get(k, 0) <= self._durable)
        for r in entry.forget:
            self._frames.pop(r, None)
        if entry.frame and large:
            self._frames[entry.round] = place
        if entry.state is not None:
            self._state_place = place
        for k in needed.difference(self._frames.values(), [self._state_place]):
            self._released[k] = self._count + 1
        return place

    def _write_large(self, row: Pending) -> None:
        """Write the frame and the state of a row; they are on the disk before the row is."""
        descriptor = self._large.get(row.file)
        if descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            descriptor = self._large[row.file] = os.open(self.folder / LARGE.format(row.file), flags, 0o600)
            sync_folder(self.folder)
        frame, state = row.large
        _write(descriptor, frame, 0)
        _write(descriptor, state, len(frame))
        os.fdatasync(descriptor)

    def _close_large(self) -> None:
        for descriptor in self._large.values():
            os.close(descriptor)

    # ---- opening ---------------------------------------------------------------------------------

    def _require_whole(self) -> None:
        if self._failed:
            raise LedgerError(f"The ledger in {self.folder} failed; nothing more is sent.")

    def _find_or_create(self, about: Mapping[str, object]) -> None:
        path, continued, head = (self.folder / name for name in (LEDGER, CONTINUED, HEAD_FILE))
        if continued.exists():
            successor = continued.read_text(errors="replace")[:16]
            raise LedgerError(
                f"The run in {self.folder} continues as {successor}, which counts what it released; run that "
                "agreement, this one sends nothing more."
            )
        if path.exists():
            return
        if head.exists() and head.stat().st_size:
            raise LedgerError(f"The ledger {path} is missing although the folder was used; restore it.")
        atomic_write(path, _first_line(_header(self.session, self.node, about)), mode=0o600)

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
        if known and not _contains(self._file, self._begins, known):
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

    def _require_room(self) -> int:
        """Cut off what a crash left of a row, write zeros ahead, and return the size of the file."""
        end = self._begins[-1]
        os.ftruncate(self._file, end)
        try:
            _write(self._file, bytes(_AHEAD), end)
            os.fdatasync(self._file)
        except BaseException:
            os.ftruncate(self._file, end)
            raise
        return end + _AHEAD


# ---- reading -------------------------------------------------------------------------------------------


@dataclass
class _Content:
    """The content of a ledger that fits its chain; the state is encrypted."""

    about: dict[str, Any]
    session: bytes
    node: int
    head: bytes  # hash of the newest row
    begins: array[int]  # where the header and each row begin, and where the next will
    saved: StoredRun = field(default_factory=StoredRun)
    frames: dict[int, int] = field(default_factory=dict)  # the files of large frames, by round
    state: int = INLINE  # the file of the state
    files: dict[int, Row] = field(default_factory=dict)  # the row that wrote a file last
    compacted: int = 0  # how many rows there were before `RunLedger.compact`

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.compacted or len(self.begins) - 2

    def add_compacted(self, content: Mapping[str, Any]) -> None:
        """Add what `RunLedger.compact` keeps of all rows."""
        self.compacted, self.head = int(content["rows"]), bytes.fromhex(content["head"])
        self.saved.at, self.saved.notes = int(content["at"]), list(content["notes"])
        self.saved.releases = [Release(**each) for each in content["releases"]]
        self.saved.heads = {int(node): bytes.fromhex(head) for node, head in content["heads"].items()}

    def add(self, row: Row) -> None:
        """Add one row; what is in files is read when all rows are known."""
        entry, saved = row.entry, self.saved
        saved.at = entry.round
        saved.releases += entry.releases
        saved.heard |= {(r, sender): proof for r, sender, proof in entry.heard}
        saved.heads.update(entry.heads)
        saved.notes += [entry.note] * bool(entry.note)
        for r in entry.forget:
            saved.outbox.pop(r, None)
            self.frames.pop(r, None)
        if row.file != INLINE:
            self.files[row.file] = row
        if row.frame_size:
            saved.sent[entry.round], saved.outbox[entry.round] = row.digest, entry.frame
            if row.file != INLINE:
                self.frames[entry.round] = row.file
        if row.state_size:
            saved.state, self.state = entry.state, row.file

    def read_files(self, folder: Path) -> None:
        """Read and check large frames and state, and check every frame that can be requested again."""
        saved = self.saved
        for number in {*self.frames.values(), self.state} - {INLINE}:
            row, raw = self.files[number], (folder / LARGE.format(number)).read_bytes()
            frame, state = raw[: row.frame_size], raw[row.frame_size : row.frame_size + row.state_size]
            if row.rest != _rest(frame, state):
                raise ValueError(f"the file {LARGE.format(number)} is not as it was written")
            if self.frames.get(row.entry.round) == number:
                saved.outbox[row.entry.round] = frame
            if self.state == number:
                saved.state = state
        for r, frame in saved.outbox.items():
            if not saved.sent[r] == frame_digest(frame) == hashlib.sha256(frame[:-TRAILER]).digest():
                raise ValueError(f"the stored row of round {r}")


def _read(folder: Path, session: bytes | None = None, node: int | None = None) -> _Content:
    """Return the content of a state folder, all of it checked; ValueError on damage."""
    path = folder / LEDGER
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise ValueError("its beginning is missing")
    header = json.loads(first.content)
    if header.get("format") != _FORMAT:
        raise LedgerError(
            f"The ledger {path} has format {str(header.get('format'))[:20]!r}, this program writes format "
            f"{_FORMAT}; finish that run with the version that began it, or agree on a new run."
        )
    written_by = bytes.fromhex(header["session"]), int(header["node"])
    if session is not None and written_by != (session, node):
        raise LedgerError(
            f"The ledger {path} belongs to another run or member; choose another folder with --state, or the "
            "agreement of that run."
        )
    content = _Content(header["about"], *written_by, first.hash, array("Q", [0, first.end]))
    if "compacted" in header:
        if first.end != path.stat().st_size:
            raise ValueError("something follows its only row")
        content.add_compacted(header["compacted"])
        return content
    for line in lines:
        content.add(Row.unpack(b64decode(line.content, validate=True)))
        content.head = line.hash
        content.begins.append(line.end)
    content.read_files(folder)
    return content


def read_ledger(folder: str | Path, *, head_file: str | Path | None = None) -> dict[str, Any]:
    """Return the content of a state folder without disturbing a running peer.

    The keys: ``session``, ``node``, ``about``, ``saved`` (a `StoredRun` with its state encrypted), ``rows``,
    ``head`` (hex), ``compacted``. A ledger older than the head in ``head_file`` is refused.
    """
    path = Path(folder) / LEDGER
    if not path.exists():
        raise LedgerError(f"{folder} is not a state folder: {path} does not exist.")
    with _explained(Path(folder)):
        # before the rows: a running peer writes the head after them
        known = None if head_file is None else Path(head_file).read_bytes()
        content = _read_while_running(Path(folder))
        with open(path, "rb") as file:
            newest = known is None or known == _HEAD.pack(content.count, content.head)
            if not newest and not _contains(file.fileno(), content.begins, known or b""):
                raise LedgerError(f"The ledger {path} is older than its head in {head_file}.")
    facts = {"session": content.session.hex(), "node": content.node, "about": content.about}
    facts |= {"rows": content.count, "head": content.head.hex(), "compacted": bool(content.compacted)}
    return {**facts, "saved": content.saved}


def _read_while_running(folder: Path) -> _Content:
    """Read a ledger, again if a running peer reuses a large file meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            return _read(folder)
        except ValueError:
            if attempt == _ATTEMPTS - 1 or not is_locked(folder):
                raise
    raise AssertionError


def verify_ledger(folder: str | Path, head_file: Path | None = None) -> int:
    """Check the whole chain against the head in the folder and another one; return the number of rows."""
    heads = [Path(folder) / HEAD_FILE, *([] if head_file is None else [head_file])]
    return int(min(read_ledger(folder, head_file=each)["rows"] for each in heads))


def compact_ledger(folder: str | Path, head_file: Path | None = None) -> None:
    """Compact the ledger of a finished run (`RunLedger.compact`), and erase its state and large files.

    A call after a crash goes on where the last one stopped.
    """
    place = Path(folder)
    stored = read_ledger(place, head_file=head_file)
    if not stored["compacted"]:
        session = bytes.fromhex(stored["session"])
        used = head_file is not None
        ledger = RunLedger(place, session=session, node=stored["node"], head_file=head_file, used=used)
        with closing(ledger):
            ledger.compact()
    erase_state_key(place)
    for file in place.glob(LARGE.format("*")):
        file.unlink()


def _merged(releases: Iterable[Release]) -> list[Release]:
    """Return the same releases with equal ones of successive steps as one."""
    merged: list[Release] = []
    for release in releases:
        last = merged[-1] if merged else release
        follows = release.step == last.step + last.steps and not release.joint  # a joint one counts once
        if follows and replace(release, step=last.step, steps=last.steps) == last:
            merged[-1] = replace(last, steps=last.steps + release.steps)
        else:
            merged.append(release)
    return merged


def _header(session: bytes, node: int, about: Mapping[str, object]) -> dict[str, object]:
    return {"format": _FORMAT, "session": session.hex(), "node": node, "about": about}


def _first_line(header: Mapping[str, object]) -> bytes:
    return written([json.dumps(header, sort_keys=True).encode()])


def read_charge(folder: str | Path) -> Charge | None:
    """Return the charge of the run in a state folder, or None if it ran without a member directory."""
    row = read_ledger(folder)["about"].get("charge")
    return None if row is None else charge_from_row(row)


def _contains(file: int, begins: array[int], known: bytes) -> bool:
    """Return whether the chain contains the row that a head file names."""
    if len(known) != _HEAD.size:
        return False
    count, head = _HEAD.unpack(known)
    return count + 2 <= len(begins) and hash_at(file, begins[count]) == head


# ---- folders -------------------------------------------------------------------------------------------


@contextmanager
def at_rest(folder: str | Path) -> Iterator[None]:
    """Lock a state folder while its releases are counted; `LedgerError` if a peer is running on it."""
    with ExitStack() as stack:
        if Path(folder).is_dir():
            stack.enter_context(exclusive(Path(folder) / LOCK, _PATIENCE, _name(Path(folder))))
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


def _rest(frame: bytes, state: bytes) -> bytes:
    """Return the digest of what a frame's own digest does not stand for."""
    rest = hashlib.sha256(frame[-TRAILER:])
    rest.update(state)
    return rest.digest()


def _name(folder: Path) -> str:
    return f"The state folder {folder}"


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explained(_name(folder), "restore the state folder")


def _context(session: bytes, node: int) -> bytes:
    """Return what the encryption of a state is bound to."""
    return hashlib.sha256(b"sottovoce ledger" + session + struct.pack("<I", node)).digest()


def _write(descriptor: int, content: bytes, begin: int) -> None:
    """Write all of it at a place in a file."""
    left = memoryview(content)
    while left:
        size = os.pwrite(descriptor, left, begin)
        left, begin = left[size:], begin + size


def _write_head(descriptor: int, count: int, head: bytes) -> None:
    _write(descriptor, _HEAD.pack(count, head), 0)
