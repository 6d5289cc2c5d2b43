r"""Gaussian mechanism for single coordinates of the gradient of one holder's records (DP-CD).

.. math:: G_j(w) = \frac1n \sum_i \mathrm{clip}\big(\partial_j f(w; d_i), \pm C_j\big), \qquad
          C_j = C \sqrt{M_j / \mathrm{tr} M}

Releases are stated in units of a coordinate's clip over n, in which every coordinate has the same
sensitivity, 1 (a record added or removed) or 2 (replaced); so one release stands for all coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sottovoce.accounting.release import MOVES, PRELIMINARY, Release
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Announced, Mechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise, grid_of, perturb_steps
from sottovoce.objectives.glm import GLM

_DRAWN_AHEAD = 1024  # steps whose coordinates and simulated noise are drawn at once


def coordinate_clips(M: np.ndarray, C: float) -> np.ndarray:
    """Return C_j = C sqrt(M_j / tr M), so that the squares add up to C^2."""
    return C * np.sqrt(M / M.sum()) if math.isfinite(C) else np.full(len(M), math.inf)


class HolderMechanism(Mechanism):
    """A mechanism of one holder of all records, with one sensitivity and one noise scale."""

    def __init__(
        self, agents: Sequence[int], random: RunRandomness, adjacency: str, releases: Announced | None
    ) -> None:
        super().__init__(agents, random, adjacency, releases)
        (self.number,) = self.numbers

    def announce(
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
        """Check the draws of some steps against the plan and record them."""
        if self.announced is not None:
            for place in (stream, stream + count - 1):
                self.announced.check(
                    [0],
                    step,
                    place,
                    sensitivity=sensitivity,
                    noise_std=noise_std,
                    mechanism=mechanism,
                    steps=steps,
                )
        release = Release(
            0,
            step,
            sensitivity,
            noise_std,
            self.adjacency,
            mechanism=mechanism,
            steps=steps,
            count=count,
            stream=stream,
        )
        self.record([release])


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


class CoordinateMechanism(HolderMechanism):
    """Coordinates of the mean gradient, clipped per record, with Gaussian noise.

    Parameters
    ----------
    objective, data : the model, and the records of the one holder.
    agents, random : the hosted agent (one), and noise and public choices.
    clip_norm : C, dealt out over the coordinates.
    noise_multiplier : z, noise over the clip of the coordinate in turn.
    adjacency, records : what neighboring data sets differ in, and the public n.
    smoothness : public M_j; None releases them first, from public ``bounds`` on the features.
    bounds, smoothness_mu : B_j, and the GDP loss of that preliminary release.
    releases : what the plan announced; None leaves the comparison out.

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
        releases: Announced | None = None,
    ) -> None:
        super().__init__(agents, random, adjacency, releases)
        self.objective, self.records = objective, records
        self.clip_norm, self.multiplier = float(clip_norm), float(noise_multiplier)
        self.noisy, self.moves = self.multiplier > 0, MOVES[adjacency]
        self.smoothness, self.bounds, self.smoothness_mu = smoothness, bounds, smoothness_mu
        self._X, self._y = data.X, data.y
        # one row per coordinate, so that a step reads one stretch of memory
        signs = data.y if objective.kind == 0 else 1.0
        self._columns: np.ndarray = np.multiply(data.X.T, signs, order="C")
        slack = 0.0
        if self.noisy:
            # two neighboring sums are both rounded: 2 slack beside the one or two clips that a record moves
            slack = 2 * random.noise.slack(1, self.multiplier) / self.moves
            if slack >= 1:
                raise InvalidInput(
                    f"the rounding slack is {slack:.3g} of the clip of a coordinate; less noise is needed."
                )
        self._inner = 1 - slack
        self._grid = grid_of(random.noise, self.multiplier)
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
        self.announce(0, PRELIMINARY, sensitivity=sensitivity, noise_std=std)
        if std > 0:
            share = share * max(1 - 2 * self.random.noise.slack(p, std) / sensitivity, 0.0)
            share = self.random.noise.perturb(
                share[None], agents=[self.number], step=0, std=std, stream=PRELIMINARY
            )[0]
        floor = max(std, 1e-12)  # without noise a feature that is zero everywhere would divide by zero
        smoothness: np.ndarray = self.objective.curvature * bounds**2 * np.clip(share, floor, 1.0)
        return smoothness

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

        self.announce(step, sensitivity=self.moves, noise_std=self.multiplier)
        bound, column = float(coordinate_clips(M, self.clip_norm)[j]), self._columns[j]
        model = self.objective
        total = coordinate_sum(
            model.kind, model.width, margins[0].copy(), 0.0, column, column, bound * self._inner
        )
        value = total * (1.0 / self.records)
        if not self.noisy:
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

        Each step releases one coordinate as `coordinate` does and moves it by ``gamma``.
        """
        from sottovoce.objectives.kernels import descend_coordinates

        self.announce(step, sensitivity=self.moves, noise_std=self.multiplier, steps=count)
        model, r = self.objective, self.objective.regularizer
        clips = coordinate_clips(M, self.clip_norm)
        w, sums, u = theta[0].copy(), total[0].copy(), margins[0].copy()
        noise = self._noise(step, count) if self.noisy else np.zeros(count)
        descend_coordinates(
            model.kind, model.width, self._columns, u, w, sums, self.chosen(step, count), noise,
            self.noisy, self._grid, clips / self.records, gamma, clips * self._inner, 1.0 / self.records,
            r.l1, r.l2, r.box or math.inf,
        )  # fmt: skip
        return w[None], sums[None], u[None]

    def _noise(self, step: int, count: int) -> np.ndarray:
        """Return the noise of some steps, in units of C_j / n."""
        if type(self.random.noise) is SimulatedNoise:
            return self._simulated(step, count)
        return self._drawn_noise(step, count)  # never stored: protective noise must not be drawn twice

    def _drawn_noise(self, step: int, count: int) -> np.ndarray:
        zeros = np.zeros((count, 1))
        noise = self.random.noise
        return perturb_steps(noise, zeros, agent=self.number, step=step, std=self.multiplier)[:, 0]

    def _drawn_choices(self, step: int, count: int) -> np.ndarray:
        key = [self.random.start, self.number, 0xCD, step]
        return np.random.default_rng(key).integers(self.width, size=count)
