"""The page: sections in order, one HTML file that needs nothing else and prints well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sottovoce import __version__
from sottovoce.accounting import wording
from sottovoce.errors import InvalidInput
from sottovoce.report.rendering import environment
from sottovoce.report.sections import guarantee_row, section_of
from sottovoce.report.summary_page import is_simulated


def build(
    results: Iterable[Mapping[str, Any]], title: str = "What was revealed, and to whom", lead: str = ""
) -> str:
    """Return the HTML page of results, in their order."""
    results = list(results)
    if not results:
        raise InvalidInput("A report needs at least one result, got none.")
    sections = [section_of(result) for result in results]
    rows = [
        [guarantee_row(guarantee, result["config"].get("labels")) for guarantee in section.guarantees]
        for section, result in zip(sections, results, strict=True)
    ]
    guarantees = [row for part in rows for row in part]
    used = {row["label"] for row in guarantees}
    return (
        environment()
        .get_template("report.html")
        .render(
            title=title,
            lead=lead,
            summary_pages=[result["summary_page"] for result in results if result.get("summary_page")],
            parts=[{"section": s, "guarantees": part} for s, part in zip(sections, rows, strict=True)],
            labels=[(name, *wording.verdict(name)) for name in wording.LABELS if name in used],
            weak=any(row["verdict"].startswith("No protection") for row in guarantees),
            version=__version__,
            simulated=any(is_simulated(result["provenance"]) for result in results),
        )
    )
