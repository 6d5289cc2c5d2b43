"""Record what this checkout computes, under case names that no rename changes.

    python -m verification.record --out FILE.json [--only GROUP,...] [--plans N]

The file maps case names to numbers, words, lists and SHA-256 digests of bytes. `compare_checkouts` compares
two of them. Whoever renames something in the library adapts this package; names and values of cases stay.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Today's keys and words of results -> the labels under which they are recorded. Only words that differ.
STABLE = {
    "everyone": "local",
    "batches": "batch_sizes",
    "member": "network",
    "outsiders": "outsider",
    "suggestions": "ways_out",
}

# Keys of results that no comparison needs: times, versions, and the answers written out for people.
OMITTED = {"front", "summary_page", "hours", "provenance", "reads", "seconds", "sentence", "title", "words"}

# group -> the function that yields its cases
GROUPS = {
    "sampler": "verification.cases_noise:samplers",
    "contract": "verification.cases_runs:contract",
    "peers": "verification.cases_runs:peers",
    "experiment": "verification.cases_runs:experiments",
    "deep": "verification.cases_runs:deep_methods",
    "commands": "verification.cases_privacy:commands",
    "graphs": "verification.cases_privacy:graphs_and_protocols",
    "plans": "verification.cases_privacy:random_plans",
    "benchmark": "verification.cases_runs:benchmark_figures",
}
SHORT = 8  # values of one label; more of them are recorded as a digest


def main() -> int:
    """Record the chosen groups and write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.record", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--only", help=f"groups, separated by commas, of {', '.join(GROUPS)}")
    parser.add_argument("--plans", type=int, default=300, help="random plans; 10000 is the whole form")
    options = parser.parse_args()
    names = list(GROUPS) if options.only is None else options.only.split(",")
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}; the groups are {', '.join(GROUPS)}")
    cases: dict[str, Any] = {}
    for name in names:
        begin = time.perf_counter()
        recorded = record(name, options.plans)
        cases |= recorded
        print(
            f"{name}: {len(recorded)} cases, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True
        )
    options.out.write_text(json.dumps(cases, indent=0, sort_keys=True) + "\n")
    return 0


def record(group: str, plans: int = 300) -> dict[str, Any]:
    """Return the cases of one group by name."""
    module, _, function = GROUPS[group].partition(":")
    run = getattr(importlib.import_module(module), function)
    cases: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in run(plans) if group == "plans" else run():
            label = "/".join(STABLE.get(part, part) for part in name.split("/"))
            if label in cases:
                raise ValueError(f"two cases are called {label!r}")
            cases[label] = stable(value, full=label.startswith("privacy/"))
    return cases


def stable(value: Any, full: bool = False) -> Any:
    """Return a value of a case as it is recorded.

    Arrays and bytes become digests, nested results sorted pairs of a label and its values. ``full`` keeps all
    values where otherwise many of them become one digest.
    """
    import numpy as np

    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value)
        return _digest(f"{value.dtype.str} {value.shape} ".encode() + value.tobytes())
    if isinstance(value, (bytes, bytearray)):
        return _digest(bytes(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        columns: dict[str, list[Any]] = {}
        for label, leaf in _leaves(value, ""):
            columns.setdefault(label, []).append(leaf)
        return [
            [label, leaves if full or len(leaves) <= SHORT else _digest(json.dumps(leaves).encode())]
            for label, leaves in sorted(columns.items())
        ]
    if isinstance(value, (list, tuple)):
        return [stable(item, full) for item in value]
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (label, number or word) of everything in a result; sentences are left out."""
    import numpy as np

    if isinstance(value, dict):
        for key, item in value.items():
            if key not in OMITTED:
                label = STABLE.get(str(key), str(key))
                yield from _leaves(item, f"{path}.{label}" if path else label)
    elif isinstance(value, np.ndarray):
        yield path, stable(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, path)
    elif isinstance(value, str):
        if " " not in value:
            yield path, STABLE.get(value, value)
    elif value is None or isinstance(value, (bool, int, float, np.generic)):
        yield path, stable(value)
    else:
        raise TypeError(f"a result holds {type(value).__name__} at {path!r}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
