"""Partitions of records among users."""

import numpy as np
import pytest

from sottovoce.data import by_label, by_size, dirichlet, equal, skew_matrix
from sottovoce.errors import DataError


@pytest.mark.parametrize("skew", [0.0, 0.25, 1.0])
def test_label_skew_follows_the_matrix(skew):
    y = np.repeat(np.arange(10), 1000)
    parts = by_label(y, 5, skew, np.random.default_rng(0))
    A = skew_matrix(5, 10, skew)
    assert np.allclose(A.sum(axis=0), 1)
    shares = np.array([[np.mean(np.isin(np.flatnonzero(y == c), part)) for c in range(10)] for part in parts])
    assert np.abs(shares - A).max() <= 1e-3
    assert sorted(np.concatenate(parts)) == list(range(10_000))


def test_partitions_are_disjoint_and_repeatable():
    for make in (lambda rng: equal(103, 10, rng), lambda rng: dirichlet(np.arange(103) % 3, 10, 0.05, rng)):
        once, again = make(np.random.default_rng(7)), make(np.random.default_rng(7))
        assert all((a == b).all() for a, b in zip(once, again, strict=True))
        rows = np.concatenate(once)
        assert len(np.unique(rows)) == len(rows)
        assert min(map(len, once)) >= 1
    assert [len(part) for part in by_size([1, 4], 6, np.random.default_rng(0))] == [1, 4]
    with pytest.raises(DataError, match="there are 6"):
        by_size([3, 4], 6, np.random.default_rng(0))
    with pytest.raises(DataError, match="take fewer users"):
        equal(3, 4, np.random.default_rng(0))
