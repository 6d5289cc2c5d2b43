"""`sottovoce compare`: plan files side by side, the dominated ones marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.advise import public_sample, show_rows
from sottovoce.cli.output import Json, emit, safe
from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.advice import PlanSummary

__all__ = ["compare"]


def compare(
    files: Annotated[list[Path], typer.Argument(help="Plan files.")],
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is stated.")] = 1e-5,
    collude: Annotated[int, typer.Option(help="How many members the column of colluders is about.")] = 2,
    latency: Annotated[float, typer.Option(help="Seconds a round takes.")] = 0.05,
    sample: Annotated[
        str | None,
        typer.Option(help="Public data set or table, or 'synthetic', for the score of training plans."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the front here: .svg or .png.")
    ] = None,
    json: Json = False,
) -> None:
    """Price plan files beside each other: what each reveals, how good its answer is, what it costs.

    A plan is dominated by one that reveals no more to the worst member, answers no worse and takes no longer.

    \b
    Example:
        sottovoce compare a.toml b.toml --out front.svg
    """
    from sottovoce import advice as advisor
    from sottovoce.planfile.read import load_plan

    plans: dict[str, Any] = {}
    for path in files:
        name = path.name if path.name not in plans else str(path)
        if name in plans:
            raise InvalidInput(f"{path} is given twice; name every plan once.")
        plans[name] = load_plan(path)
    rows = advisor.compare(
        plans, delta=delta, colluders=collude, latency=latency, sample=public_sample(sample)
    )
    if out is not None:
        from sottovoce.advice.comparison import draw_front

        draw_front(rows, out)
    payload = {"rows": [row.to_dict() for row in rows], "delta": delta}
    emit(payload, json, lambda console: _show(console, rows, delta))


def _show(out: Console, rows: list[PlanSummary], delta: float) -> None:
    show_rows(out, rows, delta, dominated=True)
    for row in rows:
        out.print(safe(f"{row.name}: {row.use}"))
