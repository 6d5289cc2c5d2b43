"""The mechanism of a token: clipped steps, rounding, what was announced."""

from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.toys import SECRET, walk_shards

import sottovoce as sv
from sottovoce.algorithms import RandomWalkSGD
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.random_walk_kernels import holder_moves
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM


def holder_step(model, X, y, theta, *, learning_rate, clip_norm, noise):
    after = theta.copy()
    step = (clip_norm, noise, 0.0, learning_rate, model.regularizer.decay(len(after)))
    holder_moves(model.kind, model.width, after, X, y, *step, after.copy())
    return after


@pytest.mark.parametrize("bad", [1e300, np.nan, np.inf, 1e160])
def test_holder_moves_a_step_by_at_most_the_sensitivity(bad):
    rng = np.random.default_rng(5)
    for records in (1, 3):
        X, theta = rng.normal(size=(records, 2)), rng.normal(size=2)
        y = np.ones(records)
        broken = X.copy()
        broken[0] = bad
        for model in (GLM(), GLM("squared", l2=0.1), GLM("huber")):
            a, b = (
                holder_step(model, D, y, theta, learning_rate=0.5, clip_norm=0.8, noise=np.zeros(2))
                for D in (X, broken)
            )
            assert np.linalg.norm(a - b) / 0.5 <= 2 * 0.8 * (1 + 1e-9)
        silent = holder_step(GLM(), X, y, theta, learning_rate=0.5, clip_norm=0.0, noise=np.zeros(2))
        assert (silent == theta).all()


def test_rounding_slack_above_the_clip_is_refused():
    """Below zero the clip would have grown again with the slack."""
    plan = RandomWalkSGD(GLM("logistic"), sv.graphs.complete(2), 2, 0.1, 1.0, 1e6, **SECRET)
    two = Shards(np.ones((2, 1)), np.array([1.0, -1.0]), np.array([0, 1, 2]))
    with pytest.raises(InvalidInput, match=r"rounding slack .* exceeds the clip norm"):
        plan.run(two, sv.privacy.ProtectiveNoise())


def test_contributions_of_every_node_are_compared_with_the_plan():
    """Clip norm, noise and steps are compared in the contract of all algorithms."""
    plan = RandomWalkSGD(GLM(), sv.graphs.ring(6), 20, 0.3, 0.5, 0.7, cap=4, **SECRET)
    mechanism = plan.mechanism(walk_shards(), range(6), RunRandomness.from_rng(np.random.default_rng(0)))
    planned = [plan.releases(v) for v in range(6)]
    shorter = [*planned[:5], [replace(planned[5][0], steps=3)]]
    for other in ({"cap": None}, {"cap": 5}, {"announced_releases": shorter}):
        with pytest.raises(ReleaseMismatch):
            replace(mechanism, **other)
