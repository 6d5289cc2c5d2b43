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

    The accountant and the lifetime ledger read the facts alone. `sottovoce.algorithms.plan.Plan` is the
    implementation; its other methods (`privacy`, `for_budget`, `cost`, `run`) are for people who make plans.
    """

    name: ClassVar[str]
    sequential: ClassVar[bool]  # whether one agent works at a time, so that ranks would only wait

    @property
    def schedule(self) -> OrderedSchedule:
        """The protocol of every step."""

    def prepared(self, data: object) -> Any:
        """Return the data of all agents, checked against the plan."""

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows of the hosted agents."""

    def mechanism(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism that reads the records ``data`` of the hosted ``agents``, in their order."""

    def algorithm(self, mechanism: Any, start: np.ndarray) -> Algorithm:
        """Return the update rule of the agents that ``mechanism`` hosts, from the rows ``start``."""

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]:
        """Return numbers about the final rows that may be published."""

    def outputs(self, rows: np.ndarray, state: State[Any, Any]) -> dict[str, np.ndarray]:
        """Return the arrays of a result besides the rows."""

    def guarantees(self) -> Sequence[Guarantee]:
        """Return the guarantees to store with a result."""

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""


def has_noise(plan: AccountablePlan) -> bool:
    """Return whether any noise is added: without it the run has no privacy."""
    return any(release.noise_std for agent in range(plan.n) for release in plan.releases(agent))
