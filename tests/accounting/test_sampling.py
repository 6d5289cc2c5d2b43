"""Sampled Gaussian steps: three methods against each other, closed forms and many digits."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.accounting import pld as loss_distributions
from sottovoce.accounting.loss_parts import (
    Laplace,
    Pure,
    SampledGaussian,
    _integer_order,
    _integrated_order,
)
from sottovoce.accounting.renyi import rdp_delta, rdp_epsilon
from sottovoce.privacy import Curve, gaussian_epsilon, sampled_gaussian


def many_digit_order(q, z, alpha, replace):
    """ln E_Q[(P/Q)^alpha] / (alpha - 1) by 40-digit quadrature."""
    with mp.workdps(40):
        q, z, alpha = mp.mpf(q), mp.mpf(z), mp.mpf(alpha)

        def upper(x):
            return (1 - q) * mp.npdf(x, 0, z) + q * mp.npdf(x, 1, z)

        def lower(x):
            return (1 - q) * mp.npdf(x, 0, z) + q * mp.npdf(x, -1, z) if replace else mp.npdf(x, 0, z)

        low, high = -30 * z - (2 * alpha if replace else 0), (2 * alpha if replace else alpha) + 30 * z
        points = mp.linspace(low, high, 31)
        return float(
            mp.log(mp.quad(lambda x: upper(x) ** alpha * lower(x) ** (1 - alpha), points)) / (alpha - 1)
        )


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3])
@pytest.mark.parametrize("z", [0.5, 1.0, 4.0, 300.0])
def test_order_two_closed_form(q, z):
    expected = math.log1p(q * q * math.expm1(1 / z**2))
    assert SampledGaussian(q, z).rdp(2.0) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("q", "z", "alpha"), [(0.01, 1, 1.5), (0.05, 0.45, 3.3), (0.05, 8, 10.3), (0.001, 30, 1.1), (0.5, 2, 7.7)]
)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_any_order_against_many_digits(q, z, alpha, adjacency):
    expected = many_digit_order(q, z, alpha, adjacency == "replace-one")
    assert SampledGaussian(q, z, adjacency).rdp(alpha) == pytest.approx(expected, rel=1e-9)


@given(q=st.floats(1e-4, 0.9), z=st.floats(0.3, 50), alpha=st.integers(2, 60))
@settings(deadline=None, max_examples=60)
def test_finite_sum_and_integral_agree(q, z, alpha):
    assert _integer_order(q, z, alpha) == pytest.approx(_integrated_order(q, z, alpha, False), rel=1e-8)


def test_the_slides_rule_of_thumb_is_too_small():
    for q, z, alpha, ratio in [(0.01, 1, 2, 1.718), (0.01, 1, 8, 2.23), (0.01, 4, 2, 1.03)]:
        assert SampledGaussian(q, z).rdp(float(alpha)) / (q * q * alpha / (2 * z * z)) == pytest.approx(
            ratio, rel=0.01
        )


@pytest.mark.parametrize("alpha", [1.5, 2.0, 5.0, 33.0])
def test_renyi_losses_against_dp_accounting(alpha):
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    for event, mine in [
        (
            dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.3)),
            SampledGaussian(0.02, 1.3).rdp(alpha),
        ),
        (dp_event.LaplaceDpEvent(2.0), Laplace(0.5).rdp(alpha)),
        (dp_event.GaussianDpEvent(2.0), Curve.gaussian(0.5).renyi(alpha)),
    ]:
        accountant = RdpAccountant(orders=[alpha])
        accountant.compose(event)
        theirs = float(accountant._rdp[0])
        if alpha.is_integer():
            assert mine == pytest.approx(theirs, rel=1e-6)
        else:  # their series for other orders adds absolute values: an upper bound
            assert mine * (1 - 1e-9) <= theirs <= 1.2 * mine


def test_laplace_by_quadrature():
    ratio, alpha = 0.7, 3.5
    with mp.workdps(30):
        moment = mp.quad(
            lambda x: mp.exp(-alpha * abs(x) - (1 - alpha) * abs(x - ratio)) / 2, [-mp.inf, 0, ratio, mp.inf]
        )
        assert Laplace(ratio).rdp(alpha) == pytest.approx(float(mp.log(moment) / (alpha - 1)), rel=1e-12)
    assert Laplace(ratio).rdp(1e6) == pytest.approx(ratio, rel=1e-3)
    assert Pure(0.2).rdp(3.0) == pytest.approx(0.06)


# ---- privacy loss distributions ------------------------------------------------------------------------

SETTINGS = [
    (1 / 22, 15.78, 2000),
    (1 / 22, 1.296, 2000),
    (0.01, 1.0, 500),
    (0.5, 5.0, 100),
    (0.01, 300.0, 2000),
]


@pytest.mark.parametrize(("q", "z", "steps"), SETTINGS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_pld_lies_between_an_optimistic_account_and_renyi(q, z, steps, adjacency):
    from dp_accounting.pld import privacy_loss_distribution as pld

    relation = (
        pld.NeighborRel.REPLACE_ONE if adjacency == "replace-one" else pld.NeighborRel.ADD_OR_REMOVE_ONE
    )
    curve = Curve.sampled_gaussian(q, z, steps, adjacency=adjacency)
    found = curve.epsilon(1e-5)
    interval = loss_distributions._interval(list(curve.parts))
    below = pld.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval, use_connect_dots=False,
        pessimistic_estimate=False, neighboring_relation=relation,
    ).self_compose(steps)  # fmt: skip
    assert below.get_epsilon_for_delta(1e-5) <= found <= curve.epsilon(1e-5, method="rdp")


@pytest.mark.parametrize(("z", "steps"), [(100.0, 10_000), (10.0, 50), (3000.0, 10_000)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-11])
def test_pld_is_above_and_close_to_the_exact_value_without_sampling(z, steps, delta):
    # a rate of 1 - 1e-13 keeps the numerical path; the truth is the exact Gaussian value
    found = loss_distributions.composed(((SampledGaussian(1 - 1e-13, z), steps),)).epsilon(delta)
    exact = gaussian_epsilon(math.sqrt(steps) / z, delta)
    assert exact <= found <= exact * (1 + (1e-3 if delta >= 1e-8 else 0.05))


def test_tiny_deltas_fall_back_on_renyi():
    curve = Curve.sampled_gaussian(0.01, 1.0, 100)
    assert curve.epsilon(1e-30) == curve.epsilon(1e-30, method="rdp")
    assert curve.epsilon(1e-30) > curve.epsilon(1e-12)
    assert 0 < curve.delta(20.0) < 1e-12


def test_mixed_parts_are_composed_together():
    mixed = (
        Curve.sampled_gaussian(0.05, 2.0, 100) + Curve.gaussian(0.5) + Curve.pure(0.2) + Curve.laplace(0.1, 3)
    )
    assert mixed.epsilon(1e-5) < mixed.epsilon(1e-5, method="rdp")
    assert mixed.epsilon(1e-5) > Curve.sampled_gaussian(0.05, 2.0, 100).epsilon(1e-5)
    assert mixed.epsilon(1e-5) < sum(
        part.epsilon(2.5e-6)
        for part in (
            Curve.sampled_gaussian(0.05, 2.0, 100),
            Curve.gaussian(0.5),
            Curve.pure(0.2),
            Curve.laplace(0.1, 3),
        )
    )


def test_pure_composition_is_optimal():
    # Kairouz, Oh, Viswanath 2015: k-fold eps0-DP is (i eps0, delta_i) with this delta_i
    eps0, k, i = 0.2, 6, 2
    weights = [
        math.comb(k, l) * (math.exp((k - l) * eps0) - math.exp((k - 2 * i + l) * eps0)) for l in range(i)
    ]
    delta = sum(weights) / (1 + math.exp(eps0)) ** k
    assert Curve.pure(eps0, k).delta((k - 2 * i) * eps0) == pytest.approx(delta, rel=1e-3)


def test_many_multipliers_share_groups_upwards(monkeypatch):
    monkeypatch.setattr(loss_distributions, "MAX_GROUPS", 12)
    rng = np.random.default_rng(7)
    noise = 2 * np.exp(rng.uniform(0, 2, 60))
    curve = Curve.total(Curve.sampled_gaussian(0.05, float(z)) for z in noise)
    merged = loss_distributions._shared_multipliers({float(z): 1 for z in noise}, 16)
    assert len(merged) <= 16
    assert sum(merged.values()) == 60
    for z in noise:  # everyone is charged at a multiplier of at most its own
        assert min(merged) <= max(k for k in merged if k <= z) <= z
    charged = np.repeat(sorted(merged), [merged[k] for k in sorted(merged)])
    assert (charged <= np.sort(noise)).all()
    found = curve.epsilon(1e-5)
    everyone_worst = Curve.sampled_gaussian(0.05, float(noise.min()), 60).epsilon(1e-5)
    separately = curve.epsilon(1e-5, method="rdp")
    assert found < separately < everyone_worst
    assert (
        len(loss_distributions._shared_multipliers({float(z): 1 for z in rng.uniform(1, 9, 3000)}, 16)) <= 16
    )


def test_grouping_by_brute_force():
    counts = {1.0: 3, 1.2: 1, 1.5: 4, 2.0: 1, 5.0: 2}

    def waste(grouping):
        total, levels = 0.0, sorted(grouping)
        for z, k in counts.items():
            charged = max(g for g in levels if g <= z)
            total += k * (charged**-2 - z**-2)
        return total

    from itertools import combinations

    best = min(waste((1.0, *rest)) for rest in combinations(sorted(counts)[1:], 2))
    assert waste(loss_distributions._shared_multipliers(counts, 3)) == pytest.approx(best)


@given(q=st.floats(0.01, 0.5), z=st.floats(0.8, 20), steps=st.integers(1, 300), factor=st.floats(1.05, 3))
@settings(deadline=None, max_examples=10)
def test_more_noise_costs_less_and_more_steps_cost_more(q, z, steps, factor):
    loss = Curve.sampled_gaussian(q, z, steps).epsilon(1e-6)
    assert Curve.sampled_gaussian(q, z * factor, steps).epsilon(1e-6) <= loss * (1 + 1e-3) + 1e-9
    assert Curve.sampled_gaussian(q, z, steps + 50).epsilon(1e-6) >= loss * (1 - 1e-3)


def test_replace_one_lies_between_once_and_twice_the_clip_norm():
    once = Curve.sampled_gaussian(0.1, 2.0, 50).epsilon(1e-5)
    replaced = Curve.sampled_gaussian(0.1, 2.0, 50, adjacency="replace-one").epsilon(1e-5)
    twice = Curve.sampled_gaussian(0.1, 1.0, 50).epsilon(1e-5)
    assert 1.5 * once < replaced <= twice
    full = Curve.sampled_gaussian(1.0, 2.0, 1, adjacency="replace-one")
    assert full.mu == 1.0  # 2 C / (2 C)


def test_edges_and_label():
    assert sampled_gaussian(0.0, 1.0, 100).epsilon(1e-5) == 0
    assert sampled_gaussian(0.1, 1.0, 0).epsilon(1e-5) == 0
    assert sampled_gaussian(0.1, 0.0, 1).epsilon(1e-5) == math.inf
    assert sampled_gaussian(0.1, 0.0, 1).delta(5.0) == 1
    one = sampled_gaussian(0.1, 1.0, 5)
    assert (one.label, one.adjacency, one.adversary.kind) == ("ldp", "add-remove", "local")
    assert any("Poisson" in line for line in one.assumptions)
    assert sampled_gaussian(1.0, 2.0, 4).mu == 1.0


def test_conversions():
    table = ([2.0, 8.0, 32.0], [1.0, 4.0, 16.0])
    assert rdp_epsilon(table, 1e-5) >= rdp_epsilon(lambda a: a / 2, 1e-5)
    assert rdp_epsilon(lambda a: math.inf, 1e-5) == math.inf
    assert rdp_delta(lambda a: 10 * a, 0.0) == 1.0
