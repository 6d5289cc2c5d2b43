"""A member's own records: read from a table or NPZ, checked against the agreement's schema.

Nothing read here leaves the machine except through a clipped and noised gradient or mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce.data.files import parse_numbers, read_arrays, read_table
from sottovoce.data.tables import Classes
from sottovoce.errors import DataError
from sottovoce.peers.agreement import Agreement, ModelPart


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
        return _checked(_features(table, agreement), _targets(table, agreement), agreement.model)
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
    name = agreement.data.label
    if name not in table:
        raise DataError(f"no column {name!r} for the target, which the agreement names; add it.")
    if agreement.data.classes:
        names = [str(word).strip() for word in table[name]]
        return Classes(agreement.data.classes).numbers(names).astype(np.float64)
    values = parse_numbers(table[name], name, "names need classes in the agreement's [data]")
    if values.size == len(values):  # an array may have a second axis of length one
        values = values.reshape(-1)
    scale = agreement.data.scale(name)
    return values if scale is None else scale(values)


def _checked(X: np.ndarray, y: np.ndarray, model: ModelPart) -> Records:
    """Return records as the model takes them; the inputs of a network have any shape."""
    is_net, width = model.kind == "net", model.parameters // (model.classes or 1)
    fits = X.ndim > 1 and len(X) > 0 and X.dtype.kind == "f" and (is_net or X.shape[1:] == (width,))
    if not fits:
        wanted = "numbers" if is_net else f"{width} features"
        raise DataError(f"expected {wanted} per record and at least one record, got {X.shape}.")
    if model.kind != "mean" and y.shape != (len(X),):
        raise DataError(f"{y.size} targets for {len(X)} records; one is needed for each.")
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError("values that are not finite; remove or fill these records first.")
    whole_numbers = is_net and not model.regression and model.loss != "binary_cross_entropy"
    if whole_numbers or model.classes is not None:
        most = math.inf if model.classes is None else model.classes - 1
        if (y != np.rint(y)).any() or not ((y >= 0) & (y <= most)).all():
            raise DataError(f"the targets must be whole numbers from 0, at most {most}.")
    elif model.kind == "logistic":
        if not np.isin(y, (-1.0, 0.0, 1.0)).all() or (np.isin(-1.0, y) and np.isin(0.0, y)):
            raise DataError("the targets of a logistic model must be 0 and 1, or -1 and 1.")
        y = np.where(y > 0, 1.0, -1.0)
    kind = np.int64 if whole_numbers else model.number
    return Records(np.ascontiguousarray(X, model.number), np.ascontiguousarray(y, kind))
