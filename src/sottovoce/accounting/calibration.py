"""Calibration: the smallest noise that meets a budget, by inversion of the accountant.

`calibrate` keeps two noise levels, one that misses the target and one that meets it *as evaluated*, and
returns the latter as soon as it spends nearly all of the budget. Epsilon is nearly a power of the noise, so
that a line through both ends in logarithms needs a handful of evaluations; it never decides.
`calibrate_gaussian` is for Gaussian curves, where mu falls as one over the noise: two evaluations are enough,
or a few more where the rounding of fresh noise adds a part that no noise lowers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sottovoce import _validate
from sottovoce._format import compared, number, significant
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.gaussian import gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.errors import BudgetInfeasible, InvalidInput, NotAGuarantee

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
    forward : maps noise (a standard deviation or a multiplier) to its privacy cost; more must not cost more.
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
        """How far the cost is above the target, in logarithms."""
        cost = forward(noise)
        if not isinstance(cost, (Guarantee, Curve)):
            raise InvalidInput(f"forward must return a Guarantee or a Curve, got {cost!r}.")
        if isinstance(cost, Guarantee) and not cost.valid:
            raise NotAGuarantee(f"noise is calibrated for the labels ldp and exact only, got {cost.label}.")
        return math.log(max(cost.epsilon(delta), 1e-300) / epsilon)

    low = high = start
    above = below = excess(start)
    while below > 0:
        low, above, high = high, below, 4 * high
        if high > _FAR * start:
            left = compared(epsilon * math.exp(below), epsilon)[0]
            reason = f": even {significant(low, 'noise', 3)} leaves {left}"
            raise no_noise_meets(epsilon, delta, reason, "or take fewer steps")
        below = excess(high)
    while above <= 0:
        high, below, low = low, above, low / 2
        if low < start / _FAR:
            raise InvalidInput(
                f"epsilon {number(epsilon, 'limit')} is met by any noise down to "
                f"{significant(low, 'required noise', 3)}; it needs no calibration."
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


def calibrate_gaussian(
    forward: Callable[[float], Guarantee | Curve], epsilon: float, delta: float, *, start: float = 1.0
) -> float:
    """Return the least noise for which ``forward(noise)``, a Gaussian curve, meets the budget.

    Guarantees
    ----------
    ``forward(result).epsilon(delta) <= epsilon`` as evaluated.
    """
    allowed = gaussian_mu(epsilon, delta)
    if allowed <= 0:
        raise no_noise_meets(epsilon, delta)
    last, before = start, forward(start).mu
    if before == 0:
        raise BudgetInfeasible(
            "This observer learns nothing of this user at any noise; calibrate for another pair or view."
        )
    noise = last * before / allowed
    cost = forward(noise)
    for _ in range(20):
        if abs(cost.mu / allowed - 1) <= 1e-12 or last == noise:
            break
        # rounding before fresh noise adds a part that no noise lowers: mu = slope / noise + fixed
        slope = (before - cost.mu) / (1 / last - 1 / noise)
        fixed = cost.mu - slope / noise
        if fixed >= allowed:
            reason = ": the rounding of fresh noise alone passes it"
            raise no_noise_meets(epsilon, delta, reason, "or take fewer rounds")
        last, before = noise, cost.mu
        noise = slope / (allowed - fixed)
        cost = forward(noise)
    increase = 1e-12  # the last places: never above the target
    while cost.epsilon(delta) > epsilon:
        noise, increase = noise * (1 + increase), 2 * increase
        cost = forward(noise)
    return noise


def no_noise_meets(epsilon: float, delta: float, reason: str = "", remedy: str = "") -> BudgetInfeasible:
    """Return the error about a budget that no noise meets; ``remedy`` is one besides a larger budget."""
    advice = "allow a larger epsilon or delta" + (f", {remedy}" if remedy else "")
    budget = f"epsilon {number(epsilon, 'limit')} at delta {number(delta, 'delta')}"
    return BudgetInfeasible(f"No noise meets {budget}{reason}; {advice}.")
