"""What a runner reads of a plan; `sottovoce.algorithms.plan.Plan` implements it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.question import AccountablePlan
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.protocols import Protocol
from sottovoce.runners.base import Algorithm, State


class OrderedSchedule(typing.Protocol):
    """The protocol of every step."""

    def __call__(self, k: int, /) -> Protocol:
        """Return the protocol of step ``k``."""

    def in_order(self) -> Callable[[int], Protocol]:
        """Return the schedule for sequential access."""


class RunnablePlan(AccountablePlan, typing.Protocol):
    """A plan as runners and peers read it: the facts of `AccountablePlan`, and how they become a result.

    `sottovoce.algorithms.plan.Plan` implements and describes these methods; its others (`privacy`,
    `for_budget`, `cost`, `run`) are for people who make plans.
    """

    name: ClassVar[str]
    sequential: ClassVar[bool]  # whether one agent works at a time, so that ranks would only wait

    @property
    def schedule(self) -> OrderedSchedule: ...

    def prepared(self, data: object) -> Any: ...

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray: ...

    def mechanism(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Mechanism: ...

    def algorithm(self, mechanism: Any, start: np.ndarray) -> Algorithm: ...

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]: ...

    def outputs(self, rows: np.ndarray, state: State[Any, Any]) -> dict[str, np.ndarray]: ...

    def guarantees(self) -> Sequence[Guarantee]: ...

    def describe(self) -> Mapping[str, Any]: ...


def has_noise(plan: AccountablePlan) -> bool:
    """Return whether any noise is added: without it the run has no privacy."""
    return any(release.noise_std for agent in range(plan.n) for release in plan.releases(agent))
