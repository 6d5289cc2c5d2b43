"""`sottovoce reproduce list|NAME`: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, emit, number, progress, table

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or 'list'.")] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="The small form that the tests run.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here (.json).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the record into this file (.svg, .png, .pdf).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Run the experiment's trials on this many workers.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="loky (this machine, the default), ray or dask.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Folder of one record per trial, by default NAME-records; what is there is not repeated."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the experiment and its value, as epsilon=1."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="One method of a table: dsgd, dsgt, dinno ...")] = None,
    epsilon: Annotated[float | None, typer.Option(help="One budget of a table.")] = None,
    fiedler: Annotated[float | None, typer.Option(help="One graph of a table, by its Fiedler value.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials per cell of a table.")] = None,
    json: Json = False,
) -> None:
    """Run one of the papers' tables or figures and print its record.

    With --jobs (or --records) every trial leaves a record when it ends, and the
    same command goes on after an interruption; the result is that of one process.

    \b
    Examples:
      sottovoce reproduce list
      sottovoce reproduce admm-lasso --quick
      sottovoce reproduce dpcd-electricity --out electricity.json --plot electricity.svg
      sottovoce reproduce table1 --method dsgt --epsilon 1 --fiedler 0.06 --trials 5
      sottovoce reproduce table2 --set method=dsgt --set skew=0.5 --jobs 2 --out table2.json
    """
    from sottovoce.errors import InvalidInput
    from sottovoce.experiments import find, registry

    if name == "list":
        known = registry()
        listed = {
            key: {"title": e.title, "paper": e.paper, "plot": e.plot is not None} for key, e in known.items()
        }
        rows = [[key, e.title, e.paper] for key, e in known.items()]
        emit(
            {"experiments": listed}, json, lambda screen: screen.print(table(["name", "what", "paper"], rows))
        )
        return
    found = find(name)
    if plot is not None and (found.plot is None or plot.suffix not in (".svg", ".png", ".pdf")):
        reason = "has no figure" if found.plot is None else "draws .svg, .png or .pdf files"
        raise InvalidInput(f"{name} {reason}, got --plot {plot.name}.")
    cell = {"method": method, "epsilon": epsilon, "fiedler": fiedler, "trials": trials}
    given = [f"{key}={value}" for key, value in cell.items() if value is not None]
    options = _chosen(name, given + (settings or []))
    if (jobs, backend, records) != (None, None, None):
        options["spread"] = _spread(name, 1 if jobs is None else jobs, backend or "loky", records, json)
    try:
        result = found.run(quick=quick, **options)
    except TypeError as problem:
        word = str(problem).partition("unexpected keyword argument ")[2]
        if word.strip("'") not in options:
            raise
        raise InvalidInput(f"{name} has no option {word}; leave it out.") from None
    record = result.record()
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, record)
    if plot is not None:
        assert found.plot is not None
        found.plot(record).savefig(plot, bbox_inches="tight")
    emit(record, json, lambda screen: _show(screen, found.title, found.paper, record))


def _chosen(name: str, words: list[str]) -> dict[str, Any]:
    """Return the options that were set, one value each, if the experiment has them."""
    from inspect import signature

    from sottovoce.cli.sweep import choices
    from sottovoce.errors import InvalidInput
    from sottovoce.experiments import find

    known = signature(find(name).run).parameters.values()
    names = {option.name for option in known} - {"quick", "spread", "progress"}
    open_ended = any(option.kind is option.VAR_KEYWORD for option in known)
    found = {}
    for key, values in choices(words).items():
        if len(values) > 1 or (key not in names and not open_ended):
            raise InvalidInput(f"--set {key}: {name} takes one value each of {', '.join(sorted(names))}.")
        found[key] = values[0]
    return found


def _spread(name: str, jobs: int, backend: str, folder: Path | None, json: bool) -> Any:
    """Return what runs the trials of an experiment as a sweep; refuse one that has none."""
    from sottovoce.errors import InvalidInput
    from sottovoce.experiments.trials import has_trials, takes_seed
    from sottovoce.runners.sweep import sweep

    if not has_trials(name):
        many = f"; `sottovoce sweep {name} --repeats 4 --jobs 2 -o FOLDER` repeats it with other seeds"
        raise InvalidInput(
            f"{name} is one piece, not independent trials, so leave --jobs, --backend and --records out"
            f"{many if takes_seed(name) else ''}."
        )

    def spread(function: Any, listed: Any) -> list[Any]:
        place = folder or Path(f"{name}-records")
        with progress(f"{name}, {len(listed)} trials", len(listed), quiet=json) as tell:
            records = sweep(function, listed, place, seed=None, jobs=jobs, backend=backend, progress=tell)
        return [record["value"] for record in records]

    return spread


def _show(screen: Any, title: str, paper: str, record: dict[str, Any]) -> None:
    screen.print(f"[bold]{title}[/bold] ({paper})")
    screen.print(table(["what", "value"], list(_flat(record["metrics"]))))
    rows = [row for row in record.get("history") or [] if "cell" in row]
    if rows:  # the cells of a table, ours beside the paper's
        names = ["cell", "accuracy", "std", "trials", "paper", "paper_std"]
        screen.print(table(names, [[_word(row.get(key)) for key in names] for row in rows]))
    screen.print(f"Took {number(record['provenance'].get('seconds', 0.0))} s.")


def _word(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


def _flat(value: Any, path: str = "") -> Any:
    """Yield (name, text) for every number and word; long lists are shortened."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        if value and isinstance(value[0], dict):
            for i, inner in enumerate(value[:6]):
                yield from _flat(inner, f"{path}[{i}]")
        else:
            shown = ", ".join(number(v) if isinstance(v, float) else str(v) for v in value[:6])
            yield [path, shown + (" ..." if len(value) > 6 else "")]
    else:
        yield [path, number(value) if isinstance(value, float) else str(value)]
