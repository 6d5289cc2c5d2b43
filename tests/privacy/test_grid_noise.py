"""Noise of masked plans: every protective row is an integer of the common grid, with the noise announced."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.errors import Refused
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.privacy import GridNoise, ProtectiveNoise, SimulatedNoise, mask_grid

N, DIM, LOT = 4, 60, 37.0  # a divisor that is no power of two


def made(**more):
    """Return a masked plan and its gate on records that all point the same way, longer than the clip."""
    options = {"adjacency": "add-remove", "batch_size": LOT, "sample_rate": 1.0, **more}
    plan = ConsensusSGD(
        GLM("squared", dim=DIM), "masked", network=sv.graphs.ring(N), steps=3, clip_norm=0.7,
        noise_multiplier=5.0, **options,
    )  # fmt: skip
    X = np.tile(np.r_[10.0, np.zeros(DIM - 1)], (N * 9, 1))
    data = sv.data.Shards(X, np.ones(N * 9), np.arange(0, N * 9 + 1, 9))
    return plan, data


def released(plan, data, noise, step=0):
    gate = plan.source(data, range(N), RunRandomness(noise, 0, 0))
    return gate(np.zeros((N, DIM)), step), gate


@pytest.mark.parametrize("more", [{}, {"adjacency": "user", "batch_size": None, "sample_rate": None}])
def test_rows_are_integers_of_the_grid_with_the_announced_noise(more):
    plan, data = made(**more)
    rows = np.concatenate([released(plan, data, ProtectiveNoise(), k % 3)[0] for k in range(30)])
    steps = rows / plan.grid.step
    assert np.abs(steps - np.rint(steps)).max() < 1e-6  # a division by the lot comes after the noise
    off_grid = released(plan, data, SimulatedNoise(1))[0] / plan.grid.step
    assert np.abs(off_grid - np.rint(off_grid)).max() > 0.3
    noise = rows[:, 1:]  # the records have no part in these
    wanted = plan.releases(0)[0].noise_std
    assert noise.std() == pytest.approx(wanted, rel=4.5 / np.sqrt(2 * noise.size))
    assert plan.grid.stds.min() >= wanted


def test_integers_of_neighbors_stay_within_the_sensitivity():
    """A record more or less moves the rounded row by no more than was announced, less the half step."""
    plan, data = made()
    release, grid = plan.releases(0)[0], plan.grid
    _, gate = released(plan, data, ProtectiveNoise())
    rng = np.random.default_rng(0)
    for _ in range(50):
        base = rng.normal(size=DIM)
        move = rng.normal(size=DIM)
        move *= gate.inner_clip / np.linalg.norm(move)
        whole = [
            np.rint(np.clip(v / (grid.step * LOT), -grid.bound, grid.bound)) for v in (base, base + move)
        ]
        assert np.linalg.norm(whole[1] - whole[0]) * grid.step <= release.sensitivity - grid.step / 2


def test_clean_values_are_clamped_before_the_noise_and_never_after():
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[50.0] * 3, dim=2000, steps=1)
    noise = GridNoise(ProtectiveNoise(), grid, {0: (0, 1.0)})
    row = noise.perturb(np.full((1, 2000), 1e6), agents=[0], step=0, std=50.0)
    assert abs(row.mean() - 1) < 5 * 50 / np.sqrt(2000)
    assert np.abs(row).max() > 2.0


def test_more_noise_than_the_grid_draws_is_refused():
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[5.0] * 3, dim=2, steps=1)
    noise = GridNoise(ProtectiveNoise(), grid, {0: (0, 1.0)})
    with pytest.raises(Refused, match="noise of 6 was asked for, member 0 draws 5"):
        noise.perturb(np.zeros((1, 2)), agents=[0], step=0, std=6.0)


def test_simulated_and_protective_runs_take_the_same_path():
    """One grid step for both, and float32 models stay float32."""
    plan, data = made()
    assert plan.schedule(0).grid_step == plan.schedule(2).grid_step == plan.grid.step
    for noise in (np.random.default_rng(1), ProtectiveNoise()):
        rows = plan.run(data, noise).outputs["rows"]
        assert rows.dtype == np.float64
        assert (rows == rows[0]).all()
