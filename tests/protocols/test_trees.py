"""Spanning trees: what a coalition sees of them; uniform, capped, and with few leaves."""

import itertools

import networkx as nx
import numpy as np
import pytest
from tests.leakage.test_view import by_general_recursion
from tests.protocols.cases import random_tree

import sottovoce as sv
from sottovoce.protocols import Tree, few_leaf_tree, spanning_tree


@pytest.mark.parametrize("seed", range(40))
def test_a_coalition_in_clear_sees_the_components(seed):
    """h_C(u) = 1 / |component of u in the tree minus C|, by the tree's general recursion."""
    rng = np.random.default_rng(seed)
    tree = random_tree(int(rng.integers(3, 11)), rng)
    coalition = sorted(rng.choice(tree.n, size=int(rng.integers(1, tree.n)), replace=False).tolist())
    expected = np.zeros(tree.n)
    blocks = tree.blocks(coalition)
    assert sorted(itertools.chain(coalition, *(b.tolist() for b in blocks))) == list(range(tree.n))
    for block in blocks:
        expected[block] = 1 / len(block)
    general = by_general_recursion(tree, tuple(coalition))
    np.testing.assert_allclose(general.leakage(), expected, atol=1e-9)


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


def leaves(network, seed):
    """How many nodes of a tree with few leaves have one link."""
    tree = Tree(network, parents=few_leaf_tree(network, np.random.default_rng(seed)))
    links = np.stack([np.arange(tree.n), tree.parents])[:, tree.parents >= 0]
    return int((np.bincount(links.ravel()) == 1).sum())


LEAVES = {"florentine": 4, "karate": 11, "grid:4:4": 2, "grid:8:8": 2, "hypercube:5": 2, "complete:8": 2,
          "star:9": 8}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_trees_with_few_leaves(name):
    assert leaves(sv.graphs.parse(name), seed=1) == LEAVES[name]


@pytest.mark.parametrize("seed", range(6))
def test_few_leaves_against_all_spanning_trees(seed):
    graph = nx.gnp_random_graph(6, 0.5, seed=seed)
    graph.add_edges_from((v, v + 1) for v in range(4))
    graph.add_edge(0, 5)
    best = min(sum(degree == 1 for _, degree in tree.degree) for tree in nx.SpanningTreeIterator(graph))
    assert leaves(sv.graphs.from_networkx(graph), seed=0) == best
