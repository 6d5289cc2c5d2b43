"""A constant answer, by closed forms, and models that are no better."""

import math

import numpy as np
import pytest

from sottovoce.objectives.trivial import CONSTANTS, comparison, trivial_scores, with_trivial


def test_constant_answers_by_hand():
    three = trivial_scores("classification", np.array([0, 1, 1, 2]))
    assert three["trivial_accuracy"] == 0.5
    assert three["trivial_loss"] == pytest.approx(1.5 * math.log(2))
    signed = trivial_scores("labels", np.array([-1.0, 1.0, 1.0, 1.0]))
    assert signed["trivial_accuracy"] == 0.75
    assert signed["trivial_loss"] == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    several = trivial_scores("labels", np.array([[0, 1], [0, 0], [0, 1], [0, 0]]))
    assert several["trivial_accuracy"] == 0.75  # the first label is always 0, the second half the time
    assert trivial_scores("labels", np.zeros(3))["trivial_loss"] == 0.0
    assert trivial_scores("regression", np.array([1.0, 5.0]))["trivial_rmse"] == 2.0
    assert "trivial_loss" not in trivial_scores("classification", np.array([0, 1]), log_loss=False)
    assert {*three, *trivial_scores("regression", np.ones(2)), "better_than_trivial"} == set(CONSTANTS)


@pytest.mark.parametrize(
    ("scores", "task", "better"),
    [
        ({"accuracy": 0.75}, "labels", False),  # a model that always answers no
        ({"accuracy": 0.76}, "labels", True),
        ({"rmse": 0.44}, "regression", False),
        ({"rmse": 0.43}, "regression", True),  # the deviation is 0.433
        ({"accuracy": math.nan}, "labels", False),
        ({"rmse": math.nan}, "regression", False),
    ],
)
def test_better_means_better_than_a_constant(scores, task, better):
    metrics = with_trivial(scores, trivial_scores(task, np.array([0.0, 0.0, 0.0, 1.0])))
    assert metrics["better_than_trivial"] is better
    sentence = comparison(metrics)
    assert sentence.endswith(": better than a constant." if better else ": no better than a constant.")
    assert "on 4 test records" in sentence


def test_nothing_is_compared_without_a_score():
    assert comparison({"loss": 0.3}) is None
    assert "better_than_trivial" not in with_trivial({"loss": 0.3}, trivial_scores("labels", np.ones(2)))
