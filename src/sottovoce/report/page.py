"""The page: sections in order, one HTML file that needs nothing else and prints well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sottovoce import __version__
from sottovoce.errors import InvalidInput
from sottovoce.privacy import words
from sottovoce.report.blocks import number
from sottovoce.report.figures import placed
from sottovoce.report.sections import section_of
from sottovoce.report.words import guarantee_row

__all__ = ["build"]


def build(
    records: Iterable[Mapping[str, Any]], title: str = "What was revealed, and to whom", lead: str = ""
) -> str:
    """Return the HTML page of some result records, in the order given.

    Examples
    --------
    >>> from sottovoce.runners import Result
    >>> page = build([Result("demo", metrics={"error": 0.5}).record()], title="A title")
    >>> page.startswith("<!doctype html>"), "A title" in page, "src=" in page
    (True, True, False)
    """
    import jinja2
    import markupsafe

    listed = list(records)
    if not listed:
        raise InvalidInput("A report needs at least one record, got none.")
    told: list[dict[str, Any]] = []
    for record in listed:
        section = section_of(record)
        names = record["config"].get("labels")
        told.append({"section": section, "guarantees": [guarantee_row(g, names) for g in section.guarantees]})
    used = {g["label"] for t in told for g in t["guarantees"]}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sottovoce.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    environment.filters["placed"] = lambda svg, prefix: markupsafe.Markup(placed(svg, prefix))
    environment.filters["percent"] = lambda share: "–" if share is None else f"{100 * share:.1f}%"
    return environment.get_template("report.html").render(
        title=title,
        lead=lead,
        told=told,
        labels=[(name, *words.verdict(name)) for name in words.LABELS if name in used],
        weak=any(g["verdict"].startswith("No protection") for t in told for g in t["guarantees"]),
        version=__version__,
        simulated=any("not protective" in str(r["provenance"].get("noise", "")) for r in listed),
    )
