"""Noise of masked plans: every protective row is an integer of the common grid, with the noise announced."""

import math

import numpy as np
import pytest
from scipy import signal, stats

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.errors import InvalidInput, Refused
from sottovoce.noise.grid import GridNoise, MaskGrid, drawable_width, grid_noise, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, SimulatedNoise
from sottovoce.protocols import Masked
from sottovoce.secure_sum.masks import simulated_masks

RUN = bytes(range(32))
N, DIM, LOT = 4, 60, 37.0  # a divisor that is no power of two


def masked_plan(**more):
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
    gate = plan.mechanism(data, range(N), RunRandomness(noise, 0, 0))
    return gate(np.zeros((N, DIM)), step), gate


@pytest.mark.parametrize("more", [{}, {"adjacency": "user", "batch_size": None, "sample_rate": None}])
def test_rows_are_integers_of_the_grid_with_the_announced_noise(more):
    plan, data = masked_plan(**more)
    rows = np.concatenate([released(plan, data, ProtectiveNoise(), k % 3)[0] for k in range(30)])
    steps = rows / plan.grid.spacing
    assert np.abs(steps - np.rint(steps)).max() < 1e-6  # a division by the lot comes after the noise
    off_grid = released(plan, data, SimulatedNoise(1))[0] / plan.grid.spacing
    assert np.abs(off_grid - np.rint(off_grid)).max() > 0.3
    noise = rows[:, 1:]  # the records have no part in these
    wanted = plan.releases(0)[0].noise_std
    assert noise.std() == pytest.approx(wanted, rel=4.5 / np.sqrt(2 * noise.size))
    assert plan.grid.stds.min() >= wanted


def test_integers_of_neighbors_stay_within_the_sensitivity():
    """A record more or less moves the rounded row by no more than was announced, less the half step."""
    plan, data = masked_plan()
    release, grid = plan.releases(0)[0], plan.grid
    _, gate = released(plan, data, ProtectiveNoise())
    rng = np.random.default_rng(0)
    for _ in range(50):
        base = rng.normal(size=DIM)
        move = rng.normal(size=DIM)
        move *= gate.inner_clip / np.linalg.norm(move)
        scaled = np.stack([base, base + move]) / (grid.spacing * LOT)
        one, other = np.rint(np.clip(scaled, -grid.bound, grid.bound))
        assert np.linalg.norm(other - one) * grid.spacing <= release.sensitivity - grid.spacing / 2


def test_clean_values_are_clamped_before_the_noise_and_never_after():
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[50.0] * 3, dim=2000, steps=1)
    noise = GridNoise(ProtectiveNoise(), grid, {0: (0, 1.0)})
    row = noise.perturb(np.full((1, 2000), 1e6), agents=[0], step=0, std=50.0)
    assert abs(row.mean() - 1) < 5 * 50 / np.sqrt(2000)
    assert np.abs(row).max() > 2.0
    with pytest.raises(Refused, match="noise of 60 was requested, member 0 draws 50"):
        noise.perturb(np.zeros((1, 2000)), agents=[0], step=0, std=60.0)


def test_simulated_and_protective_runs_take_the_same_path():
    """One grid spacing for both, and float32 models stay float32."""
    plan, data = masked_plan()
    assert plan.schedule(0).grid_spacing == plan.schedule(2).grid_spacing == plan.grid.spacing
    for noise in (np.random.default_rng(1), ProtectiveNoise()):
        rows = plan.run(data, noise).outputs["rows"]
        assert rows.dtype == np.float64
        assert (rows == rows[0]).all()


# ---- the grid ---------------------------------------------------------------------------------------------


SD_OF_THE_MEAN = {  # n: (local, any one, half, curator), epsilon 1, delta 1e-5, values in a unit interval
    10: (1.180, 0.393, 0.528, 0.373),
    64: (0.466, 0.0588, 0.0824, 0.0583),
    1024: (0.1166, 0.0036, 0.0052, 0.0036),
}


def noise_for_share(share):
    """Noise of a row that moves by 1, of whose information a share is seen, at epsilon 1 and delta 1e-5."""
    return math.sqrt(share) / sv.privacy.gaussian_mu(1.0, 1e-5)


@pytest.mark.parametrize("n", SD_OF_THE_MEAN)
def test_noise_of_the_mean_at_epsilon_one(n):
    local, single, half, curator = SD_OF_THE_MEAN[n]

    def sd(leakage):
        return noise_for_share(leakage) / math.sqrt(n)

    digits = 4 if n == 1024 else 3
    assert sd(1.0) == pytest.approx(local, abs=0.6 * 10**-digits)
    for c, printed in ((1, single), (n // 2, half), (0, curator)):
        protocol = Masked(sv.graphs.ring(n), tolerate=c)
        coalition = range(c)
        share = protocol.shares(coalition)[[u for u in range(n) if u not in coalition]].max()
        assert share == pytest.approx(1 / (n - c))
        assert sd(share) == pytest.approx(printed, abs=0.6 * 10 ** -(4 if n > 10 else 3))
        # and as drawn: integer widths on a power-of-two grid cost less than one in a hundred
        std = noise_for_share(share)
        grid = mask_grid(bound=0.5, sensitivity=1.0, noise_std=[std] * n, dim=1, steps=1)
        assert 1 <= math.sqrt((grid.stds**2).sum()) / n / sd(share) < 1.005


def test_average_with_masks_and_noise_has_the_planned_spread():
    n, dim = 10, 20_000
    protocol = Masked(sv.graphs.grid(2, 5))
    std = noise_for_share(1 / 9)
    grid = mask_grid(bound=0.5, sensitivity=1.0, noise_std=[std] * n, dim=dim, steps=1)
    clean = np.tile(np.linspace(-0.5, 0.5, n)[:, None], (1, dim))
    noise = GridNoise(ProtectiveNoise(), grid, {u: (u, 1.0) for u in range(n)})
    noisy = noise.perturb(clean, agents=range(n), step=0, std=std)
    members = simulated_masks(protocol, 1, bits=grid.bits)
    hidden = np.array([m.hide(grid.place(row), 0, RUN) for m, row in zip(members, noisy, strict=True)])
    mean = grid.mean(protocol.apply(hidden)[0])
    spread = np.sqrt(np.mean(mean**2))  # the true mean is 0
    assert spread == pytest.approx(0.393, rel=0.02)
    assert not spread == pytest.approx(0.393 * 1.05, rel=0.02)
    assert abs(mean.mean()) < 5 * 0.393 / math.sqrt(dim)


@pytest.mark.parametrize("dim", [1, 100, 38_424])
@pytest.mark.parametrize("n", [3, 10, 1024])
def test_grid_meets_its_conditions_and_is_no_finer_than_needed(dim, n):
    std = np.linspace(1.0, 3.0, n)
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=std, dim=dim, steps=200)
    assert math.frexp(grid.spacing)[0] == 0.5
    assert math.sqrt(dim) * grid.spacing <= 2e-3
    assert math.sqrt(dim) * 2 * grid.spacing > 2e-3 or std.min() / (2 * grid.spacing) < 16384
    assert (grid.stds >= std * (1 - 1e-12)).all()
    assert (grid.stds <= std * 1.002).all()
    assert grid.bound * grid.spacing >= 1.0
    assert grid.range < 2 ** (grid.bits - 1)
    invalid = dim * math.log2(2 * grid.range / 2**grid.bits) - grid.checks * grid.bits
    assert invalid <= -40
    assert grid.checks == 0 or invalid + grid.bits > -40


def test_range_is_the_union_bound_and_is_used():
    # P(|sum| > x) <= 2 exp(-x^2 / (2 sum s^2)) for each of dim * steps coordinates
    reach = MaskGrid(1.0, 64, 100, (30.0, 40.0, 0.0, 0.0, 0.0), dim=7, steps=11, checks=0).range
    assert 2 * 7 * 11 * math.exp(-((reach - 500) ** 2) / (2 * 50**2)) == pytest.approx(2**-40)
    narrow = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[1.0] * 3, dim=10, steps=1)
    wide = mask_grid(bound=20_000.0, sensitivity=2.0, noise_std=[1.0] * 100, dim=10, steps=1)
    assert (narrow.bits, wide.bits) == (32, 64)
    with pytest.raises(InvalidInput, match="do not fit 64 bits"):
        mask_grid(bound=1e14, sensitivity=1e-3, noise_std=[1.0] * 100, dim=10, steps=1)


def test_invalid_numbers_are_refused():
    protocol = Masked(sv.graphs.ring(5))
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[1.0] * 5, dim=1, steps=1)
    assert grid.checks >= 1
    rows = np.array([grid.place(np.array([0.5]))] * 5)
    members = simulated_masks(protocol, 1, bits=grid.bits)
    hidden = np.array([m.hide(row, 0, RUN) for m, row in zip(members, rows, strict=True)])
    assert grid.mean(protocol.apply(hidden)[0]) == pytest.approx([0.5])
    missing = protocol.apply(np.concatenate([hidden[:4], rows[4:]]))[0]  # one member forgot its masks
    with pytest.raises(Refused, match="belong together"):
        grid.mean(missing)
    with pytest.raises(Refused, match="belong together"):
        grid.mean(np.array([np.iinfo(np.int32).min, *[0] * grid.checks], np.int32))
    for k in range(grid.checks):  # a plausible value does not excuse a zero that is none
        total = np.zeros(1 + grid.checks, np.int32)
        total[1 + k] = 1
        with pytest.raises(Refused, match="belong together"):
            grid.mean(total)
    with pytest.raises(InvalidInput, match="a sum on this grid"):
        grid.mean(np.zeros(1 + grid.checks))


grid_bad = [
    ({"noise_std": [0.0] * 3}, "not all 0"),
    ({"noise_std": [1.0, float("nan")]}, "finite"),
    ({"noise_std": [1e6] * 3, "sensitivity": 1e-6}, "too wide"),
]


@pytest.mark.parametrize(("changed", "words"), grid_bad)
def test_grids_that_would_not_protect_are_refused(changed, words):
    fine = {"bound": 1.0, "sensitivity": 2.0, "noise_std": [1.0] * 3, "dim": 1, "steps": 1}
    mask_grid(**fine)
    with pytest.raises(InvalidInput, match=words):
        mask_grid(**{**fine, **changed})


# ---- noise on the grid ------------------------------------------------------------------------------------


def discrete_gaussian_law(s, reach):
    k = np.arange(-reach, reach + 1)
    law = np.exp(-(k**2) / (2 * s * s))
    return law / law.sum()


def convolved(factors, reach=6000):
    """The law of K0 + sum of factor * K, in full, by convolution."""
    law = discrete_gaussian_law(512.0, reach)
    for factor in factors:
        spread = np.zeros(2 * factor * reach + 1)
        spread[::factor] = discrete_gaussian_law(512.0, reach)
        law = signal.convolve(law, spread, method="direct" if factor < 3 else "fft")
    return law


@pytest.mark.parametrize("factors", [(1, 0, 0), (1, 1, 1), (5, 3, 0), (9, 4, 2)])
def test_terms_blend_into_one_discrete_gaussian(factors):
    law = convolved([f for f in factors if f])
    s = 512 * math.sqrt(1 + sum(f * f for f in factors))
    expected = discrete_gaussian_law(s, len(law) // 2)
    center = slice(len(law) // 2 - int(4 * s), len(law) // 2 + int(4 * s))
    np.testing.assert_allclose(law[center], expected[center], rtol=1e-8)


@pytest.mark.parametrize("width", [512.0, 9000.0, 1e6])
def test_grid_noise_has_its_width(width):
    drawn = drawable_width(width)
    draws = grid_noise(400_000, drawn)
    assert draws.std() / drawn == pytest.approx(1, abs=0.006)  # five standard errors
    assert stats.kstest(draws[:20_000] / drawn, "norm").pvalue > 1e-5
    # the distance to a law five per cent wider is .012, six times what 400,000 draws scatter by
    assert stats.kstest(draws / (drawn * 1.05), "norm").pvalue < 1e-6
    assert not grid_noise(5, 0).any()
    with pytest.raises(InvalidInput, match="rounds widths up"):
        grid_noise(5, drawn + 1)


def test_every_member_draws_noise_of_its_own_width():
    std = [1.0, 0.0, 4.0]
    grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=std, dim=20_000, steps=1)
    noise = GridNoise(ProtectiveNoise(), grid, {5: (2, 1.0), 7: (0, 1.0)})
    zeros = np.zeros((2, 20_000))
    rows = noise.perturb(zeros, agents=[5, 7], step=0, std=np.array([4.0, 1.0]))
    assert rows.std(axis=1) == pytest.approx([4.0, 1.0], rel=0.03)
    assert not grid.place(rows[0])[20_000:].any()


@pytest.mark.parametrize("wanted", [8, 512, 700, 8192, 16_384, 17_001.5, 131_073, 131_075, 1e6, 3e7])
def test_widths_are_rounded_up_and_found_again(wanted):
    drawn = drawable_width(wanted)
    assert drawn >= wanted * (1 - 1e-12)
    assert drawable_width(drawn) == drawn
    if wanted >= 16_384:
        assert drawn <= wanted * 1.002
