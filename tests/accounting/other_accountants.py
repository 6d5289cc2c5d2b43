"""Privacy costs by other means, for comparison: Gaussian losses in mpmath, sampled ones in dp-accounting."""

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

mpmath.mp.dps = 40
INTERVAL = 2e-4  # in which dp-accounting rounds losses


def gaussian_delta(squared, epsilon):
    """delta of mu^2-GDP at epsilon, in forty digits."""
    mu = mpmath.sqrt(mpmath.mpf(squared.numerator) / squared.denominator)
    ratio = mpmath.mpf(epsilon) / mu
    return mpmath.ncdf(mu / 2 - ratio) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - ratio)


def assert_gaussian(guarantee, squared, delta=1e-6):
    """The epsilon that was claimed is that of mu^2 = ``squared`` (a fraction), to the last digits."""
    epsilon = guarantee.epsilon(delta)
    if squared == 0:
        assert epsilon == 0
        return
    assert float(gaussian_delta(squared, epsilon)) == pytest.approx(delta, rel=1e-7)


def sampled(rate, noise, relation=pld.NeighborRel.ADD_OR_REMOVE_ONE):
    return pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=INTERVAL, neighboring_relation=relation
    )


def composed_epsilon(delta, *pairs):
    """Return epsilon of mechanisms, each so many times."""
    total = pld.identity(INTERVAL)
    for mechanism, count in pairs:
        total = total.compose(mechanism.self_compose(count) if count > 1 else mechanism)
    return total.get_epsilon_for_delta(delta)
