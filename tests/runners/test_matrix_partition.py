"""The cut of a round: every rank's part of the product, put together, is the product."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.runners.matrix_partition import cut_matrix, slices


@given(
    n=st.integers(1, 24),
    ranks=st.integers(1, 5),
    density=st.floats(0, 1),
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([1, 2, 7]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_parts_make_the_product_bit_for_bit(n, ranks, density, seed, dim, dtype):
    rng = np.random.default_rng(seed)
    matrix = sparse.csr_array(np.where(rng.random((n, n)) < density, rng.normal(size=(n, n)), 0.0))
    if matrix.nnz:  # an explicit zero is no message
        matrix.data[0] = 0.0
    state = rng.normal(size=(n, dim)).astype(dtype)
    owner = rng.integers(ranks, size=n)
    cuts = [cut_matrix(matrix, owner, rank, dtype) for rank in range(ranks)]
    expected = matrix.astype(dtype) @ state
    for rank, cut in enumerate(cuts):
        hosted = state[owner == rank]
        rows = [state[owner == r][cuts[r].sends[rank]] for r in sorted(cut.receives)]
        assert {r: len(cuts[r].sends[rank]) for r in cut.receives} == cut.receives
        product = np.empty_like(hosted)
        cut.multiply_inner(hosted, product)
        cut.multiply_border(hosted, np.concatenate([np.empty((0, dim), dtype), *rows]), product)
        assert (product == expected[owner == rank]).all()
    silent = [(r, s) for r in range(ranks) for s in cuts[r].sends if r not in cuts[s].receives]
    assert not silent


def test_a_row_travels_once_however_many_edges_are_cut():
    star = sv.graphs.star(6).W
    assert cut_matrix(star, np.array([0, 0, 1, 1, 1, 1]), rank=0).rows_sent == 1


def test_slices_fill_every_rank():
    assert np.bincount(slices(11, 4)).tolist() == [3, 3, 3, 2]
    with pytest.raises(InvalidInput, match="start at most 3"):
        slices(3, 4)
