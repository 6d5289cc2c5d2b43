"""Composition of loss distributions: brackets, grouping, and deltas far below what one FFT resolves."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.accounting import pld
from sottovoce.accounting.loss_parts import SampledGaussian
from sottovoce.accounting.pld import composed, rare_delta, rare_epsilon
from sottovoce.privacy import Curve, gaussian_epsilon


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-13, 1e-18])
def test_gaussian_curves_are_met_where_the_exact_formula_is_known(mu, delta):
    exact = Curve.gaussian(mu)
    epsilon = rare_epsilon(exact.parts, delta)
    assert exact.epsilon(delta) <= epsilon <= exact.epsilon(delta) * (1 + 1e-4) + 1e-6
    assert rare_delta(exact.parts, epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(
    "curve",
    [
        Curve.sampled_gaussian(0.01, 1.0, 300),
        Curve.sampled_gaussian(0.2, 0.8, 5, adjacency="replace-one"),
        Curve.sampled_gaussian(0.05, 1.5, 20) + Curve.laplace(0.1, 5) + Curve.gaussian(0.5) + Curve.pure(0.1),
    ],
    ids=["add-remove", "replace-one", "mixed"],
)
def test_both_compositions_agree_where_both_resolve(curve):
    for delta in (1e-5, 1e-9):
        assert rare_epsilon(curve.parts, delta) == pytest.approx(
            composed(curve.parts).epsilon(delta), rel=2e-4
        )


def test_the_curve_falls_without_a_jump_where_the_method_changes():
    curve = Curve.sampled_gaussian(0.0035, 2.05, 100)
    epsilons = [curve.epsilon(10.0**-k) for k in range(8, 17)]
    steps = np.diff(epsilons)
    assert (steps > 0).all()
    assert steps.max() < 1.5 * steps.min()
    assert epsilons[-1] < 0.5 * replace(curve, method="rdp").epsilon(1e-16)


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
    from dp_accounting.pld import privacy_loss_distribution as reference

    relation = "REPLACE_ONE" if adjacency == "replace-one" else "ADD_OR_REMOVE_ONE"
    curve = Curve.sampled_gaussian(q, z, steps, adjacency=adjacency)
    epsilon = curve.epsilon(1e-5)
    interval = pld._interval(list(curve.parts))
    below = reference.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval, use_connect_dots=False,
        pessimistic_estimate=False, neighboring_relation=reference.NeighborRel[relation],
    ).self_compose(steps)  # fmt: skip
    assert below.get_epsilon_for_delta(1e-5) <= epsilon <= replace(curve, method="rdp").epsilon(1e-5)


@pytest.mark.parametrize(("z", "steps"), [(100.0, 10_000), (10.0, 50), (3000.0, 10_000)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-11])
def test_pld_is_above_and_close_to_the_exact_value_without_sampling(z, steps, delta):
    # a rate of 1 - 1e-13 keeps the numerical path; the truth is the exact Gaussian value
    epsilon = pld.composed(((SampledGaussian(1 - 1e-13, z), steps),)).epsilon(delta)
    exact = gaussian_epsilon(math.sqrt(steps) / z, delta)
    assert exact <= epsilon <= exact * (1 + (1e-3 if delta >= 1e-8 else 0.05))


def test_tiny_deltas_fall_back_on_renyi():
    curve = Curve.sampled_gaussian(0.01, 1.0, 100)
    assert curve.epsilon(1e-30) == replace(curve, method="rdp").epsilon(1e-30)
    assert curve.epsilon(1e-30) > curve.epsilon(1e-12)
    assert 0 < curve.delta(20.0) < 1e-12


def test_pure_composition_is_optimal():
    # Kairouz, Oh, Viswanath 2015: k-fold eps0-DP is (i eps0, delta_i) with this delta_i
    eps0, k, i = 0.2, 6, 2
    weights = [
        math.comb(k, l) * (math.exp((k - l) * eps0) - math.exp((k - 2 * i + l) * eps0)) for l in range(i)
    ]
    delta = sum(weights) / (1 + math.exp(eps0)) ** k
    assert Curve.pure(eps0, k).delta((k - 2 * i) * eps0) == pytest.approx(delta, rel=1e-3)


def test_many_multipliers_share_groups_upwards(monkeypatch):
    monkeypatch.setattr(pld, "MAX_GROUPS", 12)
    rng = np.random.default_rng(7)
    noise = 2 * np.exp(rng.uniform(0, 2, 60))
    curve = Curve.total(Curve.sampled_gaussian(0.05, float(z)) for z in noise)
    merged = pld._shared_multipliers({float(z): 1 for z in noise}, 16)
    assert len(merged) <= 16
    assert sum(merged.values()) == 60
    for z in noise:  # everyone is charged at a multiplier of at most its own
        assert min(merged) <= max(k for k in merged if k <= z) <= z
    charged = np.repeat(sorted(merged), [merged[k] for k in sorted(merged)])
    assert (charged <= np.sort(noise)).all()
    epsilon = curve.epsilon(1e-5)
    everyone_worst = Curve.sampled_gaussian(0.05, float(noise.min()), 60).epsilon(1e-5)
    separately = replace(curve, method="rdp").epsilon(1e-5)
    assert epsilon < separately < everyone_worst
    assert len(pld._shared_multipliers({float(z): 1 for z in rng.uniform(1, 9, 3000)}, 16)) <= 16


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
    assert waste(pld._shared_multipliers(counts, 3)) == pytest.approx(best)
