"""The environment that renders the templates of this package, with the formats that they use."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sottovoce._format import FIELDS, Quantity, fixed, number, percent, significant
from sottovoce.accounting import wording
from sottovoce.report.figures import loss_color, placed

if TYPE_CHECKING:
    import jinja2


@cache
def environment() -> jinja2.Environment:
    """Return what renders the templates of this package."""
    import jinja2
    import markupsafe

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("sottovoce.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "number": number,
        "fixed": fixed,
        "significant": significant,
        "label": wording.label,
        "exception": wording.exception,
        "placed": lambda svg, prefix: markupsafe.Markup(placed(svg, prefix)),
        "percent": lambda share, quantity="value": "–" if share is None else percent(share, quantity, 1),
    }
    templates.globals |= {"value_text": value_text, "share": _bar_width, "color": loss_color}
    return templates


@cache
def texts(name: str) -> dict[str, Any]:
    """Return the titles and sentences in a file of this package's templates."""
    file = resources.files("sottovoce.report") / "templates" / name
    return tomllib.loads(file.read_text(encoding="utf-8"))


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
