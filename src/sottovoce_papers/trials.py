"""Run the long tables of Bayrooti et al. 2023, one trial at a time on each core.

    nice python -m sottovoce_papers.trials --jobs 2    all of Tables 1 and 2, printed then tuned, on two cores
    python -m sottovoce_papers.trials --list           what is missing, and about how long it takes
    python -m sottovoce_papers.trials --tables table1 --settings printed --trials 3
    python -m sottovoce_papers.trials --assemble       only assemble the tables

Every trial leaves one file in build/trials when it ends; stored trials (docs/results) are not run again, so
the command can be stopped and started again at any time. Trial 0 of every cell comes first, so that a table
is complete early and gains trials later. At its end, and when stopped, the tables are written to
docs/results/NAME.json with their trials.
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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sottovoce.errors import DataError
from sottovoce_papers.bayrooti2023.cells import Cell, run_cell, trial_key
from sottovoce_papers.bayrooti2023.settings import settings_of
from sottovoce_papers.bayrooti2023.tables import beyond, cells_of, from_trials, tuned_apart
from sottovoce_papers.common import commit, unpack, write_result

Job = tuple[Cell, str, int]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
RESULTS, FOLDER = Path("docs/results"), Path("build/trials")
SECONDS_PER_STEP = {
    "central": 0.007, "dsgd": 0.073, "dsgt": 0.072, "dinno": 0.068, "consensus": 0.06, "masked": 0.06,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing trials; return 0 when none is missing, 130 when stopped."""
    options = _options(arguments)
    unpack(options.results, options.folder)
    if options.assemble:
        assemble(options.folder, options.results)
        return 0
    missing = pending(options.folder, options.tables, options.settings, options.trials, options.consensus)
    missing = [job for job in missing if re.search(options.cells, job[0].key)]
    if options.list:
        hours = sum(estimate(cell, which) for cell, which, _ in missing) / 3600
        print(f"{len(missing)} trials are missing, about {hours:.1f} hours on one quiet core.")
        for cell, which, trial in missing[: options.show]:
            print(f"  {cell.key} {which} trial {trial}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, done = time.time(), 0
    try:
        for cell, which, trial in _finished(missing, options.folder, options.jobs):
            done += 1
            left = (time.time() - began) / done * (len(missing) - done) / 3600
            print(f"{time.strftime('%H:%M')} {cell.key} {which} trial {trial}: {done} of {len(missing)}, "
                  f"{left:.1f} h left", flush=True)  # fmt: skip
    except KeyboardInterrupt:
        print(f"Stopped after {done} trials; the same command goes on.", flush=True)
        return 130
    finally:
        assemble(options.folder, options.results)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sottovoce_papers.trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--tables", nargs="+", default=["table1", "table2"], choices=["table1", "table2", "table4"])
    add("--settings", nargs="+", default=["printed", "tuned"], choices=["printed", "tuned"])
    add("--trials", type=int, default=3)
    add("--consensus", action="store_true", help="also exact consensus and masked sums on the same network")
    add("--results", type=Path, default=RESULTS, help="folder of the stored results")
    add("--folder", type=Path, default=FOLDER, help="folder with one file per trial")
    add("--cells", default="", help="only cells whose name this regular expression finds")
    add("--jobs", type=int, default=1, help="trials run side by side, one core each")
    add("--list", action="store_true")
    add("--show", type=int, default=10, help="how many trials --list names")
    add("--assemble", action="store_true")
    return parser.parse_args(arguments)


def pending(
    folder: Path, tables: Sequence[str], settings: Sequence[str], trials: int, consensus: bool = False
) -> list[Job]:
    """Return the trials without a file in ``folder``: (cell, settings, trial), trial 0 of all cells first."""
    cells = {cell.key: cell for table in reversed(tables) for cell in reversed(cells_of(table))}
    cells = dict(reversed(cells.items()))
    if consensus:
        cells |= {cell.key: cell for cell in beyond(cells.values())}
    return [
        (cell, which, trial)
        for trial in range(trials)
        for which in settings
        for cell in cells.values()
        if not (folder / f"{trial_key(cell, which, trial)}.json").exists()
        and (
            which == "printed" or tuned_apart(cell.method, cell.epsilon, cell.fiedler)
        )  # where nothing was tuned one run serves both
    ]


def estimate(cell: Cell, which: str) -> float:
    """Return about how many seconds a trial takes on a quiet core."""
    steps = settings_of(cell.method, cell.epsilon, cell.fiedler, which).steps or cell.steps
    return steps * SECONDS_PER_STEP[cell.method] + 3


def _finished(missing: Sequence[Job], folder: Path, jobs: int) -> Iterator[Job]:
    """Run the trials, ``jobs`` at a time, and yield each when its file is written."""
    run = partial(_run, folder=folder)
    if jobs == 1:
        yield from map(run, missing)
        return
    for pool in THREADS:  # read by the libraries when the worker processes load them
        os.environ.setdefault(pool, "1")
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as workers:
        yield from workers.imap_unordered(run, missing)


def _run(job: Job, folder: Path) -> Job:
    cell, which, trial = job
    run_cell(cell, trial, which=which, results=folder)
    return job


def assemble(folder: Path, results: Path) -> None:
    """Write Tables 1 and 2 from the trials in ``folder``; a trial is stored with one table."""
    cells = [*cells_of("table1"), *beyond(cells_of("table1"))]
    first = {cell.key for cell in cells}
    rows: dict[str, list[dict[str, Any]]] = {"table1": [], "table2": []}
    for path in sorted(folder.glob("*.json")):
        trial = json.loads(path.read_text(encoding="utf-8"))
        if trial.get("name") == "bayrooti2023-trial" and trial["cell"]["data"] == "mnist":
            cell = Cell(**{**trial["cell"], "epsilon": float(trial["cell"]["epsilon"])})
            rows["table1" if cell.key in first else "table2"].append({"key": path.stem, **trial})
    for name, trials in rows.items():
        try:
            result = from_trials(name, folder).to_dict()
        except DataError:
            continue
        result["provenance"] |= {
            "commit": commit(),
            "command": "python -m sottovoce_papers.trials --assemble",
        }
        write_result(results / f"{name}.json", result, trials)


if __name__ == "__main__":
    sys.exit(main())
