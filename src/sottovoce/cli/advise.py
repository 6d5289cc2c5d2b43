"""`sottovoce advise`: which plan to take, before anything runs and without reading anything private."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sottovoce.cli.options import Delta, Json, Latency, number_list
from sottovoce.cli.output import emit, progress, template
from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from sottovoce.advice import PlanSummary

WORTH = ("answer", "useful", "steps", "batch_size", "rounds", "messages", "bytes", "seconds")
_HEADS = {"batch_size": "batch size", "dominated_by": "worse than"}
# the adversaries of the second table, in words
REVEALS = {"noise": "noise", "outsider": "eavesdropper", "network": "one member", "pairwise": "typical pair"}
REVEALS |= {"colluders": "any {} members", "local": "all others"}


def advise(
    members: Annotated[str, Argument(help="How many members, a graph such as ring:12, or file:edges.txt.")],
    epsilon: Annotated[float, Option(help="The budget: 1 hides well, above 10 hides little.")],
    delta: Delta = 1e-5,
    compute: Annotated[str, Option(help="mean, logistic, linear or net.")] = "mean",
    records: Annotated[str, Option(help="Records per member: one number, or one each: 500,80,120.")] = "1",
    hide: Annotated[str, Option(help="What is hidden: a record or a member.")] = "record",
    view: Annotated[str, Option(help="network (any one member), outsider, local or colluders.")] = "network",
    colluders: Annotated[int, Option(help="How many members may collude.")] = 1,
    values: Annotated[str, Option(help="Public range of the values, or of a target: 0,1.")] = "0,1",
    features: Annotated[int | None, Option(help="Columns of a linear model; a sample has its own.")] = None,
    model: Annotated[str | None, Option(help="A neural network: mlp:inputs=64:hidden=16.")] = None,
    target: Annotated[float | None, Option(help="Largest error, or least accuracy, that is of use.")] = None,
    sample: Annotated[str | None, Option(help="Public records: breast_cancer, or a .csv or .npz.")] = None,
    silent: Annotated[str, Option(help="A silent member: wait for it, or 'go on'.")] = "wait",
    latency: Latency = 0.05,
    seconds: Annotated[float | None, Option(help="The longest a run may take.")] = None,
    masks: Annotated[bool, Option(help="Whether members can share keys for masked sums.")] = True,
    seed: Annotated[int, Option(help="Seed of trees and simulations; public.")] = 0,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write plan.toml, draft, picture and table here.")
    ] = None,
    json: Json = False,
) -> None:
    """Recommend a plan for these members and this budget, and say what would change the choice.

    Nothing private is read: errors of averages are computed by formulas, accuracies are simulated
    on public or synthetic records, and the answer says which.

    \b
    Examples:
        sottovoce advise 12 --epsilon 1 --records 200
        sottovoce advise 12 --epsilon 2 --records 500 --compute logistic --features 10 --out advice/
        sottovoce advise ring:9 --epsilon 1 --records 50 --colluders 2 --values 0,120
    """
    # the options are the arguments of sv.advise; those that are texts here become numbers there
    chosen = {name: value for name, value in locals().items() if name not in ("out", "json")}
    import sottovoce as sv
    from sottovoce.advice.samples import read_sample

    counts, ends = number_list(records, "--records", int), number_list(values, "--values")
    if len(ends) != 2:
        raise InvalidInput(f"--values must be a range such as 0,1, got {values!r}.")
    chosen |= {
        "members": int(members) if members.lstrip("-").isdigit() else members,
        "records": counts[0] if len(counts) == 1 else counts,
        "values": tuple(ends),
        "sample": read_sample(sample),
    }
    with progress("candidates", None, quiet=json) as tick:
        advice = sv.advise(**chosen, progress=tick)
    written = [] if out is None else [str(path) for path in advice.save(out)]
    view, delta = advice.requirements.view, advice.requirements.delta
    shown = {"advice": advice, "written": written, "delta": delta, **plan_columns(advice.rows, budget=view)}
    emit(advice.to_dict() | {"written": written}, json, template("advise", **shown))
    if advice.recommended is None:
        raise typer.Exit(1)


def plan_columns(
    rows: Sequence[PlanSummary], *, dominated: bool = False, budget: str | None = None
) -> dict[str, object]:
    """Return two tables that fit a terminal: what plans are worth, and what they reveal.

    ``budget`` is the view that must meet the budget, if there is one; its column is marked.
    """
    cells = [row.cells() | {"dominated_by": row.dominated_by or "-"} for row in rows]
    heads = [*WORTH, *(["dominated_by"] if dominated else [])]
    if all(row.plan.steps == 1 for row in rows):
        heads.remove("steps")
    if all(row.batch_size is None for row in rows):
        heads.remove("batch_size")
    named = list(enumerate(zip(rows, cells, strict=True), 1))
    spread = "±: one standard deviation"
    if any(row.use.bias for row in rows):
        spread += "; of gossip with the largest bias"
    return {
        "spread": spread,
        "worth_columns": ["", "plan", *(_HEADS.get(key, key) for key in heads)],
        "worth": [(k, row.name, *(cell[key] for key in heads)) for k, (row, cell) in named],
        "reveals_columns": [
            "",
            *(
                words.format(rows[0].colluders) + (" (budget)" if key == budget else "")
                for key, words in REVEALS.items()
            ),
        ],
        "reveals": [(k, *(cell[key] for key in REVEALS)) for k, (_, cell) in named],
    }
