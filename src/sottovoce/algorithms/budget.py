"""From a budget back to noise: the inverse of a plan's own forward statement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from sottovoce._validate import delta as check_delta
from sottovoce._validate import positive
from sottovoce.errors import BudgetInfeasible
from sottovoce.privacy import Guarantee

__all__ = ["least_noise"]

P = TypeVar("P")


def least_noise(
    make: Callable[[float], P],
    epsilon: float,
    delta: float,
    *,
    statement: Callable[[P], Guarantee] | None = None,
    relative: float = 1e-3,
) -> P:
    """Return ``make(z)`` for the least noise z (up to ``relative``) whose statement meets the budget.

    The answer always meets it: bisection ends on the side of more noise, and the plan returned has been
    asked itself. Statements that are not guarantees are refused by `Guarantee.require`.

    Examples
    --------
    >>> from sottovoce.privacy import Adversary, Curve
    >>> def local(z):
    ...     return Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(1 / z))
    >>> found = least_noise(local, 1.0, 1e-5, statement=lambda guarantee: guarantee)
    >>> 0.99 < found.epsilon(1e-5) <= 1.0
    True
    """
    positive(epsilon, "epsilon")
    check_delta(delta)

    def spent(z: float) -> float:
        plan = make(z)
        guarantee = statement(plan) if statement is not None else plan.privacy()  # type: ignore[attr-defined]
        if not guarantee.valid:
            guarantee.require(epsilon, delta)  # raises: only guarantees accept a budget
        return guarantee.epsilon(delta)

    high, over = 1.0, spent(1.0)
    low, under = high, over
    while over > epsilon:
        low, under = high, over
        high *= 2
        if high > 1e12:
            raise BudgetInfeasible(
                f"No noise meets epsilon {epsilon:g} at delta {delta:g}; take fewer steps or a larger budget."
            )
        over = spent(high)
    while under <= epsilon and low > 1e-9:
        high, over = low, under
        low /= 2
        under = spent(low)
    # between low (too little noise) and high (enough) epsilon is nearly a power of the noise
    while high - low > relative * high and under > epsilon:
        middle = _between(low, under, high, over, epsilon)
        found = spent(middle)
        if found > epsilon:
            low, under = middle, found
        else:
            high, over = middle, found
        if over > epsilon * (1 - relative):
            break
    return make(high)


def _between(low: float, under: float, high: float, over: float, epsilon: float) -> float:
    """Return a trial on the line through both ends in logarithms, a little to the side of more noise."""
    if not (math.isfinite(under) and 0 < over < under):
        return math.sqrt(low * high)
    share = math.log(under / epsilon) / math.log(under / over)
    share = min(max(share, 0.0) * 0.98 + 0.02 + 1e-4, 0.95)
    return low * (high / low) ** share
