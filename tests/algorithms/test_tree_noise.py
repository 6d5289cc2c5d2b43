"""Least noise on a tree: closed form against the linear program, and that against every coalition."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from tests.protocols.cases import random_tree

import sottovoce as sv
from sottovoce.accounting.observation.coalitions import tree_hiding
from sottovoce.algorithms import ConsensusSGD
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.algorithms.tree_noise import fresh_tree_noise, least_tree_noise, tree_noise_program
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.protocols import Tree


def worst_share(tree, variances, colluders=1):
    """The largest (mu / mu_local)**2 over coalitions; infinity where somebody's row is in clear."""
    least = tree_hiding(tree, variances, colluders).min()
    return 1 / least if least > 0 else math.inf


@pytest.mark.parametrize("seed", range(30))
def test_closed_form_is_the_optimum_of_the_linear_program(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(int(rng.integers(3, 11)), rng)
    for c in range(1, min(4, tree.n)):
        floor = float(rng.choice([0.0, 0.1, 0.7]))
        closed = least_tree_noise(tree, c, floor=floor)
        program = tree_noise_program(tree, c, floor=floor)
        assert closed.sum() == pytest.approx(program.sum(), abs=1e-7)
        assert max(worst_share(tree, closed, c), worst_share(tree, program, c)) <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_the_short_program_finds_what_all_coalitions_ask(seed):
    """The least total by one constraint per coalition and component, as the mathematics is written."""
    rng = np.random.default_rng([11, seed])
    tree = random_tree(int(rng.integers(4, 9)), rng)
    required = rng.lognormal(sigma=1.0, size=tree.n)
    blocks = []
    for c in (1, 2, 3):
        blocks += [b for who in itertools.combinations(range(tree.n), c) for b in tree.blocks(who)]
        inside = np.array([np.isin(np.arange(tree.n), block) for block in blocks], dtype=float)
        needs = np.array([required[block].max() for block in blocks])
        noise = tree_noise_program(tree, c, required=required)
        least = linprog(np.ones(tree.n), A_ub=-inside, b_ub=-needs, method="highs").fun
        assert noise.sum() == pytest.approx(least, rel=1e-7)
        assert (inside @ noise >= needs * (1 - 1e-12)).all()


def test_sixty_members_and_five_colluders_are_no_work():
    tree = random_tree(60, np.random.default_rng(0))
    assert tree_noise_program(tree, 5).sum() == pytest.approx(least_tree_noise(tree, 5, floor=0.0).sum())


def test_one_colluder_more_is_told():
    path = Tree(sv.graphs.path(10))
    assert worst_share(path, least_tree_noise(path, 1, floor=0.0), 2) == math.inf
    assert worst_share(path, least_tree_noise(path, 1, floor=0.05), 2) == pytest.approx(20)
    assert worst_share(path, np.ones(10), 3) == 1


INVALID = [
    (lambda: least_tree_noise(Tree(sv.graphs.path(3)), 3, floor=0.0), "below the 3 members"),
    (lambda: least_tree_noise(Tree(sv.graphs.path(3)), 1, floor=1.5), "floor"),
    (lambda: fresh_tree_noise([Tree(sv.graphs.path(60))] * 2, 4), "too many"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_input_is_refused_in_one_sentence(call, words):
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
