"""Tables of one's own as numbers, by public facts only: bounds, categories and class names that are given.

Whatever is read from the records of a table and shapes what leaves (a mean, a deviation, the list of classes)
is a release nobody charged. So columns are scaled by public bounds, categories and classes are declared, and
the two things that may be read instead must be accepted by name: ``"standardize"`` and ``"class names"``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.data.files import read_columns, read_parquet
from sottovoce.errors import DataError, InvalidInput, Refused

__all__ = ["Classes", "Columns", "Scale", "columns_of", "is_table"]

Missing = Literal["refuse", "middle"]
_EMPTY = ("", "?", "NA", "NaN", "nan", "None")


@dataclass(frozen=True)
class Scale:
    """A column as it is mapped: (x - center) / width, after x is pulled into [low, high] where given.

    Examples
    --------
    >>> Scale.within(0, 10)(np.array([0.0, 5.0, 99.0])).tolist()
    [-1.0, 0.0, 1.0]
    >>> Scale.within(0, 10).back(np.array([-1.0, 1.0])).tolist()
    [0.0, 10.0]
    """

    center: float = 0.0
    width: float = 1.0
    low: float | None = None
    high: float | None = None

    @classmethod
    def within(cls, low: Any, high: Any, name: str = "the column") -> Scale:
        """Return the map of public bounds to [-1, 1]."""
        try:
            low, high = float(low), float(high)
        except (TypeError, ValueError):
            raise DataError(f"the bounds of {name} must be two numbers, got {low!r} and {high!r}.") from None
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise DataError(f"the bounds of {name} must be finite with low < high, got {low:g} and {high:g}.")
        return cls((low + high) / 2, (high - low) / 2, low, high)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the mapped values, record by record; what is missing stays missing."""
        pulled = values if self.low is None else np.clip(values, self.low, self.high)
        return (pulled - self.center) / self.width

    def back(self, values: np.ndarray) -> np.ndarray:
        """Return values in the column's own unit."""
        return values * self.width + self.center


@dataclass(frozen=True)
class Columns:
    """How the rows of a table become features; it holds public facts, and is kept with the model.

    Parameters
    ----------
    features : names of the columns used, in order.
    scales : how numeric columns are mapped, by name; a column without one is taken as it is.
    categories : the public values of columns that hold names; each value becomes a column of 0 and 1, a
        value that is not listed becomes zeros.
    missing : ``"refuse"``, or ``"middle"``: an empty entry becomes 0, the middle of the bounds.
    unit_rows : every record is scaled to length one, after all else.
    ones : a last column of ones follows.
    uncharged : what was read from private records, by name (`sottovoce.accounting.wording.UNCHARGED`).

    Examples
    --------
    >>> table = {"age": [30, 70], "sex": ["f", "m"], "ill": [0, 1]}
    >>> columns = Columns.of(table, leave=["ill"], bounds={"age": (0, 100)}, categories={"sex": ["f", "m"]})
    >>> columns(table).tolist()
    [[-0.4, 1.0, 0.0], [0.4, 0.0, 1.0]]
    >>> columns.names
    ('age', 'sex=f', 'sex=m')
    """

    features: tuple[str, ...]
    scales: Mapping[str, Scale] = field(default_factory=dict)
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    missing: Missing = "refuse"
    uncharged: tuple[str, ...] = ()
    unit_rows: bool = False
    ones: bool = False

    @classmethod
    def of(
        cls,
        table: Mapping[str, Any],
        *,
        leave: Iterable[str] = (),
        features: Sequence[str] | None = None,
        drop: Iterable[str] = (),
        bounds: Any = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        missing: Missing = "refuse",
        accept: Iterable[str] = (),
    ) -> Columns:
        """Return the columns of a table: all but those to ``leave`` and to ``drop``, or the ``features``.

        Parameters
        ----------
        table : columns by name.
        leave : label and site.
        features, drop : which columns to use, or which not to.
        bounds : ``{column: (low, high)}``, one pair for all, or ``"none"`` to take numbers as they are.
        categories : ``{column: values}``.
        missing : what becomes of empty entries.
        accept : with ``"standardize"`` columns without bounds are standardized by the records themselves.
        """
        if missing not in ("refuse", "middle"):
            raise InvalidInput(f'missing must be "refuse" or "middle", got {missing!r}.')
        categories = dict(categories or {})
        asked = {*(features or ()), *drop, *categories, *(bounds if isinstance(bounds, Mapping) else ())}
        for name in sorted(asked - set(table), key=str):
            raise DataError(f"the table has no column {name!r}; it has {', '.join(map(str, table))}.")
        out = {*leave, *drop}
        chosen = tuple(features) if features is not None else tuple(name for name in table if name not in out)
        both = next((name for name in chosen if name in set(leave)), None)
        if both is not None:
            raise DataError(f"column {both!r} cannot be a feature: it is the label or the site.")
        if not chosen:
            raise DataError("no column is left as a feature; check label, group and drop.")
        plain = [name for name in chosen if name not in categories]
        numbers = {name: _numbers(table[name], name) for name in plain}
        scales, uncharged = _scales(plain, numbers, bounds, set(accept), missing)
        listed = {name: tuple(values) for name, values in categories.items() if name in chosen}
        return cls(chosen, scales, listed, missing, uncharged)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features that come out."""
        out: list[str] = []
        for name in self.features:
            out += (
                [f"{name}={value}" for value in self.categories[name]] if name in self.categories else [name]
            )
        return tuple(out)

    def __call__(self, table: Mapping[str, Any]) -> np.ndarray:
        """Return the features of a table with these columns, (records, features)."""
        parts: list[np.ndarray] = []
        for name in self.features:
            if name not in table:
                raise DataError(f"the table has no column {name!r}; the model was made for "
                                f"{', '.join(self.features)}.")  # fmt: skip
            if name in self.categories:
                words = [str(value) for value in table[name]]
                parts += [
                    np.array([word == str(value) for word in words], float) for value in self.categories[name]
                ]
                continue
            values = self.scales.get(name, Scale())(_numbers(table[name], name))
            if not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values))[0])
                if self.missing == "refuse" or np.isinf(values[row]):
                    raise DataError(
                        f"row {row} of column {name!r} is missing or infinite; mend it, or pass "
                        'missing="middle" to put the middle of the bounds there.'
                    )
                values = np.nan_to_num(values)
            parts.append(values)
        if len({len(part) for part in parts}) > 1:
            raise DataError("the columns of the table differ in length.")
        return self.finished(np.column_stack(parts))

    def finished(self, X: np.ndarray) -> np.ndarray:
        """Return mapped features as the model takes them: unit length and ones, where wanted."""
        if self.unit_rows:
            norms = np.linalg.norm(X, axis=1, keepdims=True)
            X = X / np.where(norms > 0, norms, 1.0)
        return np.hstack([X, np.ones((len(X), 1))]) if self.ones else X

    def complete(self, table: Mapping[str, Any]) -> np.ndarray:
        """Return which records have a number in every numeric column.

        Examples
        --------
        >>> Columns(("age",)).complete({"age": ["61", "?", "34"]}).tolist()
        [True, False, True]
        """
        found = [np.isfinite(_numbers(table[n], n)) for n in self.features if n not in self.categories]
        return np.logical_and.reduce(found) if found else np.ones(len(table[self.features[0]]), bool)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "features": list(self.features),
            "scales": {name: vars(scale) for name, scale in self.scales.items()},
            "categories": {name: list(values) for name, values in self.categories.items()},
            "missing": self.missing,
            "uncharged": list(self.uncharged),
            "unit_rows": self.unit_rows,
            "ones": self.ones,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Columns:
        """Read what `to_dict` wrote."""
        scales = {name: Scale(**values) for name, values in record["scales"].items()}
        categories = {name: tuple(values) for name, values in record["categories"].items()}
        more = {key: bool(record.get(key, False)) for key in ("unit_rows", "ones")}
        return cls(
            tuple(record["features"]), scales, categories, record["missing"], tuple(record["uncharged"]),
            **more,
        )  # fmt: skip


@dataclass(frozen=True)
class Classes:
    """The public list of classes: labels as given on one side, whole numbers on the other.

    Examples
    --------
    >>> classes = Classes(("no", "yes"))
    >>> classes.numbers(["yes", "no"]).tolist(), classes.names(np.array([1, 0])).tolist()
    ([1, 0], ['yes', 'no'])
    """

    listed: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.listed) < 2 or len({str(value) for value in self.listed}) != len(self.listed):
            raise DataError(f"classes must be two or more different names, got {list(self.listed)}.")

    @classmethod
    def read(cls, labels: Any) -> Classes:
        """Return the sorted classes found among records; the caller has accepted that by name."""
        return cls(tuple(np.unique(np.asarray(labels)).tolist()))

    def numbers(self, labels: Any) -> np.ndarray:
        """Return the place of each label in the list."""
        place = {str(value): i for i, value in enumerate(self.listed)}
        place |= {f"{value:g}": i for i, value in enumerate(self.listed) if isinstance(value, (int, float))}
        found = np.array([place.get(_word(label), -1) for label in labels], np.int64)
        if (found < 0).any():
            row = int(np.flatnonzero(found < 0)[0])
            raise DataError(
                f"record {row} has label {_word(list(labels)[row])!r}, which is not among the classes "
                f"{', '.join(map(str, self.listed))}."
            )
        return found

    def names(self, numbers: np.ndarray) -> np.ndarray:
        """Return the labels of whole numbers."""
        return np.array(self.listed)[np.asarray(numbers, np.intp)]


def is_table(data: Any) -> bool:
    """Return whether ``data`` is a table: a path, a data frame, or a mapping of columns.

    Examples
    --------
    >>> is_table({"age": [1, 2]}), is_table({"tokens": np.ones((2, 5))}), is_table(np.eye(2))
    (True, False, False)
    """
    if isinstance(data, (str, os.PathLike)):
        return Path(data).suffix not in (".npz", ".npy")
    if isinstance(data, Mapping):
        return all(not hasattr(v, "detach") and np.ndim(v) == 1 for v in data.values()) and bool(data)
    return hasattr(data, "columns") and hasattr(data, "__getitem__")


def columns_of(data: Any) -> dict[str, Any]:
    """Return the columns of a table by name.

    Examples
    --------
    >>> columns_of({"age": [1, 2]})
    {'age': array([1, 2])}
    """
    if isinstance(data, (str, os.PathLike)):
        suffixes = [s for s in Path(data).suffixes if s != ".gz"]
        kind = suffixes[-1].lower() if suffixes else ""
        if kind == ".parquet":
            return read_parquet(Path(data))
        if kind not in (".csv", ".tsv"):
            raise DataError(
                f"a table must be a .csv, .tsv or .parquet file, or .gz of the first two, got "
                f"{Path(data).name}."
            )
        return {name: np.array(words, dtype=object) for name, words in read_columns(Path(data)).items()}
    names = list(data) if isinstance(data, Mapping) else list(data.columns)
    return {str(name): np.asarray(data[name]) for name in names}


def _scales(
    names: Sequence[str], numbers: Mapping[str, np.ndarray], bounds: Any, accept: set[str], missing: str
) -> tuple[dict[str, Scale], tuple[str, ...]]:
    """The maps of the numeric columns, and what was read from private records for them."""
    if isinstance(bounds, str):
        if bounds != "none":
            raise InvalidInput(f'bounds must be pairs (low, high) or "none", got {bounds!r}.')
        if missing == "middle":
            raise InvalidInput('missing="middle" needs bounds to have a middle of.')
        return {}, ()
    pairs: Mapping[str, Any] = bounds if isinstance(bounds, Mapping) else {}
    if bounds is not None and not isinstance(bounds, Mapping):
        pairs = dict.fromkeys(names, bounds)
    scales = {}
    for name, pair in pairs.items():
        if name not in names:
            continue
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise DataError(f"the bounds of column {name!r} must be a pair (low, high), got {pair!r}.")
        scales[name] = Scale.within(pair[0], pair[1], f"column {name!r}")
    without = [name for name in names if name not in scales]
    if not without:
        return scales, ()
    if "standardize" not in accept:
        raise Refused(
            f"column {without[0]!r} has no public bounds: give bounds={{{without[0]!r}: (low, high)}}, or "
            'bounds="none" to take numbers as they are, or accept=("standardize",) to read mean and '
            "deviation from the private records, which is not charged."
        )
    for name in without:
        finite = numbers[name][np.isfinite(numbers[name])]
        mean, deviation = (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 1.0)
        scales[name] = Scale(mean, deviation or 1.0)
    return scales, ("standardize",)


def _numbers(values: Any, name: str) -> np.ndarray:
    """A column of numbers; empty entries become NaN."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    out = np.empty(len(array))
    for row, value in enumerate(array):
        if value is None or str(value).strip() in _EMPTY:
            out[row] = np.nan
            continue
        try:
            out[row] = float(value)
        except (TypeError, ValueError):
            raise DataError(
                f"column {name!r} holds {str(value)!r} in row {row}, expected numbers; list its values in "
                f"categories={{{name!r}: [...]}}, or leave it out with drop=[{name!r}]."
            ) from None
    return out


def _word(label: Any) -> str:
    """A label as a word; 1.0 and 1 are the same class."""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label)
