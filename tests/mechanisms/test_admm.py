"""The mechanisms of private ADMM."""

import numpy as np
import pytest
from tests.algorithms.toys import admm_problem

import sottovoce as sv
from sottovoce.algorithms import FederatedADMM
from sottovoce.data import Shards
from sottovoce.mechanisms.admm_kernels import client_move
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM


@pytest.mark.parametrize("bad", [1e300, np.nan, np.inf, -1e38])
def test_move_is_never_longer_than_the_clip(bad):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3, 2))
    X[1, 0] = bad
    for kind in range(3):
        for m in (1, 3):
            move = client_move(
                kind, 1.0, X[1 : 1 + m], np.ones(3)[:m], rng.normal(size=2), np.ones(2), 0.5, 0.7
            )
            assert np.isfinite(move).all()
            assert np.linalg.norm(move) <= 0.7 * (1 + 1e-12)


def test_repeated_step_is_one_release():
    X, y = admm_problem(9, n=4, p=3)
    shards = Shards.from_parts(X, y, np.arange(4)[:, None])
    plan = FederatedADMM(GLM(), 4, 3, 0.5, 0.8, 0.3, 0.2, secure_sum=False)
    mechanism = plan.mechanism(
        shards, range(4), RunRandomness.from_rng(sv.privacy.ProtectiveNoise())
    ).recording()
    algorithm = plan.algorithm(mechanism, np.zeros((4, 3)))
    state = algorithm.init()
    sent = algorithm.message(state, 0)
    charged = mechanism.drain()
    after = algorithm.update(state, sent, 0)
    assert (after.own[0] == 0.5 * sent).all()
    assert mechanism.drain() == ()
    assert {r.sender for r in charged} == set(np.flatnonzero(np.abs(sent).sum(axis=1)).tolist())
    assert all(r.noise_std == 0.2 and r.sensitivity == 1.2 for r in charged)
