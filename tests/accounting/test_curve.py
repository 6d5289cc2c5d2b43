"""The worst of several curves: never below any of them, at no delta."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sottovoce.accounting.gaussian import gaussian_delta
from sottovoce.accounting.renyi import rdp_epsilon
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Curve, Guarantee

gaussians = st.floats(0.01, 5.0).map(Curve.gaussian)
sampled = st.builds(
    lambda q, z, k: Curve.sampled_gaussian(q, z, k, method="rdp"),
    st.floats(0.001, 0.9),
    st.floats(0.5, 20.0),
    st.integers(1, 500),
)
curves = st.lists(
    st.one_of(gaussians, sampled, st.just(Curve.none()), st.just(Curve.pure(0.3))), min_size=1, max_size=4
)


@given(curves, st.sampled_from([1e-2, 1e-5, 1e-9]), st.floats(0.1, 5.0))
@settings(max_examples=60, deadline=None)
def test_the_worst_is_the_largest_at_every_delta_and_epsilon(alternatives, delta, epsilon):
    worst = Curve.worst(alternatives)
    assert worst.epsilon(delta) == pytest.approx(max(c.epsilon(delta) for c in alternatives), rel=1e-12)
    assert worst.delta(epsilon) == pytest.approx(
        max(c.delta(epsilon) for c in alternatives), rel=1e-9, abs=1e-300
    )
    assert worst.rdp(3.0) == pytest.approx(max(c.rdp(3.0) for c in alternatives))


@given(curves, curves)
@settings(max_examples=30, deadline=None)
def test_composing_worst_curves_covers_every_pair(one, two):
    left, right = Curve.worst(one), Curve.worst(two)
    if left != right:
        expected = max((a + b).rdp(4.0) for a in left.alternatives for b in right.alternatives)
        assert (left + right).rdp(4.0) == pytest.approx(expected)
    assert (Curve.worst(one) * 3).rdp(4.0) == pytest.approx(max((a * 3).rdp(4.0) for a in one))


def test_curves_of_two_sample_rates_cross_so_neither_speaks_for_both():
    often, seldom = Curve.sampled_gaussian(0.5, 5.0, 10), Curve.sampled_gaussian(0.01, 0.6, 10)
    assert often.epsilon(1e-3) > seldom.epsilon(1e-3)
    assert often.epsilon(1e-9) < seldom.epsilon(1e-9)
    assert len(Curve.worst([often, seldom]).alternatives) == 2


def test_equal_losses_do_not_drop_each_other():
    same = [Curve.none(), Curve.gaussian(1.0), Curve.sampled_gaussian(1.0, 1.0, method="rdp")]
    assert Curve.worst(same).mu == 1.0
    assert Curve.worst([]).epsilon(1e-5) == 0.0


def test_a_guarantee_looks_at_every_alternative():
    mixed = Curve.worst([Curve.sampled_gaussian(0.1, 1.0), Curve.sampled_gaussian(0.2, 2.0)])
    with pytest.raises(InvalidInput, match="needs sampled steps under replace-one"):
        Guarantee(Adversary("local"), "replace-one", "ldp", mixed)


def test_repeated_and_added_worst_curves_differ():
    """Twice the same run costs agent i its own curve twice; in two runs it may have two unlike roles."""
    rare, often = Curve.sampled_gaussian(0.001, 0.2), Curve.sampled_gaussian(0.9, 0.5)
    worst = Curve.worst([rare, often])
    assert (worst * 2).epsilon(1e-6) == max((rare * 2).epsilon(1e-6), (often * 2).epsilon(1e-6))
    assert (worst + worst).epsilon(1e-6) == (rare + often).epsilon(1e-6) == pytest.approx(23.193, abs=1e-3)
    assert (worst + worst + worst).epsilon(1e-6) >= (rare + often + often).epsilon(1e-6)


def test_the_worst_of_curves_with_several_bounds_is_above_each():
    table = Curve.from_rdp([2.0, 4.0, 8.0], [0.5, 1.0, 2.0])
    small = Curve.least([table, Curve.gaussian_mixture([0.0, 0.8], [0.5, 0.5])])
    large = Curve.least([table * 2, Curve.gaussian_mixture([0.0, 1.6], [0.5, 0.5])])
    worst = Curve.worst([small, large])
    for delta in (1e-2, 1e-5, 1e-9):
        assert worst.epsilon(delta) >= max(small.epsilon(delta), large.epsilon(delta))
    assert Curve.from_dict(worst.to_dict()) == worst


@pytest.mark.parametrize(("rounds", "rate", "mu"), [(50, 0.05, 1 / 3), (7, 0.5, 2.0), (200, 0.9, 0.05)])
def test_a_drawn_number_of_gaussians_by_three_ways(rounds, rate, mu):
    """A coin per round, one draw of their number, and the mean of the exact deltas."""
    coins = Curve.gaussian_mixture([0.0, mu], [1 - rate, rate], rounds)
    counts = binom.pmf(np.arange(rounds + 1), rounds, rate)
    once = Curve.gaussian_mixture(mu * np.sqrt(np.arange(rounds + 1)), counts)
    for delta in (1e-3, 1e-6, 1e-20):
        epsilon = once.epsilon(delta)
        direct = sum(w * gaussian_delta(mu * math.sqrt(k), epsilon) for k, w in enumerate(counts))
        assert direct == pytest.approx(delta, rel=1e-9)
        assert direct <= delta
        assert epsilon <= coins.epsilon(delta) <= epsilon * 1.001 + 1e-4
        assert epsilon <= rdp_epsilon(once.rdp, delta)
    for alpha in (1.5, 4.0, 300.0):
        assert once.rdp(alpha) == pytest.approx(coins.rdp(alpha), rel=1e-9)
    assert Curve.from_dict(coins.to_dict()) == coins
    with pytest.raises(InvalidInput, match="add up to 1"):
        Curve.gaussian_mixture([0.0, 1.0], [0.5, 0.4])


def test_many_different_worst_curves_stay_bounded_in_number_and_above_every_pairing():
    worsts = [
        Curve.worst(Curve.sampled_gaussian(q, k + 20 * q, 10) for q in (0.1, 0.2, 0.3, 0.4)) for k in range(5)
    ]
    assert all(len(worst.alternatives) == 4 for worst in worsts)
    total = Curve.total(worsts)
    assert len(total.alternatives) == 1
    highest = Curve.total(worst.alternatives[0] for worst in worsts)
    assert total.rdp(6.0) >= highest.rdp(6.0)
    assert total.epsilon(1e-5) >= highest.epsilon(1e-5)


NEXT_TO_NO_NOISE = [
    lambda mu: Curve.sampled_gaussian(0.5, 1 / mu, 3),
    lambda mu: Curve.sampled_gaussian(0.5, 1 / mu, 3, adjacency="replace-one"),
    lambda mu: Curve.gaussian_mixture([0.0, mu], [0.5, 0.5], 3),
    lambda mu: Curve.gaussian_mixture([0.1, mu], [0.9, 0.1], 2) + Curve.gaussian(1.0),
    lambda mu: Curve.gaussian(mu) + Curve.laplace(0.1),
]


@pytest.mark.parametrize("build", NEXT_TO_NO_NOISE)
@pytest.mark.parametrize("mu", [30.0, 40.0, 80.0, 100.0, 1e4, 1e8, 1e200])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5, 0.9])
def test_next_to_no_noise_costs_much_and_raises_nothing(build, mu, delta):
    """The loss of one step seen whole is a lower bound, as likely as the step: at least a tenth."""
    epsilon = build(mu).epsilon(delta)
    if delta < 0.01:
        assert epsilon >= Curve.gaussian(mu).epsilon(20 * delta) * (1 - 1e-9)
    assert epsilon >= 0
    assert not math.isnan(epsilon)
    assert 0 <= build(mu).delta(5.0) <= 1


@pytest.mark.parametrize("build", NEXT_TO_NO_NOISE)
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.9])
def test_noise_beyond_measure_costs_next_to_nothing(build, delta):
    assert 0 <= build(1e-200).epsilon(delta) <= 0.1 + Curve.gaussian(1.1).epsilon(delta)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.9])
def test_rates_next_to_nothing_raise_nothing(delta):
    for curve in (
        Curve.sampled_gaussian(1e-300, 0.1, 3),
        Curve.gaussian_mixture([0.0, 10.0], [1.0, 1e-300], 3),
    ):
        assert 0 <= curve.epsilon(delta) <= Curve.gaussian(10.0, 3).epsilon(delta)


def test_laplace_noise_next_to_none_beside_a_gaussian():
    assert (Curve.laplace(1e4) + Curve.gaussian(1.0)).epsilon(1e-5) == pytest.approx(10004.377, abs=1e-2)
