"""Plans of one trusted holder of all records."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from sottovoce.accounting.observation import Curator, ObservationModel
from sottovoce.algorithms.options import require_dense
from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.data.base import AgentRecords, Dataset, Shards, is_sparse
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import HypercubeExchange, Protocol
from sottovoce.runners import State

ALONE: Protocol = HypercubeExchange(1)  # sends nothing


class CentralPlan(Plan):
    """A plan of one trusted holder of all records: one agent, no messages, one view.

    Subclasses state their releases. Data may be given as a Dataset, a pair (X, y), or the shards of one user.
    """

    objective: GLM
    records: int  # the public number of records

    central = True
    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one")
    takes_sparse: ClassVar[bool] = False  # whether its steps read sparse features
    n = 1

    @property
    def observation(self) -> ObservationModel:
        return Curator()  # its releases are all that is seen

    def _records(self) -> float:
        return float(self.records)

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(ALONE, self.steps)

    def prepared(self, data: object) -> Any:
        """Return the holder's records as one part, checked; where one is replaced, as many as agreed."""
        records = as_one_part(data, self.name)
        if not self.takes_sparse:
            require_dense(records, self.name)
        shards: Shards = self.objective.prepared(records)  # type: ignore[arg-type]
        if shards.n != 1:
            raise InvalidInput(f"A trusted holder has all records in one part, got {shards.n} users.")
        if self.adjacency == "replace-one" and len(shards.y) != self.records:
            got = len(shards.y)
            raise InvalidInput(f"The plan is for {self.records} records (a public number), got {got}.")
        return shards

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows[0]}


def as_one_part(data: object, name: str) -> AgentRecords:
    """Return a Dataset or a pair (X, y) as the shards of one holder; agents' records stay as they are."""
    if isinstance(data, AgentRecords):
        return data
    try:
        pair: Any = (data.X, data.y) if isinstance(data, Dataset) else data
        X, y = (values if is_sparse(values) else np.asarray(values) for values in pair)
    except (TypeError, ValueError):
        got = type(data).__name__
        message = f"{name} takes a Dataset, a pair (X, y) or the shards of one user, got {got}."
        raise DataError(message) from None
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != len(y) or len(y) == 0:
        raise DataError(f"Expected features (n, p) and n >= 1 labels, got shapes {X.shape} and {y.shape}.")
    return Shards(X, y, np.array([0, len(y)]))
