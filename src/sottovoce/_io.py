"""Files that are whole or absent, values as JSON and TOML know them, and their digests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import tomli_w

from sottovoce.errors import DataError, InvalidInput


@contextlib.contextmanager
def locked(path: str | Path, patience: float) -> Iterator[None]:
    """Keep other processes out until the block ends; the lock goes with the process that holds it.

    Raises BlockingIOError if another one holds it for longer than ``patience`` seconds, another OSError if
    the file cannot be opened.
    """
    import fcntl  # where there is none, everything else here still works

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def atomic_write(
    path: str | Path,
    content: bytes | str | Callable[[BinaryIO], object],
    *,
    durable: bool = True,
    mode: int = 0o666,
) -> Path:
    """Write a file so that a reader, or a crash at any moment, sees the old one or the new one, never half.

    Parameters
    ----------
    path : the file; its folder is made if missing.
    content : bytes, text (written as UTF-8), or a function that writes into the open file.
    durable : whether to return only when file and name are on the disk; else a crash of the machine may
        bring the old file back.
    mode : rights of the file before the umask takes its part; 0o600 for the owner only.
    """
    target = Path(path)
    if target.is_dir():
        raise DataError(f"{target} is a folder, expected a file name.")
    # a random name: two writers of one file must not write into each other's half
    partial = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode() if isinstance(content, str) else content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(target.parent)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from error
    return target


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: a rename alone may be forgotten by a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shred(path: Path) -> None:
    """Overwrite a file with zeros, on the disk, and remove it; nothing happens if it does not exist."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:
        file.write(bytes(path.stat().st_size))
        os.fsync(file.fileno())
        path.unlink()


def to_jsonable(value: object) -> Any:
    """Return ``value`` with numpy scalars, arrays, tuples, sets and paths turned into what JSON knows.

    NaN becomes None, infinities become the words "inf" and "-inf": JSON has no numbers for them.
    """
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    if isinstance(value, np.generic):
        return to_jsonable(value.item())
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):  # in one order, which sets of words do not have by themselves
        return sorted((to_jsonable(item) for item in value), key=repr)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def to_toml(tables: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Return tables as the text of a TOML file, with comments at its head."""
    return "".join(f"# {line}\n" for line in comments) + tomli_w.dumps(tables, multiline_strings=True)


def digest(value: object) -> str:
    """Return the SHA-256 of ``value`` as canonical JSON (sorted keys, `to_jsonable`), in hexadecimal.

    Arrays, sparse matrices and tensors in it count by type, shape and bytes. What is neither plain nor an
    array is refused: its words would change from process to process.
    """
    text = json.dumps(to_jsonable(_arrays_named(value)), sort_keys=True, default=_refused)
    return hashlib.sha256(text.encode()).hexdigest()


def _arrays_named(value: object) -> Any:
    """Return ``value`` with each array replaced by its type, shape and the digest of its bytes."""
    if isinstance(value, Mapping):
        return {str(key): _arrays_named(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arrays_named(item) for item in value]
    # an object of a package that was never imported cannot be one of its types
    sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if sparse is not None and sparse.issparse(value):
        csr = sparse.csr_array(value)
        return {"sparse": list(csr.shape), "parts": _arrays_named([csr.indptr, csr.indices, csr.data])}
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        raw = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "sha256": raw}
    return value


def _refused(value: object) -> NoReturn:
    raise InvalidInput(
        f"A digest needs plain values and arrays, got {type(value).__name__}; describe it by those."
    )
