"""`sottovoce report`: one self-contained page from plans, agreements, statements and results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sottovoce.cli.options import Json
from sottovoce.cli.output import emit


def report(
    inputs: Annotated[
        list[Path],
        Argument(help="Plan files, agreements, statements (or their folders), results, attacks, audits."),
    ],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, Option(help="Heading of the page.")] = "What was revealed, and to whom",
    directory: Annotated[
        Path | None, Option(help="A member directory: its lifetime ledger shows earlier spending.")
    ] = None,
    json: Json = False,
) -> None:
    """Make one self-contained page: a summary to sign, then the annex.

    The summary says whether it is private and useful, who is hidden from whom,
    the budget, the matrix, what is not covered (in red), hash, fingerprints and
    signatures; the annex holds tables and figures. Nothing is loaded from
    elsewhere, and it prints on A4.

    \b
    Examples:
      sottovoce report plan.toml -o plan.html
      sottovoce report agreement.toml --directory ~/.sottovoce
      sottovoce account --graph florentine --observer 1 --noise 2 -o a.json
      sottovoce report a.json
    """
    from sottovoce._io import atomic_write
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.report.inputs import read_inputs
    from sottovoce.report.page import build

    member = None if directory is None else find_member_directory(directory)
    results = read_inputs(inputs, member)
    page = build(results, title)
    payload = {"inputs": len(results), "bytes": len(page.encode()), "report": str(atomic_write(out, page))}
    emit(payload, json, [f"{len(results)} input{'s' * (len(results) != 1)}, written to {out}"])
