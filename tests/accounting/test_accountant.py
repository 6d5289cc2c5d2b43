"""The accountant: unknown models, the method of composition, every other agent at once."""

import math

import pytest
from tests.accounting.small_plans import NOBODY, SEES, D, every, plan_of

import sottovoce as sv
from sottovoce.accounting.guarantee import Adversary
from sottovoce.accounting.observation import LocalOnly, ObservationModel
from sottovoce.algorithms import DPDSGD, ConsensusSGD, MuffliatoSGD, RandomWalkSGD
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Curve, account, account_each


def test_plan_can_choose_renyi_accounting():
    def epsilon(method):
        releases = every(1.0, 1.5, adjacency="add-remove", sample_rate=0.05)
        plan = plan_of(LocalOnly(), releases, adjacency="add-remove", accounting=method)
        return account(plan, "local").epsilon(D)

    by_pld, by_rdp = epsilon("pld"), epsilon("rdp")
    assert by_rdp > 1.01 * by_pld
    assert by_rdp == pytest.approx(Curve.sampled_gaussian(0.05, 1.5, 12, method="rdp").epsilon(D), rel=1e-12)


def test_unknown_observation_model_yields_the_local_guarantee():
    class Hearsay(ObservationModel):
        pass

    plan = plan_of(Hearsay(), every(2.0, 4.0))
    for view, who in {**SEES, "outsider": NOBODY}.items():
        guarantee = account(plan, view, **who)
        assert guarantee.label == "ldp"
        assert guarantee.mu == pytest.approx(0.5 * math.sqrt(12))
    for label in ("exact", "conditional", "published"):
        with pytest.raises(InvalidInput, match=f"no {label} number"):
            account(plan, label=label)


RING6, CUBE = sv.graphs.ring(6), sv.graphs.hypercube(3)
COMMON = {"clip_norm": 1.0, "noise_multiplier": 4.0, "adjacency": "user"}
RECORDS = {"clip_norm": 1.0, "noise_multiplier": 4.0, "sizes": [40] * 4 + [80] * 4, "batch_size": 8}
OWN_NOISES = COMMON | {"noise_multiplier": (4.0, 5, 6, 7, 8, 9)}
AVERAGES = {"noise_std": 2.0, "radius": 0.5, "network": RING6}
PLANS = {
    "averaging, gossip": sv.PrivateAveraging("gossip:3", **AVERAGES),
    "averaging, tree": sv.PrivateAveraging("tree", **AVERAGES),
    "averaging, masked": sv.PrivateAveraging("masked", **AVERAGES),
    "averaging, walk": sv.PrivateAveraging("walk:9", **AVERAGES),
    "consensus": ConsensusSGD(GLM(), "exchange", network=CUBE, steps=3, **COMMON),
    "consensus, batches": ConsensusSGD(GLM(), "exchange", network=CUBE, steps=3, **RECORDS),
    "consensus, own noises": ConsensusSGD(GLM(), "tree", network=RING6, steps=2, **OWN_NOISES),
    "consensus, trees": ConsensusSGD(GLM(), "tree:kind=uniform", network=RING6, steps=3, **COMMON),
    "gossip once": MuffliatoSGD(GLM(), "gossip:3", network=RING6, steps=1, **COMMON),
    "gossip": MuffliatoSGD(GLM(), "gossip:3", network=RING6, steps=3, **COMMON),
    "dp-dsgd": DPDSGD(GLM(), network=RING6, steps=3, **COMMON),
    "walk": RandomWalkSGD(GLM(), network=RING6, path=(0, 1, 2, 1), steps=4, **COMMON),
}


@pytest.mark.parametrize("observers", [[0], [1, 3]])
@pytest.mark.parametrize("name", PLANS)
def test_account_each_equals_account_of_plans(name, observers):
    plan = PLANS[name]
    each = account_each(plan, observers)
    assert sorted(each) == [u for u in range(plan.n) if u not in observers]
    for user, guarantee in each.items():
        if len(observers) == 1:
            alone = account(plan, "pairwise", observer=observers[0], user=user)
        else:
            alone = account(plan, "colluders", colluders=observers, user=user)
        assert guarantee.label == alone.label
        assert guarantee.epsilon(1e-5) == pytest.approx(alone.epsilon(1e-5), rel=1e-9, abs=1e-12)
        assert str(guarantee.adversary) == str(alone.adversary)


def test_an_adversary_names_view_observers_and_user():
    plan = sv.PrivateAveraging("tree", network="path:5", noise_std=1.0, radius=0.5)
    for guarantee in (
        plan.privacy("pairwise", observer=0, user=3),
        plan.privacy("colluders", colluders=[0, 1]),
        plan.privacy("colluders", colluders=2),
        plan.privacy("network", observer=2),
        plan.privacy("local", user=1),
    ):
        assert account(plan, guarantee.adversary) == guarantee
    with pytest.raises(InvalidInput, match="names observers and user itself"):
        account(plan, Adversary("network"), observer=1)
