"""From the name of an algorithm and its options to a plan.

Plan files, `fit`, the scikit-learn estimators and agreements build their plans here. The fields of an
algorithm's plan class are its options; there is no other list of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from sottovoce.accounting.budget import Budget
from sottovoce.accounting.calibration import calibrate
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import registry
from sottovoce.algorithms.plan import UNSPENT, Plan
from sottovoce.errors import ConfigError
from sottovoce.graphs import Network
from sottovoce.objectives.base import Objective

__all__ = ["build_plan", "lists_to_tuples", "missing_options", "plan_options"]


def build_plan(
    name: str,
    options: Mapping[str, Any],
    *,
    objective: Objective | None = None,
    network: Network | None = None,
    budget: Budget | None = None,
    fits: int | None = None,
) -> Plan:
    """Return the plan of an algorithm, with the least noise that meets the budget where one is given.

    Without a budget the noise is among the ``options``. The adjacency of a budget, where it states one, must
    be that of the plan; ``fits`` is how many such runs it is for.

    Guarantees
    ----------
    The returned plan was accounted itself: its epsilon against the budget's view is at most the budget.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> plan = build_plan("averaging", {"protocol": "tree", "radius": 0.5}, network=graphs.ring(4),
    ...                   budget=Budget(2.0, 1e-5))
    >>> round(plan.epsilon(1e-5), 3)
    2.0
    """
    plan_class = registry.algorithm(name)
    arguments = dict(options)
    if objective is not None:
        arguments["objective"] = objective
    if network is not None:
        arguments["network"] = network
    if budget is not None:
        arguments[plan_class.noise_field] = 1.0
    try:
        plan: Plan = plan_class(**arguments)
    except (TypeError, OverflowError) as error:  # a table with a key that the option does not have
        raise ConfigError(f"{name} cannot be built from these options: {error}.") from None
    if budget is None:
        return plan
    budget.require_adjacency(plan.adjacency)
    if fits is None or budget.epsilon == math.inf:
        return plan.calibrated_to(budget.epsilon, budget.delta, **budget.adversary)

    def guarantee(z: float) -> Guarantee:
        return plan.with_noise(z).privacy(**budget.adversary) * fits

    return plan.with_noise(calibrate(guarantee, budget.epsilon, budget.delta, tolerance=UNSPENT))


def plan_options(name: str) -> dict[str, Field[Any]]:
    """Return the options of an algorithm's plan by name."""
    return {item.name: item for item in fields(registry.algorithm(name)) if item.init}


def missing_options(name: str, options: Collection[str]) -> list[str]:
    """Return the options without a default that are not among ``options``; the noise is not one of them."""
    noise = registry.algorithm(name).noise_field
    return [
        key
        for key, item in plan_options(name).items()
        if item.default is MISSING and item.default_factory is MISSING and key not in (*options, noise)
    ]


def lists_to_tuples(value: object) -> Any:
    """Return a list of a file as the tuple that a plan holds."""
    return tuple(lists_to_tuples(item) for item in value) if isinstance(value, list) else value
