"""Tables of one's own: CSV, NPZ, ARFF and LIBSVM, plain or gzipped.

Readers parse text and arrays only (``allow_pickle`` is never on), name the line that is wrong, and
return a `Dataset`. Missing values are refused unless the caller says what to do with them.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from sottovoce.data.base import Dataset, is_sparse
from sottovoce.errors import DataError, MissingDependency

__all__ = [
    "read_arff",
    "read_array",
    "read_columns",
    "read_csv",
    "read_file",
    "read_libsvm",
    "read_npz",
    "read_parquet",
]

Missing = Literal["refuse", "drop", "keep"]


def read_file(path: str | Path, **options: Any) -> Dataset:
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
    suffixes = [s for s in Path(path).suffixes if s != ".gz"]
    kind = suffixes[-1].lower() if suffixes else ""
    readers: dict[str, Any] = {
        ".csv": read_csv, ".tsv": read_csv, ".npz": read_npz, ".arff": read_arff,
        ".svm": read_libsvm, ".libsvm": read_libsvm,
    }  # fmt: skip
    if kind not in readers:
        raise DataError(f"Cannot tell the format of {Path(path).name}; expected one of {', '.join(readers)}.")
    return readers[kind](path, **options)


def read_csv(
    path: str | Path,
    *,
    label: str,
    group: str | None = None,
    missing: Missing = "refuse",
    classes: Sequence[Any] | None = None,
) -> Dataset:
    """Read a comma- or tab-separated table with a header line.

    Parameters
    ----------
    path : the file.
    label : name of the column to predict.
    group : name of a column that tells the records' sites apart; not a feature.
    missing : what to do with rows that have an empty, ``?`` or ``NA`` entry.
    classes : the two class names, public, the second being 1; without them names are read from the labels,
        which the data set notes as read and not charged.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "sites.csv"
    >>> _ = path.write_text("age,weight,ill\\n61,80,1\\n34,70,0\\n")
    >>> read_csv(path, label="ill").X.tolist()
    [[61.0, 80.0], [34.0, 70.0]]
    """
    columns = read_columns(path)
    for name in (label, group):
        if name is not None and name not in columns:
            raise DataError(f"{Path(path).name} has no column {name!r}; it has {', '.join(columns)}.")
    features = [name for name in columns if name not in (label, group)]
    X = np.column_stack([_numbers(columns[name], name, path) for name in features])
    groups = None if group is None else np.array(columns[group])
    y, uncharged = _labels(columns[label], path, classes)
    return _tidy(Path(path), X, y, tuple(features), groups, missing, uncharged)


def read_columns(path: str | Path) -> dict[str, list[str]]:
    """Read a comma- or tab-separated table with a header line as columns of words.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "sites.csv"
    >>> _ = path.write_text("age,site\\n61,Rome\\n34,Oslo\\n")
    >>> read_columns(path)
    {'age': ['61', '34'], 'site': ['Rome', 'Oslo']}
    """
    with _open(path) as lines:
        sample = next(lines, "")
        if not sample.strip():
            raise DataError(f"{Path(path).name} is empty; expected a header line.")
        table = csv.reader(lines, delimiter="\t" if "\t" in sample else ",")
        header = next(csv.reader([sample], delimiter="\t" if "\t" in sample else ","))
        header = [name.strip() for name in header]
        twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
        if twice is not None:
            raise DataError(f"{Path(path).name} has two columns {twice!r}; rename one.")
        records = [(number, row) for number, row in enumerate(table, start=2) if row]
    for number, row in records:
        if len(row) != len(header):
            raise DataError(
                f"{Path(path).name}, line {number}: expected {len(header)} values, got {len(row)}."
            )
    return {name: [row[i].strip() for _, row in records] for i, name in enumerate(header)}


def read_parquet(path: str | Path) -> dict[str, np.ndarray]:
    """Read a Parquet table as columns by name; it needs pyarrow.

    Examples
    --------
    >>> read_parquet("none.parquet")
    Traceback (most recent call last):
    sottovoce.errors.DataError: There is no file none.parquet.
    """
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


def read_npz(path: str | Path, *, x: str = "X", y: str = "y", missing: Missing = "refuse") -> Dataset:
    """Read two arrays of an .npz file; objects are refused.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "pair.npz"
    >>> np.savez(path, X=np.eye(2), y=np.array([0, 1]))
    >>> read_npz(path).X.shape
    (2, 2)
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if x not in arrays or y not in arrays:
                raise DataError(
                    f"{Path(path).name} has no arrays {x!r} and {y!r}; it has {', '.join(arrays.files)}."
                )
            X, labels = np.asarray(arrays[x], dtype=np.float64), np.asarray(arrays[y])
    except (OSError, zipfile.BadZipFile) as problem:
        raise DataError(f"Cannot read {Path(path).name}: {problem}.") from None
    except ValueError as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(f"{Path(path).name} holds something other than plain number arrays.") from None
    return _tidy(Path(path), X, labels, (), None, missing)


def read_array(path: str | Path, name: str = "X") -> np.ndarray:
    """Read one array of an .npz file, of any shape, or the one of an .npy file; objects are refused.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "new.npz"
    >>> np.savez(path, X=np.zeros((2, 3, 3), np.uint8))
    >>> read_array(path).shape
    (2, 3, 3)
    """
    file = Path(path)
    try:
        held = np.load(file, allow_pickle=False)
        if isinstance(held, np.ndarray):
            return held
        with held as arrays:
            if name not in arrays:
                raise DataError(f"{file.name} has no array {name!r}; it has {', '.join(arrays.files)}.")
            return np.asarray(arrays[name])
    except FileNotFoundError:
        raise DataError(f"There is no file {file}.") from None
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{file.name} is not an .npz file of plain arrays.") from None


def read_arff(
    path: str | Path,
    *,
    label: str = "class",
    missing: Missing = "refuse",
    classes: Sequence[Any] | None = None,
) -> Dataset:
    """Read a dense ARFF table with numeric features and a nominal or numeric label.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.arff"
    >>> head = "@relation two\\n@attribute a numeric\\n@attribute class {x,y}\\n@data\\n"
    >>> _ = path.write_text(head + "1,x\\n2,y\\n")
    >>> read_arff(path).X.tolist()
    [[1.0], [2.0]]
    """
    names: list[str] = []
    rows: list[list[str]] = []
    in_data = False
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text or text.startswith("%"):
                continue
            lower = text.lower()
            if not in_data:
                if lower.startswith("@attribute"):
                    names.append(_arff_name(text, path, number))
                in_data = lower.startswith("@data")
                continue
            values = [value.strip().strip("'\"") for value in text.split(",")]
            if text.startswith("{") or len(values) != len(names):
                raise DataError(
                    f"{Path(path).name}, line {number}: expected {len(names)} values, got {len(values)}."
                )
            rows.append(values)
    if not rows:
        raise DataError(f"{Path(path).name} holds no @data rows.")
    if label not in names:
        raise DataError(f"{Path(path).name} has no attribute {label!r}; it has {', '.join(names)}.")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    features = [name for name in names if name != label]
    X = np.column_stack([_numbers(columns[name], name, path) for name in features])
    y, uncharged = _labels(columns[label], path, classes)
    return _tidy(Path(path), X, y, tuple(features), None, missing, uncharged)


def read_libsvm(path: str | Path, *, features: int | None = None, missing: Missing = "refuse") -> Dataset:
    """Read ``label index:value ...`` lines (indices from 1, as in a9a) into a sparse data set.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.svm"
    >>> _ = path.write_text("+1 1:0.5 3:2\\n-1 2:1\\n")
    >>> read_libsvm(path).X.toarray().tolist()
    [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]]
    """
    labels: list[float] = []
    indices: list[int] = []
    values: list[float] = []
    indptr = [0]
    with _open(path) as lines:
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
                raise DataError(
                    f"{Path(path).name}, line {number}: expected 'label index:value ...'."
                ) from None
            if any(i < 0 for i in indices[indptr[-1] :]):
                raise DataError(f"{Path(path).name}, line {number}: indices count from 1.")
            indptr.append(len(indices))
    width = max(indices, default=-1) + 1
    if features is not None and width > features:
        raise DataError(f"{Path(path).name} uses feature {width}, but only {features} were announced.")
    X = sp.csr_array((values, indices, indptr), shape=(len(labels), features or width))
    X.sum_duplicates()
    return _tidy(Path(path), X, np.array(labels), (), None, missing)


def _open(path: str | Path) -> Any:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    return _Lines(file)


class _Lines:
    """Text lines of a plain or gzipped file, as a context manager and iterator."""

    def __init__(self, file: Path) -> None:
        self._stream = (
            gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")
        )
        self._name = file.name

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return next(self._stream)
        except (UnicodeDecodeError, OSError, EOFError) as problem:
            raise DataError(f"{self._name} is not a readable text table: {problem}.") from None


def _numbers(words: Iterable[str], name: str, path: str | Path) -> np.ndarray:
    def one(word: str) -> float:
        if word in ("", "?", "NA", "NaN", "nan"):
            return np.nan
        try:
            return float(word)
        except ValueError:
            raise DataError(
                f"{Path(path).name}: column {name!r} holds {word!r}, expected numbers; encode it first."
            ) from None

    return np.array([one(word) for word in words])


def _labels(
    words: Iterable[str], path: str | Path, classes: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels as numbers, and what had to be read of all of them to know them.

    Numbers stay as they are; two class names become -1 and 1, in the public order, else alphabetically.
    """
    listed = list(words)
    if classes is not None:
        names = [str(name) for name in classes]
        if len(set(names)) != 2 or len(names) != 2:
            raise DataError(f"classes must be two different names, got {', '.join(names) or 'none'}.")
        strange = next((k for k, word in enumerate(listed) if word not in names), None)
        if strange is not None:
            raise DataError(
                f"{Path(path).name}: label {listed[strange]!r} is not one of the classes {', '.join(names)}."
            )
        return np.array([1.0 if word == names[1] else -1.0 for word in listed]), ()
    try:
        return np.array([float(word) for word in listed]), ()
    except ValueError:
        found = sorted(set(listed))
        if len(found) != 2:
            raise DataError(
                f"{Path(path).name}: expected two class names or numbers as labels, got {len(found)} names."
            ) from None
        return np.array([1.0 if word == found[1] else -1.0 for word in listed]), ("class names",)


def _arff_name(text: str, path: str | Path, number: int) -> str:
    rest = text[len("@attribute") :].strip()
    if rest[:1] in "'\"" and rest:
        return rest[1:].split(rest[0])[0]
    if len(rest.split()) < 2:
        raise DataError(f"{Path(path).name}, line {number}: expected '@attribute name type'.")
    return rest.split()[0]


def _tidy(
    path: Path,
    X: Any,
    y: np.ndarray,
    names: tuple[str, ...],
    groups: Any,
    missing: Missing,
    uncharged: tuple[str, ...] = (),
) -> Dataset:
    dense = X.data if is_sparse(X) else X
    if missing != "keep" and not (np.isfinite(dense).all() and np.isfinite(np.asarray(y, dtype=float)).all()):
        if missing == "refuse" or is_sparse(X):
            raise DataError(
                f"{path.name} has missing or infinite entries; pass missing='drop' to leave those rows out."
            )
        keep = np.isfinite(X).all(axis=1) & np.isfinite(np.asarray(y, dtype=float))
        X, y = X[keep], y[keep]
        groups = None if groups is None else groups[keep]
    return Dataset(path.name.split(".")[0], X, y, names, groups, uncharged=uncharged)
