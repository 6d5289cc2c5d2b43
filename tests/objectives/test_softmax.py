"""Logistic regression with several classes: gradients against a loop over records, and what it refuses."""

import numpy as np
import pytest
from tests.objectives.cases import numeric_gradient

import sottovoce as sv
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM, Softmax


def shards(rng, sizes=(7, 4), dim=3, classes=4):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    X = rng.standard_normal((sum(sizes), dim))
    return Shards(X, rng.integers(0, classes, sum(sizes)).astype(float), offsets)


@pytest.mark.parametrize("clip_norm", [np.inf, 0.5])
def test_clipped_sums_are_those_of_single_records(clip_norm):
    rng = np.random.default_rng(0)
    model, data = Softmax(4), shards(rng)
    theta = rng.standard_normal((2, 12))
    batches = [np.array([0, 3, 5]), np.array([1])]
    expected = np.zeros((2, 12))
    for place, batch in enumerate(batches):
        X, y = data.user(place)
        for i in batch:
            gradient = numeric_gradient(lambda w, of=(X[[i]], y[[i]]): model.losses(w, *of)[0], theta[place])
            expected[place] += gradient * min(1.0, clip_norm / np.linalg.norm(gradient))
    np.testing.assert_allclose(model.query(data).sums(theta, batches, [0, 1], clip_norm), expected, atol=1e-7)


def test_a_record_moves_the_sum_by_at_most_the_clip():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((6, 3)) * np.array([1, 1e3, 1e-3, 1e150, 1, 1e308])[:, None]
    data = Shards(X, np.arange(6.0) % 3, np.array([0, 6]))
    query, theta = Softmax(3).query(data), rng.standard_normal((1, 9))
    for i in range(6):
        assert np.linalg.norm(query.sums(theta, [np.array([i])], [0], 0.7)) <= 0.7 * (1 + 1e-12)
    assert not query.sums(theta * np.nan, [np.arange(6)], [0], 0.7).any()


def test_two_classes_are_logistic_regression():
    rng = np.random.default_rng(2)
    data = shards(rng, classes=2)
    signed = Shards(data.X, 2 * data.y - 1, data.offsets)
    w = rng.standard_normal(3)
    arguments = [np.arange(7), np.arange(4)], [0, 1], np.inf
    two = Softmax(2).query(data).sums(np.tile([0, 0, 0, *w], (2, 1)), *arguments)
    one = GLM().query(signed).sums(np.tile(w, (2, 1)), *arguments)
    np.testing.assert_allclose(two[:, 3:], one, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["consensus-sgd", "dp-dsgt", "dp-sgd"])
def test_several_classes_are_learned_and_priced_like_any_linear_model(algorithm):
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (900, 2))
    y = np.array(["left", "middle", "right"])[np.digitize(X[:, 0], [-0.33, 0.33])]
    who = {} if algorithm == "dp-sgd" else {"network": "complete:3"}
    training = sv.TrainingOptions(classes=["left", "middle", "right"], steps=150, learning_rate=3.0)
    budget = sv.Budget(8.0, 1e-5)
    fitted = sv.fit("logistic", (X, y), algorithm=algorithm, budget=budget, training=training, rng=rng, **who)
    assert (fitted.predict(X) == y).mean() > 0.8
    assert fitted.model.coef.shape == (3, 2)
    assert fitted.privacy.epsilon(1e-5) <= 8.0


def test_what_a_softmax_cannot_do_is_a_sentence():
    with pytest.raises(InvalidInput, match="takes l2 only"):
        sv.fit(
            GLM(l1=0.1),
            (np.eye(3), [0, 1, 2]),
            training=sv.TrainingOptions(classes=[0, 1, 2]),
            network="complete:3",
            budget=sv.Budget(1.0, 1e-5),
        )
    with pytest.raises(DataError, match="labels must be the numbers 0 to 2"):
        Softmax(3).prepared(Shards(np.eye(2), np.array([0.0, 3.0]), np.array([0, 2])))
    with pytest.raises(InvalidInput):
        sv.algorithms.DPCD(
            Softmax(3), records=9, steps=1, clip_norm=1.0, noise_multiplier=1.0, smoothness=(1.0,)
        )
