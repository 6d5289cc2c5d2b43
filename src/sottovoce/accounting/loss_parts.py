"""The mechanisms a privacy curve is made of: Rényi loss and privacy loss distribution of each.

===========================  =============================================================================
mechanism                    loss of order alpha, D_alpha(P || Q) = 1/(alpha-1) ln E_Q[(P/Q)^alpha]
===========================  =============================================================================
Gaussian, mu = Delta/sigma   alpha mu^2 / 2 (equivalently rho-zCDP with rho = mu^2 / 2)
pure eps0-DP                 min(eps0, alpha eps0^2 / 2)
Laplace, r = Delta_1 / b     1/(alpha-1) ln[(alpha e^{(alpha-1) r} + (alpha-1) e^{-alpha r}) / (2 alpha-1)]
sampled Gaussian, integer    1/(alpha-1) ln sum_k C(alpha,k) (1-q)^{alpha-k} q^k e^{(k^2-k)/(2 z^2)}
mixture of Gaussians         1/(alpha-1) ln sum_i w_i e^{alpha (alpha-1) mu_i^2 / 2}
===========================  =============================================================================

References: [1] Mironov, "Rényi differential privacy", CSF 2017, Table II;
[2] Mironov, Talwar, Zhang, "Rényi differential privacy of the sampled Gaussian mechanism", 2019, section 3.3;
[3] Bun, Steinke, "Concentrated differential privacy", 2016, Proposition 1.3 and Lemma 3.7.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from sottovoce._format import significant
from sottovoce.accounting.gaussian import gaussian_delta, gaussian_epsilon


@dataclass(frozen=True)
class LossPart:
    """One mechanism, as a worst-case pair of output distributions or a bound on its loss."""

    kind: ClassVar[str]
    is_pure: ClassVar[bool] = False  # whether it is DP with delta 0, at the epsilon `size`
    is_shift: ClassVar[bool] = False  # whether it costs at most what one Gaussian of mu = `shift` costs
    has_distribution: ClassVar[bool] = True  # whether its privacy loss distribution is known

    @property
    def size(self) -> float:
        """0 for a mechanism that costs nothing, infinity for one without noise."""
        raise NotImplementedError

    @property
    def shift(self) -> float:
        """The mu of a Gaussian mechanism that costs at least as much; 0 where there is none."""
        return self.size if self.is_shift else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """Standard deviation and range of the privacy loss, roughly: they set the grid of a composition."""
        mu = self.shift
        return (mu, mu * (24 + mu)) if self.is_shift else (self.size, 2 * self.size)

    def rdp(self, alpha: float) -> float:
        """Return an upper bound on the Rényi loss of order ``alpha``; exact but for pure DP and tables."""
        raise NotImplementedError

    def distribution(self, interval: float) -> Any:
        """Return the privacy loss distribution of dp-accounting, which rounds every loss upwards."""
        raise TypeError(f"no privacy loss distribution for {self}")


@dataclass(frozen=True)
class Gaussian(LossPart):
    """N(0, 1) against N(mu, 1)."""

    mu: float
    kind = "gaussian"
    is_shift = True

    @property
    def size(self) -> float:
        return self.mu

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu * self.mu / 2

    def distribution(self, interval: float) -> Any:
        return _pld().from_gaussian_mechanism(1 / self.mu, value_discretization_interval=interval)

    def __str__(self) -> str:
        return f"Gaussian, mu = {significant(self.mu, 'mu', 6)}"


@dataclass(frozen=True)
class SampledGaussian(LossPart):
    """One Poisson-sampled Gaussian step; the multiplier is noise over clip norm for both adjacencies."""

    sample_rate: float
    noise_multiplier: float
    adjacency: str = "add-remove"
    kind = "sampled-gaussian"
    is_shift = True

    @property
    def size(self) -> float:
        if not self.sample_rate:
            return 0.0
        return self.sample_rate / self.noise_multiplier if self.noise_multiplier else math.inf

    @property
    def shift(self) -> float:
        return (2 if self.adjacency == "replace-one" else 1) / self.noise_multiplier

    @property
    def spread(self) -> tuple[float, float]:
        mu, width = super().spread
        return min(self.sample_rate * math.sqrt(math.expm1(min(mu * mu, 50.0))), width / 4, mu), width

    def rdp(self, alpha: float) -> float:
        return _sampled_rdp(self, alpha)

    def distribution(self, interval: float) -> Any:
        relation = "REPLACE_ONE" if self.adjacency == "replace-one" else "ADD_OR_REMOVE_ONE"
        return _pld().from_gaussian_mechanism(
            self.noise_multiplier,
            sampling_prob=self.sample_rate,
            value_discretization_interval=interval,
            neighboring_relation=_pld().NeighborRel[relation],
        )

    def __str__(self) -> str:
        noise = significant(self.noise_multiplier, "noise", 6)
        return f"Gaussian, noise multiplier {noise}, sample rate {significant(self.sample_rate, 'loss', 6)}"


@dataclass(frozen=True)
class GaussianMixture(LossPart):
    """N(0, 1) against N(mu, 1), where mu is drawn and shown: visible participation, visits of a walk.

    The draw must not depend on data. Then the loss is distributed as the mixture of those of all ``mus``,
    which :mod:`sottovoce.accounting.pld` builds.
    """

    mus: tuple[float, ...]
    weights: tuple[float, ...]  # how probable each is; they add up to 1
    kind = "gaussian-mixture"
    is_shift = True

    @property
    def size(self) -> float:
        return max(self.mus)

    @property
    def spread(self) -> tuple[float, float]:
        typical = math.sqrt(math.fsum(w * mu * mu for mu, w in zip(self.mus, self.weights, strict=True)))
        return typical, super().spread[1]

    def rdp(self, alpha: float) -> float:
        mus, weights = np.array(self.mus), np.array(self.weights)
        exponent = alpha * (alpha - 1) * mus * mus / 2
        if exponent.max() < 600:
            return math.log1p(float(weights @ np.expm1(exponent))) / (alpha - 1)
        return _log_sum_exp(np.log(weights) + exponent) / (alpha - 1)

    def delta(self, epsilon: float) -> float:
        """Return the exact delta of one such mechanism: the mean over the draw."""
        terms = zip(self.mus, self.weights, strict=True)
        return math.fsum(weight * gaussian_delta(mu, epsilon) for mu, weight in terms)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of one such mechanism at ``delta``, rounded upwards."""
        low, high = 0.0, gaussian_epsilon(self.size, delta)
        if self.delta(low) <= delta:
            return low
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    def __str__(self) -> str:
        return f"Gaussian, mu up to {significant(self.size, 'mu', 6)}, {len(self.mus)} cases"


@dataclass(frozen=True)
class Pure(LossPart):
    """Any mechanism known only to be epsilon-DP."""

    epsilon: float
    kind = "pure"
    is_pure = True

    @property
    def size(self) -> float:
        return self.epsilon

    def rdp(self, alpha: float) -> float:
        return min(self.epsilon, alpha * self.epsilon * self.epsilon / 2)  # [3], Proposition 1.3

    def distribution(self, interval: float) -> Any:
        from dp_accounting.pld.common import DifferentialPrivacyParameters

        parameters = DifferentialPrivacyParameters(self.epsilon, 0)
        return _pld().from_privacy_parameters(parameters, value_discretization_interval=interval)

    def __str__(self) -> str:
        return f"pure epsilon = {significant(self.epsilon, 'epsilon', 6)}"


@dataclass(frozen=True)
class Laplace(LossPart):
    """Laplace noise, ratio = L1 sensitivity / scale."""

    ratio: float
    kind = "laplace"
    is_pure = True

    @property
    def size(self) -> float:
        return self.ratio

    def rdp(self, alpha: float) -> float:
        if self.ratio == 0 or math.isinf(self.ratio):
            return self.ratio
        first = math.log(alpha / (2 * alpha - 1)) + (alpha - 1) * self.ratio
        second = math.log((alpha - 1) / (2 * alpha - 1)) - alpha * self.ratio
        return max(0.0, float(np.logaddexp(first, second)) / (alpha - 1))

    def distribution(self, interval: float) -> Any:
        return _pld().from_laplace_mechanism(1 / self.ratio, value_discretization_interval=interval)

    def __str__(self) -> str:
        return f"Laplace, ratio = {significant(self.ratio, 'loss', 6)}"


@dataclass(frozen=True)
class RenyiTable(LossPart):
    """Rényi losses at given orders; between them the chord of (alpha - 1) D_alpha, which is convex."""

    orders: tuple[float, ...]
    values: tuple[float, ...]
    kind = "rdp"
    has_distribution = False

    @property
    def size(self) -> float:
        return max(1.0, self.values[0])  # never free: nothing is known about orders above the last

    def rdp(self, alpha: float) -> float:
        if alpha > self.orders[-1]:
            return math.inf
        if alpha <= self.orders[0]:
            return self.values[0]
        right = bisect_left(self.orders, alpha)
        a, b = self.orders[right - 1], self.orders[right]
        if b == alpha:
            return self.values[right]
        chord = (b - alpha) * (a - 1) * self.values[right - 1] + (alpha - a) * (b - 1) * self.values[right]
        # both bounds hold: the chord by convexity, the next value because the loss grows with the order
        return min(chord / ((b - a) * (alpha - 1)), self.values[right])

    def __str__(self) -> str:
        return f"Rényi losses at {len(self.orders)} orders"


def _pld() -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution


# ---- the sampled Gaussian mechanism ----------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _sampled_rdp(part: SampledGaussian, alpha: float) -> float:
    """Return the loss of order ``alpha`` of one sampled Gaussian step.

    Add/remove with an integer order is the finite sum in the table above, which covers both directions
    [2]; all other cases integrate the worst pair: N(0, z^2) against its mixture with N(1, z^2), or, for
    replace-one, the mixtures with N(1, z^2) and with N(-1, z^2).
    """
    q, z, replaced = part.sample_rate, part.noise_multiplier, part.adjacency == "replace-one"
    if q == 0:
        return 0.0
    if z == 0:
        return math.inf
    if q == 1:
        return alpha * (2 if replaced else 1) ** 2 / (2 * z * z)
    if alpha > 4096:
        return math.inf  # never the best order when sampling; refuses rather than rounds
    if not replaced and alpha == int(alpha):
        return _integer_order(q, z, int(alpha))
    return _integrated_order(q, z, alpha, replaced)


def _integer_order(q: float, z: float, alpha: int) -> float:
    """Return the binomial sum of [2], section 3.3, for an integer order."""
    from scipy.special import gammaln

    k = np.arange(alpha + 1, dtype=np.float64)
    log_binomial = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    log_terms = log_binomial + (alpha - k) * math.log1p(-q) + k * math.log(q)
    exponent = (k * k - k) / (2 * z * z)
    # sum_k Bin(k) e^{x_k} = 1 + sum_k Bin(k) (e^{x_k} - 1): small losses keep their digits
    if exponent[-1] < 600:
        return math.log1p(float(np.sum(np.exp(log_terms) * np.expm1(exponent)))) / (alpha - 1)
    return _log_sum_exp(log_terms + exponent) / (alpha - 1)


def _integrated_order(q: float, z: float, alpha: float, replaced: bool) -> float:
    """E_Q[(P/Q)^alpha] by the trapezoid rule, which converges exponentially for these analytic integrands."""
    # the integrand peaks between 0 and alpha (2 alpha for two mixtures), and is nothing 12 z beyond
    step = min(z, 1.0) / 16
    low, high = -12 * z - (2 * alpha if replaced else 1), (2 * alpha if replaced else alpha) + 12 * z
    x = np.arange(low, high, step)
    rest, taken = math.log1p(-q), math.log(q)
    center = -x * x / (2 * z * z)
    log_p = np.logaddexp(rest, taken + (2 * x - 1) / (2 * z * z))
    log_q = np.logaddexp(rest, taken - (2 * x + 1) / (2 * z * z)) if replaced else np.zeros_like(x)
    w = log_p - log_q
    weight = center + log_q + math.log(step / (z * math.sqrt(2 * math.pi)))
    if float((alpha * w + weight).max()) < 600 and float((alpha * w).max()) < 600:
        # E_Q[r^alpha] - 1 = E_Q[r^alpha - 1 - alpha (r - 1)]: every term non-negative, no cancellation
        small = np.abs(w) < 1e-5 / alpha
        series = alpha * (alpha - 1) * w * w / 2 * (1 + (alpha + 1) * w / 3)
        excess = np.where(small, series, np.expm1(alpha * w) - alpha * np.expm1(w))
        return math.log1p(float(np.sum(np.exp(weight) * excess))) / (alpha - 1)
    return _log_sum_exp(alpha * w + weight) / (alpha - 1)


def _log_sum_exp(terms: np.ndarray) -> float:
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum()))
