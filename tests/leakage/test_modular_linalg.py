"""Exact arithmetic modulo primes against rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from sottovoce.leakage import modular_linalg


def rational_rref(rows):
    rows, pivots, r = [list(map(Fraction, row)) for row in rows], [], 0
    for c in range(len(rows[0])):
        pivot = next((i for i in range(r, len(rows)) if rows[i][c] != 0), None)
        if pivot is None:
            continue
        rows[r], rows[pivot] = rows[pivot], rows[r]
        rows[r] = [x / rows[r][c] for x in rows[r]]
        for i in range(len(rows)):
            if i != r and rows[i][c] != 0:
                rows[i] = [a - rows[i][c] * b for a, b in zip(rows[i], rows[r], strict=True)]
        pivots.append(c)
        r += 1
    return rows[:r], pivots


@pytest.mark.parametrize("seed", range(20))
def test_rank_and_determined_columns_equal_rational_arithmetic(seed):
    rng = np.random.default_rng(seed)
    n, rank = int(rng.integers(2, 9)), int(rng.integers(1, 8))
    rows = rng.integers(-3, 4, (rank, n)) * (rng.uniform(size=(rank, n)) < 0.5)
    rows = rng.integers(-2, 3, (10, rank)) @ rows
    form, pivots = rational_rref(rows.tolist())
    for prime in modular_linalg.PRIMES[:2]:
        space = modular_linalg.RowSpace(n, prime)
        space.add(rows % prime)
        assert space.rank == len(form)
        expected = [p for p, row in zip(pivots, form, strict=True) if sum(x != 0 for x in row) == 1]
        assert space.determined() == expected


def test_folding_is_reduction():
    rng = np.random.default_rng(0)
    for prime in (modular_linalg.PRIMES[0], modular_linalg.PRIMES[-1], 2**31 - 2045):
        a, b = rng.integers(0, prime, (2, 1000)).tolist()
        offset = np.uint64(2**31 - prime)
        for x, y in [*zip(a, b, strict=True), (prime - 1, prime - 1), (0, 5)]:
            total = x * y + prime - 1
            assert int(modular_linalg._fold(np.uint64(total), offset)) == total % prime


def test_fractions_are_recognized_or_taken_at_their_binary_value():
    W = np.array([[1 - 1 / 7 - 1 / 11, 1 / 7, 1 / 11], [1 / 7, 6 / 7, 0], [1 / 11, 0, 10 / 11]])
    entries = modular_linalg.rational_entries(sparse.csr_array(W))
    assert entries[0] == 1 - Fraction(1, 7) - Fraction(1, 11)
    assert entries[1] == Fraction(1, 7)
    odd = sparse.csr_array(np.array([[0.0, np.sqrt(0.5)], [0.25, 0.0]]))
    assert modular_linalg.rational_entries(odd) == [Fraction(float(np.sqrt(0.5))), Fraction(1, 4)]
