"""A member's own records: read from a table or NPZ, checked against the agreement's schema.

Nothing read here leaves the machine except through a clipped and noised gradient or mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce.data.files import parse_numbers, read_arrays, read_table
from sottovoce.data.tables import Classes, Scale
from sottovoce.errors import DataError
from sottovoce.peers.agreement import Agreement

_NUMBER_LOSSES = ("squared_error", "absolute_error", "binary_cross_entropy")


class Records(NamedTuple):
    """Features (records, dim) and targets (records,), empty for a mean."""

    X: np.ndarray
    y: np.ndarray


def read_records(path: str | Path, agreement: Agreement) -> Records:
    """Read the file that holds this member's records, or raise one sentence that names it."""
    path = Path(path)
    table = read_arrays(path) if path.suffix == ".npz" else read_table(path)
    columns, target = agreement.data.columns, agreement.data.target
    try:
        if agreement.data.missing == "drop" and columns is not None:
            table = columns.complete(table, [target] if target in table else [])
        X, y = _features(table, agreement), _targets(table, agreement)
        return _net_records(X, y, agreement) if agreement.model.kind == "net" else _records(X, y, agreement)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _features(table: Mapping[str, np.ndarray], agreement: Agreement) -> np.ndarray:
    columns = agreement.data.columns
    if columns is not None:
        X = columns(table)
    elif "X" in table:
        X = np.asarray(table["X"], dtype=np.float64 if table["X"].dtype.kind in "iub" else None)
    else:
        raise DataError("no array 'X'; give one, or name the columns in the agreement's [data].")
    return np.hstack([X, np.ones((len(X), 1))]) if agreement.data.intercept else X


def _targets(table: Mapping[str, np.ndarray], agreement: Agreement) -> np.ndarray:
    if agreement.model.kind == "mean":
        return np.zeros(0)
    name = agreement.data.target or "y"
    if name not in table:
        raise DataError(f"no column {name!r} for the target, which the agreement names; add it.")
    if agreement.data.classes:
        names = [str(word).strip() for word in table[name]]
        return Classes(agreement.data.classes).numbers(names).astype(np.float64)
    values = parse_numbers(table[name], name, "names need classes in the agreement's [data]")
    if values.size == len(values):  # an array may have a second axis of length one
        values = values.reshape(-1)
    bounds = agreement.data.bounds.get(name)
    return values if bounds is None else Scale.from_bounds(bounds[0], bounds[1], name)(values)


def _records(X: np.ndarray, y: np.ndarray, agreement: Agreement) -> Records:
    """Return the records of a mean or a linear model."""
    model = agreement.model
    width = model.parameters // (model.classes or 1)
    if X.ndim != 2 or X.shape[0] < 1 or X.shape[1] != width:
        raise DataError(f"expected {width} features per record and at least one record, got {X.shape}.")
    if model.kind != "mean" and y.shape != (len(X),):
        raise DataError(f"{y.size} targets for {len(X)} records; one is needed for each.")
    _require_finite(X, y)
    if model.classes is not None:
        if not np.isin(y, np.arange(model.classes)).all():
            raise DataError(f"the targets must be whole numbers from 0 to {model.classes - 1}.")
    elif model.kind == "logistic":
        if not np.isin(y, (-1.0, 0.0, 1.0)).all() or (np.isin(-1.0, y) and np.isin(0.0, y)):
            raise DataError("the targets of a logistic model must be 0 and 1, or -1 and 1.")
        y = np.where(y > 0, 1.0, -1.0)
    dtype = np.dtype(model.number)
    return Records(np.ascontiguousarray(X, dtype), np.ascontiguousarray(y, dtype))


def _net_records(X: np.ndarray, y: np.ndarray, agreement: Agreement) -> Records:
    """Return inputs of any shape, with whole-number labels or with numbers to predict."""
    if X.dtype.kind != "f" or X.ndim < 2 or len(X) < 1 or y.shape != (len(X),):
        raise DataError(f"inputs of shape {X.shape} and {y.size} targets; one is needed for each.")
    _require_finite(X, y)
    inputs = np.ascontiguousarray(X, np.float32)
    if agreement.model.loss in _NUMBER_LOSSES:
        return Records(inputs, y.astype(np.float32))
    if (y != np.rint(y)).any() or (y < 0).any():
        raise DataError("labels must be whole numbers from 0.")
    return Records(inputs, y.astype(np.int64))


def _require_finite(X: np.ndarray, y: np.ndarray) -> None:
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError("values that are not finite; remove or fill these records first.")
