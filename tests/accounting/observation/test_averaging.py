"""Averaging: exact for every view, one noise per agent, rounding before fresh noise."""

import math

import numpy as np
import pytest
from tests.accounting.small_plans import RING, D, every, one, plan_of, stationary_plan

import sottovoce as sv
from sottovoce.accounting.observation import Averaging, Consensus
from sottovoce.noise.discrete import STEPS_PER_STD
from sottovoce.privacy import Release, account, account_each, gaussian_mu
from sottovoce.protocols import Tree


def test_walks_count_every_visit():
    walk = sv.protocols.Walk(RING, 20, np.random.default_rng(0), std=2.0)
    counts = np.bincount(walk.path, minlength=8).tolist()

    def releases(u):
        return [Release(u, 0, sensitivity=1.0, noise_std=2.0, count=counts[u])] if counts[u] else []

    plan = plan_of(Averaging(), releases, steps=1, schedule=walk)
    assert account(plan, "local").mu == pytest.approx(0.5 * math.sqrt(max(counts)))
    assert account(plan, "network").epsilon(D) == pytest.approx(4.455891139058521, rel=1e-9)
    # the row of a named node
    assert account(plan, "central", observer=0).epsilon(D) == pytest.approx(2.6548204657264916)
    assert account(plan, "central", observer=counts.index(0)).mu == 0.0  # its row is zero, not its own


def test_averaging_with_unequal_noise():
    stds = [1.0, 2.0, 3.0, 4.0]
    exchange = sv.protocols.HypercubeExchange(4)
    plan = plan_of(Averaging(), every(1.0, stds, steps=1), n=4, steps=1, schedule=exchange)
    # node 0 sees node 1 and the sum of 2 and 3
    for user, mu in {1: 1 / 2, 2: 1 / 5, 3: 1 / 5}.items():
        assert account(plan, "pairwise", observer=0, user=user).mu == pytest.approx(mu)
    assert account(plan, "central", user=0).mu == pytest.approx(1 / math.sqrt(30))
    assert account(plan, "network", user=3).mu == pytest.approx(1 / 4)


@pytest.mark.parametrize("kind", [sv.protocols.Gossip, sv.protocols.Chebyshev])
@pytest.mark.parametrize("stds", [1.0, [1.0, 2.0, 0.5, 3.0, 1.0, 1.0, 4.0, 2.0]], ids=["equal", "unequal"])
def test_network_view_of_gossip_equals_local(kind, stds):
    """The short way against every observer's own view."""
    protocol = kind(RING, 3)
    plan = plan_of(Averaging(), every(1.0, stds, steps=1), steps=1, schedule=protocol)
    each = [account(plan, "network", observer=v).mu for v in range(8)]
    assert account(plan, "network").mu == pytest.approx(max(each)) == account(plan, "local").mu
    assert account(plan, "network").label == "exact"
    about = [account(plan, "pairwise", observer=v, user=2).mu for v in range(8) if v != 2]
    assert account(plan, "network", user=2).mu == pytest.approx(max(about))


def test_gossip_of_no_rounds_reveals_nothing():
    silent = plan_of(Averaging(), every(1.0, 1.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 0))
    assert account(silent, "network").mu == 0


def test_several_noise_scales_fall_back_to_local():
    """One view covers one noise each: with two the own noise alone counts, without any nothing is hidden."""

    def both(u):
        return [*one(u, 2.0), *one(u, 3.0, stream=1)]

    gossip = sv.protocols.Gossip(RING, 2)
    twice = account(plan_of(Averaging(), both, steps=1, schedule=gossip), "pairwise", observer=0, user=4)
    assert twice.label == "ldp"
    assert twice.mu == pytest.approx(math.sqrt(1 / 4 + 1 / 9))

    silent = [1.0, 2.0, 0.0, 1.5, 1.0, 1.0, 1.0, 1.0]
    plan = plan_of(Averaging(), every(1.0, silent, steps=1), steps=1, schedule=gossip)
    seen = gossip.view(0).leakage() > 0
    assert seen[2]
    assert not seen[4]
    assert account(plan, "pairwise", observer=0, user=2).epsilon(D) == math.inf
    assert account(plan, "pairwise", observer=0, user=1).mu == pytest.approx(1 / 2)  # all of its own noise
    assert account(plan, "pairwise", observer=0, user=4).epsilon(D) == 0.0


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_no_noise_costs_infinity(model):
    plan = stationary_plan(model, Tree(sv.graphs.path(4)), lambda a: one(a, 0.0))
    for who in ({}, {"observer": 0}, {"observer": 0, "user": 2}):
        assert account(plan, "network", **who).epsilon(1e-5) == math.inf


def fresh_noise(rounds=10, dim=10_000, noise_std=1.0, radius=0.5):
    protocol = sv.protocols.FreshNoiseGossip(sv.graphs.path(8), rounds, fresh_noise_std=0.1)
    return sv.PrivateAveraging(protocol, noise_std=noise_std, radius=radius, dim=dim)


@pytest.mark.parametrize(("noise_std", "radius"), [(1.0, 0.5), (4.0, 0.5), (1.0, 2.0)])
def test_rounding_before_fresh_noise_raises_the_cost(noise_std, radius):
    """Two worlds may round apart by a grid step per number, node and round but the last: lengths add up."""
    plan = fresh_noise(noise_std=noise_std, radius=radius)
    h = plan.schedule(0).view(0).leakage()
    shift = math.sqrt(8 * 9 * 10_000) / STEPS_PER_STD
    seen = account_each(plan, [0])
    for user in (4, 7):
        mu = 2 * radius / noise_std * math.sqrt(h[user]) + shift
        assert plan.privacy("pairwise", observer=0, user=user).mu == pytest.approx(mu, rel=1e-6)
        assert seen[user].mu == pytest.approx(mu, rel=1e-6)
    assert seen[1].mu == pytest.approx(2 * radius / noise_std)  # never more than all of it
    h = plan.schedule(0).output_view(0).leakage()[7]  # who sees one final row alone gains no less
    released = plan.privacy("central", observer=0, user=7).mu
    assert released == pytest.approx(2 * radius / noise_std * math.sqrt(h) + shift, rel=1e-6)
    assert fresh_noise(rounds=3).privacy("pairwise", observer=0, user=7).mu == 0.0  # nothing came that far


def test_budget_covers_rounding():
    plan = fresh_noise().calibrated_to(0.05, 1e-5, view="pairwise", observer=0, user=7)
    mu = plan.privacy("pairwise", observer=0, user=7).mu
    assert mu == pytest.approx(gaussian_mu(0.05, 1e-5), rel=1e-9)
    assert plan.epsilon(1e-5, "pairwise", observer=0, user=7) <= 0.05
    without = fresh_noise(dim=1).calibrated_to(0.05, 1e-5, view="pairwise", observer=0, user=7)
    assert plan.noise_std > 1.05 * without.noise_std
