r"""The gate before one holder's records, asked coordinate by coordinate.

.. math:: G_j(w) = \frac1n \sum_i \mathrm{clip}\big(\partial_j f(w; d_i), \pm C_j\big), \qquad
          C_j = C \sqrt{M_j / \mathrm{tr} M}

`CoordinateMechanism` answers with one coordinate and Gaussian noise (DP-CD), `NoisyMaxMechanism` chooses the
steepest by a noisy maximum and answers with it and Laplace noise (DP-GCD). All is released in units of a
coordinate's clip over n, in which every coordinate has the same sensitivity, 1 (a record added or removed)
or 2 (replaced); that is why one stretch of releases stands for all coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sottovoce.accounting.release import MOVES, PRELIMINARY, Release
from sottovoce.data.base import Shards, is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.gradient import AnnouncedReleases, RecordsReleases
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import LAPLACE_STEPS, SimulatedNoise, discrete_laplace, grid_of, perturb_steps
from sottovoce.objectives.glm import GLM

__all__ = ["CoordinateMechanism", "Gate", "NoisyMaxMechanism", "coordinate_clips"]

_DRAWN_AHEAD = 1024  # steps whose coordinates and simulated noise are drawn at once


def coordinate_clips(M: np.ndarray, C: float) -> np.ndarray:
    """Return C_j = C sqrt(M_j / tr M), so that the squares add up to C^2."""
    return C * np.sqrt(M / M.sum()) if math.isfinite(C) else np.full(len(M), math.inf)


class Gate(RecordsReleases):
    """What the sources of one holder share: every draw is compared with the plan, and noted for a ledger."""

    def __init__(self, releases: Sequence[Sequence[Release]] | None, adjacency: str) -> None:
        self.planned = None if releases is None else AnnouncedReleases(releases)
        self.adjacency = adjacency

    def announced(
        self,
        step: int,
        stream: int = 0,
        *,
        sensitivity: float,
        noise_std: float,
        mechanism: str = "gaussian",
        steps: int = 1,
        count: int = 1,
    ) -> None:
        """Raise `ReleaseMismatch` unless these draws are the ones the plan listed; note them if metered."""
        if self.planned is not None:
            for place in (stream, stream + count - 1):
                self.planned.check(
                    [0], step, place, sensitivity=sensitivity, noise_std=noise_std, mechanism=mechanism,
                    steps=steps,
                )  # fmt: skip
        if self._drawn is not None:
            self._drawn.append(
                Release(
                    0, step, sensitivity, noise_std, self.adjacency, mechanism=mechanism, steps=steps,
                    count=count, stream=stream,
                )
            )  # fmt: skip


def _one_holder(agents: Sequence[int], random: RunRandomness) -> int:
    """Return the number that keys the holder's noise."""
    (number,) = random.keys_for([int(a) for a in agents])
    return int(number)


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


class CoordinateMechanism(Gate):
    """Coordinates of the mean gradient, clipped per record, with Gaussian noise.

    Parameters
    ----------
    objective, data : the model, and the records of the one holder.
    agents, random : the hosted agent (one), and noise and public choices.
    clip : C, dealt out over the coordinates.
    noise_multiplier : z, noise over the clip of the coordinate asked for.
    adjacency, records : who may differ, and the public n.
    smoothness : public M_j; None releases them first, from public ``bounds`` on the features.
    bounds, smoothness_mu : B_j, and the GDP loss of that preliminary release.
    releases : what the plan announced; None leaves out the comparison.

    Guarantees
    ----------
    One record moves a coordinate by at most 1 or 2 (`MOVES`) units of C_j / n; rounding of a protective
    source is paid for by clipping a little lower. Derivatives that are not a number count as zero. What is
    drawn is what the plan announced, or `ReleaseMismatch` is raised and nothing leaves.
    """

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        clip_norm: float,
        noise_multiplier: float,
        adjacency: str,
        records: int,
        smoothness: Sequence[float] | None = None,
        bounds: Sequence[float] | None = None,
        smoothness_mu: float = 0.0,
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        super().__init__(releases, adjacency)
        self.objective, self.random, self.records = objective, random, records
        self.number = _one_holder(agents, random)
        self.clip_norm, self.std = float(clip_norm), float(noise_multiplier)
        self.sensitivity = MOVES[adjacency]
        self.smoothness, self.bounds, self.smoothness_mu = smoothness, bounds, smoothness_mu
        self._X, self._y = data.X, data.y
        # one row per coordinate, so that a step reads one stretch of memory
        signs = data.y if objective.kind == 0 else 1.0
        self._columns: np.ndarray = np.multiply(data.X.T, signs, order="C")
        slack = 0.0
        if self.std:
            # two neighboring sums are both rounded: 2 slack beside the one or two clips that a record moves
            slack = 2 * random.noise.slack(1, self.std) / self.sensitivity
            if slack >= 1:
                raise InvalidInput(
                    f"the rounding slack is {slack:.3g} of the clip of a coordinate; less noise is needed."
                )
        self._inner = 1 - slack
        self._grid = grid_of(random.noise, self.std)
        self._choices, self._simulated = _Ahead(self._drawn_choices), _Ahead(self._drawn_noise)

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return int(self._columns.shape[0])

    def released_smoothness(self) -> np.ndarray:
        """Return M_j as given, or curvature * B_j^2 * (noisy mean of min(x_ij^2 / B_j^2, 1)), floored.

        Guarantees
        ----------
        smoothness_mu-GDP for one record, added, removed or replaced: every entry of the mean lies in [0, 1]
        and moves by at most 1/n, so the vector moves by at most sqrt(p)/n. The floor is the noise.
        """
        if self.smoothness is not None:
            return np.array(self.smoothness, dtype=float)
        bounds, n, p = np.array(self.bounds, dtype=float), self.records, self.width
        sensitivity = math.sqrt(p) / n
        std = sensitivity / self.smoothness_mu
        ratio = np.clip(np.where(np.isfinite(self._X), self._X, 0.0), -bounds, bounds) / bounds
        share = (ratio * ratio).sum(axis=0) / n
        self.announced(0, PRELIMINARY, sensitivity=sensitivity, noise_std=std)
        if std > 0:
            share = share * max(1 - 2 * self.random.noise.slack(p, std) / sensitivity, 0.0)
            share = self.random.noise.perturb(
                share[None], agents=[self.number], step=0, std=std, stream=PRELIMINARY
            )[0]
        floor = max(std, 1e-12)  # without noise a feature that is zero everywhere would divide by zero
        found: np.ndarray = self.objective.curvature * bounds**2 * np.clip(share, floor, 1.0)
        return found

    def chosen(self, step: int, count: int = 1) -> np.ndarray:
        """Return the coordinates of some steps: uniform, public, a function of the run's start and step."""
        return self._choices(step, count)

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return what the holder remembers of a model, (1, n): y x.w, or the residuals x.w - y."""
        with np.errstate(all="ignore"):  # a record that overflows is clipped like others
            margins = theta @ self._columns
            return margins if self.objective.kind == 0 else margins - self._y

    def moved(self, margins: np.ndarray, j: int, by: float) -> np.ndarray:
        """Return the margins after coordinate ``j`` has moved."""
        from sottovoce.objectives.kernels import moved_margins

        after = margins.copy()
        moved_margins(after[0], by, self._columns[j])
        return after

    def coordinate(self, M: np.ndarray, margins: np.ndarray, j: int, step: int) -> float:
        """Return coordinate ``j`` of the mean gradient with its noise: exactly what is released."""
        from sottovoce.objectives.kernels import coordinate_sum, on_grid

        self.announced(step, sensitivity=self.sensitivity, noise_std=self.std)
        bound, column = float(coordinate_clips(M, self.clip_norm)[j]), self._columns[j]
        model = self.objective
        total = coordinate_sum(
            model.kind, model.width, margins[0].copy(), 0.0, column, column, bound * self._inner
        )
        value = total * (1.0 / self.records)
        if not self.std:
            return float(value)
        noise, unit = self._noise(step, 1)[0], bound / self.records
        return float(on_grid(value / unit, noise, self._grid) * unit)

    def descend(
        self,
        M: np.ndarray,
        theta: np.ndarray,
        total: np.ndarray,
        margins: np.ndarray,
        step: int,
        count: int,
        gamma: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return theta, the sum of iterates and margins after ``count`` proximal steps, compiled.

        Each step asks one coordinate as `coordinate` does and moves it by ``gamma``.
        """
        from sottovoce.objectives.kernels import descend_coordinates

        self.announced(step, sensitivity=self.sensitivity, noise_std=self.std, steps=count)
        model, r = self.objective, self.objective.regularizer
        clips = coordinate_clips(M, self.clip_norm)
        w, sums, u = theta[0].copy(), total[0].copy(), margins[0].copy()
        noise = self._noise(step, count) if self.std else np.zeros(count)
        descend_coordinates(
            model.kind, model.width, self._columns, u, w, sums, self.chosen(step, count), noise,
            self.std > 0, self._grid, clips / self.records, gamma, clips * self._inner, 1.0 / self.records,
            r.l1, r.l2, r.box or math.inf,
        )  # fmt: skip
        return w[None], sums[None], u[None]

    def _noise(self, step: int, count: int) -> np.ndarray:
        """Return the noise of some steps, in units of C_j / n."""
        if type(self.random.noise) is SimulatedNoise:
            return self._simulated(step, count)
        return self._drawn_noise(step, count)  # never kept: asked twice, it must not be the same

    def _drawn_noise(self, step: int, count: int) -> np.ndarray:
        zeros = np.zeros((count, 1))
        noise = self.random.noise
        return perturb_steps(noise, zeros, agent=self.number, step=step, std=self.std)[:, 0]

    def _drawn_choices(self, step: int, count: int) -> np.ndarray:
        key = [self.random.start, self.number, 0xCD, step]
        return np.random.default_rng(key).integers(self.width, size=count)


class NoisyMaxMechanism(Gate):
    """The steepest coordinate by a noisy maximum, and its value with fresh Laplace noise.

    Parameters
    ----------
    objective, data : the model, and the records of the one holder, dense or sparse.
    agents, random : the hosted agent (one), and the randomness.
    clip : C, dealt out over the coordinates.
    noise_ratio : r, Laplace scale over the sensitivity of a coordinate.
    adjacency, records : who may differ, and the public n.
    smoothness : public M_j, or one number for all.
    releases : what the plan announced.

    Guarantees
    ----------
    One record moves every coordinate by at most its sensitivity, 1 or 2 units of C_j / n, and all scores by
    the same. Protective noise is a discrete Laplace number of steps of a grid of scale / 2^20; two
    neighboring values may be rounded one step further apart, which is paid for by clipping lower.
    """

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        clip_norm: float,
        noise_ratio: float,
        adjacency: str,
        records: int,
        smoothness: Any,
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        import scipy.sparse as sp

        super().__init__(releases, adjacency)
        self.objective, self.random, self.records = objective, random, records
        self.number = _one_holder(agents, random)
        self.width = int(data.X.shape[1])
        self.M = np.broadcast_to(np.asarray(smoothness, dtype=float), (self.width,)).copy()
        self.sensitivity = MOVES[adjacency]
        self.scale = float(noise_ratio) * self.sensitivity  # in units of C_j / n
        clips = coordinate_clips(self.M, clip_norm)
        self._scales = self.scale * clips / records if noise_ratio else np.zeros(self.width)
        self._weights = 1 / np.sqrt(self.M)
        shrink = 1 - noise_ratio / LAPLACE_STEPS if random.protective else 1.0
        if shrink <= 0:
            raise InvalidInput(f"noise_ratio must be below {LAPLACE_STEPS}, got {noise_ratio:g}; add less.")
        self._clips = clips * shrink
        self._X, self._y = data.X, data.y
        self._columns: Any = sp.csc_array(data.X) if is_sparse(data.X) else np.ascontiguousarray(data.X.T)

    def choose(self, theta: np.ndarray, step: int) -> tuple[int, float]:
        """Return the coordinate of the largest |G_j + noise| / sqrt(M_j), and G_j with fresh noise."""
        for stream, mechanism in ((0, "noisy-max"), (1, "laplace")):
            self.announced(
                step, stream, sensitivity=self.sensitivity, noise_std=self.scale, mechanism=mechanism
            )
        G = self.gradient(theta)
        scores = self._noisy(G, self._scales, step, 0)
        np.abs(scores, out=scores)
        scores *= self._weights
        j = int(scores.argmax())
        return j, float(self._noisy(G[j : j + 1], self._scales[j : j + 1], step, 1)[0])

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return the clipped mean gradient without noise: it does not leave."""
        from sottovoce.objectives.kernels import coordinate_sums_dense, coordinate_sums_sparse, record_slopes

        model, columns = self.objective, self._columns
        with np.errstate(all="ignore"):  # a record that overflows is clipped like others
            predicted = np.asarray(self._X @ theta[0])
        slopes = record_slopes(model.kind, model.width, predicted, self._y)
        if is_sparse(columns):
            sums = coordinate_sums_sparse(columns.indptr, columns.indices, columns.data, slopes, self._clips)
        else:
            sums = coordinate_sums_dense(columns, slopes, self._clips)
        return np.asarray(sums / self.records)

    def _noisy(self, values: np.ndarray, scale: np.ndarray, step: int, stream: int) -> np.ndarray:
        """Return values with Laplace noise: simulated, or for people whole steps of a grid."""
        if not self.scale:
            return values.copy()
        if not self.random.protective:
            drawn = self.random.draws(0x6CD, self.number, step, stream).laplace(size=len(values))
            drawn *= scale
            drawn += values
            return drawn
        grid = scale / LAPLACE_STEPS
        return (np.rint(values / grid) + discrete_laplace(len(values))) * grid
