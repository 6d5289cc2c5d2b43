"""Readers of files: tables (CSV, TSV, ARFF, plain or gzipped, and Parquet), NPZ arrays and LIBSVM.

Readers parse text and arrays only (``allow_pickle`` is never on) and name the line that is wrong.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sottovoce.data.base import Dataset
from sottovoce.errors import DataError, MissingDependency

MissingRows = Literal["refuse", "drop"]
StrPath = str | os.PathLike[str]
TABLE_FORMATS = (".csv", ".tsv", ".arff", ".parquet")
MAX_WORD = 131_072  # characters of one value; the limit of the csv module can be moved by any library
_EMPTY = ("", "?", "NA", "NaN", "nan", "None", "NaT", "<NA>")
_TRUTH = {"true": 1.0, "false": 0.0}
_DATE = re.compile(r"\d{4}-\d\d")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_TIME_ZONE = re.compile(r"(?<=\d)(Z|[+-]\d\d:?\d\d)$")


@runtime_checkable
class DataFrame(Protocol):
    """A data frame of pandas, polars or another library."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    def __getitem__(self, name: Any, /) -> Any: ...


@runtime_checkable
class ArrowTable(Protocol):
    """A table of pyarrow."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""

    def column(self, i: int, /) -> Any:
        """Return a column."""


def table_format(path: StrPath) -> str:
    """Return the extension that names the format of a file, without .gz and in lower case."""
    suffixes = [suffix for suffix in Path(path).suffixes if suffix != ".gz"]
    return suffixes[-1].lower() if suffixes else ""


def read_table(data: StrPath | Mapping[Any, Any] | DataFrame) -> dict[str, np.ndarray]:
    """Return the columns of a table by name: of a file, a data frame or a mapping."""
    if isinstance(data, (str, os.PathLike)):
        kind = table_format(data)
        if kind == ".parquet":
            return _read_parquet(Path(data))
        if kind not in TABLE_FORMATS:
            raise DataError(
                f"a table must be a .csv, .tsv, .arff (also .gz) or .parquet file, got {Path(data).name}."
            )
        if kind == ".arff":
            return _read_arff(Path(data))
        return {name: np.array(words, dtype=object) for name, words in read_columns(data).items()}
    if isinstance(data, ArrowTable):
        return {str(name): data.column(i).to_numpy() for i, name in enumerate(data.column_names)}
    names = list(data) if isinstance(data, Mapping) else list(data.columns)
    return {str(name): np.asarray(data[name]) for name in names}


def read_columns(path: StrPath) -> dict[str, list[str]]:
    """Read a table with a header line, separated by commas, tabs or semicolons, as columns of words."""
    with text_lines(path) as lines:
        first = next((line for line in lines if line.strip()), "")
        delimiter = "\t" if "\t" in first else ";" if ";" in first and "," not in first else ","
        reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter)
        header = [word.strip() for word in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader if row]
    if not any(header):
        raise DataError(f"{path} is empty; expected a header line.")
    twice = next((word for word in header if header.count(word) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns {twice!r}; rename one.")
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: expected {len(header)} values, got {len(row)}.")
        if max(map(len, row)) > MAX_WORD:
            raise DataError(f"{path}, line {number}: a value is above the limit of {MAX_WORD:,} characters.")
    return {word: [row[i].strip() for _, row in rows] for i, word in enumerate(header)}


def _existing(path: StrPath) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    return file


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingDependency(
            "Parquet files are read with pyarrow; pip install pyarrow, or save the table as CSV."
        ) from None
    try:
        table = parquet.read_table(_existing(path))
    except (ArrowException, OSError) as problem:
        raise DataError(f"{path.name} is not a readable Parquet table: {problem}.") from None
    return read_table(table)


def _read_arff(path: Path) -> dict[str, np.ndarray]:
    """Read an ARFF table of numbers, dates and names."""
    from scipy.io import arff

    limit = csv.field_size_limit()
    with text_lines(path) as lines:
        try:
            rows, about = arff.loadarff(lines)
        except (ValueError, IndexError, StopIteration, NotImplementedError, arff.ArffError) as problem:
            raise DataError(
                f"{path.name} is not a readable ARFF table of numbers, dates and names: {problem}."
            ) from None
        finally:
            csv.field_size_limit(limit)  # scipy raises the limit of the whole process
    columns = {name: rows[name] for name in about.names()}
    return {
        name: np.char.decode(values, "utf-8").astype(object) if values.dtype.kind == "S" else values
        for name, values in columns.items()
    }


def read_arrays(path: StrPath, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file by name, all by default, or that of an .npy file as ``X``; no objects."""
    try:
        loaded = np.load(_existing(path), allow_pickle=False)
        with nullcontext({"X": loaded}) if isinstance(loaded, np.ndarray) else loaded as arrays:
            unknown = next((name for name in names or () if name not in arrays), None)
            if unknown is not None:
                raise DataError(f"{path} has no array {unknown!r}; it has {', '.join(arrays)}.")
            return {name: arrays[name] for name in names or arrays}
    except DataError:
        raise
    except OSError as problem:
        raise DataError(f"The file {path} cannot be read ({problem.strerror or problem}).") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path} is not an .npz or .npy file of plain arrays.") from None


def read_array(path: StrPath) -> np.ndarray:
    """Read the array ``X`` of an .npz file, of any shape, or that of an .npy file."""
    return read_arrays(path, ("X",))["X"]


def read_numbers(path: StrPath) -> np.ndarray:
    """Read the one array of numbers in an .npz or .npy file, or a table without names.

    Lines of such a table are numbers between commas, semicolons or tabs; its first line may be words.
    """
    source = Path(path)
    if source.suffix.lower() not in (".npz", ".npy"):
        return _read_number_lines(source)
    arrays = read_arrays(source)
    if len(arrays) != 1:
        raise DataError(f"{source} must hold one array, it holds {', '.join(arrays) or 'none'}.")
    (array,) = arrays.values()
    if array.dtype.kind not in "biuf":
        raise DataError(f"{source} does not hold numbers; expected a CSV or NPZ file of numbers.")
    return array.astype(float)


def _read_number_lines(source: Path) -> np.ndarray:
    rows: list[list[float]] = []
    with text_lines(source) as lines:
        for line_number, line in enumerate(lines, start=1):
            words = [word.strip() for word in re.split("[,;\t]", line)]
            if words == [""] or words[0].startswith("#"):
                continue
            where = f"Line {line_number} of {source}"
            try:
                row = [float(word) for word in words]
            except ValueError:
                if line_number == 1:
                    continue  # a header
                raise DataError(f"{where} is {line.strip()[:60]!r}, expected numbers.") from None
            if rows and len(row) != len(rows[0]):
                raise DataError(f"{where} holds {len(row)} numbers, expected {len(rows[0])}.")
            rows.append(row)
    if not rows:
        raise DataError(f"{source} holds no numbers.")
    return np.array(rows)


def read_npz(path: StrPath, *, missing: MissingRows = "refuse") -> Dataset:
    """Read the features ``X`` and the labels ``y`` of an .npz file, incomplete rows refused or dropped."""
    arrays, name = read_arrays(path, ("X", "y")), Path(path).name
    try:
        X, y = (np.asarray(arrays[key], dtype=np.float64) for key in ("X", "y"))
    except ValueError:
        raise DataError(f"{name}: the arrays 'X' and 'y' must hold numbers.") from None
    complete = np.isfinite(X).all(axis=1) & np.isfinite(y)
    return _complete(Dataset(name.split(".")[0], X, arrays["y"]), complete, name, missing)


def read_libsvm(path: StrPath, *, missing: MissingRows = "refuse") -> Dataset:
    """Read ``label index:value ...`` lines (indices from 1, as in a9a) into a sparse data set."""
    from sklearn.datasets import load_svmlight_file

    file = _existing(path)
    try:
        X, y = load_svmlight_file(str(file), zero_based=False)
    except (ValueError, OSError, EOFError) as problem:
        raise DataError(
            f"{file.name}: expected lines 'label index:value ...' with indices from 1 ({problem})."
        ) from None
    complete = np.isfinite(y)
    complete[X.tocoo().row[~np.isfinite(X.tocoo().data)]] = False
    return _complete(Dataset(file.name.split(".")[0], sp.csr_array(X), y), complete, file.name, missing)


def _complete(data: Dataset, complete: np.ndarray, name: str, missing: MissingRows) -> Dataset:
    """Return the data set without incomplete rows, or refuse them."""
    if missing == "refuse" and not complete.all():
        raise DataError(
            f"{name} has missing or infinite entries; set missing to 'drop' to leave those rows out."
        )
    return replace(data, X=data.X[complete], y=data.y[complete])


def is_empty(value: object) -> bool:
    """Return whether an entry of a table stands for no value."""
    return value is None or str(value).strip() in _EMPTY


def are_booleans(values: ArrayLike) -> bool:
    """Return whether all entries of a column are booleans, apart from empty ones."""
    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array.dtype.kind == "b"
    kinds = {type(value) for value in array if not is_empty(value)}
    return bool(kinds) and kinds <= {bool, np.bool_}


def parse_days(values: ArrayLike, name: str) -> np.ndarray:
    """Return a column of dates as days since 1970, by their own clock; an empty entry becomes NaN."""
    entries = ["" if is_empty(value) else str(value).strip() for value in np.asarray(values)]
    words = [_TIME_ZONE.sub("", entry.replace(" ", "T", 1)) or "NaT" for entry in entries]
    try:
        if not all(word == "NaT" or _DATE.match(word) for word in words):
            raise ValueError  # numpy takes a number for a year
        moments = np.array(words, dtype="datetime64[s]")
    except ValueError:
        raise DataError(
            f"column {name!r} must hold dates such as 2024-03-31, as its bounds do; write them so or drop it."
        ) from None
    seconds = moments.astype(np.int64).astype(np.float64)
    return np.where(np.isnat(moments), np.nan, seconds / 86400)


def parse_numbers(values: ArrayLike, name: str, hint: str) -> np.ndarray:
    """Return a column as float64; an empty entry becomes NaN. ``hint`` says what to do with other words."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    numbers = np.empty(len(array))
    for row, value in enumerate(array):
        if is_empty(value):
            numbers[row] = np.nan
            continue
        word = str(value).strip().lower()
        try:
            numbers[row] = _TRUTH[word] if word in _TRUTH else float(value)
        except (TypeError, ValueError, OverflowError):
            what = "decimal commas" if _DECIMAL_COMMA.fullmatch(word) else "words"
            hint = "write decimal points" if what == "decimal commas" else hint
            raise DataError(
                f"column {name!r} holds {what} (row {row} is the first), expected numbers; {hint}."
            ) from None
    return numbers


@contextmanager
def text_lines(path: StrPath) -> Iterator[Iterator[str]]:
    """Yield the text lines of a plain or gzipped file; spreadsheets put a byte order mark in front."""
    file = _existing(path)
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8-sig") as stream:
            yield iter(stream)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text; export the table as CSV in UTF-8.") from None
    except (OSError, EOFError, csv.Error, zlib.error) as problem:
        raise DataError(f"{path} is not a readable text table: {problem}.") from None
