"""Exact row spaces over prime fields: whether an observer can compute a value.

Rows of what an observer sees become parallel as a protocol converges, so floating point cannot always say
whether a node is determined. Gossip weights are rational numbers, and the rank of a rational matrix modulo a
prime is its true rank except for the few primes that divide certain minors: two primes decide. All primes
are ``2**31 - c`` with small ``c``: a product fits in 64 bits and is reduced by two shifts, without division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numba import njit
from scipy import sparse

# two folds of a 62-bit product stay below 2 p for offsets up to 2^11
PRIMES = tuple(2**31 - offset for offset in (1, 19, 61, 69, 85, 99, 105, 151, 159, 171))

Residues = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr, indices and residues of a csr matrix


class RowSpace:
    """A growing row space over one prime field, kept in echelon form."""

    def __init__(self, width: int, prime: int = PRIMES[0]) -> None:
        self.prime = prime
        self.rank = 0
        self._offset = np.uint64(2**31 - prime)
        self._basis = np.zeros((min(width, 64), width), dtype=np.uint64)
        self._pivots = np.zeros(width, dtype=np.int64)
        self._reduced = True

    def add(self, rows: np.ndarray) -> np.ndarray:
        """Add residue rows ``(m, width)``; return the positions of the rows that were new."""
        rows = np.array(rows, dtype=np.uint64, order="C", ndmin=2)
        needed = min(self.rank + len(rows), self._basis.shape[1])
        if needed > len(self._basis):
            grown = np.zeros((min(2 * needed, self._basis.shape[1]), self._basis.shape[1]), np.uint64)
            grown[: self.rank] = self._basis[: self.rank]
            self._basis = grown
        before = self.rank
        is_new = np.zeros(len(rows), dtype=np.bool_)
        self.rank = _extend(self._basis, self._pivots, self.rank, rows, is_new, self._offset)
        self._reduced = self._reduced and self.rank == before
        return np.flatnonzero(is_new)

    @property
    def full(self) -> bool:
        """Whether every vector is in the space."""
        return self.rank == self._basis.shape[1]

    def newest(self, count: int) -> np.ndarray:
        """Return the last ``count`` basis rows, reduced against the ones before them."""
        return self._basis[self.rank - count : self.rank].copy()

    def reduced(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pivots and reduced rows: each row is 1 at its own pivot and 0 at all others."""
        if not self._reduced:
            _back_substitute(self._basis, self._pivots, self.rank, self._offset)
            self._reduced = True
        order = np.argsort(self._pivots[: self.rank])
        return self._pivots[: self.rank][order], self._basis[: self.rank][order]

    def determined(self) -> list[int]:
        """Return the columns ``u`` whose unit vector lies in the space, ascending."""
        if self.full:
            return list(range(self._basis.shape[1]))
        pivots, rows = self.reduced()
        return pivots[np.count_nonzero(rows, axis=1) == 1].tolist()


@dataclass(frozen=True, eq=False)
class ExactMatrix:
    """A sparse matrix in exact numbers: its csr pattern and its fractions."""

    source: sparse.csr_array
    indptr: np.ndarray
    indices: np.ndarray
    entries: list[Fraction]
    _residues: dict[int, np.ndarray] = field(default_factory=dict)

    @cached_property
    def transposed(self) -> ExactMatrix:
        """The transpose, with the same fractions."""
        numbers = np.arange(1.0, len(self.entries) + 1)
        moved = sparse.csr_array((numbers, self.indices, self.indptr), shape=self.source.shape).T.tocsr()
        entries = [self.entries[int(number) - 1] for number in moved.data]
        return ExactMatrix(self.source, moved.indptr, moved.indices, entries)

    def times(self, rows: np.ndarray, prime: int) -> np.ndarray:
        """Return the matrix times rows of residues modulo a prime."""
        if prime not in self._residues:
            self._residues[prime] = residues(self.entries, prime)
        return sparse_times(self.indptr, self.indices, self._residues[prime], rows, prime)


def rational_entries(matrix: sparse.csr_array) -> list[Fraction]:
    """Return the stored entries of a sparse matrix as the rational numbers that were meant.

    A float nearest to a fraction of denominator up to 100,000 (a third, stored as 0.333...) stands for
    that fraction. If any entry is no such float, every entry is taken at its exact binary value instead.
    The diagonal of a row that sums to one is one minus the rest of the row.
    """
    matrix = sparse.csr_array(matrix)
    values, where = np.unique(matrix.data, return_inverse=True)
    row_of = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    diagonal = matrix.indices == row_of
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    derived = diagonal & (np.abs(sums - 1) <= 1e-12)[row_of]
    small = {i: _nearest(values[i]) for i in np.unique(where[~derived]).tolist()}
    if any(fraction is None for fraction in small.values()):
        return [Fraction(value) for value in matrix.data.tolist()]
    entries: list[Fraction | None] = [
        None if skip else small[i] for i, skip in zip(where.tolist(), derived.tolist(), strict=True)
    ]
    for position in np.flatnonzero(derived).tolist():
        row = slice(int(matrix.indptr[row_of[position]]), int(matrix.indptr[row_of[position] + 1]))
        rest = sum((entry for entry in entries[row] if entry is not None), start=Fraction(0))
        entries[position] = 1 - rest
    return entries  # type: ignore[return-value]


def residues(entries: Sequence[Fraction], prime: int) -> np.ndarray:
    """Return fractions modulo a prime."""
    distinct = {entry: residue(entry, prime) for entry in set(entries)}
    return np.array([distinct[entry] for entry in entries], dtype=np.uint64)


def residue(value: Fraction, prime: int) -> int:
    """Return a fraction modulo a prime."""
    return value.numerator * pow(value.denominator, -1, prime) % prime


def _nearest(value: float) -> Fraction | None:
    fraction = Fraction(value).limit_denominator(100_000)
    near = abs(fraction - Fraction(value)) <= Fraction(abs(value)) * Fraction(3, 2**53)
    return fraction if near else None


@njit(cache=True, inline="always")
def _fold(x: np.uint64, offset: np.uint64) -> np.uint64:
    """Reduce x < 2**62 modulo p = 2**31 - offset."""
    mask = np.uint64(0x7FFFFFFF)
    x = (x & mask) + offset * (x >> np.uint64(31))
    x = (x & mask) + offset * (x >> np.uint64(31))
    p = mask + np.uint64(1) - offset
    return x - p if x >= p else x


@njit(cache=True)
def _inverse(x: np.uint64, offset: np.uint64) -> np.uint64:
    """Return x**(p-2) modulo p."""
    exponent = np.uint64(0x80000000) - offset - np.uint64(2)
    result = np.uint64(1)
    while exponent > np.uint64(0):
        if exponent & np.uint64(1):
            result = _fold(result * x, offset)
        x = _fold(x * x, offset)
        exponent = exponent >> np.uint64(1)
    return result


@njit(cache=True)
def _extend(
    basis: np.ndarray, pivots: np.ndarray, rank: int, rows: np.ndarray, is_new: np.ndarray, offset: np.uint64
) -> int:
    """Reduce each row against the basis and append what is left of it, scaled to a pivot of one."""
    width = basis.shape[1]
    p = np.uint64(0x80000000) - offset
    for r in range(rows.shape[0]):
        if rank == width:
            break
        row = rows[r]
        for i in range(rank):
            factor = row[pivots[i]]
            if factor != 0:
                factor = p - factor
                b = basis[i]
                for k in range(width):
                    row[k] = _fold(row[k] + factor * b[k], offset)
        lead = -1
        for k in range(width):
            if row[k] != 0:
                lead = k
                break
        if lead < 0:
            continue
        scale = _inverse(row[lead], offset)
        for k in range(width):
            basis[rank, k] = _fold(row[k] * scale, offset)
        pivots[rank] = lead
        is_new[r] = True
        rank += 1
    return rank


@njit(cache=True)
def _back_substitute(basis: np.ndarray, pivots: np.ndarray, rank: int, offset: np.uint64) -> None:
    p = np.uint64(0x80000000) - offset
    for j in range(rank - 1, 0, -1):
        b = basis[j]
        for i in range(j):
            factor = basis[i, pivots[j]]
            if factor != 0:
                factor = p - factor
                for k in range(basis.shape[1]):
                    basis[i, k] = _fold(basis[i, k] + factor * b[k], offset)


@njit(cache=True)
def sparse_times(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, dense: np.ndarray, prime: int
) -> np.ndarray:
    """Return a sparse residue matrix times a dense one; rows that are unit vectors are copied."""
    offset = np.uint64(2**31 - prime)
    out = np.zeros((len(indptr) - 1, dense.shape[1]), np.uint64)
    for v in range(out.shape[0]):
        start, stop = indptr[v], indptr[v + 1]
        if stop - start == 1 and data[start] == 1:
            out[v] = dense[indices[start]]
            continue
        for e in range(start, stop):
            w, weight = indices[e], data[e]
            for k in range(dense.shape[1]):
                out[v, k] = _fold(out[v, k] + weight * dense[w, k], offset)
    return out
