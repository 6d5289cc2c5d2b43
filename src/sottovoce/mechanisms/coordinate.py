r"""Gaussian mechanism for single coordinates of the gradient of one holder's records (DP-CD).

.. math:: G_j(w) = \frac1n \sum_i \mathrm{clip}\big(\partial_j f(w; d_i), \pm C_j\big), \qquad
          C_j = C \sqrt{M_j / \mathrm{tr} M}

Releases are stated in units of a coordinate's clip over n, in which every coordinate has the same
sensitivity, 1 (a record added or removed) or 2 (replaced); so one release stands for all coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from sottovoce.accounting.release import MOVES, PRELIMINARY, Release
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.samplers import SimulatedNoise, grid_of, perturb_steps
from sottovoce.objectives.glm import GLM, REGRESSIONS

_DRAWN_AHEAD = 1024  # steps whose coordinates and simulated noise are drawn at once


def coordinate_clips(M: np.ndarray, C: float) -> np.ndarray:
    """Return C_j = C sqrt(M_j / tr M), so that the squares add up to C^2."""
    return C * np.sqrt(M / M.sum()) if math.isfinite(C) else np.full(len(M), math.inf)


class _Ahead:
    """Numbers of steps, drawn in stretches that begin at fixed steps and kept while they are needed."""

    def __init__(self, draw: Callable[[int, int], np.ndarray]) -> None:
        self._draw = draw
        self._first, self._numbers = 0, np.zeros(0)

    def __call__(self, step: int, count: int) -> np.ndarray:
        """Return the numbers of ``count`` steps from ``step`` on."""
        if not self._first <= step <= step + count <= self._first + len(self._numbers):
            first, last = step // _DRAWN_AHEAD, (step + count - 1) // _DRAWN_AHEAD
            parts = [self._draw(part * _DRAWN_AHEAD, _DRAWN_AHEAD) for part in range(first, last + 1)]
            self._first, self._numbers = first * _DRAWN_AHEAD, np.concatenate(parts)
        return self._numbers[step - self._first : step - self._first + count]


@dataclass(eq=False, kw_only=True)
class CoordinateMechanism(Mechanism):
    """Coordinates of the mean gradient, clipped per record, with Gaussian noise.

    Guarantees
    ----------
    One record moves a coordinate by at most 1 or 2 (`MOVES`) units of C_j / n; rounding of a protective
    source is paid for by clipping a little lower. Derivatives that are not a number count as zero.
    """

    objective: GLM
    data: Shards  # the records of the one holder
    clip_norm: float  # C, dealt out over the coordinates
    noise_multiplier: float  # z, noise over the clip of the coordinate in turn
    records: int  # the public n
    smoothness: Sequence[float] | None = None  # public M_j; None: released first, from ``bounds``
    bounds: Sequence[float] | None = None  # public B_j of the features
    smoothness_mu: float = 0.0  # the GDP loss of that preliminary release

    def __post_init__(self) -> None:
        super().__post_init__()
        noise, z = self.random.noise, self.noise_multiplier
        self.noisy, self.moves = z > 0, MOVES[self.adjacency]
        # one row per coordinate, so that a step reads one stretch of memory
        signs = 1.0 if self.objective.loss in REGRESSIONS else self.data.y
        self._columns: np.ndarray = np.multiply(self.data.X.T, signs, order="C")
        # two neighboring sums are both rounded: 2 slack beside the one or two clips that a record moves
        slack = 2 * noise.slack(1, z) / self.moves if self.noisy else 0.0
        if slack >= 1:
            share = f"{slack:.3g} of the clip of a coordinate"
            raise InvalidInput(f"the rounding slack is {share}; less noise is needed.")
        self._inner, self._grid = 1 - slack, grid_of(noise, z)
        self._choices, self._simulated = _Ahead(self._drawn_choices), _Ahead(self._drawn_noise)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self._columns.shape[0])

    def noisy_smoothness(self) -> np.ndarray:
        """Return M_j as given, or curvature * B_j^2 * (noisy mean of min(x_ij^2 / B_j^2, 1)), floored.

        Guarantees
        ----------
        smoothness_mu-GDP for one record, added, removed or replaced: every entry of the mean lies in [0, 1]
        and moves by at most 1/n, so the vector moves by at most sqrt(p)/n. The floor is the noise.
        """
        if self.smoothness is not None:
            return np.array(self.smoothness, dtype=float)
        X, bounds, n, p = self.data.X, np.array(self.bounds, dtype=float), self.records, self.dim
        sensitivity = math.sqrt(p) / n
        std = sensitivity / self.smoothness_mu
        ratio = np.clip(np.where(np.isfinite(X), X, 0.0), -bounds, bounds) / bounds
        share = (ratio * ratio).sum(axis=0) / n
        self.check_and_record(Release(0, 0, sensitivity, std, self.adjacency, stream=PRELIMINARY))
        if std > 0:
            noise, rows = self.random.noise, self.noise_ids
            share = share * max(1 - 2 * noise.slack(p, std) / sensitivity, 0.0)
            share = noise.perturb(share[None], agents=rows, step=0, std=std, stream=PRELIMINARY)[0]
        floor = max(std, 1e-12)  # without noise a feature that is zero everywhere would divide by zero
        return np.asarray(self.objective.curvature * bounds**2 * np.clip(share, floor, 1.0))

    def chosen(self, step: int, count: int) -> np.ndarray:
        """Return the coordinates of some steps: uniform, public, a function of the run's start and step."""
        return self._choices(step, count)

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return what the holder remembers of a model, (1, n): what slopes are computed from."""
        with np.errstate(all="ignore"):  # a record that overflows is clipped like others
            margins = theta @ self._columns
            if self.objective.loss == "logistic":
                return margins
            return margins - (1.0 if self.objective.loss == "hinge" else self.data.y)

    def descend(
        self, M: Array, theta: Array, total: Array, margins: Array, step: int, count: int, gamma: Array
    ) -> tuple[Array, Array, Array]:
        """Return theta, the sum of iterates and margins after ``count`` proximal steps, compiled.

        Each step releases the coordinate `chosen` of the mean gradient with its noise, and moves it by its
        ``gamma`` times what was released.
        """
        from sottovoce.objectives.kernels import descend_coordinates

        release = Release(0, step, self.moves, self.noise_multiplier, self.adjacency, steps=count)
        self.check_and_record(release)
        model, r, n = self.objective, self.objective.regularizer, self.records
        clips = coordinate_clips(M, self.clip_norm)
        w, sums, u = theta[0].copy(), total[0].copy(), margins[0].copy()
        noise = self._noise(step, count) if self.noisy else np.zeros(count)
        start = (model.kind, model.width, self._columns, u, w, sums, self.chosen(step, count))
        scale = (noise, self.noisy, self._grid, clips / n, gamma, clips * self._inner, 1.0 / n)
        descend_coordinates(*start, *scale, r.l1, r.l2, r.box or math.inf, r.intercepts)
        return w[None], sums[None], u[None]

    def _noise(self, step: int, count: int) -> np.ndarray:
        """Return the noise of some steps, in units of C_j / n."""
        if type(self.random.noise) is SimulatedNoise:
            return self._simulated(step, count)
        return self._drawn_noise(step, count)  # never stored: protective noise must not be drawn twice

    def _drawn_noise(self, step: int, count: int) -> np.ndarray:
        noise, zeros, agent = self.random.noise, np.zeros((count, 1)), self.noise_ids[0]
        return perturb_steps(noise, zeros, agent=agent, step=step, std=self.noise_multiplier)[:, 0]

    def _drawn_choices(self, step: int, count: int) -> np.ndarray:
        key = [self.random.start_seed, self.noise_ids[0], 0xCD, step]
        return np.random.default_rng(key).integers(self.dim, size=count)
