"""Local privacy only, and printed formulas on request."""

from fractions import Fraction

import numpy as np
import pytest
from tests.accounting.other_accountants import assert_gaussian
from tests.accounting.small_plans import PAIR, D, every, plan_of

import sottovoce as sv
from sottovoce.accounting.observation import LocalOnly
from sottovoce.algorithms.dp_dinno import DPDiNNO
from sottovoce.algorithms.dp_dsgd import DPDSGD
from sottovoce.algorithms.dp_dsgt import DPDSGT
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Curve, Release, account


@pytest.mark.parametrize("draws", [{"steps": 6}, {"steps": 3, "count": 2}], ids=["DSGD, DSGT", "DiNNO"])
def test_local_cost_of_network_methods(draws):
    rates = [0.05] * 7 + [0.1]
    releases = every(1.0, 1.5, adjacency="add-remove", sample_rate=rates, **draws)
    plan = plan_of(LocalOnly(), releases, steps=6, adjacency="add-remove")
    for view in ("local", "central", "network"):
        assert account(plan, view).epsilon(D) == pytest.approx(1.0872906906186293, rel=1e-9)
    assert account(plan, "pairwise", **PAIR).epsilon(D) == pytest.approx(0.5543734085420173, rel=1e-9)


def test_published_label_must_be_requested():
    printed = (Curve.gaussian(0.6), "as printed by somebody")
    plan = plan_of(LocalOnly(printed), every(4.0, 8.0, steps=20), steps=500)
    assert account(plan, "local").epsilon(D) == pytest.approx(11.48002280917257, rel=1e-9)
    assert account(plan).label == "ldp"
    guarantee = account(plan, label="published")
    assert (guarantee.label, guarantee.mu) == ("published", 0.6)
    assert "as printed by somebody" in guarantee.assumptions
    for view in ("central", "outsider", "local"):
        with pytest.raises(InvalidInput, match="no published number"):
            account(plan, view, label="published")


def test_record_sampling_does_not_amplify_users():
    releases = [[Release(u, 0, sensitivity=1.0, noise_std=2.0, steps=4, sample_rate=0.01)] for u in range(2)]
    assert_gaussian(account(plan_of(LocalOnly(), releases.__getitem__, 2, 4), "network"), Fraction(4, 4))


def matching(pairs, n):
    """One round in which the nodes of each pair average their rows."""
    W = np.eye(n)
    for u, v in pairs:
        W[[u, u, v, v], [u, v, u, v]] = 0.5
    return sv.protocols.TimeVarying([W])


def gossip_runs(method, schedule, steps, changed):
    """Return the plan, and what all nodes end with if the records of one node are changed, and if not."""
    plan = method(GLM("squared", dim=3), schedule, steps=steps, adjacency="user", **STEP)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2 * plan.n, 3)), rng.normal(size=2 * plan.n)
    ends = []
    for sign in (1.0, -1.0):
        y[2 * changed : 2 * changed + 2] *= sign
        shards = Shards(X, y, 2 * np.arange(plan.n + 1))
        ends.append(plan.run(shards, np.random.default_rng(1)).outputs["rows"])
    return plan, *ends


STEP = {"clip_norm": 1.0, "noise_multiplier": 4.0, "learning_rate": 0.3}
CHANGING = [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(0, 5)], [(0, 1), (2, 3)], [(1, 2)]]


RING24 = sv.graphs.ring(24)
SCHEDULES = {
    "ring": RING24,
    "two rounds": sv.protocols.Gossip(RING24, 2),
    "changing": [matching(pairs, 6) for pairs in CHANGING],
}
RUNS = [(method, schedule) for method in (DPDSGD, DPDSGT, MuffliatoSGD) for schedule in SCHEDULES]


@pytest.mark.parametrize(("method", "schedule"), [*RUNS, (DPDiNNO, "ring")])  # DiNNO has one round
def test_what_cannot_reach_an_observer_costs_nothing(method, schedule):
    """On both sides of the boundary: a row keeps its bits where the loss is 0, and changes elsewhere."""
    plan, before, after = gossip_runs(method, SCHEDULES[schedule], 5, changed=0)
    equal = (before == after).all(axis=1)
    losses = np.array([0.0] + [account(plan, "pairwise", observer=v, user=0).mu for v in range(1, plan.n)])
    assert equal[losses == 0][1:].all()
    assert (losses[1:] == 0).any()
    if method is not DPDiNNO:  # whose penalty passes changes on in steps too small for the last bit
        assert not equal[losses > 0].any()
    # each release that can arrive counts once, so the loss is a whole number of them
    draws = (losses * STEP["noise_multiplier"] / 2) ** 2
    np.testing.assert_allclose(draws, np.round(draws), atol=1e-9)
    everybody = account(plan, "local").mu
    assert account(plan, "network").mu == everybody
    assert (losses < everybody).all() or method is MuffliatoSGD
