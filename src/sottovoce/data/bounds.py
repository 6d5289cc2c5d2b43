"""Public bounds of features: given as arguments, never read from private records silently."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sottovoce.errors import DataError


def bound_features(
    X: Any, low: Any, high: Any, *, outside: Literal["refuse", "clip"] = "refuse"
) -> np.ndarray:
    """Return the features, all inside public bounds.

    Parameters
    ----------
    X : (n, p) features.
    low, high : numbers, or one per feature; public.
    outside : "refuse" raises at the first value outside, "clip" moves it to the bound. Clipping treats
        every record alone and tells nobody anything; refusing does, so it is for data at rest.

    Examples
    --------
    >>> bound_features([[0.5, 3.0]], 0.0, [1.0, 2.0], outside="clip").tolist()
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
    if outside == "clip":
        return np.clip(X, low, high)
    bad = (X < low) | (X > high)
    if bad.any():
        i, j = (int(k[0]) for k in np.nonzero(bad))
        raise DataError(
            f"Row {i}, feature {j} lies outside its public bounds [{low[j]:g}, {high[j]:g}]; "
            'widen the bounds or pass outside="clip".'
        )
    return X
