"""Does a change of the program text leave the numbers of experiments as they were? Run both, and say so.

    python scripts/same_numbers.py --before CHECKOUT --why "drawing code only" [--only NAME ...]

For every experiment whose digest differs between this checkout and the one before, the quick form is run by
both, in processes of their own, and everything but the provenance is compared to the last digit. Where they
are equal the pair of digests is added to src/sottovoce/experiments/same_numbers.json, and records made before
stay current. Trials of B23's cells have a digest of their own: every method takes some steps on MNIST's
records in both, and their records are compared. What differs is named and not added; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "src" / "sottovoce" / "experiments" / "same_numbers.json"
TRIALS = "trials of B23's cells"

DIGESTS = """
import json, sys
from sottovoce.experiments.deep_b23 import trial_code
from sottovoce.experiments.registry import code_digest, registry
print(json.dumps({name: code_digest(name) for name in registry()} | {sys.argv[1]: trial_code()}))
"""

QUICK = """
import json, sys
from sottovoce.experiments.registry import find
record = json.loads(json.dumps(find(sys.argv[1]).run(quick=True).record(), default=str))
record.pop("provenance")
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
    """Run both checkouts and write what is equal; 1 where something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the text before")
    parser.add_argument("--why", required=True, help="what the change was, in a few words")
    parser.add_argument("--only", nargs="+", default=[], help="only these experiments")
    options = parser.parse_args()
    before, now = (json.loads(_ran(root, DIGESTS, TRIALS)) for root in (options.before, ROOT))
    changed = [name for name in now if name in before and now[name] != before[name]]
    equal, differ = {}, []
    for name in [name for name in changed if not options.only or name in options.only]:
        work = (STEPS,) if name == TRIALS else (QUICK, name)
        old, new = (_ran(root, *work) for root in (options.before, ROOT))
        if old == new:
            equal[now[name]] = before[name]
        else:
            differ.append(name)
        print(f"{name}: {'the same numbers' if old == new else 'OTHER NUMBERS'}", flush=True)
    if equal:
        listed: list[dict[str, Any]] = json.loads(LISTED.read_text())
        listed.append({"why": options.why, "digests": equal})
        LISTED.write_text(json.dumps(listed, indent=1) + "\n")
    print(
        f"{len(changed)} digests changed, {len(equal)} with the same numbers; differing: {differ or 'none'}."
    )
    return 1 if differ else 0


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
