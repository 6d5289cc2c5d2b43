"""`sottovoce columns FILE`: what every column of a table still needs, and a draft of those facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sottovoce._io import atomic_write
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, require_writable, template
from sottovoce.errors import ConfigError


def columns(
    file: Annotated[Path, Argument(help="A table: .csv, .tsv, .arff or .parquet.")],
    label: Annotated[str | None, Option(help="The column to predict.")] = None,
    group: Annotated[str | None, Option(help="The column that names each record's site.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write the draft here (.toml).")] = None,
    json: Json = False,
) -> None:
    """List the columns of a table with what each still needs, and draft a plan file.

    Bounds, categories and classes must be public knowledge, so they are left
    blank: no value of the table is printed. With its blanks filled in, sottovoce
    plan and sottovoce train run the draft, and sv.data.TableData.from_toml reads it.

    \b
    Example:
      sottovoce columns patients.csv --label ill --group site --out plan.toml
    """
    from sottovoce.data.column_facts import column_facts, draft_plan
    from sottovoce.data.files import read_table

    require_writable(out)
    if out is not None and out.exists():
        raise ConfigError(f"{out} is there already, perhaps filled in; name another file.")
    facts = column_facts(read_table(file), label, group)
    beside = out is None or out.absolute().parent == file.absolute().parent
    where = file.name if beside else str(file.absolute())
    draft = draft_plan(where, facts)
    if out is not None:
        atomic_write(out, draft)
    rows = [
        {"name": c.name, "role": c.role, "kind": c.kind, "gaps": c.has_gaps, "needs": c.needs} for c in facts
    ]

    text = template("columns", columns=rows, title=file.name, out=out, draft=draft)
    emit({"file": str(file), "columns": rows, "draft": draft}, json, text)
