"""`sottovoce advise`: which plan to take, before anything runs and without reading anything private."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sottovoce._format import number
from sottovoce.cli.options import Delta, Json, Latency, number_list
from sottovoce.cli.output import emit, progress, safe, table
from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.advice import Advice, PlanSummary

WORTH = ("answer", "useful", "steps", "batch_size", "rounds", "messages", "bytes", "seconds")
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

    Nothing private is read: errors of averages are closed forms, accuracies are simulated on public or
    synthetic records, and the answer says which.

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
    emit(advice.to_dict() | {"written": written}, json, lambda screen: _show(screen, advice, written))
    if advice.recommended is None:
        raise typer.Exit(1)


def _show(screen: Console, advice: Advice, written: list[str]) -> None:
    requirements, chosen = advice.requirements, advice.recommended
    show_rows(screen, advice.rows, requirements.delta, budget=requirements.view)
    if chosen is None:
        lines = [f"{advice.headline} {advice.reasons}"]
        lines += [f"  {each.sentence}" for each in advice.suggestions]
    else:
        hidden = "a whole member" if requirements.hide == "member" else "one record"
        private = f"Private: yes, for {hidden}, against {requirements.adversary}"
        assert chosen.candidate is not None
        names = f"In files: algorithm {chosen.plan.name}, protocol {chosen.candidate.protocol}"
        lines = [
            f"{advice.headline} {private}; useful: {chosen.use.verdict}.",
            advice.reasons,
            f"{names}. If a member falls silent, {chosen.silent}.",
            *advice.changes,
        ]
    lines.append(advice.simulated_on)
    if written:
        lines.append(f"Written: {', '.join(written)}.")
    for line in lines:
        screen.print(safe(line))


def show_rows(
    screen: Console,
    rows: Sequence[PlanSummary],
    delta: float,
    *,
    dominated: bool = False,
    budget: str | None = None,
) -> None:
    """Print what plans are worth and what they reveal, in two tables that fit a terminal.

    ``budget`` is the view that must meet the budget, if there is one; its column is marked.
    """
    cells = [row.cells() for row in rows]
    heads = {key: key.replace("_", " ") for key in WORTH}
    if all(row.plan.steps == 1 for row in rows):
        del heads["steps"]
    if all(row.batch_size is None for row in rows):
        del heads["batch_size"]
    worth = [
        (k, safe(row.name), *(cell[key] for key in heads), *([row.dominated_by or "-"] if dominated else []))
        for k, (row, cell) in enumerate(zip(rows, cells, strict=True), 1)
    ]
    columns = ["", "plan", *heads.values(), *(["dominated by"] if dominated else [])]
    screen.print(table(columns, worth, title="Accuracy and communication (±: one standard deviation)"))
    columns = [
        words.format(rows[0].colluders) + (" (budget)" if key == budget else "")
        for key, words in REVEALS.items()
    ]
    reveals = [(k, *(cell[key] for key in REVEALS)) for k, cell in enumerate(cells, 1)]
    title = f"What it reveals to whom: epsilon at delta {number(delta, 'delta')}; noise: over the clip norm"
    screen.print(table(["", *columns], reveals, title=title))
    screen.print(
        "  eavesdropper: taps every link; one member: the worst; typical pair: one member about one other; "
        "all others: together"
    )
