"""Federations: secure sums, sampled clients, participations."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.stats import binom
from tests.accounting.other_accountants import assert_gaussian, composed_epsilon, sampled
from tests.accounting.small_plans import D, every, one, plan_of, stationary_plan

import sottovoce as sv
from sottovoce.accounting.gaussian import gaussian_delta
from sottovoce.accounting.observation import Consensus, Federation
from sottovoce.privacy import Release, account
from sottovoce.protocols import HypercubeExchange, Masked, Tree
from sottovoce.protocols.server import Server

SAMPLED = "Poisson sampling: every client takes part in every round independently"


def visible_epsilon(rounds, rate, mu):
    """Epsilon at D by the mean over the number of participations, each a Gaussian mechanism."""

    def delta(epsilon):
        return math.fsum(
            binom.pmf(k, rounds, rate) * gaussian_delta(mu * math.sqrt(k), epsilon) for k in range(rounds + 1)
        )

    return brentq(lambda epsilon: delta(epsilon) - D, 0.0, 100.0, xtol=1e-12)


def test_federation_against_three_colluders():
    """125 equal noises stay around everybody, whoever the three are: too many to be tried one by one."""
    plan = stationary_plan(Federation(128, secure_sum=True), HypercubeExchange(128), one)
    guarantee = account(plan, "colluders", colluders=3)
    assert guarantee.mu == pytest.approx(1 / (2 * math.sqrt(125)), rel=1e-9)
    assert guarantee.label == "exact"
    assert "a secure sum hides single messages" in guarantee.assumptions
    assert "125 clients add their noise in every round, sampled or not" in guarantee.assumptions


def test_federation_beyond_the_certified_colluders_is_local():
    masks = Masked(Tree(sv.graphs.complete(100)), partners=sv.graphs.ring(100))
    plan = stationary_plan(Federation(100, secure_sum=True), masks, one)
    guarantee = account(plan, "colluders", colluders=3)
    assert (guarantee.label, guarantee.mu) == ("ldp", 0.5)


@pytest.mark.parametrize("model", [Consensus(), Federation(4, secure_sum=False)], ids=repr)
def test_visible_participation_counts_the_rounds_that_are_drawn(model):
    plan = stationary_plan(model, HypercubeExchange(4), lambda a: one(a, user_rate=0.5, steps=6), steps=6)
    guarantee = account(plan, "local")
    assert guarantee.epsilon(D) == pytest.approx(visible_epsilon(6, 0.5, 0.5), rel=1e-4)
    assert SAMPLED in guarantee.assumptions


def test_federations_by_dp_accounting():
    releases = [[Release(u, 0, sensitivity=4.0, noise_std=6.0, steps=8, user_rate=0.2)] for u in range(10)]
    plan = plan_of(Federation(10, secure_sum=True), releases.__getitem__, 10, 8, Server(10))
    for colluders in (0, 1, 3):
        clip_norm = 4.0 / 2
        noise = math.sqrt(10 - colluders) * 6.0 / clip_norm
        expected = composed_epsilon(D, (sampled(0.2, noise, pld.NeighborRel.REPLACE_ONE), 8))
        view = {"view": "colluders", "colluders": colluders} if colluders else {"view": "central"}
        epsilon = account(plan, **view).epsilon(D)
        assert epsilon == pytest.approx(expected, rel=2e-3)
    alone = composed_epsilon(D, (sampled(0.2, 6.0 / 2, pld.NeighborRel.REPLACE_ONE), 8))
    assert account(plan, "local").epsilon(D) == pytest.approx(alone, rel=2e-3)
    assert_gaussian(account(plan, "local", participations=8), Fraction(8) * Fraction(4, 6) ** 2)


def test_participations_count_rounds_of_unlike_rates_together():
    def releases(agent):
        first = Release(agent, 0, sensitivity=1.0, noise_std=2.0, user_rate=0.5, steps=5)
        return [first, replace(first, step=5, user_rate=0.25)]

    plan = plan_of(Federation(4, secure_sum=False), releases, n=4, steps=10)
    assert account(plan, "local", participations=8).mu == pytest.approx(math.sqrt(8) / 2)


def test_a_federation_whose_masks_change_claims_no_more_than_local_privacy():
    full = Masked(sv.graphs.complete(5), tolerate=2)
    line = Masked(sv.graphs.complete(5), partners=[(v, v + 1) for v in range(4)], tolerate=None)
    plan = plan_of(Federation(5, secure_sum=True), every(1.0, 2.0, steps=2), 5, 2, [full, line])
    assert account(plan, "colluders", colluders=2).mu == pytest.approx(
        math.sqrt(2) / 2
    )  # two part one on a line


def test_clients_that_send_in_unlike_rounds_do_not_hide_each_other():
    def releases(agent):
        return [Release(agent, agent, sensitivity=1.0, noise_std=2.0)]

    plan = plan_of(Federation(4, secure_sum=True), releases, n=4, steps=4, schedule=Server(4))
    assert account(plan, "network", observer=0).mu == pytest.approx(0.5)
