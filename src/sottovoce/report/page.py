"""The page: sections in order, one HTML file that needs nothing else and prints well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from sottovoce import __version__
from sottovoce._format import FIELDS, Quantity, fixed, number, percent
from sottovoce.accounting import wording
from sottovoce.errors import InvalidInput
from sottovoce.report.figures import loss_color, placed
from sottovoce.report.sections import guarantee_row, section_of

if TYPE_CHECKING:
    import jinja2

KINDS = {
    "plan": "Plan, before anything ran",
    "agreement": "Agreement, before anything ran",
    "statement": "Statement of a member, after its run",
    "result": "Result",
    "attack": "Attack",
    "audit": "Audit",
}


@cache
def environment() -> jinja2.Environment:
    """Return what renders the templates of this package."""
    import jinja2
    import markupsafe

    loader = jinja2.PackageLoader("sottovoce.report")
    templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {
        "number": number,
        "fixed": fixed,
        "placed": lambda svg, prefix: markupsafe.Markup(placed(svg, prefix)),
        "percent": lambda share, quantity="value": "–" if share is None else percent(share, quantity, 1),
    }
    templates.globals |= {"value_text": value_text, "share": _bar_width, "color": loss_color, "kinds": KINDS}
    return templates


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
            simulated=any("not protective" in str(r["provenance"].get("noise", "")) for r in results),
        )
    )


def value_text(page: Mapping[str, Any], path: str) -> str:
    """Return the text for a value of a summary page, by its path such as ``losses.0.epsilon``."""
    value: Any = page
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    if path.startswith("matrix.values"):
        return fixed(value, "share")
    quantity: Quantity = FIELDS.get(path.rpartition(".")[2], "value")
    return fixed(value, quantity)


def _bar_width(value: float | str, limit: float, before: float | str = 0.0) -> float:
    """Return the width of a part of a budget's bar in percent; what is beyond the budget fills it."""
    reach, start = (
        100.0 if x == "inf" else min(100.0, 100 * float(x) / float(limit)) for x in (value, before)
    )
    return max(0.0, reach - start)
