"""Private linear models in the manner of scikit-learn: fit, predict, score, pipelines and searches.

One trusted holder of all records by default; with ``network`` the records lie with the nodes of a network and
nobody is trusted.

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
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sottovoce._validate import count, positive
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms.build import build_plan
from sottovoce.algorithms.plan import Plan
from sottovoce.data.base import Shards
from sottovoce.data.partition import by_column
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import as_network
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM, Softmax
from sottovoce.objectives.clipping import clip_rows

SOLVERS = ("dp-sgd", "dp-cd", "dp-gcd", "admm")
DECENTRALIZED = ("consensus-sgd", "muffliato-sgd", "dp-dsgd", "dp-dsgt")  # with a network, and nobody trusted
SIMULATED = "the noise is simulated from random_state: this fit is a simulation and protects nobody"


class SearchSpendsBudget(UserWarning):
    """A private model is fitted again and again on the same records, and each fit spends its budget."""


class _PrivateLinear(BaseEstimator):  # scikit-learn has no types
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
        clip_norm: float | None = None,
        steps: int | None = None,
        step_scale: float = 1.0,
        sample_rate: float = 0.1,
        fits: int = 1,
        random_state: int | None = None,
        network: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.alpha = alpha
        self.feature_norm = feature_norm
        self.fit_intercept = fit_intercept
        self.clip_norm = clip_norm
        self.steps = steps
        self.step_scale = step_scale
        self.sample_rate = sample_rate
        self.fits = fits
        self.random_state = random_state
        self.network = network

    def _fit(
        self, X: np.ndarray, y: np.ndarray, target_bound: float, groups: Any = None, classes: int = 2
    ) -> None:
        solvers = SOLVERS if self.network is None else DECENTRALIZED
        if self.solver not in solvers:
            where = "without a network" if self.network is None else "over a network"
            raise InvalidInput(f"solver {where} must be one of {', '.join(solvers)}, got {self.solver!r}.")
        if groups is not None and self.network is None:
            raise InvalidInput("groups say which node holds a record; give network=... with them.")
        positive(self.feature_norm, "feature_norm")
        if count(self.fits, "fits") == 1 and _inside_search():
            warnings.warn(
                "This fit is one of several in a search or cross-validation; each spends the whole epsilon. "
                "Pass fits=<number of fits> to charge all of them to one budget.",
                SearchSpendsBudget,
                stacklevel=3,
            )
        X = self._prepared(X)
        parts = None if self.network is None else self._parts(groups, len(y))
        plan = self._plan(len(y), X.shape[1], target_bound, classes, parts)
        statement = plan.privacy(self._view)
        if self.random_state is not None:
            statement = replace(statement, assumptions=(*statement.assumptions, SIMULATED))
        before: Guarantee | None = getattr(self, "spent_privacy_", None)
        if before is not None and before.adjacency != statement.adjacency:
            raise InvalidInput(
                f"This estimator was fitted under {before.adjacency}, and a fit under {statement.adjacency} "
                "cannot be added to that; make a new estimator and keep both accounts."
            )
        noise = ProtectiveNoise() if self.random_state is None else np.random.default_rng(self.random_state)
        data: Any = (X, y) if parts is None else Shards.from_parts(X, y, parts)
        coef = plan.run(data, noise).outputs["coef"]
        self.plan_ = plan
        self.privacy_ = statement
        # announced fits that are still to come are charged beforehand, those beyond them as they come
        self.n_fits_ = getattr(self, "n_fits_", 0) + 1
        self.spent_privacy_ = statement if before is None else before + statement
        coming = self.fits - self.n_fits_
        self.total_privacy_ = self.spent_privacy_ + statement * coming if coming > 0 else self.spent_privacy_
        if classes > 2:
            coef = coef.reshape(classes, -1)
        last = coef[..., -1] if self.fit_intercept else np.zeros(coef.shape[:-1])
        self.coef_ = coef[..., :-1] if self.fit_intercept else coef
        self.intercept_ = last if classes > 2 else float(last)
        self.n_iter_ = self._steps(X.shape[1])

    @property
    def _view(self) -> Literal["central"] | None:
        """The view of the budget: of the released model, or of the worst member of a network."""
        return "central" if self.network is None else None

    def _parts(self, groups: Any, n: int) -> list[np.ndarray]:
        """Return which records each node holds: those of its group, or an even share."""
        network = as_network(self.network)
        if groups is None:
            if n < network.n:
                raise DataError(f"{n} records cannot give each of {network.n} nodes one; take fewer nodes.")
            return np.array_split(np.arange(n), network.n)
        if np.shape(groups) != (n,):
            raise DataError(f"groups must hold one group per record ({n}), got shape {np.shape(groups)}.")
        parts = by_column(groups, network.labels)
        if len(parts) != network.n:
            raise DataError(
                f"the network has {network.n} nodes, the records {len(parts)} groups; match them."
            )
        return parts

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        """Return records of length at most ``feature_norm``, and the intercept column."""
        X = clip_rows(X, self.feature_norm)
        return np.hstack([X, np.full((len(X), 1), 1.0)]) if self.fit_intercept else X

    def _steps(self, dim: int) -> int:
        known = {"dp-cd": 20 * dim, "dp-gcd": min(20, 2 * dim), "admm": 30}
        default = known.get(self.solver, 100)
        return default if self.steps is None else count(self.steps, "steps")

    def _plan(
        self, n: int, dim: int, target_bound: float, classes: int, parts: list[np.ndarray] | None
    ) -> Plan:
        """Return the solver's plan with the least noise for ``fits`` fits within the budget."""
        model: Any = GLM(self._loss, **{self._penalty: self.alpha})  # type: ignore[arg-type]
        square = self.feature_norm**2 + (1.0 if self.fit_intercept else 0.0)
        largest, curvature = (0.5 if self._loss == "logistic" else target_bound), model.curvature
        if classes > 2:
            if self.solver not in ("dp-sgd", *DECENTRALIZED):
                raise InvalidInput(
                    f"solver {self.solver} has two classes, got {classes}; take dp-sgd, or a network with "
                    "consensus-sgd."
                )
            model = Softmax(classes, l2=self.alpha)
            largest, curvature = math.sqrt(1 - 1 / classes), 0.5
        clip_norm = self.clip_norm
        if clip_norm is None:  # the largest gradient at w = 0
            clip_norm = math.sqrt(square) * largest
        beta, steps = curvature * square, self._steps(dim)
        bounds = (self.feature_norm,) * (dim - self.fit_intercept) + (1.0,) * self.fit_intercept
        gamma = self.step_scale / beta
        options: dict[str, dict[str, Any]] = {
            "dp-sgd": {"batch_size": max(1.0, self.sample_rate * n), "learning_rate": gamma},
            "dp-cd": {"bounds": bounds, "step_scale": self.step_scale, "output": "last"},
            "dp-gcd": {
                "smoothness": tuple(curvature * b**2 for b in bounds), "step_scale": self.step_scale,
                "clip_norm": clip_norm * math.sqrt(dim),
            },
            "admm": {"gamma": gamma, "clip_norm": clip_norm * gamma},
        }  # fmt: skip
        common: dict[str, Any] = {"steps": steps, "clip_norm": clip_norm}
        network = None
        if parts is None:
            common |= {"records": n, **options[self.solver]}
        else:
            network = as_network(self.network)
            common |= {"sizes": tuple(len(part) for part in parts), "learning_rate": gamma}
        budget = Budget(self.epsilon, self.delta, view=self._view)
        return build_plan(
            self.solver, common, objective=model, network=network, budget=budget, fits=self.fits
        )

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(clip_rows(X, self.feature_norm) @ self.coef_.T + self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivateLogisticRegression(ClassifierMixin, _PrivateLinear):
    """Logistic regression with differential privacy for the records; two classes, or several.

    Parameters
    ----------
    epsilon, delta : the budget of all ``fits`` together.
    solver : "dp-sgd", "dp-cd", "dp-gcd" or "admm"; with ``network`` "consensus-sgd", "muffliato-sgd",
        "dp-dsgd" or "dp-dsgt". Several classes need a gradient method: "dp-sgd" or one over a network.
    alpha : weight of the l2 penalty (alpha/2) |w|^2, intercept included.
    feature_norm : public bound on the length of a record; longer ones are scaled down.
    fit_intercept : whether to add a column of ones.
    clip_norm : l2 bound of one record's gradient; by default the largest gradient at w = 0.
    steps : iterations of the solver (coordinates for dp-cd and dp-gcd).
    step_scale : step relative to one over the smoothness.
    sample_rate : dp-sgd's Poisson rate.
    fits : how often these records will be fitted in all, tuning included.
    random_state : None draws protective noise; a seed makes a simulation that protects nobody.
    network : None for one trusted holder of all records; a name such as ``"complete:8"``, a `Network` or a
        networkx graph puts them on its nodes, evenly or by ``groups`` of `fit`, and trusts nobody: the budget
        is then meant against the worst single member.

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

    def fit(self, X: Any, y: Any, *, groups: Any = None, **refused: Any) -> PrivateLogisticRegression:
        """Fit on records ``X`` (n, p) with classes ``y``; with a network, ``groups`` says who holds which."""
        _refuse(refused)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        several = len(self.classes_) > 2
        if len(self.classes_) < 2:
            raise DataError(f"Classification needs two classes or more, got {len(self.classes_)} class.")
        if several and self.solver not in ("dp-sgd", *DECENTRALIZED):
            raise DataError(
                f"Only binary classification is supported by {self.solver}, got {len(self.classes_)} class "
                "labels; dp-sgd takes several."
            )
        labels = numbers.astype(float) if several else 2.0 * numbers - 1.0
        self._fit(X, labels, 1.0, groups, len(self.classes_))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return x.w + intercept for every record (positive: the second class), or one score per class."""
        return self._scores(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of every record."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (n, classes) probabilities."""
        scores = self._scores(X)
        if scores.ndim == 2:
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(shares / shares.sum(axis=1, keepdims=True))
        share = np.exp(-np.logaddexp(0, -scores))
        return np.column_stack([1 - share, share])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.solver in ("dp-sgd", *DECENTRALIZED)
        tags.classifier_tags.poor_score = True
        return tags


class _PrivateRegressor(RegressorMixin, _PrivateLinear):
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
        clip_norm: float | None = None,
        steps: int | None = None,
        step_scale: float = 1.0,
        sample_rate: float = 0.1,
        fits: int = 1,
        random_state: int | None = None,
        network: Any = None,
    ) -> None:
        super().__init__(
            epsilon, delta, solver=solver, alpha=alpha, feature_norm=feature_norm,
            fit_intercept=fit_intercept, clip_norm=clip_norm, steps=steps, step_scale=step_scale,
            sample_rate=sample_rate, fits=fits, random_state=random_state, network=network,
        )  # fmt: skip
        self.target_bound = target_bound

    def fit(self, X: Any, y: Any, *, groups: Any = None, **refused: Any) -> Any:
        """Fit on records ``X`` (n, p) with targets ``y``, which are clipped to the public bound."""
        _refuse(refused)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        bound = positive(self.target_bound, "target_bound")
        self._fit(X, np.clip(y, -bound, bound), bound, groups)
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
    total: Guarantee = models[0].privacy_
    for model in models[1:]:
        total = total + model.privacy_
    return total


def _refuse(options: dict[str, Any]) -> None:
    """Refuse what other estimators take: a weight would let one record count more than the clip allows."""
    for name, value in options.items():
        if name == "sample_weight":
            if value is not None:
                raise InvalidInput(
                    "sample weights are not supported: a record with a large weight would be hidden less "
                    "than the statement says; leave sample_weight out."
                )
            continue
        raise InvalidInput(f"fit has no option {name!r}; it takes X, y and groups.")


def _inside_search() -> bool:
    """Return whether a caller is scikit-learn's search or cross-validation."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
