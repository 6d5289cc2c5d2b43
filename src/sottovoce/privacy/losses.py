"""Privacy loss distributions: numerical composition of unlike mechanisms, through dp-accounting.

A privacy loss distribution is the law of ln(P(o)/Q(o)); composition is convolution. dp-accounting discretises
it so that every rounding raises the loss ("connect the dots") and convolves by FFT. This module adds what a
sum of many unlike steps needs:

- the grid: its spacing follows the spread of one step (a 64th to an 8th of the root mean square), because a
  grid much coarser than a step's loss is safe and wasteful, and it widens where a step would need millions
  of points;
- many different multipliers (learning over exact consensus has one per subtree size): equal steps are
  composed as powers, and where more than ``MAX_GROUPS`` multipliers remain, neighbours share the smaller
  multiplier, in the grouping that wastes least. A smaller multiplier only raises the loss;
- the arithmetic of the FFT: its error in delta is far below 1e-16 per composed step, which is added to
  delta before anything is reported. Below ``trusted_delta`` callers also ask the Rényi bound.

References: [1] Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the dots: tighter discrete
approximations of privacy loss distributions", PETS 2022;
[2] dp-accounting, ``pld.privacy_loss_distribution``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sottovoce.privacy.curves import Part

MAX_GROUPS = 32
_MAX_SINGLE = 50_000  # grid points of one step, where that is fine enough
_MAX_COMPOSED = 2_000_000


@dataclass(frozen=True)
class Composed:
    """A composed privacy loss distribution with the arithmetic slack it must be read with."""

    distribution: Any
    slack: float

    @property
    def trusted_delta(self) -> float:
        """Below this delta the slack is more than a thousandth of what is asked."""
        return 1000 * self.slack

    def epsilon(self, delta: float) -> float:
        if delta <= self.slack:
            return math.inf
        return float(self.distribution.get_epsilon_for_delta(delta - self.slack))

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.slack)


@lru_cache(maxsize=8)
def composed(parts: tuple[tuple[Part, int], ...]) -> Composed:
    """Return the distribution of all parts with their counts, applied here and nowhere else.

    >>> from sottovoce.privacy.curves import Curve
    >>> curve = Curve.gaussian(1.0) + Curve.pure(0.1)
    >>> composed(curve.parts).epsilon(1e-5) > Curve.gaussian(1.0).epsilon(1e-5)
    True
    """
    grouped = _grouped(parts)
    interval = _interval(grouped)
    total: Any = None
    for part, count in grouped:
        one = _distribution(part, interval)
        if count > 1:
            one = one.self_compose(count)
        total = one if total is None else total.compose(one)
    return Composed(total, 1e-14 + 1e-16 * sum(count for _, count in grouped))


def _distribution(part: Part, interval: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    from sottovoce.privacy.curves import Gaussian, Laplace, Pure, SampledGaussian

    if isinstance(part, Gaussian):
        return pld.from_gaussian_mechanism(1 / part.mu, value_discretization_interval=interval)
    if isinstance(part, SampledGaussian):
        relation = (
            pld.NeighborRel.REPLACE_ONE
            if part.adjacency == "replace-one"
            else pld.NeighborRel.ADD_OR_REMOVE_ONE
        )
        return pld.from_gaussian_mechanism(
            part.noise_multiplier,
            sampling_prob=part.sample_rate,
            value_discretization_interval=interval,
            neighboring_relation=relation,
        )
    if isinstance(part, Laplace):
        return pld.from_laplace_mechanism(1 / part.ratio, value_discretization_interval=interval)
    if isinstance(part, Pure):
        return pld.from_privacy_parameters(
            common.DifferentialPrivacyParameters(part.epsilon, 0), value_discretization_interval=interval
        )
    raise TypeError(f"no privacy loss distribution for {part}")  # the curve asks only for parts that have one


def _spread(part: Part) -> tuple[float, float]:
    """Return (standard deviation, range) of one step's privacy loss, roughly."""
    from sottovoce.privacy.curves import Gaussian, Laplace, Pure, SampledGaussian

    if isinstance(part, Gaussian):
        return part.mu, 2 * (12 * part.mu + part.mu**2 / 2)
    if isinstance(part, SampledGaussian):
        mu = (2 if part.adjacency == "replace-one" else 1) / part.noise_multiplier
        width = 2 * (12 * mu + mu**2 / 2)
        return min(part.sample_rate * math.sqrt(math.expm1(min(mu * mu, 50.0))), width / 4, mu), width
    size = part.ratio if isinstance(part, Laplace) else part.epsilon if isinstance(part, Pure) else 0.0
    return size, 2 * size


def _interval(parts: list[tuple[Part, int]]) -> float:
    count = sum(k for _, k in parts)
    variance = sum(k * _spread(part)[0] ** 2 for part, k in parts)
    widest = max(_spread(part)[1] for part, _ in parts)
    typical = math.sqrt(variance / count)
    wanted = min(typical / 64, 1e-3)
    if widest > _MAX_SINGLE * wanted:  # dp-accounting builds the grid of one step point by point
        wanted = min(max(wanted, widest / _MAX_SINGLE), max(typical / 8, wanted))
    return max(wanted, widest / _MAX_COMPOSED, 20 * math.sqrt(variance) / _MAX_COMPOSED)


def _grouped(parts: tuple[tuple[Part, int], ...]) -> list[tuple[Part, int]]:
    from sottovoce.privacy.curves import SampledGaussian

    families: dict[tuple[float, str], dict[float, int]] = {}
    others: list[tuple[Part, int]] = []
    for part, count in parts:
        if isinstance(part, SampledGaussian):
            family = families.setdefault((part.sample_rate, part.adjacency), {})
            family[part.noise_multiplier] = family.get(part.noise_multiplier, 0) + count
        else:
            others.append((part, count))
    room = max(4, MAX_GROUPS // max(1, len(families)))
    for (rate, adjacency), family in families.items():
        for noise, count in _shared_multipliers(family, room).items():
            others.append((SampledGaussian(rate, noise, adjacency), count))
    return others


def _shared_multipliers(counts: dict[float, int], groups: int) -> dict[float, int]:
    """Merge multipliers into at most ``groups``, each at its smallest, wasting least of sum count / z^2.

    >>> _shared_multipliers({1.0: 5, 1.01: 1, 3.0: 2}, 2)
    {1.0: 6, 3.0: 2}
    """
    if len(counts) <= groups:
        return counts
    noise = np.array(sorted(counts), dtype=np.float64)
    weight = np.array([counts[z] for z in noise], dtype=np.float64)
    if noise.size > 512:  # first a fine geometric grid, downwards
        edges = noise[0] * (noise[-1] / noise[0]) ** (np.arange(512) / 512)
        at = np.minimum(np.searchsorted(edges, noise, side="right") - 1, 511)
        merged: dict[float, int] = {}
        for i, z in zip(at, noise, strict=True):
            # the smallest multiplier present in the cell
            first = float(noise[np.searchsorted(at, i)])
            merged[first] = merged.get(first, 0) + counts[float(z)]
        return _shared_multipliers(merged, groups)
    cost = 1 / noise**2
    total, paid = np.concatenate([[0], np.cumsum(weight)]), np.concatenate([[0], np.cumsum(weight * cost)])
    # waste[i, j]: multipliers i..j-1 all charged at noise[i]
    waste = (total[None, :] - total[:-1, None]) * cost[:, None] - (paid[None, :] - paid[:-1, None])
    waste[np.tril_indices_from(waste, k=0)] = np.inf
    best = waste[0]
    choice = []
    for _ in range(groups - 1):
        through = best[:-1, None] + waste
        choice.append(through.argmin(axis=0))
        best = through.min(axis=0)
    result: dict[float, int] = {}
    end = noise.size
    for back in reversed(choice):
        start = int(back[end])
        result[float(noise[start])] = int(weight[start:end].sum())
        end = start
    if end:
        result[float(noise[0])] = int(weight[:end].sum())
    return dict(sorted(result.items()))
