"""Audits hold the claims, come close to them, and find planted bugs."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from sottovoce.accounting.observation.averaging import SingleAveraging
from sottovoce.attacks import audit, bounds
from sottovoce.errors import InvalidInput
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.privacy import Adversary, Curve, Guarantee, Release, account
from sottovoce.protocols import Chebyshev, FreshNoiseGossip, Gossip, HypercubeExchange, Randomized, Tree

FAMILY = 0.001  # no audit of a right claim may exceed it, with family-wise confidence 99.9 %


def cases():
    """Protocols, observers, users: every kind of view."""
    rng = np.random.default_rng(7)
    path, ring, florentine = sv.graphs.path(5), sv.graphs.ring(6), sv.graphs.florentine()
    hypercube = sv.graphs.hypercube(3)
    return [
        ("path of three", Gossip(sv.graphs.path(3), 2), 0, 2),
        ("neighbor", Gossip(florentine, 3), 2, 1),
        ("distant", Gossip(florentine, 3), 0, 5),
        ("hypercube", Gossip(hypercube, 4), 0, 3),
        ("chebyshev", Chebyshev(ring, 3), 0, 3),
        ("two colluders", Gossip(path, 2), (0, 4), 2),
        ("randomized", Randomized(ring, 60, rng), 1, 3),
        ("tree", Tree(florentine), 3, 9),
        ("exchange", HypercubeExchange(8), 0, 7),
        ("fresh noise", FreshNoiseGossip(sv.graphs.path(4), 4, 0.3), 0, 2),
    ]


@pytest.mark.parametrize(("name", "protocol", "observers", "user"), cases(), ids=[c[0] for c in cases()])
def test_no_audit_of_averaging_exceeds_the_claim_and_all_are_tight(name, protocol, observers, user):
    """20,000 runs: the lower bound is at least 90 % of the exact mu, and never above it."""
    h = float(protocol.view(observers).leakage()[user])
    assert h > 0
    result = audit.audit_averaging(
        protocol, user=user, observers=observers, sensitivity=2.0 / np.sqrt(h), noise_std=1.0, runs=20_000,
        rng=np.random.default_rng(11), level=FAMILY / len(cases()),
    )  # fmt: skip
    assert result.mu_claimed == pytest.approx(2.0, rel=1e-4)
    assert not result.refuted, name
    usual = audit.audit_averaging(
        protocol, user=user, observers=observers, sensitivity=2.0 / np.sqrt(h), noise_std=1.0, runs=20_000,
        rng=np.random.default_rng(12),
    )  # fmt: skip
    assert 0.9 <= usual.tightness <= 1, name


def test_power_at_ten_percent_is_the_predicted_one():
    """Path of three, own noise unknown, Delta 2: TPR at FPR 0.1 is 0.5528; eq. (6) would cap it at 0.4495."""
    protocol, runs = Gossip(sv.graphs.path(3), 2), 200_000
    rng = np.random.default_rng(0)
    view = protocol.view(0, own_noise=False)
    mu = 2 * np.sqrt(view.leakage()[2])
    assert mu**2 == pytest.approx(2.0)
    scores = []
    for shift in (2.0, 0.0):
        rows = rng.normal(size=(3, runs))
        rows[2] += shift
        scores.append(view.reconstruct(protocol.observe(rows, 0, own_noise=False))[2])
    power = (scores[0] > np.quantile(scores[1], 0.9)).mean()
    assert power == pytest.approx(stats.norm.cdf(stats.norm.ppf(0.1) + mu), abs=0.006)
    assert power == pytest.approx(0.5528, abs=0.006)


def planted(**changes):
    """Audit a path of three with Delta = sigma = 1 (mu = 1) and a bug."""
    options = {
        "user": 2, "observers": 0, "sensitivity": 1.0, "noise_std": 1.0, "runs": 20_000,
        "rng": np.random.default_rng(5), "level": FAMILY,
    }  # fmt: skip
    return audit.audit_averaging(Gossip(sv.graphs.path(3), 2), **(options | changes))


class Halved(SimulatedNoise):
    def perturb(self, values, *, agents, step, std, stream=0):
        return super().perturb(values, agents=agents, step=step, std=np.asarray(std) / 2, stream=stream)


class Reused(SimulatedNoise):
    """One noise for all four steps of a hypothesis."""

    def perturb(self, values, *, agents, step, std, stream=0):
        return super().perturb(values, agents=agents, step=step - step % 4, std=std, stream=stream)


class Quiet(SimulatedNoise):
    def perturb(self, values, *, agents, step, std, stream=0):
        return super().perturb(values, agents=agents, step=step, std=np.asarray(std) / 8, stream=stream)


class Forgetful(SimulatedNoise):
    """Node 1 adds no noise."""

    def perturb(self, values, *, agents, step, std, stream=0):
        there = np.asarray(agents) != 1
        return super().perturb(values, agents=agents, step=step, std=std * there, stream=stream)


def test_planted_half_noise_is_found():
    assert planted(noise=Halved(5)).refuted


def test_planted_noise_reuse_is_found():
    plan = consensus_plan(Tree(sv.graphs.path(3), root=0), steps=4, z=1.0)
    options = {"user": 2, "observers": 0, "runs": 20_000, "level": FAMILY}
    bad = audit.audit_consensus(plan, rng=np.random.default_rng(6), noise=Reused(6), **options)
    good = audit.audit_consensus(plan, rng=np.random.default_rng(6), **options)
    assert bad.refuted
    assert not good.refuted
    assert good.tightness > 0.85


def consensus_plan(protocol, *, steps, z=2.0, **options):
    """Exact consensus at user level with sensitivity 1: two halves."""
    options = {"adjacency": "user", **options}
    return sv.algorithms.ConsensusSGD(
        sv.objectives.GLM(), protocol, steps=steps, clip_norm=0.5, noise_multiplier=z, **options
    )


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"adjacency": "user", "z": 2.0}, 0.85),
        ({"adjacency": "add-remove", "z": 1.0, "sizes": (4, 8, 12)}, 0.85),
        ({"adjacency": "replace-one", "z": 2.0, "sizes": (4, 8, 12), "weighting": "sites"}, 0.85),
        ({"adjacency": "add-remove", "z": 1.0, "sizes": (40, 40, 40), "batch_size": 20}, 0.2),
    ],
    ids=["user", "add-remove", "sites", "Poisson batches"],
)
def test_plans_over_consensus_are_audited_with_their_own_releases(options, least):
    """An eighth of a plan's noise is refuted, all of it is not; noise and sensitivity are its releases'."""
    plan = consensus_plan(Tree(sv.graphs.path(3), root=0), steps=3, **options)
    setting = {"user": 2, "observers": 0, "runs": 20_000, "level": FAMILY}
    fair = audit.audit_consensus(plan, rng=np.random.default_rng(3), **setting)
    assert not fair.refuted
    assert fair.tightness > least
    assert fair.epsilon_claimed == plan.privacy("pairwise", observer=0, user=2).epsilon(1e-2)

    assert audit.audit_consensus(plan, rng=np.random.default_rng(3), noise=Quiet(3), **setting).refuted


def test_plans_that_are_no_consensus_are_not_audited_as_one():
    plan = sv.algorithms.MuffliatoSGD(
        sv.objectives.GLM(), Gossip(sv.graphs.path(3), 1), steps=2, clip_norm=1.0, noise_multiplier=1.0,
        adjacency="user",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="does not end its steps in exact consensus"):
        audit.audit_consensus(plan, user=2, observers=0, runs=100, rng=np.random.default_rng(0))
    plan = consensus_plan(Tree(sv.graphs.path(3)), steps=2)
    with pytest.raises(InvalidInput, match="one of the observers"):
        audit.audit_consensus(plan, user=0, observers=0, runs=100, rng=np.random.default_rng(0))


def test_planted_equation_six_is_found_as_a_claim():
    W = sv.graphs.path(3).W.toarray()
    rows = [np.linalg.matrix_power(W, t)[1] for t in range(2)]
    share = sum(row[2] ** 2 / (row @ row) for row in rows)
    assert share == pytest.approx(1 / 3)
    claim = Guarantee(Adversary("pairwise", 0, 2), "user", "published", Curve.gaussian(np.sqrt(share)))
    result = planted(guarantee=claim)
    assert result.refuted
    assert result.tightness > 1.5
    without_own = planted(guarantee=claim, own_noise=False, sensitivity=3.0, noise_std=3.0)
    assert without_own.mu_claimed < np.sqrt(0.5)


def test_planted_noise_of_one_node_missing_is_found():
    tree = Tree(sv.graphs.path(3), root=0)
    options = {
        "user": 2, "observers": 0, "sensitivity": 3.0, "noise_std": 1.0, "runs": 20_000, "level": FAMILY,
    }  # fmt: skip
    assert audit.audit_averaging(tree, rng=np.random.default_rng(1), noise=Forgetful(1), **options).refuted
    assert not audit.audit_averaging(tree, rng=np.random.default_rng(1), **options).refuted


def test_gossip_with_fresh_noise_draws_afresh_in_every_step():
    """Without the step, two steps would share their fresh noise, and a true claim would be refuted."""
    protocol = FreshNoiseGossip(sv.graphs.path(4), 4, fresh_noise_std=0.7)
    one = account(SingleAveraging(protocol, 4.0, 1.0), "pairwise", observer=0, user=3)
    steps = SimpleNamespace(
        n=4, steps=2, schedule=lambda k: protocol,
        releases=lambda agent: [Release(agent, 0, sensitivity=4.0, noise_std=1.0, steps=2)],
    )  # fmt: skip
    result = audit.audit_consensus(
        steps, user=3, observers=0, runs=20_000, rng=np.random.default_rng(0), level=1e-3,
        guarantee=one + one,
    )  # fmt: skip
    assert result.mu_claimed == pytest.approx(1.141, abs=1e-3)
    assert 0.9 < result.bound.mu <= result.mu_claimed
    assert not result.refuted


@pytest.mark.parametrize(
    "protocol", [Gossip(sv.graphs.florentine(), 8), FreshNoiseGossip(sv.graphs.path(4), 4, 0.7)], ids=repr
)
def test_public_results_are_audited_with_all_their_noise(protocol):
    result = audit.audit_outputs(
        protocol,
        user=1,
        sensitivity=12.0,
        noise_std=1.0,
        runs=20_000,
        rng=np.random.default_rng(0),
        level=FAMILY,
    )
    assert not result.refuted
    assert result.tightness > 0.8


def test_standard_views():
    network = sv.graphs.florentine()
    views = audit.views_of(Gossip(network, 8), network, 0)
    assert set(views) == {"neighbor", "distant node", "two colluders"}
    assert len(views["two colluders"]) == 2


def test_a_claim_that_is_not_gaussian_is_refuted_along_its_curve():
    rng = np.random.default_rng(3)
    claim = Guarantee(Adversary("local"), "add-remove", "ldp", Curve.pure(0.5, 1))
    lap = rng.laplace(size=(2, 20_000))
    fair = audit.audit_view(lap[0] * 2 + 1, lap[1] * 2, claim, delta=1e-3, level=FAMILY)
    assert not fair.refuted
    halved = audit.audit_view(lap[0] + 1, lap[1], claim, delta=1e-3, level=FAMILY)
    assert halved.refuted


def test_broken_views_are_evidence():
    claim = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(1.0))
    rng = np.random.default_rng(4)
    broken = rng.normal(size=(1000, 2))
    broken[:, 1] = np.nan
    result = audit.audit_view(broken, rng.normal(size=(1000, 2)), claim)
    assert result.refuted
    assert result.bound.epsilon > 4


def test_invalid_input_is_refused():
    with pytest.raises(InvalidInput, match="one of the observers"):
        planted(user=0)
    claim = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(1.0))
    with pytest.raises(InvalidInput, match="same width"):
        audit.audit_view(np.zeros((20, 2)), np.zeros((20, 3)), claim)
    with pytest.raises(InvalidInput, match="10 runs"):
        audit.audit_view(np.zeros((2, 2)), np.zeros((2, 2)), claim)
    with pytest.raises(InvalidInput, match="at least 4 nodes"):
        audit.views_of(Gossip(sv.graphs.path(3), 1), sv.graphs.path(3), 0)
    assert bounds.lower_bound(np.zeros(30), np.ones(30)).mu > 1
