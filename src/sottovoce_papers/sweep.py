"""`sottovoce sweep`: many independent trials on workers, one record each, resumable."""

from __future__ import annotations

import json as _json
from typing import Annotated, Any

import typer

from sottovoce._format import number
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, if_stopped, progress, table
from sottovoce.errors import InvalidInput
from sottovoce.runners import sweep as trials_of
from sottovoce_papers.sweep_targets import takes_seed, target


def sweep(
    what: Annotated[str, typer.Argument(help="An experiment (see `sottovoce reproduce list`), or audit.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Folder of the records; what is there is not repeated.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option and its values, as n=20,40; every combination is a trial."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Trials per combination, each with its own seed.")
    ] = 1,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the sweep; trials' seeds are derived from it.")
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Number of workers.")] = 1,
    backend: Annotated[str, typer.Option("--backend", help="loky (this machine), ray or dask.")] = "loky",
    quick: Annotated[bool, typer.Option("--quick", help="The small form of the experiment.")] = False,
    json: Json = False,
) -> None:
    """Run an experiment or an audit many times, in parallel, and keep one record per trial.

    An interrupted sweep goes on where it stopped: give the same command again.

    \b
        sottovoce sweep audit --set graph=path:3,ring:8 --repeats 32 --jobs 2 -o audits
        sottovoce sweep attack-geometric --quick --set n=20,30 --repeats 4 --jobs 2 -o geometric
    """
    function, fixed = target(what, quick)
    if repeats > 1 and what != "audit" and not takes_seed(what):
        raise InvalidInput(f"{what} takes no seed, so --repeats {repeats} would run the same thing again.")
    trials = trials_of.repeated(trials_of.grid(**choices(settings or [])), repeats, fixed)
    resumable = f"finished trials are kept in {out}; the same command goes on."
    with (
        if_stopped(lambda: resumable),
        progress(f"{what}, {len(trials)} trials", len(trials), quiet=json) as tell,
    ):
        records = trials_of.sweep(function, trials, out, seed=seed, jobs=jobs, backend=backend, progress=tell)
    payload = {
        "what": what, "trials": len(records), "folder": out, "jobs": jobs, "backend": backend,
        "seconds": sum(record["seconds"] for record in records),
        "records": [{key: record[key] for key in ("trial", "seed", "seconds")} for record in records],
    }  # fmt: skip

    def text(console: Any) -> None:
        rows = [[record["trial"], number(record["seconds"])] for record in records[:20]]
        console.print(table(["trial", "seconds"], rows))
        more = "; the first 20 are shown" if len(records) > 20 else ""
        console.print(f"{len(records)} records in {out}{more}.")

    emit(payload, json, text)


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
        return _json.loads(word)
    except ValueError:
        return word
