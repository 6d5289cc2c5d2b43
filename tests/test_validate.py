"""Checks of arguments: what passes comes back, the rest is refused in one sentence."""

import numpy as np
import pytest

from sottovoce import _validate
from sottovoce.errors import InvalidInput

INVALID = [
    (lambda: _validate.positive(0, "x"), "x must be a positive finite number, got 0"),
    (lambda: _validate.positive("2", "x"), "x must be a number, got '2'"),
    (lambda: _validate.positive(True, "x"), "x must be a number, got True"),
    (lambda: _validate.positive(10**5000, "x"), "x must be a number, got a number of thousands of digits"),
    (lambda: _validate.non_negative(float("nan"), "x"), "finite number of at least 0, got nan"),
    (lambda: _validate.clip(float("inf"), noisy=True), "clip_norm must be positive, and finite"),
    (lambda: _validate.probability(0, "q", zero=False), r"q must lie in \(0, 1\], got 0"),
    (lambda: _validate.delta(1), "delta must lie strictly between 0 and 1"),
    (lambda: _validate.count(2.0, "n"), "n must be a whole number, got 2.0"),
    (lambda: _validate.count(True, "n"), "n must be a whole number, got True"),
    (lambda: _validate.count(0, "n"), "n must be at least 1, got 0"),
    (lambda: _validate.nodes([], 3), "observers must name at least one node"),
    (lambda: _validate.nodes([1, 3], 3), "observers names node 3, but the nodes are 0 to 2"),
    (lambda: _validate.node(3, 3), "There is no node 3"),
    (lambda: _validate.loss(-1, "mu"), "mu must be at least 0"),
    (lambda: _validate.rows([[1.0], [2.0, 3.0]], 2), "all of one length"),
    (lambda: _validate.rows(["a", "b"], 2), "values must be numbers"),
    (lambda: _validate.rows(np.zeros((3, 2)), 2), r"one row per node \(2\), got shape \(3, 2\)"),
    (lambda: _validate.rows([[0.0], [np.nan]], 2), "row 1 holds NaN"),
    (lambda: _validate.flag("no", "x"), "x must be true or false, got 'no'"),
    (lambda: _validate.word(3, "x"), "x must be a word, got 3"),
    (lambda: _validate.several(3, "x"), "x must be a list of numbers, got 3"),
    (lambda: _validate.point([1.0, 2.0], "x", dim=3), r"one per coordinate \(3\), got 2"),
    (lambda: _validate.point({"a": 1}, "x"), "every coordinate of x must be a number, got 'a'"),
    (lambda: _validate.point(np.inf, "x"), "x must be a finite number"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_values_are_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_valid_values_come_back():
    assert _validate.positive(np.float32(2), "x") == 2.0
    assert _validate.clip(float("inf")) == float("inf")
    assert _validate.nodes((2, 0, 2), 3) == (0, 2)
    assert _validate.nodes(np.int64(1), 3) == (1,)
    assert _validate.rows([1, 2], 2).tolist() == [[1.0], [2.0]]
    assert _validate.rows(np.zeros((2, 1), np.float32), 2).dtype == np.float32
    assert _validate.point(1, "x") == 1.0
    assert _validate.point([1, 2], "x", dim=2) == (1.0, 2.0)
    assert _validate.shown("a" * 100).endswith("...")
