"""The mechanism of the noisy maximum."""

import math

import numpy as np
import pytest
from tests.algorithms.toys import cd, gcd, hosted, problem

from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.base import ReleaseCheck
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise


def test_selection_noise_has_the_scale_that_is_announced():
    """Two coordinates whose gradients differ by d scales: the better is chosen as often as Laplace says."""
    n, r = 10, 1.5
    X = np.tile([0.5, 0.0], (n, 1))
    y = np.ones(n)  # squared loss at zero: G = (-0.5, 0)
    plan = gcd(GLM("squared"), records=n, steps=1, clip_norm=50.0, noise_ratio=r, smoothness=1.0)
    b = r * 2 * (50 / math.sqrt(2)) / n
    _, mechanism = hosted(plan.with_noise(r * 0.05), (X, y), RunRandomness.from_rng(np.random.default_rng(0)))
    mechanism.release_check = None
    b *= 0.05
    chosen = [mechanism.choose(np.zeros((1, 2)), k)[0] for k in range(4000)]
    rng = np.random.default_rng(5)
    G = np.array([-0.5, 0.0])

    def share(scale):
        tried = np.abs(G + rng.laplace(scale=scale, size=(200_000, 2)))
        return float((tried[:, 0] > tried[:, 1]).mean())

    actual = float(np.mean(np.array(chosen) == 0))
    assert abs(actual - share(b)) < 0.03
    assert abs(actual - share(b * 2)) > 0.04
    assert abs(actual - share(b / 2)) > 0.04


def test_laplace_grid_lowers_the_clip():
    """Two neighboring values may round one step further apart than the sensitivity."""
    n, r = 10, 2.0**14
    plan = gcd(records=n, steps=1, noise_ratio=r, smoothness=0.25)
    X, y = np.full((n, 4), 1e6), np.ones(n)
    G = {}
    for noise in (ProtectiveNoise(), np.random.default_rng(0)):
        _, mechanism = hosted(plan, (X, y), RunRandomness.from_rng(noise))
        G[mechanism.random.protective] = np.abs(mechanism.gradient(np.zeros((1, 4))))
    D = 2 * 0.5 / n  # 2 C_j / n
    assert G[False] == pytest.approx(np.full(4, 0.5))
    assert (2 * G[True] / n + r * D / 2.0**20 <= D * (1 + 1e-12)).all()
    assert (2 * G[True] / n + r * D / 2.0**20 >= D * (1 - 1e-9)).all()
    with pytest.raises(InvalidInput, match="noise_ratio must be below"):
        hosted(gcd(records=n, noise_ratio=2.0**21), (X, y), RunRandomness.from_rng(ProtectiveNoise()))


def test_kind_of_a_release_and_the_smoothness_release_are_compared_too():
    data = problem()
    _, mechanism = hosted(gcd(), data, RunRandomness.from_rng(np.random.default_rng(0)))
    choose, value = gcd().releases(0)
    mechanism.release_check = ReleaseCheck([[Release(**{**choose.to_dict(), "mechanism": "laplace"}), value]])
    with pytest.raises(ReleaseMismatch, match="announced laplace"):
        mechanism.choose(np.zeros((1, 4)), 0)
    plan = cd(bounds=(1.0,) * 4)
    _, mechanism = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    mechanism.release_check = ReleaseCheck([plan.releases(0)[1:]])
    with pytest.raises(ReleaseMismatch, match="does not list"):
        mechanism.noisy_smoothness()
