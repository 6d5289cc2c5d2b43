"""What tables of trained networks share: records of trials that need not run twice, and cells of trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import ConfigError
from sottovoce.experiments.sweep import Spread, Trial
from sottovoce.runners.checkpoint import _durably

__all__ = ["accuracy_of", "keep", "kept", "run_cells"]


def kept(path: Path | None, **made_with: Any) -> dict[str, Any] | None:
    """Return the record at ``path``, or None; refuse one that was made with other settings.

    Examples
    --------
    >>> kept(None, settings={"clip": 1.0}) is None
    True
    """
    if path is None or not path.is_file():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise ConfigError(f"{path.name} is not a record; remove it to run the trial again.") from None
    for key, value in made_with.items():
        if record.get(key) != json.loads(json.dumps(value)):
            raise ConfigError(
                f"{path.name} was made with other {key} than asked for now; remove it or name another folder."
            )
    return record


def keep(path: Path | None, record: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all; do nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (json.dumps(record, indent=1) + "\n").encode()
        _durably(path, lambda file: file.write(text))


def run_cells(
    spread: Spread, function: Callable[..., Any], cells: Sequence[Sequence[Trial]]
) -> list[list[Any]]:
    """Run the trials of all cells as one list, and return them cell by cell.

    Examples
    --------
    >>> from sottovoce.experiments.sweep import grid, in_turn
    >>> run_cells(in_turn, lambda n: n + 1, [grid(n=[1, 2]), grid(n=[5])])
    [[2, 3], [6]]
    """
    found = iter(spread(function, [trial for cell in cells for trial in cell]))
    return [[next(found) for _ in cell] for cell in cells]


def accuracy_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of the accuracy, and how many trials they are of.

    Examples
    --------
    >>> accuracy_of([{"accuracy": 90.0}, {"accuracy": 92.0}])
    {'accuracy': 91.0, 'std': 1.41, 'trials': 2}
    """
    values = np.array([record["accuracy"] for record in records])
    spread = round(float(values.std(ddof=1)), 2) if len(values) > 1 else None
    return {"accuracy": round(float(values.mean()), 2), "std": spread, "trials": len(values)}
