"""Calibration: the smallest noise that meets a budget, found by inverting the forward account itself.

There is no second formula here that could disagree with the accountant. A search keeps two noise levels, one
that misses the target and one that meets it *as evaluated*, and returns the one that meets it as soon as it
spends nearly all of the budget. Epsilon is nearly a power of the noise, so that a line through both ends in
logarithms needs a handful of evaluations, each of which may be a numerical composition; it never decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from sottovoce import _validate
from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.gaussian import gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.sampling import sampled_gaussian
from sottovoce.errors import BudgetInfeasible, InvalidInput, NotAGuarantee

__all__ = ["calibrate", "noise_for_budget", "noise_multiplier_for_budget"]

_FAR = 1e12  # how far from the start a search looks
_STRAIGHT = 12  # lines it draws before it halves


def calibrate(
    forward: Callable[[float], Guarantee | Curve],
    epsilon: float,
    delta: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-6,
) -> float:
    """Return the least noise for which ``forward(noise)`` meets the budget: the search of every plan.

    Parameters
    ----------
    forward : noise (a standard deviation or a multiplier, as the function likes) to its price, a `Guarantee`
        or a curve; more noise must not cost more.
    epsilon, delta : the budget.
    start : where to begin looking; the noise of a similar plan saves evaluations.
    tolerance : the share of epsilon that may stay unspent; plans leave 1e-3, being slow to evaluate.

    Guarantees
    ----------
    ``forward(result).epsilon(delta) <= epsilon`` as evaluated, never above the target, and at least
    ``(1 - tolerance)`` of it, unless epsilon jumps there. A forward function that answers with a label other
    than ``ldp`` or ``exact`` is refused, and so is a budget that no noise up to 1e12 times ``start`` meets.

    >>> from sottovoce.privacy import Adversary
    >>> view = Adversary("pairwise", 1, 0)
    >>> forward = lambda noise: Guarantee(view, "user", "exact", Curve.gaussian(2.0 / noise))
    >>> noise = calibrate(forward, epsilon=1.0, delta=1e-5)
    >>> round(noise, 2), forward(noise).epsilon(1e-5) <= 1.0
    (7.46, True)
    """
    epsilon, delta = _validate.positive(epsilon, "epsilon"), _validate.delta(delta)
    start, tolerance = _validate.positive(start, "start"), _validate.positive(tolerance, "tolerance")

    def excess(noise: float) -> float:
        """How far the price is above the target, in logarithms."""
        price = forward(noise)
        if not isinstance(price, (Guarantee, Curve)):
            raise InvalidInput(f"forward must return a Guarantee or a Curve, got {price!r}.")
        if isinstance(price, Guarantee) and not price.valid:
            raise NotAGuarantee(
                f'noise can be calibrated for the labels ldp and exact only, got "{price.label}"; '
                "ask for a view that is a guarantee."
            )
        return math.log(max(price.epsilon(delta), 1e-300) / epsilon)

    low = high = start
    above = below = excess(start)
    while below > 0:
        low, above, high = high, below, 4 * high
        if high > _FAR * start:
            raise BudgetInfeasible(
                f"no noise meets epsilon {epsilon:g} at delta {delta:g}: even {low:.3g} leaves "
                f"{epsilon * math.exp(below):.6g}; allow a larger epsilon or delta, or take fewer steps."
            )
        below = excess(high)
    while above <= 0:
        high, below, low = low, above, low / 2
        if low < start / _FAR:
            raise InvalidInput(
                f"epsilon {epsilon:g} is met by any noise down to {low:.3g}; it needs no calibration."
            )
        above = excess(low)
    aim = -tolerance / 2  # a little below the target, so that the answer is met and near
    tried = 0
    while below < -tolerance and high / low - 1 > tolerance / 100:
        # a line through both ends; where it does not get there, because of a jump, halves
        straight = math.isfinite(above) and tried < _STRAIGHT
        share = min(max((above - aim) / (above - below), 0.05), 0.95) if straight else 0.5
        middle = low * (high / low) ** share
        trial = excess(middle)
        if trial <= 0:
            high, below = middle, trial
        else:
            low, above = middle, trial
        tried += 1
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
