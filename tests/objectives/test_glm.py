"""Generalized linear models."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from tests.objectives.cases import IDS, MODELS, numeric_gradient, problem

from sottovoce.data.base import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM, Regularizer, Softmax


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_gradient_is_the_slope_of_the_value(model):
    X, y, w = problem()
    assert np.allclose(
        model.gradient(w, X, y), numeric_gradient(lambda v: model.value(v, X, y), w), atol=1e-8
    )


def test_minimizers_agree_with_scikit_learn():
    X, y, _ = problem(8, n=200, p=6)
    t = X @ np.arange(6.0) + 0.1 * y
    n = len(y)
    lasso = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12).fit(X, t).coef_
    assert np.allclose(GLM("squared", l1=0.1).minimize(X, t), lasso, atol=1e-6)
    ridge = Ridge(alpha=0.1 * n, fit_intercept=False).fit(X, t).coef_
    assert np.allclose(GLM("squared", l2=0.1).minimize(X, t), ridge, atol=1e-6)
    logistic = LogisticRegression(C=1 / (0.01 * n), fit_intercept=False, tol=1e-10).fit(X, y).coef_[0]
    assert np.allclose(GLM("logistic", l2=0.01).minimize(X, y), logistic, atol=1e-4)


@pytest.mark.parametrize(("loss", "width"), [("squared_hinge", 1e9), ("hinge", 1e-3)])
def test_a_wide_hinge_is_the_squared_one_and_a_narrow_one_that_of_support_vectors(loss, width):
    """A wide hinge is half of scikit-learn's squared one, a narrow one ``width`` times the hinge."""
    X, _, w = problem(8, n=200, p=3)
    y = np.sign(X @ w[:3] + np.sin(np.arange(200)))
    scale = 0.5 if loss == "squared_hinge" else width
    options = {"C": 1 / (0.05 * 200), "fit_intercept": False, "tol": 1e-8, "max_iter": 10**6}
    theirs = LinearSVC(loss=loss, dual=True, **options).fit(X, y).coef_[0]
    ours = GLM("hinge", l2=0.05 * scale, width=width).minimize(X, y)
    assert np.linalg.norm(ours - theirs) < 0.01 * np.linalg.norm(theirs)


WEIGHTED = [
    (GLM("logistic", l2=0.1, class_weight=(0.5, 4.0)), 2),
    (GLM("hinge", class_weight=(0.5, 4.0)), 2),
    (Softmax(3, class_weight=(0.2, 1.0, 5.0)), 3),
]


@pytest.mark.parametrize(("model", "classes"), WEIGHTED)
@pytest.mark.parametrize("clip_norm", [0.4, np.inf])
def test_a_weighted_gradient_is_clipped_like_any_other(model, classes, clip_norm):
    """The weight comes before the clip: one record moves the sum by at most the clip norm."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.integers(0, classes, 30).astype(float)
    prepared = model.prepared(model.prepared(Shards(X, y, np.array([0, 30]))))  # prepared twice is once
    query, width = model.query(prepared), 3 if classes == 2 else 9
    w = rng.normal(size=width)
    weights = np.array(model.class_weight)[y.astype(int)]
    labels = y if classes == 3 else 2 * y - 1
    for i in range(30):
        slope = weights[i] * numeric_gradient(lambda v, i=i: model.losses(v, X[[i]], labels[[i]])[0], w)
        expected = slope * min(1.0, clip_norm / max(np.linalg.norm(slope), 1e-300))
        one = query.sums(w[None], [np.array([i])], [0], clip_norm)[0]
        assert np.allclose(one, expected, atol=1e-6)
        assert np.linalg.norm(one) <= clip_norm * (1 + 1e-9)


def test_weighted_minimizers_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.where(X[:, 0] + rng.normal(size=300) > 1.2, 1.0, -1.0)
    model = GLM("logistic", l2=0.02, class_weight=(0.6, 3.0))
    theirs = LogisticRegression(
        C=1 / (0.02 * 300), class_weight={-1: 0.6, 1: 3.0}, fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    assert np.allclose(model.minimize(X, y), theirs.fit(X, y).coef_[0], atol=1e-4)
    for wrong in ((1.0, 2.0, 3.0), (1.0, 0.0), (1.0, np.nan)):
        with pytest.raises(InvalidInput, match="class"):
            GLM(class_weight=wrong)
    with pytest.raises(InvalidInput, match="for losses of classes"):
        GLM("squared", class_weight=(1.0, 2.0))


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(DataError, match="NaN or infinity"):
        GLM().check([[np.nan]], [1])
    with pytest.raises(DataError, match="Expected features"):
        GLM().check(np.eye(2), [1])
    with pytest.raises(InvalidInput, match="loss must be one of"):
        GLM("square")
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


@pytest.mark.parametrize(
    "regularizer",
    [Regularizer(l1=0.3), Regularizer(l2=0.5), Regularizer(0.2, 0.4), Regularizer(0.2, 0.4, box=0.5),
     Regularizer(0.2, 0.4, ball=0.7), Regularizer(0.2, 0.4, intercepts=2),
     Regularizer(0.2, 0.4, ball=0.3, intercepts=1), Regularizer(0.2, 0.4, box=0.1, intercepts=1)],
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
