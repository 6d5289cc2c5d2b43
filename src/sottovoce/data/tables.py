"""Tables as arrays of numbers, by public facts only: declared bounds, categories and class names.

A mean, a deviation or a list of classes read from the records would be an uncharged release. So columns are
scaled by public bounds, and categories and classes are declared. The two facts that may be read from the
records instead must be accepted by name: ``"standardize"`` and ``"class names"``.
"""

from __future__ import annotations

import os
import tomllib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self, TypeGuard, get_args

import numpy as np
from numpy.typing import ArrayLike

from sottovoce._validate import choice, count, did_you_mean, positive
from sottovoce.data.base import is_tensor, unit_rows, with_ones
from sottovoce.data.files import DataFrame, are_booleans, is_empty, parse_days, parse_numbers
from sottovoce.errors import DataError, InvalidInput, Refused

Missing = Literal["refuse", "drop", "middle", "indicator"]
Bounds = Mapping[str, Sequence[Any]] | Sequence[float] | Literal["none"] | None
Table = Mapping[str, np.ndarray]  # columns by name
ClassNumbers = Mapping[Any, float] | Sequence[float]  # one per class, by name or in their order


LABELS_ARE_NAMES = (
    'the labels are names: list them in classes, or accept "class names" to read the list from the private '
    "records, which is not charged"
)
_GAPS = (
    'set missing to "drop" to leave such records out, to "middle" to put the middle of the bounds there, or '
    'to "indicator" to mark it as well'
)


def label_column(values: np.ndarray) -> np.ndarray:
    """Return a label column: numbers or booleans if all entries are such, words otherwise."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    words = [str(value).strip() for value in array]
    if {word.lower() for word in words} <= {"true", "false"}:
        return np.array([word.lower() == "true" for word in words])
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        return np.array(words)
    whole = all(word.lstrip("+-").isdecimal() for word in words)
    return numbers.astype(np.int64) if whole else numbers


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
        are. A pair for the label, or for all columns, scales a regression target. Two dates, as
        ``("2015-01-01", "2025-12-31")``, make days of a column of dates. A column of booleans needs none.
    categories : public ``{column: values}`` of columns that hold names; a number in place of the values, 32
        for example, spreads names over so many columns by a public hash.
    missing : what an empty entry becomes: ``"refuse"``; ``"drop"`` leaves the record out; ``"middle"`` puts
        the middle of the bounds there; ``"indicator"`` does so and adds a column that says where.
    classes : public class names of the label, in order.

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
    categories: Mapping[str, Sequence[object] | int] | None = None
    missing: Missing = "refuse"
    classes: Sequence[object] | None = None

    def __post_init__(self) -> None:
        """Refuse options of another kind; names of columns become words, as a table has them."""
        for key in ("features", "drop"):
            names = getattr(self, key)
            if isinstance(names, str) or not isinstance(names, Collection | None):
                raise InvalidInput(f"{key} must be a list of columns, got {names!r}.")
        if not isinstance(self.categories, Mapping | None):
            raise InvalidInput(f"categories must name columns with their values, got {self.categories!r}.")
        for key in ("label", "features", "drop", "bounds", "categories"):
            object.__setattr__(self, key, _in_words(getattr(self, key), key))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Return how a table is read by the ``[data]`` section of a file that `sottovoce columns` drafted.

        Blanks are left for the table's own check, which reports all of them at once. `fit` always has an
        intercept, as the draft says.
        """
        file = Path(path)
        try:
            section = dict(tomllib.loads(file.read_text(encoding="utf-8"))["data"])
            source = file.parent / section.pop("file")
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as problem:
            raise DataError(f"{file} must be a TOML file with [data] and its file: {problem}.") from None
        known = {item.name for item in fields(cls)} - {"source"}
        if unknown := section.keys() - known - {"intercept"}:
            near = did_you_mean(min(unknown), known)
            raise DataError(
                f"{file.name}: [data] {', '.join(sorted(unknown))} is not known to sv.fit{near}; it knows "
                f"{', '.join(sorted(known))}."
            )
        stated = without_blanks(section)
        return cls(source, **{key: value for key, value in stated.items() if key in known})

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

    @property
    def common_bounds(self) -> Sequence[float] | None:
        """The one pair of bounds of all columns, an amount to predict among them."""
        return None if isinstance(self.bounds, (str, Mapping)) else self.bounds

    def label_scale(self, common: bool = False) -> Scale | None:
        """Return the map of an amount to predict by its public bounds, if ``common`` or by those of all."""
        pair = self.label_bounds or (self.common_bounds if common else None)
        return None if pair is None else Scale.from_bounds(pair, "the label")

    def label_problem(self, values: np.ndarray, regression: bool, accept: Collection[str]) -> str | None:
        """Return what is wrong with the column of the label: an entry that is missing, the bounds of an
        amount that are not known, or the names of classes."""
        stated = np.array([not is_empty(value) for value in values], bool)
        if self.missing != "drop" and not stated.all():
            return (
                f"row {int(stated.argmin())} of the label {self.label!r} is missing; mend it, or set missing "
                'to "drop" to leave such records out'
            )
        if regression:
            if self.bounds == "none" or (self.label_bounds or self.common_bounds) is not None:
                return None
            return (
                f"the label {self.label!r} has no public bounds: give it (low, high) in bounds, or set "
                'bounds to "none" to take numbers as they are'
            )
        known = self.classes is not None or "class names" in accept
        names = label_column(values[stated]).dtype.kind in "OUS"
        return LABELS_ARE_NAMES if names and not known else None


@dataclass(frozen=True)
class Scale:
    """The map (x - center) / width of a column, after x is clipped to [low, high] if there are bounds."""

    center: float = 0.0
    width: float = 1.0
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_bounds(cls, pair: Any, name: str) -> Scale:
        """Return the map of public bounds (low, high) to [-1, 1]; two dates are bounds of days."""
        try:
            ends = parse_days([str(end) for end in pair], name) if are_dates(pair) else pair
            low, high = map(float, ends)
            if isinstance(pair, str) or not -np.inf < low < high < np.inf:
                raise ValueError
        except (TypeError, ValueError):
            raise DataError(
                f"the bounds of {name} must be two finite numbers with low < high, or two dates such as "
                f"2024-03-31, got {pair!r}."
            ) from None
        return cls((low + high) / 2, (high - low) / 2, low, high)

    @classmethod
    def standardizing(cls, numbers: np.ndarray) -> Scale:
        """Return the map to mean 0 and deviation 1 of private numbers, which is not charged."""
        finite = numbers[np.isfinite(numbers)]
        mean, deviation = (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 1.0)
        return cls(mean, deviation or 1.0)

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

    A numeric column without a scale is taken as it is. Each public value of a column of names becomes a
    column of 0 and 1, and a value that is not declared zeros; a number stands for so many columns of hashed
    names. With ``missing`` as ``"middle"`` an empty entry becomes 0, the middle of the bounds, with
    ``"indicator"`` a further column is 1 there; otherwise it is refused. ``dates`` become days. ``unit_rows``
    scales every record to length one, ``ones`` appends a column of ones. ``uncharged`` is what was read from
    private records, by name (`sottovoce.accounting.wording.UNCHARGED`).
    """

    features: tuple[str, ...]
    scales: Mapping[str, Scale] = field(default_factory=dict)
    categories: Mapping[str, tuple[Any, ...] | int] = field(default_factory=dict)
    missing: Missing = "refuse"
    uncharged: tuple[str, ...] = ()
    unit_rows: bool = False
    ones: bool = False
    dates: tuple[str, ...] = ()

    @classmethod
    def declared(
        cls,
        features: Sequence[str],
        bounds: Mapping[str, Sequence[Any]],
        categories: Mapping[str, Sequence[object] | int],
        missing: Missing = "refuse",
    ) -> Columns:
        """Return the columns of a table that nobody has read yet: all facts are stated."""
        numeric = [name for name in features if name in bounds and name not in categories]
        scales = {name: Scale.from_bounds(bounds[name], f"column {name!r}") for name in numeric}
        names = {name: _declared(values, name) for name, values in categories.items()}
        dates = tuple(name for name in numeric if are_dates(bounds[name]))
        return cls(tuple(features), scales, names, missing, dates=dates)

    @classmethod
    def from_table(
        cls,
        table: Table,
        options: TableData,
        accept: Collection[str] = (),
        label_problem: Callable[[], str | None] | None = None,
    ) -> Columns:
        """Return the columns of a table by the options of a `TableData`.

        With ``"standardize"`` in ``accept``, columns without bounds are standardized by the records
        themselves. Everything that is wrong is said in one message, ``label_problem`` included.
        """
        bounds, missing = options.feature_bounds, choice(options.missing, get_args(Missing), "missing")
        if isinstance(bounds, str) and (bounds != "none" or missing in ("middle", "indicator")):
            raise InvalidInput(
                f'bounds must be pairs (low, high), or "none" where nothing is put in gaps, got {bounds!r} '
                f"and missing={missing!r}."
            )
        categories = dict(options.categories or {})
        by_name = bounds if isinstance(bounds, Mapping) else {}
        for_all = None if isinstance(bounds, Mapping) else bounds
        named = {*(options.features or ()), *options.drop, *categories, *by_name}
        problems = [no_column(name, table) for name in sorted(named - set(table))]
        unused = {*options.excluded, *options.drop}
        every = [name for name in table if name not in unused]
        chosen = tuple(
            name for name in (every if options.features is None else options.features) if name in table
        )
        if not chosen:
            problems.append("no column is left as a feature; check label, group and drop")
        stated: dict[str, Any] = {}  # public bounds
        standardized: dict[str, Scale] = {}
        without: list[str] = []
        for name in chosen:
            if name in options.excluded:
                problems.append(f"column {name!r} cannot be a feature: it is the label or the site")
                continue
            if name in categories:
                if name in by_name:
                    problems.append(f"column {name!r} has bounds and categories; leave one out")
                continue
            pair: Any = by_name.get(name, for_all)
            if pair is None and are_booleans(table[name]):
                pair = (0.0, 1.0)  # the type says the bounds
            try:
                numbers = parse_days(table[name], name) if are_dates(pair) else _column(table, name)
                if pair is None and "standardize" in accept:
                    standardized[name] = Scale.standardizing(numbers)
                elif pair is None:
                    without.append(name)
                elif pair != "none":
                    Scale.from_bounds(pair, f"column {name!r}")
                    stated[name] = pair
            except DataError as problem:
                problems.append(str(problem).rstrip("."))
        if without:
            problems.append(_bounds_needed(without))
        about_label = None if label_problem is None else label_problem()
        if about_label is not None:
            problems.append(about_label.rstrip("."))
        if problems and missing == "refuse":  # alone, it is said with its row when the records are read
            gaps = [name for name in chosen if any(is_empty(value) for value in table[name])]
            if gaps:
                problems.append(f"there are empty entries in {', '.join(map(repr, gaps))}: {_GAPS}")
        if problems:
            raise (Refused if without or about_label else DataError)(_in_one_message(problems))
        by_value = {name: categories[name] for name in chosen if name in categories}
        columns = cls.declared(chosen, stated, by_value, missing)
        uncharged = ("standardize",) if standardized else ()
        return replace(columns, scales={**columns.scales, **standardized}, uncharged=uncharged)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the resulting features."""
        names: list[str] = []
        for name in self.features:
            values = self.categories.get(name)
            if values is None:
                names += [name, f"{name} missing"] if self.missing == "indicator" else [name]
            elif isinstance(values, int):
                names += [f"{name}#{bucket}" for bucket in range(values)]
            else:
                names += [f"{name}={value}" for value in values]
        return tuple(names)

    @property
    def usual_square(self) -> float:
        """The squared length that most records stay below: 1 for a name, a half for a number."""
        if self.unit_rows:
            return 1.0 + self.ones
        named = len(self.categories)
        return named + (len(self.features) - named) / 2 + self.ones  # an indicator is rarely 1

    def __call__(self, table: Table) -> np.ndarray:
        """Return the features of a table with these columns, (records, features)."""
        parts: list[np.ndarray] = []
        for name in self.features:
            if name not in table:
                raise DataError(
                    f"the table has no column {name!r}; the model was made for {', '.join(self.features)}."
                )
            if name in self.categories:
                parts += self._named_parts(name, table[name])
                continue
            values = self.scales.get(name, Scale())(self._numbers(table, name))
            bad = np.isinf(values) | (np.isnan(values) & (self.missing in ("refuse", "drop")))
            if bad.any():
                raise DataError(_missing_entry(int(np.argmax(bad)), name))
            parts.append(np.nan_to_num(values))
            if self.missing == "indicator":
                parts.append(np.isnan(values).astype(float))
        if len({len(part) for part in parts}) > 1:
            raise DataError("the columns of the table differ in length.")
        X = np.column_stack(parts)
        if self.unit_rows:
            X = unit_rows(X)
        return with_ones(X) if self.ones else X

    def _numbers(self, table: Table, name: str) -> np.ndarray:
        return parse_days(table[name], name) if name in self.dates else _column(table, name)

    def _named_parts(self, name: str, column: np.ndarray) -> list[np.ndarray]:
        """Return one column of 0 and 1 per declared value, or per bucket of the hash."""
        values = self.categories[name]
        words = np.array([_word(value) for value in column], dtype=object)
        declared = () if isinstance(values, int) else tuple(map(_word, values))
        empty = np.array([is_empty(value) for value in column], bool)
        if empty.any() and self.missing in ("refuse", "drop") and not set(words[empty]) <= {*declared}:
            raise DataError(_missing_entry(int(np.argmax(empty)), name))
        if not isinstance(values, int):
            return [(words == value).astype(float) for value in declared]
        buckets = np.array([zlib.crc32(word.encode()) % values for word in words])
        return [((buckets == k) & ~empty).astype(float) for k in range(values)]

    def of_array(self, inputs: ArrayLike) -> np.ndarray:
        """Return the features of an array whose columns are these, in order."""
        try:
            array = np.asarray(inputs)
        except ValueError:
            array = np.empty(0)  # rows of different lengths
        if array.ndim != 2 or array.shape[1] != len(self.features):
            raise DataError(
                f"the model takes {len(self.features)} columns ({', '.join(self.features)}), got an array "
                f"of shape {array.shape}."
            )
        return self(dict(zip(self.features, array.T, strict=True)))

    def complete(self, table: Table, labels: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Return the records that have an entry in every column, those of ``labels`` included."""
        present = [
            ~np.array([is_empty(value) for value in table[name]], bool)
            if name in self.categories or name in labels
            else np.isfinite(self._numbers(table, name))
            for name in (*labels, *self.features)
        ]
        rows = np.logical_and.reduce(present)
        if len(rows) and not rows.any():
            raise DataError(
                'missing = "drop" leaves no record: none has an entry in every column; drop a column that is '
                'empty, or set missing to "indicator".'
            )
        return {name: values[rows] for name, values in table.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Columns:
        """Read the output of `to_dict`."""
        lists = {name: tuple(stored[name]) for name in ("features", "uncharged", "dates")}
        scales = {name: Scale(**values) for name, values in stored["scales"].items()}
        categories = {name: _declared(values, name) for name, values in stored["categories"].items()}
        return cls(**{**stored, **lists, "scales": scales, "categories": categories})


@dataclass(frozen=True)
class Classes:
    """The public list of classes, which maps labels to whole numbers."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len({str(value) for value in self.values}) != len(self.values):
            amount = "1 class" if len(self.values) == 1 else f"{len(self.values)} classes"
            raise DataError(f"classes must be two or more different names, got {amount}: {self.values}.")

    @classmethod
    def declared(
        cls, labels: ArrayLike, classes: Sequence[object] | None, accept: Collection[str]
    ) -> Classes | None:
        """Return the declared classes, or those of the labels if ``accept`` has ``"class names"``.

        None if the labels are numbers and nothing was declared.
        """
        if classes is not None:
            if isinstance(classes, (str, Set, Mapping)) or not isinstance(classes, Collection):
                raise InvalidInput(f"classes must be a list of names in their order, got {classes!r}.")
            return cls(tuple(classes))
        if "class names" in accept:
            return cls(tuple(np.unique(np.asarray(labels)).tolist()))
        if not is_tensor(labels) and np.asarray(labels).dtype.kind in "OUS":
            raise Refused(f"{LABELS_ARE_NAMES}.")
        return None

    def weights(
        self, weight: ClassNumbers | Literal["balanced"] | None, shares: ClassNumbers | None
    ) -> tuple[float, ...] | None:
        """Return one weight per class, None without weights; all are public facts.

        ``"balanced"`` weights a class by one over its public share, so that all classes count alike.
        """
        if weight is None or (shares is not None and weight != "balanced"):
            if shares is not None:
                raise InvalidInput('class_shares goes with class_weight="balanced"; leave it out.')
            return None
        if weight == "balanced":
            if shares is None:
                raise InvalidInput(
                    'class_weight="balanced" needs the public share of every class in class_shares; shares '
                    "counted in the private records would be a release that is not charged."
                )
            each = self._each(shares, "class_shares")
            if abs(sum(each) - 1) > 0.01:
                raise InvalidInput(f"class_shares must sum to 1, got {sum(each):g}.")
            return tuple(1 / (len(each) * share) for share in each)
        return self._each(weight, "class_weight")

    def _each(self, numbers: ClassNumbers | str, name: str) -> tuple[float, ...]:
        """Return one positive number per class."""
        if isinstance(numbers, Mapping):
            named = {_word(key): value for key, value in numbers.items()}
            if set(named) != {_word(value) for value in self.values}:
                classes = ", ".join(map(str, self.values))
                raise InvalidInput(f"{name} must name the classes {classes}, got {', '.join(named)}.")
            numbers = [named[_word(value)] for value in self.values]
        if isinstance(numbers, str) or not isinstance(numbers, Sequence) or len(numbers) != len(self.values):
            raise InvalidInput(
                f"{name} must be one number per class ({', '.join(map(str, self.values))}), in this order or "
                f"by name, got {numbers!r}."
            )
        values: Sequence[Any] = numbers
        return tuple(
            positive(value, f"{name} of {label}") for value, label in zip(values, self.values, strict=True)
        )

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


def no_column(name: object, table: Table) -> str:
    """Return that a table has no such column."""
    semicolons = any(";" in str(word) for word in table)
    hint = '; read it with sep=";", or give the file itself' if semicolons else ""
    return f"the table has no column {name!r}; it has {', '.join(map(str, table))}{hint}"


def require_own_names(data: str | os.PathLike[str] | Mapping[Any, Any] | DataFrame) -> None:
    """Raise if a frame or mapping has two columns of one name, of which one would be lost."""
    if isinstance(data, (str, os.PathLike)):
        return  # said when the file is read
    names = data if isinstance(data, Mapping) else getattr(data, "column_names", data.columns)
    words = [str(name) for name in names]
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is not None:
        raise DataError(f"the table has two columns {twice!r}; rename one.")


def _in_words(value: Any, key: str) -> Any:
    """Return an option of a table with names of columns as words, and arrays as lists."""
    if isinstance(value, Mapping):
        return {str(name): v.tolist() if isinstance(v, np.ndarray) else v for name, v in value.items()}
    if value is None or isinstance(value, str):
        return value
    if key == "bounds":
        return value.tolist() if isinstance(value, np.ndarray) else value
    return tuple(map(str, value)) if isinstance(value, Collection) else str(value)


def _in_one_message(problems: Sequence[str]) -> str:
    """Return sentences without their full stops as one message, numbered where there are several."""
    if len(problems) == 1:
        return f"{problems[0]}."
    numbered = " ".join(f"({i}) {problem}." for i, problem in enumerate(problems, start=1))
    return f"the table has {len(problems)} problems: {numbered}"


def _column(table: Table, name: str) -> np.ndarray:
    hint = (
        "list its values in categories, or say there to how many columns they are hashed, or drop it; free "
        "text and identifiers are no features"
    )
    if np.iscomplexobj(table[name]):
        raise DataError(f"column {name!r} holds complex numbers, expected real ones.")
    return parse_numbers(table[name], name, hint)


def _missing_entry(row: int, name: str) -> str:
    return f"row {row} of column {name!r} is missing or infinite; mend it, or {_GAPS}."


def _declared(values: Sequence[object] | int, name: str) -> tuple[Any, ...] | int:
    if isinstance(values, (int, np.integer)) and not isinstance(values, bool):
        return count(int(values), f"the number of hashed columns of {name!r}", minimum=2)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise DataError(f"the categories of column {name!r} must be a list of values, got {values!r}.")
    return tuple(values)


def are_dates(pair: object) -> bool:
    """Return whether public bounds are dates: words, or the dates of TOML and Python."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        return False
    return all(isinstance(end, (str, date, np.datetime64)) for end in pair)


def without_blanks(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a drafted ``[data]`` section states: without blanks, which are "" or []."""
    filled = {key: value for key, value in section.items() if value not in ("", [])}
    return {key: without_blanks(value) if isinstance(value, dict) else value for key, value in filled.items()}


def _bounds_needed(names: Sequence[str]) -> str:
    columns = ", ".join(map(repr, names))
    lacking = f"column {columns} has" if len(names) == 1 else f"columns {columns} have"
    return (
        f"{lacking} no public bounds: give each (low, high) in bounds, or set bounds to "
        '"none" to take numbers as they are, or accept "standardize" to read mean and deviation from the '
        "private records, which is not charged"
    )


def _word(label: object) -> str:
    """Return a label as a word; 1.0, 1 and True are the same class."""
    if isinstance(label, (bool, np.bool_, float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label)
