"""Generalized linear models."""

import numpy as np
import pytest
import scipy.sparse as sp
from tests.objectives.cases import IDS, MODELS, problem

from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_gradient_is_the_slope_of_the_value(model):
    X, y, w = problem()
    numeric = [(model.value(w + h, X, y) - model.value(w - h, X, y)) / 2e-6 for h in 1e-6 * np.eye(len(w))]
    assert np.allclose(model.gradient(w, X, y), numeric, atol=1e-8)


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
