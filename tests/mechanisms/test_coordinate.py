"""The mechanism of single coordinates."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from tests.algorithms.toys import cd, gcd, hosted, problem
from tests.mechanisms.toys import Spy

from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.coordinate import coordinate_clips
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_spacing
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise


def coordinate(mechanism, j, step=0):
    """What is released of coordinate ``j`` at zero: what a step of length one takes from it."""
    mechanism.chosen = lambda step, count: np.full(count, j)
    M, zero = mechanism.noisy_smoothness(), np.zeros((1, mechanism.dim))
    w, _, _ = mechanism.descend(M, zero, zero, mechanism.margins(zero), step, 1, np.ones(mechanism.dim))
    return -float(w[0, j])


def test_coordinates_are_uniform_public_and_fixed_by_step():
    plan, data = cd(steps=4000), problem()
    _, mechanism = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    drawn = mechanism.chosen(0, 4000)
    assert abs(np.bincount(drawn) / 4000 - 0.25).max() < 0.03
    assert (mechanism.chosen(1500, 700) == drawn[1500:2200]).all()
    assert [int(mechanism.chosen(k, 1)[0]) for k in (1023, 1024, 3999)] == drawn[[1023, 1024, 3999]].tolist()
    _, other = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(1)))
    assert (other.chosen(0, 100) != drawn[:100]).any()


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_smoothness_release_moves_by_at_most_its_sensitivity(adjacency):
    X, y = problem(4, n=10, p=3)
    other = X.copy()
    other[0] = [1e300, 0.0, -1e9]
    plan = cd(records=10, bounds=(1.0, 2.0, 0.5), smoothness_mu=0.4, steps=1, adjacency=adjacency)
    seen = []
    for D in (X, other):
        noise = Spy()
        algorithm, _ = hosted(plan, (D, y), RunRandomness(noise, 1, 1))
        algorithm.init()
        seen.append(noise.seen[0])
    stream, first, (std,) = seen[0]
    assert stream == 1
    assert 0 < np.linalg.norm(first - seen[1][1]) / std <= 0.4 * (1 + 1e-12)
    (preliminary, _) = plan.releases(0)
    assert (preliminary.stream, preliminary.noise_std) == (1, std)
    assert preliminary.sensitivity / std == pytest.approx(0.4)


def test_worst_record_moves_a_coordinate_by_exactly_the_sensitivity():
    """In the unit C_j / n of the release list: 2 when it is replaced."""
    n = 5
    pull = []
    for target in (1e6, -1e6):
        X, y = np.ones((n, 2)), np.array([target, 0, 0, 0, 0])
        plan = cd(GLM("squared"), records=n, clip_norm=3.0, noise_multiplier=0.0, smoothness=(1.0, 3.0))
        random = RunRandomness.from_rng(np.random.default_rng(0))
        pull.append([coordinate(hosted(plan, (X, y), random)[1], j) for j in (0, 1)])
    C = 3.0 * np.sqrt(np.array([0.25, 0.75]))
    assert (np.array(pull[1]) - pull[0]) * n / C == pytest.approx([2.0, 2.0])
    assert plan.releases(0)[0].sensitivity == 2.0


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_rounding_slack_lowers_the_coordinate_clip(adjacency):
    """With a grid coarse enough to matter, what a record moves and two roundings stay within the booking."""

    n, z, coarse = 4, 10.0, Spy(slack=lambda dim, std: 0.01 * std)
    plan = cd(GLM("squared"), records=n, steps=1, noise_multiplier=z, smoothness=(1.0,), adjacency=adjacency)
    values = []
    for target in (1e6, -1e6 if adjacency == "replace-one" else 0.0):
        _, mechanism = hosted(
            plan, (np.ones((n, 1)), np.array([target, 0, 0, 0])), RunRandomness(coarse, 1, 1)
        )
        mechanism._grid = 0.0  # the sum itself, before it is rounded
        values.append(coordinate(mechanism, 0) * n)
    moves = plan.releases(0)[0].sensitivity
    assert abs(values[0] - values[1]) + 2 * 0.01 * z == pytest.approx(moves)
    with pytest.raises(InvalidInput, match="rounding slack"):
        hosted(plan.with_noise(1000.0), (np.ones((n, 1)), np.ones(n)), RunRandomness(coarse, 1, 1))


def test_zero_draw_of_discrete_noise_is_still_a_release_on_the_grid():
    """One draw in 330,000 is zero; the sum then left as it was, off the grid, and told itself exactly."""

    n, z = 8, 2.0
    X = np.random.default_rng(0).uniform(-1, 1, (n, 1))
    y = np.tile([1.0, -1.0], n // 2)
    plan = cd(records=n, steps=1, noise_multiplier=z, smoothness=(0.25,), output="last")
    (w,) = plan.run((X, y), Spy(protective=True)).outputs["coef"]
    steps = w / (1 / 0.25) / (1 / n) / grid_spacing(z)
    assert abs(steps) > 1000
    assert steps == pytest.approx(round(steps), abs=1e-6)
    quiet = cd(records=n, steps=1, noise_multiplier=0.0, smoothness=(0.25,), output="last")
    (w,) = quiet.run((X, y), Spy(protective=True)).outputs["coef"]
    steps = w / (1 / 0.25) / (1 / n) / grid_spacing(z)
    assert abs(steps - round(steps)) > 1e-3


def test_coordinate_clips_add_up_to_the_clip_norm():
    M = np.array([0.2, 1.0, 2.8])
    C = coordinate_clips(M, 2.0)
    assert sum(Fraction(float(c)) ** 2 for c in C) == pytest.approx(4)
    assert (C / np.sqrt(M))[1:] == pytest.approx((C / np.sqrt(M))[:-1])


def test_protective_noise_drawn_twice_for_one_step_is_not_the_same():
    """Noise kept for a second query would cancel in the difference of the two answers."""
    plan, data = cd(), problem()

    def answers(noise):
        random = RunRandomness.from_rng(noise)  # every run draws the step once
        return {coordinate(hosted(plan, data, random)[1], 0, 5) for _ in range(4)}

    assert len(answers(ProtectiveNoise())) > 1
    assert len(answers(np.random.default_rng(0))) == 1


@pytest.mark.parametrize("sparse", [False, True])
def test_every_coordinate_of_every_record_is_clipped_at_its_own_bound(sparse):
    X, y = problem(9)
    M, start = np.array([0.2, 0.3, 0.4, 0.5]), np.full((1, 4), 0.3)
    C = 0.5 * np.sqrt(M / M.sum())
    each = -(y / (1 + np.exp(y * (X @ start[0]))))[:, None] * X
    plan = gcd(clip_norm=0.5, smoothness=tuple(M))
    data = (sp.csr_array(X) if sparse else X, y)
    _, mechanism = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    assert np.allclose(mechanism.gradient(start), np.clip(each, -C, C).mean(axis=0), atol=1e-14)
    assert (np.abs(each) > C).any(axis=0).all()
