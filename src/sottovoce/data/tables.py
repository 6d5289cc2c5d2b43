"""Tables as arrays of numbers, by public facts only: declared bounds, categories and class names.

A mean, a deviation or a list of classes read from the records would be an uncharged release. So columns are
scaled by public bounds, and categories and classes are declared. The two facts that may be read from the
records instead must be accepted by name: ``"standardize"`` and ``"class names"``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.data.base import is_tensor, unit_rows
from sottovoce.data.files import DataFrame, parse_numbers
from sottovoce.errors import DataError, InvalidInput, Refused

Missing = Literal["refuse", "middle"]
Bounds = Mapping[str, Sequence[float]] | Sequence[float] | Literal["none"] | None
Table = Mapping[str, np.ndarray]  # columns by name


@dataclass(frozen=True)
class TableData:
    """Records and how to read them: which column is predicted, which columns are features, how they scale.

    Parameters
    ----------
    source : a table (path of a CSV, TSV or Parquet file, data frame, mapping of columns), a pair
        ``(inputs, targets)``, a mapping of inputs, a `Dataset`, or a torch dataset.
    label : the column to predict, or several; of a mapping of inputs, the entry.
    group : the column that names each record's site, or one site per record.
    features, drop : which columns to use, or which not to use; all but label and group by default.
    bounds : public ``{column: (low, high)}``, one pair for all columns, or ``"none"`` to take numbers as they
        are. A pair for the label scales a regression target.
    categories : public ``{column: values}`` of columns that hold names.
    missing : ``"refuse"``, or ``"middle"`` to replace an empty entry by the middle of the bounds.

    Examples
    --------
    >>> table = {"age": [30, 70], "town": ["A", "B"], "ill": ["no", "yes"]}
    >>> TableData(table, label="ill", group="town", bounds={"age": (0, 100)}).feature_bounds
    {'age': (0, 100)}
    """

    source: object
    label: str | Sequence[str] | None = None
    group: str | Sequence[object] | np.ndarray | None = None
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    bounds: Bounds = None
    categories: Mapping[str, Sequence[object]] | None = None
    missing: Missing = "refuse"

    @property
    def labels(self) -> list[str]:
        """Names of the columns to predict."""
        return [self.label] if isinstance(self.label, str) else list(self.label or ())

    @property
    def excluded(self) -> list[str]:
        """Names of the columns that are no features: label and group."""
        return [*self.labels, self.group] if isinstance(self.group, str) else self.labels

    @property
    def feature_bounds(self) -> Bounds:
        """The bounds without that of the label."""
        if isinstance(self.bounds, Mapping):
            return {name: pair for name, pair in self.bounds.items() if name != self.label}
        return self.bounds

    @property
    def label_bounds(self) -> Sequence[float] | None:
        """The bounds of the label."""
        if isinstance(self.bounds, Mapping) and isinstance(self.label, str):
            return self.bounds.get(self.label)
        return None


@dataclass(frozen=True)
class Scale:
    """The map (x - center) / width of a column, after x is clipped to [low, high] if there are bounds."""

    center: float = 0.0
    width: float = 1.0
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_bounds(cls, low: float, high: float, name: str = "the column") -> Scale:
        """Return the map of public bounds to [-1, 1]."""
        try:
            low, high = float(low), float(high)
        except (TypeError, ValueError):
            raise DataError(f"the bounds of {name} must be two numbers, got {low!r} and {high!r}.") from None
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise DataError(f"the bounds of {name} must be finite with low < high, got {low:g} and {high:g}.")
        return cls((low + high) / 2, (high - low) / 2, low, high)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the mapped values, record by record; NaN stays NaN."""
        clipped = values if self.low is None else np.clip(values, self.low, self.high)
        return (clipped - self.center) / self.width

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Return mapped values in the unit of the column."""
        return values * self.width + self.center


@dataclass(frozen=True)
class Columns:
    """How the rows of a table become features. It holds public facts and is saved with the model.

    Parameters
    ----------
    features : names of the columns used, in order.
    scales : how numeric columns are mapped, by name; a column without a scale is taken as it is.
    categories : the public values of columns that hold names. Each value becomes a column of 0 and 1; a
        value that is not declared becomes zeros.
    missing : ``"refuse"``, or ``"middle"``: an empty entry becomes 0, the middle of the bounds.
    unit_rows : scale every record to length one, after all else.
    ones : append a column of ones.
    uncharged : what was read from private records, by name (`sottovoce.accounting.wording.UNCHARGED`).
    """

    features: tuple[str, ...]
    scales: Mapping[str, Scale] = field(default_factory=dict)
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    missing: Missing = "refuse"
    uncharged: tuple[str, ...] = ()
    unit_rows: bool = False
    ones: bool = False

    @classmethod
    def from_table(cls, table: Table, options: TableData, accept: Collection[str] = ()) -> Columns:
        """Return the columns of a table by the options of a `TableData`.

        With ``"standardize"`` in ``accept``, columns without bounds are standardized by the records
        themselves.
        """
        features, bounds, missing = options.features, options.feature_bounds, options.missing
        if missing not in ("refuse", "middle"):
            raise InvalidInput(f'missing must be "refuse" or "middle", got {missing!r}.')
        categories = dict(options.categories or {})
        bounded = bounds if isinstance(bounds, Mapping) else ()
        for name in sorted({*(features or ()), *options.drop, *categories, *bounded} - set(table), key=str):
            raise DataError(f"the table has no column {name!r}; it has {', '.join(map(str, table))}.")
        unused = {*options.excluded, *options.drop}
        chosen = tuple(name for name in table if name not in unused) if features is None else tuple(features)
        both = next((name for name in chosen if name in options.excluded), None)
        if both is not None:
            raise DataError(f"column {both!r} cannot be a feature: it is the label or the site.")
        if not chosen:
            raise DataError("no column is left as a feature; check label, group and drop.")
        numbers = {name: _column(table, name) for name in chosen if name not in categories}
        scales, uncharged = _scales(numbers, bounds, accept, missing)
        values = {name: tuple(categories[name]) for name in categories if name in chosen}
        return cls(chosen, scales, values, missing, uncharged)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the resulting features."""
        names: list[str] = []
        for name in self.features:
            values = self.categories.get(name)
            names += [name] if values is None else [f"{name}={value}" for value in values]
        return tuple(names)

    @property
    def usual_square(self) -> float:
        """The squared length that most records stay below: 1 for a name, a half for a number."""
        if self.unit_rows:
            return 1.0 + self.ones
        named = len(self.categories)
        return named + (len(self.features) - named) / 2 + self.ones

    def __call__(self, table: Table) -> np.ndarray:
        """Return the features of a table with these columns, (records, features)."""
        parts: list[np.ndarray] = []
        for name in self.features:
            if name not in table:
                raise DataError(
                    f"the table has no column {name!r}; the model was made for {', '.join(self.features)}."
                )
            if name in self.categories:
                words = np.array([str(value) for value in table[name]], dtype=object)
                parts += [(words == str(value)).astype(float) for value in self.categories[name]]
                continue
            values = self.scales.get(name, Scale())(_column(table, name))
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
        X = np.column_stack(parts)
        if self.unit_rows:
            X = unit_rows(X)
        return np.hstack([X, np.ones((len(X), 1))]) if self.ones else X

    def of_array(self, inputs: ArrayLike) -> np.ndarray:
        """Return the features of an array whose columns are these, in order."""
        array = np.asarray(inputs)
        if array.ndim != 2 or array.shape[1] != len(self.features):
            raise DataError(
                f"the model takes {len(self.features)} columns ({', '.join(self.features)}), got an array "
                f"of shape {array.shape}."
            )
        return self(dict(zip(self.features, array.T, strict=True)))

    def complete(self, table: Table) -> np.ndarray:
        """Return which records have a number in every numeric column."""
        finite = [np.isfinite(_column(table, name)) for name in self.features if name not in self.categories]
        return np.logical_and.reduce(finite) if finite else np.ones(len(table[self.features[0]]), bool)

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Columns:
        """Read the output of `to_dict`."""
        lists = {name: tuple(stored[name]) for name in ("features", "uncharged")}
        scales = {name: Scale(**values) for name, values in stored["scales"].items()}
        categories = {name: tuple(values) for name, values in stored["categories"].items()}
        return cls(**{**stored, **lists, "scales": scales, "categories": categories})


@dataclass(frozen=True)
class Classes:
    """The public list of classes, which maps labels to whole numbers."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len({str(value) for value in self.values}) != len(self.values):
            names = ", ".join(map(str, self.values))
            amount = "1 class" if len(self.values) == 1 else f"{len(self.values)} classes"
            raise DataError(f"classes must be two or more different names, got {amount}: {names or 'none'}.")

    @classmethod
    def declared(
        cls, labels: ArrayLike, classes: Sequence[object] | None, accept: Collection[str]
    ) -> Classes | None:
        """Return the declared classes, or those of the labels if ``accept`` has ``"class names"``.

        None if the labels are numbers and nothing was declared.
        """
        if classes is not None:
            return cls(tuple(classes))
        if "class names" in accept:
            return cls(tuple(np.unique(np.asarray(labels)).tolist()))
        if not is_tensor(labels) and np.asarray(labels).dtype.kind in "OUS":
            raise Refused(
                'the labels are names: declare them with classes=[...], or accept=["class names"] to read '
                "the list from the private records, which is not charged."
            )
        return None

    def numbers(self, labels: Sequence[object] | np.ndarray) -> np.ndarray:
        """Return the position of each label in the list."""
        position = {str(value): i for i, value in enumerate(self.values)}
        position |= {f"{v:g}": i for i, v in enumerate(self.values) if isinstance(v, (int, float))}
        numbers = np.array([position.get(str(v), position.get(_word(v), -1)) for v in labels], np.int64)
        if (numbers < 0).any():
            row = int(np.flatnonzero(numbers < 0)[0])
            raise DataError(
                f"record {row} has label {_word(list(labels)[row])!r}, which is not among the public classes "
                f"{', '.join(map(str, self.values))}; correct the record, or declare all classes."
            )
        return numbers

    def names(self, numbers: np.ndarray) -> np.ndarray:
        """Return the labels of whole numbers."""
        return np.array(self.values)[np.asarray(numbers, np.intp)]


def is_table(data: object) -> TypeGuard[str | os.PathLike[str] | Mapping[Any, Any] | DataFrame]:
    """Return whether ``data`` is a table: a path, a data frame, or a mapping of columns."""
    if isinstance(data, (str, os.PathLike)):
        return Path(data).suffix not in (".npz", ".npy")
    if isinstance(data, Mapping):
        return bool(data) and all(not is_tensor(v) and np.ndim(v) == 1 for v in data.values())
    return isinstance(data, DataFrame)


def _column(table: Table, name: str) -> np.ndarray:
    hint = f"list its values in categories={{{name!r}: [...]}}, or leave it out with drop=[{name!r}]"
    return parse_numbers(table[name], name, hint)


def _scales(
    numbers: Mapping[str, np.ndarray], bounds: Bounds, accept: Collection[str], missing: Missing
) -> tuple[dict[str, Scale], tuple[str, ...]]:
    """Return the maps of the numeric columns, and what was read from private records for them."""
    if isinstance(bounds, str):
        if bounds != "none":
            raise InvalidInput(f'bounds must be pairs (low, high) or "none", got {bounds!r}.')
        if missing == "middle":
            raise InvalidInput('missing="middle" needs bounds to have a middle of.')
        return {}, ()
    if bounds is None:
        bounds = {}
    pairs = bounds if isinstance(bounds, Mapping) else dict.fromkeys(numbers, bounds)
    scales: dict[str, Scale] = {}
    for name, pair in pairs.items():
        if name not in numbers:
            continue
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise DataError(f"the bounds of column {name!r} must be a pair (low, high), got {pair!r}.")
        scales[name] = Scale.from_bounds(pair[0], pair[1], f"column {name!r}")
    without = [name for name in numbers if name not in scales]
    if not without:
        return scales, ()
    if "standardize" not in accept:
        pairs_needed = ", ".join(f"{name!r}: (low, high)" for name in without)
        raise Refused(
            f"{without_bounds(without)}: give bounds={{{pairs_needed}}}, or "
            'bounds="none" to take numbers as they are, or accept=["standardize"] to read mean and '
            "deviation from the private records, which is not charged."
        )
    for name in without:
        finite = numbers[name][np.isfinite(numbers[name])]
        mean, deviation = (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 1.0)
        scales[name] = Scale(mean, deviation or 1.0)
    return scales, ("standardize",)


def without_bounds(names: Sequence[str]) -> str:
    """Return the beginning of a sentence about numeric columns that have no public bounds."""
    columns = ", ".join(map(repr, names))
    return (
        f"column {columns} has no public bounds"
        if len(names) == 1
        else f"columns {columns} have no public bounds"
    )


def _word(label: object) -> str:
    """Return a label as a word; 1.0, 1 and True are the same class."""
    if isinstance(label, (bool, np.bool_, float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label)
