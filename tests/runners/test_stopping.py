"""Training that diverges is stopped, by what is public alone."""

import math

import numpy as np
import pytest
from tests.estimators.cases import fit

import sottovoce as sv
from sottovoce.errors import TrainingDiverged
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.lifetime import VARIABLE
from sottovoce.objectives import GLM
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.runners.stopping import DivergenceCheck


def scores(rmse, trivial=1.0):
    return {"rmse": rmse, "trivial_rmse": trivial, "better_than_trivial": rmse < trivial}


def test_rows_that_no_step_can_change_any_more():
    check = DivergenceCheck()
    assert check.rows_reason(np.array([[1e15, -2.0]])) is None
    assert "5e+15" in check.rows_reason(np.array([[5e15, 0.0]]))
    assert check.rows_reason(np.array([[1e6]], np.float32)) is None
    assert "1e+07" in check.rows_reason(np.array([[1e7]], np.float32))
    for value in (math.nan, math.inf):
        assert check.rows_reason(np.array([[0.0, value]])) == "the model is not finite"


def test_scores_far_above_a_constant_answer():
    check = DivergenceCheck()
    check.begin(scores(2.0))
    assert check.scores_reason(scores(6.3)) is None  # 9.9 times the squared error of the start
    assert check.scores_reason(scores(60.0)) is not None  # 900 times, and above the one before
    falling = DivergenceCheck()
    falling.begin(scores(1.0))
    assert [falling.scores_reason(scores(r)) for r in (30.0, 20.0, 10.0, 4.0)] == [None] * 4
    assert "more than 10 times" in falling.scores_reason(scores(4.1))
    assert "more than 1,000 times" in DivergenceCheck().scores_reason(scores(31.7))
    assert DivergenceCheck().scores_reason(scores(math.nan)) is not None


def test_a_model_better_than_a_constant_is_not_stopped_for_a_large_loss():
    entry = {"loss": 50.0, "trivial_loss": 0.69, "accuracy": 0.9, "trivial_accuracy": 0.5}
    check = DivergenceCheck()
    for _ in range(3):
        assert check.scores_reason(entry | {"better_than_trivial": True}) is None
    assert check.scores_reason(entry | {"better_than_trivial": False}) is not None
    assert check.scores_reason({"loss": 1e9, "accuracy": 0.1}) is None  # nothing to compare with


def data(n=900, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, (X[:, 0] + 0.1 * rng.normal(size=n) > 0).astype(int)


OPTIONS = {"network": "ring:4", "steps": 100, "epsilon": 2.0, "delta": 1e-5}


def test_a_rate_far_too_large_ends_the_run_early_and_a_good_one_does_not():
    with pytest.raises(
        TrainingDiverged, match=r"^training diverged; lower the learning rate: after 5 of 100"
    ):
        fit("logistic", data(), test=data(200, 1), learning_rate=1e9, rng=np.random.default_rng(0), **OPTIONS)
    good = fit(
        "logistic", data(), test=data(200, 1), learning_rate=2.0, rng=np.random.default_rng(0), **OPTIONS
    )
    assert len(good.history) == 20
    assert good.metrics["better_than_trivial"]
    assert good.metrics["test_records"] == 200
    assert not {"trivial_accuracy", "trivial_loss", "test_records"} & set(good.history[0])


def test_a_regression_that_moves_away_is_stopped_and_a_distant_start_is_not():
    X, _ = data()
    y = 100 + X[:, 0]  # the start, 0, is 100 deviations away
    options = {**OPTIONS, "rng": np.random.default_rng(0), "test": (X[:200], y[:200]), "clip_norm": 1.0}
    slow = fit("squared", (X, y), learning_rate=0.5, **options)
    assert slow.metrics["better_than_trivial"] is False
    assert slow.metrics["trivial_rmse"] == pytest.approx(np.std(y[:200]))
    assert "no better than a constant answer" in repr(slow)
    with pytest.raises(TrainingDiverged, match="squared error on the test records"):
        fit("squared", (X, y - 100), learning_rate=1e3, **options)


def test_without_test_records_only_the_rows_decide():
    options = {**OPTIONS, "rng": np.random.default_rng(0)}
    fit("logistic", data(), learning_rate=1e9, **options)
    with pytest.raises(TrainingDiverged, match="it has parameters of"):
        fit(GLM("logistic", l2=1.0), data(), learning_rate=1e3, **options)


def test_a_stopped_run_stays_charged_and_says_what_it_has_spent(tmp_path, monkeypatch):
    limit = LifetimeBudget(9.0, 1e-5, "add-remove", "local")
    directory = MemberDirectory.create(
        tmp_path / "home", "north", population="p", budgets=[limit], copy=tmp_path / "copy"
    )
    options = {**OPTIONS, "test": data(200, 1), "learning_rate": 1e9}
    with pytest.raises(TrainingDiverged) as simulated:
        fit("logistic", data(), rng=np.random.default_rng(0), **options)
    assert "spent" not in str(simulated.value)
    spent = "Those steps are spent: at most epsilon 1.999 at delta 1e-05 against any one node"
    with pytest.raises(TrainingDiverged, match=f"{spent}.$"):
        fit("logistic", data(), **options)  # protective noise, and no ledger
    monkeypatch.setenv(VARIABLE, str(directory.folder))
    with pytest.raises(TrainingDiverged, match=f"{spent}, and stay charged.$"):
        fit("logistic", data(), **options)
    [budget] = directory.lifetime_ledger.summary()[0]["budgets"]
    assert 1.999 < budget["spent"] < 9.0  # against everybody, so more than against one node


def test_averages_of_large_values_do_not_diverge():
    plan = sv.PrivateAveraging("exchange", network="hypercube:2", noise_std=1e18, radius=1e18)
    assert plan.run(np.full((4, 1), 1e18), np.random.default_rng(0)).outputs["rows"].shape == (4, 1)
