"""Newton steps over exact consensus."""

import numpy as np
import pytest
from tests.algorithms.cases import RING, N, shards, slopes

from sottovoce.algorithms import ConsensusNewton
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM, Softmax
from sottovoce.objectives.moments import (
    MomentsAndGradients,
    first_factor,
    newton_direction,
    packed_size,
    refined,
    unpacked,
)

EACH = 200
OPTIONS = {"network": RING, "protocol": "tree", "sizes": (EACH,) * N, "feature_norm": 3.0, "clip_norm": 50.0}


def coefficients(objective, data, steps=60, **changes):
    plan = ConsensusNewton(objective, steps=steps, **{**OPTIONS, **changes})
    return plan.run(data, np.random.default_rng(0)).coef


def test_without_noise_and_clip_it_is_newton_by_hand():
    """One step for the moments, five by their inverse over the curvature 1/4; the mean of the last two."""
    data = shards(each=5)
    plan = ConsensusNewton(GLM(), steps=6, **{**OPTIONS, "sizes": (5,) * N, "clip_norm": np.inf})
    X, w, iterates = data.X, np.zeros(3), []
    moments = X.T @ X / len(X) + 0.5e-9 * 3.0**2 * np.eye(3)  # the margin, over the squared feature norm
    for _ in range(5):
        w = w - 4 * np.linalg.solve(moments, slopes(X, data.y, w).mean(axis=0))
        iterates.append(w)
    actual = plan.run(data, np.random.default_rng(0)).coef
    np.testing.assert_allclose(actual, np.mean(iterates[-2:], axis=0), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "objective", [GLM("logistic", l2=0.02), GLM("squared", l2=0.3), GLM("logistic", l2=0.05)]
)
@pytest.mark.parametrize("stages", [1, 4])
def test_it_ends_at_the_minimizer_however_columns_are_scaled(objective, stages):
    data = shards(each=EACH)
    scaled = Shards(data.X * np.array([1.0, 0.01, 30.0]), data.y, data.offsets)
    for records, norm in ((data, 3.0), (scaled, 200.0)):
        least = objective.minimize(records.X, records.y)
        coef = coefficients(objective, records, steps=200, feature_norm=norm, stages=stages)
        assert objective.value(coef, records.X, records.y) == pytest.approx(
            objective.value(least, records.X, records.y), abs=2e-4
        )


def test_stages_find_features_that_are_small_within_their_bounds():
    """One column is a hundredth of its bounds: noise hides it from the first moments, not from later ones."""
    data = shards(each=2000)
    small = Shards(data.X * np.array([1.0, 0.01, 1.0]), data.y, data.offsets)
    options = {**OPTIONS, "sizes": (2000,) * N, "clip_norm": 1.7, "steps": 40}
    losses = []
    for stages in (1, 4):
        plan = ConsensusNewton(GLM(dim=3), stages=stages, **options).calibrated_to(2.0, 1e-5)
        losses.append(GLM().value(plan.run(small, np.random.default_rng(0)).coef, small.X, small.y))
    least = GLM().value(GLM().minimize(small.X, small.y), small.X, small.y)
    assert losses[1] < least + 0.1 * (losses[0] - least)
    assert losses[0] > least + 0.001


def test_several_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N * EACH, 3))
    y = np.argmax(X + 0.5 * rng.normal(size=X.shape), axis=1).astype(float)
    data, model = Shards(X, y, np.arange(N + 1) * EACH), Softmax(3, dim=3)
    found = coefficients(model, data)
    assert (model.predict(found, X) == y).mean() > 0.75
    assert np.linalg.norm(model.query(data).sums(found[None], [np.arange(N * EACH)], [0], np.inf)[0][:3]) < 20
    private = ConsensusNewton(model, steps=20, **{**OPTIONS, "clip_norm": 1.7}).calibrated_to(4.0, 1e-5)
    assert (model.predict(private.run(data, np.random.default_rng(0)).coef, X) == y).mean() > 0.65


@pytest.mark.parametrize("bad", [0.5, 1e3, 1e200, np.inf])
def test_one_record_moves_moments_and_gradients_by_at_most_the_clip_norm(bad):
    data = shards(each=5)
    query = MomentsAndGradients(GLM(), data, scale=0.2)
    lower = np.array([1.0, 0.2, 2.0, -0.3, 0.1, 0.05])
    theta = np.hstack([np.full((1, 3), 2.0), lower[None]])
    for rows in (theta[:, 3:], theta):
        sums = []
        for value in (0.0, bad):
            X = data.X.copy()
            X[0] = value
            changed = MomentsAndGradients(GLM(), Shards(X, data.y, data.offsets), scale=0.2)
            sums.append(changed.sums(rows, [np.arange(5)], [0], 0.7)[0])
        moved = np.linalg.norm(sums[0] - sums[1])
        assert moved <= 0.7 * (1 + 1e-9)
        assert moved > 0 or rows is theta or not np.isfinite(bad)  # a record far on its side has no slope
    assert query.dim == packed_size(3) == 6


def test_noisy_moments_are_made_positive_and_solved_exactly():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(6, 6))
    matrix = np.diag([1.0, 0.5, 0.1, 1e-3, 0, 0]) + 0.05 * (noise + noise.T)
    assert np.linalg.eigvalsh(matrix)[0] < 0
    rows, columns = np.tril_indices(6)
    packed = matrix[rows, columns] * np.where(rows == columns, 1, np.sqrt(2))
    scale, ridge = 2.0, np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.7])
    first = first_factor(6, scale)
    lower = unpacked(refined(first, packed, 6, shift=0.1, beyond=0.5, ridge=ridge), 6)
    added = (lower @ lower.T - np.diag(ridge)) / scale**2 - matrix
    assert np.allclose(added, added[0, 0] * np.eye(6))
    assert np.linalg.eigvalsh(matrix + added)[0] >= 0.05 * (1 - 1e-9)
    again = unpacked(refined(lower[rows, columns], packed, 6, shift=0.1, beyond=0.5, ridge=0 * ridge), 6)
    assert np.allclose(again @ again.T, lower @ (matrix + added) @ lower.T)
    assert added[0, 0] < 1.5 * -np.linalg.eigvalsh(matrix)[0] + 0.1
    g, w = rng.normal(size=6), rng.normal(size=6)
    expected = np.linalg.solve(lower.T, g + 0.3 * np.linalg.solve(lower, w))
    assert np.allclose(newton_direction(lower[rows, columns], g, w, 6, l2=0.3), expected)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(InvalidInput, match="2 steps or more"):
        ConsensusNewton(GLM(dim=3), steps=1, **OPTIONS)
    with pytest.raises(InvalidInput, match="takes l2 only"):
        ConsensusNewton(GLM(dim=3, l1=0.1), steps=9, **OPTIONS)


def test_masked_run_with_protective_noise_meets_its_budget():
    options = {**OPTIONS, "protocol": "masked", "clip_norm": 1.7}
    plan = ConsensusNewton.for_budget(GLM(dim=3), steps=20, epsilon=2.0, delta=1e-5, **options)
    assert plan.width == plan.grid.dim == 6
    result = plan.run(shards(each=EACH), ProtectiveNoise())
    assert result.coef.shape == (3,)
    assert 1.99 < plan.epsilon(1e-5) <= 2.0
