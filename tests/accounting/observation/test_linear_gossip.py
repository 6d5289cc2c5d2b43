"""Gossip without consensus: one step is exact, several are local or conditional."""

import math

import pytest
from tests.accounting.small_plans import (
    GOSSIP_RING,
    PAIR,
    RING,
    SEES,
    TWO,
    D,
    every,
    one,
    plan_of,
    stationary_plan,
)

import sottovoce as sv
from sottovoce.accounting.observation import LinearGossip
from sottovoce.errors import InvalidInput, NotAGuarantee
from sottovoce.privacy import Curve, account


def test_linear_gossip_is_local_unless_conditional_is_requested():
    plan = plan_of(LinearGossip(), every(2.0, 4.0, steps=5), steps=5, schedule=sv.protocols.Gossip(RING, 1))
    for view, who in SEES.items():
        guarantee = account(plan, view, **who)
        # of node 3 only the first three releases reach node 0: this holds against node 0 alone
        assert guarantee.label == ("exact" if view == "pairwise" else "ldp")
        part = Curve.gaussian(0.5 * math.sqrt(3)).epsilon(D) if view == "pairwise" else 4.983306405970711
        assert guarantee.epsilon(D) == pytest.approx(part, rel=1e-9)
    for who, value in (
        ({"view": "network", "observer": 2}, 4.904792283245693),
        ({"view": "pairwise", **PAIR}, 0.5194097281072311),
        ({"view": "colluders", **TWO}, 4.983306405970711),
    ):
        guarantee = account(plan, **who, label="conditional")
        assert guarantee.label == "conditional"
        assert guarantee.epsilon(D) == pytest.approx(value, rel=1e-9)
        with pytest.raises(NotAGuarantee):
            guarantee.require(100.0, D)
    fast = sv.protocols.Chebyshev(RING, 2)
    memory = plan_of(LinearGossip(), every(2.0, 4.0, steps=5), steps=5, schedule=fast)
    with pytest.raises(InvalidInput, match="without masks, memory"):
        account(memory, "pairwise", **PAIR, label="conditional")
    assert account(memory, "pairwise", **PAIR).label == "exact"  # not conditional


def test_one_step_of_linear_gossip_is_averaging():
    plan = plan_of(LinearGossip(), every(2.0, 4.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 2))
    assert account(plan, "network", observer=2).epsilon(D) == pytest.approx(1.99309140441512)
    guarantee = account(plan, "pairwise", **PAIR)
    assert (guarantee.label, guarantee.mu) == ("exact", 0.0)


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
def test_conditional_requires_equal_gaussian_noise_at_user_level(releases, facts):
    def conditional(releases, **facts):
        plan = stationary_plan(LinearGossip(), GOSSIP_RING, releases, steps=2, **facts)
        return account(plan, "network", label="conditional")

    assert conditional(lambda a: one(a, steps=2)).label == "conditional"
    with pytest.raises(InvalidInput, match="linear formula is for"):
        conditional(releases, **facts)
