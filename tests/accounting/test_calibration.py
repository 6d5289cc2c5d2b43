"""The smallest noise for a budget: never above the target, never far below, refused where impossible."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import BudgetInfeasible, InvalidInput, NotAGuarantee
from sottovoce.privacy import Adversary, Curve, Guarantee, calibrate, gaussian_mu, sampled_gaussian

# noise multipliers of Bayrooti, Gao, Prorok (2023) for 2,000 steps, delta 1e-5, add/remove, Rényi accounting
PAPER = {
    22: {0.5: 15.78, 1: 8.359, 10: 1.296, 100: 0.4834},
    24: {0.5: 14.375, 1: 7.656, 10: 1.218, 100: 0.4686},
    27: {0.5: 12.81, 1: 6.797, 10: 1.125, 100: 0.4499},
}


def with_curve(make, label="exact"):
    return lambda noise: Guarantee(Adversary("pairwise", 1, 0), "user", label, make(noise))


def noise_multiplier(epsilon, rate, steps, method="pld", **search):
    return calibrate(lambda z: sampled_gaussian(rate, z, steps, method), epsilon, 1e-5, **search)


@pytest.mark.parametrize("batches", PAPER)
@pytest.mark.parametrize("epsilon", [0.5, 1, 10, 100])
def test_noise_multipliers_of_the_paper(batches, epsilon):
    z = noise_multiplier(epsilon, 1 / batches, 2000, "rdp")
    assert z == pytest.approx(PAPER[batches][epsilon], rel=0.01)
    assert sampled_gaussian(1 / batches, z, 2000, "rdp").epsilon(1e-5) <= epsilon


@pytest.mark.parametrize(("batches", "epsilon"), [(22, 0.5), (24, 1), (27, 10)])
def test_loss_distributions_need_less_noise(batches, epsilon):
    z = noise_multiplier(epsilon, 1 / batches, 2000, start=PAPER[batches][epsilon], tolerance=1e-3)
    assert 0.88 * PAPER[batches][epsilon] < z < 0.97 * PAPER[batches][epsilon]
    assert sampled_gaussian(1 / batches, z, 2000).epsilon(1e-5) <= epsilon
    assert sampled_gaussian(1 / batches, z * 0.998, 2000).epsilon(1e-5) > epsilon


@given(epsilon=st.floats(0.01, 50), exponent=st.floats(-12, -2), sensitivity=st.floats(0.01, 100))
@settings(deadline=None, max_examples=40)
def test_calibration_inverts_the_forward_function(epsilon, exponent, sensitivity):
    delta = 10.0**exponent
    forward = with_curve(lambda noise: Curve.gaussian(sensitivity / noise))
    noise = calibrate(forward, epsilon, delta)
    assert forward(noise).epsilon(delta) <= epsilon
    assert forward(noise / (1 + 2e-6)).epsilon(delta) > epsilon
    assert noise == pytest.approx(sensitivity / gaussian_mu(epsilon, delta), rel=2e-6)


def test_what_no_noise_can_meet():
    for label in ("conditional", "published"):
        with pytest.raises(NotAGuarantee):
            calibrate(with_curve(lambda noise: Curve.gaussian(1 / noise), label), 1.0, 1e-5)
    fixed = with_curve(lambda noise: Curve.gaussian(1 / noise) + Curve.gaussian(1.0))
    with pytest.raises(BudgetInfeasible, match="No noise meets epsilon 2") as caught:
        calibrate(fixed, 2.0, 1e-5)
    assert str(caught.value).endswith(".")
    assert calibrate(fixed, 5.0, 1e-5) > 0
    with pytest.raises(InvalidInput, match="needs no calibration"):
        calibrate(with_curve(lambda noise: Curve.none()), 1.0, 1e-5)
    with pytest.raises(InvalidInput, match="must return a Guarantee"):
        calibrate(lambda noise: 1.0, 1.0, 1e-5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_a_few_evaluations_spend_all_but_a_thousandth_and_never_more(epsilon, start):
    tried = []

    def forward(noise):
        tried.append(noise)
        return sampled_gaussian(0.02, noise, 200, "rdp")

    noise = calibrate(forward, epsilon, 1e-5, start=start, tolerance=1e-3)
    spent = sampled_gaussian(0.02, noise, 200, "rdp").epsilon(1e-5)
    assert 0.999 * epsilon <= spent <= epsilon
    assert noise in tried  # the noise returned was itself evaluated
    assert len(tried) <= (10 if start == 1.0 else 16)  # a factor of 1,000 is ten halvings away


def test_a_jump_in_epsilon_ends_the_search_on_the_safe_side():
    jump = with_curve(lambda noise: Curve.gaussian(2.0 if noise < 3.7 else 0.1))
    noise = calibrate(jump, 1.0, 1e-5, tolerance=1e-3)
    assert 3.7 <= noise <= 3.7 * 1.0001
