"""Results on disk: small JSON files, written whole or not at all.

A result here is what `Result.to_dict` gives: name, config, metrics, history, guarantees, provenance. The
report reads results and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce._io import atomic_write
from sottovoce.errors import DataError
from sottovoce.runners import Result

_FIELDS: dict[str, type] = {
    "config": dict,
    "metrics": dict,
    "history": list,
    "guarantees": list,
    "provenance": dict,
}


def result_dict(
    name: str,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    guarantees: Sequence[Mapping[str, Any]] = (),
    **provenance: str,
) -> dict[str, Any]:
    """Return the plain values of a result that was computed, not run."""
    about = {"version": __version__, **provenance}
    return Result(name, config, metrics=metrics, guarantees=guarantees, provenance=about).to_dict()


def write_result(path: str | Path, result: Mapping[str, Any]) -> Path:
    """Write one result as JSON.

    Examples
    --------
    >>> import tempfile
    >>> from sottovoce.runners import Result
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_result(Path(folder) / "r.json", Result("demo", metrics={"error": 0.5}).to_dict())
    ...     read_result(file)["metrics"]
    {'error': 0.5}
    """
    return atomic_write(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a result; anything else is refused with a sentence.

    Examples
    --------
    >>> read_result("none.json")
    Traceback (most recent call last):
    sottovoce.errors.DataError: There is no file none.json; --out FILE.json of a command writes a result.
    """
    source = Path(path)
    try:
        result = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"There is no file {source}; --out FILE.json of a command writes a result.") from None
    except OSError as error:
        raise DataError(f"Cannot read {source}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{source} is not text; expected a result in JSON.") from None
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"{source} is not JSON (line {line}); expected a result.") from None
    if not isinstance(result, dict) or not isinstance(result.get("name"), str):
        raise DataError(f"{source} is not a result: it has no name; --out FILE.json writes one.")
    for field, kind in _FIELDS.items():
        if not isinstance(result.setdefault(field, kind()), kind):
            raise DataError(
                f"{field!r} of {source} must be {'an object' if kind is dict else 'a list'}, "
                f"got {type(result[field]).__name__}."
            )
    return result
