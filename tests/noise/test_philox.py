"""The fast sampler draws numpy's numbers."""

import numba
import numpy as np
import pytest

from sottovoce.noise.philox import standard_normals
from sottovoce.noise.samplers import SimulatedNoise


def numpy_draws(key, agents, dim, step, stream):
    rows = np.empty((len(agents), dim), np.float32)
    for row, agent in zip(rows, agents, strict=True):
        bits = np.random.Philox(key=key, counter=np.array([0, agent, step, stream], np.uint64))
        np.random.Generator(bits).standard_normal(out=row, dtype=np.float32)
    return rows


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dim", [1, 1023, 200_000])  # the last holds hundreds of draws from the tail
def test_draws_are_those_of_numpy_bit_for_bit(dim, threads, monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
    key = np.random.SeedSequence(11).generate_state(2, np.uint64)
    agents = np.array([0, 3, 4, 2**31 - 1, 17])
    drawn = standard_normals(key, agents, dim, step=2**40, stream=5)
    assert (drawn.view(np.uint32) == numpy_draws(key, agents, dim, 2**40, 5).view(np.uint32)).all()


def test_no_agents_draw_nothing():
    assert standard_normals(np.zeros(2, np.uint64), np.array([], int), 300, 0, 0).shape == (0, 300)


def test_simulated_noise_of_float32_rows_is_scaled_normals_of_numpy():
    key = np.random.SeedSequence(5).generate_state(2, np.uint64)
    values, std = np.linspace(-1, 1, 600, dtype=np.float32).reshape(2, 300), np.array([0.5, 2.0])
    noisy = SimulatedNoise(5).perturb(values, agents=[7, 8], step=1, std=std, stream=2)
    expected = values + std.astype(np.float32)[:, None] * numpy_draws(key, [7, 8], 300, 1, 2)
    assert noisy.dtype == np.float32
    assert (noisy == expected).all()
