"""The integer grid of masked sums: rows as whole numbers, and noise that is drawn on the same grid.

Rows are multiples of a power of two, so small that rounding costs a thousandth of the sensitivity. Noise is
the discrete Gaussian of `sottovoce.noise.discrete`, widened: with draws :math:`K_i` of parameter 512,
:math:`K_0 + aK_1 + bK_2 + cK_3` is one of parameter :math:`512\\sqrt{1 + a^2 + b^2 + c^2}`, up to a
relative error :math:`2 e^{-8\\pi^2}` per term as long as no factor exceeds half the width of those before.

References: sums of discrete Gaussians: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian
Mechanism", ICML 2021, Theorem 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce.errors import InvalidInput, Refused
from sottovoce.noise.discrete import NARROW_WIDTH, Bits, narrow_gaussian
from sottovoce.noise.samplers import Agents, KeyedNoise, NoiseSource, RecordedNoise, Rows, Std, rounds_values

ROUNDING = 1e-3  # share of the sensitivity that rounding may take
_NARROWEST = 16384.0  # in units of the spacing: from here on rounding a width up costs less than 1/500 of it
# a sum wraps, or invalid numbers pass as a sum, with probability at most 2 to the minus this
_WRAP_BITS, _INVALID_BITS = 40, 40


def to_grid(values: ArrayLike, spacing: float, members: int = 1) -> np.ndarray:
    """Return the nearest multiples of ``spacing`` as int64, so small that ``members`` of them add up."""
    scaled = np.divide(values, power_of_two(spacing), dtype=np.float64)  # exact: a power of two
    limit = 2.0**62 / members  # a factor of two for rounding
    if not (np.abs(scaled) < limit).all():  # also catches NaN
        raise InvalidInput(
            f"{members} values are added as 64-bit integers in steps of {spacing:g}, so each must be finite "
            f"and below {limit * spacing:g}; clip them, or take a larger grid spacing."
        )
    return np.rint(scaled).astype(np.int64)


def from_grid(integers: np.ndarray, spacing: float, divisor: int = 1) -> np.ndarray:
    """Return ``integers * spacing / divisor`` in float64: the one division after an exact sum."""
    return np.asarray(integers, np.float64) / divisor * power_of_two(spacing)


def sum_of_rows(rows: np.ndarray) -> np.ndarray:
    """Return the sum over the first axis of int64 (int32) rows modulo 2^64 (2^32), lifted around 0."""
    unsigned = {np.dtype(np.int64): np.uint64, np.dtype(np.int32): np.uint32}.get(rows.dtype)
    if unsigned is None:
        raise InvalidInput(
            f"masked rows are int64 or int32, got {rows.dtype}; masks added as floats do not cancel, and "
            "their last digits tell what they hide. to_grid makes integers."
        )
    # Unsigned arithmetic wraps by definition, signed arithmetic only by habit.
    return np.add.reduce(rows.view(unsigned), axis=0, dtype=unsigned).view(rows.dtype)


def power_of_two(spacing: float) -> float:
    """Return a grid spacing that multiplies and divides without rounding."""
    value = _validate.positive(spacing, "the grid spacing")
    if math.frexp(value)[0] != 0.5:
        raise InvalidInput(f"the grid spacing must be a power of two, got {spacing!r}; try {2.0**-32:g}.")
    return value


@dataclass(frozen=True)
class MaskGrid:
    """The public integers of a masked plan: spacing, width, bounds and everybody's noise on the grid.

    Made by `mask_grid`, which checks it. ``widths`` are the noises in units of ``spacing``, each rounded up
    to one that can be drawn; ``checks`` zeros are appended to every row so that a sum of rows that do not
    belong together is taken for a true one with probability at most 2^-40.
    """

    spacing: float
    bits: int
    bound: int
    widths: tuple[float, ...]
    dim: int
    steps: int
    checks: int

    @property
    def dtype(self) -> type[np.signedinteger]:
        """The integer type of rows."""
        return np.int32 if self.bits == 32 else np.int64

    @property
    def stds(self) -> np.ndarray:
        """The noise standard deviations as drawn, in the unit of the values."""
        return np.array(self.widths) * self.spacing

    @property
    def range(self) -> float:
        """The bound on every coordinate of all sums, in units of `spacing`; it fails with probability 2^-40.

        ``members * bound + sqrt(2 ln(2^41 dim steps)) * sqrt(sum of widths^2)``.
        """
        variance = math.fsum(s**2 for s in self.widths)
        tail = math.sqrt(2 * ((_WRAP_BITS + 1) * math.log(2) + math.log(self.dim) + math.log(self.steps)))
        return len(self.widths) * float(self.bound) + tail * math.sqrt(variance)

    def place(self, row: np.ndarray) -> np.ndarray:
        """Return a noisy row (dim,) as integers, with the zeros appended; nothing is clamped after noise.

        A number beyond the width of the integers wraps, which spoils the sum but no member's privacy.
        """
        if row.shape != (self.dim,):
            raise InvalidInput(f"rows must have {self.dim} numbers, got shape {row.shape}.")
        whole = to_grid(row, self.spacing, len(self.widths)).astype(self.dtype)
        return np.concatenate([whole, np.zeros(self.checks, self.dtype)])

    def mean(self, total: np.ndarray) -> np.ndarray:
        """Return the mean (dim,) of all members from their integer sum; invalid numbers are refused."""
        whole = np.asarray(total)
        values, zeros = whole[: self.dim], whole[self.dim :]
        if whole.dtype != self.dtype or whole.shape != (self.dim + self.checks,):
            raise InvalidInput(
                f"a sum on this grid is int{self.bits} ({self.dim + self.checks},), got {whole.dtype} "
                f"{whole.shape}."
            )
        # abs of the most negative integer is itself, so compare as floats
        if zeros.any() or (np.abs(values.astype(np.float64)) > self.range).any():
            raise Refused(
                "the sum is not one of rows that belong together: a member sent invalid numbers, or the "
                "members do not agree on the steps before; compare chain heads."
            )
        return from_grid(values, self.spacing, len(self.widths))


def mask_grid(*, bound: float, sensitivity: float, noise_std: ArrayLike, dim: int, steps: int) -> MaskGrid:
    """Return the grid of a masked plan: the largest spacing that rounding and noise allow.

    ``bound`` is the largest absolute value of a clean coordinate (the clip norm will do), ``sensitivity`` how
    far one change moves a member's row in L2 norm, ``noise_std`` the absolute standard deviation of each
    member's noise, 0 for a member without.
    """
    std = np.asarray(noise_std, float).ravel()
    if not len(std) or not (np.isfinite(std).all() and (std >= 0).all() and (std > 0).any()):
        raise InvalidInput(f"noise_std must be finite, at least 0 and not all 0, got {noise_std!r}.")
    size, count = _validate.count(dim, "dim"), _validate.count(steps, "steps")
    change, largest = _validate.positive(sensitivity, "sensitivity"), _validate.positive(bound, "bound")
    finest = ROUNDING * change / math.sqrt(size)
    spacing = 2.0 ** math.floor(math.log2(min(finest, float(std[std > 0].min()) / _NARROWEST)))
    widths = tuple(drawable_width(float(s) / spacing) if s else 0.0 for s in std)
    grid = MaskGrid(spacing, 64, math.ceil(largest / spacing) + 1, widths, size, count, checks=0)
    reach = grid.range
    fitting = [bits for bits in (32, 64) if reach < 2.0 ** (bits - 1)]
    if not fitting:
        raise InvalidInput(
            f"sums reach {reach:.3g} grid steps, which do not fit 64 bits; take a smaller clip or less noise."
        )
    # Every coordinate of an invalid sum is uniform: it is plausible with probability 2R/M, a zero with 1/M.
    plausible = size * (math.log2(2 * reach) - fitting[0])
    checks = max(0, math.ceil((_INVALID_BITS + plausible) / fitting[0]))
    return replace(grid, bits=fitting[0], checks=checks)


def grid_noise(count: int, width: float, key: bytes | None = None) -> np.ndarray:
    """Return ``count`` protective discrete Gaussians (int64) of a width that `mask_grid` gave.

    With 32 secret bytes as ``key`` they are a function of it, else of a key made now and forgotten.
    """
    size = _validate.count(count, "count", minimum=0)
    if width == 0:
        return np.zeros(size, np.int64)
    factors = _factors(width)
    if not math.isclose(_width_of(factors), width, rel_tol=1e-12):
        raise InvalidInput(f"no noise of {width!r} grid steps can be drawn; mask_grid rounds widths up.")
    bits = Bits(key)
    draws = narrow_gaussian(bits.words(size), bits).astype(np.int64)
    for factor in factors:
        if factor:
            draws += factor * narrow_gaussian(bits.words(size), bits).astype(np.int64)
    return draws


class GridNoise:
    """A noise source whose protective draws lie on the common grid of a masked plan.

    Rows of different members add up to one discrete Gaussian only if all of them are rounded *before* the
    noise, and to the same grid. Simulated noise passes through: it is rounded with the rows.

    A recording as ``source`` keeps and plays back the grid's own integers. ``hosted`` maps each number that
    keys the noise to its member and to the unit in which its mechanism adds noise: the public divisor that
    comes after the noise, 1 without one.

    Guarantees
    ----------
    What leaves is an integer of the grid times its spacing, whatever the value was, with a discrete Gaussian
    of at least the requested standard deviation; less is refused. Values are clamped to the grid's bound
    before the noise, coordinate by coordinate, which moves no two of them further apart.
    """

    def __init__(self, source: NoiseSource, grid: MaskGrid, hosted: Mapping[int, tuple[int, float]]) -> None:
        self.source, self.grid, self.hosted = source, grid, dict(hosted)
        self.protective = source.protective

    @property
    def rounds(self) -> bool:
        """Whether rows leave as integers times the grid's spacing, which float32 would not hold."""
        return rounds_values(self.source)

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return the rows with noise; on the grid, and in float64, where the source protects."""
        if not self.rounds:
            return self.source.perturb(values, agents=agents, step=step, std=std, stream=stream)
        numbers = [int(number) for number in agents]
        scale = np.broadcast_to(np.asarray(std, np.float64), (len(numbers),))
        out = np.empty(np.shape(values), np.float64)  # single precision does not hold the integers
        for place, number in enumerate(numbers):
            member, unit = self.hosted[number]
            width = self.grid.widths[member]
            if not 0 < scale[place] <= width * self.grid.spacing * unit * (1 + 1e-9):
                raise Refused(
                    f"noise of {scale[place]:g} was requested, member {member} draws "
                    f"{width * self.grid.spacing * unit:g} on the common grid; nothing was released."
                )
            scaled = np.divide(values[place], self.grid.spacing * unit, dtype=np.float64)
            if not np.isfinite(scaled).all():
                raise InvalidInput("Protective noise needs finite values; clip them first.")
            whole = np.rint(np.clip(scaled, -self.grid.bound, self.grid.bound)).astype(np.int64)
            whole += self._draw(number, whole, width, step, stream)
            out[place] = whole * (self.grid.spacing * unit)
        return out

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return what rounding takes of a clip, and half a spacing for the noise being discrete."""
        if not self.rounds:
            return self.source.slack(dim, std)
        widest = max(unit for _, unit in self.hosted.values())
        return self.grid.spacing * widest * (math.sqrt(dim) * (0.5 + 2.0**-10) + 0.5)

    def _draw(self, number: int, whole: np.ndarray, width: float, step: int, stream: int) -> np.ndarray:
        dim = whole.size
        if isinstance(self.source, KeyedNoise):
            scale = width * self.grid.spacing * self.hosted[number][1]
            return grid_noise(dim, width, self.source.key_of(number, step, stream, whole, scale))
        if isinstance(self.source, RecordedNoise):
            return self.source.recorded(number, step, stream, lambda _: grid_noise(dim, width))
        return grid_noise(dim, width)


def on_common_grid(noise: NoiseSource) -> bool:
    """Whether rows leave this source as integers of a masked plan's grid."""
    return isinstance(noise, GridNoise) and noise.rounds


def drawable_width(wanted: float) -> float:
    """Return the least width of at least ``wanted`` steps that can be drawn."""
    return _width_of(_factors(wanted))


def _width_of(factors: tuple[int, int, int]) -> float:
    return NARROW_WIDTH * math.sqrt(1 + sum(k * k for k in factors))


@functools.lru_cache(maxsize=1024)
def _factors(width: float) -> tuple[int, int, int]:
    """Return (a, b, c) with the least ``1 + a^2 + b^2 + c^2`` of at least ``(width / 512)^2``.

    Every factor is at most half the width before it, so that the terms blend into one discrete Gaussian: a
    at most 256, and beyond that b at most 65536.
    """
    most = NARROW_WIDTH // 2
    # a relative 1e-13 below, so that a width made here is found again in spite of its rounded root
    rest = max(0, math.ceil((width / NARROW_WIDTH) ** 2 * (1 - 1e-13)) - 1)
    if rest > most**2 * (1 + most**2):
        raise InvalidInput(f"noise of {width:.3g} grid steps is too wide to draw; take a larger spacing.")
    wide = rest > most**2
    firsts = np.array([most]) if wide else np.arange(most + 1)
    seconds = np.arange(1 + (most**2 if wide else most))
    a, b = np.meshgrid(firsts, seconds, indexing="ij")
    c = np.ceil(np.sqrt(np.maximum(rest - a * a - b * b, 0))).astype(np.int64)
    allowed = (c <= b) & (wide | (b <= a))
    total = np.where(allowed, a * a + b * b + c * c, np.iinfo(np.int64).max)
    best = np.unravel_index(np.argmin(total), total.shape)
    return int(a[best]), int(b[best]), int(c[best])
