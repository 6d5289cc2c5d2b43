"""Running a plan step by step, callbacks, and stopping early."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM
from sottovoce.runners.run import PlanRun
from sottovoce.runners.stopping import EarlyStopping


def training(steps=12):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (40, 2))
    data = Shards.from_parts(X, np.sign(X[:, 0]), np.array_split(np.arange(40), 4))
    options = {"sizes": (10,) * 4, "steps": steps, "clip_norm": 1.0, "noise_multiplier": 0.5}
    return ConsensusSGD(GLM("logistic", dim=2), "tree", network=sv.graphs.ring(4), **options), data


def generator():
    return np.random.default_rng(5)


def test_single_steps_give_the_bytes_of_a_whole_run():
    plan, data = training()
    running = PlanRun(plan, data, generator())
    for step in range(1, 13):
        running.advance(step)
    assert running.finished
    rows = running.result().outputs["rows"]
    assert rows.tobytes() == plan.run(data, generator()).outputs["rows"].tobytes()
    with pytest.raises(InvalidInput, match="12 steps"):
        running.advance(13)


def test_on_step_sees_every_step_and_changes_nothing():
    plan, data = training()
    seen = {}
    result = plan.run(data, generator(), on_step=lambda step, rows: seen.update({step: rows.copy()}))
    assert list(seen) == list(range(1, 13))
    assert np.array_equal(seen[12], result.outputs["rows"])
    assert np.array_equal(seen[12], plan.run(data, generator()).outputs["rows"])


@pytest.mark.parametrize("by", ["on_step", "on_evaluation"])
def test_protected_rows_are_shown_once_however_often_a_run_is_interrupted(by, tmp_path):
    """A step that is done again after a crash draws new noise: two versions of it would be two releases."""
    plan, data = training()
    shown = []

    def show(step, rows_or_scores):
        shown.append(step)
        if len(shown) in (4, 8, 9):
            raise KeyboardInterrupt

    options = {"checkpoint": tmp_path / "c", "every": 3 if by == "on_step" else 1, by: show}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            plan.run(data, ProtectiveNoise(), **options)
    plan.run(data, ProtectiveNoise(), **options)
    # what is tried on the starting rows, or the saved step, before a charge holds no new noise
    assert sorted(set(shown)) == list(range(13))
    released = [step for k, step in enumerate(shown) if k not in (0, 4, 8, 9)]
    assert released == sorted(set(released)), shown


def test_a_run_stops_where_the_history_stops_improving():
    plan, data = training()
    scores = iter([9.0, 5.0, 4.0, 4.5, 4.2, 1.0, 1.0])  # the first is that of the start
    result = plan.run(
        data,
        generator(),
        evaluate=lambda rows: {"error": next(scores)},
        every=2,
        early_stopping=EarlyStopping("error", patience=2),
    )
    assert [entry["step"] for entry in result.history] == [2, 4, 6, 8]
    assert result.provenance["stopped_at"] == 8
    assert result.outputs["rows"].tobytes() == rows_after(8).tobytes()
    assert result.guarantees == plan.run(data, generator()).guarantees  # the whole plan is accounted


def rows_after(steps):
    plan, data = training()
    running = PlanRun(plan, data, generator())
    running.advance(steps)
    return running.rows


@pytest.mark.parametrize(
    ("monitor", "scores", "stops"),
    [
        ("loss", [3, 2, 1], False),
        ("loss", [1, 2, 3], True),
        ("accuracy", [0.5, 0.6, 0.7], False),
        ("accuracy", [0.7, 0.6, 0.5], True),
        ("loss", [3, 2.95, 2.9], True),  # improves by less than min_delta
        ("loss", [float("nan"), float("nan")], True),
    ],
)
def test_which_scores_stop(monitor, scores, stops):
    rule = EarlyStopping(monitor, patience=2, min_delta=0.2 if scores[0] == 3 and stops else 0.0)
    assert rule.stops([{monitor: score} for score in scores]) is stops


def test_a_rule_needs_a_score_that_is_measured():
    with pytest.raises(InvalidInput, match="measures accuracy, loss"):
        EarlyStopping("auc").require({"accuracy": 0.5, "loss": 1.0})
    with pytest.raises(InvalidInput, match="test="):
        EarlyStopping().require({})


def test_a_rule_that_queries_its_records_twice_in_a_step_is_stopped(monkeypatch):
    """One release is announced for a step; a second draw would leave uncounted."""
    plan, data = training()
    rule = ConsensusSGD.algorithm

    def twice(self, mechanism, start):
        algorithm = rule(self, mechanism, start)
        return algorithm._replace(
            message=lambda state, k: algorithm.message(state, k) + 0 * algorithm.message(state, k)
        )

    monkeypatch.setattr(ConsensusSGD, "algorithm", twice)
    with pytest.raises(ReleaseMismatch, match="a second time"):
        plan.run(data, generator())
