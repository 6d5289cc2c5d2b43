"""`sottovoce plan`: is a plan file private and useful, and what does it cost?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from sottovoce._format import number
from sottovoce.cli.options import Json, Out
from sottovoce.cli.output import emit, template

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
    emit(result, json, assessment_text(assessment), out)
    if assessment.get("feasible") is False:
        if not json:
            print(f"sottovoce: {assessment['verdict']}", file=sys.stderr)
        raise typer.Exit(1)


def assessment_text(
    assessment: Mapping[str, Any], unassessed: str = "unknown", name: str = "assessment", **values: object
) -> Callable[[Console], None]:
    """Return what prints the assessment of a plan for a person: verdicts first.

    ``unassessed`` says instead of yes or no why nothing is known of the usefulness. ``name`` is a template
    that includes it, with further ``values``.
    """
    valid = "yes, but not for the item in red" if assessment.get("accepted") else "yes"
    delta = number(assessment["delta"], "delta")
    rows = [
        [
            g["against"],
            number(g["epsilon"], "epsilon"),
            delta,
            g["adjacency"],
            g["label"],
            valid if g["valid"] else "no",
        ]
        for g in assessment["guarantees"]
    ]
    return template(name, assessment=assessment, unassessed=unassessed, guarantees=rows, **values)
