"""MAFALDA-SGD: noise correlated over time."""

import numpy as np
import pytest
from tests.algorithms.toys import RING, N, P

import sottovoce as sv
from sottovoce.algorithms import Mafalda
from sottovoce.algorithms.mafalda import correlation
from sottovoce.data import Shards
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM

ONE = sv.protocols.Gossip(RING, 1)


def test_mafalda_noise_has_the_planned_correlation():
    """Over many runs the noise of the steps has covariance (z C sens)^2 (X^-1), X = C'C; one release."""
    plan = Mafalda(GLM(), ONE, 4, 1.0, 0.5, 2.0)
    correlated = correlation(plan)
    zeros = Shards(np.zeros((N, P)), np.ones(N), np.arange(N + 1))
    rows = []
    for seed in range(300):
        mechanism = plan.mechanism(zeros, range(N), RunRandomness.from_rng(np.random.default_rng(seed)))
        rows.append(np.stack([mechanism(np.zeros((N, P)), k) for k in range(4)]))
    Z = np.stack(rows).transpose(2, 3, 0, 1).reshape(-1, 4)  # nodes, coordinates and runs by steps
    want = (2.0 * 0.5 * correlated.sens) ** 2 * np.linalg.inv(correlated.C.T @ correlated.C)
    assert np.allclose(np.cov(Z.T), want, atol=0.06 * want.max())
    # the shift of a user who moves every step by 2C, whitened: at most the privacy cost, for any signs
    inverse_std = correlated.C / (2.0 * 0.5 * correlated.sens)
    worst = max(
        np.linalg.norm(inverse_std @ (2 * 0.5 * np.array(signs)))
        for signs in np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T
    )
    assert worst <= plan.privacy("local").mu * (1 + 1e-9)
    assert plan.privacy("local").mu == pytest.approx(1.0)
    (release,) = plan.releases(0)
    assert (release.joint, release.steps, release.noise_std, release.sensitivity) == (True, 4, 1.0, 1.0)
