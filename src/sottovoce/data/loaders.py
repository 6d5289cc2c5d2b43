"""Named data sets: from the folder SOTTOVOCE_DATA names, a per-user cache, or scikit-learn's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sottovoce.data.base import Dataset
from sottovoce.data.files import read_csv
from sottovoce.errors import DataError


def data_folder(name: str) -> Path:
    """Return the folder of a data set: in SOTTOVOCE_DATA, else in the per-user cache.

    Examples
    --------
    >>> import os
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {"SOTTOVOCE_DATA": "nowhere", "XDG_CACHE_HOME": "nowhere"}):
    ...     data_folder("houses")
    Traceback (most recent call last):
    sottovoce.errors.DataError: The data set 'houses' is not here; set SOTTOVOCE_DATA to a folder that holds \
houses/, or put it into nowhere/sottovoce/houses.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    for root in (os.environ.get("SOTTOVOCE_DATA"), cache):
        if root and (Path(root) / name).is_dir():
            return Path(root) / name
    raise DataError(
        f"The data set {name!r} is not here; set SOTTOVOCE_DATA to a folder that holds {name}/, "
        f"or put it into {cache / name}."
    )


def load(name: str) -> Dataset:
    """Return a data set by name; `names` lists them.

    Examples
    --------
    >>> load("breast_cancer").X.shape
    (569, 30)
    """
    loaders = _loaders()
    if name not in loaders:
        raise DataError(f"There is no data set {name!r}; there are {', '.join(loaders)}.")
    return loaders[name]()


def names() -> tuple[str, ...]:
    """Return the names `load` knows.

    Examples
    --------
    >>> "electricity" in names()
    True
    """
    return tuple(_loaders())


def _loaders() -> dict[str, Callable[[], Dataset]]:
    return {
        "breast_cancer": lambda: _scikit_learn("breast_cancer", target=lambda y: y * 2.0 - 1),
        "digits": lambda: _scikit_learn("digits", scale=16.0),
        "diabetes": lambda: _scikit_learn("diabetes", target=lambda y: y.astype(float)),
        "houses": _houses,
        "electricity": _electricity,
        "madelon": _madelon,
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


def _npz(folder: str, file: str) -> dict[str, np.ndarray]:
    path = data_folder(folder) / file
    if not path.is_file():
        raise DataError(f"{path} is missing; the folder {folder}/ must hold {file}.")
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _houses() -> Dataset:
    """California housing, OpenML 823: the label is longitude below its mean, not the price."""
    z = _npz("houses", "houses_openml823.npz")
    return Dataset("houses", z["X"], z["y"].astype(float), tuple(map(str, z["feature_names"])))


def _electricity() -> Dataset:
    z = _npz("electricity", "electricity.npz")
    return Dataset("electricity", z["X"], z["y"].astype(float), tuple(map(str, z["feature_names"])))


def _madelon() -> Dataset:
    z = _npz("madelon", "madelon.npz")
    return Dataset("madelon", z["X"].astype(np.float64), z["y"].astype(float))


def _dorothea() -> Dataset:
    z = _npz("dorothea", "dorothea.npz")

    def part(name: str) -> sp.csr_array:
        ones = np.ones(len(z[f"{name}_indices"]))
        return sp.csr_array(
            (ones, z[f"{name}_indices"], z[f"{name}_indptr"]), shape=tuple(z[f"{name}_shape"])
        )

    return Dataset(
        "dorothea",
        part("train"),
        z["y_train"].astype(float),
        X_test=part("valid"),
        y_test=z["y_valid"].astype(float),
    )


def _heart_disease() -> Dataset:
    """Four hospitals; the ten attributes all of them record, rows complete in those (740 patients)."""
    table = read_csv(
        data_folder("heart_disease") / "heart_disease_4sites.csv", label="num", group="site", missing="keep"
    )
    X = table.X[:, :10]
    keep = np.isfinite(X).all(axis=1)
    assert table.groups is not None
    y = np.where(table.y[keep] > 0, 1.0, -1.0)
    return Dataset("heart_disease", X[keep], y, table.feature_names[:10], table.groups[keep])
