"""`sottovoce sweep plan.toml`: a plan file simulated with many settings, as a table."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write
from sottovoce.cli.output import emit, if_stopped, progress, require_writable, template
from sottovoce.errors import InvalidInput

_UNPRINTED = ("delta", "better_than_trivial")  # too wide for a terminal


def sweep_plan(
    file: Path,
    choices: Mapping[str, Sequence[Any]],
    *,
    repeats: int,
    seed: int,
    jobs: int,
    backend: str,
    out: Path | None,
    json: bool,
) -> None:
    """Simulate a plan file with every combination of settings, print a table and write it as CSV.

    Finished trials are kept beside the table, in a folder, and are not repeated by the same command.
    """
    from sottovoce.planfile.training import SWEEP_NOTE, as_csv, plan_trials, run_trial, summarized
    from sottovoce.runners.sweep import sweep

    if out is not None and out.suffix.lower() != ".csv":
        raise InvalidInput(f"--out of a plan file's sweep must end in .csv, got {out.name!r}.")
    require_writable(out)
    trials = plan_trials(file, choices, repeats)
    folder = Path(f"{file.stem}-sweep") if out is None else out.with_suffix("")
    notice = f"finished trials are kept in {folder}; the same command goes on."
    with (
        if_stopped(lambda: notice),
        progress(f"{file.name}, {len(trials)} trials", len(trials), quiet=json) as tell,
    ):
        results = sweep(run_trial, trials, folder, seed=seed, jobs=jobs, backend=backend, progress=tell)
    rows = [
        {name: result["options"][name] for name in choices} | result["value"] | {"seed": result["seed"]}
        for result in results
    ]
    if out is not None:
        atomic_write(out, as_csv(rows))
    means = [
        {key: value for key, value in row.items() if key != "seed"} for row in summarized(rows, [*choices])
    ]

    printed = [{key: value for key, value in row.items() if key not in _UNPRINTED} for row in means]
    text = template("sweep", means=printed, title=file.name, note=SWEEP_NOTE, folder=folder, out=out)
    emit({"plan": file.name, "simulated": True, "note": SWEEP_NOTE, "rows": rows, "means": means}, json, text)


def choices(words: list[str]) -> dict[str, list[Any]]:
    """Return {option: values} from words like n=20,40; numbers and true/false are read as such."""
    options: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise InvalidInput(f"--set expects an option and its values, as n=20,40, got {word!r}.")
        options[name.replace("-", "_")] = [_value(value) for value in values.split(",")]
    return options


def _value(word: str) -> Any:
    try:
        return json_module.loads(word)
    except ValueError:
        return word
