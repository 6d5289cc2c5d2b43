"""Generalized linear models against numpy twins, finite differences and scikit-learn."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import DataError, InvalidInput
from sottovoce.mechanisms.admm_kernels import prox_rows
from sottovoce.objectives import GLM, Regularizer, clip_rows
from sottovoce.objectives.kernels import add_clipped, batch_sums

MODELS = [GLM("logistic"), GLM("squared"), GLM("huber", width=0.7)]
IDS = [m.loss for m in MODELS]


def numpy_slopes(model, m, y):
    if model.loss == "logistic":
        return -y * np.exp(-np.logaddexp(0, y * m))
    r = m - y
    return np.clip(r, -model.width, model.width) if model.loss == "huber" else r


def clipped_sum(kind, width, w, X, y, rows, clip_norm):
    out = np.zeros(len(w))
    for i in rows:
        add_clipped(kind, width, w, X[i], y[i], clip_norm, out)
    return out


def numpy_clipped_sum(model, w, X, y, clip_norm):
    """The twin: form every gradient, clip it, add."""
    return clip_rows(numpy_slopes(model, X @ w, y)[:, None] * X, clip_norm).sum(axis=0)


def problem(seed=0, n=40, p=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n)), rng.normal(size=p)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_gradient_is_the_slope_of_the_value(model):
    X, y, w = problem()
    numeric = [(model.value(w + h, X, y) - model.value(w - h, X, y)) / 2e-6 for h in 1e-6 * np.eye(len(w))]
    assert np.allclose(model.gradient(w, X, y), numeric, atol=1e-8)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, math.inf])
@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_clipped_sum_equals_the_numpy_twin(model, clip_norm):
    X, y, w = problem(1)
    fast = clipped_sum(model.kind, model.width, w, X, y, np.arange(len(y)), clip_norm)
    assert np.allclose(fast, numpy_clipped_sum(model, w, X, y, clip_norm), rtol=1e-12, atol=1e-12)
    if clip_norm == math.inf:
        assert np.allclose(fast / len(y), model.gradient(w, X, y), rtol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_lot_sums_equal_agent_after_agent(model):
    X, y, _ = problem(2, n=12, p=3)
    theta = np.random.default_rng(3).normal(size=(3, 3))
    offsets = np.array([0, 2, 7, 12])
    rng = np.random.default_rng(4)
    batches = [np.flatnonzero(rng.random(size) < 0.7) for size in np.diff(offsets)]
    ends = np.cumsum([len(batch) for batch in batches])
    got = batch_sums(model.kind, model.width, theta, X, y, offsets[:3], np.concatenate(batches), ends, 0.5)
    for u in range(3):
        rows = offsets[u] + batches[u]
        assert np.allclose(got[u], numpy_clipped_sum(model, theta[u], X[rows], y[rows], 0.5), atol=1e-13)


HOSTILE = st.sampled_from([0.0, 1.0, -3.0, 1e38, -1e300, 1e308, 5e-324, math.inf, -math.inf, math.nan])


@settings(max_examples=150, deadline=None)
@given(
    x=st.lists(HOSTILE, min_size=3, max_size=3),
    w=st.lists(HOSTILE, min_size=3, max_size=3),
    k=st.integers(0, 2),
)
def test_no_record_adds_more_than_the_clip(x, w, k):
    model = MODELS[k]
    out = clipped_sum(
        model.kind, model.width, np.array(w), np.array([x]), np.array([1.0]), np.array([0]), 0.5
    )
    assert np.isfinite(out).all()
    assert np.linalg.norm(out) <= 0.5 * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(HOSTILE, min_size=2, max_size=2), min_size=1, max_size=3))
def test_clipped_rows_are_finite_and_short(rows):
    out = clip_rows(np.array(rows), 2.0)
    assert np.isfinite(out).all()
    assert (np.linalg.norm(out, axis=1) <= 2.0 * (1 + 1e-12)).all()


def test_a_broken_record_changes_nothing_else():
    X, y, w = problem(5)
    clean = clipped_sum(0, 1.0, w, X[1:], y[1:], np.arange(len(y) - 1), 1.0)
    for bad in (np.nan, np.inf):
        X[0, 2] = bad
        assert (clipped_sum(0, 1.0, w, X, y, np.arange(len(y)), 1.0) == clean).all()


@pytest.mark.parametrize(
    "regularizer",
    [Regularizer(l1=0.3), Regularizer(l2=0.5), Regularizer(0.2, 0.4), Regularizer(0.2, 0.4, box=0.5),
     Regularizer(0.2, 0.4, ball=0.7)],
)  # fmt: skip
def test_prox_is_the_minimizer(regularizer):
    rng = np.random.default_rng(6)
    v, step = rng.normal(size=4), 0.6
    w = regularizer.prox(v, step)

    def value(z):
        return regularizer.value(z) + ((z - v) ** 2).sum() / (2 * step)

    for _ in range(500):
        z = w + rng.normal(scale=0.05, size=4)
        if regularizer.box is not None:
            z = np.clip(z, -regularizer.box, regularizer.box)
        if regularizer.ball is not None:
            z *= min(1.0, regularizer.ball / np.linalg.norm(z))
        assert value(z) >= value(w) - 1e-12


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


def test_minimizers_agree_with_scikit_learn():
    from sklearn.linear_model import Lasso, LogisticRegression, Ridge

    X, y, _ = problem(8, n=200, p=6)
    t = X @ np.arange(6.0) + 0.1 * y
    n = len(y)
    lasso = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12).fit(X, t).coef_
    assert np.allclose(GLM("squared", l1=0.1).minimize(X, t), lasso, atol=1e-6)
    ridge = Ridge(alpha=0.1 * n, fit_intercept=False).fit(X, t).coef_
    assert np.allclose(GLM("squared", l2=0.1).minimize(X, t), ridge, atol=1e-6)
    logistic = LogisticRegression(C=1 / (0.01 * n), fit_intercept=False, tol=1e-10).fit(X, y).coef_[0]
    assert np.allclose(GLM("logistic", l2=0.01).minimize(X, y), logistic, atol=1e-4)


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(DataError, match="NaN or infinity"):
        GLM().check([[np.nan]], [1])
    with pytest.raises(DataError, match="Expected features"):
        GLM().check(np.eye(2), [1])
    with pytest.raises(InvalidInput, match="loss must be one of"):
        GLM("hinge")
    with pytest.raises(InvalidInput, match="box or a ball"):
        GLM(box=1, ball=1)


def test_entries_stored_twice_are_one_entry_of_the_record():
    """DP-GCD clips entry by entry: fifty entries at one place would count fifty clips for one record."""
    entries = sp.csr_array((np.ones(51), np.zeros(51, int), np.array([0, 50, 51])), shape=(2, 1))
    X, _ = GLM("logistic").check(entries, np.array([1, 0]))
    assert X.nnz == 2
    assert X.toarray().ravel().tolist() == [50.0, 1.0]
    assert entries.nnz == 51  # the caller's own stay as they are
    overflowing = sp.csr_array((np.full(2, 1e308), np.zeros(2, int), np.array([0, 2])), shape=(1, 1))
    with pytest.raises(DataError, match="infinity"):
        GLM("logistic").check(overflowing, np.array([1]))
