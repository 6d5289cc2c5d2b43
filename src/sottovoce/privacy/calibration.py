"""Calibration: the smallest noise that meets a budget, found by inverting the forward account itself.

There is no second formula here that could disagree with the accountant. A search keeps two noise levels, one
that misses the target and one that meets it *as evaluated*, narrows them to a relative tolerance, and returns
the one that meets it. Interpolation on logarithmic scales saves evaluations; it never decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from sottovoce import _validate
from sottovoce.errors import BudgetInfeasible, InvalidInput, NotAGuarantee
from sottovoce.privacy.curves import Curve, Method
from sottovoce.privacy.gaussian import gaussian_mu
from sottovoce.privacy.guarantees import Guarantee
from sottovoce.privacy.sampling import sampled_gaussian

__all__ = ["calibrate", "noise_for_budget", "noise_multiplier_for_budget"]

_LARGEST = 2.0**64


def calibrate(
    forward: Callable[[float], Guarantee],
    epsilon: float,
    delta: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-6,
) -> float:
    """Return the smallest noise, to a relative ``tolerance``, for which ``forward(noise)`` meets the budget.

    Parameters
    ----------
    forward : noise (a standard deviation or a multiplier, as the function likes) to `Guarantee`; more noise
        must not cost more.
    epsilon, delta : the budget.
    start : where to begin looking.

    Guarantees
    ----------
    ``forward(result).epsilon(delta) <= epsilon`` as evaluated, never above the target. A forward function
    that answers with a label other than ``ldp`` or ``exact`` is refused, and so is a budget that no noise
    up to about 1e19 times ``start`` can meet.

    >>> from sottovoce.privacy import Adversary
    >>> view = Adversary("pairwise", 1, 0)
    >>> forward = lambda noise: Guarantee(view, "user", "exact", Curve.gaussian(2.0 / noise))
    >>> noise = calibrate(forward, epsilon=1.0, delta=1e-5)
    >>> round(noise, 2), forward(noise).epsilon(1e-5) <= 1.0
    (7.46, True)
    """
    epsilon = _validate.non_negative(epsilon, "epsilon")
    delta = _validate.delta(delta)
    start, tolerance = _validate.positive(start, "start"), _validate.positive(tolerance, "tolerance")
    seen: dict[float, float] = {}

    def loss(noise: float) -> float:
        if noise not in seen:
            guarantee = forward(noise)
            if not isinstance(guarantee, Guarantee):
                raise InvalidInput(f"forward must return a Guarantee, got {guarantee!r}.")
            if not guarantee.valid:
                raise NotAGuarantee(
                    f'noise can be calibrated for the labels ldp and exact only, got "{guarantee.label}"; '
                    "ask for a view that is a guarantee."
                )
            seen[noise] = guarantee.epsilon(delta)
        return seen[noise]

    low, high = _bracket(loss, epsilon, delta, start)
    while high / low - 1 > tolerance:
        middle = _between(low, high, loss(low), loss(high), epsilon, tolerance)
        before = high / low - 1
        low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
        if high / low - 1 > max(before / 2, tolerance):  # interpolation stalls: halve on the log scale
            middle = math.sqrt(low) * math.sqrt(high)
            low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
    return high


def noise_for_budget(
    epsilon: float, delta: float, sensitivity: float = 1.0, *, steps: int = 1, leakage: float = 1.0
) -> float:
    """Return the noise standard deviation of ``steps`` Gaussian releases that share a budget.

    ``leakage`` is the share h in [0, 1] of each release that the adversary sees (1 for local privacy). The
    closed-form inverse of the exact conversion, rounded upwards.

    Guarantees
    ----------
    ``Curve.gaussian(sensitivity * sqrt(leakage) / noise, steps).epsilon(delta) <= epsilon`` as evaluated.

    >>> noise = noise_for_budget(1.0, 1e-5, sensitivity=2.0)
    >>> round(noise, 2), Curve.gaussian(2.0 / noise).epsilon(1e-5) <= 1.0
    (7.46, True)
    """
    sensitivity = _validate.non_negative(sensitivity, "sensitivity")
    leakage = _validate.non_negative(leakage, "leakage")
    steps = _validate.count(steps, "steps")
    mu = gaussian_mu(epsilon, delta)
    if mu == 0:
        raise BudgetInfeasible(
            f"no noise meets epsilon {epsilon:g} at delta {delta:g}; allow a larger delta."
        )
    shift = sensitivity * math.sqrt(leakage)
    noise = shift * math.sqrt(steps) / mu
    for k in range(48):
        if noise == 0 or Curve.gaussian(shift / noise, steps).epsilon(delta) <= epsilon:
            break
        noise = math.nextafter(noise * (1 + 2.0**k * 1e-16), math.inf)
    return noise


def noise_multiplier_for_budget(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    method: Method = "pld",
    *,
    adjacency: Literal["add-remove", "replace-one"] = "add-remove",
    tolerance: float = 1e-5,
) -> float:
    """Return the smallest noise multiplier for ``steps`` Poisson-sampled Gaussian steps within a budget.

    Guarantees
    ----------
    ``sampled_gaussian(sample_rate, result, steps, method).epsilon(delta) <= epsilon`` as evaluated.

    >>> z = noise_multiplier_for_budget(1.0, 1e-5, sample_rate=0.01, steps=1000, method="rdp")
    >>> round(z, 2), sampled_gaussian(0.01, z, 1000, "rdp").epsilon(1e-5) <= 1.0
    (1.51, True)
    """
    steps = _validate.count(steps, "steps")
    rate = _validate.probability(sample_rate, "sample_rate", zero=False)

    def forward(noise: float, how: Method = method) -> Guarantee:
        return sampled_gaussian(rate, noise, steps, how, adjacency=adjacency)

    start = 1.0
    if method == "pld":  # the quick Rényi answer is an upper bound: begin there
        start = calibrate(lambda noise: forward(noise, "rdp"), epsilon, delta, tolerance=1e-2)
    return calibrate(forward, epsilon, delta, start=start, tolerance=tolerance)


def _bracket(
    loss: Callable[[float], float], epsilon: float, delta: float, start: float
) -> tuple[float, float]:
    """Return (noise that misses the target, noise that meets it)."""
    low = high = start
    factor = 1.1
    if loss(start) <= epsilon:
        while loss(low) <= epsilon:
            high, low = low, low / factor
            factor = min(factor**2, 16.0)
            if low < start / _LARGEST:
                raise InvalidInput(
                    f"epsilon {epsilon:g} is met by any noise down to {low:.3g}; it needs no calibration."
                )
        return low, high
    while loss(high) > epsilon:
        low, high = high, high * factor
        factor = min(factor**2, 16.0)
        if high > start * _LARGEST:
            raise BudgetInfeasible(
                f"no noise meets epsilon {epsilon:g} at delta {delta:g}: even {low:.3g} leaves "
                f"{loss(low):.6g}; allow more or run fewer steps."
            )
    return low, high


def _between(
    low: float, high: float, at_low: float, at_high: float, target: float, tolerance: float
) -> float:
    """Return a point strictly inside, by interpolation of ln(loss) in ln(noise), leaning to the safe side."""
    middle = math.sqrt(low) * math.sqrt(high)
    if not (0 < at_high < at_low < math.inf and target > 0):
        return middle
    share = math.log(at_low / target) / math.log(at_low / at_high)
    width = math.log(high / low)
    lean = tolerance / 4 / width
    share = share + lean if share + 3 * lean < 1 else 1 - 3.6 * lean  # the last step tests just below high
    share = min(max(share, 0.02), 0.999) if width > 4 * tolerance else 0.5
    return low * math.exp(share * width)
