"""An agreement's numbers for one member, written a second time: the largest row, and what was spent."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, DataError
from sottovoce.graphs import parse
from sottovoce.ledger.cost import view_name
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.privacy import gaussian_epsilon
from sottovoce.protocols import HypercubeExchange

SGD = {
    "name": "consensus-sgd", "adjacency": "user", "clip_norm": 0.5, "steps": 3, "learning_rate": 0.1,
    "noise_multiplier": 8.0,
}  # fmt: skip
DELTA = 1e-5


def agreed_run(consortium, algorithm, graph="ring:4", **more):
    nodes = parse(graph).n
    return AgreedRun(consortium(nodes, graph, algorithm, **{"epsilon": 900.0, **more}).agreement)


def largest(numbers, reach, std, center=0.0):
    """A row's own reach, and what Gaussian noise exceeds with a chance below 2^-40 among so many numbers."""
    return (reach + center + math.sqrt(2 * math.log(2.0**41 * numbers)) * std) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("protocol", "graph", "times"),
    [
        ("gossip:2", "ring:4", 1),
        ("dropout:2:edges=0.3", "ring:4", 1),
        ("exchange", "hypercube:2", 1),
        ("tree", "path:4", 4),
    ],
)
@pytest.mark.parametrize("radius", [0.5, 3.0])
@pytest.mark.parametrize("center", [0.0, [1.0, -7.0]])
def test_rows_that_clip_and_noise_do_not_allow_are_known(protocol, graph, times, radius, center, consortium):
    """Means of rows stay within one row's reach; on the way to an exact sum a row may hold all of them."""
    algorithm = {"name": "averaging", "protocol": protocol, "clip_norm": radius, "center": center}
    averaging = agreed_run(consortium, {**algorithm, "noise_multiplier": 4.0}, graph, dim=2)
    far = float(np.max(np.abs(center)))
    assert averaging.bound == pytest.approx(times * largest(4 * 2, radius, 4.0 * radius, far), rel=1e-12)


def test_no_bound_where_nothing_public_bounds_a_row(consortium):
    averaging = {"name": "averaging", "noise_multiplier": 4.0}
    record = {**SGD, "adjacency": "add-remove", "batch_size": 4, "sample_rate": 0.5, "noise_multiplier": 4.0}
    for algorithm, graph in (
        ({**averaging, "protocol": "chebyshev:2"}, "ring:4"),  # weights below zero
        ({**averaging, "protocol": "fresh-noise:2:fresh=0.1"}, "ring:4"),  # noise on the way
        ({**averaging, "protocol": "masked"}, "ring:4"),
        ({**record, "protocol": "exchange"}, "hypercube:2"),
        ({**SGD, "name": "dp-dsgd", "noise_multiplier": 4.0, "protocol": "gossip:1"}, "ring:4"),
    ):
        assert agreed_run(consortium, algorithm, graph).bound is None


@pytest.mark.parametrize(("tolerate", "around"), [("", 4), (":tolerate=2", 3)])
def test_masked_steps_that_were_made_cost_what_stood_around_them(tolerate, around, consortium):
    """Five members: any one sees four noises around a row, any two see three."""
    masked_run = agreed_run(consortium, {**SGD, "protocol": f"masked{tolerate}"}, "complete:5")
    assert masked_run.tolerate == {4: 1, 3: 2}[around]
    (release,) = masked_run.plan.releases(2)
    for steps in (1, 2, 3):
        some = [release.at(k) for k in range(steps)]
        assert masked_run.spent(2, some).epsilon(DELTA) == pytest.approx(cost(steps, around), rel=1e-6)
        assert masked_run.spent_locally(2, some).epsilon(DELTA) == pytest.approx(cost(steps, 1), rel=1e-6)
    assert masked_run.charged_guarantee(2).epsilon(DELTA) == pytest.approx(cost(3, around), rel=1e-6)
    assert masked_run.spent(2, []).epsilon(DELTA) == 0.0
    assert masked_run.spent(2, []).adversary.kind == "local"


def test_the_table_says_what_each_number_is(consortium):
    run = agreed_run(consortium, {"protocol": "tree"}, "path:4")
    rows, plan = run.table(), run.plan
    assert [row["member"] for row in rows] == ["m0", "m1", "m2", "m3"]
    for node, row in enumerate(rows):
        assert (row["label_local"], row["label_network"]) == ("ldp", "exact")
        pairs = [plan.privacy("pairwise", user=node, observer=v).epsilon(1e-5) for v in range(4) if v != node]
        assert row["epsilon_network"] == pytest.approx(max(pairs))
        assert 0 < row["epsilon_network"] <= row["epsilon_local"] * (1 + 1e-12)


def test_no_exact_cost_where_exchanges_may_be_left_out(consortium):
    """An edge left out can tell more: node 0 hears 1, who hears 2 and 3; without 3 it hears 2 alone."""
    from sottovoce.protocols import TimeVarying

    graph = "edges:0-1,1-2,1-3"
    waits = consortium(n=4, graph=graph, algorithm={"protocol": "gossip:2"})
    assert all(row["label_network"] == "exact" for row in AgreedRun(waits.agreement).table())
    full = AgreedRun(waits.agreement).plan.schedule(0).view(0).leakage()
    cut = waits.agreement.network.W.toarray()
    for u, v in ((1, 3), (3, 1)):
        cut[u, u] += cut[u, v]
        cut[u, v] = 0.0
    dropped = TimeVarying([cut, waits.agreement.network]).view(0).leakage()
    assert full[2] == pytest.approx(0.5)
    assert dropped[2] == pytest.approx(1.0)
    drops = consortium(n=4, graph=graph, algorithm={"protocol": "gossip:2"}, timing={"late": "drop"})
    for row in AgreedRun(drops.agreement).table():
        assert (row["label_network"], row["epsilon_network"]) == ("ldp", row["epsilon_local"])


def test_a_run_is_as_long_as_its_steps_together(consortium):
    """Four members exchange in two rounds; trees that are drawn anew differ in depth."""
    steady = agreed_run(consortium, {**SGD, "protocol": "exchange"}, "hypercube:2")
    assert (steady.rounds, steady.codec.dim) == (3 * 2, 3)
    drawn = agreed_run(consortium, {**SGD, "protocol": "tree:kind=uniform"}, "complete:5")
    assert drawn.rounds == sum(drawn.plan.schedule(k).rounds for k in range(3))
    assert type(steady.rounds) is type(drawn.rounds) is int


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_trees_drawn_anew_are_accounted_exactly_up_to_a_limit(late):
    """16 members are 256 pairs: 2^16 pairs and steps are reached with 256 steps."""

    def exact(steps, *, steady=False):
        plan = SimpleNamespace(n=16, steps=steps, is_stationary=steady, grid=None, width=1)
        plan.schedule = lambda k: SimpleNamespace(rounds=1)
        timing, model = SimpleNamespace(late=late), SimpleNamespace(number="float64")
        return AgreedRun(SimpleNamespace(plan=plan, timing=timing, session=bytes(32), model=model))._exact

    assert [exact(256), exact(257), exact(10**6, steady=True)] == [late == "wait", False, late == "wait"]


def test_a_run_goes_on_from_a_model_of_the_agreed_shape_in_the_agreed_type(consortium):
    group = consortium(n=4, graph="hypercube:2", algorithm={**SGD, "protocol": "exchange"}, epsilon=900.0)
    run, third = AgreedRun(group.agreement), np.array([1.0, 2.0, 1 / 3], np.float32)
    program = run.program(1, group.records[1], SimulatedNoise(0), start_row=third)
    program.begin()
    assert program.result().dtype == group.agreement.model.number == "float64"
    np.testing.assert_array_equal(program.result(), third.astype(float))
    for wrong in (third[:2], third[None], np.zeros(())):
        with pytest.raises(DataError, match="model to go on from"):
            run.program(1, group.records[1], SimulatedNoise(0), start_row=wrong)


def test_the_loudest_member_says_how_large_a_row_may_be():
    """Two members, one with twice the noise: 2 numbers in all, and an exchange sends means of rows."""
    plan = SimpleNamespace(
        n=2, steps=1, is_stationary=True, grid=None, width=1, maskable=True, adjacency="user", center=0.0,
        schedule=lambda k: HypercubeExchange(2),
        releases=lambda v: [Release(v, 0, sensitivity=2.0, noise_std=3.0 * (v + 1))],
    )  # fmt: skip
    agreement = SimpleNamespace(plan=plan, session=bytes(32), model=SimpleNamespace(number="float64"))
    tail = math.sqrt(2 * math.log(2.0**41 * 2))
    assert AgreedRun(agreement).bound == pytest.approx((1.0 + 6.0 * tail) * (1 + 1e-6), rel=1e-12)


def cost(steps, noises):
    """A member replaced moves its row by twice the clip, which so many noises of 8 clips hide."""
    return gaussian_epsilon(2 * math.sqrt(steps) / (8.0 * math.sqrt(noises)), DELTA)


def epsilons(guarantees):
    return {view_name(guarantee): guarantee.epsilon(DELTA) for guarantee in guarantees}


def test_a_run_that_was_broken_off_costs_what_it_released(consortium):
    """Five members under masks: any two see the noise of three around a row, any one that of four."""
    pairs = agreed_run(consortium, {**SGD, "protocol": "masked:tolerate=2"}, "complete:5")
    (release,) = pairs.plan.releases(2)
    some = [release.at(k) for k in range(2)]
    assert epsilons(pairs.cost_of_interrupted(2, some)) == pytest.approx(
        {"colluders:2": cost(2, 3), "network": cost(2, 4)}, rel=1e-6
    )
    assert pairs.cost_of_interrupted(2, []) == ()


def test_a_masked_plan_fits_its_budget_as_charged_and_no_release_more(consortium):
    """What is signed decides: with the own noise alone the plan costs more than the budget."""
    masked = {**SGD, "protocol": "masked:tolerate=2"}
    masked_run = agreed_run(consortium, masked, "complete:5", epsilon=1.01 * cost(3, 3))
    spending, (release,) = masked_run.spending(2), masked_run.plan.releases(2)
    assert cost(3, 1) > spending.budget.epsilon
    for k in range(release.steps):
        spending.require(release.at(k))
        spending.add(release.at(k))
    with pytest.raises(BudgetExceeded, match="no further release"):
        spending.require(release.at(0))


def test_without_masks_single_members_are_named_and_gossip_has_only_the_local_cost(consortium):
    """In an exchange of four a member hears one other alone, and the sum of the two others."""
    exchange = agreed_run(consortium, {**SGD, "protocol": "exchange"}, "hypercube:2")
    (release,) = exchange.plan.releases(1)
    assert epsilons(exchange.cost_of_interrupted(1, [release.at(0)])) == pytest.approx(
        {"network": cost(1, 1)}, rel=1e-6
    )
    assert exchange.cost_of_interrupted(1, []) == ()
    gossip = agreed_run(consortium, {**SGD, "name": "dp-dsgd", "protocol": "gossip:1"})
    (release,) = gossip.plan.releases(1)
    assert gossip.cost_of_interrupted(1, [release.at(0)]) == gossip.cost_of_interrupted(1, []) == ()
