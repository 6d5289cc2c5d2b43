"""Private ADMM carried by a token."""

import numpy as np
import pytest
from tests.algorithms.cases import prox_logistic
from tests.algorithms.toys import admm_problem

import sottovoce as sv
from sottovoce.algorithms import TokenADMM
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.noise import samplers
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM, clip_rows
from sottovoce.runners.in_process import run_stacked


def test_token_admm_needs_two_users():
    options = {"steps": 4, "gamma": 1.0, "clip_norm": 1.0, "noise_std": 1.0}
    assert TokenADMM(GLM(), users=2, **options).users == 2
    with pytest.raises(InvalidInput, match="users"):
        TokenADMM(GLM(), users=1, **options)


def test_protective_duals_lie_on_the_grid_of_the_noise():
    X, y = admm_problem(9, n=12, p=3)
    shards = Shards.from_parts(X, y, np.array_split(np.arange(12), 6))
    plan = TokenADMM(GLM(l1=0.02, box=0.3), 6, 60, 0.8, 0.3, 0.2, 0.4, cap=7)
    mechanism = plan.mechanism(shards, range(6), RunRandomness.from_rng(sv.privacy.ProtectiveNoise()))
    algorithm = plan.algorithm(mechanism, np.zeros((6, 3)))
    whole = run_stacked(algorithm, plan.schedule, 60, every=7).own.u / (0.4 * samplers.grid_spacing(0.2))
    assert np.abs(whole - np.rint(whole)).max() < 1e-4
    assert np.abs(whole).max() > 100


def test_token_admm_equals_its_numpy_twin():
    X, y = admm_problem(9, n=6, p=3)
    shards = Shards.from_parts(X, y, np.arange(6)[:, None])
    plan = TokenADMM(GLM(l1=0.02, l2=0.1), 6, 40, 0.8, 0.3, 0.2, 0.4, cap=4)
    outputs = plan.run(shards, np.random.default_rng(3)).outputs
    random = RunRandomness.from_rng(np.random.default_rng(3))
    chunk = (1 << 17) // 3
    noise = 0.2 * random.draws(1, 0, 0).standard_normal((chunk, 3))
    holders = (random.draws(0, 0, 0).random(chunk)[:40] * 6).astype(int)
    u, zh, held = np.zeros((6, 3)), np.zeros(3), np.zeros(6, int)
    for k, i in enumerate(holders):
        z = plan.objective.regularizer.prox(zh, 0.8)
        move = clip_rows((prox_logistic(2 * z - u[i], X[i], y[i], 0.8) - z)[None], 0.3)[0] * (held[i] < 4)
        held[i] += 1
        u[i] += 0.4 * (2 * move + noise[k])
        zh = zh + 0.4 * (2 * move + noise[k]) / 6
    assert np.allclose(outputs["mean"], zh, atol=1e-12)
    assert (outputs["contributions"] == held).all()
