"""From a budget back to noise: the inverse of a plan's own forward statement."""

from __future__ import annotations

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
        return guarantee.require(1e300, delta).epsilon(delta)

    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, high * 2
        if high > 1e12:
            raise BudgetInfeasible(
                f"No noise meets epsilon {epsilon:g} at delta {delta:g}; take fewer steps or a larger budget."
            )
    while low == 0.0 and high > 1e-9:
        if spent(high / 2) > epsilon:
            low = high / 2
        else:
            high /= 2
    while high - low > relative * high:
        middle = (low + high) / 2
        if spent(middle) > epsilon:
            low = middle
        else:
            high = middle
    return make(high)
