"""Named data sets: from the folder SOTTOVOCE_DATA names, a per-user cache, or scikit-learn's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sottovoce.data.base import Dataset
from sottovoce.data.files import parse_numbers, read_arrays, read_table
from sottovoce.errors import DataError


def data_folder(name: str) -> Path:
    """Return the folder of a data set: in SOTTOVOCE_DATA, else in the per-user cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    for root in (os.environ.get("SOTTOVOCE_DATA"), cache):
        if root and (Path(root) / name).is_dir():
            return Path(root) / name
    raise DataError(
        f"The data set {name!r} is not here; set SOTTOVOCE_DATA to a folder that holds {name}/, "
        f"or put it into {cache / name}."
    )


def load(name: str) -> Dataset:
    """Return a data set by name; `names` lists them."""
    loaders = _loaders()
    if name not in loaders:
        raise DataError(f"There is no data set {name!r}; there are {', '.join(loaders)}.")
    return loaders[name]()


def names() -> tuple[str, ...]:
    """Return the names `load` knows."""
    return tuple(_loaders())


def _loaders() -> dict[str, Callable[[], Dataset]]:
    return {
        "breast_cancer": lambda: _scikit_learn("breast_cancer", target=lambda y: y * 2.0 - 1),
        "digits": lambda: _scikit_learn("digits", scale=16.0),
        "diabetes": lambda: _scikit_learn("diabetes", target=lambda y: y.astype(float)),
        # California housing, OpenML 823: the label is longitude below its mean, not the price
        "houses": lambda: _arrays("houses", "houses_openml823.npz"),
        "electricity": lambda: _arrays("electricity", "electricity.npz"),
        "madelon": lambda: _arrays("madelon", "madelon.npz"),
        "dorothea": _dorothea,
        "heart_disease": _heart_disease,
    }


def _scikit_learn(
    name: str, *, scale: float = 1.0, target: Callable[[np.ndarray], np.ndarray] | None = None
) -> Dataset:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    y = bunch.target if target is None else target(bunch.target)
    return Dataset(name, bunch.data / scale, y, tuple(map(str, bunch.feature_names)))


def _arrays(name: str, file: str) -> Dataset:
    z = read_arrays(data_folder(name) / file)
    names = tuple(map(str, z.get("feature_names", ())))
    return Dataset(name, z["X"].astype(np.float64), z["y"].astype(float), names)


def _dorothea() -> Dataset:
    z = read_arrays(data_folder("dorothea") / "dorothea.npz")

    def part(name: str) -> sp.csr_array:
        indices, indptr = z[f"{name}_indices"], z[f"{name}_indptr"]
        return sp.csr_array((np.ones(len(indices)), indices, indptr), shape=tuple(z[f"{name}_shape"]))

    y, y_test = z["y_train"].astype(float), z["y_valid"].astype(float)
    return Dataset("dorothea", part("train"), y, X_test=part("valid"), y_test=y_test)


def _heart_disease() -> Dataset:
    """Four hospitals; the ten attributes all of them record, rows complete in those (740 patients)."""
    table = read_table(data_folder("heart_disease") / "heart_disease_4sites.csv")
    names = tuple(name for name in table if name not in ("num", "site"))[:10]
    X = np.column_stack([parse_numbers(table[name], name, "mend the file") for name in names])
    complete = np.isfinite(X).all(axis=1)
    y = np.where(table["num"].astype(float)[complete] > 0, 1.0, -1.0)
    return Dataset("heart_disease", X[complete], y, names, table["site"].astype(str)[complete])
