r"""The one gate: where records become numbers that leave.

.. math:: \tilde G_i(\theta) = \frac{1}{L_i}\Big(\sum_{d \in lot_i} \mathrm{clip}_C(\nabla \ell(\theta; d))
          + z_i C\, \xi\Big), \qquad lot_i \sim \mathrm{Poisson}(q_i)

at record level; at user level the agent's mean gradient is clipped as a whole and gets noise z C. The divisor
L is fixed and public, whatever the lot turned out to be: dividing by its real size would tell it.

A *query* touches the records: it answers with a sum of clipped contributions (`GradientQuery`). The gate
draws the lot, hands it to the query, adds the noise, divides, and compares what it drew with what the plan
said it would draw. It computes clip and noise from the plan's options and never reads them from the plan's
releases, so the comparison can fail; a difference stops the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import numpy as np

from sottovoce.accounting.release import MOVES, Release
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_of, perturb_steps
from sottovoce.objectives.base import GradientQuery
from sottovoce.objectives.clipping import clip_around, clip_rows

__all__ = ["AnnouncedReleases", "GradientMechanism", "RecordsReleases", "ValueMechanism"]

_DROPOUT = 0xD0  # keys the random numbers that a query draws itself
_AHEAD = 1 << 21  # records of lots that are drawn before a compiled loop begins


class AnnouncedReleases:
    """The releases a plan announced for the hosted agents, asked draw by draw."""

    def __init__(self, releases: Sequence[Sequence[Release]]) -> None:
        self.releases = [tuple(sorted(listed, key=lambda r: r.step)) for listed in releases]
        self._starts = [[r.step for r in listed] for listed in self.releases]
        # one stretch for everybody is the common case: then a draw of all agents is one comparison of arrays
        self._one: tuple[Release, np.ndarray, np.ndarray] | None = None
        if self.releases and all(len(listed) == 1 for listed in self.releases):
            first = self.releases[0][0]
            same = all(
                (r[0].step, r[0].steps, r[0].count, r[0].stream, r[0].mechanism)
                == (first.step, first.steps, first.count, first.stream, first.mechanism)
                for r in self.releases
            )
            if same:
                sensitivity = np.array([listed[0].sensitivity for listed in self.releases])
                noise_std = np.array([listed[0].noise_std for listed in self.releases])
                self._one = (first, sensitivity, noise_std)

    def check(
        self,
        places: Sequence[int],
        step: int,
        stream: int,
        *,
        sensitivity: Any,
        noise_std: Any,
        mechanism: str = "gaussian",
        steps: int = 1,
    ) -> None:
        """Raise `ReleaseMismatch` unless every draw is the one that was announced.

        ``steps`` draws in a row are compared at once: equal ones are announced as one stretch.
        """
        found_s = np.broadcast_to(np.asarray(sensitivity, float), (len(places),))
        found_n = np.broadcast_to(np.asarray(noise_std, float), (len(places),))
        if self._one is not None:
            first, planned_s, planned_n = self._one
            index = np.asarray(places, np.intp)
            if (
                first.covers(step, stream)
                and first.covers(step + steps - 1, stream)
                and first.mechanism == mechanism
                and np.array_equal(planned_s[index], found_s)
                and np.array_equal(planned_n[index], found_n)
            ):
                return
        for row, place in enumerate(places):
            planned = self._at(place, step, stream, steps)
            if planned is not None and planned.mechanism != mechanism:
                raise ReleaseMismatch(
                    f"At step {step} agent {planned.sender} would draw for a {mechanism} release, the plan "
                    f"announced {planned.mechanism}; nothing was released."
                )
            if planned is None:
                raise ReleaseMismatch(
                    f"At step {step} (stream {stream}) agent {place} would make a release that the plan does "
                    "not list; nothing was released."
                )
            if planned.sensitivity != found_s[row] or planned.noise_std != found_n[row]:
                raise ReleaseMismatch(
                    f"At step {step} agent {planned.sender} would draw noise {found_n[row]:g} on sensitivity "
                    f"{found_s[row]:g}, the plan announced {planned.noise_std:g} on {planned.sensitivity:g}; "
                    "nothing was released."
                )

    def _at(self, place: int, step: int, stream: int, steps: int) -> Release | None:
        """Return the release announced for a draw; a walk lists one per visit, too many to try in turn."""
        listed, last = self.releases[place], bisect_right(self._starts[place], step) - 1
        likely = listed[last : last + 1] if last >= 0 else ()
        covering = (
            r for r in chain(likely, listed) if r.covers(step, stream) and r.covers(step + steps - 1, stream)
        )
        return next(covering, None)


class RecordsReleases:
    """A gate that can write down every draw, for a ledger."""

    _drawn: list[Release] | None = None

    def metered(self) -> Self:
        """Return self, from now on writing down every draw for `take`."""
        self._drawn = [] if self._drawn is None else self._drawn
        return self

    def take(self) -> tuple[Release, ...]:
        """Return the releases since the last call, made of this gate's own numbers."""
        drawn, self._drawn = tuple(self._drawn or ()), None if self._drawn is None else []
        return drawn


class GradientMechanism(RecordsReleases):
    """Draw the lots, clip, sum, add noise, divide: the only place where gradients of records leave.

    Parameters
    ----------
    query : what touches the records.
    agents : the numbers of the hosted agents.
    random : noise, lots and the numbers that key them.
    clip : C; ``inf`` for no clipping, where there is no noise.
    noise_multipliers : z of every hosted agent, noise over clip.
    adjacency : ``"user"`` clips the agent's mean gradient instead of every record's.
    rates, divisors : the public q and L of every hosted agent.
    releases : what the plan announced, per hosted agent; None leaves out the comparison (tests).

    Guarantees
    ----------
    Add/remove: one record moves the clipped sum of its agent by at most C; the rounding of a protective
    source is paid for by clipping a little lower. Replace-one and user level: by at most 2C. What is drawn is
    what the plan announced, or `ReleaseMismatch` is raised and nothing leaves. With noise multiplier 0
    nothing is protected, and no source is asked.
    """

    def __init__(
        self,
        query: GradientQuery,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        clip_norm: float,
        noise_multipliers: Sequence[float],
        adjacency: str,
        rates: Sequence[float],
        divisors: Sequence[float],
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        self.query, self.random = query, random
        self.agents = [int(a) for a in agents]
        self.numbers = list(random.keys_for(self.agents))
        self.adjacency, self.clip_norm = adjacency, float(clip_norm)
        self.user_level = adjacency == "user"
        self.multipliers = np.asarray(noise_multipliers, float)
        self.divisors = np.asarray(divisors, query.dtype)[:, None]
        self.batches = PoissonSampler(query.sizes, rates, random.batches, self.numbers)
        self.rates = list(rates)
        self.decay = 0.0 if self.user_level else float(query.decay)
        self.noisy = bool(self.multipliers.any())
        if self.noisy and not np.isfinite(self.clip_norm):
            raise InvalidInput("noise needs a finite clip to be measured against, got inf.")
        self.std = self.multipliers * self.clip_norm if self.noisy else np.zeros(len(self.agents))
        # what leaves is a row: a clipped sum and its noise over the public divisor, or (user) a clipped mean
        public = np.ones(len(self.agents)) if self.user_level else np.asarray(divisors, float)
        self.sensitivity = MOVES[adjacency] * self.clip_norm / public
        self.row_std = self.std / public
        slack = 0.0
        if self.noisy:
            # both of two neighboring releases are rounded: 2 slack beside C (record) or beside 2C (user)
            slack = random.noise.slack(query.width, float(self.multipliers.max()) * self.clip_norm)
            slack *= 1 if self.user_level else 2
            if slack >= self.clip_norm:
                raise InvalidInput(
                    f"the rounding slack {slack:g} exceeds the clip {self.clip_norm:g}; less noise is needed."
                )
        self.inner_clip = self.clip_norm - slack
        self.planned = None if releases is None else AnnouncedReleases(releases)
        if self.planned is not None:
            self._check_sampling(self.planned)

    def _check_sampling(self, planned: AnnouncedReleases) -> None:
        """Compare the sampler that runs, and whom it hides, with what was announced."""
        for agent, rate, listed in zip(self.agents, self.batches.rates, planned.releases, strict=True):
            drawn = 1.0 if self.user_level else rate  # lots hide no agent: nothing is amplified by them
            for release in listed:
                if release.adjacency != self.adjacency or release.sample_rate != drawn:
                    raise ReleaseMismatch(
                        f"Agent {agent} would draw lots at rate {drawn:g} under {self.adjacency}, the plan "
                        f"announced {release.sample_rate:g} under {release.adjacency}; nothing was released."
                    )

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.query.width

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the noisy gradient of every hosted agent at its own row: exactly what is released."""
        return self.rows(theta, step, stream, range(len(self.agents)))

    def full(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the release with the l2 term added, which costs nothing: it holds no data."""
        released = self(theta, step, stream)
        return released + theta.dtype.type(self.decay) * theta if self.decay else released

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        """Return the noisy gradients of some of the hosted agents only, by their place in the list."""
        places = list(places)
        batches = self.batches.draw(places, step, stream)
        divisors = self.divisors[places]
        if self.user_level:
            # the mean over an agent's own records is inside the clip, so its divisor may follow the data
            mean = self._sums(theta, batches, places, float("inf"), step, stream) / divisors
            if self.query.decay:
                mean = mean + mean.dtype.type(self.query.decay) * theta
            return self._rounded(self._released(clip_rows(mean, self.inner_clip), places, step, stream))
        sums = self._sums(theta, batches, places, self.inner_clip, step, stream)
        return self._rounded(self._released(sums, places, step, stream) / divisors)

    def _rounded(self, released: np.ndarray) -> np.ndarray:
        """Return what leaves in the type of the rows, after the noise: a common grid needs all its digits."""
        wide = getattr(self.random.noise, "common_grid", False)
        return released if wide else released.astype(self.query.dtype, copy=False)

    def _sums(
        self, theta: np.ndarray, batches: Any, places: list[int], clip_norm: float, step: int, stream: int
    ) -> np.ndarray:
        """Ask the query; one that draws (dropout, random transforms) gets a seed of run, step and agent."""
        draws, numbers = self.random.draws, self.numbers
        self.query.reseed(lambda p: int(draws(_DROPOUT, step, stream, numbers[p]).integers(2**62)))
        return self.query.sums(theta, batches, places, clip_norm)

    def local_update(self, theta: np.ndarray, step: int, *, steps: int, rate: float) -> np.ndarray:
        """Return each agent's whole move after ``steps`` plain gradient steps on its own records.

        The move is clipped as a whole and gets noise once, so what happens inside it costs nothing more: user
        level only. Its direction is that of descent, the sign of a gradient step.
        """
        if not self.user_level:
            raise InvalidInput('a local update hides a whole agent: adjacency must be "user".')
        places = list(range(len(self.agents)))
        local = theta
        for t in range(steps):
            batches = self.batches.draw(places, step, t)
            mean = self._sums(local, batches, places, float("inf"), step, t) / self.divisors
            if self.query.decay:
                mean = mean + mean.dtype.type(self.query.decay) * local
            local = local - local.dtype.type(rate) * mean.astype(local.dtype, copy=False)
        return self._rounded(self._released(clip_rows(theta - local, self.inner_clip), places, step, 0))

    @property
    def descends(self) -> bool:
        """Whether `descend` can stand for single steps: one agent, at record level, of a linear model."""
        return len(self.agents) == 1 and not self.user_level and self.query.compiled_descent is not None

    def descend(
        self, theta: np.ndarray, total: np.ndarray, step: int, rates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return theta and the sum of iterates after one proximal step per rate, compiled.

        Lots and noise are those of single steps, drawn, compared and noted before the loop begins.
        """
        count, width, compiled_descent = len(rates), self.width, self.query.compiled_descent
        assert compiled_descent is not None
        std = float(self.std[0])
        if self.planned is not None:
            self.planned.check(
                [0], step, 0, sensitivity=self.sensitivity, noise_std=self.row_std, steps=count
            )
        w, sums = theta[0].copy(), total[0].copy() if len(total) else np.zeros(0)
        # a few million records at a time, so that long blocks of large lots fit in memory
        stride = max(1, int(_AHEAD // max(width, self.rates[0] * self.batches.sizes[0])))
        for first in range(0, count, stride):
            part = rates[first : first + stride]
            batches = [self.batches.draw([0], step + first + k)[0] for k in range(len(part))]
            noise = np.zeros((len(part), width))
            if self.noisy:
                noise = perturb_steps(
                    self.random.noise, noise, agent=self.numbers[0], step=step + first, std=std
                )
            compiled_descent(
                w, sums, batches, noise, grid_of(self.random.noise, std), self.inner_clip,
                float(self.divisors[0, 0]), part,
            )  # fmt: skip
        if self._drawn is not None and self.noisy:
            self._drawn += [self._release(0, step + k) for k in range(count)]
        return w[None], sums[None] if len(total) else total

    def _released(self, rows: np.ndarray, places: list[int], step: int, stream: int) -> np.ndarray:
        """Add the noise, after comparing it with the plan; note what was drawn."""
        if self.planned is not None:
            self.planned.check(
                places, step, stream, sensitivity=self.sensitivity[places], noise_std=self.row_std[places]
            )
        if not self.noisy:
            return rows
        std = self.std[places]
        numbers = [self.numbers[place] for place in places]
        noise, noisy = self.random.noise, rows
        drawn: dict[str, Any] = {"agents": numbers, "step": step, "std": std, "stream": stream}
        if rows.dtype == self.query.dtype or grid_of(noise, 1.0):
            noisy = noise.perturb(rows, **drawn)
        else:  # drawn in the type of the row, added in that of the sum: rounding before the noise would tell
            noisy = rows + noise.perturb(np.zeros(rows.shape, self.query.dtype), **drawn)
        if self._drawn is not None:
            self._drawn += [self._release(place, step) for place in places]
        return noisy

    def _release(self, place: int, step: int) -> Release:
        return Release(
            sender=self.agents[place],
            step=step,
            sensitivity=float(self.sensitivity[place]),
            noise_std=float(self.row_std[place]),
            adjacency=self.adjacency,
            sample_rate=1.0 if self.user_level else float(self.rates[place]),
        )

    # ---- for a ledger ------------------------------------------------------------------------------

    def keyed(self, batches: int | bytes) -> None:
        """Go on with the lots of an interrupted run: a step that is done again takes the same records."""
        self.random = replace(self.random, batches=batches)
        self.batches = PoissonSampler(self.query.sizes, self.rates, batches, self.numbers)


class ValueMechanism(RecordsReleases):
    """The gate for averaging: each agent's row, pulled into a public ball, with noise, once.

    Parameters
    ----------
    rows : (agents, dim) one row per hosted agent.
    radius, center : the public ball, one radius for all or one per hosted agent; the sensitivity is twice it.
    noise_std : standard deviation of the noise, per coordinate; one for all, or one per hosted agent.
    noise_later : leave the noise to the protocol, which draws it at every contribution (a walk).

    Guarantees
    ----------
    Replacing one agent's row moves what is released by at most twice the radius; rounding of a protective
    source is paid for by a slightly smaller ball. Rows that are not finite count as the center.
    """

    decay = 0.0

    def __init__(
        self,
        rows: np.ndarray,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        radius: float | Sequence[float],
        noise_std: float | Sequence[float],
        center: Any = 0.0,
        noise_later: bool = False,
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        self.agents, self.random = [int(a) for a in agents], random
        self.numbers = list(random.keys_for(self.agents))
        self.std = np.broadcast_to(np.asarray(noise_std, float), (len(self.agents),))
        radii = np.broadcast_to(np.asarray(radius, float), (len(self.agents),))
        self.sensitivity, self.noise_later = 2 * radii, noise_later
        self.center = np.asarray(center, dtype=rows.dtype)
        self.rows = np.empty_like(rows)
        # the grid of a protective source follows the noise, and so its slack
        for std, ball in sorted(set(zip(self.std.tolist(), radii.tolist(), strict=True))):
            inner = ball - (random.noise.slack(rows.shape[1], std) if std else 0.0)
            if inner <= 0:
                raise InvalidInput(
                    f"The rounding slack exceeds the radius {ball:g}; a larger radius or less noise is "
                    "needed."
                )
            alike = (self.std == std) & (radii == ball)
            self.rows[alike] = clip_around(rows[alike], center, inner)
        self.planned = None if releases is None else AnnouncedReleases(releases)

    def released(self, step: int) -> np.ndarray:
        """Return the rows that leave."""
        if self.planned is not None:
            places = range(len(self.agents))
            self.planned.check(places, step, 0, sensitivity=self.sensitivity, noise_std=self.std)
        if self.noise_later or not self.std.any():  # the plan has none: a run without privacy, and labeled so
            return self.rows
        # Noise is added about the center, so that the grid of a protective source is the center's.
        noisy: np.ndarray = self.center + self.random.noise.perturb(
            self.rows - self.center, agents=self.numbers, step=step, std=self.std
        )
        if self._drawn is not None:
            self._drawn += [
                Release(sender=agent, step=step, sensitivity=float(moved), noise_std=float(std))
                for agent, moved, std in zip(self.agents, self.sensitivity, self.std, strict=True)
            ]
        return noisy

    def keyed(self, batches: int | bytes) -> None:
        """Do nothing: averaging draws no lots."""
