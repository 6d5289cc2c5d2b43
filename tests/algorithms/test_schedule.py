"""Schedules: drawn once, remembered, stationary or not."""

import numpy as np
from tests.algorithms.toys import COMMON, RING, shards

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.algorithms.schedule import Schedule
from sottovoce.objectives import GLM


def test_schedule_in_order_frees_trees_that_were_not_accounted():
    """A small object kept for every step pins the memory of the rows around it."""
    fresh, accounted = (ConsensusSGD(GLM(), "tree:kind=uniform", network=RING, **COMMON) for _ in range(2))
    before = [accounted.schedule(k) for k in range(accounted.steps)]
    drawn = fresh.schedule.in_order()
    for k in range(fresh.steps):
        assert drawn(k) is drawn(k)
    assert list(fresh.schedule._drawn) == [
        0,
        fresh.steps - 1,
    ]  # every plan looks at the first when it is made
    rows = [plan.run(shards(), np.random.default_rng(1)).outputs["rows"] for plan in (fresh, accounted)]
    assert (rows[0] == rows[1]).all()
    assert all(accounted.schedule(k) is tree for k, tree in enumerate(before))
    assert [fresh.schedule(k).parents.tolist() for k in range(fresh.steps)] == [
        tree.parents.tolist() for tree in before
    ]  # what was dropped comes back as it was


def test_function_schedule_is_called_once_per_step():
    """What is accounted is what runs: a function that draws gives the same protocol in every call."""
    rng = np.random.default_rng(0)
    plan = ConsensusSGD(GLM(), lambda k: sv.protocols.Tree(RING, kind="uniform", rng=rng), **COMMON)
    costs = [plan.privacy("network").mu for _ in range(3)]
    assert len(set(costs)) == 1
    assert plan.with_noise(5.0).schedule(3) is plan.schedule(3)  # calibration accounts the same trees
    plan.run(shards(), np.random.default_rng(1))
    assert plan.privacy("network").mu == costs[0]
    again = ConsensusSGD(GLM(), RING, **COMMON)
    assert [again.schedule(k).parents.tolist() for k in range(4)] == [
        ConsensusSGD(GLM(), RING, **COMMON).schedule(k).parents.tolist() for k in range(4)
    ]


def test_schedule_given_as_a_function_is_stationary_for_one_step_only():
    exchange = sv.protocols.HypercubeExchange(2)
    schedules = [Schedule(lambda k: exchange, steps) for steps in (1, 2, 3)]
    assert [schedule.is_stationary for schedule in schedules] == [True, False, False]


def test_tree_drawn_per_step_is_not_stationary():
    def plan(protocol, steps):
        return ConsensusSGD(
            GLM(), protocol, network=sv.graphs.complete(4), steps=steps, clip_norm=1.0, sizes=[5] * 4
        )

    assert [plan("tree:kind=uniform", steps).is_stationary for steps in (1, 2, 3)] == [True, False, False]
    assert [plan("tree", steps).is_stationary for steps in (1, 2)] == [True, True]
    assert plan(sv.protocols.HypercubeExchange(4), 2).is_stationary
