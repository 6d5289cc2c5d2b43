"""`sottovoce report`: one self-contained page from plans, agreements, statements and results."""

from __future__ import annotations

import json as json_module
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
    registry: Annotated[
        Path | None, Option(help="Also write the first input for the DP Deployments Registry (JSON).")
    ] = None,
    nist: Annotated[
        Path | None, Option(help="Also write its answers to the topics of NIST SP 800-226 (JSON).")
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
      sottovoce report a.json --registry entry.json
    """
    from sottovoce._io import atomic_write
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.report import standards
    from sottovoce.report.inputs import read_inputs
    from sottovoce.report.page import build

    member = None if directory is None else find_member_directory(directory)
    results = read_inputs(inputs, member)
    page = build(results, title)
    files = {"report": (out, page)}
    for name, path, entry in (("registry", registry, standards.registry), ("nist", nist, standards.nist)):
        if path is not None:
            files[name] = (path, json_module.dumps(entry(results[0]), indent=1, allow_nan=False) + "\n")
    written = {name: str(atomic_write(path, text)) for name, (path, text) in files.items()}
    payload = {"inputs": len(results), "bytes": len(page.encode()), **written}
    emit(payload, json, [f"{len(results)} input{'s' * (len(results) != 1)}, written to {out}"])
