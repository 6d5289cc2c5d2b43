"""`sottovoce plan`: is a plan file private and useful, and what does it cost?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from sottovoce._format import number
from sottovoce.cli.options import Json, Out
from sottovoce.cli.output import emit, safe, show_assumptions, table

if TYPE_CHECKING:
    from rich.console import Console


def plan(
    file: Annotated[Path, Argument(help="A plan file (TOML), as in the example.")],
    out: Out = None,
    json: Json = False,
) -> None:
    """Show whether a plan file is private and useful, and what it costs, before it runs.

    Prints two verdicts: private (is the \\[budget] met?) and useful (is the answer
    worth having? The error of an average in its own unit; training is simulated on
    synthetic records), with suggestions, the cheapest first; then one row per
    adversary with epsilon, delta, adjacency and label, and the communication. Says which files
    it reads: values of an average never; of training records how many there are,
    which is public, and what the file accepts by name. The exit code is 1 when
    the budget is not met.

    \b
    Example (save as plan.toml, then run: sottovoce plan plan.toml):
      version = 1
      \\[network]
      graph = "hypercube:4"
      \\[protocol]
      name = "masked"
      \\[average]
      radius = 0.5
      adjacency = "user"
      \\[budget]
      epsilon = 2.0
      delta = 1e-5
      view = "network"
    """
    from sottovoce.advice.assessment import assess
    from sottovoce.planfile.read import load_file
    from sottovoce.report.inputs import plan_result

    loaded = load_file(file)
    assessment = assess(loaded, simulated=True)
    result = assessment | plan_result(assessment, loaded)
    emit(result, json, lambda screen: show_assessment(screen, assessment), out)
    if assessment.get("feasible") is False:
        if not json:
            print(f"sottovoce: {assessment['verdict']}", file=sys.stderr)
        raise typer.Exit(1)


def show_assessment(screen: Console, assessment: Mapping[str, Any], unassessed: str = "unknown") -> None:
    """Print the assessment of a plan for a person: verdicts first.

    ``unassessed`` says instead of yes or no why nothing is known of the usefulness.
    """
    from sottovoce.accounting.wording import exception

    screen.print(f"[bold]{safe(assessment['title'] or 'Plan')}[/bold]")
    _show_verdicts(screen, assessment, unassessed)
    screen.print(f"Hides: {assessment['hides']}.")
    if assessment["reads"]:
        screen.print(f"Reads: {safe('; '.join(assessment['reads']))}.")
    for note in assessment.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    accepted = assessment.get("accepted", ())
    for name in accepted:
        screen.print(f"[bold red]accepted by name ({name}):[/bold red] {exception(name)}")
    valid = "yes, but not for the item in red" if accepted else "yes"
    delta = number(assessment["delta"], "delta")
    rows = []
    for g in assessment["guarantees"]:
        cells = [g["against"], number(g["epsilon"], "epsilon"), delta, g["adjacency"], g["label"]]
        rows.append([*cells, valid if g["valid"] else "no"])
    columns = ["against", "epsilon", "delta", "adjacency", "label", "guarantee"]
    screen.print(table(columns, rows, title="What it reveals"))
    show_assumptions(screen, assessment["guarantees"])
    cost = assessment["cost"]
    size = f", {cost['bytes']:,} bytes" if "bytes" in cost else ""
    messages = f"{cost['messages']:,} messages ({number(cost['messages_per_node'])} per node)"
    screen.print(f"Communication: {cost['rounds']:,} rounds, {messages}{size}")
    if assessment.get("noise_in_result") is not None:
        worst = number(assessment["noise_in_result"])
        screen.print(f"Noise in the result of the worst node: {worst} per coordinate")


def _show_verdicts(screen: Console, assessment: Mapping[str, Any], unassessed: str) -> None:
    color = {True: "[green]yes[/green]", False: "[red]no[/red]", None: safe(unassessed)}
    useful, answer = color[assessment["useful"]], assessment["private_in_words"]
    style = "green" if assessment["private"] else "red"
    screen.print(f"[bold]Private: [{style}]{answer}[/{style}]; useful: {useful}.[/bold]")
    screen.print(f"  {safe(assessment['verdict'])}")
    sentence = assessment["usefulness"]
    screen.print(f"  {safe(sentence[:1].upper() + sentence[1:])}")
    if assessment.get("suggestions"):
        screen.print("What would help, the cheapest first:")
        for sentence in assessment["suggestions"]:
            screen.print(f"  {safe(sentence)}")
