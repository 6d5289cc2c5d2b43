"""Correlated noise: explicit matrices, duality, printed values and simulated covariance."""

import math
from fractions import Fraction

import mpmath
import pytest
from tests.accounting.other_accountants import assert_gaussian
from tests.accounting.small_plans import PAIR, SEES, TWO, every, plan_of

import sottovoce as sv
from sottovoce.accounting.observation import PairCorrelated, TimeCorrelated
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Release, account


def test_pair_correlated_noise_against_a_neighbor():
    model = PairCorrelated(sv.graphs.star(8), own_std=2.0, pair_std=6.0)
    plan = plan_of(model, every(2.0, 2.0, steps=10), steps=10)
    assert account(plan, "outsider").label == "exact"
    # the center knows every seed of a leaf, so the worst member learns what local privacy leaves
    assert account(plan).mu == account(plan, "pairwise", **PAIR).mu == pytest.approx(math.sqrt(10))
    assert account(plan, "network", observer=2).mu < account(plan, "colluders", **TWO).mu
    assert account(plan, "local").mu == pytest.approx(math.sqrt(10))
    assert account(plan, "local").label == "ldp"
    wrong = PairCorrelated(sv.graphs.star(8), own_std=3.0, pair_std=6.0)
    with pytest.raises(InvalidInput, match="must be the same"):
        account(plan_of(wrong, every(2.0, 2.0, steps=10), steps=10), "outsider")


def test_time_correlated_noise_is_one_mechanism():
    plan = plan_of(TimeCorrelated(), every(2.0, 2.0, steps=9, joint=True), steps=9)
    for view, who in SEES.items():
        guarantee = account(plan, view, **who)
        assert (guarantee.label, guarantee.mu) == ("ldp", 1.0)


def test_shared_noise_by_mpmath():
    n, own, pair, steps = 6, 2.0, 5.0, 3
    graph = sv.graphs.ring(n)
    releases = [[Release(u, 0, sensitivity=2.0, noise_std=own, steps=steps)] for u in range(n)]
    plan = plan_of(PairCorrelated(graph, own, pair), releases.__getitem__, n, steps)
    for coalition in ((), (1,), (1, 4)):
        honest = [v for v in range(n) if v not in coalition]
        covariance = mpmath.zeros(len(honest))
        for i, u in enumerate(honest):
            covariance[i, i] += own**2
            for j, w in enumerate(honest):
                if (u - w) % n in (1, n - 1):
                    covariance[i, i] += pair**2
                    covariance[i, j] -= pair**2
        inverse = covariance**-1
        worst = max(inverse[i, i] for i in range(len(honest)))
        squared = Fraction(float(4 * steps * worst)).limit_denominator(10**15)
        view = {"view": "colluders", "colluders": coalition} if coalition else {"view": "outsider"}
        assert_gaussian(account(plan, **view), squared)
