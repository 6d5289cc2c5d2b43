"""Which public facts the columns of a table still need, and a draft of them with blanks to fill.

Kinds are guessed from the records, on the machine that holds them, to save typing. No value, count or range
of the records is returned: what is public about a column must come from somebody who knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce._io import to_toml
from sottovoce.data.files import is_empty, parse_days, parse_numbers
from sottovoce.data.tables import Table, no_column
from sottovoce.errors import DataError

Kind = Literal["number", "boolean", "date", "names", "identifier", "text", "empty"]
Role = Literal["feature", "label", "group"]
_NEEDS: dict[Kind, str] = {
    "number": "the lowest and highest value that may occur",
    "boolean": "nothing",
    "date": "the first and last day that may occur",
    "names": "all values that may occur, or a number of columns to hash them to",
    "identifier": "left out: it tells records apart and predicts nothing",
    "text": "left out: free text is no feature of a table",
    "empty": "left out: it holds nothing",
}
_LEFT_OUT: tuple[Kind, ...] = ("identifier", "text", "empty")
_COMMENTS = (
    "A plan file with blanks: fill them in from what is publicly known, never from these records. Then:",
    "sottovoce plan FILE, sottovoce train FILE; or sv.fit(model, sv.data.TableData.from_toml(FILE), ...).",
    'bounds: [lowest, highest], of dates ["2015-01-01", "2025-12-31"]; categories: all values that may',
    "occur, or a number of columns to which they are hashed; what has neither goes to drop.",
    'graph: who talks to whom, "complete:8" for eight sites; epsilon, delta: the budget, 1.0 and 1e-6.',
)
_WORDS_OF_TEXT = 5  # names are shorter


@dataclass(frozen=True)
class ColumnFacts:
    """A column: what it looks like, and what is still needed to use it."""

    name: str
    kind: Kind
    role: Role = "feature"
    has_gaps: bool = False

    @property
    def needs(self) -> str:
        """What somebody must state about the column, in words."""
        if self.role == "group":
            return "nothing: it says which site holds a record"
        if self.role == "label":
            return {"number": "the lowest and highest value, for an amount", "boolean": "nothing"}.get(
                self.kind, "its class names, in classes"
            )
        return _NEEDS[self.kind]


def column_facts(table: Table, label: str | None = None, group: str | None = None) -> list[ColumnFacts]:
    """Return what every column of a table looks like and needs."""
    for name in (label, group):
        if name is not None and name not in table:
            raise DataError(f"{no_column(name, table)}.")
    if not any(map(len, table.values())):
        raise DataError("the table has a header and no records.")
    roles: dict[str | None, Role] = {label: "label", group: "group"}
    return [
        ColumnFacts(name, _kind(np.asarray(values), name), roles.get(name, "feature"), _has_gaps(values))
        for name, values in table.items()
    ]


def _has_gaps(values: np.ndarray) -> bool:
    return any(is_empty(value) for value in values)


def _kind(column: np.ndarray, name: str) -> Kind:
    if column.dtype.kind == "b":
        return "boolean"
    if column.dtype.kind in "iuf":
        return "number" if np.isfinite(column.astype(np.float64)).any() else "empty"
    words = [str(value).strip() for value in column if not is_empty(value)]
    if not words:
        return "empty"
    if {word.lower() for word in words} <= {"true", "false"}:
        return "boolean"
    if _parses(lambda: parse_numbers(words, name, "")):
        return "number"
    if _parses(lambda: parse_days(words, name)):
        return "date"
    if max(len(word.split()) for word in words) >= _WORDS_OF_TEXT:
        return "text"
    return "identifier" if len(words) > 2 and len(set(words)) == len(words) else "names"


def _parses(parse: Callable[[], object]) -> bool:
    try:
        parse()
    except DataError:
        return False
    return True


def draft_plan(file: str, facts: Sequence[ColumnFacts]) -> str:
    """Return a plan file for a linear model of the table, with blanks for whatever must be stated."""
    features = [column for column in facts if column.role == "feature"]
    label = next((column for column in facts if column.role == "label"), None)
    group = next((column for column in facts if column.role == "group"), None)
    data: dict[str, Any] = {"file": file, "label": "" if label is None else label.name}
    if group is not None:
        data["group"] = group.name
    if label is not None and label.kind == "names":
        data["classes"] = []
    if left_out := [column.name for column in features if column.kind in _LEFT_OUT]:
        data["drop"] = left_out
    if any(column.has_gaps for column in features if column.kind not in _LEFT_OUT):
        data["missing"] = "middle"
    data["intercept"] = True
    amounts = [label] if label is not None and label.kind == "number" else []
    bounded = [column for column in (*features, *amounts) if column.kind in ("number", "date", "boolean")]
    data["bounds"] = {column.name: [0, 1] if column.kind == "boolean" else [] for column in bounded}
    data["categories"] = {column.name: [] for column in features if column.kind == "names"}
    tables: dict[str, Any] = {
        "version": 1,
        "data": {key: value for key, value in data.items() if value != {}},
        "network": {"graph": ""},
        **({"objective": {"loss": ""}} if amounts else {}),
        "train": {"algorithm": "consensus-newton", "adjacency": "add-remove"},
        "budget": {"epsilon": "", "delta": ""},
    }
    return to_toml(tables, _COMMENTS)
