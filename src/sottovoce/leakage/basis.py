"""Orthonormal bases of what is seen, in floating point, with a monitor of what each step dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from sottovoce.leakage.trace import AddNoise, ApplyMatrix, AveragePair, FillMemory

# One step of a recursion maps a unit vector to a vector of norm about one; what is left of it after
# orthogonalization is information or rounding. Keeping a rounding vector overstates the loss, dropping
# information understates it. On graphs with metropolis weights no length between 2e-13 and 5e-3 occurred;
# a length between SURELY_ROUNDING and SURELY_INFORMATION is doubtful and goes to exact arithmetic
# (see `RankMonitor`).
TOLERANCE = 1e-10  # a shorter vector is dropped
SURELY_ROUNDING = 1e-12  # a shorter vector is rounding
SURELY_INFORMATION = 1e-5  # a longer vector is information
SHORT_LENGTH = 0.01  # a step that leaves less enlarges the error of the steps before
LEAST_LENGTH_PRODUCT = 1e-6  # of all short lengths: an error of 1e-16 becomes 1e-10


class RankMonitor:
    """What the steps of a recursion kept and dropped, and whether floating point could tell."""

    def __init__(self) -> None:
        self.dropped = self._between = False
        self._product = 1.0

    def note(self, lengths: np.ndarray) -> None:
        """Take the lengths that one step left of unit vectors."""
        retained = lengths[lengths > TOLERANCE]
        self.dropped |= len(retained) < len(lengths)
        self._between |= bool(((lengths > SURELY_ROUNDING) & (lengths < SURELY_INFORMATION)).any())
        least = float(retained.min(initial=1.0))
        if least < SHORT_LENGTH:
            self._product *= least

    @property
    def doubtful(self) -> bool:
        """Whether a length was neither clearly there nor clearly rounding, or too many were short."""
        return self._between or self._product < LEAST_LENGTH_PRODUCT


class Basis:
    """Orthonormal functionals of the present state, with the numbers the observer knows them to be.

    ``columns`` is (coordinates, rank): the state, then fresh noises; ``values`` is (rank, dim). It moves
    backwards in time: a functional f of the next state is the functional ``transition.T f`` of the present.
    """

    def __init__(self, size: int, dim: int = 0) -> None:
        self.size = size
        self.columns = np.zeros((size, 0))
        self.values = np.zeros((0, dim))
        self.monitor = RankMonitor()

    def add_unit(self, coordinates: Sequence[int], values: np.ndarray | None = None) -> None:
        """Add unit vectors: the observer sees these coordinates themselves."""
        index = np.asarray(coordinates, dtype=np.intp)
        if not len(index):
            return
        seen = np.zeros((len(index), self.values.shape[1])) if values is None else values
        if self.columns.shape[1]:
            self.values = self.values - self.columns[index].T @ seen
            self.columns = self.columns.copy()
            self.columns[index] = 0.0
            self.orthonormalize()
        units = np.zeros((self.columns.shape[0], len(index)))
        units[index, np.arange(len(index))] = 1.0
        self.columns = np.hstack([units, self.columns])
        self.values = np.vstack([seen, self.values])

    def step_back(self, event: ApplyMatrix | AveragePair | AddNoise | FillMemory) -> None:
        """Turn functionals of the state after an event into functionals of the state before it."""
        state, noises = self.columns[: self.size], self.columns[self.size :]
        if isinstance(event, AddNoise):
            if event.offset:  # the first noise is the state itself
                self.columns = np.vstack([state, event.std * state[: event.count], noises])
        elif isinstance(event, FillMemory):
            n = self.size // 2
            self.columns = state[:n] + event.factor * state[n:]
            self.orthonormalize()
        elif not self.columns.shape[1]:
            return
        elif isinstance(event, ApplyMatrix):
            self.columns = np.vstack([event.transition.T @ state, noises])
            self.orthonormalize()
        else:
            self._average_back(event.one, event.other)

    def _average_back(self, u: int, v: int) -> None:
        """Step back through one pair average, in time proportional to the size of the basis.

        A reflection gathers the difference of the two rows in the first column; all other columns are
        then untouched by the average, so only the first has to be normalized again, or dropped.
        """
        self.columns, self.values = _gather(self.columns, self.values, self.columns[u] - self.columns[v])
        first = self.columns[:, 0]
        first[u] = first[v] = 0.5 * (first[u] + first[v])
        length = float(np.linalg.norm(first))
        self.monitor.note(np.array([length]))
        if length > TOLERANCE:
            first /= length
            self.values[0] /= length
        else:
            self.columns, self.values = self.columns[:, 1:], self.values[1:]

    def orthonormalize(self) -> None:
        """Restore orthonormal columns after a step; directions below `TOLERANCE` are dropped and noted."""
        if self.columns.shape[1]:
            self.columns, back = orthonormal(self.columns, self.monitor)
            self.values = back.T @ self.values


def _gather(columns: np.ndarray, values: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotate the basis by a Householder reflection that maps ``row`` to a multiple of the first column."""
    mirror = row.copy()
    mirror[0] += math.copysign(float(np.linalg.norm(row)), row[0])
    size = float(mirror @ mirror)
    if size == 0.0:
        return columns.copy(), values.copy()
    return (
        columns - np.outer(columns @ mirror, mirror * (2 / size)),
        values - np.outer(mirror * (2 / size), mirror @ values),
    )


def orthonormal(columns: np.ndarray, monitor: RankMonitor | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthonormal basis of the span and the matrix that makes it, ``columns @ back``."""
    if columns.shape[0] > columns.shape[1]:
        outer, triangle = np.linalg.qr(columns)
        inner, size, right = np.linalg.svd(triangle)
        left = outer @ inner
    else:
        left, size, right = np.linalg.svd(columns, full_matrices=False)
    if monitor is not None:
        monitor.note(size)
    keep = size > TOLERANCE
    return left[:, : len(size)][:, keep], right[: len(size)][keep].T / size[keep]


def krylov_basis(
    W: sparse.csr_array, senders: Sequence[int], rounds: int, known: Sequence[int], monitor: RankMonitor
) -> np.ndarray:
    """Return an orthonormal basis of span{W^k e_w : w in senders, k < rounds}, with ``known`` removed.

    Block Lanczos with full re-orthogonalization, twice. With the observers' own coordinates in the basis
    from the start, applying ``W`` to the newest block alone is enough, because ``W e_v`` lies in the span
    of ``v`` and its neighbors.
    """
    n = W.shape[0]
    known = sorted(set(known))
    fresh = [w for w in senders if w not in set(known)]
    newest = _units(n, fresh)
    # One preallocated array, Fortran order: blocks are appended as columns, without copies.
    limit = min(n, len(known) + len(fresh) * rounds)
    basis = np.empty((n, limit), order="F")
    basis[:, : len(known)] = _units(n, known)
    basis[:, len(known) : len(known) + len(fresh)] = newest
    used = len(known) + len(fresh)
    for _ in range(1, rounds):
        if not newest.shape[1] or used == n:
            break
        block = W @ newest
        for _ in range(2):
            block -= basis[:, :used] @ (basis[:, :used].T @ block)
        newest, _back = orthonormal(block, monitor)
        # what survives may have been tiny: it is orthogonal to the basis only after it is normalized
        newest -= basis[:, :used] @ (basis[:, :used].T @ newest)
        newest = newest[:, : limit - used]
        basis[:, used : used + newest.shape[1]] = newest
        used += newest.shape[1]
    return basis[:, len(known) : used]


def _units(n: int, index: Sequence[int]) -> np.ndarray:
    columns = np.zeros((n, len(index)), order="F")
    columns[list(index), np.arange(len(index))] = 1.0
    return columns
