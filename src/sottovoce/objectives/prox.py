"""Proximal maps: prox_h(v) = argmin_w h(w) + |w - v|^2 / (2 step).

The regularisers are read by every solver; the maps of single records serve private ADMM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from sottovoce._validate import non_negative, positive
from sottovoce.errors import InvalidInput

__all__ = ["Regulariser", "clip_rows", "prox_logistic", "prox_squared", "prox_squared_batch"]


@dataclass(frozen=True)
class Regulariser:
    """r(w) = l1 |w|_1 + (l2 / 2) |w|^2, optionally inside a box [-b, b]^p or a ball of radius R.

    Examples
    --------
    >>> Regulariser(l1=1.0).prox(np.array([3.0, -0.5]), step=1.0).tolist()
    [2.0, -0.0]
    >>> Regulariser(ball=1.0).prox(np.array([3.0, 4.0]), step=1.0).tolist()
    [0.6000000000000001, 0.8]
    """

    l1: float = 0.0
    l2: float = 0.0
    box: float | None = None
    ball: float | None = None

    def __post_init__(self) -> None:
        non_negative(self.l1, "l1")
        non_negative(self.l2, "l2")
        if self.box is not None:
            positive(self.box, "box")
        if self.ball is not None:
            positive(self.ball, "ball")
        if self.box is not None and self.ball is not None:
            raise InvalidInput("A regulariser takes a box or a ball, got both; drop one of them.")

    @property
    def separable(self) -> bool:
        """Whether the map acts on each coordinate alone (everything but the ball)."""
        return self.ball is None

    def value(self, w: np.ndarray) -> float:
        """Return l1 |w|_1 + (l2/2) |w|^2 (the constraint is the projection's business)."""
        return float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * (w @ w))

    def prox(self, v: np.ndarray, step: float | np.ndarray) -> np.ndarray:
        """Return the proximal map at ``v`` (exact: the box acts per coordinate, the ball rescales)."""
        w = np.sign(v) * np.maximum(np.abs(v) - step * self.l1, 0.0) / (1.0 + step * self.l2)
        if self.box is not None:
            w = np.clip(w, -self.box, self.box)
        if self.ball is not None:
            norm = float(np.linalg.norm(w))
            if norm > self.ball:
                w = w * (self.ball / norm)
        return w


def clip_rows(rows: np.ndarray, bound: float) -> np.ndarray:
    """Return rows scaled down to length at most ``bound``; rows that are not finite become zero.

    Guarantees
    ----------
    Every returned row has Euclidean length at most ``bound`` (up to one rounding), whatever came in:
    NaN and infinity give zero, 1e300 does not overflow. This is the sensitivity that is booked.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [np.nan, 1.0]]), 1.0).tolist()
    [[0.6000000000000001, 0.8], [0.0, 0.0]]
    """
    rows = np.asarray(rows)
    finite = np.isfinite(rows).all(axis=-1, keepdims=True)
    safe = np.where(finite, rows, 0.0)
    largest = np.abs(safe).max(axis=-1, keepdims=True, initial=0.0)
    scaled = safe / np.where(largest > 0, largest, 1.0)  # so that squares cannot overflow
    norms = largest * np.linalg.norm(scaled, axis=-1, keepdims=True)
    over = norms > bound
    inside = np.where(over, 0.0, safe)
    lengths = np.linalg.norm(scaled, axis=-1, keepdims=True)
    return np.where(over, scaled * (bound / np.where(lengths > 0, lengths, 1.0)), inside)


def prox_squared(v: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
    """Return prox of (1/2)(x.w - y)^2 at ``v``.

    Examples
    --------
    >>> prox_squared(np.zeros(1), np.ones(1), 2.0, step=1.0).tolist()
    [1.0]
    """
    return v - x * (step * (x @ v - y) / (1.0 + step * (x @ x)))


def prox_squared_batch(v: np.ndarray, X: np.ndarray, y: np.ndarray, step: float) -> np.ndarray:
    """Return prox of (1/2m)|Xw - y|^2 at ``v``: solve (I + step X'X/m) w = v + step X'y/m.

    Examples
    --------
    >>> prox_squared_batch(np.zeros(1), np.ones((2, 1)), np.array([2.0, 2.0]), step=1.0).tolist()
    [1.0]
    """
    m = len(y)
    return np.linalg.solve(np.eye(len(v)) + (step / m) * (X.T @ X), v + (step / m) * (X.T @ y))


def prox_logistic(v: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
    """Return prox of ln(1 + exp(-y x.w)) at ``v``.

    The margin solves a scalar equation with a strictly increasing left side (safeguarded Newton).

    Examples
    --------
    >>> w = prox_logistic(np.zeros(1), np.ones(1), 1.0, step=1.0)
    >>> bool(abs(w[0] - 1 / (1 + np.exp(w[0]))) < 1e-12)  # w = v - step * gradient at w
    True
    """
    m = logistic_margin(y * float(x @ v), step * float(x @ x))
    return v + (step * y / (1.0 + math.exp(min(m, 700.0)))) * x


@njit(cache=True)
def logistic_margin(start, weight):
    """Solve m - start - weight * sigmoid(-m) = 0 for m; the root lies in [start, start + weight]."""
    low, high = start, start + weight
    m = start + 0.5 * weight
    for _ in range(100):
        s = 1.0 / (1.0 + math.exp(min(m, 700.0)))
        residual = m - start - weight * s
        if residual > 0:
            high = m
        else:
            low = m
        step = residual / (1.0 + weight * s * (1.0 - s))
        new = m - step
        if not (low < new < high):
            new = 0.5 * (low + high)
        if abs(new - m) <= 1e-15 * (1.0 + abs(m)):
            return new
        m = new
    return m
