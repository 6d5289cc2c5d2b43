r"""Gaussian mechanism for gradient sums: sample, clip, sum, add noise, divide.

.. math:: \tilde G_i(\theta) = \frac{1}{L_i}\Big(\sum_{d \in B_i} \mathrm{clip}_C(\nabla \ell(\theta; d))
          + z_i C\, \xi\Big), \qquad B_i \sim \mathrm{Poisson}(q_i)

at record level; at user level the agent's mean gradient is clipped as a whole and gets noise z C. The divisor
L is the expected batch size, fixed and public: dividing by the realized size would reveal it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.accounting.release import MOVES, Release
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.base import Mechanism, inner_clip
from sottovoce.noise.grid import on_common_grid
from sottovoce.noise.samplers import grid_of, perturb_steps, rounds_values
from sottovoce.objectives.base import GradientQuery
from sottovoce.objectives.clipping import clip_rows

_DROPOUT = 0xD0  # keys the random numbers that a query draws itself
_AHEAD = 1 << 21  # records of batches that are drawn before a compiled loop begins


@dataclass(eq=False, kw_only=True)
class GradientMechanism(Mechanism):
    """Noisy gradients of the hosted agents; ``adjacency="user"`` clips an agent's mean, not every record.

    Guarantees
    ----------
    Add/remove: one record moves the clipped sum of its agent by at most C; the rounding of a protective
    source is paid for by clipping a little lower. Replace-one and user level: by at most 2C. What is drawn is
    what the plan announced, or `ReleaseMismatch` is raised and nothing leaves. With noise multiplier 0
    nothing is protected, and no noise is drawn.
    """

    query: GradientQuery  # the clipped gradient sums of the agents' records
    clip_norm: float  # C; inf for no clipping, where there is no noise
    noise_multipliers: Sequence[float]  # z of every hosted agent, noise over clip norm
    sample_rates: Sequence[float]  # the public q of every hosted agent
    divisors: Sequence[float]  # the public L of every hosted agent

    records_noiseless = False

    def __post_init__(self) -> None:
        super().__post_init__()
        query, random, C = self.query, self.random, self.clip_norm
        self.user_level = self.adjacency == "user"
        self.decay = np.asarray(0.0 if self.user_level else query.decay, query.dtype)
        self.batches = PoissonSampler(query.sizes, self.sample_rates, random.batches, self.noise_ids)
        self._divisors = np.asarray(self.divisors, query.dtype)[:, None]
        multipliers = np.asarray(self.noise_multipliers, float)
        noisy = bool(multipliers.any())
        if noisy and not math.isfinite(C):
            raise InvalidInput("noise needs a finite clip norm to be measured against, got inf.")
        std = multipliers * C if noisy else np.zeros(len(self.agents))
        # a row leaves: a clipped sum and its noise over the public divisor, or (user) a clipped mean
        public = np.ones(len(self.agents)) if self.user_level else np.asarray(self.divisors, float)
        self.set_scale(MOVES[self.adjacency] * C / public, std / public, drawn=std)
        # both of two neighboring releases are rounded: 2 slack beside C (record) or beside 2C (user)
        slack = random.noise.slack(query.dim, float(multipliers.max()) * C) if noisy else 0.0
        self.inner_clip = inner_clip(C, slack if self.user_level else 2 * slack)
        self._check_sampling()

    def _check_sampling(self) -> None:
        """Compare sampling rates and adjacency with what was announced."""
        for agent, rate, releases in zip(
            self.agents, self.batches.rates, self.announced_releases or (), strict=False
        ):
            drawn = 1.0 if self.user_level else rate  # batches hide no agent: nothing is amplified by them
            if any((r.adjacency, r.sample_rate) != (self.adjacency, drawn) for r in releases):
                raise ReleaseMismatch(
                    f"Agent {agent} would draw batches at rate {drawn:g} under {self.adjacency}, the plan "
                    "announced another rate or adjacency; nothing was released."
                )

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        return self.query.dim

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the noisy gradient of every hosted agent at its own row: exactly what is released."""
        return self.rows(theta, step, stream, range(len(self.agents)))

    def gradient_with_l2(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the release with the l2 term added, which costs nothing: it holds no data."""
        released = self(theta, step, stream)
        return released + self.decay * theta if self.decay.any() else released

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        """Return the noisy gradients of some of the hosted agents only, by their place in the list."""
        places = list(places)
        if self.user_level:
            clipped = clip_rows(self._means(theta, step, stream, places), self.inner_clip)
            return self._released(clipped, np.ones_like(self._divisors[places]), places, step, stream)
        sums = self._sums(theta, step, stream, places, self.inner_clip)
        return self._released(sums, self._divisors[places], places, step, stream)

    def local_update(self, theta: np.ndarray, step: int, *, steps: int, rate: float) -> np.ndarray:
        """Return each agent's whole move of descent after ``steps`` plain gradient steps on its own records.

        The move is clipped as a whole and gets noise once, so what happens inside it costs nothing more: user
        level only.
        """
        if not self.user_level:
            raise InvalidInput('a local update hides a whole agent: adjacency must be "user".')
        places = list(range(len(self.agents)))
        local = theta
        for t in range(steps):
            mean = self._means(local, step, t, places)
            local = local - local.dtype.type(rate) * mean.astype(local.dtype, copy=False)
        move = clip_rows(theta - local, self.inner_clip)
        return self._released(move, np.ones_like(self._divisors), places, step)

    def _means(self, theta: np.ndarray, step: int, stream: int, places: list[int]) -> np.ndarray:
        """Return the agents' mean gradients, unclipped: inside the clip a divisor may follow the data."""
        mean = self._sums(theta, step, stream, places, math.inf) / self._divisors[places]
        return mean + np.asarray(self.query.decay, mean.dtype) * theta if np.any(self.query.decay) else mean

    def _sums(
        self, theta: np.ndarray, step: int, stream: int, places: list[int], clip_norm: float
    ) -> np.ndarray:
        """Return the sums over batches; a query that draws (dropout) gets a seed of run, step and agent."""
        batches, draws, noise_ids = self.batches.draw(places, step, stream), self.random.draws, self.noise_ids
        self.query.reseed(lambda p: int(draws(_DROPOUT, step, stream, noise_ids[p]).integers(2**62)))
        return self.query.sums(theta, batches, places, clip_norm)

    def _released(
        self, values: np.ndarray, divisors: np.ndarray, places: Sequence[int], step: int, stream: int = 0
    ) -> np.ndarray:
        """Check, draw and record; return values with noise over divisors, rounded to the type of the rows.

        Rounding comes last: before the noise it would reveal the value, and a common grid needs all digits.
        """
        source, dtype = self.random.noise, self.query.dtype
        if values.dtype == dtype or rounds_values(source) or not (self.noisy and len(places)):
            noisy = self.add_noise(values, places, step, stream)
            released = np.empty(noisy.shape, noisy.dtype if on_common_grid(source) else dtype)
            return np.divide(noisy, divisors, out=released, casting="same_kind")
        from sottovoce.noise.philox import write_noisy_quotients

        # drawn in the type of the row, added in that of the sum
        noise = self.add_noise(np.broadcast_to(np.zeros((), dtype), values.shape), places, step, stream)
        released = np.empty(values.shape, dtype)
        write_noisy_quotients(values, noise, divisors, released)
        return released

    @property
    def descends(self) -> bool:
        """Whether `descend` can stand for single steps: one agent, at record level, of a linear model."""
        return len(self.agents) == 1 and not self.user_level and self.query.compiled_descent is not None

    def descend(
        self, theta: np.ndarray, total: np.ndarray, step: int, rates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return theta and the sum of iterates after one proximal step per rate, compiled.

        Batches and noise are those of single steps, drawn and checked before the loop begins.
        """
        dim, compiled_descent, source = self.dim, self.query.compiled_descent, self.random.noise
        assert compiled_descent is not None
        std, divisor = float(self.stds[0]), float(self._divisors[0, 0])
        self.check([0], step, steps=len(rates))
        w, sums = theta[0].copy(), total[0].copy() if len(total) else np.zeros(0)
        # a few million records at a time, so that long blocks of large batches fit in memory
        stride = max(1, int(_AHEAD // max(dim, self.sample_rates[0] * self.batches.sizes[0])))
        for first in range(0, len(rates), stride):
            part = rates[first : first + stride]
            batches = [self.batches.draw([0], step + first + k)[0] for k in range(len(part))]
            noise = np.zeros((len(part), dim))
            if self.noisy:
                noise = perturb_steps(source, noise, agent=self.noise_ids[0], step=step + first, std=std)
            compiled_descent(w, sums, batches, noise, grid_of(source, std), self.inner_clip, divisor, part)
        self.record(self.release_of(0, step + k) for k in range(len(rates)))
        return w[None], sums[None] if len(total) else total

    def release_of(self, place: int, step: int) -> Release:
        rate = 1.0 if self.user_level else float(self.sample_rates[place])
        return replace(super().release_of(place, step), sample_rate=rate)

    def set_batch_key(self, key: int | bytes) -> None:
        """Continue with the batches of an interrupted run: a repeated step takes the same records."""
        self.random = replace(self.random, batches=key)
        self.batches = PoissonSampler(self.query.sizes, self.sample_rates, key, self.noise_ids)
