"""Noisy maximum of the coordinates of a gradient, and its value with Laplace noise (DP-GCD)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from sottovoce.accounting.release import MOVES, Release
from sottovoce.data.base import Shards, is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.mechanisms.coordinate import coordinate_clips
from sottovoce.noise.discrete import LAPLACE_STEPS, discrete_laplace
from sottovoce.objectives.glm import GLM


@dataclass(eq=False, kw_only=True)
class NoisyMaxMechanism(Mechanism):
    """The steepest coordinate by a noisy maximum, and its value with fresh Laplace noise.

    Guarantees
    ----------
    One record moves every coordinate by at most its sensitivity, 1 or 2 units of C_j / n, and all scores by
    the same. Protective noise is a discrete Laplace number of steps of a grid of scale / 2^20; two
    neighboring values may be rounded one step further apart, which is paid for by clipping lower.
    """

    objective: GLM
    data: Shards  # the records of the one holder, dense or sparse
    clip_norm: float  # C, dealt out over the coordinates
    noise_ratio: float  # r, Laplace scale over the sensitivity of a coordinate
    records: int  # the public n
    smoothness: float | Sequence[float]  # public M_j, or one number for all

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dim = int(self.data.X.shape[1])
        self.M = np.broadcast_to(np.asarray(self.smoothness, dtype=float), (self.dim,)).copy()
        self.moves = MOVES[self.adjacency]
        self.scale = float(self.noise_ratio) * self.moves  # in units of C_j / n
        self.noisy = self.scale > 0
        clips = coordinate_clips(self.M, self.clip_norm)
        self._scales = self.scale * clips / self.records if self.noisy else np.zeros(self.dim)
        self._weights = 1 / np.sqrt(self.M)
        shrink = 1 - self.noise_ratio / LAPLACE_STEPS if self.random.protective else 1.0
        if shrink <= 0:
            raise InvalidInput(
                f"noise_ratio must be below {LAPLACE_STEPS}, got {self.noise_ratio:g}; add less."
            )
        self._clips = clips * shrink
        self._sparse = sp.csc_array(self.data.X) if is_sparse(self.data.X) else None
        self._dense = None if is_sparse(self.data.X) else np.ascontiguousarray(self.data.X.T)

    def choose(self, theta: np.ndarray, step: int) -> tuple[int, float]:
        """Return the coordinate of the largest |G_j + noise| / sqrt(M_j), and G_j with fresh noise."""
        for stream, kind in enumerate(("noisy-max", "laplace")):
            scale = (self.moves, self.scale, self.adjacency)
            self.check_and_record(Release(0, step, *scale, mechanism=kind, stream=stream))
        G = self.gradient(theta)
        scores = self._noisy(G, self._scales, step, 0)
        np.abs(scores, out=scores)
        scores *= self._weights
        j = int(scores.argmax())
        return j, float(self._noisy(G[j : j + 1], self._scales[j : j + 1], step, 1)[0])

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return the clipped mean gradient without noise: it does not leave."""
        from sottovoce.objectives.kernels import coordinate_sums_dense, coordinate_sums_sparse, record_slopes

        model = self.objective
        with np.errstate(all="ignore"):  # a record that overflows is clipped like others
            predicted = np.asarray(self.data.X @ theta[0])
        slopes = record_slopes(model.kind, model.width, predicted, self.data.y)
        if self._sparse is not None:
            columns = self._sparse
            sums = coordinate_sums_sparse(columns.indptr, columns.indices, columns.data, slopes, self._clips)
        else:
            assert self._dense is not None
            sums = coordinate_sums_dense(self._dense, slopes, self._clips)
        return np.asarray(sums / self.records)

    def _noisy(self, values: np.ndarray, scale: np.ndarray, step: int, stream: int) -> np.ndarray:
        """Return values with Laplace noise: simulated, or protective as whole steps of a grid."""
        if not self.noisy:
            return values.copy()
        if not self.random.protective:
            drawn = self.random.draws(0x6CD, self.noise_ids[0], step, stream).laplace(size=len(values))
            drawn *= scale
            drawn += values
            return drawn
        grid = scale / LAPLACE_STEPS
        return (np.rint(values / grid) + discrete_laplace(len(values))) * grid
