"""The clip rule in its numpy and tensor forms; the compiled form is in `sottovoce.objectives.kernels`.

.. math:: \\mathrm{clip}_C(g) = g \\cdot \\min(1, C / \\lVert g \\rVert), \\qquad 0 \\text{ if } g
          \\text{ is not finite}

Every guarantee rests on it: a contribution has length at most C, for any input. NaN and infinity become zero
(a NaN in the sum would reveal that the record was there), and numbers whose squares overflow are clipped like
others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from torch import Tensor


def clip_rows(rows: np.ndarray, bound: float) -> np.ndarray:
    """Return rows scaled down to length at most ``bound``; rows that are not finite become zero.

    Guarantees
    ----------
    Every returned row has Euclidean length at most ``bound`` (up to one rounding), for any input: NaN and
    infinity give zero, 1e300 does not overflow. This is the sensitivity that the accountant uses.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [np.nan, 1.0]]), 1.0).tolist()
    [[0.6000000000000001, 0.8], [0.0, 0.0]]
    """
    rows = np.asarray(rows)
    finite = np.isfinite(rows).all(axis=-1, keepdims=True)
    safe = np.where(finite, rows, rows.dtype.type(0))
    largest = np.abs(safe).max(axis=-1, keepdims=True, initial=0.0)
    scaled = safe / np.where(largest > 0, largest, 1)  # so that squares cannot overflow
    lengths = np.linalg.norm(scaled, axis=-1, keepdims=True)
    over = largest * lengths > bound
    inside = np.where(over, rows.dtype.type(0), safe)
    return np.where(over, scaled * (bound / np.where(lengths > 0, lengths, 1)), inside).astype(rows.dtype)


def clip_around(rows: ArrayLike, center: np.ndarray | float, radius: float) -> np.ndarray:
    """Return every row pulled into the ball of ``radius`` around a public ``center``.

    A row that holds NaN or infinity becomes the center.
    """
    array = np.asarray(rows)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    public = np.asarray(center, dtype=array.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        offset = array - public
    return public + clip_rows(offset, radius)


def clip_weights(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """Return ``min(1, C / norm)`` for each sample of a tensor, and 0 where the norm is not finite.

    ``clip_norm=inf`` switches clipping off (for runs without noise); non-finite records still count zero.
    """
    norms = squared_norms.clamp(min=0).sqrt()
    weights = (clip_norm / norms.clamp(min=1e-30)).clamp(max=1.0)
    return weights.where(squared_norms.abs() < math.inf, 0.0)  # NaN is not below infinity either
