"""Exact Gaussian conversions against printed values, 60-digit arithmetic and properties."""

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.accounting.renyi import rdp_epsilon
from sottovoce.errors import InvalidInput
from sottovoce.privacy import gaussian_delta, gaussian_epsilon, gaussian_mu

deltas = st.floats(-300, -0.05).map(lambda e: 10.0**e)
mus = st.floats(-6, 4).map(lambda e: 10.0**e)


def reference_delta(mu, epsilon):
    with mp.workdps(120):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        upper = mp.erfc((epsilon / mu - mu / 2) / mp.sqrt(2)) / 2
        return upper - mp.exp(epsilon) * mp.erfc((epsilon / mu + mu / 2) / mp.sqrt(2)) / 2


@pytest.mark.parametrize(
    ("mu", "exact", "by_rdp"),
    [(0.1, 0.3407, 0.3753), (0.5, 1.9931, 2.1657), (1, 4.3772, 4.7284), (3, 16.6755, 17.8001)],
)
def test_printed_table(mu, exact, by_rdp):
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(exact, abs=6e-5)
    assert rdp_epsilon(lambda a: a * mu**2 / 2, 1e-5) == pytest.approx(by_rdp, abs=6e-5)


@pytest.mark.parametrize("mu", [1e-10, 1e-7, 1e-5, 1e-3, 0.1, 1.0, 7.0, 100.0, 1e5])
@pytest.mark.parametrize("delta", [1e-300, 1e-40, 1e-12, 1e-5, 0.1, 0.999])
def test_epsilon_against_many_digits(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert reference_delta(mu, 0) <= delta
        return
    with mp.workdps(120):
        # a relative step of 1e-11 either way crosses the target: epsilon is right to that precision
        assert reference_delta(mu, mp.mpf(epsilon) * (1 + mp.mpf("1e-11"))) <= delta
        assert reference_delta(mu, mp.mpf(epsilon) * (1 - mp.mpf("1e-11"))) > delta * (1 - 1e-12)


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(1, 0), (1, 4), (0.01, 0.05), (3, 700), (50, 1400), (1e-4, 3e-4)]
)
def test_delta_against_many_digits(mu, epsilon):
    expected = reference_delta(mu, epsilon)
    assert gaussian_delta(mu, epsilon) == pytest.approx(float(expected), rel=1e-10)


@given(mu=mus, delta=deltas)
@settings(deadline=None, max_examples=150)
def test_epsilon_never_lands_above_its_delta(mu, delta):
    assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta


@given(epsilon=st.floats(0, 500), delta=deltas)
@settings(deadline=None, max_examples=100)
def test_mu_never_lands_above_the_target(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) <= epsilon
    assert gaussian_delta(mu * 1.0001, epsilon) > delta  # and is the largest


def test_edges():
    assert gaussian_epsilon(0, 1e-5) == 0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_delta(math.inf, 3) == 1
    assert gaussian_delta(0, 0) == 0
    assert gaussian_delta(1, math.inf) == 0
    assert gaussian_mu(math.inf, 1e-5) == math.inf
    assert gaussian_mu(0, 0.1) == pytest.approx(
        2 * 0.12566134685507402, rel=1e-12
    )  # 2 Phi^-1((1 + delta) / 2)


@pytest.mark.parametrize("call", [
    lambda: gaussian_epsilon(-1, 1e-5), lambda: gaussian_epsilon(1, 0), lambda: gaussian_epsilon(1, 1),
    lambda: gaussian_epsilon(math.nan, 0.1), lambda: gaussian_mu(-0.1, 1e-5), lambda: gaussian_delta("x", 1),
])  # fmt: skip
def test_bad_input_is_one_sentence(call):
    with pytest.raises(InvalidInput) as caught:
        call()
    assert str(caught.value).endswith(".")
