"""Private linear models in the manner of scikit-learn: fit, predict, score, pipelines and searches.

Every number that shapes the noise is a public parameter: the budget, bounds on features and targets, clips
and steps. Records outside the bounds are pulled in one by one, which costs nothing. What a fit spent is in
``privacy_``, what all fits of an estimator spend together in ``total_privacy_``; with a ``random_state`` both
say that the noise is simulated.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sottovoce._validate import count, positive
from sottovoce.algorithms import registry
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.objectives.clipping import clip_rows
from sottovoce.privacy import Guarantee, ProtectiveNoise
from sottovoce.privacy.calibration import calibrate

__all__ = [
    "PrivateLasso", "PrivateLogisticRegression", "PrivateRidge", "SearchSpendsBudget", "total_guarantee",
]  # fmt: skip

SOLVERS = ("dp-sgd", "dp-cd", "dp-gcd", "admm")
SIMULATED = "the noise is simulated from random_state: this fit is a simulation and protects nobody"


class SearchSpendsBudget(UserWarning):
    """A private model is fitted again and again on the same records, and each fit spends its budget."""


class _PrivateLinear(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the three estimators share: parameters, preparation, calibration, the fit itself."""

    _loss = "logistic"
    _penalty = "l2"

    privacy_: Guarantee
    spent_privacy_: Guarantee
    total_privacy_: Guarantee

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        solver: str = "dp-sgd",
        alpha: float = 1e-3,
        feature_norm: float = 1.0,
        fit_intercept: bool = True,
        clip: float | None = None,
        steps: int | None = None,
        step_scale: float = 1.0,
        sample_rate: float = 0.1,
        fits: int = 1,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.alpha = alpha
        self.feature_norm = feature_norm
        self.fit_intercept = fit_intercept
        self.clip = clip
        self.steps = steps
        self.step_scale = step_scale
        self.sample_rate = sample_rate
        self.fits = fits
        self.random_state = random_state

    def _fit(self, X: np.ndarray, y: np.ndarray, target_bound: float) -> None:
        if self.solver not in SOLVERS:
            raise InvalidInput(f"solver must be one of {', '.join(SOLVERS)}, got {self.solver!r}.")
        positive(self.feature_norm, "feature_norm")
        if count(self.fits, "fits") == 1 and _inside_search():
            warnings.warn(
                "This fit is one of several in a search or cross-validation; each spends the whole epsilon. "
                "Pass fits=<number of fits> to charge all of them to one budget.",
                SearchSpendsBudget,
                stacklevel=3,
            )
        X = self._prepared(X)
        plan = self._plan(len(y), X.shape[1], target_bound)
        statement = plan.privacy("central")
        if self.random_state is not None:
            statement = replace(statement, assumptions=(*statement.assumptions, SIMULATED))
        before: Guarantee | None = getattr(self, "spent_privacy_", None)
        if before is not None and before.adjacency != statement.adjacency:
            raise InvalidInput(
                f"This estimator was fitted under {before.adjacency}, and a fit under {statement.adjacency} "
                "cannot be added to that; make a new estimator and keep both accounts."
            )
        noise = ProtectiveNoise() if self.random_state is None else np.random.default_rng(self.random_state)
        coef = plan.run((X, y), noise).outputs["coef"]
        self.plan_ = plan
        self.privacy_ = statement
        # announced fits that are still to come are charged beforehand, those beyond them as they come
        self.n_fits_ = getattr(self, "n_fits_", 0) + 1
        self.spent_privacy_ = statement if before is None else before + statement
        coming = self.fits - self.n_fits_
        self.total_privacy_ = self.spent_privacy_ + statement * coming if coming > 0 else self.spent_privacy_
        self.coef_ = coef[:-1] if self.fit_intercept else coef
        self.intercept_ = float(coef[-1]) if self.fit_intercept else 0.0
        self.n_iter_ = self._steps(X.shape[1])

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        """Return records of length at most ``feature_norm``, and the intercept column."""
        X = clip_rows(X, self.feature_norm)
        return np.hstack([X, np.full((len(X), 1), 1.0)]) if self.fit_intercept else X

    def _steps(self, dim: int) -> int:
        default = {"dp-sgd": 100, "dp-cd": 20 * dim, "dp-gcd": min(20, 2 * dim), "admm": 30}[self.solver]
        return default if self.steps is None else count(self.steps, "steps")

    def _plan(self, n: int, dim: int, target_bound: float) -> Plan:
        """Return the solver's plan with the least noise for ``fits`` fits within the budget."""
        model = GLM(self._loss, **{self._penalty: self.alpha})  # type: ignore[arg-type]
        square = self.feature_norm**2 + (1.0 if self.fit_intercept else 0.0)
        clip = self.clip
        if clip is None:  # the largest gradient at w = 0
            clip = math.sqrt(square) * (0.5 if self._loss == "logistic" else target_bound)
        beta, steps = model.curvature * square, self._steps(dim)
        bounds = (self.feature_norm,) * (dim - self.fit_intercept) + (1.0,) * self.fit_intercept
        gamma = self.step_scale / beta
        options: dict[str, dict[str, Any]] = {
            "dp-sgd": {"lot": max(1.0, self.sample_rate * n), "learning_rate": gamma},
            "dp-cd": {"bounds": bounds, "step_scale": self.step_scale, "output": "last"},
            "dp-gcd": {
                "smoothness": tuple(model.curvature * b**2 for b in bounds), "step_scale": self.step_scale,
                "clip": clip * math.sqrt(dim),
            },
            "admm": {"gamma": gamma, "clip": clip * gamma},
        }  # fmt: skip
        solver = registry.algorithm(self.solver)
        common: dict[str, Any] = {"objective": model, "records": n, "steps": steps, "clip": clip}
        trial: Plan = solver(**{**common, solver.noise_field: 1.0, **options[self.solver]})
        noise = calibrate(
            lambda z: trial.with_noise(z).privacy("central") * self.fits,
            self.epsilon, self.delta, tolerance=1e-3,
        )  # fmt: skip
        return trial.with_noise(noise)

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return clip_rows(X, self.feature_norm) @ self.coef_ + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivateLogisticRegression(ClassifierMixin, _PrivateLinear):  # type: ignore[misc]
    """Two-class logistic regression with differential privacy for the records.

    Parameters
    ----------
    epsilon, delta : the budget of all ``fits`` together.
    solver : "dp-sgd", "dp-cd", "dp-gcd" or "admm".
    alpha : weight of the l2 penalty (alpha/2) |w|^2, intercept included.
    feature_norm : public bound on the length of a record; longer ones are scaled down.
    fit_intercept : whether to add a column of ones.
    clip : clip of one record's gradient; by default the largest gradient at w = 0.
    steps : iterations of the solver (coordinates for dp-cd and dp-gcd).
    step_scale : step relative to one over the smoothness.
    sample_rate : dp-sgd's Poisson rate.
    fits : how often these records will be fitted in all, tuning included.
    random_state : None draws protective noise; a seed makes a simulation that protects nobody.

    Attributes
    ----------
    coef_, intercept_, classes_, n_iter_ : as in scikit-learn.
    plan_, privacy_ : what ran, and what this fit spent.
    n_fits_, spent_privacy_ : how often this estimator was fitted, and what those fits spent together.
    total_privacy_ : the same with the announced ``fits`` that are still to come.

    Guarantees
    ----------
    ``total_privacy_.epsilon(delta) <= epsilon`` for as many fits as ``fits`` announces; fits beyond it are
    added up, so that the total then shows what they cost. dp-sgd under add/remove of a record, the other
    solvers under replacement. With a ``random_state`` nobody is protected, and every statement says so.
    Copies of an estimator (``sklearn.base.clone``) begin accounts of their own. The number of records is
    taken as public (a record removed leaves an empty place), and so are the class names. Inputs are checked
    (finite numbers, two classes) before anything is spent; that a fit was refused may tell something about
    the records.

    Examples
    --------
    >>> X = np.array([[0.9, 0.1], [0.8, -0.2], [-0.9, 0.1], [-0.7, 0.3]] * 100)
    >>> y = np.array(["yes", "yes", "no", "no"] * 100)
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-5, solver="dp-cd", random_state=0).fit(X, y)
    >>> model.score(X, y), bool(model.privacy_.epsilon(1e-5) <= 1.0)
    (1.0, True)
    """

    def fit(self, X: Any, y: Any) -> PrivateLogisticRegression:
        """Fit on records ``X`` (n, p) with two classes ``y``."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, signs = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise DataError(
                f"Only binary classification is supported, got {len(self.classes_)} class labels."
            )
        self._fit(X, 2.0 * signs - 1.0, 1.0)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return x.w + intercept for every record; positive means the second class."""
        return self._scores(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the more likely class of every record."""
        scores = self._scores(X)
        return self.classes_[(scores > 0).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (n, 2) probabilities."""
        scores = self._scores(X)
        share = np.exp(-np.logaddexp(0, -scores))
        return np.column_stack([1 - share, share])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags


class _PrivateRegressor(RegressorMixin, _PrivateLinear):  # type: ignore[misc]
    _loss = "squared"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        solver: str = "dp-sgd",
        alpha: float = 1e-3,
        feature_norm: float = 1.0,
        target_bound: float = 1.0,
        fit_intercept: bool = True,
        clip: float | None = None,
        steps: int | None = None,
        step_scale: float = 1.0,
        sample_rate: float = 0.1,
        fits: int = 1,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            epsilon, delta, solver=solver, alpha=alpha, feature_norm=feature_norm,
            fit_intercept=fit_intercept, clip=clip, steps=steps, step_scale=step_scale,
            sample_rate=sample_rate, fits=fits, random_state=random_state,
        )  # fmt: skip
        self.target_bound = target_bound

    def fit(self, X: Any, y: Any) -> Any:
        """Fit on records ``X`` (n, p) with targets ``y``, which are clipped to the public bound."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        bound = positive(self.target_bound, "target_bound")
        self._fit(X, np.clip(y, -bound, bound), bound)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return x.w + intercept for every record."""
        return self._scores(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class PrivateRidge(_PrivateRegressor):
    """Least squares with an l2 penalty: (1/2n) |y - Xw|^2 + (alpha/2) |w|^2, private for the records.

    Parameters are those of `PrivateLogisticRegression`, and ``target_bound``, a public bound to which targets
    are clipped.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 500)[:, None]
    >>> model = PrivateRidge(epsilon=2.0, solver="dp-cd", random_state=0).fit(X, 0.5 * X[:, 0])
    >>> bool(abs(model.coef_[0] - 0.5) < 0.2), model.privacy_.adjacency
    (True, 'replace-one')
    """

    _penalty = "l2"


class PrivateLasso(_PrivateRegressor):
    """Least squares with an l1 penalty: (1/2n) |y - Xw|^2 + alpha |w|_1, private for the records.

    Parameters are those of `PrivateRidge`.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 500)[:, None]
    >>> model = PrivateLasso(epsilon=2.0, solver="dp-gcd", steps=4, random_state=0).fit(X, 0.5 * X[:, 0])
    >>> model.coef_.shape, bool(model.privacy_.epsilon(1e-5) <= 2.0)
    ((1,), True)
    """

    _penalty = "l1"


def total_guarantee(*models: Any) -> Guarantee:
    """Return what several fitted models spent together on the same records.

    Examples
    --------
    >>> X, y = np.eye(4), np.array([0, 1, 0, 1])
    >>> fitted = [PrivateLogisticRegression(solver="dp-cd", random_state=s).fit(X, y) for s in range(2)]
    >>> round(total_guarantee(*fitted).epsilon(1e-5), 2)
    1.46
    """
    found = models[0].privacy_
    for model in models[1:]:
        found = found + model.privacy_
    return found


def _inside_search() -> bool:
    """Return whether a caller is scikit-learn's search or cross-validation."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
