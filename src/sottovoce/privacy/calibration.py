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
from sottovoce.errors import BudgetInfeasible, InvalidInput, NotAGuarantee
from sottovoce.privacy.curves import Curve, Method
from sottovoce.privacy.gaussian import gaussian_mu
from sottovoce.privacy.guarantees import Guarantee
from sottovoce.privacy.sampling import sampled_gaussian

__all__ = ["calibrate", "least_noise", "noise_for_budget", "noise_multiplier_for_budget"]

_LARGEST = 2.0**64


def calibrate(
    forward: Callable[[float], Guarantee],
    epsilon: float,
    delta: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-6,
) -> float:
    """Return the least noise for which ``forward(noise)`` meets the budget.

    Parameters
    ----------
    forward : noise (a standard deviation or a multiplier, as the function likes) to `Guarantee`; more noise
        must not cost more.
    epsilon, delta : the budget.
    start : where to begin looking; the noise of a similar plan saves evaluations.
    tolerance : the share of epsilon that may stay unspent; 1e-3 for what is slow to evaluate.

    Guarantees
    ----------
    ``forward(result).epsilon(delta) <= epsilon`` as evaluated, never above the target, and at least
    ``(1 - tolerance)`` of it, unless epsilon jumps there. A forward function that answers with a label other
    than ``ldp`` or ``exact`` is refused, and so is a budget that no noise up to about 1e19 times ``start``
    can meet.

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
    aim = epsilon * (1 - tolerance / 2)  # a little below, so that the answer is met and near
    width, patience = math.inf, 3
    while loss(high) < epsilon * (1 - tolerance) and high / low - 1 > tolerance / 100:
        patience -= 1
        if math.log(high / low) < width / 2:  # secants may creep up on one side: halve now and then
            width, patience = math.log(high / low), 3
        middle = _secant(seen, low, high, aim) if patience > 0 else math.sqrt(low) * math.sqrt(high)
        low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
        patience = patience if patience > 0 else 3
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
    if loss(start) <= epsilon:
        while loss(low) <= epsilon:
            high, low = low, low * _factor(loss(low), epsilon)
            if low < start / _LARGEST:
                raise InvalidInput(
                    f"epsilon {epsilon:g} is met by any noise down to {low:.3g}; it needs no calibration."
                )
        return low, high
    while loss(high) > epsilon:
        low, high = high, high * _factor(loss(high), epsilon)
        if high > start * _LARGEST:
            raise BudgetInfeasible(
                f"no noise meets epsilon {epsilon:g} at delta {delta:g}: even {low:.3g} leaves "
                f"{loss(low):.6g}; allow more or run fewer steps."
            )
    return low, high


def _factor(found: float, epsilon: float) -> float:
    """Return by how much to change the noise: epsilon falls at least as fast as the noise grows."""
    if found > epsilon:
        return min(max(found / epsilon, 1.05), 64.0) if epsilon > 0 else 64.0
    return min(max(found / epsilon, 1 / 64), 1 / 1.05) if epsilon > 0 else 1 / 64


def _secant(seen: dict[float, float], low: float, high: float, aim: float) -> float:
    """Return where the line through the last two points in logarithms passes ``aim``, inside the bracket."""
    middle = math.sqrt(low) * math.sqrt(high)
    last = [(noise, found) for noise, found in seen.items() if 0 < found < math.inf][-2:]
    if len(last) < 2 or last[0][1] == last[1][1] or aim <= 0:
        return middle
    (z0, y0), (z1, y1) = last
    slope = math.log(z1 / z0) / math.log(y1 / y0)
    step = slope * math.log(aim / y1)
    trial = z1 * math.exp(step) if abs(step) < 100 else middle
    return trial if low < trial < high else middle


def least_noise(
    forward: Callable[[float], Guarantee | Curve], epsilon: float, delta: float, *, steps: int = 1
) -> float:
    """Return a noise whose price is at most ``epsilon`` and at least 99.9 % of it: the search of every plan.

    ``forward`` gives the price, a guarantee or a curve, of a noise. Epsilon is nearly a power of the noise,
    so false position on logarithms needs a handful of evaluations, each of which may be a numerical
    composition.

    Guarantees
    ----------
    ``forward(result).epsilon(delta) <= epsilon`` as evaluated; labels other than ``ldp`` and ``exact`` are
    refused.

    Examples
    --------
    >>> z = least_noise(lambda z: Curve.gaussian(1 / z, 10), 1.0, 1e-5)
    >>> 0.999 <= Curve.gaussian(1 / z, 10).epsilon(1e-5) <= 1.0
    True
    """
    _validate.positive(epsilon, "epsilon")
    _validate.delta(delta)

    def excess(noise: float) -> float:
        price = forward(noise)
        if isinstance(price, Guarantee) and not price.valid:
            price.require(epsilon, delta)  # raises: only guarantees accept a budget
        return math.log(max(price.epsilon(delta), 1e-300) / epsilon)

    low, high = 1.0, 1.0
    above = below = excess(1.0)
    while below > 0:
        low, above, high = high, below, 4 * high
        if high > 1e12:
            raise BudgetInfeasible(
                f"no noise up to 1e12 meets epsilon {epsilon:g} in {steps} steps; allow a larger epsilon or "
                "delta, or take fewer steps."
            )
        below = excess(high)
    while above <= 0 and low > 1e-9:
        high, below, low = low, above, low / 2
        above = excess(low)
    aim = -5e-4  # a little below the target, so that the answer is never above it
    for _ in range(60):
        if -1e-3 <= below <= 0 or above <= 0:
            break
        share = 0.5 if not math.isfinite(above) else min(max((above - aim) / (above - below), 0.05), 0.95)
        middle = low * (high / low) ** share
        trial = excess(middle)
        if trial <= 0:
            high, below = middle, trial
        else:
            low, above = middle, trial
    return high
