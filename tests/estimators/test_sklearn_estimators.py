"""The scikit-learn side: conventions, pipelines, searches, budgets."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from sottovoce.accounting import wording
from sottovoce.errors import DataError, InvalidInput, Refused
from sottovoce.estimators.sklearn_estimators import (
    SOLVERS,
    PrivateLasso,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    SearchSpendsBudget,
)


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return make_pipeline(StandardScaler(), Normalizer()).fit_transform(X), y


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateLinearSVC])
def test_every_solver_learns_and_spends_its_budget(kind, solver):
    X, y = cancer()
    model = kind(2.0, 1e-5, solver=solver, random_state=1).fit(X, y)
    assert model.score(X, y) > 0.85
    assert 1.98 < model.privacy_.epsilon(1e-5) <= 2.0
    assert model.privacy_.valid
    if kind is PrivateLogisticRegression:
        assert model.predict_proba(X).sum(axis=1) == pytest.approx(1)
    assert model.coef_.shape == (30,)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", [PrivateRidge, PrivateLasso])
def test_regressors_learn(solver, kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ np.array([0.8, -0.4, 0.0])
    model = kind(4.0, 1e-6, solver=solver, fit_intercept=False, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.privacy_.epsilon(1e-6) <= 4.0


@pytest.mark.parametrize("model", [
    PrivateLogisticRegression(solver="dp-gcd", steps=3, random_state=0, accept=("class names",)),
    PrivateLinearSVC(solver="dp-sgd", steps=3, random_state=0, accept=("class names",)),
    PrivateRidge(solver="dp-sgd", steps=3, random_state=0),
    PrivateLasso(solver="dp-cd", steps=5, random_state=0),
])  # fmt: skip
def test_scikit_learn_conventions(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused = {"check_class_weight_classifiers": "dp-cd takes no class weights"}
        check_estimator(model, expected_failed_checks=refused)


def test_pipeline_search_and_the_honest_warning():
    X, y = cancer()
    pipeline = make_pipeline(Normalizer(), PrivateLogisticRegression(solver="dp-cd", steps=5, random_state=0))
    assert pipeline.fit(X, y).score(X, y) > 0.5
    grid = {"privatelogisticregression__steps": [3, 5]}
    with pytest.warns(SearchSpendsBudget, match="fits="):
        GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    with pytest.warns(SearchSpendsBudget):
        cross_val_score(PrivateLogisticRegression(solver="dp-cd", steps=3, random_state=0), X, y, cv=2)
    charged = PrivateLogisticRegression(1.0, 1e-5, solver="dp-cd", steps=5, fits=5, random_state=0)
    search = GridSearchCV(charged, {"steps": [3, 5]}, cv=2).fit(X, y)  # 2 x 2 fits and the last one
    best = search.best_estimator_
    assert best.total_privacy_.epsilon(1e-5) <= 1.0
    assert best.privacy_.epsilon(1e-5) < 0.6
    assert (best.privacy_ * 5).epsilon(1e-5) == pytest.approx(best.total_privacy_.epsilon(1e-5))


@pytest.mark.filterwarnings("ignore::sottovoce.estimators.sklearn_estimators.SearchSpendsBudget")
def test_estimators_over_a_network_need_no_further_option():
    X, y = cancer()
    model = PrivateLogisticRegression(2.0, network="complete:8", random_state=0).fit(X, y)
    assert (model.plan_.name, model.plan_.schedule(0).name) == ("consensus-newton", "masked")
    assert model.privacy_.epsilon(1e-5) <= 2.0
    assert model.score(X, y) > 0.93
    assert PrivateLogisticRegression(2.0, network="path:2", random_state=0).fit(X, y).score(X, y) > 0.9
    ridge = PrivateRidge(2.0, network="complete:8", random_state=0).fit(X, X[:, 0])
    assert ridge.score(X, X[:, 0]) > 0.8
    pipeline = make_pipeline(Normalizer(), PrivateLogisticRegression(4.0, network="ring:4", random_state=0))
    search = GridSearchCV(pipeline, {"privatelogisticregression__C": [1e-3, 10.0]}, cv=2).fit(X, y)
    assert search.best_params_ == {"privatelogisticregression__C": 10.0}
    assert cross_val_score(pipeline, X, y, cv=2).min() > 0.85


@pytest.mark.parametrize("options", [{"solver": "dp-sgd"}, {"network": "ring:4"}])
def test_class_weights_are_those_of_scikit_learn(options):
    X, y = cancer()
    weights = {0: 0.5, 1: 3.0}
    private = {"epsilon": float("inf"), "random_state": 0, "alpha": 0.01, "steps": 400, "clip_norm": 50.0}
    private |= options | ({"sample_rate": 1.0, "step_scale": 2.0} if "solver" in options else {})
    ours = PrivateLogisticRegression(class_weight=weights, **private).fit(X, y)
    theirs = LogisticRegression(C=1 / (0.01 * len(y)), class_weight=weights, tol=1e-10).fit(X, y)
    expected = np.append(theirs.coef_, theirs.intercept_)
    assert np.linalg.norm(np.append(ours.coef_, ours.intercept_) - expected) < 0.05 * np.linalg.norm(expected)


def test_c_is_the_penalty_of_scikit_learn_and_leaves_the_intercept_out():
    X, y = cancer()
    options = {"epsilon": np.inf, "network": "ring:4", "random_state": 0, "steps": 400, "clip_norm": 50.0}
    by_c = PrivateLogisticRegression(C=0.5, **options).fit(X, y)
    by_alpha = PrivateLogisticRegression(alpha=1 / (0.5 * len(y)), **options).fit(X, y)
    assert np.array_equal(by_c.coef_, by_alpha.coef_)
    plain = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(X, y)
    assert np.linalg.norm(by_c.coef_ - plain.coef_[0]) < 0.02 * np.linalg.norm(plain.coef_)
    assert by_c.intercept_ == pytest.approx(plain.intercept_[0], abs=0.02)


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("dp-sgd", {"sample_rate": 1.0, "steps": 3000}),
        ("dp-cd", {"steps": 3000}),
        ("dp-gcd", {"steps": 3000}),
        ("admm", {"steps": 3000, "step_scale": 3.0}),
        ("consensus-newton", {"steps": 200, "network": "ring:4"}),
        ("consensus-sgd", {"steps": 3000, "network": "ring:4"}),
    ],
)
def test_no_solver_penalizes_the_intercept(solver, options):
    """A large penalty and a far intercept: with the intercept in the penalty it would be halved and more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = 0.7 + 0.2 * X[:, 0]
    options |= {"clip_norm": 50.0, "random_state": 0, "alpha": 0.5, "solver": solver}
    ours = PrivateRidge(float("inf"), **options).fit(X, y)
    theirs = Ridge(alpha=0.5 * len(y), tol=1e-12).fit(X, y)
    assert np.append(ours.coef_, ours.intercept_) == pytest.approx(
        np.append(theirs.coef_, theirs.intercept_), abs=0.005
    )


def test_repeated_fits_add_up():
    """Fitted three times where one was announced, an estimator has spent three times its budget's mu."""
    X, y = cancer()
    model = PrivateLogisticRegression(1.0, 1e-5, solver="dp-cd", steps=5)
    totals = []
    for _ in range(3):
        model.fit(X, y)
        totals.append(model.total_privacy_.mu)
    one = model.privacy_.mu
    assert totals == pytest.approx([one, one * 2**0.5, one * 3**0.5], rel=1e-12)
    assert (model.n_fits_, model.spent_privacy_.mu) == (3, totals[-1])
    announced = PrivateLogisticRegression(1.0, 1e-5, solver="dp-cd", steps=5, fits=2)
    for epsilon in (1.0, 1.0):
        announced.fit(X, y)
        assert 0.99 < announced.total_privacy_.epsilon(1e-5) <= epsilon
    assert announced.fit(X, y).total_privacy_.epsilon(1e-5) > 1.2
    with pytest.raises(InvalidInput, match="make a new estimator"):
        announced.set_params(solver="dp-sgd").fit(X, y)


def test_a_seed_makes_a_simulation_that_says_so():
    X, y = cancer()

    def fitted(seed):
        return PrivateLogisticRegression(solver="dp-gcd", steps=3, random_state=seed).fit(X, y)

    seeded, real = fitted(1), fitted(None)
    for statement in (seeded.privacy_, seeded.total_privacy_):
        assert "protects nobody" in statement.statement(1e-5)
    assert "simulat" not in real.total_privacy_.statement(1e-5)
    assert np.array_equal(fitted(1).coef_, seeded.coef_)
    assert not np.array_equal(fitted(None).coef_, real.coef_)


@pytest.mark.parametrize("solver", ["dp-sgd", "consensus-sgd"])
def test_several_classes(solver):
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    X, y = np.tile(make_pipeline(StandardScaler(), Normalizer()).fit_transform(X), (8, 1)), np.tile(y, 8)
    graph = None if solver == "dp-sgd" else "complete:4"
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = PrivateLogisticRegression(
        8.0, solver=solver, network=graph, step_scale=4.0, random_state=0, classes=list(np.unique(names))
    ).fit(X, names)  # fmt: skip
    assert model.score(X, names) > 0.75
    assert model.coef_.shape == (3, 4)
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(1)
    assert model.privacy_.epsilon(1e-5) <= 8.0
    assert str(model.privacy_.adversary) == (
        "anyone who sees the released output" if graph is None else "any one node"
    )


def test_records_lie_with_the_nodes_of_their_group():
    X, y = cancer()
    groups = np.array(["Rome", "Oslo", "Bern"])[np.arange(len(y)) % 3]
    model = PrivateLogisticRegression(4.0, solver="consensus-sgd", network="complete:3", random_state=0)
    model.fit(X, y, groups=groups)
    assert model.plan_.sizes == tuple(np.bincount(np.unique(groups, return_inverse=True)[1]))
    assert model.score(X, y) > 0.8
    ridge = PrivateRidge(4.0, solver="dp-dsgt", network="complete:3", random_state=0).fit(X, X[:, 0])
    assert ridge.plan_.name == "dp-dsgt"


THREE = [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("options", "fit", "words"),
    [
        ({}, {"sample_weight": [1.0] * 4}, "sample weights are not supported"),
        ({}, {"weights": 1}, "fit has no option 'weights'"),
        ({}, {"groups": [0, 1, 0, 1]}, "give network="),
        ({"solver": "newton"}, {}, "solver without a network must be one of dp-sgd"),
        ({"network": "ring:4", "solver": "dp-sgd"}, {}, "solver over a network must be one of consensus"),
        ({"C": 1.0, "alpha": 0.1}, {}, "two words for one penalty"),
        ({"C": 0.0}, {}, "C must be"),
        ({"epsilon": 0.0}, {}, "epsilon must be a positive"),
        ({"delta": 2.0}, {}, "delta must lie"),
        ({"class_weight": "balanced"}, {}, "public share of every class"),
        ({"class_weight": [1, 2], "solver": "dp-cd"}, {}, "dp-cd takes no class weights"),
        ({"class_weight": [1, 2], "solver": "admm"}, {}, "admm takes no class weights"),
        (
            {"solver": "dp-cd", "classes": [0, 1, 2]},
            {"y": THREE},
            "logistic loss and dp-cd, got 3 class labels",
        ),
        ({"network": "ring:4", "solver": "consensus-sgd"}, {"groups": [0, 0, 1, 1]}, "come from 2 sites"),
        ({"network": "ring:8", "solver": "consensus-sgd"}, {}, "cannot give each of 8 users one"),
        ({"X": np.eye(4) * np.nan}, {}, "NaN"),
        ({"sample_rate": "often"}, {}, "sample_rate must be a number"),
        ({"random_state": "dice"}, {}, "random_state must be None or a seed, got 'dice'"),
        ({"classes": 2}, {}, "classes must be a list of names"),
    ],
)
def test_what_an_estimator_cannot_do_is_a_sentence(options, fit, words):
    X, y = options.pop("X", np.eye(4)), fit.pop("y", [0, 1, 0, 1])
    with pytest.raises(ValueError, match=words):
        PrivateLogisticRegression(**{"random_state": 0, **options}).fit(X, y, **fit)


def test_what_the_other_estimators_cannot_do_is_a_sentence():
    with pytest.raises(DataError, match="Only binary classification is supported by hinge loss and dp-sgd"):
        PrivateLinearSVC(random_state=0, classes=[0, 1, 2]).fit(np.eye(4), THREE)
    with pytest.raises(DataError, match="the targets must be numbers"):
        PrivateRidge(random_state=0).fit(np.eye(2), np.array(["a", "b"]))
    with pytest.raises(InvalidInput, match="an l1 penalty needs one holder of all records"):
        PrivateLasso(network="complete:4", random_state=0).fit(np.eye(4), np.ones(4))


LABELS = np.array(["healthy", "ill"] * 40)
RARE = np.array(["healthy", "ill"] * 39 + ["healthy", "rare"])
FEATURES = np.tile([[0.9, 0.1], [-0.8, 0.2]], (40, 1))


def test_a_rare_label_changes_neither_classes_nor_shapes():
    """Classes are public: a record of another class is refused; a class may have no record."""
    declared = PrivateLogisticRegression(classes=["ill", "healthy", "rare"], random_state=0)
    without, with_one = (clone(declared).fit(FEATURES, labels) for labels in (LABELS, RARE))
    assert without.classes_.tolist() == with_one.classes_.tolist() == ["healthy", "ill", "rare"]
    assert without.coef_.shape == with_one.coef_.shape == (3, 2)
    two = PrivateLogisticRegression(classes=["healthy", "ill"], random_state=0)
    assert two.fit(FEATURES, LABELS).coef_.shape == (2,)
    with pytest.raises(DataError, match=r"record 79 has label 'rare', .* public classes healthy, ill; .*\.$"):
        clone(two).fit(FEATURES, RARE)
    one_sided = PrivateLogisticRegression(random_state=0).fit(FEATURES, np.zeros(80))
    assert one_sided.classes_.tolist() == [0, 1]  # labels without names are 0 and 1, whoever has which
    for labels in (np.array([0, 1] * 39 + [0, 2]), np.array([-1, 1] * 40)):
        with pytest.raises(DataError, match="which is not among the public classes 0, 1"):
            PrivateLogisticRegression(random_state=0).fit(FEATURES, labels)


def test_class_names_from_the_labels_are_accepted_by_name_and_stated():
    with pytest.raises(Refused, match="list them in classes, or accept"):
        PrivateLogisticRegression(random_state=0).fit(FEATURES, LABELS)
    model = PrivateLogisticRegression(accept=["class names"], random_state=0).fit(FEATURES, RARE)
    note = wording.uncharged("class names")
    assert model.classes_.tolist() == ["healthy", "ill", "rare"]
    assert note in model.privacy_.assumptions
    assert note in model.total_privacy_.statement(1e-5)
    declared = PrivateLogisticRegression(classes=["healthy", "ill"], accept=["tuning"], random_state=0)
    assumptions = declared.fit(FEATURES, LABELS).privacy_.assumptions
    assert note not in assumptions
    assert wording.uncharged("tuning") in assumptions
    with pytest.raises(InvalidInput, match="nothing of the kind is read"):
        declared.set_params(accept=["class names"]).fit(FEATURES, LABELS)
    with pytest.raises(InvalidInput, match="nothing of the kind is read"):
        PrivateRidge(accept=["class names"], random_state=0).fit(FEATURES, FEATURES[:, 0])
