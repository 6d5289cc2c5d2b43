"""Least noise on a tree: closed form against the linear program and against Tree's own views."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog
from tests.leakage.test_view import by_general_recursion

import sottovoce as sv
from sottovoce.accounting.tree_noise import (
    fresh_tree_noise,
    least_tree_noise,
    tree_hiding,
    tree_noise_program,
    worst_tree_coalitions,
)
from sottovoce.algorithms import ConsensusSGD
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.protocols import Tree, few_leaf_tree


def worst_share(tree, variances, colluders=1):
    """The largest (mu / mu_local)**2 over coalitions; infinity where somebody's row is in clear."""
    least = tree_hiding(tree, variances, colluders).min()
    return 1 / least if least > 0 else math.inf


def random_tree(n, rng):
    """Every labeled tree equally likely."""
    return Tree(sv.graphs.complete(n), kind="uniform", rng=rng)


@pytest.mark.parametrize("seed", range(40))
def test_a_coalition_in_clear_sees_the_components(seed):
    """h_C(u) = 1 / |component of u in the tree minus C|, by the tree's general recursion."""
    rng = np.random.default_rng(seed)
    tree = random_tree(int(rng.integers(3, 11)), rng)
    coalition = sorted(rng.choice(tree.n, size=int(rng.integers(1, tree.n)), replace=False).tolist())
    expected = np.zeros(tree.n)
    blocks = tree.blocks(coalition)
    assert sorted([*coalition, *itertools.chain(*(b.tolist() for b in blocks))]) == list(range(tree.n))
    for block in blocks:
        expected[block] = 1 / len(block)
    general = by_general_recursion(tree, tuple(coalition))
    np.testing.assert_allclose(general.leakage(), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_closed_form_is_the_optimum_of_the_linear_program(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(int(rng.integers(3, 11)), rng)
    for c in range(1, min(4, tree.n)):
        floor = float(rng.choice([0.0, 0.1, 0.7]))
        closed = least_tree_noise(tree, c, floor=floor)
        program = tree_noise_program(tree, c, floor=floor)
        assert closed.sum() == pytest.approx(program.sum(), abs=1e-7)
        assert worst_share(tree, closed, c) <= 1 + 1e-12
        assert worst_share(tree, program, c) <= 1 + 1e-12


def every_block(tree, c):
    """(coalition, block) one by one, for coalitions of exactly c."""
    for coalition in itertools.combinations(range(tree.n), c):
        for block in tree.blocks(coalition):
            yield coalition, block


@pytest.mark.parametrize("seed", range(12))
def test_the_worst_coalition_sits_beside_its_victim(seed):
    """The closed form against every coalition, and the coalition it names against its own blocks."""
    rng = np.random.default_rng([9, seed])
    tree = random_tree(int(rng.integers(3, 10)), rng)
    noise = rng.lognormal(sigma=2.0, size=tree.n) * (rng.random(tree.n) < 0.8)
    for c in range(1, min(5, tree.n)):
        least = np.full(tree.n, np.inf)
        for _, block in every_block(tree, c):
            least[block] = np.minimum(least[block], math.fsum(noise[block]))
        np.testing.assert_allclose(tree_hiding(tree, noise, c), least, rtol=1e-12)
        for u, coalition in enumerate(worst_tree_coalitions(tree, noise, c)):
            assert u not in coalition
            assert len(coalition) <= c
            (around,) = (block for block in tree.blocks(coalition) if u in block)
            assert math.fsum(noise[around]) == pytest.approx(least[u], rel=1e-12)


def through_all_coalitions(tree, c, required):
    """The least total by one constraint per coalition and component, as the mathematics is written."""
    rows, sides = [], []
    for size in range(1, c + 1):
        for _, block in every_block(tree, size):
            rows.append(-np.isin(np.arange(tree.n), block).astype(float))
            sides.append(-required[block].max())
    return linprog(np.ones(tree.n), A_ub=np.array(rows), b_ub=np.array(sides), method="highs").fun


@pytest.mark.parametrize("seed", range(8))
def test_the_short_program_finds_what_all_coalitions_ask(seed):
    rng = np.random.default_rng([11, seed])
    tree = random_tree(int(rng.integers(4, 9)), rng)
    required = rng.lognormal(sigma=1.0, size=tree.n)
    for c in (1, 2, 3):
        noise = tree_noise_program(tree, c, required=required)
        assert noise.sum() == pytest.approx(through_all_coalitions(tree, c, required), rel=1e-7)
        for size in range(1, c + 1):
            for _, block in every_block(tree, size):
                assert math.fsum(noise[block]) >= required[block].max() * (1 - 1e-12)


def test_sixty_members_and_five_colluders_are_no_work():
    rng = np.random.default_rng(0)
    tree = random_tree(60, rng)
    assert tree_noise_program(tree, 5).sum() == pytest.approx(least_tree_noise(tree, 5, floor=0.0).sum())


def test_one_colluder_more_is_told():
    path = Tree(sv.graphs.path(10))
    assert worst_share(path, least_tree_noise(path, 1, floor=0.0), 2) == math.inf
    assert worst_share(path, least_tree_noise(path, 1, floor=0.05), 2) == pytest.approx(20)
    assert worst_share(path, np.ones(10), 3) == 1


LEAVES = {"florentine": 4, "karate": 11, "grid:4:4": 2, "grid:8:8": 2, "hypercube:5": 2, "complete:8": 2,
          "star:9": 8}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_trees_with_few_leaves(name):
    network = sv.graphs.parse(name)
    tree = Tree(network, parents=few_leaf_tree(network, np.random.default_rng(1)))
    degrees = np.bincount(
        np.concatenate([tree.parents[tree.parents >= 0], np.flatnonzero(tree.parents >= 0)])
    )
    assert (degrees == 1).sum() == LEAVES[name]
    assert least_tree_noise(tree, 1, floor=0.0).sum() == LEAVES[name]


@pytest.mark.parametrize("seed", range(6))
def test_few_leaves_against_all_spanning_trees(seed):
    graph = nx.gnp_random_graph(6, 0.5, seed=seed)
    graph.add_edges_from((v, v + 1) for v in range(4))
    graph.add_edge(0, 5)
    trees = nx.SpanningTreeIterator(graph)
    best = min(sum(degree == 1 for _, degree in tree.degree) for tree in trees)
    network = sv.graphs.from_networkx(graph)
    chosen = Tree(network, parents=few_leaf_tree(network, np.random.default_rng(0)))
    assert least_tree_noise(chosen, 1, floor=0.0).sum() == best


bad = [
    (lambda: least_tree_noise(Tree(sv.graphs.path(3)), 3, floor=0.0), "below the 3 members"),
    (lambda: least_tree_noise(Tree(sv.graphs.path(3)), 1, floor=1.5), "floor"),
    (lambda: fresh_tree_noise([Tree(sv.graphs.path(60))] * 2, 4), "too many"),
]


@pytest.mark.parametrize(("call", "words"), bad)
def test_bad_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_site_weights_with_optimal_noise():
    plan = ConsensusSGD(
        GLM(), sv.protocols.Tree(sv.graphs.star(4)), steps=2, clip_norm=1.0, noise_multiplier=6.0,
        sizes=[10, 40, 20, 80], weighting="sites", noise_allocation="optimal", floor=0.01,
    )  # fmt: skip
    losses = [plan.privacy("network", user=u).epsilon(1e-5) for u in range(4)]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    assert min(noise_multipliers(plan)) < 0.97 * max(noise_multipliers(plan))
