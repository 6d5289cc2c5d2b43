"""Second moments of features, and gradients in features that a factor of these moments decorrelates.

A symmetric matrix travels as the lower half of its rows, entries off the diagonal times sqrt(2): the length
of that row is the Frobenius norm, for x x^T the squared length of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from sottovoce.data.base import Shards, is_sparse
from sottovoce.errors import DataError
from sottovoce.objectives.base import LinearQuery
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.prox import Regularizer
from sottovoce.objectives.softmax import Softmax


def packed_size(features: int) -> int:
    """Return how many numbers a symmetric matrix of so many rows is packed into."""
    return features * (features + 1) // 2


class MomentsAndGradients(LinearQuery):
    """Sums of clipped second moments, or of clipped gradients, in features that a factor decorrelates.

    Rows that hold a factor alone, as `refined` packs it, ask for moments of records ``L^-1 x``; rows of
    parameters and a factor ask for gradients with respect to ``L^T w`` at these records.

    Guarantees
    ----------
    One record moves either sum by at most the clip norm (add or remove), up to rounding; a record that is not
    finite contributes nothing.
    """

    compiled_descent = None

    def __init__(self, objective: GLM | Softmax, data: Shards, scale: float) -> None:
        if is_sparse(data.X):
            raise DataError("second moments are of dense features; take consensus-sgd for sparse ones.")
        self.objective, self.scale = objective, scale
        self.parameters = objective.query(data).dim
        super().__init__(data, max(self.parameters, packed_size(data.dim)), Regularizer())
        self._decorrelated: tuple[bytes, Shards] = (b"", data)

    def sums(
        self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return, per place, the sum over its batch, each record clipped to ``clip_norm``."""
        sums, size = np.zeros((len(places), self.dim)), packed_size(self.data.dim)
        if not len(places):
            return sums
        packed = theta[0, -size:]
        assert (theta[:, -size:] == packed).all(), "after consensus all agents hold one factor"
        lower = unpacked(packed, self.data.dim)
        records = self._records(packed, lower)
        if theta.shape[1] == size:
            for total, batch, place in zip(sums, batches, places, strict=True):
                total[:size] = self._moments(records, batch, place, clip_norm)
            return sums
        weights = theta[:, : self.parameters].reshape(len(theta), -1, self.data.dim) @ lower
        query = self.objective.query(records)
        turned = np.ascontiguousarray(weights.reshape(len(theta), -1))
        sums[:, : self.parameters] = query.sums(turned, batches, places, clip_norm)
        return sums

    def _moments(self, records: Shards, batch: np.ndarray, place: int, clip_norm: float) -> np.ndarray:
        """Return the packed sum of x x^T times the scale, each clipped; one square root on each side."""
        from sottovoce.objectives.clipping import clip_rows

        rows = records.offsets[place] + batch
        X = records.X[rows]
        if (weights := self.objective.record_weights(records.y[rows])) is not None:
            X = X * np.sqrt(weights)[:, None]  # what the curvature of the weighted loss is bounded by
        clipped = clip_rows(X, math.sqrt(clip_norm / self.scale))
        matrix = (clipped.T @ clipped) * self.scale
        lower, columns, scales = _lower(self.data.dim)
        return np.asarray(matrix[lower, columns] * scales)

    def _records(self, packed: np.ndarray, lower: np.ndarray) -> Shards:
        """Return the records in decorrelated features; the factor is one for many steps."""
        from scipy.linalg import solve_triangular

        key = packed.tobytes()
        if self._decorrelated[0] != key:
            # what is not finite stays so, record by record, and counts zero in the sums
            turned = solve_triangular(lower, self.data.X.T, lower=True, check_finite=False)
            Z = np.ascontiguousarray(turned.T)
            self._decorrelated = (key, Shards(Z, self.data.y, self.data.offsets))
        return self._decorrelated[1]


@cache
def _lower(features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the lower half, and the weight of each entry."""
    rows, columns = np.tril_indices(features)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


def unpacked(packed: np.ndarray, features: int) -> np.ndarray:
    """Return the lower triangle of a packed factor as a matrix."""
    rows, columns, _ = _lower(features)
    matrix = np.zeros((features, features))
    matrix[rows, columns] = packed
    return matrix


def first_factor(features: int, scale: float) -> np.ndarray:
    """Return the packed factor of features that are all of one size."""
    return np.where(_lower(features)[2] == 1.0, scale, 0.0)


def refined(
    factor: np.ndarray, moments: np.ndarray, features: int, shift: float, beyond: float, ridge: np.ndarray
) -> np.ndarray:
    """Return the packed factor of second moments, from noisy ones of records ``L^-1 x`` for a factor L.

    These are made positive by the least shift, and a margin. The shift is counted in units of the noise in
    the moments; ``beyond`` such units are the margin, since what is barely positive is noise and would be a
    direction of its own. ``ridge`` is the l2 term over the curvature, which is part of what the steps are
    fitted to.
    """
    from sottovoce.objectives.kernels import cholesky, product

    rows, columns, weights = _lower(features)
    matrix = unpacked(moments / weights, features)
    added, lower, unit = 0.0, np.empty_like(matrix), np.eye(features)
    while not cholesky(matrix + added * unit, lower):
        added = max(shift / 4, 1.5 * added)
    positive = cholesky(matrix + (added + beyond * shift) * unit, lower)
    assert positive, "a larger shift of a positive matrix"
    lower = product(unpacked(factor, features), lower)
    if np.any(ridge):
        cholesky(product(lower, np.ascontiguousarray(lower.T)) + np.diag(ridge), lower)
    return lower[rows, columns]


def newton_direction(
    packed: np.ndarray, gradient: np.ndarray, theta: np.ndarray, features: int, l2: np.ndarray | float
) -> np.ndarray:
    """Return L^-T (gradient + L^-1 (l2 theta)), class by class, in a fixed order of operations."""
    from sottovoce.objectives.kernels import solve_lower, solve_upper

    lower = unpacked(packed, features)
    pulls = np.reshape(gradient, (-1, features)).copy()
    if np.any(l2):
        for pull, w in zip(pulls, np.reshape(theta, (-1, features)), strict=True):
            pull += solve_lower(lower, l2 * w)
    return np.concatenate([solve_upper(lower, pull) for pull in pulls])
