"""`sottovoce demo`: the tour. Sixteen clinics, what they would reveal, what they do, an attack on that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from sottovoce.cli.options import Json
from sottovoce.cli.output import console, emit, progress, safe, section_values, template

if TYPE_CHECKING:
    from rich.console import Console


def demo(
    out: Annotated[Path, Option("--out", "-o", help="Folder for the report and the results.")] = Path(
        "sottovoce-demo"
    ),
    quick: Annotated[bool, Option("--quick", help="Fewer repetitions; rougher numbers.")] = False,
    json: Json = False,
) -> None:
    """Take the tour: sixteen clinics, no server, about a minute.

    Shows what averaging reveals without noise, what a plan costs before it
    runs, private averages and private training beside a trusted curator and
    beside no privacy, an attack on our own claims, and writes a report with
    pictures. All runs are simulations with reproducible noise.

    \b
    Example:
      sottovoce demo --out tour
    """
    from sottovoce.demo import clinics as tour
    from sottovoce.report.sections import section_of

    started = time.perf_counter()
    screen = console()
    if not json:
        screen.print("[bold]Sottovoce[/bold]: private learning without a server\n")
        screen.print(tour.TEXTS["lead"])
    with progress("reading the clinics' data", None, quiet=json):
        clinics = tour.consortium()
    results = {}
    for step, (name, part) in enumerate(tour.parts(quick).items(), 1):
        with progress(name, None, quiet=json) as tick:
            results[name] = part(clinics, tick).to_dict()
        if not json:
            section = section_of(results[name])
            _heading(screen, step, section.title)
            template("section", **section_values(section, tour.NAMES))(screen)
    with progress("drawing the report", None, quiet=json):
        report, plan = tour.write(out, clinics, results)
    seconds = time.perf_counter() - started

    def closing(screen: Console) -> None:
        _heading(screen, len(results) + 1, "The report")
        template("demo", report=report, seconds=seconds, plan=plan)(screen)

    metrics = {name: result["metrics"] for name, result in results.items()}
    emit(metrics | {"report": str(report), "seconds": round(seconds, 1)}, json, closing)


def _heading(screen: Console, step: int, title: str) -> None:
    screen.print()
    screen.rule(f"[bold cyan]{step}[/bold cyan]  [bold]{safe(title)}[/bold]", align="left", style="cyan")
