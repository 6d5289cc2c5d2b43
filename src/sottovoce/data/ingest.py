"""Data of one's own in the forms people have them: tables, arrays, batches by name, a torch Dataset.

Nothing here needs torch: what only torch knows (a Dataset, tensors) is recognized by its manner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.base import Dataset
from sottovoce.data.files import read_array, read_npz
from sottovoce.data.tables import Classes, Columns, Scale, columns_of, is_table
from sottovoce.errors import DataError, Refused

__all__ = ["Target", "UserData", "ingest", "read_inputs"]


@dataclass(frozen=True)
class UserData:
    """Records as they came: inputs, raw targets, sites, and how columns became features.

    Examples
    --------
    >>> own = ingest((np.eye(2), [0, 1]))
    >>> own.n, own.targets.tolist()
    (2, [0, 1])
    """

    inputs: Any  # an array, or a mapping or tuple of arrays; None for a lazy dataset
    targets: Any
    groups: np.ndarray | None = None
    columns: Columns | None = None
    dataset: Any = None
    test: Any = None  # what a `Dataset` holds out
    uncharged: tuple[str, ...] = ()  # what was read of private records before they came here, by name

    @property
    def n(self) -> int:
        """Number of records."""
        if self.dataset is not None:
            return len(self.dataset)
        first = self.inputs
        if isinstance(first, Mapping):
            first = next(iter(first.values()))
        elif isinstance(first, tuple):
            first = first[0]
        return len(first)


def ingest(
    data: Any,
    *,
    label: Any = None,
    group: Any = None,
    columns: Columns | None = None,
    **options: Any,
) -> UserData:
    """Return records from whatever they came as; see `sottovoce.fit` for the forms.

    Parameters
    ----------
    data : the records.
    label, group : column names of a table; ``group`` may also be one site per record.
    columns : how to read a table, where that is settled (test records).
    options : for `Columns.of`.

    Examples
    --------
    >>> table = {"age": [30, 70], "town": ["A", "B"], "ill": ["no", "yes"]}
    >>> own = ingest(table, label="ill", group="town", bounds={"age": (0, 100)})
    >>> own.inputs.tolist(), own.targets.tolist(), own.groups.tolist()
    ([[-0.4], [0.4]], ['no', 'yes'], ['A', 'B'])
    """
    if is_table(data):
        return _from_table(columns_of(data), label, group, columns, options)
    if isinstance(data, (str, os.PathLike)):
        data = read_npz(Path(data))
    if isinstance(data, Dataset):
        if group is None:
            group = data.groups
        own = _from_arrays(data.X, data.y, group, columns, options)
        test = None if data.X_test is None else (data.X_test, data.y_test)
        return replace(own, uncharged=data.uncharged, test=test)
    if isinstance(data, Mapping):
        if not isinstance(label, str) or label not in data:
            raise DataError(f"label must name one of the inputs {', '.join(map(repr, data))}, got {label!r}.")
        return _from_arrays(_alone(data, label), data[label], group, columns, options)
    if hasattr(data, "tensors"):  # torch's TensorDataset is all in memory
        *inputs, targets = data.tensors
        return _from_arrays(
            inputs[0] if len(inputs) == 1 else tuple(inputs), targets, group, columns, options
        )
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return _from_arrays(data[0], data[1], group, columns, options)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "shape"):
        _no_columns(options)
        return UserData(None, None, _groups(group, len(data)), dataset=data)
    raise DataError(
        "data must be a table (CSV path, frame, columns by name), a pair (inputs, targets), a mapping of "
        f"inputs with a label, or a torch Dataset with a length, got {type(data).__name__}."
    )


def read_inputs(data: Any, columns: Columns | None, label: Any = None) -> Any:
    """Return the inputs of new records, in the form the model takes.

    Examples
    --------
    >>> columns = Columns.of({"age": [1]}, bounds=(0, 100))
    >>> read_inputs({"age": [50.0]}, columns).tolist()
    [[0.0]]
    """
    if columns is not None and is_table(data):
        return columns(columns_of(data))
    if columns is not None:
        if isinstance(data, (str, os.PathLike)):
            data = read_array(Path(data))
        return _table_of(data, columns)
    if isinstance(data, Mapping):
        return _alone(data, label)
    if isinstance(data, (str, os.PathLike)) and Path(data).suffix in (".npz", ".npy"):
        return read_array(Path(data))
    if isinstance(data, (str, os.PathLike)) or is_table(data):
        raise DataError("the model was made from arrays, so it takes arrays; give the features as one.")
    return tuple(data) if isinstance(data, list) and data and np.ndim(data[0]) > 0 else data


@dataclass(frozen=True)
class Target:
    """What is learned: a class, several yes-or-no labels, or numbers, with their public names and bounds.

    Parameters
    ----------
    task : ``"classification"``, ``"labels"``, ``"regression"``, or ``"own"`` for a loss of one's own.
    classes : public class names, or None where labels are whole numbers from 0.
    scale : map of regression targets by public bounds, or None.
    names : of the labels, where there are several.

    Examples
    --------
    >>> target = Target("classification", Classes(("no", "yes")))
    >>> target.encode(["yes", "no"]).tolist(), target.decode(np.array([[0.1, 0.9]])).tolist()
    ([1, 0], ['yes'])
    """

    task: str
    classes: Classes | None = None
    scale: Scale | None = None
    names: tuple[str, ...] = ()

    def encode(self, raw: Any) -> np.ndarray:
        """Return targets as the loss takes them."""
        if self.task == "regression":
            numbers = _floats(raw)
            if not np.isfinite(numbers).all():
                row = int(np.argwhere(~np.isfinite(numbers))[0][0])
                raise DataError(f"the target of record {row} is missing or infinite; drop or mend it.")
            return numbers if self.scale is None else self.scale(numbers)
        if self.classes is not None and np.ndim(raw) == 1:
            return self.classes.numbers(raw)
        array = np.asarray(raw)
        if self.task == "labels":
            numbers = _floats(array)
            if not np.isin(numbers, (0.0, 1.0)).all():
                raise DataError("yes-or-no labels must be 0 or 1; declare classes=[no, yes] for names.")
            return numbers
        if self.task == "classification" and array.dtype.kind == "f":
            if not (array == np.round(array)).all():
                raise DataError("class labels must be whole numbers; for numbers use loss='squared_error'.")
            return array.astype(np.int64)
        return array.astype(np.int64) if array.dtype.kind == "b" else array

    def decode(self, scores: np.ndarray) -> np.ndarray:
        """Return predictions in the words and units of the labels."""
        if self.task == "classification":
            numbers = scores.argmax(-1)
            return numbers if self.classes is None else self.classes.names(numbers)
        if self.task == "labels":
            yes = (scores > 0).astype(np.int64)
            if yes.ndim == 2 and yes.shape[1] == 1:
                yes = yes[:, 0]
            return self.classes.names(yes) if self.classes is not None and yes.ndim == 1 else yes
        if self.task == "regression":
            flat = scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
            return flat if self.scale is None else self.scale.back(flat)
        return scores

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "task": self.task,
            "classes": None if self.classes is None else list(self.classes.listed),
            "scale": None if self.scale is None else vars(self.scale),
            "names": list(self.names),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Target:
        """Read what `to_dict` wrote."""
        classes = None if record["classes"] is None else Classes(tuple(record["classes"]))
        scale = None if record["scale"] is None else Scale(**record["scale"])
        return cls(record["task"], classes, scale, tuple(record["names"]))


def _alone(data: Mapping[str, Any], label: Any) -> Any:
    """The inputs of a batch by name; a single one needs no name."""
    inputs = {name: value for name, value in data.items() if name != label}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs


def _from_table(
    table: dict[str, Any], label: Any, group: Any, columns: Columns | None, options: dict[str, Any]
) -> UserData:
    labels = [label] if isinstance(label, str) else list(label or ())
    if not labels:
        raise DataError(f"label must name the column to predict; the table has {', '.join(table)}.")
    leave = [*labels, *([group] if isinstance(group, str) else [])]
    for name in leave:
        if name not in table:
            raise DataError(f"the table has no column {name!r}; it has {', '.join(table)}.")
    if columns is None:
        columns = Columns.of(table, leave=leave, **options)
    targets = [_tidy(table[name]) for name in labels]
    stacked = targets[0] if isinstance(label, str) else np.column_stack(targets)
    features = columns(table)
    if len(features) == 0:
        raise DataError("the table has a header and no records.")
    sites = table[group] if isinstance(group, str) else group
    return UserData(features, stacked, _groups(sites, len(features)), columns)


def _from_arrays(
    inputs: Any, targets: Any, group: Any, columns: Columns | None, options: dict[str, Any]
) -> UserData:
    if isinstance(group, str):
        raise DataError(
            f"group={group!r} names a column, but the data are no table; give one site per record."
        )
    if not isinstance(inputs, Mapping) and is_table(inputs):
        table = columns_of(inputs)
        columns = Columns.of(table, **options) if columns is None else columns
        inputs = columns(table)
    elif isinstance(inputs, list) and inputs and hasattr(inputs[0], "shape"):
        inputs = tuple(inputs)
    elif not isinstance(inputs, (Mapping, tuple)):
        inputs, columns = _scaled(inputs, columns, options)
    else:
        _no_columns(options)
    own = UserData(inputs, targets if hasattr(targets, "detach") else np.asarray(targets), None, columns)
    if own.n == 0 or own.n != len(own.targets):
        raise DataError(
            f"expected one target per record, got {own.n} records and {len(own.targets)} targets."
        )
    return UserData(inputs, own.targets, _groups(group, own.n), columns)


def _scaled(inputs: Any, columns: Columns | None, options: dict[str, Any]) -> tuple[Any, Columns | None]:
    """An array as it is, or, where bounds are spoken of, as a table without names."""
    spoken = options.get("bounds") not in (None, "none") or options.get("accept")
    if columns is not None:
        return _table_of(inputs, columns), columns
    if not spoken:
        _no_columns({**options, "bounds": None})
        return inputs if hasattr(inputs, "detach") else np.asarray(inputs), None
    array = np.asarray(inputs)
    if array.ndim != 2:
        raise DataError(
            f"bounds and standardizing are for tables (records, features), got shape {array.shape}."
        )
    named = {f"x{j}": array[:, j] for j in range(array.shape[1])}
    made = Columns.of(named, **options)
    return made(named), made


def _table_of(inputs: Any, columns: Columns) -> np.ndarray:
    array = np.asarray(inputs)
    if array.ndim != 2 or array.shape[1] != len(columns.features):
        raise DataError(
            f"the model takes {len(columns.features)} columns ({', '.join(columns.features)}), got an array "
            f"of shape {array.shape}."
        )
    return columns({name: array[:, j] for j, name in enumerate(columns.features)})


def _no_columns(options: Mapping[str, Any]) -> None:
    for key in ("features", "drop", "bounds", "categories", "accept"):
        if options.get(key) and not (key == "accept" and set(options[key]) <= {"class names"}):
            raise DataError(f"{key} is for tables; these data come without columns.")


def _groups(group: Any, n: int) -> np.ndarray | None:
    if group is None:
        return None
    sites = np.asarray(group)
    if sites.dtype == object:
        sites = np.array([str(site) for site in sites])
    if sites.shape != (n,):
        raise DataError(f"group must hold one site per record ({n}), got shape {sites.shape}.")
    return sites


def _tidy(values: Any) -> np.ndarray:
    """A label column: numbers where all entries are numbers, words otherwise."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    words = [str(value).strip() for value in array]
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        return np.array(words)
    whole = all(word.lstrip("+-").isdecimal() for word in words)
    return numbers.astype(np.int64) if whole else numbers


def _floats(raw: Any) -> np.ndarray:
    try:
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("targets must be numbers; declare classes=[...] for names.") from None


def declared(raw: Any, classes: Sequence[Any] | None, accept: Sequence[str]) -> Classes | None:
    """Return the public classes: as declared, or read where that was accepted by name.

    Examples
    --------
    >>> declared(np.array(["no", "yes"]), None, ["class names"]).listed
    ('no', 'yes')
    """
    if classes is not None:
        return Classes(tuple(classes))
    names = not hasattr(raw, "detach") and np.asarray(raw).dtype.kind in "OUS"
    if "class names" in accept:
        return Classes.read(raw)
    if names:
        raise Refused(
            'the labels are names: declare them with classes=[...], or accept=("class names",) to read '
            "the list from the private records, which is not charged."
        )
    return None
