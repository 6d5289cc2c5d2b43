"""Rényi losses of single mechanisms against closed forms, many digits and dp-accounting."""

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.accounting.loss_parts import Laplace, Pure, SampledGaussian, _integer_order, _integrated_order
from sottovoce.privacy import Curve


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
        (dp_event.GaussianDpEvent(2.0), Curve.gaussian(0.5).rdp(alpha)),
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
