"""Muffliato-SGD: schedules, fresh noise by name, convergence."""

import numpy as np
import pytest
from tests.algorithms.toys import COMMON, SCHEDULES, N, P, shards

import sottovoce as sv
from sottovoce.algorithms import MuffliatoSGD
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.objectives import GLM


@pytest.mark.parametrize(
    ("options", "divisor"),
    [
        ({"adjacency": "user"}, 1.0),
        ({"adjacency": "user", "noise_multiplier": (1.0, 4.0, 2.0, 1.0)}, 1.0),
        ({"adjacency": "user", "sizes": [10, 20, 30, 60], "batch_size": 5}, 1.0),
        ({"sizes": [10, 20, 30, 60]}, 10.0),
        ({"sizes": [10, 20, 30, 60], "sample_rate": 0.5}, 5.0),
        ({"sizes": [10, 20, 30, 60], "batch_size": 5}, 5.0),
    ],
)
def test_named_fresh_noise_scales_with_the_row_noise(options, divisor):
    """fresh x rate x multiplier x clip over what a gradient is divided by, in every step."""
    common = {"steps": 3, "clip_norm": 0.5, "noise_multiplier": 4.0, "learning_rate": (0.4, 0.1)}
    plan = MuffliatoSGD(GLM(), "fresh-noise:2:fresh=1.5", network=sv.graphs.ring(4), **(common | options))
    stds = [plan.schedule(k).fresh_noise_std for k in range(3)]
    assert stds == pytest.approx([1.5 * rate * 4.0 * 0.5 / divisor for rate in (0.4, 0.2, 0.1)])
    assert plan.schedule(1) is plan.schedule(1)
    assert plan.with_noise(0.0).schedule(1).fresh_noise_std == 1.5  # nothing to be in proportion to


@pytest.mark.parametrize("name", SCHEDULES)
def test_muffliato_takes_every_schedule_and_keeps_the_mean(name):
    plan = MuffliatoSGD(GLM("logistic", l2=0.1), SCHEDULES[name](), **COMMON)
    random = RunRandomness(SimulatedNoise(0), 1, 2)
    mechanism = plan.mechanism(shards(), range(N), random)
    algorithm = plan.algorithm(mechanism, np.zeros((N, P)))
    state = algorithm.init()
    for k in range(3):
        sent = algorithm.message(state, k)
        got = plan.schedule(k).apply(sent, noise=random.noise, step=k)
        if name != "fresh-noise":
            assert np.allclose(got.mean(axis=0), sent.mean(axis=0), atol=1e-13)
        state = algorithm.update(state, got, k)
    assert plan.privacy("local").label == "ldp"
    assert plan.privacy("pairwise", observer=0, user=4).valid
