"""What a page is made of: sections with paragraphs, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce._format import Quantity, fine, fixed, number
from sottovoce.accounting import wording


@dataclass(frozen=True)
class Figure:
    """A picture (inline SVG) and the sentence that says what it shows."""

    svg: str = field(repr=False)
    caption: str
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under headings; numbers are aligned and shortened.

    ``strong`` marks rows (by index) that the reader should see first. ``quantities`` says what each column
    holds, or, where the last column holds one value per row, each row: to that side numbers are rounded.

    Examples
    --------
    >>> Table(("graph", "loss"), (("ring", 0.5), ("star", 1.0))).numeric()
    [False, True]
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    strong: tuple[int, ...] = ()
    quantities: Sequence[Quantity] = ()
    by_row: bool = False
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
            values = [row[k] for row in self.rows if isinstance(row[k], float)] if numeric else []
            small = any(0 < abs(value) < 0.01 for value in values)  # three decimals would round it away
            form.append(fine if small else fixed if values else number)
        return [
            [write(cell, kind) for write, cell, kind in zip(form, row, self._kinds(i), strict=True)]
            for i, row in enumerate(self.rows)
        ]

    def _kinds(self, row: int) -> Sequence[Quantity]:
        """Return the quantities of the cells of a row."""
        nothing: list[Quantity] = ["value"] * len(self.columns)
        if self.by_row:
            return [*nothing[1:], self.quantities[row]]
        return self.quantities or nothing


@dataclass(frozen=True)
class Section:
    """The part of a page for one result: title, lead, figures, tables and guarantees."""

    title: str
    lead: str = ""
    blocks: tuple[Figure | Table, ...] = ()
    guarantees: tuple[dict[str, Any], ...] = ()
    footnote: str = ""


def _numeric(value: object) -> bool:
    return (
        value is None or value == "inf" or (isinstance(value, (int, float)) and not isinstance(value, bool))
    )


def guarantee_row(stored: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """Return one stored guarantee as the page shows it; epsilon is computed again where it is missing."""
    delta = stored.get("delta")
    epsilon = stored.get("epsilon")
    guess = stored.get("best_guess")
    if "curve" in stored:
        from sottovoce.accounting.guarantee import Guarantee

        whole = Guarantee.from_dict(stored)
        guess = whole.best_guess
        if epsilon is None:
            delta = 1e-5 if delta is None else delta
            value = whole.epsilon(delta)
            epsilon = "inf" if math.isinf(value) else value
    verdict, meaning = wording.verdict(str(stored.get("label")))
    if verdict == "Guarantee" and guess is not None and guess > wording.CERTAIN:
        verdict = "No protection in practice"
    if verdict == "Guarantee" and stored.get("accepted"):  # read of private records, and not charged
        verdict = f"Guarantee, except for what was accepted: {', '.join(stored['accepted'])}"
    who = stored.get("adversary") or stored.get("against") or ""
    user = who.get("user") if isinstance(who, dict) else None
    return {
        "against": wording.stored_adversary(who, names),
        "what": stored.get("what", ""),
        "adjacency": wording.adjacency(str(stored.get("adjacency")), user, names=names, noun="participant"),
        "epsilon": epsilon,
        "delta": delta,
        "guess": guess,
        "label": stored.get("label"),
        "verdict": verdict,
        "meaning": meaning,
        "assumptions": list(stored.get("assumptions") or ()),
    }
