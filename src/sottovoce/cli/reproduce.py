"""`sottovoce reproduce list|NAME`: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, emit, number, table

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or 'list'.")] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="The small form that the tests run.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here (.json).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the record into this file (.svg, .png, .pdf).")
    ] = None,
    json: Json = False,
) -> None:
    """Run one of the papers' tables or figures and print its record.

    \b
    Examples:
      sottovoce reproduce list
      sottovoce reproduce admm-lasso --quick
      sottovoce reproduce dpcd-electricity --out electricity.json --plot electricity.svg
    """
    from sottovoce.errors import InvalidInput
    from sottovoce.experiments import find, registry

    if name == "list":
        known = registry()
        listed = {
            key: {"title": e.title, "paper": e.paper, "plot": e.plot is not None} for key, e in known.items()
        }
        rows = [[key, e.title, e.paper] for key, e in known.items()]
        emit(
            {"experiments": listed}, json, lambda screen: screen.print(table(["name", "what", "paper"], rows))
        )
        return
    found = find(name)
    if plot is not None and (found.plot is None or plot.suffix not in (".svg", ".png", ".pdf")):
        reason = "has no figure" if found.plot is None else "draws .svg, .png or .pdf files"
        raise InvalidInput(f"{name} {reason}, got --plot {plot.name}.")
    result = found.run(quick=quick)
    record = result.record()
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, record)
    if plot is not None:
        assert found.plot is not None
        found.plot(record).savefig(plot, bbox_inches="tight")
    emit(record, json, lambda screen: _show(screen, found.title, found.paper, record))


def _show(screen: Any, title: str, paper: str, record: dict[str, Any]) -> None:
    screen.print(f"[bold]{title}[/bold] ({paper})")
    screen.print(table(["what", "value"], list(_flat(record["metrics"]))))
    screen.print(f"Took {number(record['provenance'].get('seconds', 0.0))} s.")


def _flat(value: Any, path: str = "") -> Any:
    """Yield (name, text) for every number and word; long lists are shortened."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        if value and isinstance(value[0], dict):
            for i, inner in enumerate(value[:6]):
                yield from _flat(inner, f"{path}[{i}]")
        else:
            shown = ", ".join(number(v) if isinstance(v, float) else str(v) for v in value[:6])
            yield [path, shown + (" ..." if len(value) > 6 else "")]
    else:
        yield [path, number(value) if isinstance(value, float) else str(value)]
