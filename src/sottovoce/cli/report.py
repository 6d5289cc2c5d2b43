"""`sottovoce report`: result records in, one self-contained page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.output import Json, emit

__all__ = ["report"]


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Result records (JSON), as --out of a command writes.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "What was revealed, and to whom",
    json: Json = False,
) -> None:
    """Make one self-contained page of result records.

    Pictures are inline, nothing is loaded from elsewhere, and it prints well:
    the network coloured by what one participant learns, loss against distance,
    and every guarantee with adversary, adjacency, delta, label and assumptions.

    \b
    Example:
      sottovoce account --graph florentine --observer 1 --noise 2 -o a.json
      sottovoce report a.json -o report.html
    """
    from sottovoce.report.page import build
    from sottovoce.report.records import read_record, write_text

    records = [read_record(path) for path in results]
    page = build(records, title)
    written = write_text(out, page)
    found = {"report": str(written), "records": len(records), "bytes": len(page.encode())}
    emit(found, json, lambda screen: screen.print(f"{len(records)} records, written to {out}", markup=False))
