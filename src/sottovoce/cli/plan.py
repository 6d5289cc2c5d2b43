"""`sottovoce plan`: is a plan file private and useful, and what does it cost?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce.cli.output import Json, assumptions, finish, safe, table

if TYPE_CHECKING:
    from rich.console import Console


def show_assessment(screen: Console, assessment: dict[str, Any]) -> None:
    """Print the assessment of a plan for a person."""
    from sottovoce.accounting.wording import UNCHARGED

    described = "; ".join(
        f"{_key_in_words(key)} {safe(_short(v))}" for key, v in assessment["plan"].items() if _is_set(v)
    )
    screen.print(f"[bold]{safe(assessment['title'] or 'Plan')}[/bold]: {described}")
    screen.print(f"Hides: {assessment['hides']}.")
    if assessment["reads"]:
        screen.print(f"Reads: {safe('; '.join(assessment['reads']))}.")
    for note in assessment.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    for name in assessment.get("accepted", ()):
        screen.print(f"[bold red]not charged, accepted by name:[/bold red] {UNCHARGED[name]} ({name})")
    sure = "yes, but not for the item in red" if assessment.get("accepted") else "yes"
    rows = [
        [g["against"], number(g["epsilon"]), f"{assessment['delta']:g}", g["adjacency"], g["label"],
         sure if g["valid"] else "no"]
        for g in assessment["guarantees"]
    ]  # fmt: skip
    columns = ["against", "epsilon", "delta", "adjacency", "label", "guarantee"]
    screen.print(table(columns, rows, title="What it reveals"))
    for line in assumptions(assessment["guarantees"]):
        screen.print(f"  assumes: {safe(line)}")
    cost = assessment["cost"]
    size = f", {cost['bytes']:,} bytes" if "bytes" in cost else ""
    each = number(cost["messages_per_node"])
    screen.print(
        f"Communication: {cost['rounds']:,} rounds, {cost['messages']:,} messages ({each} per node){size}"
    )
    if assessment.get("noise_in_result") is not None:
        worst = number(assessment["noise_in_result"])
        screen.print(f"Noise in the result of the worst node: {worst} per coordinate")
    _show_verdicts(screen, assessment)


def _show_verdicts(screen: Console, assessment: Mapping[str, Any]) -> None:
    color = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "not known"}
    private, useful = color[assessment["private"]], color[assessment["useful"]]
    screen.print(f"[bold]Private: {private}; useful: {useful}.[/bold]")
    screen.print(f"  {safe(assessment.get('verdict', 'No budget is set.'))}")
    sentence = assessment["usefulness"]
    screen.print(f"  {safe(sentence[:1].upper() + sentence[1:])}")
    if assessment.get("suggestions"):
        screen.print("What would help, the cheapest first:")
        for sentence in assessment["suggestions"]:
            screen.print(f"  {safe(sentence)}")


def _key_in_words(key: str) -> str:
    return "nodes" if key == "n" else key.replace("_", " ")


def _is_set(value: Any) -> bool:
    """Return whether an option has a value."""
    return value is not None and value != [] and value != ""


def _short(value: Any) -> str:
    """Return the value of an option in words and numbers."""
    if isinstance(value, dict):
        name = value.get("name") or value.get("kind") or value.get("net")
        if name:
            return str(name)
        if "start" in value and "shape" in value:  # a learning rate
            start, end = value["start"], value.get("end")
            return _short(start) if end in (None, start) else f"{_short(start)} to {_short(end)}"
        inner = [f"{_key_in_words(k)} {_short(v)}" for k, v in value.items() if _is_set(v) and v != 0]
        return ", ".join(inner)
    if isinstance(value, list) and len(value) > 4:
        return f"{_short(value[0])}, {_short(value[1])}, ... ({len(value)})"
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- sottovoce plan -----------------------------------------------------------------------------------


def plan(
    file: Annotated[Path, typer.Argument(help="A plan file (TOML), as in the example.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result here.")] = None,
    json: Json = False,
) -> None:
    """Show whether a plan file is private and useful, and what it costs, before it runs.

    Prints one row per adversary with epsilon, delta, adjacency and label, the
    communication, and two verdicts: private (is the \\[budget] met?) and useful (is the
    answer worth having? The error of an average in its own unit; training is
    simulated on synthetic records), with suggestions, the cheapest first. Says which files
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
    finish(result, json, out, lambda screen: show_assessment(screen, assessment))
    if assessment.get("feasible") is False:
        if not json:
            print(f"sottovoce: {assessment['verdict']}", file=sys.stderr)
        raise typer.Exit(1)
