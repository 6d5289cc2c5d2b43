"""Checkpoints that one process or all ranks write, and any number of ranks can continue from.

Every rank writes the rows of its own agents, arrays only; when all have written, rank 0 renames one small
file, ``current.json``, that names the step and the files. Until then the checkpoint before is the valid
one, so a crash at any moment leaves a whole checkpoint behind. One process writes one part. All ranks
must see the folder.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.errors import ConfigError, DataError, InvalidInput
from sottovoce.ledger.charge import CURRENT
from sottovoce.runners.state import leaves, rebuilt


class Saved(NamedTuple):
    """Where a run can go on: the step to do next, and the files that hold the state before it."""

    step: int
    files: tuple[str, ...]


class Checkpoint:
    """A folder of checkpoints of one run.

    One process calls `save`, ranks call `write` and one of them `commit`; all call `load`. With several
    ranks an array of the state has one row per hosted agent, or is the same on every rank; with one process
    it may be anything.

    Parameters
    ----------
    folder : where the files are; made when first written.
    identity : digest of the run; a folder of another run is refused.

    Guarantees
    ----------
    A crash at any moment leaves the last whole checkpoint. Only arrays and numbers are written or read, never
    code. The state holds what agents have computed from their records: keep the folder as the records are
    kept.
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self.folder, self.identity = Path(folder), identity

    def latest(self) -> Saved | None:
        """Return the last whole checkpoint, None if there is none."""
        try:
            record = json.loads((self.folder / CURRENT).read_text())
            saved = Saved(int(record["step"]), tuple(str(name) for name in record["files"]))
            identity = str(record["identity"])
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._no_folder() from None
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{self.folder / CURRENT} is damaged; remove the folder to begin anew.") from None
        if identity != self.identity:
            raise ConfigError(
                f"{self.folder} holds a checkpoint of another plan or version ({identity[:12]}, this one is "
                f"{self.identity[:12]}); name another folder, or remove it to begin anew."
            )
        return saved

    def write(self, step: int, agents: np.ndarray, state: object, part: int) -> str:
        """Write the hosted agents' state durably and return the file's name."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self._no_folder() from None
        name = f"step-{step:09d}.part-{part:05d}.npz"
        arrays: dict[str, Any] = {f"leaf{k}": leaf for k, leaf in enumerate(leaves(state))}
        if any(leaf.dtype.hasobject for leaf in arrays.values()):
            raise InvalidInput("A checkpoint holds arrays and numbers only; this state holds other objects.")
        atomic_write(self.folder / name, lambda file: np.savez(file, agents=agents, **arrays))
        return name

    def commit(self, step: int, files: Sequence[str]) -> None:
        """Make the files of ``step`` the checkpoint, then drop older ones (one rank calls this)."""
        unseen = [part for part, name in enumerate(files) if not (self.folder / name).exists()]
        if unseen:
            raise DataError(
                f"What rank {unseen[0]} wrote is not in {self.folder} here; the folder must be shared by all."
            )
        content = {"step": step, "identity": self.identity, "files": list(files)}
        atomic_write(self.folder / CURRENT, json.dumps(content, indent=1))
        # older parts, and what a rank that died while it wrote has left
        for pattern in ("step-*.npz", ".step-*.npz.*", f".{CURRENT}.*"):
            for old in self.folder.glob(pattern):
                if old.name not in files:
                    old.unlink(missing_ok=True)

    def save(self, step: int, agents: np.ndarray, state: object) -> None:
        """Write the checkpoint of a run that is in one process: the state of all agents before ``step``."""
        self.commit(step, [self.write(step, agents, state, part=0)])

    def load(self, agents: np.ndarray, like: object) -> tuple[int, Any] | None:
        """Return (step to do next, state of ``agents``) of the last checkpoint, None without one.

        It does not matter who hosted the agents when it was written. ``like`` is a fresh state of the same
        agents. Arrays whose first axis counts the hosted agents are put together by agent; others (step
        counters) are common to all.
        """
        saved = self.latest()
        if saved is None:
            return None
        fresh, agents = leaves(like), np.asarray(agents)
        parts = [self._part(name) for name in saved.files]
        stored = np.concatenate([hosted for hosted, _ in parts])
        missing = np.setdiff1d(agents, stored)
        if missing.size:
            raise DataError(f"The checkpoint in {self.folder} lacks agent {missing[0]}.")
        order = np.argsort(stored)
        places = order[np.searchsorted(stored[order], agents)]
        per_agent = [leaf.ndim > 0 and len(leaf) == len(agents) for leaf in fresh]
        for hosted, arrays in parts:
            pairs = zip(fresh, per_agent, strict=True)
            expected = [(len(hosted), *leaf.shape[1:]) if each else leaf.shape for leaf, each in pairs]
            if (shapes := [array.shape for array in arrays]) != expected:
                raise ConfigError(
                    f"The checkpoint in {self.folder} holds arrays of shapes {shapes}, this algorithm's "
                    f"state has {expected}; name another folder."
                )
        # in the stored precision: a fresh state may begin in another one
        columns = zip(per_agent, *(arrays for _, arrays in parts), strict=True)
        whole = [np.concatenate(pieces)[places] if each else pieces[0] for each, *pieces in columns]
        return saved.step, rebuilt(like, whole)

    def _no_folder(self) -> ConfigError:
        return ConfigError(f"{self.folder} is a file, a checkpoint is a folder; name another place.")

    def _part(self, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the agents of one file, and their arrays in order."""
        try:
            with open(self.folder / name, "rb") as file, np.load(file, allow_pickle=False) as stored:
                return stored["agents"], [stored[f"leaf{k}"] for k in range(len(stored.files) - 1)]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.folder / name} cannot be read ({error}); remove the folder to begin anew."
            ) from None
