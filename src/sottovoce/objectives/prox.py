"""Proximal maps: prox_h(v) = argmin_w h(w) + |w - v|^2 / (2 step)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sottovoce._validate import non_negative, positive
from sottovoce.errors import InvalidInput


@dataclass(frozen=True)
class Regularizer:
    """r(w) = l1 |w|_1 + (l2 / 2) |w|^2, optionally inside a box [-b, b]^p or a ball of radius R.

    With ``intercepts``, a row is so many lists of coefficients, and the last of each is left alone.

    Examples
    --------
    >>> Regularizer(l1=1.0).prox(np.array([3.0, -0.5]), step=1.0).tolist()
    [2.0, -0.0]
    >>> Regularizer(ball=1.0).prox(np.array([3.0, 4.0]), step=1.0).tolist()
    [0.6000000000000001, 0.8]
    """

    l1: float = 0.0
    l2: float = 0.0
    box: float | None = None
    ball: float | None = None
    intercepts: int = 0

    def __post_init__(self) -> None:
        non_negative(self.l1, "l1")
        non_negative(self.l2, "l2")
        if self.box is not None:
            positive(self.box, "box")
        if self.ball is not None:
            positive(self.ball, "ball")
        if self.box is not None and self.ball is not None:
            raise InvalidInput("A regularizer takes a box or a ball, got both; drop one of them.")

    @property
    def separable(self) -> bool:
        """Whether the map acts on each coordinate alone (everything but the ball)."""
        return self.ball is None

    def penalized(self, w: np.ndarray) -> np.ndarray:
        """Return a view of the numbers that are no intercepts, on the last axis."""
        return w.reshape(*w.shape[:-1], self.intercepts, -1)[..., :-1] if self.intercepts else w

    def decay(self, dim: int) -> np.ndarray:
        """Return the weight of the l2 term of each of so many numbers."""
        weights = np.zeros(dim)
        self.penalized(weights)[...] = self.l2
        return weights

    def value(self, w: np.ndarray) -> float:
        """Return l1 |w|_1 + (l2/2) |w|^2 (constraints are handled by `prox`)."""
        w = self.penalized(np.asarray(w)).ravel()
        return float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * (w @ w))

    def prox(self, v: np.ndarray, step: float | np.ndarray) -> np.ndarray:
        """Return the proximal map at ``v`` (exact: the box acts per coordinate, the ball rescales)."""
        if self.intercepts:
            moved = np.array(v)
            inner = self.penalized(moved)
            inner[...] = replace(self, intercepts=0).prox(inner, step)
            return moved
        w = np.sign(v) * np.maximum(np.abs(v) - step * self.l1, 0.0) / (1.0 + step * self.l2)
        if self.box is not None:
            w = np.clip(w, -self.box, self.box)
        if self.ball is not None:
            norm = np.linalg.norm(w, axis=-1, keepdims=True)
            w = np.where(norm > self.ball, w * (self.ball / np.maximum(norm, self.ball)), w)
        return w
