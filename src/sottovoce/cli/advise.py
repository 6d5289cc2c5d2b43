"""`sottovoce advise`: which plan to take, before anything runs and without reading anything private."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, emit, progress, safe, table
from sottovoce.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.advice import Advice, PlanSummary

__all__ = ["advise", "public_sample", "show_rows"]

WORTH = ("answer", "useful", "steps", "batch_size", "rounds", "messages", "bytes", "seconds")
REVEALS = ("noise", "outsider", "network", "pairwise", "colluders", "local")


def advise(
    members: Annotated[
        str, typer.Argument(help="How many members, a graph such as ring:12, or file:edges.txt.")
    ],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    compute: Annotated[str, typer.Option(help="mean, logistic, linear or net.")] = "mean",
    records: Annotated[
        str, typer.Option(help="Records per member: one number, or one each: 500,80,120.")
    ] = "1",
    hide: Annotated[str, typer.Option(help="What is hidden: a record or a member.")] = "record",
    view: Annotated[
        str, typer.Option(help="The adversary: network (any one member), outsider, local or colluders.")
    ] = "network",
    colluders: Annotated[int, typer.Option(help="How many members may collude.")] = 1,
    values: Annotated[str, typer.Option(help="Public range of the values, or of a target: 0,1.")] = "0,1",
    features: Annotated[
        int | None, typer.Option(help="Columns of a linear model; a sample tells them by itself.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A network: mlp:inputs=64:hidden=16.")] = None,
    target: Annotated[float | None, typer.Option(help="Largest error, or least accuracy, of use.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Public records for simulations: breast_cancer, or a table, label last: public.csv."
        ),
    ] = None,
    silent: Annotated[str, typer.Option(help="A silent member: wait for it, or 'go on'.")] = "wait",
    latency: Annotated[float, typer.Option(help="Seconds a round takes.")] = 0.05,
    seconds: Annotated[float | None, typer.Option(help="The longest a run may take.")] = None,
    masks: Annotated[bool, typer.Option(help="Whether members can share keys for masked sums.")] = True,
    seed: Annotated[int, typer.Option(help="Public chance: trees, simulations.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write plan.toml, draft, picture and table here.")
    ] = None,
    json: Json = False,
) -> None:
    """Recommend a plan for these members and this budget, and say what would change the choice.

    Nothing private is read: errors of averages are closed forms, accuracies are simulated on public or
    synthetic records, and the answer says which.

    \b
    Examples:
        sottovoce advise 12 --epsilon 1 --records 200
        sottovoce advise 12 --epsilon 2 --records 500 --compute logistic --features 10 --out advice/
        sottovoce advise ring:9 --epsilon 1 --records 50 --colluders 2 --values 0,120
    """
    from sottovoce import advice as advisor

    wanted: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "compute": compute, "records": _records(records), "hide": hide,
        "view": view, "colluders": colluders, "values": _pair(values),
        "features": features, "model": model, "target": target, "silent": silent, "latency": latency,
        "seconds": seconds, "masks": masks, "seed": seed, "sample": public_sample(sample),
    }  # fmt: skip
    with progress("candidates", None, quiet=json) as tell:
        advice = advisor.advise(int(members) if _whole(members) else members, progress=tell, **wanted)
    written = [] if out is None else [str(path) for path in advice.save(out)]
    emit(advice.to_dict() | {"written": written}, json, lambda console: _show(console, advice, written))
    if advice.recommended is None:
        raise typer.Exit(1)


def _show(out: Console, advice: Advice, written: list[str]) -> None:
    show_rows(out, advice.rows, advice.requirements.delta)
    chosen = advice.recommended
    if chosen is None:
        out.print(safe(f"Nothing fits. {advice.reasons}"))
        for way in advice.suggestions:
            out.print(safe(f"  {way.sentence}"))
    else:
        out.print(safe(f"Take {chosen.name}. Private: yes; useful: yes."))
        out.print(safe(advice.reasons))
        out.print(safe(f"Who averages how: {chosen.words}. If a member falls silent, {chosen.silent}."))
        for line in advice.changes:
            out.print(safe(line))
    out.print(safe(advice.simulated_on))
    if written:
        out.print(safe(f"Written: {', '.join(written)}."))


def show_rows(out: Console, rows: Sequence[PlanSummary], delta: float, *, dominated: bool = False) -> None:
    """Print what plans are worth and what they reveal, in two tables that fit a terminal."""
    from sottovoce.advice.comparison import COLUMNS

    cells = [dict(zip(COLUMNS, row.cells(), strict=True)) for row in rows]
    marks = [[row.dominated_by or "-"] if dominated else [] for row in rows]
    worth = [
        (k, safe(row.name), *(one[key] for key in WORTH), *mark)
        for k, (row, one, mark) in enumerate(zip(rows, cells, marks, strict=True), 1)
    ]
    heads = ("", "plan", *WORTH, *(["dominated by"] if dominated else []))
    out.print(table(heads, worth, title="Accuracy and communication"))
    reveals = [(k, *(one[key] for key in REVEALS)) for k, one in enumerate(cells, 1)]
    colluders = rows[0].colluders if rows else 2
    heads = ("", *(f"{colluders} colluders" if key == "colluders" else key for key in REVEALS))
    out.print(
        table(heads, reveals, title=f"What it reveals: epsilon at delta {delta:g}; noise over the clip")
    )


def _whole(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _records(text: str) -> int | list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--records must be whole numbers such as 500 or 500,80,120, got {text!r}."
        ) from None
    return counts[0] if len(counts) == 1 else counts


def _pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError:
        raise InvalidInput(f"--values must be a range such as 0,1, got {text!r}.") from None
    return low, high


def public_sample(name: str | None) -> Any:
    """Return a public data set by name, or a table whose last column is the label; others stay."""
    if name is None or name == "synthetic":
        return name
    if name.endswith((".csv", ".npz")):
        table = _numbers(name)
        if isinstance(table, tuple):
            return table
        if table.ndim != 2 or table.shape[1] < 2:
            raise InvalidInput(
                f"{name} must hold features and, in its last column, labels; got {table.shape}."
            )
        return table[:, :-1], table[:, -1]
    from sottovoce.data import load

    if Path(name).suffix and Path(name).exists():
        raise InvalidInput(f"a sample is a .csv or .npz file, got {name}; save it as one of them.")
    return load(name)


def _numbers(name: str) -> Any:
    """Return a table of numbers; one whose labels are words as features and labels."""
    import numpy as np

    from sottovoce.data.files import read_columns
    from sottovoce.planfile.read import read_numbers

    try:
        return read_numbers(name)
    except DataError as error:
        if not name.endswith(".csv") or not Path(name).exists():
            raise
        *features, labels = read_columns(name).values()
        try:
            return np.array(features, dtype=float).T, np.array(labels)
        except ValueError:
            raise error from None
