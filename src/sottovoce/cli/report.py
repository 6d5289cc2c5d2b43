"""`sottovoce report`: what there is to sign or to show in, one self-contained page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, emit

__all__ = ["report"]


def report(
    things: Annotated[
        list[Path],
        typer.Argument(
            help="Plan files, agreements, statements (or their folders), records, attacks, audits."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "What was revealed, and to whom",
    home: Annotated[
        Path | None, typer.Option(help="A member's home: its book tells what was spent before.")
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(help="Also write the first thing as an entry of the DP Deployments Registry (JSON)."),
    ] = None,
    nist: Annotated[
        Path | None, typer.Option(help="Also write its answers to the topics of NIST SP 800-226 (JSON).")
    ] = None,
    json: Json = False,
) -> None:
    """Make one self-contained page: page one to sign, then the annex.

    Page one says whether it is private and useful, who is hidden from whom, the
    budget, the best guess in words, the matrix, what is not covered (in red),
    hash, fingerprints and signatures; the annex holds tables and pictures.
    Nothing is loaded from elsewhere, and it prints on A4.

    \b
    Examples:
      sottovoce report plan.toml -o plan.html
      sottovoce report agreement.toml --home ~/.sottovoce
      sottovoce account --graph florentine --observer 1 --noise 2 -o a.json
      sottovoce report a.json --registry entry.json
    """
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build

    own = None
    if home is not None:
        from sottovoce.peers.member_directory import find_member_directory

        own = find_member_directory(home)
    records = _joined([_thing(path, own) for path in things])
    page = build(records, title)
    found: dict[str, Any] = {"records": len(records), "bytes": len(page.encode())}
    extra = {}
    if registry is not None or nist is not None:
        import json as json_module

        from sottovoce.report import standards

        made = {"registry": (registry, standards.registry), "nist": (nist, standards.nist)}
        for name, (path, entry) in made.items():
            if path is not None:
                extra[name] = (path, json_module.dumps(entry(records[0]), indent=1, allow_nan=False) + "\n")
    found["report"] = str(atomic_write(out, page))
    for name, (path, text) in extra.items():
        found[name] = str(atomic_write(path, text))
    many = f"{len(records)} {'record' if len(records) == 1 else 'records'}"
    emit(found, json, lambda screen: screen.print(f"{many}, written to {out}", markup=False))


def _thing(path: Path, home: Any) -> dict[str, Any]:
    """Return one thing as a record with its page one."""
    from sottovoce.report.inputs import agreement_record, read_thing

    if path.suffix != ".toml":
        return read_thing(path, home)
    from sottovoce.planfile.read import plan_from_settings, read_toml
    from sottovoce.planfile.schema import check_plan_file

    tables = read_toml(path)
    if "members" in tables:
        from sottovoce.peers.agreement import read_agreement

        return agreement_record(read_agreement(path), home)
    from sottovoce.advice.assessment import assess
    from sottovoce.cli.plan import plan_result

    loaded = plan_from_settings(check_plan_file(tables, path.name), path.parent, path.name)
    return plan_result(assess(loaded), loaded)


def _joined(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let a statement show the members and the matrix of the agreement of its run, if that is given too."""
    agreed = {
        record["front"]["marks"]["run"]: record["front"]
        for record in records
        if record["name"] == "agreement"
    }
    for record in records:
        front = record.get("front")
        if record["name"] == "statement" and front is not None:
            other = agreed.get(front["marks"]["run"])
            if other is not None:
                front |= {key: other[key] for key in ("members", "matrix", "purpose")}
    return records
