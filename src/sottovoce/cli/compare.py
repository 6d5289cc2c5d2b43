"""`sottovoce compare`: plan files side by side, the dominated ones marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sottovoce.cli.advise import plan_columns
from sottovoce.cli.options import Delta, Json, Latency
from sottovoce.cli.output import emit, template
from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from sottovoce.algorithms import Plan


def compare(
    files: Annotated[list[Path], Argument(help="Plan files.")],
    delta: Delta = 1e-5,
    collude: Annotated[int, Option(help="How many members the column of colluders is about.")] = 2,
    latency: Latency = 0.05,
    sample: Annotated[
        str | None, Option(help="Public data set or table, or 'synthetic', to score training plans.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Draw the front here: .svg or .png.")] = None,
    json: Json = False,
) -> None:
    """Compare plan files: what each reveals, how good its answer is, and what it costs.

    A plan is worse than one that reveals no more to the worst member, answers no worse and takes no
    longer, and is better in one of these.

    \b
    Example:
        sottovoce compare a.toml b.toml --out front.svg
    """
    import sottovoce as sv
    from sottovoce.advice.comparison import draw_front
    from sottovoce.advice.samples import read_sample
    from sottovoce.planfile.read import load_plan

    plans: dict[str, Plan] = {}
    for path in files:
        name = path.name if path.name not in plans else str(path)
        if name in plans:
            raise InvalidInput(f"{path} is given twice; name every plan once.")
        plans[name] = load_plan(path)
    public = read_sample(sample)
    rows = sv.compare(plans, delta=delta, colluders=collude, latency=latency, sample=public)
    if out is not None:
        draw_front(rows, out)

    text = template("compare", rows=rows, delta=delta, **plan_columns(rows, dominated=True))
    emit({"rows": [row.to_dict() for row in rows], "delta": delta}, json, text)
