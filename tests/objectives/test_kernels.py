"""Compiled loops against their numpy twins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives.cases import HOSTILE, IDS, MODELS, problem

from sottovoce.mechanisms.admm_kernels import prox_rows
from sottovoce.objectives import clip_rows
from sottovoce.objectives.kernels import add_clipped, batch_sums


def numpy_slopes(model, m, y):
    if model.loss == "logistic":
        return -y * np.exp(-np.logaddexp(0, y * m))
    if model.loss == "hinge":
        return -y * np.clip(1 - y * m, 0, model.width)
    r = m - y
    return np.clip(r, -model.width, model.width) if model.loss == "huber" else r


def clipped_sum(kind, width, w, X, y, clip_norm):
    out = np.zeros(len(w))
    for x, label in zip(X, y, strict=True):
        add_clipped(kind, width, w, x, label, clip_norm, out)
    return out


def numpy_clipped_sum(model, w, X, y, clip_norm):
    """The twin: form every gradient, clip it, add."""
    return clip_rows(numpy_slopes(model, X @ w, y)[:, None] * X, min(clip_norm, 1e300)).sum(axis=0)


@pytest.mark.parametrize("clip_norm", [0.1, 0.5, math.inf])
@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_batch_sums_equal_the_numpy_twin_agent_after_agent(model, clip_norm):
    X, y, _ = problem(2, n=52, p=3)
    theta = np.random.default_rng(3).normal(size=(4, 3))
    offsets = np.array([0, 2, 7, 12, 52])
    rng = np.random.default_rng(4)
    batches = [np.flatnonzero(rng.random(size) < 0.7) for size in np.diff(offsets)]
    ends = np.cumsum([len(batch) for batch in batches])
    got = batch_sums(
        model.kind, model.width, theta, X, y, offsets[:4], np.concatenate(batches), ends, clip_norm
    )
    for u, sums in enumerate(got):
        rows = offsets[u] + batches[u]
        assert np.allclose(sums, numpy_clipped_sum(model, theta[u], X[rows], y[rows], clip_norm), atol=1e-13)
    if clip_norm == math.inf:
        assert np.allclose(sums / len(rows), model.gradient(theta[3], X[rows], y[rows]), rtol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    x=st.lists(HOSTILE, min_size=3, max_size=3),
    w=st.lists(HOSTILE, min_size=3, max_size=3),
    k=st.integers(0, 3),
)
def test_no_record_adds_more_than_the_clip(x, w, k):
    model = MODELS[k]
    out = clipped_sum(model.kind, model.width, np.array(w), np.array([x]), [1.0], 0.5)
    assert np.isfinite(out).all()
    assert np.linalg.norm(out) <= 0.5 * (1 + 1e-12)


def test_a_broken_record_changes_nothing_else():
    X, y, w = problem(5)
    clean = clipped_sum(0, 1.0, w, X[1:], y[1:], 1.0)
    for bad in (np.nan, np.inf):
        X[0, 2] = bad
        assert (clipped_sum(0, 1.0, w, X, y, 1.0) == clean).all()


def test_record_proxes_are_stationary_and_move_at_most_the_step():
    rng = np.random.default_rng(7)
    for _ in range(200):
        x, v = rng.normal(size=3) * 10 ** rng.uniform(-2, 2), rng.normal(size=3)
        y, step = float(rng.choice([-1, 1])), 10 ** rng.uniform(-2, 2)
        w = prox_rows(0, 1.0, x[None], np.array([y]), v, step)
        gradient = -y * x / (1 + np.exp(np.clip(y * (x @ w), -700, 700)))
        assert np.allclose(w - v + step * gradient, 0, atol=1e-9 * (1 + step * np.linalg.norm(x)))
        assert np.linalg.norm(w - v) <= step * np.linalg.norm(x) * (1 + 1e-9)
        u = prox_rows(1, 1.0, x[None], np.array([y]), v, step)
        assert np.allclose(u - v + step * (x @ u - y) * x, 0, atol=1e-8 * (1 + step * (x @ x)))
