"""Readers of tables: CSV, TSV, NPZ, ARFF and LIBSVM, plain or gzipped, and Parquet.

Readers parse text and arrays only (``allow_pickle`` is never on) and name the line that is wrong. Missing
values are refused unless the caller says what to do with them.
"""

from __future__ import annotations

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from sottovoce.data.base import Dataset, is_sparse
from sottovoce.errors import DataError, MissingDependency

MissingRows = Literal["refuse", "drop", "keep"]
StrPath = str | os.PathLike[str]
_EMPTY = ("", "?", "NA", "NaN", "nan", "None")


def table_format(path: StrPath) -> str:
    """Return the extension that names the format of a file, without .gz and in lower case."""
    suffixes = [suffix for suffix in Path(path).suffixes if suffix != ".gz"]
    return suffixes[-1].lower() if suffixes else ""


def read_file(path: StrPath, **options: Any) -> Dataset:
    """Read a table by its extension: .csv .tsv .npz .arff .svm .libsvm, each also with .gz.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "t.csv"
    ...     _ = file.write_text("a,b,y\\n1,2,0\\n3,4,1\\n")
    ...     data = read_file(file, label="y")
    >>> data.X.tolist(), data.y.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [0.0, 1.0])
    """
    readers: dict[str, Callable[..., Dataset]] = {
        ".csv": read_csv,
        ".tsv": read_csv,
        ".npz": read_npz,
        ".arff": read_arff,
        ".svm": read_libsvm,
        ".libsvm": read_libsvm,
    }
    kind = table_format(path)
    if kind not in readers:
        raise DataError(f"Cannot tell the format of {Path(path).name}; expected one of {', '.join(readers)}.")
    return readers[kind](path, **options)


def read_csv(
    path: StrPath,
    *,
    label: str,
    group: str | None = None,
    missing: MissingRows = "refuse",
    classes: Sequence[Any] | None = None,
) -> Dataset:
    """Read a comma- or tab-separated table with a header line.

    Parameters
    ----------
    path : the file.
    label : name of the column to predict.
    group : name of a column that tells the records' sites apart; not a feature.
    missing : what to do with rows that have an empty, ``?`` or ``NA`` entry.
    classes : the two class names, public, the second being 1. Without them the names are read from the
        labels, and `Dataset.uncharged` says so.
    """
    columns = read_columns(path)
    for name in (label, group):
        if name is not None and name not in columns:
            raise DataError(f"{Path(path).name} has no column {name!r}; it has {', '.join(columns)}.")
    groups = None if group is None else np.array(columns.pop(group))
    return _dataset(Path(path), columns, label, groups, missing, classes)


def read_columns(path: StrPath) -> dict[str, list[str]]:
    """Read a comma- or tab-separated table with a header line as columns of words."""
    with _lines(path) as lines:
        first = next(lines, "")
        if not first.strip():
            raise DataError(f"{path} is empty; expected a header line.")
        delimiter = "\t" if "\t" in first else ","
        header = [word.strip() for word in next(csv.reader([first], delimiter=delimiter))]
        rows = [row for row in enumerate(csv.reader(lines, delimiter=delimiter), start=2) if row[1]]
    twice = next((word for i, word in enumerate(header) if word in header[:i]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns {twice!r}; rename one.")
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: expected {len(header)} values, got {len(row)}.")
    return {word: [row[i].strip() for _, row in rows] for i, word in enumerate(header)}


def read_parquet(path: StrPath) -> dict[str, np.ndarray]:
    """Read a Parquet table as columns by name; it needs pyarrow."""
    if not Path(path).is_file():
        raise DataError(f"There is no file {path}.")
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingDependency(
            "Parquet files are read with pyarrow; pip install pyarrow, or save the table as CSV."
        ) from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as problem:
        raise DataError(f"{Path(path).name} is not a readable Parquet table: {problem}.") from None
    return {str(name): table.column(i).to_numpy() for i, name in enumerate(table.column_names)}


def read_arrays(path: StrPath, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file by name, all by default; objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            unknown = next((name for name in names or () if name not in arrays), None)
            if unknown is not None:
                raise DataError(f"{path} has no array {unknown!r}; it has {', '.join(arrays.files)}.")
            return {name: arrays[name] for name in names or arrays.files}
    except DataError:
        raise
    except OSError as problem:
        raise DataError(f"The file {path} cannot be read ({problem.strerror or problem}).") from None
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile):
        raise DataError(f"{path} is not an .npz file of plain arrays.") from None


def read_npz(path: StrPath, *, x: str = "X", y: str = "y", missing: MissingRows = "refuse") -> Dataset:
    """Read the features ``x`` and the labels ``y`` of an .npz file."""
    arrays = read_arrays(path, (x, y))
    try:
        X = np.asarray(arrays[x], dtype=np.float64)
    except ValueError:
        raise DataError(f"{Path(path).name}: the array {x!r} must hold numbers.") from None
    return _without_missing(Path(path), X, arrays[y], (), None, missing)


def read_array(path: StrPath, name: str = "X") -> np.ndarray:
    """Read one array of an .npz file, of any shape, or the array of an .npy file; objects are refused."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    if file.suffix != ".npy":
        return read_arrays(file, (name,))[name]
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        raise DataError(f"{file.name} is not an .npy file of plain numbers.") from None


def read_arff(
    path: StrPath,
    *,
    label: str = "class",
    missing: MissingRows = "refuse",
    classes: Sequence[Any] | None = None,
) -> Dataset:
    """Read a dense ARFF table with numeric features and a nominal or numeric label."""
    file = Path(path)
    names: list[str] = []
    rows: list[list[str]] = []
    in_data = False
    with _lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text or text.startswith("%"):
                continue
            if not in_data:
                if text.lower().startswith("@attribute"):
                    names.append(_arff_name(text, file, number))
                in_data = text.lower().startswith("@data")
                continue
            values = [value.strip().strip("'\"") for value in text.split(",")]
            if text.startswith("{") or len(values) != len(names):
                raise DataError(
                    f"{file.name}, line {number}: expected {len(names)} values, got {len(values)}."
                )
            rows.append(values)
    if not rows:
        raise DataError(f"{file.name} holds no @data rows.")
    if label not in names:
        raise DataError(f"{file.name} has no attribute {label!r}; it has {', '.join(names)}.")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return _dataset(file, columns, label, None, missing, classes)


def read_libsvm(path: StrPath, *, features: int | None = None, missing: MissingRows = "refuse") -> Dataset:
    """Read ``label index:value ...`` lines (indices from 1, as in a9a) into a sparse data set."""
    name = Path(path).name
    labels: list[float] = []
    indices: list[int] = []
    values: list[float] = []
    indptr = [0]
    with _lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split("#")[0].split()
            if not words:
                continue
            try:
                labels.append(float(words[0]))
                pairs = [word.split(":") for word in words[1:]]
                indices += [int(key) - 1 for key, _ in pairs]
                values += [float(value) for _, value in pairs]
            except ValueError:
                raise DataError(f"{name}, line {number}: expected 'label index:value ...'.") from None
            if any(i < 0 for i in indices[indptr[-1] :]):
                raise DataError(f"{name}, line {number}: indices count from 1.")
            indptr.append(len(indices))
    width = max(indices, default=-1) + 1
    if features is not None and width > features:
        raise DataError(f"{name} uses feature {width}, but only {features} were announced.")
    X = sp.csr_array((values, indices, indptr), shape=(len(labels), features or width))
    X.sum_duplicates()
    return _without_missing(Path(path), X, np.array(labels), (), None, missing)


def parse_numbers(values: Sequence[Any] | np.ndarray, name: str, hint: str) -> np.ndarray:
    """Return a column as float64; an empty entry becomes NaN. ``hint`` says what to do with other words."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    numbers = np.empty(len(array))
    for row, value in enumerate(array):
        if value is None or str(value).strip() in _EMPTY:
            numbers[row] = np.nan
            continue
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            raise DataError(
                f"column {name!r} holds {str(value)!r} in row {row}, expected numbers; {hint}."
            ) from None
    return numbers


@contextmanager
def _lines(path: StrPath) -> Iterator[Iterator[str]]:
    """Yield the text lines of a plain or gzipped file; spreadsheets put a byte order mark in front."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8-sig") as stream:
            yield iter(stream)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text; export the table as CSV in UTF-8.") from None
    except (OSError, EOFError, csv.Error, zlib.error) as problem:
        raise DataError(f"{path} is not a readable text table: {problem}.") from None


def _dataset(
    path: Path,
    columns: dict[str, list[str]],
    label: str,
    groups: np.ndarray | None,
    missing: MissingRows,
    classes: Sequence[Any] | None,
) -> Dataset:
    """Return columns of words as features and labels."""
    features = [name for name in columns if name != label]
    try:
        X = np.column_stack([parse_numbers(columns[name], name, "encode it first") for name in features])
    except DataError as problem:
        raise DataError(f"{path.name}: {problem}") from None
    y, uncharged = _labels(columns[label], path, classes)
    return _without_missing(path, X, y, tuple(features), groups, missing, uncharged)


def _labels(
    words: Sequence[str], path: Path, classes: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels as numbers, and what was read from all of them to do so.

    Numbers stay as they are; two class names become -1 and 1, in the declared order, else alphabetically.
    """
    uncharged: tuple[str, ...] = ()
    if classes is not None:
        names = [str(name) for name in classes]
        if len(set(names)) != 2 or len(names) != 2:
            raise DataError(f"classes must be two different names, got {', '.join(names) or 'none'}.")
        unknown = next((word for word in words if word not in names), None)
        if unknown is not None:
            raise DataError(f"{path.name}: label {unknown!r} is not one of the classes {', '.join(names)}.")
    else:
        try:
            return np.array([float(word) for word in words]), ()
        except ValueError:
            names, uncharged = sorted(set(words)), ("class names",)
        if len(names) != 2:
            raise DataError(
                f"{path.name}: expected two class names or numbers as labels, got {len(names)} names."
            )
    return np.array([1.0 if word == names[1] else -1.0 for word in words]), uncharged


def _arff_name(text: str, path: Path, number: int) -> str:
    rest = text[len("@attribute") :].strip()
    if rest[:1] in "'\"" and rest:
        return rest[1:].split(rest[0])[0]
    if len(rest.split()) < 2:
        raise DataError(f"{path.name}, line {number}: expected '@attribute name type'.")
    return rest.split()[0]


def _without_missing(
    path: Path,
    X: Any,
    y: np.ndarray,
    names: tuple[str, ...],
    groups: np.ndarray | None,
    missing: MissingRows,
    uncharged: tuple[str, ...] = (),
) -> Dataset:
    """Return the data set, with incomplete rows refused, dropped or kept."""
    numbers = X.data if is_sparse(X) else X
    targets = np.asarray(y, dtype=float)
    if missing != "keep" and not (np.isfinite(numbers).all() and np.isfinite(targets).all()):
        if missing == "refuse" or is_sparse(X):
            raise DataError(
                f"{path.name} has missing or infinite entries; pass missing='drop' to leave those rows out."
            )
        complete = np.isfinite(X).all(axis=1) & np.isfinite(targets)
        X, y = X[complete], y[complete]
        groups = None if groups is None else groups[complete]
    return Dataset(path.name.split(".")[0], X, y, names, groups, uncharged=uncharged)
