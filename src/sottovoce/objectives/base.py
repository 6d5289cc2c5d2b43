"""Interfaces between objectives and the mechanisms and algorithms that use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from sottovoce._validate import positive
from sottovoce.data.base import Features, Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.prox import Regularizer

Rows = np.ndarray  # (agents, n_params)


class GradientQuery(Protocol):
    """A query of the hosted agents' records: clipped gradient sums.

    It is the only code of gradient plans that reads private records.

    Agents are addressed by their position in the list that this process hosts, not by their number in the
    network.

    Guarantees
    ----------
    One record changes the sum of its agent by at most ``clip_norm`` (add or remove), up to rounding.
    """

    dim: int  # numbers in a row of parameters
    dtype: Any  # the numpy type of the rows
    decay: Any  # weight of the l2 term, which depends on no record: one number, or one per parameter

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of each hosted agent."""

    @property
    def compiled_descent(self) -> Callable[..., None] | None:
        """Many steps of one agent in one compiled loop (see `GLMQuery`), or None."""

    def reseed(self, seeds: Callable[[int], int]) -> None:
        """Draw random numbers of the next sums (dropout, transforms) from ``seeds(place)``."""

    def sums(
        self, theta: Rows, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return, per place, the sum over its batch of gradients clipped to ``clip_norm``, in float64."""


class Objective(Protocol):
    """A model with its loss, as a function of one row of parameters per agent."""

    @property
    def clip_norm(self) -> float | None:
        """The clip norm if the objective has one of its own; None: the plan sets it."""

    @property
    def n_params(self) -> int | None:
        """Numbers in a row of parameters; None if it depends on the data."""

    @property
    def regularizer(self) -> Regularizer:
        """The part of the objective that depends on no record."""

    @property
    def bytes_per_number(self) -> int:
        """Size of one parameter in a message."""

    def initial_rows(self, rng: np.random.Generator, agents: int, dim: int) -> Rows:
        """Return the public rows from which a run starts, the same for every agent."""

    def prepared(self, data: Any) -> Any:
        """Return the agents' records, checked and in the form that `query` takes."""

    def query(self, data: Any) -> GradientQuery:
        """Return the clipped gradient sums of prepared records."""

    def metrics(self, rows: Rows, data: Any) -> Mapping[str, float]:
        """Return the quality of final rows on public test records; empty if there are none."""


class LinearObjective:
    """What the linear models share: they start from zeros and have no public test set."""

    dim: int | None
    class_weight: tuple[float, ...] | None
    clip_norm: ClassVar[float | None] = None  # the plan sets it
    bytes_per_number: ClassVar[int] = 8

    @property
    def regularizer(self) -> Regularizer:
        """The part that depends on no record."""
        raise NotImplementedError

    def losses(self, w: np.ndarray, X: Features, y: np.ndarray) -> np.ndarray:
        """Return the loss of every record."""
        raise NotImplementedError

    def record_weights(self, y: np.ndarray) -> np.ndarray | None:
        """Return the weight of every record by its label, None where all are alike."""
        raise NotImplementedError

    @property
    def largest_weight(self) -> float:
        """The largest weight of a class; 1 without weights."""
        return 1.0 if self.class_weight is None else max(self.class_weight)

    def value(self, w: np.ndarray, X: Features, y: np.ndarray) -> float:
        """Return the objective F(w)."""
        weights = self.record_weights(np.asarray(y))
        losses = self.losses(w, X, y) if weights is None else weights * self.losses(w, X, y)
        return float(losses.mean() + self.regularizer.value(np.asarray(w)))

    def initial_rows(self, rng: np.random.Generator, agents: int, dim: int) -> Rows:
        """Return the public starting rows: zeros."""
        return np.zeros((agents, dim))

    def metrics(self, rows: Rows, data: Shards) -> dict[str, float]:
        """Return nothing: linear models have no public test set here."""
        return {}

    def check_shards(self, data: object) -> Shards:
        """Return records of several agents with as many features as the model."""
        if not isinstance(data, Shards):
            raise DataError(
                f"a linear model takes Shards, one part per agent, got {type(data).__name__}; "
                "dataset.shards(parts) deals records out."
            )
        if self.dim is not None and data.dim != self.dim:
            raise DataError(f"the model has {self.dim} features, the data have {data.dim}.")
        return data


def check_weights(weights: Sequence[float], classes: int) -> None:
    """Raise unless there is one positive weight per class."""
    if len(weights) != classes:
        raise InvalidInput(f"class_weight must have one weight per class ({classes}), got {len(weights)}.")
    for weight in weights:
        positive(weight, "a class weight")


class LinearQuery:
    """The records of linear models behind a `GradientQuery`; its sums draw no random numbers."""

    dtype = np.float64

    def __init__(self, data: Shards, dim: int, penalty: Regularizer) -> None:
        self.data, self.dim, self.sizes = data, dim, data.sizes
        self.decay = penalty.decay(dim) if penalty.l2 and penalty.intercepts else penalty.l2

    def reseed(self, seeds: Callable[[int], int]) -> None:
        """Do nothing."""
