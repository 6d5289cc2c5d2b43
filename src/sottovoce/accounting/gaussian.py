"""Gaussian differential privacy: the exact epsilon and delta of N(0, 1) against N(mu, 1).

.. math:: \\delta(\\varepsilon)
    = \\Phi(-\\varepsilon/\\mu + \\mu/2) - e^{\\varepsilon}\\,\\Phi(-\\varepsilon/\\mu - \\mu/2)

With :math:`a = \\varepsilon/\\mu - \\mu/2` and :math:`b = a + \\mu` the two terms share the factor
:math:`e^{-a^2/2}`, because :math:`b^2 - a^2 = 2\\varepsilon`; what remains is a difference of two scaled
complementary error functions, which neither overflows nor underflows. All functions here work with
:math:`\\ln\\delta`, so a delta of 1e-300 and a mu of 1e8 are ordinary input.

References: [1] Dong, Roth, Su, "Gaussian differential privacy", 2022, Corollary 2.13 (J. R. Stat. Soc. B);
[2] Balle, Wang, "Improving the Gaussian mechanism", ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sottovoce import _validate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_epsilons", "gaussian_mu"]

_SQRT2 = math.sqrt(2.0)
Number = TypeVar("Number", float, "np.ndarray")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the exact delta of a mu-GDP mechanism at ``epsilon``; mu is sensitivity over noise.

    Guarantees
    ----------
    Exact for the Gaussian pair, for any mu and any delta that double precision can hold. No noise
    (mu = inf) gives 1, no loss (mu = 0) gives 0.

    >>> round(gaussian_delta(1.0, 4.3772), 7)
    1e-05
    """
    mu = _validate.loss(mu, "mu")
    epsilon = _validate.loss(epsilon, "epsilon")
    if mu == 0 or (math.isinf(epsilon) and not math.isinf(mu)):
        return 0.0
    if math.isinf(mu):
        return 1.0
    return math.exp(_log_delta(epsilon / mu - mu / 2, mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Guarantees
    ----------
    The returned value is rounded upwards: ``gaussian_delta(mu, epsilon) <= delta`` holds as evaluated
    (for mu above about 1e6 up to the rounding of epsilon itself); against 120-digit arithmetic the
    relative error is below 1e-12. No noise (mu = inf) gives infinity.

    >>> [round(gaussian_epsilon(mu, 1e-5), 4) for mu in (0.1, 0.5, 1, 3)]
    [0.3407, 1.9931, 4.3772, 16.6755]
    >>> gaussian_epsilon(0.0, 1e-5)
    0.0
    """
    mu = _validate.loss(mu, "mu")
    delta = _validate.delta(delta)
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    low = -mu / 2  # epsilon = mu * (a + mu / 2) >= 0
    if _log_delta(low, mu) <= target:
        return 0.0
    # zCDP gives epsilon <= mu^2/2 + mu sqrt(2 ln 1/delta), that is a <= sqrt(2 ln 1/delta)
    high = max(math.sqrt(-2 * target), low)
    while _log_delta(high, mu) > target:  # rounding at the very end of the bracket
        high += 1e-12 + abs(high) * 1e-12
    a = _first_true(lambda x: _log_delta(x, mu) <= target, low, high)
    epsilon = _up(mu * a + mu * mu / 2)
    for k in range(48):  # so that it holds as evaluated, and not only up to rounding
        if gaussian_delta(mu, epsilon) <= delta:
            break
        epsilon = _up(epsilon * (1 + 2.0**k * 1e-16))
    return epsilon


def gaussian_epsilons(mus: ArrayLike, delta: float) -> np.ndarray:
    """Return `gaussian_epsilon` of many mu at once, for pages that show hundreds: all are bisected together.

    Guarantees
    ----------
    Those of `gaussian_epsilon`, to a relative 1e-12; rounded upwards.
    """
    import numpy as np

    all_mu = np.array([_validate.loss(mu, "mu") for mu in np.asarray(mus, dtype=float).ravel()])
    target = math.log(_validate.delta(delta))
    epsilons = np.where(np.isinf(all_mu), np.inf, 0.0)
    inside = np.flatnonzero(np.isfinite(all_mu) & (all_mu > 0))
    mu = all_mu[inside]
    low = -mu / 2
    some = _log_deltas(low, mu) > target
    inside, mu, low = inside[some], mu[some], low[some]
    high = np.maximum(math.sqrt(-2 * target), low)
    while len(wide := np.flatnonzero(_log_deltas(high, mu) > target)):
        high[wide] += 1e-12 + np.abs(high[wide]) * 1e-12
    for _ in range(2000):
        middle = low + (high - low) / 2
        if not ((low < middle) & (middle < high)).any():
            break
        holds = _log_deltas(middle, mu) <= target
        high, low = np.where(holds, middle, high), np.where(holds, low, middle)
    epsilons[inside] = np.nextafter((mu * high + mu * mu / 2) * (1 + 4e-16), np.inf)
    return epsilons


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP: the inverse of the above.

    Guarantees
    ----------
    The returned value is rounded downwards: ``gaussian_delta(mu, epsilon) <= delta`` as evaluated, so
    noise of standard deviation ``sensitivity / mu`` never lands above the target.

    >>> round(gaussian_mu(4.3772, 1e-5), 4)
    1.0
    >>> gaussian_epsilon(gaussian_mu(0.5, 1e-6), 1e-6) <= 0.5
    True
    """
    epsilon = _validate.loss(epsilon, "epsilon")
    delta = _validate.delta(delta)
    if math.isinf(epsilon):
        return math.inf
    target = math.log(delta)

    def too_much(mu: float) -> bool:
        return _log_delta(epsilon / mu - mu / 2, mu) > target

    low = high = 1.0
    while not too_much(high):
        high *= 2
    while too_much(low):
        low /= 2
    mu = -_first_true(lambda x: not too_much(-x), -high, -low)
    for k in range(48):
        if gaussian_delta(mu, epsilon) <= delta and gaussian_epsilon(mu, delta) <= epsilon:
            break
        mu = math.nextafter(mu * (1 - 2.0**k * 1e-16), 0.0)
    return mu


def _log_delta(a: float, mu: float) -> float:
    """ln(Phi(-a) - exp(epsilon) Phi(-a - mu)) with epsilon = mu (a + mu / 2)."""
    from scipy.special import erfcx

    if a < -1:  # delta close to 1: work with 1 - delta
        lost = 0.5 * math.erfc(-a / _SQRT2) + 0.5 * math.exp(-a * a / 2) * float(erfcx((a + mu) / _SQRT2))
        return math.log1p(-lost)
    x, step = a / _SQRT2, mu / _SQRT2
    if step < 1e-3:
        gap = float(_small_gap(erfcx(x + step / 2), x + step / 2, step))
    else:
        gap = float(erfcx(x)) - float(erfcx(x + step))
    return -a * a / 2 + math.log(gap / 2) if gap > 0 else -math.inf


def _log_deltas(a: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """`_log_delta` of arrays, branch by branch."""
    import numpy as np
    from scipy.special import erfc, erfcx

    x, step = a / _SQRT2, mu / _SQRT2
    with np.errstate(all="ignore"):  # branches are computed everywhere and chosen afterwards
        lost = 0.5 * erfc(-x) + 0.5 * np.exp(-a * a / 2) * erfcx(x + step)
        near = _small_gap(erfcx(x + step / 2), x + step / 2, step)
        gap = np.where(step < 1e-3, near, erfcx(x) - erfcx(x + step))
        plain = np.where(gap > 0, -a * a / 2 + np.log(gap / 2), -np.inf)
        chosen: np.ndarray = np.where(a < -1, np.log1p(-lost), plain)
    return chosen


def _small_gap(value: Number, middle: Number, step: Number) -> Number:
    """Return the difference of two nearly equal values of erfcx, by its derivatives in the middle."""
    first = 2 * (middle * value - 1 / math.sqrt(math.pi))
    third = 4 * first + 4 * middle * (value + middle * first)
    return -step * (first + step * step * third / 24)


def _first_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest float in (low, high] known to satisfy a condition true from some point on."""
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        if holds(middle):
            high = middle
        else:
            low = middle


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)
