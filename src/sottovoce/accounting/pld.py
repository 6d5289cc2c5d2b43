"""Privacy loss distributions: numerical composition of unlike mechanisms, through dp-accounting.

A privacy loss distribution is the distribution of ln(P(o)/Q(o)); composition is convolution. dp-accounting
discretizes it so that every rounding raises the loss ("connect the dots") and convolves by FFT. This module
adds what a sum of many unlike steps needs:

- the grid: its spacing follows the spread of one step (a 64th to an 8th of the root mean square), because a
  grid much coarser than a step's loss is safe and wasteful, and it widens where a step would need millions
  of points;
- many different multipliers (learning over exact consensus has one per subtree size): equal steps are
  composed as powers, and where more than ``MAX_GROUPS`` multipliers remain, neighbors share the smaller
  multiplier, in the grouping that wastes least. A smaller multiplier only raises the loss;
- the arithmetic of the FFT: its error in delta is far below 1e-16 per composed step, which is added to
  delta before anything is reported;
- rare events: below ``trusted_delta`` that error would hide the answer. There the density of one step is
  weighted by exp(lambda loss). The weight moves the tail that matters to the center of the composed density,
  where the FFT resolves it, and is then removed; its error shrinks with it (:func:`rare_epsilon`).

References: [1] Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the dots: tighter discrete
approximations of privacy loss distributions", PETS 2022;
[2] dp-accounting, ``pld.privacy_loss_distribution``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sottovoce.accounting.loss_parts import Gaussian, GaussianMixture, LossPart, SampledGaussian

Parts = tuple[tuple[LossPart, int], ...]  # mechanisms and how often each is used

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
        """Below this delta the slack is more than a thousandth of delta."""
        return 1000 * self.slack

    def epsilon(self, delta: float) -> float:
        if delta <= self.slack:
            return math.inf
        return float(self.distribution.get_epsilon_for_delta(delta - self.slack))

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.slack)


@lru_cache(maxsize=8)
def composed(parts: Parts) -> Composed:
    """Return the distribution of all parts with their counts, which are applied here only."""
    grouped = _grouped(parts)
    interval = _interval(grouped)
    total: Any = None
    for part, count in grouped:
        one = _distribution(part, interval)
        if count > 1:
            with np.errstate(over="ignore"):  # of the bounds on where the mass lies, the finite ones count
                one = one.self_compose(count)
        total = one if total is None else total.compose(one)
    return Composed(total, 1e-14 + 1e-16 * sum(count for _, count in grouped))


def _distribution(part: LossPart, interval: float) -> Any:
    if not isinstance(part, GaussianMixture):
        return part.distribution(interval)
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    mixed = _mixed_density(part, interval)
    return PrivacyLossDistribution(DensePLDPmf(interval, mixed.first, mixed.mass, mixed.infinite, True))


def _interval(parts: list[tuple[LossPart, int]]) -> float:
    count = sum(k for _, k in parts)
    variance = sum(k * part.spread[0] ** 2 for part, k in parts)
    widest = max(part.spread[1] for part, _ in parts)
    typical = math.sqrt(variance / count)
    spacing = min(typical / 64, 1e-3)
    if widest > _MAX_SINGLE * spacing:  # dp-accounting builds the grid of one step point by point
        spacing = min(max(spacing, widest / _MAX_SINGLE), max(typical / 8, spacing))
    return max(spacing, widest / _MAX_COMPOSED, 20 * math.sqrt(variance) / _MAX_COMPOSED)


def _grouped(parts: Parts) -> list[tuple[LossPart, int]]:
    families: dict[tuple[float, str], dict[float, int]] = {}
    others: list[tuple[LossPart, int]] = []
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
    """Merge multipliers into at most ``groups``, each at its smallest, wasting least of sum count / z^2."""
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


# ---- rare events ----------------------------------------------------------------------------------------

_FAR = 60.0  # mass beyond exp(-60) of a step counts as lost
_OUTSIDE = 50.0  # the window of a composed density leaves out at most exp(-50) of it
_LAMBDAS = np.geomspace(1e-3, 1e5, 49)


@dataclass(frozen=True, eq=False)
class LossDensity:
    """The privacy loss of one step on the grid ``(first + i) * interval``, and the mass at infinity."""

    first: int
    mass: np.ndarray
    interval: float
    infinite: float

    @property
    def losses(self) -> np.ndarray:
        return (self.first + np.arange(len(self.mass))) * self.interval


def rare_epsilon(parts: Parts, delta: float) -> float:
    """Return an upper bound on epsilon at a delta too small for the plain composition."""
    return max(_rare_epsilon(densities, delta) for densities in _directions(parts))


def rare_delta(parts: Parts, epsilon: float) -> float:
    """Return an upper bound on a delta too small for the plain composition."""
    deltas = []
    for densities in _directions(parts):
        _, weight = min((_cumulant(densities, x) - x * epsilon, float(x)) for x in _LAMBDAS)
        deltas.append(_Weighted(densities, weight).delta(epsilon))
    return min(1.0, max(deltas))


Densities = list[tuple[LossDensity, int]]


@lru_cache(maxsize=8)
def _directions(parts: Parts) -> tuple[Densities, ...]:
    """Return the densities of both directions: a record removed, a record added."""
    grouped = _grouped(parts)
    interval = _interval(grouped)
    removed = [(_density(part, interval, False), count) for part, count in grouped]
    if not any(isinstance(part, SampledGaussian) for part, _ in grouped):
        return (removed,)
    return removed, [(_density(part, interval, True), count) for part, count in grouped]


def _density(part: LossPart, interval: float, added: bool) -> LossDensity:
    """Return the density of one step; far tails have the relative precision that weighting asks for."""
    if isinstance(part, Gaussian):
        part = SampledGaussian(1.0, 1 / part.mu)
    if isinstance(part, SampledGaussian):
        return _gaussian_density(part, interval, added)
    if isinstance(part, GaussianMixture):
        return _mixed_density(part, interval)
    dense = part.distribution(interval)._pmf_remove.to_dense_pmf()
    return LossDensity(dense._lower_loss, np.maximum(dense._probs, 0.0), interval, dense._infinity_mass)


def _mixed_density(mixture: GaussianMixture, interval: float) -> LossDensity:
    """Return the density of a loss whose mu is drawn: the mixture of the densities."""
    terms = [
        (weight, _density(Gaussian(max(mu, 1e-100)), interval, False))  # less has no square
        for mu, weight in zip(mixture.mus, mixture.weights, strict=True)
        if mu > 0
    ]
    first = min(term.first for _, term in terms)
    mass = np.zeros(max(term.first + len(term.mass) for _, term in terms) - first)
    mass[-first] = math.fsum(w for mu, w in zip(mixture.mus, mixture.weights, strict=True) if mu == 0)
    for weight, term in terms:
        mass[term.first - first :][: len(term.mass)] += weight * term.mass
    return LossDensity(first, mass, interval, math.fsum(weight * term.infinite for weight, term in terms))


def _gaussian_density(part: SampledGaussian, h: float, added: bool) -> LossDensity:
    """Connect the dots: mass and likelihood of every cell of the grid are kept by its two ends.

    The pair is (1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), or N(-1, z^2) in the place of
    N(0, z^2) within the second for replace-one. ``added`` swaps the two.
    """
    q, z = part.sample_rate, part.noise_multiplier
    far = z * math.sqrt(2 * _FAR) + 1
    upper, lower = [(1 - q, 0.0), (q, 1.0)], [(1.0, 0.0)]
    if part.adjacency == "replace-one":
        lower = [(1 - q, 0.0), (q, -1.0)]
    if added:
        upper, lower = lower, upper
    sign = -1.0 if added else 1.0

    def loss(at: np.ndarray) -> np.ndarray:
        return _log_density(upper, at, z) - _log_density(lower, at, z)

    ends = loss(np.array([-far, far]))
    first, last = int(np.floor(ends.min() / h)), int(np.ceil(ends.max() / h))
    edges = (first + np.arange(last - first + 1)) * h
    if q == 1 and part.adjacency == "add-remove":  # the loss is linear in x
        at = np.clip(0.5 + sign * z * z * edges, -far, far)
    else:
        # the loss is monotone in x: find the x of every edge by bisection from the two far ends
        low, high = np.full(len(edges), -far), np.full(len(edges), far)
        for _ in range(60):
            middle = (low + high) / 2
            below = sign * loss(middle) < sign * edges
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        at = (low + high) / 2
    p, r = _cells(upper, at, z), _cells(lower, at, z)
    start = edges[:-1]
    # where p or r is next to nothing all of the mass moves up
    likelihood = np.exp(np.where(r > 1e-300, np.log(np.maximum(r, 1e-300)) + start, -np.inf))
    share = np.where(p > 1e-300, (p - likelihood) / np.maximum(p, 1e-300), 1.0) / -math.expm1(-h)
    share = np.clip(share + 1e-9, 0.0, 1.0)  # upwards, by more than rounding can take
    mass = np.zeros(len(edges))
    mass[1:] += p * share
    mass[:-1] += p * (1 - share)
    lost = 2 * math.exp(-_FAR)  # beyond both far ends: counted as infinite loss
    return LossDensity(first, mass, h, lost)


def _log_density(mixture: list[tuple[float, float]], x: np.ndarray, z: float) -> np.ndarray:
    terms = [math.log(w) - (x - m) ** 2 / (2 * z * z) for w, m in mixture if w > 0]
    return np.logaddexp.reduce(terms)


def _cells(mixture: list[tuple[float, float]], at: np.ndarray, z: float) -> np.ndarray:
    """Return the mass between neighboring points of ``at``, from the tail in which it lies."""
    from scipy.special import ndtr

    total = np.zeros(len(at) - 1)
    for weight, mean in mixture:
        if weight > 0:
            a, b = (np.minimum(at[:-1], at[1:]) - mean) / z, (np.maximum(at[:-1], at[1:]) - mean) / z
            total += weight * np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))
    return np.maximum(total, 0.0)


def _cumulant(densities: Densities, weight: float) -> float:
    """Return ln E exp(weight * loss) of the composed density."""
    from scipy.special import logsumexp

    with np.errstate(divide="ignore"):  # cells without mass
        return math.fsum(
            count * float(logsumexp(weight * density.losses + np.log(density.mass)))
            for density, count in densities
        )


def _rare_epsilon(densities: Densities, delta: float) -> float:
    bounds = [((_cumulant(densities, x) - math.log(delta)) / x, float(x)) for x in _LAMBDAS]
    epsilon, weight = min(bounds)
    weighted = _Weighted(densities, weight)
    low, high = 0.0, epsilon
    if weighted.delta(high) > delta:
        return math.inf
    if weighted.delta(low) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if weighted.delta(middle) <= delta else (middle, high)
    return high


class _Weighted:
    """A composed density that is weighted by exp(weight * loss) while it is computed."""

    def __init__(self, densities: Densities, weight: float) -> None:
        self.weight, self.cumulant = weight, _cumulant(densities, weight)
        h = densities[0][0].interval
        first, size = self._window(densities, h)
        spectrum: Any = 1.0
        for density, count in densities:
            tilted = density.mass * np.exp(weight * density.losses - _cumulant([(density, 1)], weight))
            wrapped = np.bincount((density.first + np.arange(len(tilted))) % size, tilted, minlength=size)
            spectrum = spectrum * np.fft.rfft(wrapped) ** count
        around = np.maximum(np.fft.irfft(spectrum, size), 0.0)
        self.losses = (first + np.arange(size)) * h
        self.mass = np.roll(around, -(first % size))
        count = sum(k for _, k in densities)
        self.slack = 1e-14 + 1e-16 * count + 2 * math.exp(-_OUTSIDE)
        self.infinite = -math.expm1(math.fsum(k * math.log1p(-density.infinite) for density, k in densities))

    def _window(self, densities: Densities, h: float) -> tuple[int, int]:
        """Return where the weighted density lies, up to a mass of exp(-50) on each side (Chernoff)."""
        low = sum(density.first * k for density, k in densities)
        high = sum((density.first + len(density.mass) - 1) * k for density, k in densities)
        for s in self.weight * np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0]):
            up = (_cumulant(densities, self.weight + s) - self.cumulant + _OUTSIDE) / s
            down = (self.cumulant - _cumulant(densities, self.weight - s) - _OUTSIDE) / s
            high, low = min(high, math.ceil(up / h)), max(low, math.floor(down / h))
        from scipy.fft import next_fast_len

        return low, int(next_fast_len(high - low + 1, real=True))

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon``, the error of the arithmetic included."""
        above = self.losses > epsilon
        x = self.losses[above]
        terms = self.mass[above] * np.exp(self.cumulant - self.weight * x) * -np.expm1(epsilon - x)
        # the weighted mass is right to `slack`, and the factor that removes the weight is largest at epsilon
        error = self.slack * math.exp(min(700.0, self.cumulant - self.weight * epsilon))
        return min(1.0, float(terms.sum()) + error + self.infinite)
