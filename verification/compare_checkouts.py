"""Do two checkouts compute the same numbers?

    python verification/compare_checkouts.py OLD NEW [--only GROUP,...] [--plans N]

OLD and NEW are checkouts, or files that `python -m verification.record --out FILE` wrote. Each checkout is
recorded in a process of its own, with one thread and its own recorder. Runs must agree bit for bit. Privacy
costs (cases under "privacy/") must agree to a relative 1e-9 and may not be lower in NEW. The exit code is 1
if anything differs or a case is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

TOLERANCE = 1e-9  # relative, of privacy costs
NOT_RECORDED = "not recorded"
# labels of results that state a privacy cost; other numbers beside them may move either way
COST = re.compile(r"epsilon|^mu$|exact|rdp|best_guess|determined")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Comparison(NamedTuple):
    """Differences, one line each; how many cases are equal; cases that one side could not record."""

    differences: list[str]
    equal: int
    not_compared: list[str]


def main() -> int:
    """Record both sides, compare them and print every difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the checkout, or its stored record, to compare with")
    parser.add_argument("new", type=Path, help="the checkout, or its stored record, that was changed")
    parser.add_argument("--only", help="groups of cases, separated by commas")
    parser.add_argument("--plans", type=int, help="random plans; 10000 is the whole form")
    options = parser.parse_args()
    records = []
    for place in (options.old, options.new):
        if place.is_dir() and not (place / "verification" / "record.py").is_file():
            print(
                f"{place} has no verification/record.py; record it with another recorder and give the file."
            )
            return 1
        records.append(read(place, options.only, options.plans))
    old, new = records
    if options.only:  # a stored record may hold more groups than the other side
        groups = set(map(case_group, old)) & set(map(case_group, new))
        old, new = ({k: v for k, v in record.items() if case_group(k) in groups} for record in records)
    comparison = compare(old, new)
    for line in comparison.differences:
        print(line)
    for name in comparison.not_compared:
        print(f"{name}: not compared, data or an optional package were absent")
    print(
        f"{comparison.equal} cases agree, {len(comparison.differences)} differences, "
        f"{len(comparison.not_compared)} not compared."
    )
    return 1 if comparison.differences or not comparison.equal else 0


def read(place: Path, only: str | None = None, plans: int | None = None) -> dict[str, Any]:
    """Return the record of a checkout, made now, or a stored one."""
    if place.is_file():
        stored: dict[str, Any] = json.loads(place.read_text())
        return stored
    root = place.resolve()
    print(f"recording {root}", file=sys.stderr, flush=True)
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
    environment["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        command = [sys.executable, "-m", "verification.record", "--out", str(out)]
        command += ["--only", only] if only else []
        command += ["--plans", str(plans)] if plans else []
        subprocess.run(command, cwd=root, env=environment, check=True)
        recorded: dict[str, Any] = json.loads(out.read_text())
        return recorded


def case_group(name: str) -> str:
    """Return the first words of a case name, which decide which groups are compared."""
    return "/".join(name.split("/")[: 2 if name.startswith("privacy/") else 1])


def compare(old: dict[str, Any], new: dict[str, Any]) -> Comparison:
    """Compare two records case by case."""
    differences, not_compared, equal = [], [], 0
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            differences.append(f"{name}: missing in the {'new' if name in old else 'old'} record")
        elif NOT_RECORDED in (old[name], new[name]):
            not_compared.append(name)
        else:
            lines = _differences(old[name], new[name], cost=name.startswith("privacy/"))
            differences += [f"{name}{line}" for line in lines]
            equal += not lines
    return Comparison(differences, equal, not_compared)


def _differences(old: Any, new: Any, cost: bool) -> list[str]:
    if _labeled(old) and _labeled(new):
        before, now = dict(old), dict(new)
        lines = [
            f", {label}: missing in the {'new' if label in before else 'old'} record"
            for label in sorted(before.keys() ^ now.keys())
        ]
        for label in sorted(before.keys() & now.keys()):
            last = label.rpartition(".")[2]
            lines += _difference(f", {label}", before[label], now[label], cost, bool(COST.search(last)))
        return lines
    return _difference("", old, new, cost, cost)


def _difference(label: str, old: Any, new: Any, near: bool, never_lower: bool) -> list[str]:
    """Return a line if two values differ; ``near`` numbers may, by the tolerance."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        lines = []
        for place, (before, now) in enumerate(zip(old, new, strict=True)):
            lines += _difference(f"{label}[{place}]", before, now, near, never_lower)
        return lines
    if json.dumps(old) == json.dumps(new):  # NaN equals itself, 1 and 1.0 and True do not
        return []
    if near and isinstance(old, float) and isinstance(new, float):
        close = math.isclose(old, new, rel_tol=TOLERANCE)
        if close and (new >= old or not never_lower):
            return []
        if never_lower and new < old:
            return [f"{label}: lower, {old!r} -> {new!r}"]
    return [f"{label}: {old!r} -> {new!r}"]


def _labeled(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in value
    )


if __name__ == "__main__":
    sys.exit(main())
