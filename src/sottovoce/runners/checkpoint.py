"""What all ranks write together and any number of ranks can go on from.

Every rank writes the rows of its own agents, arrays only; when all have written, rank 0 renames one small
file, ``current.json``, that names the step and the files. Until then the checkpoint before is the valid
one, so a crash at any moment leaves a whole checkpoint behind. The folder must be seen by all ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce.errors import ConfigError, DataError

__all__ = ["Checkpoint", "leaves", "rebuilt"]

CURRENT = "current.json"
LOCK = ".lock"


def leaves(state: Any) -> list[np.ndarray]:
    """Return the arrays of an algorithm's state in order; tuples, lists and mappings may be nested.

    Examples
    --------
    >>> [leaf.tolist() for leaf in leaves((np.ones(2), {"count": 3}))]
    [[1.0, 1.0], 3]
    """
    if state is None:
        return []
    if isinstance(state, Mapping):
        return [leaf for key in state for leaf in leaves(state[key])]
    if isinstance(state, (tuple, list)):
        return [leaf for item in state for leaf in leaves(item)]
    return [np.asarray(state)]


def rebuilt(like: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return a state shaped like ``like`` that holds ``arrays``, the inverse of `leaves`.

    Examples
    --------
    >>> rebuilt((0.0, {"count": 0}), [np.array(0.5), np.array(3)])
    (0.5, {'count': 3})
    """
    left = list(arrays)
    state = _filled(like, left)
    if left:
        raise ConfigError(f"The checkpoint holds {len(left)} arrays more than this algorithm's state.")
    return state


def _filled(like: Any, left: list[np.ndarray]) -> Any:
    if like is None:
        return None
    if isinstance(like, Mapping):
        return {key: _filled(like[key], left) for key in like}
    if isinstance(like, (tuple, list)):
        made = [_filled(item, left) for item in like]
        return type(like)(*made) if hasattr(like, "_fields") else type(like)(made)
    if not left:
        raise ConfigError("The checkpoint holds fewer arrays than this algorithm's state.")
    array = left.pop(0)
    return array if isinstance(like, np.ndarray) else type(like)(array.item())


class Saved(NamedTuple):
    """Where a run can go on: the step to do next, and the files that hold the state before it."""

    step: int
    files: tuple[str, ...]


class Checkpoint:
    """A folder of checkpoints of one run.

    Parameters
    ----------
    folder : where the files are; made when first written.
    identity : digest of the plan; a folder of another plan is refused.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> first = Checkpoint(folder, "plan-1")
    >>> name = first.write(3, np.array([0, 1]), np.array([[1.0], [2.0]]), part=0)
    >>> first.commit(3, [name])
    >>> second = Checkpoint(folder, "plan-1")
    >>> second.found().step, second.read(np.array([1]), like=np.zeros((1, 1))).tolist()
    (3, [[2.0]])
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self.folder, self.identity = Path(folder), identity

    def found(self) -> Saved | None:
        """Return the last whole checkpoint, None if there is none."""
        try:
            text = (self.folder / CURRENT).read_text()
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._no_folder() from None
        try:
            record = json.loads(text)
            saved = Saved(int(record["step"]), tuple(str(name) for name in record["files"]))
            identity = record["identity"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{self.folder / CURRENT} is damaged; remove the folder to begin anew.") from None
        if identity != self.identity:
            raise ConfigError(
                f"{self.folder} holds a checkpoint of another plan or version ({identity[:12]}, this one is "
                f"{self.identity[:12]}); name another folder, or remove it to begin anew."
            )
        return saved

    def write(self, step: int, agents: np.ndarray, state: Any, part: int) -> str:
        """Write the hosted agents' state durably and return the file's name."""
        self._make()
        name = f"step-{step:09d}.part-{part:05d}.npz"
        arrays: dict[str, Any] = {f"leaf{k}": leaf for k, leaf in enumerate(leaves(state))}
        _durably(self.folder / name, lambda file: np.savez(file, agents=agents, **arrays))
        return name

    def commit(self, step: int, files: Sequence[str]) -> None:
        """Make the files of ``step`` the checkpoint, then drop older ones (one rank calls this)."""
        unseen = [part for part, name in enumerate(files) if not (self.folder / name).exists()]
        if unseen:
            raise DataError(
                f"What rank {unseen[0]} wrote is not in {self.folder} here; the folder must be shared by all."
            )
        record = {"step": step, "identity": self.identity, "files": list(files)}
        _durably(self.folder / CURRENT, lambda file: file.write(json.dumps(record, indent=1).encode()))
        # older parts, and what a rank that died while it wrote has left
        for old in (*self.folder.glob("step-*.npz"), *self.folder.glob(".step-*.npz.*")):
            if old.name not in files:
                old.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self, patience: float = 5.0) -> Iterator[None]:
        """Keep other runs away from the folder until the block ends (one rank calls this).

        Two runs in one folder would delete each other's files. The lock goes with the process that holds it;
        ``patience`` seconds are left for one that is just dying.
        """
        import fcntl

        self._make()
        deadline = time.monotonic() + patience
        with open(self.folder / LOCK, "a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConfigError(
                            f"{self.folder} is in use by another run; wait for it, or name another folder."
                        ) from None
                    time.sleep(0.1)
            yield

    def read(self, agents: np.ndarray, like: Any) -> Any:
        """Return the state of ``agents`` from the last checkpoint, whoever hosted them when it was written.

        ``like`` is a fresh state of the same agents. Arrays whose first axis counts the hosted agents
        are cut and put together by agent; others (step counters) are common to all.
        """
        saved = self.found()
        assert saved is not None
        wanted = leaves(like)
        per_agent = [leaf.ndim > 0 and leaf.shape[0] == len(agents) for leaf in wanted]
        got: list[Any] = [
            np.empty_like(leaf) if own else None for leaf, own in zip(wanted, per_agent, strict=True)
        ]
        missing = set(agents.tolist())
        for name in saved.files:
            stored, rows = self._part(name, len(wanted))
            _, here, there = np.intersect1d(agents, stored, return_indices=True)
            missing -= set(agents[here].tolist())
            for k, leaf in enumerate(rows):
                if not per_agent[k]:
                    got[k] = leaf
                elif leaf.shape[1:] != wanted[k].shape[1:] or leaf.shape[0] != len(stored):
                    raise ConfigError(f"{name} holds rows of shape {leaf.shape}, expected {wanted[k].shape}.")
                else:
                    got[k][here] = leaf[there]
        if missing:
            raise DataError(f"The checkpoint in {self.folder} lacks agent {min(missing)}.")
        return rebuilt(like, got)

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self._no_folder() from None

    def _no_folder(self) -> ConfigError:
        return ConfigError(f"{self.folder} is a file, as a run in one process keeps it; name a folder.")

    def _part(self, name: str, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
        try:
            with open(self.folder / name, "rb") as file, np.load(file, allow_pickle=False) as stored:
                rows = [stored[f"leaf{k}"] for k in range(len(stored.files) - 1)]
                agents = stored["agents"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{self.folder / name} cannot be read ({error}).") from None
        if rows and len(rows) != count:
            raise ConfigError(f"{name} holds {len(rows)} arrays, this algorithm's state has {count}.")
        return agents, rows


def _durably(path: Path, write: Any) -> None:
    """Write a file beside ``path``, flush it to disk, then rename it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
