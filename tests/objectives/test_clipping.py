"""Clipping of rows, stacks, tensors and single coordinates."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives.cases import HOSTILE

from sottovoce.objectives.clipping import clip_around, clip_rows, clip_weights
from sottovoce.objectives.kernels import clip_in_place, clip_scalar


def numba_form(rows, bound):
    out = np.array(rows, float)
    with np.errstate(all="ignore"):  # interpreted (a mutant is), numpy warns where compiled code does not
        for row in out:
            clip_in_place(row, bound)
    return out


@pytest.mark.parametrize("form", [clip_rows, numba_form], ids=["numpy", "numba"])
def test_rows_are_clipped_by_hand(form):
    rows = np.array([
        [3.0, 4.0], [0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-3.0, 0.0], [np.nan, 1.0], [1.0, -np.inf],
            [3e200, -4e200],
        [1e-200, 0.0], [1e308, 1e308],
    ])  # fmt: skip
    want = np.array([
        [0.6, 0.8], [0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-1.0, 0.0], [0, 0], [0, 0],
            [0.6, -0.8], [1e-200, 0.0],
        [math.sqrt(0.5), math.sqrt(0.5)],
    ])  # fmt: skip
    np.testing.assert_allclose(form(rows, 1.0), want, rtol=1e-15)
    assert form(np.array([[0.3, 0.4]]), 0.6).tolist() == [[0.3, 0.4]]  # what is inside keeps its bits
    np.testing.assert_allclose(form(np.array([[3e200, 4e200]]), 1e200), [[6e199, 8e199]], rtol=1e-15)
    np.testing.assert_allclose(form(np.array([[3e160, 4e160]]), 1e161), [[3e160, 4e160]], rtol=1e-15)
    np.testing.assert_allclose(
        form(np.array([[0.1, 0.1]]), 0.05), np.full((1, 2), 0.05 * math.sqrt(0.5)), rtol=1e-15
    )


def test_each_row_of_a_stack_is_clipped_by_itself():
    rows = np.random.default_rng(0).normal(size=(2, 3, 3)) * 5
    rows[1, 1, 0] = np.nan
    lengths = np.linalg.norm(rows, axis=2)
    want = rows * np.minimum(1, 2 / lengths)[..., None]
    want[1, 1] = 0
    np.testing.assert_allclose(clip_rows(rows, 2.0), want, rtol=1e-12)
    np.testing.assert_allclose(clip_rows(np.array([[3e-200, 4e-200]]), 1e-200), [[6e-201, 8e-201]])
    assert clip_rows(np.array([[0.6, 0.8]]), 1.0).tolist() == [[0.6, 0.8]]  # on the sphere it keeps its bits


def test_rows_keep_their_type_and_shape_and_an_empty_row_is_itself():
    assert clip_rows(np.ones((2, 3, 2), np.float32), 0.5).dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(clip_rows(np.ones((2, 3, 2)), 0.5), axis=-1), 0.5)
    assert clip_rows(np.zeros((2, 0)), 1.0).shape == (2, 0)


def test_the_ball_has_a_center():
    assert clip_around([[7], [3]], 4.5, 0.25).tolist() == [[4.75], [4.25]]
    assert clip_around(np.array([[np.inf], [5.5]], np.float32), 5.0, 1.0).dtype == np.float32
    assert clip_around(np.array([[np.inf], [5.5]], np.float32), 5.0, 1.0).tolist() == [[5.0], [5.5]]


def test_the_weights_of_tensors_are_the_same_rule():
    squared = torch.tensor([25.0, 4.0, 1.0, 0.0, -1e-9, math.nan, math.inf])
    want = [0.4, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(clip_weights(squared, 2.0).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(clip_weights(torch.tensor([0.25, 0.04]), 0.25).numpy(), [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(clip_weights(squared, math.inf).numpy(), [1.0] * 5 + [0.0] * 2)


def test_one_coordinate_is_clipped_at_both_ends():
    values = [3.0, 2.0, 1.0, 0.0, -2.0, -3.0, math.inf, -math.inf, math.nan]
    assert [clip_scalar(v, 2.0) for v in values] == [2.0, 2.0, 1.0, 0.0, -2.0, -2.0, 2.0, -2.0, 0.0]


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(HOSTILE, min_size=2, max_size=2), min_size=1, max_size=3))
def test_clipped_rows_are_finite_and_short(rows):
    out = clip_rows(np.array(rows), 2.0)
    assert np.isfinite(out).all()
    assert (np.linalg.norm(out, axis=1) <= 2.0 * (1 + 1e-12)).all()
