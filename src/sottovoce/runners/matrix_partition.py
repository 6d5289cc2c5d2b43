"""How a round of a linear protocol is cut between ranks: who sends which rows, and what is multiplied where.

Nothing here talks to anybody. The protocol is public, so every rank computes the same cut by itself. A row of
the product ``matrix(t) @ state`` is always summed by one rank, in the order in which the stacked product sums
it; that is why a split run gives the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from sottovoce.errors import InvalidInput


def slices(n: int, ranks: int) -> np.ndarray:
    """Return the rank of every agent: consecutive slices whose sizes differ by at most one."""
    if ranks > n:
        raise InvalidInput(f"{ranks} ranks cannot share {n} agents; start at most {n} ranks.")
    sizes = np.full(ranks, n // ranks)
    sizes[: n % ranks] += 1
    return np.repeat(np.arange(ranks), sizes)


class MatrixPartition(NamedTuple):
    """One rank's part of one round."""

    inner: sparse.csr_array  # product over hosted rows alone: done while rows travel
    inner_rows: np.ndarray  # the rows it gives
    border: sparse.csr_array  # product that needs rows of others; its columns: `gathered`, then received rows
    border_rows: np.ndarray
    gathered: np.ndarray  # hosted rows that the border product reads
    sends: dict[int, np.ndarray]  # rank -> hosted rows that go to it, each once however many edges are cut
    receives: dict[int, int]  # rank -> number of rows that come from it, in the order of the border's columns

    @property
    def rows_sent(self) -> int:
        """Number of rows this rank sends."""
        return sum(len(rows) for rows in self.sends.values())

    def multiply_inner(self, state: np.ndarray, out: np.ndarray) -> None:
        """Write the rows that need nobody else."""
        if len(self.inner_rows):
            out[self.inner_rows] = self.inner @ state

    def multiply_border(self, state: np.ndarray, received: np.ndarray, out: np.ndarray) -> None:
        """Write the rows that need received ones."""
        if len(self.border_rows):
            out[self.border_rows] = self.border @ np.concatenate([state[self.gathered], received])


def cut_matrix(
    matrix: sparse.csr_array, owner: np.ndarray, rank: int, dtype: DTypeLike = np.float64
) -> MatrixPartition:
    """Return ``rank``'s part of the product with ``matrix``, when agent i lives on rank ``owner[i]``."""
    mine = owner == rank
    hosted = np.flatnonzero(mine)
    position = np.cumsum(mine) - 1  # agent -> its row here, where it lives here
    block = matrix[hosted].astype(dtype, copy=False)
    block.eliminate_zeros()
    local = mine[block.indices]
    lines = np.repeat(np.arange(len(hosted)), np.diff(block.indptr))
    on_border = np.zeros(len(hosted), dtype=bool)
    on_border[lines[~local]] = True

    foreign = np.unique(block.indices[~local])
    foreign = foreign[np.argsort(owner[foreign], kind="stable")]  # by rank, then by number
    inner = block[~on_border]
    inner.indices = position[inner.indices].astype(inner.indices.dtype)
    inner = _reshaped(inner, len(hosted))

    border = block[on_border]
    known = mine[border.indices]
    gathered = np.unique(position[border.indices[known]])
    columns = np.empty(len(matrix.indptr) - 1, dtype=border.indices.dtype)
    columns[hosted[gathered]] = np.arange(len(gathered))
    columns[foreign] = len(gathered) + np.arange(len(foreign))
    border.indices = columns[border.indices]
    border = _reshaped(border, len(gathered) + len(foreign))

    return MatrixPartition(
        inner=inner,
        inner_rows=np.flatnonzero(~on_border),
        border=border,
        border_rows=np.flatnonzero(on_border),
        gathered=gathered,
        sends=_sends(matrix, owner, rank, position),
        receives={int(r): int((owner[foreign] == r).sum()) for r in np.unique(owner[foreign])},
    )


def _sends(
    matrix: sparse.csr_array, owner: np.ndarray, rank: int, position: np.ndarray
) -> dict[int, np.ndarray]:
    """Return, per other rank, the hosted rows that one of its agents reads."""
    readers = np.repeat(owner, np.diff(matrix.indptr))
    travels = (owner[matrix.indices] == rank) & (readers != rank) & (matrix.data != 0)
    ranks, rows = readers[travels], matrix.indices[travels]
    return {int(r): position[np.unique(rows[ranks == r])] for r in np.unique(ranks)}


def _reshaped(matrix: sparse.csr_array, columns: int) -> sparse.csr_array:
    """Return the same entries in the same order with another number of columns."""
    entries = (matrix.data, matrix.indices, matrix.indptr)
    return sparse.csr_array(entries, shape=(matrix.shape[0], columns), copy=False)
