"""Rényi differential privacy: losses of mechanisms, mixtures, and both conversions to (epsilon, delta).

The loss of order alpha is :math:`D_\\alpha(P\\|Q) = \\frac{1}{\\alpha-1}\\ln E_Q[(P/Q)^\\alpha]`.

===========================  =============================================================================
mechanism                    loss of order alpha
===========================  =============================================================================
Gaussian, mu = Delta/sigma   alpha mu^2 / 2 (equivalently rho-zCDP with rho = mu^2 / 2)
pure eps0-DP                 min(eps0, alpha eps0^2 / 2)
Laplace, r = Delta_1 / b     1/(alpha-1) ln[(alpha e^{(alpha-1) r} + (alpha-1) e^{-alpha r}) / (2 alpha-1)]
sampled Gaussian, integer    1/(alpha-1) ln sum_k C(alpha,k) (1-q)^{alpha-k} q^k e^{(k^2-k)/(2 z^2)}
===========================  =============================================================================

References: [1] Mironov, "Rényi differential privacy", CSF 2017, Table II and Propositions 3 and 10;
[2] Mironov, Talwar, Zhang, "Rényi differential privacy of the sampled Gaussian mechanism", 2019, section 3.3;
[3] Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", 2020, Proposition 12;
[4] Bun, Steinke, "Concentrated differential privacy", 2016, Proposition 1.3 and Lemma 3.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput

Conversion = Literal["better", "simple"]

# dense where losses of practical size have their optimum, geometric beyond
ORDERS: tuple[float, ...] = (
    *(1 + k / 100 for k in (1, 2, 3, 5, 7)),
    *(1 + k / 10 for k in range(1, 100)),
    *(float(k) for k in range(11, 65)),
    *(float(k) for k in (72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)),
    *(1024.0 * 2**k for k in range(1, 11)),
)


def rdp_epsilon(
    loss: Callable[[float], float] | tuple[Sequence[float], Sequence[float]],
    delta: float,
    conversion: Conversion = "better",
) -> float:
    """Convert a Rényi loss curve into epsilon at ``delta``, the smallest over the orders.

    Parameters
    ----------
    loss : a function of the order alpha > 1, or a pair (orders, values).
    conversion : ``"better"`` [3] or ``"simple"`` [1], the one printed in most papers.

    Guarantees
    ----------
    Every order gives a valid epsilon, so the smallest over any set of orders is valid; the conversion
    itself is an upper bound, not exact. An infinite loss at every order gives infinity.
    """
    delta = _validate.delta(delta)
    log_delta = math.log(delta)

    def at(alpha: float, value: float) -> float:
        if conversion == "simple":
            return value - log_delta / (alpha - 1)
        return value + math.log1p(-1 / alpha) - (log_delta + math.log(alpha)) / (alpha - 1)

    if conversion not in ("better", "simple"):
        raise InvalidInput(f'conversion must be "better" or "simple", got {conversion!r}.')
    return max(0.0, _least(loss, at))


def rdp_delta(
    loss: Callable[[float], float] | tuple[Sequence[float], Sequence[float]],
    epsilon: float,
    conversion: Conversion = "better",
) -> float:
    """Convert a Rényi loss curve into delta at ``epsilon``, the smallest over the orders, at most 1."""
    epsilon = _validate.non_negative(epsilon, "epsilon")

    def at(alpha: float, value: float) -> float:
        if conversion == "simple":
            return (alpha - 1) * (value - epsilon)
        return (alpha - 1) * (value - epsilon + math.log1p(-1 / alpha)) - math.log(alpha)

    if conversion not in ("better", "simple"):
        raise InvalidInput(f'conversion must be "better" or "simple", got {conversion!r}.')
    return math.exp(min(0.0, _least(loss, at)))


def pure_rdp(epsilon: float, alpha: float) -> float:
    """Return the loss of order ``alpha`` that pure epsilon-DP implies: min(eps, alpha eps^2 / 2)."""
    return min(epsilon, alpha * epsilon * epsilon / 2)


def laplace_rdp(ratio: float, alpha: float) -> float:
    """Return the exact loss of order ``alpha`` of Laplace noise, ``ratio`` = L1 sensitivity / scale."""
    if ratio == 0 or math.isinf(ratio):
        return ratio
    first = math.log(alpha / (2 * alpha - 1)) + (alpha - 1) * ratio
    second = math.log((alpha - 1) / (2 * alpha - 1)) - alpha * ratio
    total = float(np.logaddexp(first, second))
    return max(0.0, total / (alpha - 1))


@lru_cache(maxsize=65536)
def sampled_gaussian_rdp(
    sample_rate: float, noise_multiplier: float, alpha: float, adjacency: str = "add-remove"
) -> float:
    """Return the loss of order ``alpha`` of one sampled Gaussian step.

    ``noise_multiplier`` is noise standard deviation over clip norm, whatever the adjacency. Add/remove with
    an integer order is the finite sum in the table above (both orders of the pair are covered [2]); all
    other cases integrate the worst pair: N(0, z^2) against its mixture with N(1, z^2), or, for replace-one,
    the mixtures with N(1, z^2) and with N(-1, z^2).
    """
    q, z = sample_rate, noise_multiplier
    replace = adjacency == "replace-one"
    if q == 0:
        return 0.0
    if z == 0:
        return math.inf
    if q == 1:
        return alpha * (2 if replace else 1) ** 2 / (2 * z * z)
    if alpha > 4096:
        return math.inf  # never the best order when sampling; refuses rather than rounds
    if not replace and alpha == int(alpha):
        return _integer_order(q, z, int(alpha))
    return _integrated_order(q, z, alpha, replace)


def _integer_order(q: float, z: float, alpha: int) -> float:
    from scipy.special import gammaln

    k = np.arange(alpha + 1, dtype=np.float64)
    log_terms = (
        gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
        + (alpha - k) * math.log1p(-q) + k * math.log(q)
    )  # fmt: skip
    exponent = (k * k - k) / (2 * z * z)
    # sum_k Bin(k) e^{x_k} = 1 + sum_k Bin(k) (e^{x_k} - 1): small losses keep their digits
    if exponent[-1] < 600:
        return math.log1p(float(np.sum(np.exp(log_terms) * np.expm1(exponent)))) / (alpha - 1)
    total = log_terms + exponent
    top = float(total.max())
    return (top + math.log(float(np.exp(total - top).sum()))) / (alpha - 1)


def _integrated_order(q: float, z: float, alpha: float, replace: bool) -> float:
    """E_Q[(P/Q)^alpha] by the trapezoid rule, which converges exponentially for these analytic integrands."""
    step = min(z, 1.0) / 16
    low, high = -12 * z - (2 * alpha if replace else 1), (2 * alpha if replace else alpha) + 12 * z
    x = np.arange(low, high, step)
    rest, taken = math.log1p(-q), math.log(q)
    center = -x * x / (2 * z * z)
    log_p = np.logaddexp(rest, taken + (2 * x - 1) / (2 * z * z))
    log_q = np.logaddexp(rest, taken - (2 * x + 1) / (2 * z * z)) if replace else np.zeros_like(x)
    w = log_p - log_q
    weight = center + log_q + math.log(step / (z * math.sqrt(2 * math.pi)))
    if float((alpha * w + weight).max()) < 600 and float((alpha * w).max()) < 600:
        # E_Q[r^alpha] - 1 = E_Q[r^alpha - 1 - alpha (r - 1)]: every term non-negative, no cancellation
        small = np.abs(w) < 1e-5 / alpha
        excess = np.where(
            small,
            alpha * (alpha - 1) * w * w / 2 * (1 + (alpha + 1) * w / 3),
            np.expm1(alpha * w) - alpha * np.expm1(w),
        )
        return math.log1p(float(np.sum(np.exp(weight) * excess))) / (alpha - 1)
    total = alpha * w + weight
    top = float(total.max())
    return (top + math.log(float(np.exp(total - top).sum()))) / (alpha - 1)


def _least(
    loss: Callable[[float], float] | tuple[Sequence[float], Sequence[float]],
    at: Callable[[float, float], float],
) -> float:
    """Minimize ``at(alpha, loss(alpha))`` over the table, or over the grid with one refinement."""
    if not callable(loss):
        orders, values = loss
        finite = ((a, v) for a, v in zip(orders, values, strict=True) if 1 < a < math.inf)
        return min((_nan_to_inf(at(a, v)) for a, v in finite), default=math.inf)
    values_at = [_nan_to_inf(at(alpha, loss(alpha))) for alpha in ORDERS]
    best = int(np.argmin(values_at))
    if not math.isfinite(values_at[best]):
        return values_at[best]
    low, high = ORDERS[max(best - 1, 0)], ORDERS[min(best + 1, len(ORDERS) - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    least = values_at[best]
    for _ in range(24):  # golden section; every point visited is valid, the least is kept
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        f_left, f_right = _nan_to_inf(at(left, loss(left))), _nan_to_inf(at(right, loss(right)))
        least = min(least, f_left, f_right)
        low, high = (low, right) if f_left < f_right else (left, high)
    return least


def _nan_to_inf(value: float) -> float:
    """Return the value, or infinity for what is not a number: no order may help by being undefined."""
    return math.inf if math.isnan(value) else value
