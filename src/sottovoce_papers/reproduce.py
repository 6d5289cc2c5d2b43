"""`sottovoce reproduce list|NAME`: the papers' tables and figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce._format import fine, number
from sottovoce._io import atomic_write, to_jsonable
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, if_stopped, progress, safe, table
from sottovoce.errors import DataError, InvalidInput
from sottovoce.runners.sweep import sweep
from sottovoce_papers.common import MACHINE, commit, differences
from sottovoce_papers.paper_index import ITEMS, lasted, stored_results
from sottovoce_papers.registry import find, meaning, options_of, registry
from sottovoce_papers.sweep import has_trials, takes_seed

RESULTS = Path("docs/results")  # where a checkout keeps results
ROWS = 150  # of a table are printed; the record and the report have all


def reproduce(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An experiment, 'list', or 'gallery'.")] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="The small form that the tests run.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the result here (by default NAME.json).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw here (.svg, .png, .pdf; by default NAME.svg).")
    ] = None,
    stored: Annotated[
        Path | None,
        typer.Option("--from", help="Run nothing: show and draw this result, or a folder of trials."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", help="Run again and compare with this result.")
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
            help="Folder with one file per trial, by default NAME-records; what is there is not repeated."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the experiment, as epsilon=1; the same as --epsilon 1."),
    ] = None,
    json: Json = False,
    wants_help: Annotated[
        bool, typer.Option("--help", "-h", help="This text; after a NAME, the options of that experiment.")
    ] = False,
) -> None:
    """Run one of the papers' tables or figures: a table beside the paper's, a record, a picture.

    Every experiment has options of its own, with values as they are written
    (inf is a number; several values as 1,2): `sottovoce reproduce NAME --help`.
    With --jobs (or --records) every trial leaves a record when it ends, and the
    same command goes on after an interruption; the result is that of one process.

    \b
    Examples:
      sottovoce reproduce list
      sottovoce reproduce admm-lasso --quick
      sottovoce reproduce admm-lasso --quick --check admm-lasso-quick.json
      sottovoce reproduce dpcd-electricity --help
      sottovoce reproduce table1 --method dsgt --epsilon 1,inf --fiedler 0.06 --settings printed
      sottovoce reproduce table2 --method dsgt --skew 0.5 --jobs 2 --out table2.json
      sottovoce reproduce topologies --from topologies.json --plot topologies.png
      sottovoce reproduce gallery --from docs/results --out gallery.html
    """
    if wants_help and name == "list":
        print(context.get_help())
        return
    if name == "list":
        _refuse_unless(not context.args, f"list takes no options, got {' '.join(context.args)}.")
        _list(stored or RESULTS, json)
        return
    if name == "gallery":
        _refuse_unless(not context.args, f"gallery takes no options, got {' '.join(context.args)}.")
        _gallery(stored or RESULTS, out or Path("gallery.html"), json)
        return
    experiment = find(name)
    if wants_help:
        _help(name, experiment, json)
        return
    words = list(context.args)
    if records is not None and str(records).isdigit() and "records" in options_of(experiment):
        words += ["--records", str(records)]  # how many records there are: the experiment's own option
        records = None
    options = _chosen(name, experiment, words, settings or [])
    _refuse_unless(
        plot is None or plot.suffix in (".svg", ".png", ".pdf"),
        f"figures are .svg, .png or .pdf files, got --plot {plot.name if plot else ''}.",
    )
    if stored is not None:
        _refuse_unless(
            not options and not quick, "--from runs nothing, so leave the experiment's options out."
        )
        record = _read(name, stored)
    else:
        spread = _spread(name, jobs, backend, records, json)
        if spread is not None:
            options["spread"] = spread
        alone = (jobs, backend, records) == (None, None, None)
        sweeps = None if alone else records or Path(f"{name}-records")
        record = _run(name, experiment, quick, options, json, sweeps)
        record["provenance"]["command"] = _command(name, quick, words, settings or [])
        _check_quick_options(record, options)
    if check is not None:
        _compare(name, record, _read(name, check), check, json)
        return
    try:
        written = _write(name, experiment, record, quick, out, plot, bool(json), stored is not None)
        emit(_without_pictures(record), json, lambda screen: _show(screen, experiment, record, written))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        if stored is None or isinstance(problem, InvalidInput):
            raise
        raise DataError(
            f"{stored} lacks what {name} shows ({type(problem).__name__}: {problem}); run "
            f"`sottovoce reproduce {name}` to make it again with this version."
        ) from None


def _refuse_unless(fine: bool, sentence: str) -> None:
    if not fine:
        raise InvalidInput(sentence)


def _list(folder: Path, json: bool) -> None:
    results = stored_results(folder)
    items = []
    for i in ITEMS:
        state, why = i.state(results)
        named = {"source": i.source, "item": i.number, "what": i.what, "name": i.experiment}
        items.append({**named, "state": state, "why": why})
    experiments = {
        key: {"title": e.title, "paper": e.paper, "plot": e.plot is not None} for key, e in registry().items()
    }

    def text(screen: Any) -> None:
        for source in dict.fromkeys(item["source"] for item in items):
            rows = [
                [item["item"], item["name"] or "", safe(item["what"]), item["state"], safe(item["why"])]
                for item in items
                if item["source"] == source
            ]
            screen.print(table(["item", "name", "what", "state", "made in, or why not"], rows, title=source))
        counts = {s: sum(i["state"] == s for i in items) for s in dict.fromkeys(i["state"] for i in items)}
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        screen.print(f"{len(items)} tables and figures: {summary}.")

    emit({"items": items, "experiments": experiments}, json, text)


def _gallery(folder: Path, out: Path, json: bool) -> None:
    """Write one page of all results in a folder: picture, claim, whether it held."""
    from sottovoce.report.page import build

    records = list(stored_results(folder).values())
    _refuse_unless(bool(records), f"{folder} holds no result of an experiment; --from names another folder.")
    atomic_write(out, build(records, "The papers, ours beside theirs"))
    payload = {"gallery": str(out), "records": [record["name"] for record in records]}
    summary = f"{len(records)} results, written to {out}"
    emit(payload, json, lambda screen: screen.print(summary, markup=False))


def _help(name: str, experiment: Any, json: bool) -> None:
    options = options_of(experiment)
    payload = {
        "name": name, "title": experiment.title, "paper": experiment.paper, "claim": experiment.claim,
        "options": {
            o.name: {"default": o.default, "takes": o.expects, "means": meaning(name, o.name)}
            for o in options.values()
        },
    }  # fmt: skip

    def text(screen: Any) -> None:
        screen.print(f"[bold]{safe(experiment.title)}[/bold] ({safe(experiment.paper)})")
        if experiment.claim:
            screen.print(f"{_speaker(experiment)}: {safe(experiment.claim)}")
        rows = [
            [_flag(o.name), safe(meaning(name, o.name)), o.expects, safe(_default(o.default))]
            for o in options.values()
        ]
        screen.print(table(["option", "means", "takes", "default"], rows))
        screen.print("Beside them --quick, --out, --plot, --from, --json; see `sottovoce reproduce --help`.")

    emit(payload, json, text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, (tuple, list)):
        return ",".join(_default(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _chosen(name: str, experiment: Any, words: list[str], pairs: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given, read as the experiment reads them; refuse any other."""
    known = options_of(experiment)
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise InvalidInput(f"--set expects an option and its value, as epsilon=1, got {pair!r}.")
        values[key] = value
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InvalidInput(f"{name} takes no word {word!r}; options begin with --, as --quick.")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                kind = known.get(key.replace("-", "_"))
                takes = f" expects {kind.expects}, got nothing" if kind else " is not known"
                raise InvalidInput(f"--{key}{takes}; {name} has {_all(known)}.")
            value = rest.pop(0)
        values[key] = value
    options = {}
    for key, value in values.items():
        option = known.get(key.replace("-", "_"))
        if option is None:
            raise InvalidInput(f"{name} has no option --{key}; it has {_all(known)}.")
        options[option.name] = option.read(value)
    return options


def _check_quick_options(record: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that the quick form replaced by its own value."""
    used = {key: record["config"][key] for key in options if key in record["config"]}
    other = [key for key, value in used.items() if to_jsonable(value) != to_jsonable(options[key])]
    flags = ", ".join(f"{_flag(key)} {_default(used[key])}" for key in other)
    _refuse_unless(not other, f"the quick form has its own {flags}; leave --quick out, or that option.")


def _all(known: Mapping[str, Any]) -> str:
    return ", ".join(_flag(option) for option in known) or "none of its own"


def _command(name: str, quick: bool, words: Sequence[str], pairs: Sequence[str]) -> str:
    sets = [word for pair in pairs for word in ("--set", pair)]
    return shlex.join(["sottovoce", "reproduce", name, *(["--quick"] if quick else []), *words, *sets])


def _run(
    name: str, experiment: Any, quick: bool, options: dict[str, Any], json: bool, records: Path | None = None
) -> dict[str, Any]:
    """Run the experiment; its result names the version and the commit of the code."""
    places = [Path(place) for place in (options.get("results"), options.get("stored"), records) if place]
    earlier = [place.name for place in places if place.is_file() or any(place.glob("*.json"))]
    if "spread" in options:
        resumable = "finished trials are kept; the same command goes on."
        lost = "nothing was kept; --records FOLDER keeps every trial that ends."
        with if_stopped(lambda: resumable if places else lost):
            record: dict[str, Any] = experiment.run(quick=quick, **options).to_dict()
    else:
        with if_stopped(lambda: "nothing was written."), progress(name, None, quiet=json):
            record = experiment.run(quick=quick, **options).to_dict()
    came = record["provenance"]
    if earlier:
        came["assembled_from"] = earlier[0]
        for key in MACHINE:  # of this computer, not of the one that ran the trials
            came.pop(key, None)
    came |= {"commit": commit()} | ({"quick": True} if quick else {})
    return record


def _read(name: str, path: Path) -> dict[str, Any]:
    """Return a stored result of this experiment, or a table assembled from a folder of trials."""
    from sottovoce.report.result_files import read_result

    if path.is_dir():
        from sottovoce_papers.bayrooti2023.tables import NUMBER, from_trials

        _refuse_unless(name in NUMBER, f"{name} is read from one result, got the folder {path}.")
        return from_trials(name, path).to_dict()
    record = read_result(path)
    _refuse_unless(
        record["name"] == name, f"{path} is a result of {record['name']}, not of {name}; name that instead."
    )
    return record


def _write(
    name: str, experiment: Any, record: dict[str, Any], quick: bool, out: Path | None, plot: Path | None,
    quiet: bool, redrawn: bool,
) -> list[Path]:  # fmt: skip
    """Write result and figure to the paths of --out and --plot, by default to the current folder."""
    from sottovoce.report.result_files import write_result

    stem = f"{name}-quick" if quick else name
    if not quiet:
        out = out or (None if redrawn else Path(f"{stem}.json"))
        plot = plot or (None if experiment.plot is None else Path(f"{stem}.svg"))
    written = []
    if out is not None:
        written.append(write_result(out, record))
    if plot is not None:
        from sottovoce_papers.drawing import save

        _refuse_unless(experiment.plot is not None, f"{name} has no figure, got --plot {plot.name}.")
        written.append(save(experiment.plot(record), plot))
    return written


def _spread(
    name: str, jobs: int | None, backend: str | None, folder: Path | None, json: bool
) -> Callable[..., list[Any]] | None:
    """Return what runs the trials of an experiment, here or as a sweep; None where it has none."""
    alone = (jobs, backend, folder) == (None, None, None)
    if not has_trials(name):
        if alone:
            return None
        many = f"; `sottovoce sweep {name} --repeats 4 --jobs 2 -o FOLDER` repeats it with other seeds"
        raise InvalidInput(
            f"{name} is one piece, not independent trials, so leave --jobs, --backend and --records out"
            f"{many if takes_seed(name) else ''}."
        )

    def spread(function: Any, trials: Any) -> list[Any]:
        with progress(f"{name}, {len(trials)} trials", len(trials), quiet=json) as tell:
            if alone:
                values = []
                for done, trial in enumerate(trials, start=1):
                    values.append(function(**trial.options))
                    tell(done)
                return values
            place, workers = folder or Path(f"{name}-records"), 1 if jobs is None else jobs
            options: dict[str, Any] = {"backend": backend or "loky"}
            records = sweep(function, trials, place, seed=None, jobs=workers, progress=tell, **options)
            return [record["value"] for record in records]

    return spread


def _compare(name: str, record: Mapping[str, Any], stored: Mapping[str, Any], path: Path, json: bool) -> None:
    """Say whether a run gave the numbers of a stored result; raise if it did not."""
    parts = ("config", "metrics", "history")
    wrong = differences({key: to_jsonable(record[key]) for key in parts}, {key: stored[key] for key in parts})
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    _refuse_unless(
        not wrong, f"this run differs from {path} in {', '.join(wrong[:3])}{more}; times are not compared."
    )
    text = f"{name}: the same numbers as {path}."
    emit({"name": name, "same": True}, json, lambda screen: screen.print(safe(text)))


def _speaker(experiment: Any) -> str:
    """Who says what is to be checked: a source, or this library of itself."""
    return "Our claim" if experiment.own else "The paper"


def _show(screen: Any, experiment: Any, record: dict[str, Any], written: Sequence[Path]) -> None:
    screen.print(f"[bold]{safe(experiment.title)}[/bold] ({safe(experiment.paper)})")
    if experiment.table is not None:
        shown = experiment.table(record)
        rows = [[_cell(value) for value in row] for row in shown.rows[:ROWS]]
        screen.print(table(shown.columns, rows, write=fine, quantities=shown.kinds))
        if len(shown.rows) > ROWS:
            screen.print(f"... and {len(shown.rows) - ROWS} more rows in the result.")
        if shown.note:
            screen.print(safe(shown.note))
    if experiment.claim:
        verdict = experiment.verdict(record)
        shown = f"In this result it {verdict}." if verdict else "A quick form is too small to decide it."
        screen.print(f"{_speaker(experiment)}: {safe(experiment.claim)}\n{shown}")
    came = record["provenance"]
    took = f"Took {lasted(came.get('trial_seconds', came.get('seconds', 0.0)))}."
    files = f" Written: {', '.join(map(str, written))}." if written else ""
    screen.print(safe(took + files))


def _cell(value: Any) -> Any:
    """Return a number as it is, so that columns align, and anything else as text."""
    plain_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain_number or value is None else safe(number(value))


def _without_pictures(value: Any) -> Any:
    """Return a result without pixels: they are for files, not for screens."""
    if isinstance(value, dict):
        if {"shape", "true", "reconstructed"} <= set(value):
            return {"shape": value["shape"], "pictures": f"{len(value['true'])} pairs, in the file of --out"}
        return {key: _without_pictures(inner) for key, inner in value.items()}
    return [_without_pictures(inner) for inner in value] if isinstance(value, list) else value
