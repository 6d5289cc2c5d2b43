"""A member's own records: read from CSV or NPZ, checked against the agreement's schema.

Nothing read here leaves the machine except through a clipped and noised gradient or mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce.data.files import read_arrays, read_columns
from sottovoce.data.tables import Classes, Scale
from sottovoce.errors import DataError
from sottovoce.peers.agreement import Agreement


class Records(NamedTuple):
    """Features (records, dim) and targets (records,), empty for a mean."""

    X: np.ndarray
    y: np.ndarray


def read_records(path: str | Path, agreement: Agreement) -> Records:
    """Read the file that holds this member's records, or raise one sentence that names it."""
    path = Path(path)
    table = _read(path)
    wanted, columns = agreement.data.features, agreement.data.columns
    if wanted:
        missing = [name for name in wanted if name not in table]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}, which the agreement asks for; add it.")
        if columns is not None and (columns.scales or columns.categories):
            try:
                X = columns(table)
            except DataError as error:
                raise DataError(f"{path}: {error}") from None
        else:
            X = np.column_stack([_flat(table[name], name, path) for name in wanted])
    elif "X" in table:
        X = np.asarray(table["X"], dtype=np.float64 if table["X"].dtype.kind in "iub" else None)
    else:
        raise DataError(f"{path} has no array 'X'; give one, or name the columns in the agreement's [data].")
    if agreement.data.intercept:
        X = np.hstack([X, np.ones((len(X), 1))])
    return check_records(X, _target(table, agreement, path), agreement, path)


def check_records(X: np.ndarray, y: np.ndarray, agreement: Agreement, path: str | Path) -> Records:
    """Return the records if they fit the agreement's model."""
    model = agreement.model
    if model.kind == "net":
        if agreement.model.loss in ("squared_error", "absolute_error", "binary_cross_entropy"):
            return _numbered(X, y, path)
        return _labeled(X, y, path)
    wide = model.parameters // (model.classes or 1)
    if X.ndim != 2 or X.shape[0] < 1 or X.shape[1] != wide:
        raise DataError(
            f"{path} holds features of shape {X.shape}, the agreement's model takes {wide} per record."
        )
    if model.kind != "mean" and y.shape != (X.shape[0],):
        raise DataError(f"{path} holds {y.size} targets for {X.shape[0]} records; one is needed for each.")
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{path} holds values that are not finite; remove or fill these records first.")
    if model.classes is not None:
        if not np.isin(y, np.arange(model.classes)).all():
            raise DataError(f"{path}: the targets are whole numbers from 0 to {model.classes - 1}.")
    elif model.kind == "logistic":
        if not np.isin(y, (-1.0, 0.0, 1.0)).all() or (np.isin(-1.0, y) and np.isin(0.0, y)):
            raise DataError(f"{path}: the targets of a logistic model are 0 and 1, or -1 and 1.")
        y = np.where(y > 0, 1.0, -1.0)
    dtype = np.dtype(model.number)
    return Records(np.ascontiguousarray(X, dtype), np.ascontiguousarray(y, dtype))


def _labeled(X: np.ndarray, y: np.ndarray, path: str | Path) -> Records:
    """Return inputs of any shape and whole-number labels, for a network."""
    if X.dtype.kind != "f" or X.ndim < 2 or len(X) < 1 or y.shape != (len(X),):
        raise DataError(
            f"{path} holds inputs of shape {X.shape} and {y.size} labels; one is needed for each."
        )
    if not np.isfinite(X).all() or not np.isfinite(y).all() or (y != np.rint(y)).any() or (y < 0).any():
        raise DataError(f"{path}: inputs must be finite, and labels whole numbers from 0.")
    return Records(np.ascontiguousarray(X, np.float32), y.astype(np.int64))


def _numbered(X: np.ndarray, y: np.ndarray, path: str | Path) -> Records:
    """Return inputs of any shape and numbers to predict, for a network."""
    if X.dtype.kind != "f" or X.ndim < 2 or len(X) < 1 or y.shape != (len(X),):
        raise DataError(
            f"{path} holds inputs of shape {X.shape} and {y.size} targets; one is needed for each."
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{path} holds values that are not finite; remove or fill these records first.")
    return Records(np.ascontiguousarray(X, np.float32), y.astype(np.float32))


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return read_arrays(path)
    table = {name: np.array(words) for name, words in read_columns(path).items()}
    if not any(len(column) for column in table.values()):
        raise DataError(f"{path} needs a header line and at least one record.")
    return table


def _target(table: dict[str, np.ndarray], agreement: Agreement, path: Path) -> np.ndarray:
    if agreement.model.kind == "mean":
        return np.zeros(0)
    name = agreement.data.target or "y"
    if name not in table:
        raise DataError(
            f"{path} has no column {name!r} for the target, which the agreement asks for; add it."
        )
    classes = agreement.data.classes
    if classes:
        try:
            return Classes(classes).numbers([str(word).strip() for word in table[name]]).astype(np.float64)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    values = _flat(table[name], name, path)
    pair = agreement.data.bounds.get(name)
    return values if pair is None else Scale.from_bounds(*pair, name)(values)


def _flat(column: np.ndarray, name: str, path: Path) -> np.ndarray:
    try:
        return np.asarray(column, dtype=np.float64).reshape(len(column))
    except (TypeError, ValueError):
        raise DataError(f"{path}: column {name!r} must hold one number per record.") from None
