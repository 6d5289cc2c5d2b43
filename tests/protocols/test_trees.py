"""Spanning trees: uniform and capped."""

import numpy as np

import sottovoce as sv
from sottovoce.protocols import spanning_tree


def test_uniform_trees_are_uniform():
    """Wilson's algorithm on a 4-cycle: each of the four trees a quarter of the time (chi-square)."""
    rng = np.random.default_rng(0)
    ring = sv.graphs.ring(4)
    missing = []
    for _ in range(4000):
        parents = spanning_tree(ring, kind="uniform", rng=rng)
        used = {tuple(sorted((u, int(p)))) for u, p in enumerate(parents) if p >= 0}
        (gone,) = {tuple(e) for e in ring.edges.tolist()} - used
        missing.append(gone)
    _, counts = np.unique(np.array(missing), axis=0, return_counts=True)
    assert len(counts) == 4
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3  # 0.999 quantile, 3 degrees of freedom


def test_capped_trees_keep_the_cap_where_they_can():
    rng = np.random.default_rng(0)
    parents = spanning_tree(sv.graphs.complete(20), kind="capped", rng=rng, max_children=2)
    assert np.bincount(parents[parents >= 0]).max() <= 2
    star = spanning_tree(sv.graphs.star(6), kind="capped", rng=rng, max_children=2)
    assert (star == -1).sum() == 1
    assert (star >= -1).all()
