"""Run B23's long tables, one trial at a time on each core, and go on where it stopped.

    nice python scripts/run_papers.py --jobs 2         all of Tables 1 and 2, printed then tuned, on two cores
    python scripts/run_papers.py --list                what is missing, and about how long it takes
    python scripts/run_papers.py --tables table1 --settings printed --trials 3
    python scripts/run_papers.py --index               only assemble tables and the list of records

Every trial leaves one record in docs/results/b23 when it ends; what is there is not run again, so the script
can be stopped (Ctrl-C, SIGTERM, a power cut) and started again at any time. Trial 0 of every cell comes
first, so that a table is complete early and gains trials later. At its end, and when stopped, the tables
are assembled into docs/results/NAME.json and src/sottovoce_papers/records.json says what there is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(pool, "1")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
INDEX = ROOT / "src" / "sottovoce" / "experiments" / "records.json"
PAGE = ROOT / "docs" / "reproduction.md"
FIRST, LAST = "<!-- records -->", "<!-- end of records -->"
KEYS = (
    "ours tuned",
    "tuned (median)",
    "ours",
    "accuracy",
    "mean loss",
    "median",
    "success",
    "share of",
    "ratio",
)
SECONDS_PER_STEP = {
    "central": 0.007, "dsgd": 0.073, "dsgt": 0.072, "dinno": 0.068, "consensus": 0.06, "masked": 0.06,
}  # fmt: skip


def main() -> int:
    """Run what is missing; 0 when nothing is, 130 when stopped."""
    options = _options()
    if options.index:
        _assemble(options.folder)
        return 0
    missing = pending(options.folder, options.tables, options.settings, options.trials, options.consensus)
    missing = [job for job in missing if re.search(options.cells, job[0].key)]
    if options.list:
        hours = sum(estimate(*job) for job in missing) / 3600
        print(f"{len(missing)} trials are missing, about {hours:.1f} hours on one quiet core.")
        for cell, which, trial in missing[: options.show]:
            print(f"  {cell.key} {which} trial {trial}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, done = time.time(), 0
    try:
        for cell, which, trial in _ended(missing, options.folder, options.jobs):
            done += 1
            pace = (time.time() - began) / done
            left = pace * (len(missing) - done) / 3600
            print(f"{time.strftime('%H:%M')} {cell.key} {which} trial {trial}: {done} of {len(missing)}, "
                  f"{left:.1f} h left", flush=True)  # fmt: skip
    except KeyboardInterrupt:
        print(f"Stopped after {done} trials; the same command goes on.", flush=True)
        return 130
    finally:
        _assemble(options.folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", nargs="+", default=["table1", "table2"], choices=["table1", "table2", "table4"]
    )
    parser.add_argument("--settings", nargs="+", default=["printed", "tuned"], choices=["printed", "tuned"])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument(
        "--consensus", action="store_true", help="also exact consensus and masked sums with B23's network"
    )
    parser.add_argument("--folder", type=Path, default=RESULTS / "b23")
    parser.add_argument("--cells", default="", help="only cells whose name this regular expression finds")
    parser.add_argument("--jobs", type=int, default=1, help="trials run side by side, one core each")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", type=int, default=10, help="how many trials --list names")
    parser.add_argument("--index", action="store_true")
    return parser.parse_args()


def pending(
    folder: Path, tables: list[str], settings: list[str], trials: int, consensus: bool = False
) -> list[tuple[Any, str, int]]:
    """Return the trials that have no record: (cell, settings, trial), trial 0 of every cell first."""
    from sottovoce_papers.bayrooti2023.tables import beyond, cells_of, tuned_apart

    cells: dict[str, Any] = {}
    for table in tables:
        for cell in cells_of(table):
            cells.setdefault(cell.key, cell)
    if consensus:
        cells |= {cell.key: cell for cell in beyond(cells.values())}
    return [
        (cell, which, trial)
        for trial in range(trials)
        for which in settings
        for cell in cells.values()
        if not (folder / _file(cell, which, trial)).exists()
        and (which == "printed" or tuned_apart(cell))  # where nothing was tuned one run serves both
    ]


def _file(cell: Any, which: str, trial: int) -> str:
    return f"{cell.key}{'_printed' if which == 'printed' else ''}_trial{trial}.json"


def estimate(cell: Any, which: str, trial: int) -> float:
    """Return about how many seconds a trial takes on a quiet core."""
    from sottovoce_papers.bayrooti2023.settings import settings_of

    steps = settings_of(cell.method, cell.epsilon, cell.fiedler, which).steps or cell.steps
    return steps * SECONDS_PER_STEP[cell.method] + 3


def _ended(missing: list[tuple[Any, str, int]], folder: Path, jobs: int) -> Iterator[tuple[Any, str, int]]:
    """Run the trials, ``jobs`` at a time, and yield each when its record is written."""
    if jobs == 1:
        for job in missing:
            yield _run(job, folder)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(partial(_run, folder=folder), missing)


def _run(job: tuple[Any, str, int], folder: Path) -> tuple[Any, str, int]:
    from sottovoce_papers.bayrooti2023.cells import run_cell

    cell, which, trial = job
    run_cell(cell, trial, which=which, results=folder)
    return job


def _assemble(folder: Path) -> None:
    """Write the tables of the trials there are, and the list of stored records."""
    from sottovoce.errors import DataError
    from sottovoce.report.result_files import write_result, write_text
    from sottovoce_papers.bayrooti2023.tables import from_trials

    for name in ("table1", "table2", "figure1"):
        try:
            record = from_trials(name, folder).record()
        except DataError:
            continue
        record["provenance"]["command"] = f"sottovoce reproduce {name} --from docs/results/b23"
        write_result(RESULTS / f"{name}.json", record)
    write_text(INDEX, json.dumps(index(RESULTS), indent=1) + "\n")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    _, _, after = rest.partition(LAST)
    write_text(PAGE, f"{before}{FIRST}\n{page_table(RESULTS)}\n{LAST}{after}")


def index(results: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of every stored record of an experiment."""
    from sottovoce_papers.registry import registry

    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("*.json")):
        record = json.loads(path.read_text())
        name = record.get("name") if isinstance(record, dict) else None
        if name not in registry():
            continue
        came = record["provenance"]
        found[name] = {
            "file": f"docs/results/{path.name}",
            "command": came.get("command", f"sottovoce reproduce {name}"),
            "seconds": round(came.get("trial_seconds", came.get("seconds", 0.0)), 1),
            "version": came.get("version"),
            "code": came.get("code"),
        }
        if "assembled_from" in came:
            found[name]["assembled"] = came["assembled_from"]
        if "trials_of_earlier_code" in came:
            found[name] |= {"trials": came.get("trials"), "earlier": came["trials_of_earlier_code"]}
        if "cells_in_the_paper" in record["metrics"]:
            found[name] |= {
                "cells": record["metrics"]["cells"],
                "of": record["metrics"]["cells_in_the_paper"],
            }
    return found


def page_table(results: Path) -> str:
    """Return the table of docs/reproduction.md: every stored record, the claim, whether it held, numbers."""
    from sottovoce_papers.registry import find

    lines = ["| name | the source says | here | from the record |", "|---|---|---|---|"]
    for name, kept in index(results).items():
        record, found = json.loads((ROOT / kept["file"]).read_text()), find(name)
        held = None if found.held is None else found.held(record)
        word = {True: "held", False: "did not hold", None: "cannot say"}[held]
        lines.append(f"| `{name}` | {found.claim} | {word} | {_numbers(found.table(record))} |")
    return "\n".join(lines)


def _numbers(shown: Any) -> str:
    """Return the column that matters, in the first, a middle and the last row that have it."""
    named = (
        k for word in KEYS for k, c in enumerate(shown.columns) if k and re.search(rf"\b{re.escape(word)}", c)
    )
    key = next(named, len(shown.columns) - 1)
    rows = [row for row in shown.rows if row[key] not in (None, "", "not run")]
    chosen = [rows[k] for k in dict.fromkeys((0, len(rows) // 2, len(rows) - 1))] if rows else []
    texts = []
    for row in chosen:
        label = ", ".join(_short(cell) for cell in row[: min(key, 4)] if cell not in (None, ""))
        texts.append(f"{label}: {_short(row[key])}")
    return f"{shown.columns[key]}: " + "; ".join(texts)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
