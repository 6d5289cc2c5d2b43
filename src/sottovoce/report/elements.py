"""What a page is made of: sections with paragraphs, figures and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Figure", "Section", "Table", "fine", "fixed", "number"]


@dataclass(frozen=True)
class Figure:
    """A picture (inline SVG) and the sentence that says what it shows.

    Examples
    --------
    >>> Figure("<svg></svg>", caption="Nothing yet.")
    Figure(caption='Nothing yet.', kind='figure')
    """

    svg: str = field(repr=False)
    caption: str
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under headings; numbers are aligned and shortened.

    ``strong`` marks rows (by index) that the reader should see first.

    Examples
    --------
    >>> Table(("graph", "loss"), (("ring", 0.5), ("star", 1.0))).numeric()
    [False, True]
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    strong: tuple[int, ...] = ()
    kind: str = field(default="table", init=False)

    def numeric(self) -> list[bool]:
        """Return, per column, whether it holds numbers and nothing else."""
        return [all(_numeric(row[k]) for row in self.rows) for k in range(len(self.columns))]

    def cells(self) -> list[list[str]]:
        """Return the text of every cell; a column of numbers has one format, with the digits that count.

        >>> Table(("graph", "loss"), (("ring", 0.5), ("star", 1.0))).cells()
        [['ring', '0.500'], ['star', '1.000']]
        >>> Table(("graph", "loss"), (("ring", 0.5), ("star", 0.00112))).cells()
        [['ring', '0.5'], ['star', '0.00112']]
        """
        form = []
        for k, numeric in enumerate(self.numeric()):
            given = [row[k] for row in self.rows if isinstance(row[k], float)] if numeric else []
            small = any(0 < abs(value) < 0.01 for value in given)  # three places would round it away
            form.append(fine if small else fixed if given else number)
        return [[tell(cell) for tell, cell in zip(form, row, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class Section:
    """One record, told: a title, a first paragraph, figures and tables, and its guarantees.

    Examples
    --------
    >>> Section("Averages", "What was averaged.").blocks
    ()
    """

    title: str
    lead: str = ""
    blocks: tuple[Figure | Table, ...] = ()
    guarantees: tuple[dict[str, Any], ...] = ()
    footnote: str = ""


def number(value: Any) -> str:
    """Return a number as a person writes it; text stays as it is.

    Examples
    --------
    >>> number(0.123456), number(7), number(1e-5), number(None), number("inf"), number(12345.6)
    ('0.123', '7', '1e-05', '–', '∞', '12,346')
    """
    if value is None:
        return "–"
    if value == "inf" or value == float("inf"):
        return "∞"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != value:
            return "–"
        if value and abs(value) < 1e-3:
            return f"{value:.2g}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def fine(value: Any) -> str:
    """Return a number as `number` does, with three digits that count where it is small: tables compare.

    Examples
    --------
    >>> fine(0.00112), fine(0.0526), fine(0.5), fine(12.3456), fine(None)
    ('0.00112', '0.0526', '0.5', '12.346', '–')
    """
    small = isinstance(value, float) and 0 < abs(value) < 0.1
    return f"{value:.3g}" if small else number(value)


def fixed(value: Any) -> str:
    """Return a number with three decimals, so that numbers under each other can be compared at a glance.

    Examples
    --------
    >>> fixed(1.0), fixed(0.12345), fixed(0.0), fixed(2e-5), fixed(7), fixed(12345.6), fixed(None)
    ('1.000', '0.123', '0.000', '2e-05', '7', '12,346', '–')
    """
    if not isinstance(value, float):
        return number(value)
    if value != value or math.isinf(value):
        return number(value)
    if value and abs(value) < 5e-4:
        return f"{value:.1g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def _numeric(value: Any) -> bool:
    return (
        value is None or value == "inf" or (isinstance(value, (int, float)) and not isinstance(value, bool))
    )
