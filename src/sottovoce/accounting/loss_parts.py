"""The mechanisms a loss curve is made of, each with its Rényi loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.accounting.renyi import laplace_rdp, pure_rdp, sampled_gaussian_rdp


@dataclass(frozen=True)
class Gaussian:
    """N(0, 1) against N(mu, 1)."""

    mu: float

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu * self.mu / 2

    def __str__(self) -> str:
        return f"Gaussian, mu = {self.mu:.6g}"


@dataclass(frozen=True)
class SampledGaussian:
    """One Poisson-sampled Gaussian step; the multiplier is noise over clip norm for both adjacencies."""

    sample_rate: float
    noise_multiplier: float
    adjacency: str = "add-remove"

    def rdp(self, alpha: float) -> float:
        return sampled_gaussian_rdp(self.sample_rate, self.noise_multiplier, alpha, self.adjacency)

    def __str__(self) -> str:
        return f"Gaussian, noise multiplier {self.noise_multiplier:.6g}, sample rate {self.sample_rate:.6g}"


@dataclass(frozen=True)
class Pure:
    """Any mechanism known only to be epsilon-DP."""

    epsilon: float

    def rdp(self, alpha: float) -> float:
        return pure_rdp(self.epsilon, alpha)

    def __str__(self) -> str:
        return f"pure epsilon = {self.epsilon:.6g}"


@dataclass(frozen=True)
class Laplace:
    """Laplace noise, ratio = L1 sensitivity / scale."""

    ratio: float

    def rdp(self, alpha: float) -> float:
        return laplace_rdp(self.ratio, alpha)

    def __str__(self) -> str:
        return f"Laplace, ratio = {self.ratio:.6g}"


@dataclass(frozen=True)
class RenyiTable:
    """Rényi losses at given orders; between them the chord of (alpha - 1) D_alpha, which is convex."""

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def rdp(self, alpha: float) -> float:
        if alpha > self.orders[-1]:
            return math.inf
        if alpha <= self.orders[0]:
            return self.values[0]
        right = next(i for i, order in enumerate(self.orders) if order >= alpha)
        a, b = self.orders[right - 1], self.orders[right]
        if b == alpha:
            return self.values[right]
        chord = (b - alpha) * (a - 1) * self.values[right - 1] + (alpha - a) * (b - 1) * self.values[right]
        # both bounds hold: the chord by convexity, the next value because the loss grows with the order
        return min(chord / ((b - a) * (alpha - 1)), self.values[right])

    def __str__(self) -> str:
        return f"Rényi losses at {len(self.orders)} orders"


Part = Gaussian | SampledGaussian | Pure | Laplace | RenyiTable
