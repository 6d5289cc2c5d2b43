"""All members at once is every member one by one."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import DPDSGD, ConsensusSGD, MuffliatoSGD, RandomWalkSGD
from sottovoce.noise.discrete import STEPS_PER_STD
from sottovoce.objectives import GLM
from sottovoce.privacy import account, account_each, gaussian_mu

RING, CUBE = sv.graphs.ring(6), sv.graphs.hypercube(3)
COMMON = {"clip_norm": 1.0, "noise_multiplier": 4.0, "adjacency": "user"}
SIZES = [40] * 4 + [80] * 4
PLANS = {
    "averaging, gossip": sv.PrivateAveraging(sv.protocols.Gossip(RING, 3), noise_std=2.0, radius=0.5),
    "averaging, tree": sv.PrivateAveraging("tree", noise_std=2.0, radius=0.5, network=RING),
    "averaging, exchange": sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=2.0, radius=0.5),
    "averaging, masked": sv.PrivateAveraging("masked", noise_std=2.0, radius=0.5, network=RING),
    "averaging, walk": sv.PrivateAveraging("walk:9", noise_std=2.0, radius=0.5, network=RING),
    "consensus": ConsensusSGD(GLM(), "exchange", network=CUBE, steps=3, **COMMON),
    "consensus, lots": ConsensusSGD(
        GLM(),
        "exchange",
        network=CUBE,
        steps=3,
        clip_norm=1.0,
        noise_multiplier=4.0,
        sizes=[40] * 4 + [80] * 4,
        batch_size=8,
    ),
    "consensus, own noises": ConsensusSGD(
        GLM(),
        "tree",
        network=RING,
        steps=2,
        clip_norm=1.0,
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


# ---- what rounding before fresh noise adds -------------------------------------


def refreshed(rounds=10, dim=10_000):
    protocol = sv.protocols.FreshNoiseGossip(sv.graphs.path(8), rounds, tau=0.1)
    return sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5, dim=dim)


@pytest.mark.parametrize(("noise_std", "radius"), [(1.0, 0.5), (4.0, 0.5), (1.0, 2.0)])
def test_rounding_before_fresh_noise_is_priced_on_top_of_what_is_seen(noise_std, radius):
    """Two worlds may round apart by a grid step per number, node and round but the last: lengths add up."""
    plan = sv.PrivateAveraging(
        sv.protocols.FreshNoiseGossip(sv.graphs.path(8), 10, tau=0.1),
        noise_std=noise_std,
        radius=radius,
        dim=10_000,
    )
    h = plan.schedule(0).view(0).leakage()
    shift = math.sqrt(8 * 9 * 10_000) / STEPS_PER_STD
    told = account_each(plan, [0])
    for user in (4, 7):
        mu = 2 * radius / noise_std * math.sqrt(h[user]) + shift
        assert plan.privacy("pairwise", observer=0, user=user).mu == pytest.approx(mu, rel=1e-6)
        assert told[user].mu == pytest.approx(mu, rel=1e-6)
    assert told[1].mu == pytest.approx(2 * radius / noise_std)  # never more than all of it
    assert refreshed(rounds=3).privacy("pairwise", observer=0, user=7).mu == 0.0  # nothing came that far


def test_a_budget_pays_for_rounding_that_no_noise_lowers():
    plan = refreshed().calibrated_to(0.05, 1e-5, "pairwise", observer=0, user=7)
    mu = plan.privacy("pairwise", observer=0, user=7).mu
    assert mu == pytest.approx(gaussian_mu(0.05, 1e-5), rel=1e-9)
    assert plan.epsilon(1e-5, "pairwise", observer=0, user=7) <= 0.05
    without = refreshed(dim=1).calibrated_to(0.05, 1e-5, "pairwise", observer=0, user=7)
    assert plan.noise_std > 1.05 * without.noise_std


# ---- shares of exact sums, from what is seen ------------------------------------------------


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("kind", ["exchange", "tree"])
@pytest.mark.parametrize("observers", [(0,), (1, 3), (0, 2, 5)])
def test_exact_sums_are_priced_from_the_view_of_who_looks(kind, observers, scale):
    """mu of three steps: 2 C sqrt(3 h) / (z C), with h read off the linear view of the coalition.

    Everybody's noise is scaled together with the clip, so no number depends on the scale.
    """
    z = scale * np.array([4.0, 5, 6, 7, 8, 9, 10, 11])
    network = CUBE if kind == "exchange" else sv.graphs.path(8)
    plan = ConsensusSGD(
        GLM(), kind, network=network, steps=3, clip_norm=1.0, adjacency="user", noise_multiplier=tuple(z)
    )
    h = plan.schedule(0).view(observers).with_noise(z).leakage()
    for user in (u for u in range(8) if u not in observers):
        mu = 2 * math.sqrt(3 * h[user]) / z[user]
        found = account(plan, "colluders", colluders=observers, user=user)
        assert found.label == "exact"
        assert found.mu == pytest.approx(mu, rel=1e-9, abs=1e-12)


def test_noise_that_hides_sites_of_unlike_size_hides_all_of_them_alike():
    plan = ConsensusSGD(
        GLM(), sv.protocols.Tree(sv.graphs.star(4)), steps=2, clip_norm=1.0, noise_multiplier=6.0,
        sizes=[10, 40, 20, 80], weighting="sites", noise="optimal", floor=0.01,
    )  # fmt: skip
    losses = [plan.privacy("network", user=u).epsilon(1e-5) for u in range(4)]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    assert min(plan.multipliers) < 0.97 * max(plan.multipliers)


def test_what_is_learned_is_said_in_words():
    def words(**options):
        return ConsensusSGD(GLM(), "tree", network="ring:3", steps=1, clip_norm=1.0, **options).estimand

    assert "a site with more records counts for more" in words(sizes=[5, 5, 20])
    assert "counts as much as one with many" in words(sizes=[5, 5, 20], weighting="sites")
    assert "all are of one size" in words(sizes=[5, 5, 5], weighting="sites")
    assert "every member counts alike" in words(adjacency="user")
