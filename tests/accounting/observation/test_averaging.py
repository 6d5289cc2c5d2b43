"""Averaging: exact for every view, one noise per agent, rounding before fresh noise."""

import math

import numpy as np
import pytest
from tests.accounting.small_plans import RING, SEES, D, every, one, plan_of, stationary_plan

import sottovoce as sv
from sottovoce.accounting.observation import Averaging, Consensus
from sottovoce.errors import InvalidInput
from sottovoce.noise.discrete import STEPS_PER_STD
from sottovoce.privacy import Release, account, account_each, gaussian_mu
from sottovoce.protocols import Gossip, Tree


def visits(walk, std):
    counts = np.bincount(walk.path, minlength=walk.n)

    def releases(u):
        again = int(counts[u])
        return [Release(u, 0, sensitivity=1.0, noise_std=std, count=again)] if again else []

    return releases


WALK = sv.protocols.Walk(RING, 20, np.random.default_rng(0), std=2.0)


AVERAGING = {
    "gossip": (
        sv.protocols.Gossip(RING, 3), every(1.0, 2.0, steps=1),
        [1.99309140441512, 1.1100139957114608, 1.99309140441512, 1.99309140441512, 1.99309140441512],
    ),
    "exchange": (
        sv.protocols.HypercubeExchange(8), every(1.0, 2.0, steps=1),
        [1.99309140441512, 0.6339783761989402, 1.99309140441512, 1.3564673644570406, 1.99309140441512],
    ),
    "fresh-noise": (
        sv.protocols.FreshNoiseGossip(RING, 3, fresh_noise_std=0.2, noise_std=2.0), every(1.0, 2.0, steps=1),
        [1.99309140441512, 1.0924868418335028, 1.99309140441512, 1.363042443278953, 1.99309140441512],
    ),
    "walk": (
        WALK, visits(WALK, 2.0),
        [5.544830922655905, None, 4.455891139058521, 0.0, 3.637266030849735],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGING)
def test_averaging_matches_reference_values(name):
    protocol, releases, expected = AVERAGING[name]
    plan = plan_of(Averaging(), releases, steps=1, schedule=protocol)
    for (view, who), value in zip(SEES.items(), expected, strict=True):
        guarantee = account(plan, view, **who)
        if value is not None and name == "fresh-noise" and view in ("pairwise", "network", "colluders"):
            # the stored value leaves out what rounding before fresh noise adds: 4.5e-5 in mu here
            assert value <= guarantee.epsilon(D) <= value * (1 + 1e-3), view
        elif value is not None:
            assert guarantee.epsilon(D) == pytest.approx(value, rel=1e-9, abs=1e-12), view
        assert guarantee.label == ("ldp" if view == "local" else "exact")
    assert account(plan, "outsider").epsilon(D) == pytest.approx(expected[0], rel=1e-9)
    assert account(plan, "outsider").label == "ldp"
    if name == "walk":  # the row of a named node
        assert account(plan, "central", observer=0).epsilon(D) == pytest.approx(2.6548204657264916)
        missed = next(v for v in range(8) if v not in set(WALK.path.tolist()))
        assert account(plan, "central", observer=missed).mu == 0.0  # its row is zero, not its own


def test_averaging_with_unequal_noise():
    stds = [1.0, 2.0, 3.0, 4.0]
    plan = plan_of(
        Averaging(), every(1.0, stds, steps=1), n=4, steps=1, schedule=sv.protocols.HypercubeExchange(4)
    )
    # node 0 sees node 1 and the sum of 2 and 3
    expected = {1: 1 / 2, 2: 1 / 5, 3: 1 / 5}
    for user, mu in expected.items():
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


def test_fresh_noise_gossip_uses_the_view():
    """No round at all, and weights that let nobody hear node 0."""
    silent = plan_of(Averaging(), every(1.0, 1.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 0))
    assert account(silent, "network").mu == 0


def test_several_noise_scales_fall_back_to_local():
    """One view covers one noise each: with two the own noise alone counts, without any nothing is hidden."""
    both = lambda u: [  # noqa: E731
        Release(u, 0, sensitivity=1.0, noise_std=2.0),
        Release(u, 0, sensitivity=1.0, noise_std=3.0, stream=1),
    ]
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


def test_central_view_and_missing_consensus_messages():
    gossip, tree = Gossip(sv.graphs.ring(4), 3), Tree(sv.graphs.path(4))
    some = "only one final row is released, and no message is seen"
    assert some in account(stationary_plan(Averaging(), gossip, one), "central").assumptions
    for protocol, who, node in ((gossip, {"observer": 2}, 2), (tree, {}, 0)):
        assumptions = account(stationary_plan(Averaging(), protocol, one), "central", **who).assumptions
        assert f"only the final row of node {node} is released, and no message is seen" in assumptions
    with pytest.raises(InvalidInput, match="at step 0;"):
        account(stationary_plan(Consensus(), gossip, one), "network")


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_no_noise_costs_infinity(model):
    plan = stationary_plan(model, Tree(sv.graphs.path(4)), lambda a: one(a, 0.0))
    for who in ({}, {"observer": 0}, {"observer": 0, "user": 2}):
        assert account(plan, "network", **who).epsilon(1e-5) == math.inf


@pytest.mark.parametrize("model", [Averaging(), Consensus()])
def test_streams_of_one_step_cost_the_same(model):
    """Two values of a step cost the same whether they are listed as one release of two or as two of one."""
    tree = Tree(sv.graphs.path(4))
    once = stationary_plan(model, tree, lambda a: one(a, 1.0 + a, count=2))
    apart = stationary_plan(model, tree, lambda a: [*one(a, 1.0 + a), *one(a, 1.0 + a, stream=1)])
    single = stationary_plan(model, tree, lambda a: one(a, 1.0 + a))
    for user in (1, 2, 3):
        losses = [account(plan, observer=0, user=user).mu for plan in (once, apart, single)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        assert losses[0] == pytest.approx(math.sqrt(2) * losses[2], rel=1e-9)


def fresh_noise(rounds=10, dim=10_000):
    protocol = sv.protocols.FreshNoiseGossip(sv.graphs.path(8), rounds, fresh_noise_std=0.1)
    return sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5, dim=dim)


@pytest.mark.parametrize(("noise_std", "radius"), [(1.0, 0.5), (4.0, 0.5), (1.0, 2.0)])
def test_rounding_before_fresh_noise_raises_the_cost(noise_std, radius):
    """Two worlds may round apart by a grid step per number, node and round but the last: lengths add up."""
    plan = sv.PrivateAveraging(
        sv.protocols.FreshNoiseGossip(sv.graphs.path(8), 10, fresh_noise_std=0.1),
        noise_std=noise_std,
        radius=radius,
        dim=10_000,
    )
    h = plan.schedule(0).view(0).leakage()
    shift = math.sqrt(8 * 9 * 10_000) / STEPS_PER_STD
    seen = account_each(plan, [0])
    for user in (4, 7):
        mu = 2 * radius / noise_std * math.sqrt(h[user]) + shift
        assert plan.privacy("pairwise", observer=0, user=user).mu == pytest.approx(mu, rel=1e-6)
        assert seen[user].mu == pytest.approx(mu, rel=1e-6)
    assert seen[1].mu == pytest.approx(2 * radius / noise_std)  # never more than all of it
    assert fresh_noise(rounds=3).privacy("pairwise", observer=0, user=7).mu == 0.0  # nothing came that far


def test_budget_covers_rounding():
    plan = fresh_noise().calibrated_to(0.05, 1e-5, view="pairwise", observer=0, user=7)
    mu = plan.privacy("pairwise", observer=0, user=7).mu
    assert mu == pytest.approx(gaussian_mu(0.05, 1e-5), rel=1e-9)
    assert plan.epsilon(1e-5, "pairwise", observer=0, user=7) <= 0.05
    without = fresh_noise(dim=1).calibrated_to(0.05, 1e-5, view="pairwise", observer=0, user=7)
    assert plan.noise_std > 1.05 * without.noise_std
