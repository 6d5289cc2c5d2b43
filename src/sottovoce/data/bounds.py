"""Public bounds of features: given as arguments, never read from private records silently."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from sottovoce.errors import DataError

__all__ = ["NonPrivateWarning", "bound_features", "read_bounds"]


class NonPrivateWarning(UserWarning):
    """Something was read from private records without being charged."""


def bound_features(
    X: Any, low: Any, high: Any, *, outside: Literal["refuse", "clip_norm"] = "refuse"
) -> np.ndarray:
    """Return the features, all inside public bounds.

    Parameters
    ----------
    X : (n, p) features.
    low, high : numbers, or one per feature; public.
    outside : "refuse" raises at the first value outside, "clip_norm" moves it to the bound. Clipping treats
        every record alone and tells nobody anything; refusing does, so it is for data at rest.

    Examples
    --------
    >>> bound_features([[0.5, 3.0]], 0.0, [1.0, 2.0], outside="clip_norm").tolist()
    [[0.5, 2.0]]
    """
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise DataError(f"Features must be a table (n, p), got shape {X.shape}.")
    try:
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), X.shape[1:]) for b in (low, high))
    except ValueError:
        raise DataError(f"Bounds must be one number or one per feature ({X.shape[1]}).") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise DataError("Bounds must be finite with low <= high in every feature.")
    if outside == "clip_norm":
        return np.clip(X, low, high)
    bad = (X < low) | (X > high)
    if bad.any():
        i, j = (int(k[0]) for k in np.nonzero(bad))
        raise DataError(
            f"Row {i}, feature {j} lies outside its public bounds [{low[j]:g}, {high[j]:g}]; "
            'widen the bounds or pass outside="clip_norm".'
        )
    return X


def read_bounds(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of each feature, with a loud warning.

    Guarantees
    ----------
    None: the extremes are single records. Use it for public data and for simulations only.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", NonPrivateWarning)
    ...     [b.tolist() for b in read_bounds([[1.0], [5.0]])]
    [[1.0], [5.0]]
    """
    warnings.warn(
        "Bounds are read from the records themselves: they reveal single records and are not charged; "
        "pass public bounds for a private run.",
        NonPrivateWarning,
        stacklevel=2,
    )
    X = np.asarray(X, dtype=np.float64)
    return np.nanmin(X, axis=0), np.nanmax(X, axis=0)
