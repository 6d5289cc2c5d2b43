"""Confidence bounds of audits: reference values, coverage, edges."""

import numpy as np
import pytest
from scipy import stats

from sottovoce.attacks import bounds
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Curve


@pytest.mark.parametrize(("k", "n", "level"), [(0, 4000, 0.05), (7, 20, 0.05), (20, 20, 0.01), (1, 9, 0.1)])
def test_clopper_pearson_is_the_binomial_inversion(k, n, level):
    low, high = bounds.clopper_pearson(k, n, level)
    if k:
        assert stats.binom.sf(k - 1, n, low) == pytest.approx(level / 2)
    else:
        assert low == 0
    if k < n:
        assert stats.binom.cdf(k, n, high) == pytest.approx(level / 2)
    else:
        assert high == 1


def test_printed_values():
    assert bounds.clopper_pearson(0, 4000)[1] == pytest.approx(9.218e-4, rel=1e-4)
    assert bounds.epsilon_lower(4000, 4000, 0, 4000, delta=1e-2) == pytest.approx(6.98, abs=0.01)
    assert bounds.one_run_epsilon(1000, 1000, 1000) == pytest.approx(5.8091, abs=1e-4)
    assert bounds.one_run_epsilon(1000, 1000, 600, delta=1e-5) == pytest.approx(0.2972, abs=1e-4)


def test_both_sides_of_the_trade_off_count():
    """A test that is never wrong on members but often on others proves a loss through its negatives."""
    assert bounds.epsilon_lower(1000, 1000, 500, 1000) > 4
    assert bounds.epsilon_lower(500, 1000, 0, 1000) > 4


def test_one_run_p_value_by_enumeration():
    m, r, v, delta, epsilon = 40, 30, 22, 1e-3, 0.7
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    pmf = stats.binom.pmf(np.arange(r + 1), r, q)
    extra = max(pmf[v - i : v].sum() / i for i in range(1, v + 1))
    expected = pmf[v:].sum() + 2 * m * delta * extra
    assert bounds._one_run_p_value(epsilon, m, r, v, delta) == pytest.approx(expected)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_lower_bounds_cover_and_are_tight(mu):
    """400 audits of an exactly mu-GDP pair: at most the stated share exceeds, and most come close."""
    rng = np.random.default_rng(3)
    bound = np.array([
        bounds.lower_bound(rng.normal(mu, 1, 2000), rng.normal(0, 1, 2000), level=0.1, by="mu").mu
        for _ in range(400)
    ])  # fmt: skip
    assert (bound > mu).mean() <= 0.1
    assert np.median(bound) > mu - 0.25


def test_scores_may_be_low_for_members_and_may_break():
    rng = np.random.default_rng(0)
    low = bounds.lower_bound(rng.normal(-3, 1, 2000), rng.normal(0, 1, 2000), by="mu")
    assert not low.above
    assert low.mu > 2
    broken = bounds.lower_bound(np.full(2000, np.nan), rng.normal(0, 1, 2000))
    assert broken.epsilon > 5


def test_no_signal_gives_zero():
    rng = np.random.default_rng(1)
    bound = bounds.lower_bound(rng.normal(size=5000), rng.normal(size=5000), delta=1e-5)
    assert bound.epsilon < 0.1
    constant = bounds.lower_bound(np.zeros(50), np.zeros(50))
    assert constant.epsilon == constant.mu == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bounds.clopper_pearson(5, 4), "at most the number of trials"),
        (lambda: bounds.one_run_epsilon(10, 11, 3), "at most the number of canaries"),
        (lambda: bounds.audit_one_run(np.zeros(3), np.zeros(4)), "one score per canary"),
        (lambda: bounds.audit_one_run(np.zeros(3), np.zeros(3), guesses=4), "at most the number"),
        (lambda: bounds.lower_bound(np.zeros(1), np.zeros(1)), "at least two scores"),
        (lambda: bounds.lower_bound(np.zeros(9), np.zeros(9), by="rho"), "by must be"),
    ],
)
def test_invalid_input_is_refused(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()


def test_one_run_accepts_a_right_claim_and_refutes_a_tenth_of_the_noise():
    rng = np.random.default_rng(0)
    fair, weak = [], []
    for _ in range(100):
        coins = rng.random(1000) < 0.5
        fair.append(bounds.audit_one_run(coins + rng.normal(size=1000), coins, guesses=200))
        scores = coins + 0.1 * rng.normal(size=1000)
        weak.append(bounds.audit_one_run(scores, coins, guesses=800, delta=1e-4))
    claim = Curve.gaussian(1.0)
    assert max(fair) <= claim.epsilon(1e-5)
    assert np.median(fair) > 0.5
    assert np.mean(np.array(weak) > claim.epsilon(1e-4)) > 0.9
