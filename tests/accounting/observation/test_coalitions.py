"""Which coalitions decide: named ones, any group of c members, on trees and under masks."""

import itertools
import math

import numpy as np
import pytest
from tests.accounting.small_plans import D, by_name, every, one, plan_of, stationary_plan
from tests.protocols.cases import random_tree

import sottovoce as sv
from sottovoce.accounting.observation import Averaging, Consensus
from sottovoce.accounting.observation.coalitions import tree_hiding, worst_tree_coalitions
from sottovoce.algorithms.tree_noise import least_tree_noise
from sottovoce.errors import InvalidInput
from sottovoce.privacy import account
from sottovoce.protocols import Masked, Tree


@pytest.mark.parametrize("seed", range(12))
def test_the_worst_coalition_sits_beside_its_victim(seed):
    """The closed form against every coalition, and the coalition it names against its own blocks."""
    rng = np.random.default_rng([9, seed])
    tree = random_tree(int(rng.integers(3, 10)), rng)
    noise = rng.lognormal(sigma=2.0, size=tree.n) * (rng.random(tree.n) < 0.8)
    for c in range(1, min(5, tree.n)):
        least = np.full(tree.n, np.inf)
        for coalition in itertools.combinations(range(tree.n), c):
            for block in tree.blocks(coalition):
                least[block] = np.minimum(least[block], math.fsum(noise[block]))
        np.testing.assert_allclose(tree_hiding(tree, noise, c), least, rtol=1e-12)
        for u, coalition in enumerate(worst_tree_coalitions(tree, noise, c)):
            assert u not in coalition
            assert len(coalition) <= c
            (around,) = (block for block in tree.blocks(coalition) if u in block)
            assert math.fsum(noise[around]) == pytest.approx(least[u], rel=1e-12)


def test_many_coalitions_on_a_tree_stay_exact():
    tree = sv.protocols.Tree(sv.graphs.complete(60), parents=[-1, *((v - 1) // 3 for v in range(1, 60))])
    stds = np.sqrt(least_tree_noise(tree, 3, floor=0.09)).tolist()
    plan = plan_of(Averaging(), every(1.0, stds, steps=1), n=60, steps=1, schedule=tree)
    assert account(plan, "local").mu == pytest.approx(1 / 0.3)
    assert account(plan, "colluders", colluders=3).mu == pytest.approx(1.0)  # one loud member is left
    assert account(plan, "colluders", colluders=4).mu == pytest.approx(1 / 0.3)


@pytest.mark.parametrize("model", [Averaging(), Consensus()], ids=["averaging", "consensus"])
def test_masked_sums_hide_each_agent_in_all_others(model):
    masked = Masked(sv.graphs.grid(4, 4), tolerate=2)
    plan = plan_of(model, every(1.0, 1.0, steps=1), n=16, steps=1, schedule=masked)
    assert account(plan, "network").mu == pytest.approx(math.sqrt(1 / 15))  # fifteen other rows hide one
    outside = account(plan, "outsider")
    assert (outside.label, outside.mu) == ("exact", pytest.approx(1 / 4))
    assert any("nobody's key" in sentence for sentence in outside.assumptions)
    assert account(plan, "local").mu == 1.0
    by_default = account(plan)
    assert by_default.mu == pytest.approx(math.sqrt(1 / 14))
    assert str(by_default.adversary) == "any 2 nodes together"
    assert "X25519, AES-256 and HMAC hold" in by_default.assumptions
    # whoever they are, and whether they follow the protocol or not
    assert not any(words in str(by_default.assumptions) for words in ("holds the keys", "honest but curious"))
    named = account(plan, "colluders", colluders=[0, 3, 5])
    assert named.mu == pytest.approx(math.sqrt(1 / 13))
    assert any("holds the keys of 0, 3, 5," in sentence for sentence in named.assumptions)


def test_largest_noise_coalition_is_worst_under_masks():
    masked = Masked(sv.graphs.grid(2, 3), tolerate=2)
    stds = [1.0, 5.0, 2.0, 4.0, 3.0, 1.0]
    plan = plan_of(Consensus(), every(1.0, stds, steps=1), n=6, steps=1, schedule=masked)
    assert account(plan, "network", user=0).mu == pytest.approx(1 / math.sqrt(1 + 4 + 16 + 9 + 1))
    assert account(plan, "network").mu == pytest.approx(1 / math.sqrt(1 + 4 + 16 + 9 + 1))
    assert account(plan, "colluders", colluders=2, user=1).mu == pytest.approx(1 / math.sqrt(1 + 25 + 4 + 1))


STAR = [(5, v) for v in range(5)]
CIRCLE = [(v, (v + 1) % 8) for v in range(8)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("n", "size", "partners", "tolerate"), [(6, 1, STAR, 0), (8, 2, CIRCLE, 1)], ids=["star", "circle"]
)
def test_every_step_of_a_masked_schedule_needs_its_certificate(n, size, partners, tolerate, turned):
    graph = sv.graphs.complete(n)
    steps = [Masked(graph, tolerate=size), Masked(graph, partners=partners, tolerate=tolerate)]

    def plan(schedule):
        return plan_of(Consensus(), every(1.0, 2.0, steps=2), n=n, steps=2, schedule=schedule)

    mixed = plan(steps[:: -1 if turned else 1])
    anybody = account(mixed, "colluders", colluders=size)
    assert anybody.epsilon(D) == pytest.approx(by_name(mixed, size), rel=1e-12)
    assert anybody.mu > account(plan(steps[0]), "colluders", colluders=size).mu


@pytest.mark.parametrize("colluders", [1, 2, 15])
def test_masks_among_many_members_hide_from_more_colluders_than_were_stated(colluders):
    """Sixteen partners each: no fifteen members can part the others, so nothing needs to be tried."""
    plan = stationary_plan(Consensus(), Masked(sv.graphs.complete(92)), one)
    guarantee = account(plan, "colluders", colluders=colluders)
    assert (guarantee.label, guarantee.mu) == ("exact", pytest.approx(0.5 / math.sqrt(92 - colluders)))
    assert account(plan, "colluders", colluders=16).label == "ldp"  # the partners of one member


@pytest.mark.parametrize("seed", range(6))
def test_any_members_over_trees_that_change_by_enumeration(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    n, steps, size = int(rng.integers(5, 9)), int(rng.integers(2, 6)), int(rng.integers(2, 4))
    trees = [Tree(sv.graphs.complete(n), kind="uniform", rng=rng) for _ in range(steps)]
    rates = {"adjacency": "add-remove", "sample_rate": 0.3} if seed % 2 else {}
    plan = plan_of(Consensus(), every(1.0, 2.0, steps=steps, **rates), n=n, steps=steps, schedule=trees,
                   adjacency=rates.get("adjacency", "user"))  # fmt: skip
    named = by_name(plan, size)
    monkeypatch.setattr("sottovoce.accounting.question._MAX_COALITIONS", 0)
    tried = account(plan, "colluders", colluders=size)
    assert tried.label == "exact"
    if rates:  # one Rényi conversion of the largest loss at every order
        assert named <= tried.epsilon(D) <= 1.2 * named
        return
    assert tried.epsilon(D) == pytest.approx(named, rel=1e-9)
    monkeypatch.setattr("sottovoce.accounting.fresh_trees.MAX_WORK", 0)
    bounded = account(plan, "colluders", colluders=size).epsilon(D)
    assert named * (1 - 1e-9) <= bounded <= account(plan, "local").epsilon(D) * (1 + 1e-9)


def test_three_of_forty_members_over_fresh_trees():
    """All 9,139 coalitions are tried: about 3 where the local number is 6.5."""
    rng = np.random.default_rng(0)
    trees = [Tree(sv.graphs.complete(40), kind="uniform", rng=rng) for _ in range(50)]
    plan = plan_of(Consensus(), every(1.4, math.sqrt(50), steps=50), n=40, steps=50, schedule=trees)
    assert account(plan, "colluders", colluders=3).epsilon(D) < 3.2
    assert account(plan, "local").epsilon(D) > 6.4


def test_too_many_coalitions_are_bounded_by_local():
    exchange = sv.protocols.HypercubeExchange(32)
    big = plan_of(Averaging(), every(1.0, 1.0, steps=1), n=32, steps=1, schedule=exchange)
    guarantee = account(big, "colluders", colluders=6)
    assert (guarantee.label, guarantee.mu) == ("ldp", 1.0)
    with pytest.raises(InvalidInput, match="no exact number"):
        account(big, "colluders", colluders=6, label="exact")


@pytest.mark.parametrize("model", [Averaging(), Consensus()], ids=["averaging", "consensus"])
@pytest.mark.parametrize("silent", [(), (0,), (2, 3)])
@pytest.mark.parametrize("graph", ["star:6", "path:6"])
def test_any_members_on_a_tree_are_the_worst_named_ones(graph, silent, model):
    """Also where some add no noise of their own and stand in that of the others."""
    tree = Tree(sv.graphs.parse(graph), root=0)
    stds = [0.0 if u in silent else 1.0 + u for u in range(6)]
    plan = stationary_plan(model, tree, lambda a: one(a, stds[a]))
    for user, c in itertools.product(range(6), (1, 2)):
        worst = account(plan, "colluders", colluders=c, user=user).epsilon(D)
        assert worst == pytest.approx(by_name(plan, c, user=user), rel=1e-9)


def test_masked_members_with_noise_in_unlike_steps():
    """The largest noise, in the first step alone, is no guide to who hides the others in the later ones."""

    def releases(agent):
        return one(agent, std=10.0) if agent == 0 else one(agent, std=2.0, steps=6)

    masked = Masked(sv.graphs.complete(5), tolerate=3)
    plan = stationary_plan(Consensus(), masked, releases, steps=6)
    for c in (1, 2):
        assert account(plan, "colluders", colluders=c).epsilon(D) == pytest.approx(by_name(plan, c), rel=1e-9)
