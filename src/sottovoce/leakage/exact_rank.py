"""The span of what is seen, in exact arithmetic: for weights that floating point cannot decide about.

A message through a faint weight still reveals its sender exactly, but a recursion in double precision may
take its direction for rounding and drop it, and then the loss is understated. Weights are rational numbers,
so whether a direction is there is decided here modulo primes (`modular_linalg`), and the directions are
computed in as many binary digits as the weights need, by the Gram-Schmidt process on whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from math import isqrt

import numpy as np
from scipy import sparse

from sottovoce.leakage.modular_linalg import PRIMES, ExactMatrix, RowSpace, rational_entries, residue
from sottovoce.leakage.trace import AddNoise, AveragePair, ExecutionTrace, FillMemory, Observe

EXACT_WORK = 4e5  # rank * rank * coordinates up to which doubt is settled in exact arithmetic
SPARE_BITS = 64  # binary digits that must be left after all that elimination can lose
MOST_BITS = 1 << 14  # binary digits at which the exact form gives up


def independent_rows(trace: ExecutionTrace) -> list[int]:
    """Return the numbers of the seen rows that are not combinations of the ones before.

    Two primes of 31 bits decide: modulo a prime a rank can only fall, and it falls only if the prime divides
    every minor of full size; both must do so for a direction to be missed.
    """
    if not any(trace.observed):
        return []
    decide = _independent_powers if trace.fixed else _independent_observations
    return max((decide(trace, prime) for prime in PRIMES[:2]), key=len)


def exact_basis(trace: ExecutionTrace) -> np.ndarray | None:
    """Return an orthonormal basis (coordinates, rank) of all that is seen, or None where it would take ages.

    The rank is exact; the numbers are right to the last digits of double precision.
    """
    chosen = independent_rows(trace)
    if float(len(chosen)) ** 2 * trace.coordinates > EXACT_WORK:
        return None
    bits = 256
    while bits <= MOST_BITS:
        basis, lost = _orthogonal(trace, chosen, bits)
        if basis is not None and lost + SPARE_BITS <= bits:
            shift = bits - 60
            columns = [[float(int(x) >> shift) for x in q] for q in basis]
            return np.array(columns, dtype=np.float64).reshape(len(basis), trace.coordinates).T / 2.0**60
        bits = max(2 * bits, lost + 2 * SPARE_BITS)
    return None


def _exact(trace: ExecutionTrace, matrix: sparse.csr_array) -> ExactMatrix:
    """Return a matrix with its weights as the rational numbers that were meant."""
    exact = trace.exact_matrices.get(id(matrix))
    if exact is None or exact.source is not matrix:
        exact = ExactMatrix(matrix, matrix.indptr, matrix.indices, rational_entries(matrix))
        trace.exact_matrices[id(matrix)] = exact
    return exact


# ---- the run forwards, in residues or in whole numbers ----------------------------------------------------


class _PrimeField:
    """Residues modulo one prime, in uint64."""

    dtype = np.uint64

    def __init__(self, prime: int) -> None:
        self._prime, self._modulus = prime, np.uint64(prime)

    def scaled(self, rows: np.ndarray, factor: Fraction) -> np.ndarray:
        return np.asarray(rows * np.uint64(self.one(factor)) % self._modulus)

    def total(self, *terms: np.ndarray | int) -> np.ndarray:
        return np.asarray(sum(terms)) % self._modulus

    def one(self, factor: Fraction) -> int:
        return residue(factor, self._prime)

    def product(self, trace: ExecutionTrace, matrix: sparse.csr_array, rows: np.ndarray) -> np.ndarray:
        return _exact(trace, matrix).times(rows, self._prime)


class _Whole:
    """Whole numbers in units of ``2**-bits``; every product is rounded down to a unit."""

    dtype = np.object_

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def scaled(self, rows: np.ndarray, factor: Fraction) -> np.ndarray:
        return np.asarray(rows * factor.numerator // factor.denominator)

    def total(self, *terms: np.ndarray | int) -> np.ndarray:
        return np.asarray(sum(terms))

    def one(self, factor: Fraction) -> int:
        return (factor.numerator << self._bits) // factor.denominator

    def product(self, trace: ExecutionTrace, matrix: sparse.csr_array, rows: np.ndarray) -> np.ndarray:
        return self.times(_exact(trace, matrix), rows)

    def times(self, matrix: ExactMatrix, rows: np.ndarray) -> np.ndarray:
        after = np.zeros_like(rows)
        for v in range(len(rows)):
            for e in range(int(matrix.indptr[v]), int(matrix.indptr[v + 1])):
                weight, row = matrix.entries[e], rows[matrix.indices[e]]
                if weight:
                    after[v] = after[v] + (row if weight == 1 else self.scaled(row, weight))
        return after


def _observations(trace: ExecutionTrace, arithmetic: _PrimeField | _Whole) -> Iterator[np.ndarray]:
    """Yield the rows that are seen in each round, as combinations of the coordinates."""
    n = trace.nodes
    state = np.zeros((trace.size, trace.coordinates), dtype=arithmetic.dtype)
    for event in trace.events:
        if isinstance(event, Observe):
            yield state[list(event.nodes)]
        elif isinstance(event, AddNoise):
            place = np.arange(event.count), event.offset + np.arange(event.count)
            state[place] = arithmetic.total(state[place], arithmetic.one(Fraction(event.std)))
        elif isinstance(event, AveragePair):
            both = arithmetic.total(state[event.one], state[event.other])
            state[event.one] = state[event.other] = arithmetic.scaled(both, Fraction(1, 2))
        elif isinstance(event, FillMemory):
            state[n:] = arithmetic.scaled(state[:n], Fraction(event.factor))
        else:
            present, before = state[:n], state[n:]
            state = arithmetic.product(trace, event.matrix, present)
            if event.memory is not None:
                mixed, scaled = state, arithmetic.scaled
                a, b, c, d, e = (Fraction(x) for part in event.memory for x in part)
                rows = arithmetic.total(scaled(mixed, a), scaled(before, b))
                memory = arithmetic.total(scaled(mixed, c), scaled(present, d), scaled(before, e))
                state = np.concatenate([rows, memory])


def _independent_observations(trace: ExecutionTrace, prime: int) -> list[int]:
    space = RowSpace(trace.coordinates, prime)
    independent: list[int] = []
    number = 0
    for rows in _observations(trace, _PrimeField(prime)):
        rows[:, list(trace.known)] = 0
        if len(rows):
            independent += [number + int(k) for k in space.add(rows)]
        number += len(rows)
        if space.rank == trace.coordinates - len(trace.known):
            break
    return independent


def _independent_powers(trace: ExecutionTrace, prime: int) -> list[int]:
    """Return the independent rows of a fixed trace: only new rows of a round bring new ones in the next."""
    space = RowSpace(trace.coordinates, prime)
    nodes, rounds = trace.observed[0], len(trace.observed)
    active = np.arange(len(nodes))
    rows = np.eye(trace.coordinates, dtype=np.uint64)[list(nodes)]
    transposed = _exact(trace, trace.matrix).transposed
    independent: list[int] = []
    for k in range(rounds):
        rows[:, list(trace.known)] = 0  # what is known of a row, and all that comes of it, is seen anyway
        new = space.add(rows)
        independent += [k * len(nodes) + int(active[i]) for i in new]
        if k + 1 == rounds or not len(new) or space.rank == trace.coordinates - len(trace.known):
            break
        active = active[new]
        rows = transposed.times(np.ascontiguousarray(space.newest(len(new)).T), prime).T
    return independent


def _chosen_rows(trace: ExecutionTrace, chosen: Sequence[int], bits: int) -> Iterator[np.ndarray]:
    """Yield the chosen rows, forwards in time, in units of ``2**-bits``."""
    whole, wanted = _Whole(bits), set(chosen)
    if not trace.fixed:
        every = (row for rows in _observations(trace, whole) for row in rows)
        yield from islice((row for k, row in enumerate(every) if k in wanted), len(wanted))
        return
    if not wanted:
        return
    # row w of the k-th power of the matrix is column w of the k-th power of its transpose
    nodes, transposed = trace.observed[0], _exact(trace, trace.matrix).transposed
    last = {number % len(nodes): number // len(nodes) for number in chosen}
    active = sorted(last)
    columns = np.zeros((trace.coordinates, len(active)), dtype=whole.dtype)
    columns[[nodes[i] for i in active], np.arange(len(active))] = whole.one(Fraction(1))
    for k in range(max(last.values()) + 1):
        yield from (columns[:, j] for j, i in enumerate(active) if k * len(nodes) + i in wanted)
        remain = [j for j, i in enumerate(active) if last[i] > k]
        active = [active[j] for j in remain]
        columns = whole.times(transposed, columns[:, remain])


def _orthogonal(
    trace: ExecutionTrace, chosen: Sequence[int], bits: int
) -> tuple[list[np.ndarray] | None, int]:
    """Run Gram-Schmidt on rows of whole numbers, a unit being ``2**bits``.

    Returns the basis and how many digits it may have lost: the share of a row that is left says by how
    much the error of everything before is enlarged.
    """
    lost = int(np.log2(trace.coordinates + len(trace.events) + 1)) + 4
    basis = np.zeros((len(chosen), trace.coordinates), dtype=object)
    for done, row in enumerate(_chosen_rows(trace, chosen, bits)):
        left = row.copy()
        left[list(trace.known)] = 0
        for turn in range(3):  # normalize, then take away what is known already, twice
            if turn and done:
                share = basis[:done].dot(left) >> bits
                left = left - (share.dot(basis[:done]) >> bits)
            length = isqrt(int((left * left).sum()))
            if length.bit_length() < SPARE_BITS:
                return None, lost + bits
            lost += max(0, bits + 1 - length.bit_length()) if turn < 2 else 0
            left = (left << bits) // length
        basis[done] = left
    return list(basis), lost
