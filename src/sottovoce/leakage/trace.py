"""Execution traces: what happens to the rows of all nodes, in order, and which rows an observer sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scipy import sparse

if TYPE_CHECKING:
    from sottovoce.leakage.modular_linalg import ExactMatrix

FAINT_WEIGHT = 2.0**-12  # with a weight below it nothing is dropped without exact arithmetic


@dataclass(frozen=True)
class Observe:
    """The observer sees the rows of these nodes."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ApplyMatrix:
    """All rows are multiplied by a matrix.

    With ``memory`` ((a, b), (c, d, e)) the second half of the state is remembered by the nodes: the new rows
    are ``a`` times the product plus ``b`` times the memory, and the new memory is ``c`` times the product
    plus ``d`` times the rows plus ``e`` times the memory.
    """

    matrix: sparse.csr_array
    memory: tuple[tuple[float, float], tuple[float, float, float]] | None = None

    @property
    def transition(self) -> sparse.csr_array:
        """The matrix on the whole state: the rows, then the memory if there is one."""
        if self.memory is None:
            return self.matrix
        (mixed, before), (kept_mixed, kept_present, kept_before) = self.memory
        identity = sparse.eye_array(self.matrix.shape[0], format="csr")
        upper = sparse.hstack([mixed * self.matrix, before * identity])
        lower = sparse.hstack([kept_mixed * self.matrix + kept_present * identity, kept_before * identity])
        return sparse.csr_array(sparse.vstack([upper, lower], format="csr"))


@dataclass(frozen=True)
class AveragePair:
    """Two rows are replaced by their mean."""

    one: int
    other: int


@dataclass(frozen=True)
class AddNoise:
    """Row ``k`` gets ``std`` times the coordinate ``offset + k``, for the first ``count`` rows."""

    offset: int
    count: int
    std: float


@dataclass(frozen=True)
class FillMemory:
    """The memory, the second half of the state, becomes ``factor`` times the rows."""

    factor: float


Event = Observe | ApplyMatrix | AveragePair | AddNoise | FillMemory


@dataclass(frozen=True, eq=False)
class ExecutionTrace:
    """A run as functionals of independent coordinates; the first event adds the first noise of all nodes.

    A trace is ``fixed`` if one matrix is applied and the same nodes are seen in every round, and all that the
    known nodes receive is seen. Then only the new rows of one round can bring new rows in the next.
    """

    size: int  # rows of the state; all begin as zero
    coordinates: int  # independent noises
    events: tuple[Event, ...]
    known: tuple[int, ...] = ()  # coordinates that the observers know; they are removed from what is seen
    fixed: bool = False
    faint: bool = False  # whether some weight is so small that its contribution may look like rounding
    exact_matrices: dict[int, ExactMatrix] = field(default_factory=dict, repr=False)  # of one protocol

    @property
    def nodes(self) -> int:
        """Number of nodes: the rows of the state without the memory."""
        first = self.events[0]
        return first.count if isinstance(first, AddNoise) else self.size

    @property
    def observed(self) -> list[tuple[int, ...]]:
        """The nodes seen in each round."""
        return [event.nodes for event in self.events if isinstance(event, Observe)]

    @property
    def matrix(self) -> sparse.csr_array:
        """The first matrix, which is the only one of a fixed trace."""
        return next(event.matrix for event in self.events if isinstance(event, ApplyMatrix))

    def work(self, rank: int) -> float:
        """Estimate the residue operations that decide about the rank."""
        if self.fixed:  # each round has as many candidates as the last one had new rows
            return float(self.coordinates) * rank * rank
        mixing = sum(event.matrix.nnz if isinstance(event, ApplyMatrix) else 2 for event in self.events)
        return float(self.coordinates) * (mixing + rank * sum(map(len, self.observed)))
