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

_FIELDS = ("config", "metrics", "history", "guarantees", "provenance")


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
    """Write one result as JSON."""
    return atomic_write(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a result; anything else is refused with a sentence."""
    source = Path(path)
    try:
        result = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"There is no file {source}; --out FILE.json of a command writes a result.") from None
    except OSError as error:
        raise DataError(f"Cannot read {source}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not JSON ({error}); --out FILE.json writes a result.") from None
    if not isinstance(result, dict) or not isinstance(result.get("name"), str):
        raise DataError(f"{source} is not a result: it has no name; --out FILE.json writes one.")
    for field in _FIELDS:
        kind = list if field in ("history", "guarantees") else dict
        if not isinstance(result.setdefault(field, kind()), kind):
            raise DataError(
                f"{field!r} of {source} must be a {kind.__name__}, got {type(result[field]).__name__}."
            )
    return result
