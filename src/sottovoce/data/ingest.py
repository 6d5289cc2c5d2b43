"""Records in the forms people have them: tables, arrays, batches by name, torch datasets.

Torch is never imported here; its tensors and datasets are recognized if it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sottovoce.accounting.wording import LARGE_DELTA, UNCHARGED
from sottovoce.data.base import Dataset, is_sparse, is_tensor
from sottovoce.data.batch_loaders import BatchLoader, IndexedDataset, loader_batch_size, loader_dataset
from sottovoce.data.files import read_array, read_npz, read_table
from sottovoce.data.tables import (
    Classes,
    Columns,
    Scale,
    TableData,
    is_table,
    label_column,
    no_column,
    require_own_names,
)
from sottovoce.errors import ConfigError, DataError, InvalidInput, Refused

# what a plan file can do instead of accepting that something is read and not charged
_INSTEAD = {
    "standardize": "[data] bounds = [low, high] scales by public bounds instead",
    "held-out score": "[data] test_file names public records for a score instead",
    "class names": "[data] classes = [...] states them publicly instead",
    "tuning": "settings tuned on public records need nothing",
}

_SITE = "\0site"  # stands among the columns for an array of sites
LabelProblem = Callable[[np.ndarray], str | None]
HeldOut = Callable[[int], tuple[np.ndarray, np.ndarray]]
Inputs = Any  # an array or a tensor, or a mapping or a tuple of them


@runtime_checkable
class TensorDataset(Protocol):
    """A dataset of torch that holds its records in memory."""

    tensors: tuple[Any, ...]


@runtime_checkable
class ArrayLike(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Any:
        """Length of each axis."""


@dataclass(frozen=True)
class IngestedRecords:
    """Records as `ingest` read them from a `TableData`.

    ``inputs`` and ``targets`` are None for a lazy ``dataset``, whose records are read when a batch needs
    them. ``groups`` is the site of each record, ``columns`` how the columns of a table became features,
    ``test`` the records that are held out, ``uncharged`` what was read from private records, by name,
    ``batch_size`` that of the DataLoader that the records came in, over all nodes. ``table`` has the names,
    bounds and classes of the labels.
    """

    inputs: Inputs
    targets: Any
    groups: np.ndarray | None = None
    columns: Columns | None = None
    dataset: IndexedDataset | None = None
    test: IngestedRecords | None = None
    uncharged: tuple[str, ...] = ()
    batch_size: int | None = None
    table: TableData = field(default_factory=lambda: TableData(None))

    @property
    def n(self) -> int:
        """Number of records."""
        first = self.inputs if self.dataset is None else self.dataset
        if isinstance(first, Mapping):
            first = next(iter(first.values()))
        elif isinstance(first, tuple):
            first = first[0]
        return len(first)

    def classes_of(self, labels: npt.ArrayLike) -> Classes | None:
        """Return the public classes, or those of the labels where they are read; None for numbers."""
        return Classes.declared(labels, self.table.classes, self.uncharged)


def ingest(
    data: object,
    *,
    columns: Columns | None = None,
    accept: Collection[str] = (),
    label_problem: LabelProblem | None = None,
    unit_rows: bool = False,
    held_out: HeldOut | None = None,
) -> IngestedRecords:
    """Return the records of a `TableData`, or of other data with its default options.

    ``columns`` say how to read a table if that is fixed already (test records); ``"standardize"`` in
    ``accept`` reads mean and deviation of columns without bounds from the records, ``"class names"`` the
    classes; ``label_problem`` returns what the caller's model still needs to know of a label column, reported
    with the rest. Of a table, ``unit_rows`` scales records to length one, and ``held_out`` returns which of
    so many rows to hold out, and the others.

    Examples
    --------
    >>> table = {"age": [30, 70], "town": ["A", "B"], "ill": ["no", "yes"]}
    >>> records = ingest(TableData(table, label="ill", group="town", bounds={"age": (0, 100)}))
    >>> records.inputs.tolist(), records.targets.tolist(), records.groups.tolist()
    ([[-0.4], [0.4]], ['no', 'yes'], ['A', 'B'])
    """
    table = data if isinstance(data, TableData) else TableData(data)
    standardize = [name for name in accept if name == "standardize"]
    if is_table(table.source):
        require_own_names(table.source)
        values = read_table(table.source)
        _require_label_and_group(values, table)
        records = _from_table(values, table, columns, standardize, label_problem, unit_rows, held_out)
    else:
        records = _from_other(table, columns, standardize)
    names = ("class names",) if table.classes is None and "class names" in accept else ()
    return replace(records, table=replace(table, source=None), uncharged=(*records.uncharged, *names))


def _from_other(table: TableData, columns: Columns | None, accept: Collection[str]) -> IngestedRecords:
    """Return records that come as arrays, tensors or a dataset."""
    source = table.source
    if isinstance(source, BatchLoader):
        dataset = replace(table, source=loader_dataset(source))
        records = _from_other(dataset, columns, accept)
        return replace(records, batch_size=loader_batch_size(source))
    if isinstance(source, (str, os.PathLike)):
        source = read_npz(Path(source))
    if isinstance(source, Dataset):
        if table.group is None:
            table = replace(table, group=source.groups)
        records = _from_arrays(source.X, source.y, table, columns, accept)
        test = None if source.X_test is None else IngestedRecords(source.X_test, source.y_test)
        return replace(records, uncharged=(*source.uncharged, *records.uncharged), test=test)
    if isinstance(source, Mapping):
        if not isinstance(table.label, str) or table.label not in source:
            raise DataError(
                f"label must name one of the inputs {', '.join(map(repr, source))}, got {table.label!r}."
            )
        inputs, targets = _without_label(source, table.label), source[table.label]
    elif isinstance(source, TensorDataset):
        inputs, targets = _of_tensors(source)
    elif isinstance(source, (tuple, list)) and len(source) == 2:
        inputs, targets = source
    elif isinstance(source, IndexedDataset) and not isinstance(source, (ArrayLike, str, tuple)):
        _refuse_column_options(table, accept)
        return IngestedRecords(None, None, _groups(table.group, len(source)), dataset=source)
    else:
        raise DataError(
            "data must be a table (CSV path, frame, columns by name), a pair (inputs, targets), a mapping of "
            "inputs with a label, a torch Dataset with a length or a DataLoader of one, got "
            f"{type(source).__name__}."
        )
    return _from_arrays(inputs, targets, table, columns, accept)


def check_accepted(
    accept: Sequence[str], uncharged: Sequence[str], file: str | None = None
) -> tuple[str, ...]:
    """Return what the caller accepts as read from private records and not charged.

    Refuses what is read and not accepted. ``file`` is the plan file that accepts it, None for a call.
    """
    if isinstance(accept, str):
        raise InvalidInput(f'accept must be a list of names, got {accept!r}; write accept=["{accept}"].')
    where, error = ("", InvalidInput) if file is None else (f"{file}, ", ConfigError)
    accept = [name for name in accept if name != LARGE_DELTA]  # nothing is read for it
    for name in accept:
        if name not in UNCHARGED:
            raise error(f"{where}accept knows {', '.join((*UNCHARGED, LARGE_DELTA))}, got {name!r}.")
        if name not in uncharged and name != "tuning":  # only the user knows how settings were chosen
            raise error(f"{where}accept names {name!r}, but nothing of the kind is read; leave it out.")
    refused = next((name for name in uncharged if name not in accept), None)
    if refused is not None:
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((*accept, *uncharged)))
        how = f"accept=[{names}] accepts that, and the guarantee says so"
        if file is not None:
            how = f"write accept = [{names}] at the top of the file to accept that, or: {_INSTEAD[refused]}"
        raise Refused(f"{where}the data need {UNCHARGED[refused]}, which no budget is charged for; {how}.")
    return tuple(dict.fromkeys(accept))


def read_inputs(data: Any, columns: Columns | None, label: str | None = None) -> Inputs:
    """Return the inputs of new records, in the form the model takes.

    ``columns`` is how the training table was read, None if the model was trained on arrays.
    """
    if isinstance(data, BatchLoader):
        data = loader_dataset(data)
    if isinstance(data, TensorDataset):
        data = _of_tensors(data)[0]
    if isinstance(data, (str, os.PathLike)) and not is_table(data):
        data = read_array(data)
    if columns is not None:
        if isinstance(data, Mapping) and data and all(np.ndim(value) == 0 for value in data.values()):
            data = {name: [value] for name, value in data.items()}  # one record
        return columns(read_table(data)) if is_table(data) else columns.of_array(data)
    if isinstance(data, Mapping):
        return _parts(_without_label(data, label))
    if is_table(data):
        raise DataError("the model was made from arrays, so it takes arrays; give the features as one.")
    if isinstance(data, list) and data and isinstance(data[0], ArrayLike):
        return _parts(tuple(data))
    lazy = isinstance(data, IndexedDataset) and not isinstance(data, (ArrayLike, list, tuple))
    return data if lazy else _parts(data)


def _of_tensors(dataset: TensorDataset) -> tuple[Inputs, Any]:
    """Return inputs and targets of a dataset in memory; one tensor alone is the inputs."""
    *parts, targets = dataset.tensors
    if not parts:
        return targets, None
    return (parts[0] if len(parts) == 1 else tuple(parts)), targets


@dataclass(frozen=True)
class Target:
    """The prediction task, with the public names and bounds of its labels.

    ``task`` is ``"classification"``, ``"labels"`` (yes or no), ``"regression"``, or ``"own"`` for a custom
    loss; ``classes`` is None if labels are whole numbers from 0; ``scale`` maps regression targets by public
    bounds; ``names`` are those of the labels, if there are several.
    """

    task: str
    classes: Classes | None = None
    scale: Scale | None = None
    names: tuple[str, ...] = ()

    def encode(self, raw: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return targets as the loss takes them."""
        if np.iscomplexobj(raw):
            raise DataError("targets must be real numbers, got complex ones.")
        if self.task == "regression":
            numbers = _floats(raw)
            bad = ~np.isfinite(numbers)
            if bad.any():
                row = int(np.argwhere(bad)[0][0])
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
        if self.task == "classification":
            numbers = _floats(array) if array.dtype.kind not in "biu" else array
            if not (numbers == np.round(numbers)).all():
                raise DataError("class labels must be whole numbers; for numbers use loss='squared_error'.")
            return numbers.astype(np.int64) if numbers.dtype.kind in "bf" else numbers
        return array.astype(np.int64) if array.dtype.kind == "b" else array

    def decode(self, scores: np.ndarray) -> np.ndarray:
        """Return predictions as the labels were given: class names, or numbers in their unit."""
        if self.task == "classification":
            numbers = scores.argmax(-1)
            return numbers if self.classes is None else self.classes.names(numbers)
        flat = scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
        if self.task == "labels":
            yes = (flat > 0).astype(np.int64)
            return self.classes.names(yes) if self.classes is not None and yes.ndim == 1 else yes
        if self.task == "regression":
            return flat if self.scale is None else self.scale.inverse(flat)
        return scores

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return {**asdict(self), "classes": None if self.classes is None else self.classes.values}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Target:
        """Read the output of `to_dict`."""
        classes = None if stored["classes"] is None else Classes(tuple(stored["classes"]))
        scale = None if stored["scale"] is None else Scale(**stored["scale"])
        return cls(stored["task"], classes, scale, tuple(stored["names"]))


def _without_label(data: Mapping[str, Any], label: str | None) -> Inputs:
    """Return the inputs of a batch by name; a single one needs no name."""
    inputs = {name: value for name, value in data.items() if name != label}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs


def _from_table(
    values: dict[str, np.ndarray],
    table: TableData,
    columns: Columns | None,
    accept: Collection[str],
    label_problem: LabelProblem | None,
    unit_rows: bool,
    held_out: HeldOut | None,
) -> IngestedRecords:
    """Return the records of a table, and how its columns become features, unless that is fixed."""
    fixed = columns
    if columns is None:
        one = label_problem if isinstance(table.label, str) else None
        about_label = None if one is None else lambda: one(values[str(table.label)])
        columns = replace(Columns.from_table(values, table, accept, about_label), unit_rows=unit_rows)
    if table.group is not None and not isinstance(table.group, str):
        values |= {_SITE: np.asarray(_groups(table.group, len(values[table.labels[0]])))}
        table = replace(table, group=_SITE)
    if columns.missing == "drop":
        values = columns.complete(values, table.labels)
    test = None
    if held_out is not None:
        rows = held_out(len(values[table.labels[0]]))
        test, values = ({name: column[part] for name, column in values.items()} for part in rows)
        if fixed is None and columns.uncharged:  # mean and deviation are those of the training records
            columns = replace(Columns.from_table(values, table, accept), unit_rows=unit_rows)
    records = _of_columns(columns, values, table)
    if test is None:
        return records
    uncharged = ("held-out score", *records.uncharged)
    return replace(records, test=_of_columns(columns, test, table), uncharged=uncharged)


def _of_columns(columns: Columns, values: Mapping[str, np.ndarray], table: TableData) -> IngestedRecords:
    """Return the records of a table by columns that are fixed."""
    targets = [label_column(values[name]) for name in table.labels]
    features = columns(values)
    if len(features) == 0:
        raise DataError("the table has a header and no records.")
    sites = values[table.group] if isinstance(table.group, str) else table.group
    stacked = targets[0] if isinstance(table.label, str) else np.column_stack(targets)
    groups = _groups(sites, len(features))
    return IngestedRecords(features, stacked, groups, columns, uncharged=columns.uncharged)


def _require_label_and_group(values: Mapping[str, np.ndarray], table: TableData) -> None:
    """Raise unless a table has the columns that are no features."""
    if not table.labels:
        raise DataError(f"label must name the column to predict; the table has {', '.join(values)}.")
    for name in table.excluded:
        if name not in values:
            raise DataError(f"{no_column(name, values)}.")


def _from_arrays(
    inputs: Any, targets: Any, table: TableData, columns: Columns | None, accept: Collection[str]
) -> IngestedRecords:
    if isinstance(table.group, str):
        raise DataError(
            f"group={table.group!r} names a column, but the data are no table; give one site per record."
        )
    if not isinstance(inputs, Mapping) and is_table(inputs):
        require_own_names(inputs)
        frame = read_table(inputs)
        columns = columns or Columns.from_table(frame, table, accept)
        inputs = columns(frame)
    elif isinstance(inputs, list) and inputs and isinstance(inputs[0], ArrayLike):
        inputs = tuple(inputs)
    elif not isinstance(inputs, (Mapping, tuple)):
        inputs, columns = _scaled(inputs, table, columns, accept)
    else:
        _refuse_column_options(table, accept)
    inputs = _parts(inputs)
    targets = targets if is_tensor(targets) else np.asarray(targets)
    uncharged = () if columns is None else columns.uncharged
    records = IngestedRecords(inputs, targets, None, columns, uncharged=uncharged)
    if np.ndim(targets) == 0 or records.n == 0 or records.n != len(targets):
        raise DataError(
            f"expected one target per record, got {records.n} records and {len(targets)} targets."
        )
    return replace(records, groups=_groups(table.group, records.n))


def _numbers(part: Any) -> Any:
    """Return an array or a tensor of inputs, after a check that it holds finite numbers of records.

    A record with NaN or infinity would be clipped to nothing in training, and predicted as any other.
    """
    if is_sparse(part) or getattr(part, "is_sparse", False):
        raise DataError("the inputs are sparse; give them dense: toarray(), or to_dense() of a tensor.")
    array = part.detach().cpu().numpy() if is_tensor(part) else _array(part)
    if array.dtype.kind == "O":
        try:
            part = array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError("the inputs hold words or objects, expected numbers.") from None
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise DataError(
            "the inputs must be arrays of real numbers with records on the first axis, got "
            f"{array.dtype} of shape {array.shape}."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DataError(f"record {row} of the inputs holds NaN or infinity; drop or mend such records.")
    return part if is_tensor(part) else array


def _array(values: npt.ArrayLike) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError("the records of the inputs differ in length; give them one length.") from None


def _parts(inputs: Any) -> Any:
    """Return inputs, by name or place or alone, with each part as an array or a tensor of numbers."""
    if isinstance(inputs, Mapping):
        return {name: _numbers(part) for name, part in inputs.items()}
    return tuple(map(_numbers, inputs)) if isinstance(inputs, tuple) else _numbers(inputs)


def _scaled(
    inputs: Any, table: TableData, columns: Columns | None, accept: Collection[str]
) -> tuple[Any, Columns | None]:
    """Return an array as it is or, if there are bounds, as a table whose columns are x0, x1, ..."""
    if columns is None:
        if table.bounds in (None, "none") and not accept:
            _refuse_column_options(replace(table, bounds=None), accept)
            return inputs, None
        inputs = _array(inputs)
        if inputs.ndim != 2:
            raise DataError(
                f"bounds and standardizing are for tables (records, features), got shape {inputs.shape}."
            )
        named = {f"x{j}": values for j, values in enumerate(inputs.T)}
        columns = Columns.from_table(named, table, accept)
    return columns.of_array(inputs), columns


def _refuse_column_options(table: TableData, accept: Collection[str]) -> None:
    for key in ("features", "drop", "feature_bounds", "categories"):
        if getattr(table, key):
            raise DataError(f"{key.removeprefix('feature_')} is for tables; these data come without columns.")
    if accept:
        raise DataError("accept is for tables; these data come without columns.")


def _groups(group: Sequence[object] | np.ndarray | None, n: int) -> np.ndarray | None:
    if group is None:
        return None
    sites = np.asarray(group)
    if sites.dtype == object:
        sites = np.array([str(site) for site in sites])
    if sites.shape != (n,):
        raise DataError(f"group must hold one site per record ({n}), got shape {sites.shape}.")
    return sites


def _floats(raw: npt.ArrayLike) -> np.ndarray:
    try:
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("targets must be numbers; declare classes=[...] for names.") from None
