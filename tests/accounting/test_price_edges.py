"""The pricer at its edges, each number by a closed form or by a second way to the same one."""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.calibration import calibrate
from sottovoce.accounting.observation import (
    Averaging,
    Consensus,
    Federation,
    LinearGossip,
    PairCorrelated,
    TokenWalk,
)
from sottovoce.accounting.observation.coalitions import ShareCurves
from sottovoce.accounting.query import POISSON
from sottovoce.accounting.release import MechanismKey
from sottovoce.errors import InvalidInput
from sottovoce.graphs import network_of
from sottovoce.privacy import Curve, Release, account, account_each
from sottovoce.protocols import Gossip, HypercubeExchange, Masked, Tree


def priced(model, protocol, releases, **facts):
    """A plan of so many facts; ``releases`` says what one agent lists."""
    defaults = {"n": protocol.n, "steps": 1, "width": 1, "is_stationary": True, "accounting": "pld"}
    defaults |= {"adjacency": "user", "assumptions": (), **facts}
    return SimpleNamespace(observation=model, schedule=lambda k: protocol, releases=releases, **defaults)


def one(agent, std=2.0, **more):
    return [Release(agent, 0, **{"sensitivity": 1.0, "noise_std": std, **more})]


# ---- every other agent at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("who", [[0], [0, 3]])
@pytest.mark.parametrize("model", [LinearGossip(), Consensus()])
def test_all_at_once_are_the_same_statements_as_one_by_one(who, model):
    protocol = Gossip(sv.graphs.ring(5), 1) if isinstance(model, LinearGossip) else Tree(sv.graphs.path(5))
    plan = priced(model, protocol, lambda a: one(a, 1.0 + a, steps=2), steps=2)
    each = account_each(plan, who)
    assert sorted(each) == [u for u in range(5) if u not in who]
    for u, found in each.items():
        assert found == account(plan, colluders=who, user=u)


# ---- the linear formula ------------------------------------------------------------------------------------

RING = Gossip(sv.graphs.ring(4), 1)


@pytest.mark.parametrize(
    ("releases", "facts"),
    [
        (lambda a: one(a, 2.0 + (a == 1), steps=2), {}),  # unlike noise
        (lambda a: one(a, steps=2 - (a == 1)), {}),  # one agent is silent in a step
        (lambda a: one(a, steps=1, count=2), {}),  # two values in one step
        (lambda a: one(a, steps=2, joint=True), {}),
        (lambda a: one(a, steps=2, mechanism="laplace"), {}),
        (lambda a: one(a, steps=2, adjacency="add-remove"), {"adjacency": "add-remove"}),
    ],
)
def test_the_linear_formula_is_for_equal_gaussian_noise_in_every_step_at_user_level(releases, facts):
    plain = priced(LinearGossip(), RING, lambda a: one(a, steps=2), steps=2)
    assert account(plain, "network", label="conditional").label == "conditional"
    with pytest.raises(InvalidInput, match="linear formula is for"):
        account(priced(LinearGossip(), RING, releases, steps=2, **facts), "network", label="conditional")


def test_progress_counts_what_was_priced_from_one():
    told = []
    plan = priced(LinearGossip(), RING, lambda a: one(a, steps=2), steps=2)
    account(plan, "network", label="conditional", progress=told.append)
    assert told == [1, 2, 3, 4]
    told.clear()
    walk = TokenWalk(sv.graphs.ring(4), 3)
    account(priced(walk, RING, lambda a: one(a, steps=3), steps=3), observer=0, progress=told.append)
    assert told == [1, 2, 3]
    told.clear()
    shared = PairCorrelated(sv.graphs.ring(4), own_std=2.0, pair_std=1.0)
    account(priced(shared, RING, one), "network", progress=told.append)
    assert told == [1, 2, 3, 4]


# ---- walks and trees ---------------------------------------------------------------------------------------


def test_a_walk_between_two_nodes_is_priced_along_its_path():
    """Each of the two hears whatever the other adds: with one contribution each that is one release."""
    walk = TokenWalk(sv.graphs.complete(2), 4, cap=1)
    plan = priced(walk, Gossip(sv.graphs.complete(2), 1), one, steps=4)
    found = account(plan, "network")
    assert found.label == "exact"
    assert found.epsilon(1e-5) <= account(plan, "local").epsilon(1e-5) * (1 + 1e-9)


@pytest.mark.parametrize("silent", [(), (0,), (2, 3)])
@pytest.mark.parametrize("graph", ["star:6", "path:6"])
def test_any_two_of_a_tree_are_the_worst_pair_that_can_be_named(graph, silent):
    """Also where some add no noise of their own and stand in that of the others."""
    tree = Tree(sv.graphs.parse(graph), root=0)
    stds = [0.0 if u in silent else 1.0 + u for u in range(6)]
    plan = priced(Consensus(), tree, lambda a: one(a, stds[a]))
    for user in range(6):
        others = [v for v in range(6) if v != user]
        named = [
            account(plan, "colluders", colluders=pair, user=user).mu
            for pair in itertools.combinations(others, 2)
        ]
        assert account(plan, "colluders", colluders=2, user=user).mu == pytest.approx(max(named), rel=1e-9)


def test_a_walk_is_priced_for_plain_gaussian_noise_of_one_kind():
    """Lots that hide a record are not covered by the model of the path; at user level lots hide nobody."""
    walk, ring = TokenWalk(sv.graphs.ring(4), 3), Gossip(sv.graphs.ring(4), 1)

    def label(*more, adjacency="user"):
        listed = [{"steps": 3, "adjacency": adjacency, **each} for each in more]
        plan = priced(
            walk, ring, lambda a: [one(a, **each)[0] for each in listed], steps=3, adjacency=adjacency
        )
        return account(plan, observer=0, user=1).label

    assert label({}) == label({"sample_rate": 0.5}) == label({}, adjacency="add-remove") == "exact"
    assert label({"sample_rate": 0.5}, adjacency="add-remove") == "ldp"
    assert label({"mechanism": "laplace"}) == label({"std": 0.0}) == "ldp"
    assert label({}, {"std": 3.0}) == "ldp"


def test_on_a_complete_graph_with_uneven_weights_pairs_differ():
    """Node 0 keeps the token longer than the others, which are alike; the worst pair is the price."""
    weights = np.full((4, 4), 0.3)
    weights[0], weights[:, 0] = 0.1, 0.1
    weights[0, 0] = 0.7
    network = sv.graphs.from_matrix(weights)
    plan = priced(TokenWalk(network, 4), Gossip(network, 1), lambda a: one(a, steps=4), steps=4)
    pairs = [account(plan, observer=v, user=u).epsilon(1e-5) for v, u in itertools.permutations(range(4), 2)]
    assert account(plan, "network").epsilon(1e-5) == pytest.approx(max(pairs), rel=1e-9)
    assert pairs[0] < 0.99 * max(pairs)


# ---- federations -------------------------------------------------------------------------------------------

SAMPLED = "Poisson sampling: every client takes part in every round independently"


def test_any_three_of_many_clients_miss_their_own_noise_only():
    """125 equal noises stay around everybody, whoever the three are: too many to be tried one by one."""
    plan = priced(Federation(128, secure_sum=True), HypercubeExchange(128), one)
    found = account(plan, "colluders", colluders=3)
    assert found.mu == pytest.approx(1 / (2 * math.sqrt(125)), rel=1e-9)
    assert found.label == "exact"
    assert "a secure sum hides single messages" in found.assumptions
    assert "125 clients add their noise in every round, sampled or not" in found.assumptions


def test_under_masks_three_that_were_not_certified_leave_the_own_noise():
    masks = Masked(Tree(sv.graphs.complete(100)), partners=sv.graphs.ring(100))
    plan = priced(Federation(100, secure_sum=True), masks, one)
    found = account(plan, "colluders", colluders=3)
    assert (found.label, found.mu) == ("ldp", 0.5)


def test_sampling_of_clients_is_assumed_where_it_is_counted_on():
    def said(*rates, adjacency="user"):
        def releases(agent):
            return one(agent, adjacency=adjacency, user_rate=rates[agent % len(rates)])

        plan = priced(Federation(8, secure_sum=True), HypercubeExchange(8), releases, adjacency=adjacency)
        return SAMPLED in account(plan, "network").assumptions

    assert said(0.5)
    assert said(1.0, 1.0, 0.5, 1.0)
    assert not said(1.0)
    assert not said(0.5, adjacency="add-remove")  # a record is in every round of its client or none


# ---- calibration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"tolerance": 1e-3}, {"tolerance": 1e-3, "start": 50.0}])
@pytest.mark.parametrize("epsilon", [0.2, 7.0])
def test_half_of_the_tolerance_stays_unspent_where_the_price_is_a_power_of_the_noise(epsilon, options):
    """A line through two prices in logarithms is then the price itself, and the search ends where it aims."""
    noise = calibrate(lambda noise: Curve.pure(3.0 / noise), epsilon, 1e-13, **options)
    half = options.get("tolerance", 1e-6) / 2
    assert noise == pytest.approx(3.0 / epsilon * math.exp(half), rel=half * 1e-2)


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_who_lists_several_noises_is_priced_by_them_alone(model):
    """One view covers one noise of each; all at once are then what they are one by one."""
    plan = priced(model, Tree(sv.graphs.path(4)), lambda a: one(a) + (one(a, 3.0) if a == 2 else []))
    each = account_each(plan, [0])
    assert {u: found.label for u, found in each.items()} == {
        u: account(plan, "network", observer=0, user=u).label for u in (1, 2, 3)
    }
    if isinstance(model, Averaging):
        assert {found.label for found in each.values()} == {"ldp"}
        assert [each[u].mu for u in (1, 2)] == pytest.approx([1 / 2, math.hypot(1 / 2, 1 / 3)], rel=1e-9)
    assert each == {u: account(plan, "network", observer=0, user=u) for u in (1, 2, 3)}


# ---- shares of sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_a_member_is_hidden_by_all_noise_on_its_side_of_the_observer(model):
    """On a path of five, node 1 sees the row of node 0 and the sum of nodes 2, 3, 4; squares add."""
    stds = [2.0, 1.0, 3.0, 4.0, 5.0]
    plan = priced(model, Tree(sv.graphs.path(5)), lambda a: one(a, stds[a]))
    for user, around in ((0, 2.0), (2, math.sqrt(50)), (3, math.sqrt(50)), (4, math.sqrt(50))):
        assert account(plan, observer=1, user=user).mu == pytest.approx(1 / around, rel=1e-9)


def test_who_taps_every_link_sees_all_unless_rows_are_masked():
    clear = priced(Consensus(), HypercubeExchange(4), one)
    assert (account(clear, "outsider").label, account(clear, "outsider").mu) == ("ldp", 0.5)
    hidden = account(priced(Consensus(), Masked(Tree(sv.graphs.complete(4))), one), "outsider")
    assert (hidden.label, hidden.mu) == ("exact", pytest.approx(1 / 4, rel=1e-9))


def test_noise_that_is_not_gaussian_hides_in_no_sum():
    plan = priced(Consensus(), HypercubeExchange(4), lambda a: one(a, mechanism="laplace", steps=3), steps=3)
    assert account(plan, "network").epsilon(1e-12) == pytest.approx(3 / 2, rel=1e-9)


@pytest.mark.parametrize("step", [0, 1])
def test_two_values_with_unlike_noise_have_one_worst_observer_together(step):
    """Node 1 of four in a row: node 0 sees most of its first value, node 2 of the second, which counts."""
    first, second = [10.0, 1.0, 1.0, 1.0], [0.4, 0.4, 9.0, 9.0]

    def releases(agent):
        return [*one(agent, first[agent]), Release(agent, step, sensitivity=1.0, noise_std=second[agent])]

    plan = priced(Consensus(), Tree(sv.graphs.path(4)), releases, steps=1 + step)
    seen = [account(plan, observer=v, user=1).mu for v in (0, 2, 3)]
    assert seen[1] == pytest.approx(math.hypot(1 / math.hypot(10, 1), 1 / math.hypot(0.4, 0.4)), rel=1e-9)
    assert account(plan, "network", user=1).mu == max(seen) == seen[1] > 1.5 * seen[0]


def test_what_is_said_of_a_released_row_and_of_a_schedule_without_consensus():
    gossip, tree = Gossip(sv.graphs.ring(4), 3), Tree(sv.graphs.path(4))
    some = "only one final row is released, and no message is seen"
    assert some in account(priced(Averaging(), gossip, one), "central").assumptions
    for protocol, who, node in ((gossip, {"observer": 2}, 2), (tree, {}, 0)):
        said = account(priced(Averaging(), protocol, one), "central", **who).assumptions
        assert f"only the final row of node {node} is released, and no message is seen" in said
    with pytest.raises(InvalidInput, match="at step 0;"):
        account(priced(Consensus(), gossip, one), "network")


def test_any_three_of_a_star_leave_its_middle_all_other_noise():
    """Too many to be tried one by one; those on the loudest sides are the worst."""
    plan = priced(Consensus(), Tree(sv.graphs.star(60), root=0), lambda a: one(a, 2.0 + (a == 7)))
    found = account(plan, "colluders", colluders=3, user=0)
    assert (found.label, found.mu) == ("exact", pytest.approx(1 / (2 * math.sqrt(57)), rel=1e-9))


@pytest.mark.parametrize("colluders", [1, 2])
def test_steps_over_unlike_trees_are_priced_together(colluders):
    """The worst coalition of the first step need not be that of both."""
    rng = np.random.default_rng(3)
    differs = 0
    for _ in range(4):
        trees = [Tree(sv.graphs.complete(5), kind="uniform", rng=rng) for _ in range(2)]
        stds = rng.uniform(0.5, 4.0, 5)
        plan = priced(
            Consensus(), trees[0], lambda a, s=stds: one(a, s[a], steps=2), steps=2, is_stationary=False
        )
        plan.schedule = trees.__getitem__
        alone = priced(Consensus(), trees[0], lambda a, s=stds: one(a, s[a]))
        for user in range(5):
            others = [v for v in range(5) if v != user]
            named = list(itertools.combinations(others, colluders))
            both = [account(plan, colluders=who, user=user).mu for who in named]
            first = [account(alone, colluders=who, user=user).mu for who in named]
            found = account(plan, "colluders", colluders=colluders, user=user)
            assert found.mu == pytest.approx(max(both), rel=1e-9)
            differs += both[int(np.argmax(first))] < 0.99 * max(both)
    assert differs


# ---- sampling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_sampling_amplifies_at_every_noise_but_none(ratio):
    kind = MechanismKey("gaussian", "add-remove", ratio, 0.1, 1.0)
    assert kind.curve(3) == Curve.sampled_gaussian(0.1, ratio, 3)
    assert kind.curve(3).epsilon(1e-5) < 0.8 * Curve.gaussian(1 / ratio, 3).epsilon(1e-5)
    assert kind._replace(ratio=0.0).curve(3).epsilon(1e-5) == math.inf


def test_a_client_that_took_part_in_no_round_lost_nothing():
    plan = priced(Federation(8, secure_sum=True), HypercubeExchange(8), lambda a: one(a, steps=4), steps=4)
    lost = [account(plan, "local", participations=times).mu for times in range(6)]
    assert lost == pytest.approx([math.sqrt(min(times, 4)) / 2 for times in range(6)], rel=1e-9)


# ---- shares to the last place ------------------------------------------------------------------------------


def test_shares_that_differ_in_the_last_places_are_one_and_none_is_smaller():
    counts = Counter({MechanismKey("gaussian", "user", 2.0, 1.0, 1.0): 4})
    curves = ShareCurves("pld")
    first, second, third, smaller, none = (
        curves.add(counts, h) for h in (0.3, 0.3 - 1e-15, 0.3 - 3e-14, 0.2, 0.0)
    )
    assert first is second is third is curves.worst or first == second == third == curves.worst
    assert first.mu == pytest.approx(math.sqrt(0.3), rel=1e-9)
    assert first.mu >= math.sqrt(0.3)
    assert smaller.mu == pytest.approx(math.sqrt(0.2), rel=1e-9)
    assert none == Curve.none()


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_without_noise_whatever_is_seen_costs_everything(model):
    plan = priced(model, Tree(sv.graphs.path(4)), lambda a: one(a, 0.0))
    for who in ({}, {"observer": 0}, {"observer": 0, "user": 2}):
        assert account(plan, "network", **who).epsilon(1e-5) == math.inf


def test_any_two_of_many_under_certified_masks_are_the_loudest():
    """Too many pairs to be tried one by one: 98 noises stay, without those of the two loudest."""
    masks = Masked(Tree(sv.graphs.complete(100)), tolerate=2)
    plan = priced(Consensus(), masks, lambda a: one(a, 5.0 if a in (3, 7) else 2.0))
    found = account(plan, "colluders", colluders=2)
    assert (found.label, found.mu) == ("exact", pytest.approx(1 / (2 * math.sqrt(98)), rel=1e-9))


def test_the_loudest_sides_of_a_member_are_those_of_the_largest_variance():
    """Around node 0: a leaf with noise 3, and two chains of 2 and 2; 9 is more than 8, 3 less than 4."""
    edges = np.array([[0, 1], [0, 2], [2, 3], [0, 4], [4, 5]])
    stds = [1.0, 3.0, 2.0, 2.0, 2.0, 2.0]
    plan = priced(Consensus(), Tree(network_of(edges, 6, "branches"), root=0), lambda a: one(a, stds[a]))
    assert account(plan, "colluders", colluders=2, user=0).mu == pytest.approx(1 / math.sqrt(1 + 8), rel=1e-9)


def test_members_who_release_in_unlike_steps_are_priced_step_by_step():
    """Node 0 is silent in the second step, and node 2 then hears node 1 alone."""
    stds = [10.0, 1.0, 1.0, 1.0]
    plan = priced(
        Consensus(), Tree(sv.graphs.path(4)), lambda a: one(a, stds[a], steps=1 if a == 0 else 2), steps=2
    )
    seen = [account(plan, observer=v, user=1).mu for v in (0, 2, 3)]
    assert seen[:2] == pytest.approx([math.sqrt(2 / 3), math.sqrt(1 / 101 + 1)], rel=1e-9)
    assert account(plan, "network", user=1).mu == max(seen)


def test_lots_of_some_are_assumed_for_all_they_are_counted_for():
    def said(*rates, **who):
        def releases(agent):
            return one(agent, adjacency="add-remove", sample_rate=rates[agent % len(rates)])

        plan = priced(Consensus(), HypercubeExchange(4), releases, adjacency="add-remove")
        return POISSON in account(plan, "local", **who).assumptions

    assert said(0.5)
    assert said(1.0, 0.5)
    assert said(1.0, 0.5, user=1)
    assert not said(1.0, 0.5, user=0)
    assert not said(1.0)


def test_taking_part_by_chance_amplifies_nothing_where_it_is_seen():
    plan = priced(Consensus(), HypercubeExchange(4), lambda a: one(a, user_rate=0.5))
    assert account(plan, "local").mu == 0.5
    seen = priced(Federation(4, secure_sum=False), HypercubeExchange(4), lambda a: one(a, user_rate=0.5))
    assert account(seen, "network").mu == 0.5


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_a_value_in_another_stream_of_a_step_is_priced_like_the_first(model):
    """Two values of a step cost the same whether they are listed as one release of two or as two of one."""
    tree = Tree(sv.graphs.path(4))
    once = priced(model, tree, lambda a: one(a, 1.0 + a, count=2))
    apart = priced(model, tree, lambda a: [*one(a, 1.0 + a), *one(a, 1.0 + a, stream=1)])
    single = priced(model, tree, lambda a: one(a, 1.0 + a))
    for user in (1, 2, 3):
        prices = [account(plan, observer=0, user=user).mu for plan in (once, apart, single)]
        assert prices[0] == pytest.approx(prices[1], rel=1e-12)
        assert prices[0] == pytest.approx(math.sqrt(2) * prices[2], rel=1e-9)
