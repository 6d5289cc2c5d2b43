"""Sections of report pages for the results of experiments (entry point ``sottovoce.report_sections``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sottovoce.report.figures import inline
from sottovoce.report.sections import Figure, Section, Table, pairs, provenance, scalars
from sottovoce_papers.registry import find, registry


def section_for(name: str) -> Callable[[Mapping[str, Any]], Section] | None:
    """Return the section of results called ``name``; None for results of other programs."""
    if name == "bayrooti2023-trial":
        return trial
    return experiment if name in registry() else None


def experiment(record: Mapping[str, Any]) -> Section:
    """Table and figure of a paper's experiment, the paper's claim, and whether this result bears it out."""

    entry, plain = find(record["name"]), dict(record)
    blocks: list[Figure | Table] = []
    if entry.plot is not None:
        blocks.append(Figure(inline(entry.plot(plain), entry.title), f"{entry.title} ({entry.paper})."))
    if entry.table is not None:
        shown = entry.table(plain)
        blocks.append(Table(shown.columns, shown.rows, shown.note, quantities=shown.kinds))
    settings = pairs(scalars(record["config"]), "setting", "value")
    if settings is not None:
        blocks.append(settings)
    verdict = entry.verdict(record)
    lead = f"{entry.paper}. {entry.claim}" + (f" In this result it {verdict}." if verdict else "")
    return Section(entry.title, lead, tuple(blocks), tuple(record["guarantees"]), provenance(record))


def trial(record: Mapping[str, Any]) -> Section:
    """One trial of one cell of the tables of Bayrooti et al., beside what they print for the cell."""
    cell, printed = record["cell"], record.get("printed")
    budget = "no privacy" if cell["epsilon"] == "inf" else f"epsilon {cell['epsilon']:g}"
    rows = [(f"ours, {record.get('which', 'tuned')}, trial {record['trial']}", record["accuracy"], None)]
    if printed is not None:
        rows.append(("paper, mean", printed[0], printed[1]))
    settings = {**cell, **{key: v for key, v in record["settings"].items() if v is not None}}
    shown = pairs(settings, "setting", "value")
    assert shown is not None
    return Section(
        f"{cell['method']}, {budget}, normalized Fiedler value {cell['fiedler']:g}, t = {cell['skew']:g}",
        str(record.get("guarantee", "")),
        (Table(("trial", "test accuracy (%)", "±"), tuple(rows)), shown),
        (),
        provenance(record),
    )
