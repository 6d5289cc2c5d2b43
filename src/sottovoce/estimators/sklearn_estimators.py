"""Private linear models in the manner of scikit-learn: fit, predict, score, pipelines and searches.

One trusted holder of all records by default; with ``network`` a simulation, in
this process, of nodes that hold the records; the guarantee is then against any one node.

Every number that shapes the noise or the model is a public parameter: the budget, bounds on features and
targets, classes, clips and steps. Records outside the bounds are pulled in one by one, which costs nothing;
a record of another class is refused. What a fit spent is in
``privacy_``, what all fits of an estimator spend together in ``total_privacy_``; with a ``random_state`` both
say that the noise is simulated.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sottovoce._validate import count, positive, probability
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import registry
from sottovoce.algorithms.build import build_plan
from sottovoce.algorithms.consensus_sgd import exact_protocol
from sottovoce.algorithms.plan import Plan
from sottovoce.data.ingest import IngestedRecords, check_accepted
from sottovoce.data.partition import to_nodes
from sottovoce.data.tables import Classes, ClassNumbers, TableData
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import Network, as_network
from sottovoce.models.adapters import LinearAdapter, ModelOptions, adapt_model
from sottovoce.models.linear_model import LinearModel, probabilities
from sottovoce.models.prepared import with_assumptions
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM, Softmax
from sottovoce.objectives.clipping import clip_rows

if TYPE_CHECKING:
    import networkx

SOLVERS = ("dp-sgd", "dp-cd", "dp-gcd", "admm")
# with a network, and nobody trusted
DECENTRALIZED = ("consensus-newton", "consensus-sgd", "muffliato-sgd", "dp-dsgd", "dp-dsgt")
SEVERAL_CLASSES = ("dp-sgd", *DECENTRALIZED)


class SearchSpendsBudget(UserWarning):
    """A private model is fitted again and again on the same records, and each fit spends its budget."""


@dataclass(eq=False, repr=False)
class _PrivateLinear(BaseEstimator):  # scikit-learn has no types
    """What the estimators share: parameters, preparation, calibration, the fit itself."""

    _loss = "logistic"
    _penalty = "l2"

    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    solver: str | None = None
    alpha: float = 1e-3
    feature_norm: float = 1.0
    fit_intercept: bool = True
    clip_norm: float | None = None
    steps: int | None = None
    step_scale: float = 1.0
    sample_rate: float = 0.1
    fits: int = 1
    random_state: int | None = None
    network: str | Network | networkx.Graph | None = None
    accept: Sequence[str] = ()

    def _fit(
        self,
        X: np.ndarray,
        y: np.ndarray,
        target_bound: float,
        groups: ArrayLike | None = None,
        classes: Sequence[object] | None = None,
        options: ModelOptions | None = None,
        uncharged: Sequence[str] = (),
    ) -> None:
        solvers = SOLVERS if self.network is None else DECENTRALIZED
        if self._solver not in solvers:
            where = "without a network" if self.network is None else "over a network"
            raise InvalidInput(f"solver {where} must be one of {', '.join(solvers)}, got {self.solver!r}.")
        if self._penalty == "l1" and self.network is not None:
            raise InvalidInput(
                "an l1 penalty needs one holder of all records; leave network out, or take PrivateRidge."
            )
        if groups is not None and self.network is None:
            raise InvalidInput("groups say which node holds a record; give network=... with them.")
        positive(self.feature_norm, "feature_norm")
        accepted = check_accepted(self.accept, uncharged)
        if count(self.fits, "fits") == 1 and _inside_search():
            warnings.warn(
                "This fit is one of several in a search or cross-validation; each spends the whole epsilon. "
                "Pass fits=<number of fits> to charge all of them to one budget.",
                SearchSpendsBudget,
                stacklevel=3,
            )
        records = IngestedRecords(clip_rows(X, self.feature_norm), y, table=TableData(None, classes=classes))
        parts = self._parts(groups, len(y))
        penalty: dict[str, Any] = {self._penalty: self._weight(len(y))}
        model = GLM(self._loss, **penalty)  # type: ignore[arg-type]
        adapter = adapt_model(model, records, parts, options or ModelOptions(), intercept=self.fit_intercept)
        assert isinstance(adapter, LinearAdapter)
        plan = self._plan(adapter, target_bound)
        guarantee = plan.privacy("central" if self.network is None else None)
        simulated = self.random_state is not None
        guarantee = with_assumptions(guarantee, accepted, public_test=False, simulated=simulated)
        before: Guarantee | None = vars(self).get("spent_privacy_")
        if before is not None and before.adjacency != guarantee.adjacency:
            raise InvalidInput(
                f"This estimator was fitted under {before.adjacency}, and a fit under {guarantee.adjacency} "
                "cannot be added to that; make a new estimator and keep both accounts."
            )
        try:
            seeded = None if self.random_state is None else np.random.default_rng(self.random_state)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"random_state must be None or a seed, got {self.random_state!r}: {error}."
            ) from None
        noise = ProtectiveNoise() if seeded is None else seeded
        result = plan.run(adapter.data, noise, purpose="fit", guarantees=())  # only coefficients are read
        self.plan_ = plan
        self.privacy_ = guarantee
        # announced fits that are still to come are charged beforehand, those beyond them as they come
        self.n_fits_ = vars(self).get("n_fits_", 0) + 1
        self.spent_privacy_ = guarantee if before is None else before + guarantee
        coming = self.fits - self.n_fits_
        self.total_privacy_ = self.spent_privacy_ + guarantee * coming if coming > 0 else self.spent_privacy_
        linear = adapter.model(result.coef)
        self.coef_, self.intercept_ = linear.coef, linear.intercept
        self.n_iter_ = plan.steps

    @property
    def _solver(self) -> str:
        """The solver: the one named, or the first of those that fit."""
        return self.solver or (SOLVERS if self.network is None else DECENTRALIZED)[0]

    def _weight(self, n: int) -> float:
        """Return the weight of the penalty for ``n`` records."""
        return self.alpha

    def _parts(self, groups: ArrayLike | None, n: int) -> list[np.ndarray]:
        """Return which records each node holds: those of its group, or an even share."""
        if groups is not None and np.shape(groups) != (n,):
            raise DataError(f"groups must hold one group per record ({n}), got shape {np.shape(groups)}.")
        network = None if self.network is None else as_network(self.network)
        return [np.arange(n)] if network is None else to_nodes(n, network.n, groups, network.node_names)

    def _steps(self, dim: int) -> int:
        if self.steps is not None:
            return count(self.steps, "steps")
        return {"dp-cd": 20 * dim, "dp-gcd": min(20, 2 * dim), "admm": 30}.get(self._solver, 100)

    def _plan(self, adapter: LinearAdapter, target_bound: float) -> Plan:
        """Return the solver's plan with the least noise for ``fits`` fits within the budget."""
        solver, model, n, dim = self._solver, adapter.objective, sum(adapter.sizes), adapter.objective.dim
        largest = 0.5 if self._loss == "logistic" else target_bound
        if isinstance(model, Softmax):
            largest = math.sqrt(1 - 1 / model.classes)
        largest, curvature = largest * model.largest_weight, model.curvature
        square = self.feature_norm**2 + (1.0 if self.fit_intercept else 0.0)
        # by default the largest gradient at w = 0
        clip_norm = math.sqrt(square) * largest if self.clip_norm is None else self.clip_norm
        gamma = self.step_scale / (curvature * square)
        # of coordinates: how large a feature can be, the intercept's last
        bounds = (self.feature_norm,) * (dim - self.fit_intercept) + (1.0,) * self.fit_intercept
        options: dict[str, object] = {"steps": self._steps(dim), "clip_norm": clip_norm}
        central = self.network is None
        budget = Budget(self.epsilon, self.delta, view="central" if central else None)
        if not central:
            options |= {"sizes": adapter.sizes, "learning_rate": gamma}
            if solver == "consensus-newton":
                adapter.feature_norm = math.hypot(self.feature_norm, 1.0 if self.fit_intercept else 0.0)
                stated = {"clip_norm": self.clip_norm, "steps": self.steps}
                suited = adapter.newton_options(budget)
                suited["clip_norm"] *= target_bound
                options |= suited | {name: value for name, value in stated.items() if value is not None}
                options["learning_rate"] = self.step_scale
            if registry.algorithm(solver).maskable:
                options["protocol"] = exact_protocol(len(adapter.sizes))
        elif solver == "dp-sgd":
            rate = probability(self.sample_rate, "sample_rate", zero=False)
            options |= {"batch_size": max(1.0, rate * n), "learning_rate": gamma}
        elif solver == "admm":
            options |= {"gamma": gamma, "clip_norm": clip_norm * gamma}
        elif solver == "dp-cd":
            options |= {"step_scale": self.step_scale, "bounds": bounds, "output": "last"}
        else:
            smoothness = tuple(curvature * bound**2 for bound in bounds)
            options |= {"step_scale": self.step_scale, "smoothness": smoothness}
            options["clip_norm"] = clip_norm * math.sqrt(dim)
        if central:
            options["records"] = n
        network = None if self.network is None else as_network(self.network)
        return build_plan(solver, options, objective=model, network=network, budget=budget, fits=self.fits)

    def _scores(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        records = validate_data(self, X, reset=False, dtype=np.float64)
        return LinearModel(self.coef_, self.intercept_).scores(clip_rows(records, self.feature_norm))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


@dataclass(eq=False, repr=False)
class _PrivateClassifier(ClassifierMixin, _PrivateLinear):
    _: KW_ONLY
    classes: Sequence[object] | None = None
    C: float | None = None
    class_weight: ClassNumbers | Literal["balanced"] | None = None
    class_shares: ClassNumbers | None = None

    def _weight(self, n: int) -> float:
        if self.C is None:
            return self.alpha
        if self.alpha != type(self).alpha:
            raise InvalidInput("alpha and C are two words for one penalty; leave one out.")
        return 1 / (positive(self.C, "C") * n)

    @property
    def _takes_several(self) -> bool:
        return self._loss == "logistic" and self._solver in SEVERAL_CLASSES

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None, **refused: object) -> Self:
        """Fit on records ``X`` (n, p) with classes ``y``; with a network, ``groups`` says who holds which."""
        _refuse(refused)
        records, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        declared = Classes.declared(labels, self.classes, self.accept) or Classes((0, 1))
        classes = Classes(tuple(np.unique(declared.values).tolist()))  # sorted, as scikit-learn has them
        several = len(classes.values) > 2
        if several and not self._takes_several:
            raise DataError(
                f"Only binary classification is supported by {self._loss} loss and {self._solver}, got "
                f"{len(classes.values)} class labels; logistic loss and dp-sgd take several."
            )
        self.classes_ = np.array(classes.values)
        options = ModelOptions(class_weight=self.class_weight, class_shares=self.class_shares)
        uncharged = ("class names",) if self.classes is None and "class names" in self.accept else ()
        self._fit(records, labels, 1.0, groups, classes.values, options, uncharged)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return x.w + intercept for every record (positive: the second class), or one score per class."""
        return self._scores(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most likely class of every record."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        tags.classifier_tags.multi_class = self._takes_several
        return tags


class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression with differential privacy for the records; two classes, or several.

    Parameters
    ----------
    epsilon, delta : the budget of all ``fits`` together.
    solver : "dp-sgd" (the default), "dp-cd", "dp-gcd" or "admm"; with ``network`` "consensus-newton" (the
        default), "consensus-sgd", "muffliato-sgd", "dp-dsgd" or "dp-dsgt". Several classes need a gradient
        method: "dp-sgd" or one over a network.
    alpha : weight of the l2 penalty (alpha/2) |w|^2, which leaves the intercept out.
    C : scikit-learn's word for it, 1 / (alpha n) with the public number n of records; in place of ``alpha``.
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
    classes : public names of the classes; None for labels 0 and 1.
    class_weight, class_shares : public weights of the classes, ``{"no": 1, "yes": 9}``, or ``"balanced"``
        and their public shares; for dp-sgd and the methods over a network.
    accept : what is read from private records and not charged, by name: ``"class names"`` takes the classes
        from the labels, ``"tuning"`` says that settings were chosen on these records; the guarantee says so.

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
    solvers under replacement. With a ``random_state`` nobody is protected, and every guarantee says so.
    Copies of an estimator (``sklearn.base.clone``) begin accounts of their own. ``classes_`` and the shape of
    ``coef_`` follow from ``classes`` and the columns of ``X``, never from a record, unless
    ``accept=["class names"]`` says otherwise. The number of records is taken as public (it stays the same
    when a record is removed). Inputs are checked (finite numbers, labels of the public classes) before
    anything is spent; that a fit was refused may tell something about the records.

    Examples
    --------
    >>> X = np.array([[0.9, 0.1], [0.8, -0.2], [-0.9, 0.1], [-0.7, 0.3]] * 100)
    >>> y = np.array(["yes", "yes", "no", "no"] * 100)
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-5, solver="dp-cd", classes=["no", "yes"],
    ...                                   random_state=0).fit(X, y)
    >>> model.score(X, y), bool(model.privacy_.epsilon(1e-5) <= 1.0)
    (1.0, True)
    """

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return (n, classes) probabilities."""
        scores = self._scores(X)
        return probabilities(scores, several=scores.ndim == 2)


class PrivateLinearSVC(_PrivateClassifier):
    """Support vector classification of two classes, private for the records: the smooth hinge of `GLM`.

    Parameters and attributes are those of `PrivateLogisticRegression`; a hinge gives no probabilities.

    Examples
    --------
    >>> X = np.array([[0.9, 0.1], [0.8, -0.2], [-0.9, 0.1], [-0.7, 0.3]] * 100)
    >>> model = PrivateLinearSVC(epsilon=1.0, random_state=0).fit(X, [1, 1, 0, 0] * 100)
    >>> model.score(X, [1, 1, 0, 0] * 100), hasattr(model, "predict_proba")
    (1.0, False)
    """

    _loss = "hinge"


@dataclass(eq=False, repr=False)
class _PrivateRegressor(RegressorMixin, _PrivateLinear):
    _loss = "squared"

    target_bound: float = 1.0

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None, **refused: object) -> Self:
        """Fit on records ``X`` (n, p) with targets ``y``, which are clipped to the public bound."""
        _refuse(refused)
        records, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        bound = positive(self.target_bound, "target_bound")
        if targets.dtype.kind not in "biuf":
            raise DataError("the targets must be numbers, got words.")
        self._fit(records, np.clip(targets, -bound, bound), bound, groups)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
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


def _refuse(options: Mapping[str, object]) -> None:
    """Refuse what other estimators take: a weight would let one record count more than the clip allows."""
    for name, value in options.items():
        if name != "sample_weight":
            raise InvalidInput(f"fit has no option {name!r}; it takes X, y and groups.")
        if value is not None:
            raise InvalidInput(
                "sample weights are not supported: a record with a large weight would be hidden less "
                "than the guarantee says; leave sample_weight out, or weight classes by class_weight."
            )


def _inside_search() -> bool:
    """Return whether a caller is scikit-learn's search or cross-validation."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back
    return False
