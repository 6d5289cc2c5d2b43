"""Does a change of the program text leave the numbers of stored records as they were? Run both, and say so.

    python scripts/same_numbers.py --why "drawing code only" CHECKOUT [CHECKOUT ...]

For every stored record that another text made than the one here, and whose text one of the given checkouts
has, the quick form of its experiment is run by both, in processes of their own, and everything but the
provenance and times is compared to the last digit. Where they are equal the pair of digests is added to
src/sottovoce/experiments/same_numbers.json, and the record stays current. Trials of B23's cells have a digest
of their own: every method takes some steps on MNIST's records in both, and their records are compared. What
differs is named and not added; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
EXPERIMENTS = ROOT / "src" / "sottovoce" / "experiments"
LISTED = EXPERIMENTS / "same_numbers.json"
TRIALS = "trials of B23's cells"

DIGESTS = """
import json, sys
from sottovoce.experiments import deep_b23
from sottovoce.experiments.registry import code_digest, registry
trials = getattr(deep_b23, "trial_code", str)()
print(json.dumps({name: code_digest(name) for name in registry()} | {sys.argv[1]: trials}))
"""

QUICK = """
import json, sys
from sottovoce.experiments.registry import find
record = json.loads(json.dumps(find(sys.argv[1]).run(quick=True).record(), default=str))
record.pop("provenance")
for row in record["history"]:
    row.pop("seconds", None)
print(json.dumps(record, sort_keys=True))
"""

STEPS = """
import json
from dataclasses import replace
from sottovoce.experiments.b23_settings import settings_of
from sottovoce.experiments.deep_b23 import METHODS, Cell, run_cell
found = {}
for method in METHODS:
    for epsilon in (1.0, float("inf")):
        cell = Cell(method, epsilon, 0.39)
        record = run_cell(cell, 0, settings=replace(settings_of(method, epsilon, 0.39), steps=12))
        record.pop("provenance")
        found[cell.key] = record
print(json.dumps(found, sort_keys=True, default=str))
"""


def main() -> int:
    """Run both texts and write what is equal; 1 where something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="+", help="checkouts of the texts before")
    parser.add_argument("--why", required=True, help="what the changes were, in a few words")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    from sottovoce.experiments.registry import is_current

    now = _digests(ROOT)
    equal, differ, unknown = {}, [], []
    for name, code in sorted(_made_by()):
        if name not in now or is_current(code, now[name]):
            continue
        before = next((root for root in options.checkouts if _digests(root).get(name) == code), None)
        if before is None:
            unknown.append(name)
            continue
        same = _numbers(before.resolve(), name) == _numbers(ROOT, name)
        print(f"{name} {code}: {'the same numbers' if same else 'OTHER NUMBERS'}", flush=True)
        if same:
            equal[code] = now[name]
        else:
            differ.append(name)
    if equal:
        listed: list[dict[str, Any]] = json.loads(LISTED.read_text())
        digests = [[new, old] for old, new in equal.items()]
        listed.append({"why": options.why, "digests": digests})
        LISTED.write_text(json.dumps(listed, indent=1) + "\n")
    print(f"{len(equal)} texts gave the same numbers; others: {differ or 'none'}; no text of: {unknown}.")
    return 1 if differ else 0


def _made_by() -> set[tuple[str, str]]:
    """Every stored record and trial with the digest of the text that made it."""
    kept = json.loads((EXPERIMENTS / "records.json").read_text())
    found = {(name, came["code"]) for name, came in kept.items() if came.get("code")}
    for path in [*RESULTS.glob("b23/*.json"), *RESULTS.glob("b23-tuning/*.json")]:
        code = json.loads(path.read_text())["provenance"].get("code")
        found |= {(TRIALS, code)} if code else set()
    return found


@cache
def _digests(root: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(_ran(root, DIGESTS, TRIALS))
    return found


@cache
def _numbers(root: Path, name: str) -> str:
    return _ran(root, STEPS) if name == TRIALS else _ran(root, QUICK, name)


def _ran(root: Path, *work: str) -> str:
    """Run a few lines with the package of a checkout and return the last line it prints."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    where = {**os.environ, **threads, "PYTHONPATH": str(root.resolve() / "src")}
    done = subprocess.run(
        [sys.executable, "-c", *work], env=where, cwd=root, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
