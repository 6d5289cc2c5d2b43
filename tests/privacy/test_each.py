"""All members at once is every member one by one."""

import pytest

import sottovoce as sv
from sottovoce.algorithms import DPDSGD, ConsensusSGD, MuffliatoSGD, RandomWalkSGD
from sottovoce.objectives import GLM
from sottovoce.privacy import account, account_each

RING, CUBE = sv.graphs.ring(6), sv.graphs.hypercube(3)
COMMON = {"clip": 1.0, "noise_multiplier": 4.0, "adjacency": "user"}
SIZES = [40] * 4 + [80] * 4
PLANS = {
    "averaging, gossip": sv.Muffliato(sv.protocols.Gossip(RING, 3), noise_std=2.0, radius=0.5),
    "averaging, tree": sv.Muffliato("tree", noise_std=2.0, radius=0.5, network=RING),
    "averaging, exchange": sv.Muffliato(sv.protocols.Exchange(8), noise_std=2.0, radius=0.5),
    "averaging, masked": sv.Muffliato("masked", noise_std=2.0, radius=0.5, network=RING),
    "averaging, walk": sv.Muffliato("walk:9", noise_std=2.0, radius=0.5, network=RING),
    "consensus": ConsensusSGD(GLM(), "exchange", network=CUBE, steps=3, **COMMON),
    "consensus, lots": ConsensusSGD(
        GLM(),
        "exchange",
        network=CUBE,
        steps=3,
        clip=1.0,
        noise_multiplier=4.0,
        sizes=[40] * 4 + [80] * 4,
        lot=8,
    ),
    "consensus, own noises": ConsensusSGD(
        GLM(),
        "tree",
        network=RING,
        steps=2,
        clip=1.0,
        adjacency="user",
        noise_multiplier=(4.0, 5, 6, 7, 8, 9),
    ),
    "consensus, trees": ConsensusSGD(GLM(), "tree:kind=uniform", network=RING, steps=3, **COMMON),
    "gossip once": MuffliatoSGD(GLM(), "gossip:3", network=RING, steps=1, **COMMON),
    "gossip": MuffliatoSGD(GLM(), "gossip:3", network=RING, steps=3, **COMMON),
    "dp-dsgd": DPDSGD(GLM(), network=RING, steps=3, **COMMON),
    "walk": RandomWalkSGD(GLM(), network=RING, path=(0, 1, 2, 1), steps=4, **COMMON),
}


@pytest.mark.parametrize("observers", [[0], [1, 3]])
@pytest.mark.parametrize("name", PLANS)
def test_all_members_at_once_is_every_member_one_by_one(name, observers):
    plan = PLANS[name]
    each = account_each(plan, observers)
    assert sorted(each) == [u for u in range(plan.n) if u not in observers]
    for user, found in each.items():
        if len(observers) == 1:
            alone = account(plan, "pairwise", observer=observers[0], user=user)
        else:
            alone = account(plan, "colluders", colluders=observers, user=user)
        assert found.label == alone.label
        assert found.epsilon(1e-5) == pytest.approx(alone.epsilon(1e-5), rel=1e-9, abs=1e-12)
        assert str(found.adversary) == str(alone.adversary)


def test_one_step_of_gossip_is_one_averaging_and_more_are_not():
    assert {g.label for g in account_each(PLANS["gossip once"], [0]).values()} == {"exact"}
    assert {g.label for g in account_each(PLANS["gossip"], [0]).values()} == {"ldp"}
