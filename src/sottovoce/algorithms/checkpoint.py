"""Where a run stands, in one file: arrays and a JSON header, never code.

The file is written beside its place and moved there in one step, so it is whole or absent. It names the
plan it belongs to; a checkpoint of another plan is refused before anything is read from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import ConfigError
from sottovoce.runners.base import _plain

__all__ = ["Checkpoint", "fingerprint"]

_VERSION = 1


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return a digest of a plan's description.

    Examples
    --------
    >>> fingerprint({"steps": 3}) == fingerprint({"steps": 3}) != fingerprint({"steps": 4})
    True
    """
    text = json.dumps(_plain(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Checkpoint:
    """One checkpoint file of one plan.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = Checkpoint(Path(folder) / "run.npz", fingerprint({"steps": 3}))
    ...     kept.write(2, [1, 2, 3], (np.ones(2), (np.zeros(1),)))
    ...     step, seeds, arrays = kept.read()
    >>> step, seeds, sorted(arrays)
    (2, [1, 2, 3], ['0', '1.0'])
    """

    def __init__(self, path: str | Path, plan: str) -> None:
        self.path = Path(path)
        self.plan = plan

    def exists(self) -> bool:
        """Return whether there is a file to go on from."""
        return self.path.is_file()

    def write(self, step: int, seeds: list[int] | None, state: Any) -> None:
        """Write the state after ``step`` steps; ``seeds`` are kept for simulations only."""
        header = json.dumps({"version": _VERSION, "plan": self.plan, "step": step, "seeds": seeds})
        arrays = {f"state.{name}": value for name, value in _flatten(state).items()}
        beside = self.path.with_name(self.path.name + ".part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            np.savez(file, header=np.frombuffer(header.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def read(self) -> tuple[int, list[int] | None, dict[str, np.ndarray]]:
        """Return the step, the seeds and the arrays; refuse a file of another plan or a damaged one."""
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                header = json.loads(bytes(stored["header"]))
                if header["version"] != _VERSION:
                    raise ConfigError(
                        f"{self.path.name} was written by another version ({header['version']}); start anew."
                    )
                if header["plan"] != self.plan:
                    raise ConfigError(
                        f"{self.path.name} is a checkpoint of another run (plan {header['plan'][:8]}, this "
                        f"one is {self.plan[:8]}); name another file, or run the plan it belongs to."
                    )
                arrays = {
                    name.removeprefix("state."): stored[name]
                    for name in stored.files
                    if name.startswith("state.")
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
            if isinstance(problem, ConfigError):
                raise
            raise ConfigError(f"{self.path.name} is damaged or no checkpoint; start anew.") from None
        return int(header["step"]), header["seeds"], arrays

    @staticmethod
    def fill(template: Any, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Any:
        """Return a state shaped like ``template`` with the stored arrays in it."""
        if isinstance(template, tuple):
            parts = [Checkpoint.fill(part, arrays, f"{prefix}{i}.") for i, part in enumerate(template)]
            return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
        name = prefix[:-1]
        shape = np.shape(template)
        if name not in arrays or arrays[name].shape != shape:
            raise ConfigError("the checkpoint does not hold the state this plan needs; start anew.")
        return arrays[name]


def _flatten(state: Any, prefix: str = "") -> dict[str, np.ndarray]:
    if isinstance(state, tuple):
        return {
            name: value
            for i, part in enumerate(state)
            for name, value in _flatten(part, f"{prefix}{i}.").items()
        }
    return {prefix[:-1]: np.asarray(state)}
