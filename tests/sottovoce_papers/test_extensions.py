"""Masked sums: what runs is a plan, and 20 lines that know no plan agree with it; fine-tuning."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sottovoce import graphs
from sottovoce.algorithms import ConsensusSGD, Optimizer
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.privacy import gaussian_epsilon
from sottovoce_papers.extensions import secure_sum
from sottovoce_papers.extensions.fine_tuning import TASKS, characters, fine_tuning, pretrained, source_lines
from sottovoce_papers.extensions.secure_sum import (
    GRID,
    QUICK,
    SETTINGS,
    Setting,
    by_class,
    plan_of,
    run_trial,
    setting_of,
    sum_noise,
)
from sottovoce_papers.feature_rows import Job, accuracies, rows_of
from sottovoce_papers.registry import find

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def data_of(rows, agents=10, seed=0):
    parts = by_class(rows.y, agents, np.random.default_rng(seed))
    return AgentData(rows.x, rows.y, parts, test=(rows.x_test, rows.y_test), classes=10)


def masked_plan(rows, sizes, steps, rate, multiplier):
    objective = NetObjective(nn.Linear(rows.x.shape[1], 10, bias=False), clip_norm=1.0)
    return ConsensusSGD(
        objective, "masked", network="ring:10", steps=steps, sizes=sizes, learning_rate=rate,
        noise_multiplier=multiplier, optimizer=Optimizer("momentum", beta=0.9),
    )  # fmt: skip


def test_the_plan_and_the_loop_by_hand_agree():
    """Without noise to the last image; with noise in the mean over seeds, and not at another amount of it."""
    rows = rows_of("digits", "handwriting")
    records = data_of(rows)
    start = np.zeros(10 * rows.x.shape[1], np.float32)

    def ran(steps, rate, multiplier, seed):
        plan = masked_plan(rows, records.sizes.tolist(), steps, rate, multiplier)
        return 100 * plan.run(records, np.random.default_rng(seed), start=start).metrics["accuracy"]

    for steps, rate in ((1, 4.0), (12, 8.0)):
        (by_hand,) = accuracies(rows, [Job(steps, rate, 0.0, 0)])
        assert ran(steps, rate, 0.0, 0) == pytest.approx(by_hand, abs=0.01)
    seeds = range(6)
    z = 6.0  # of each of ten agents
    plans = [ran(6, 8.0, z, seed) for seed in seeds]
    loops = {
        factor: accuracies(rows, [Job(6, 8.0, factor * z * np.sqrt(10), seed) for seed in seeds])
        for factor in (1.0, 2.0)
    }
    error = np.sqrt(np.var(plans, ddof=1) / 6 + np.var(loops[1.0], ddof=1) / 6)
    assert abs(np.mean(plans) - np.mean(loops[1.0])) < 3.5 * error + 0.2
    assert np.mean(plans) - np.mean(loops[2.0]) > 3.5 * error


@pytest.mark.parametrize(("against", "rest"), [("outsiders", 10), ("one", 9), ("three", 7), ("local", 1)])
def test_the_noise_of_a_row_of_the_table_is_that_of_the_formula(against, rest):
    objective = NetObjective(nn.Linear(3, 10, bias=False), clip_norm=1.0)
    plan = plan_of(against, objective, [60] * 10, graphs.ring(10), QUICK, 1.0, 0)
    mu = np.sqrt(QUICK.steps) / (noise_multipliers(plan)[0] * np.sqrt(rest))
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(1.0, rel=2e-3)
    own, one = (sum_noise(1.0, QUICK.steps, 10, own=own) / np.sqrt(10) for own in (True, False))
    if against in ("local", "one"):
        assert noise_multipliers(plan)[0] == pytest.approx(own if against == "local" else one, rel=2e-3)


def test_classes_stay_apart_whatever_the_number_of_agents():
    y = np.repeat(np.arange(10), 30)
    for agents in (10, 100):
        parts = by_class(y, agents, np.random.default_rng(1))
        assert sorted(np.concatenate(parts).tolist()) == list(range(300))
        assert all(set(y[part]) == {i % 10} for i, part in enumerate(parts))
    with pytest.raises(InvalidInput, match="10 classes"):
        by_class(y, 15, np.random.default_rng(1))


def test_settings_come_from_the_grid():
    for key, setting in SETTINGS.items():
        assert setting in GRID[key], key
    with pytest.raises(InvalidInput, match=r"mnist at 0\.5"):
        setting_of("mnist", 2.0, "one")


def test_what_was_tried_is_kept_and_only_what_is_missing_is_run(tmp_path, monkeypatch):
    ran = []
    one, two = Setting("handwriting", 3, 4.0), Setting("handwriting", 3, 8.0, clip_norm=0.5)

    def cell(*, data, epsilon, own, settings):
        ran.append(list(settings))
        scores = ({"held_out_accuracy": s.learning_rate, "seeds": [1]} for s in settings)
        return [dataclasses.asdict(s) | score for s, score in zip(settings, scores, strict=True)]

    monkeypatch.setattr(secure_sum, "tuning_cell", cell)
    stored = str(tmp_path / "tuning.jsonl")
    for grid in ((one,), (one, two), (two, one)):
        monkeypatch.setattr(secure_sum, "GRID", {("mnist", 1.0, False): grid})
        result = secure_sum.secure_sum_tuning(stored=stored)
    assert ran == [[one], [two]]
    assert [row["learning_rate"] for row in result.history] == [4.0, 8.0]


def test_held_out_records_are_not_trained_on():
    rows = rows_of("digits", "handwriting")
    part = rows.held_out()
    assert len(part.y) + len(part.y_test) == len(rows.y)
    known = {row.tobytes() for row in rows.x_test}
    assert not any(row.tobytes() in known for row in part.x_test)


def test_a_trial_is_kept_and_refused_with_other_settings(tmp_path):
    options = {"setting": dataclasses.asdict(QUICK), "results": tmp_path}
    one = run_trial("digits", 1.0, "one", 0, **options)
    assert run_trial("digits", 1.0, "one", 0, **options) == one
    assert one["accept"] == ["tuning"]
    assert one["epsilon_spent"] <= 1.0 < one["epsilon_local"]
    assert "any one node" in one["guarantee"]


def test_stored_trials_were_made_with_the_settings_that_were_chosen():
    tried = {}
    for row in json.loads((RESULTS / "secure-sum-tuning.json").read_text())["history"]:
        tried.setdefault((row["data"], row["epsilon"], row["own"]), []).append(row)
    for key, setting in SETTINGS.items():
        chosen = [
            row["held_out_accuracy"]
            for row in tried[key]
            if all(row[name] == getattr(setting, name) for name in ("features", "steps", "learning_rate"))
        ]
        assert chosen == [max(row["held_out_accuracy"] for row in tried[key])]
    for name in ("secure-sum-mnist", "secure-sum-images"):
        for row in json.loads((RESULTS / f"{name}.json").read_text())["history"]:
            if row["trials"]:
                own = row["against"] == "local"
                setting = SETTINGS[row["data"], row["epsilon"], own]
                assert row["setting"] == dataclasses.asdict(setting)
                assert row["epsilon_spent"] <= row["epsilon"]
                assert row["accuracy"] == round(float(np.mean(row["each"])), 2)


# ---- Fine-tuning end to end in its quick form --------------------------------------------------------------


def test_the_quick_form_prices_what_it_runs():
    torch = pytest.importorskip("torch")
    record = fine_tuning(quick=True, task="text").to_dict()
    for way in ("own noise", "masked", "central"):
        assert 7.9 < record["metrics"][way]["8"]["epsilon"] <= 8.0
        assert 0 <= record["metrics"][way]["8"]["accuracy"] <= 100
    shown = find("fine-tuning-text").table(record)
    assert len(shown.rows) == 1
    assert "3 agents" in shown.note
    net, _ = pretrained("images", (torch.zeros(0, 1, 14, 14).numpy(), torch.zeros(0).long().numpy()), 0, 0)
    trained = {name.split(".")[0] for name, p in net.named_parameters() if p.requires_grad}
    assert trained <= set(TASKS["images"][4])
    assert not net[-1].weight.any()  # the new head says nothing yet


def test_lines_are_drawn_by_a_public_seed():
    lines = source_lines("networkx", "documentation", 20)
    assert lines == source_lines("networkx", "documentation", 20)
    assert lines != source_lines("networkx", "documentation", 20, seed=1)
    assert len(set(lines)) == 20
    assert characters(["~é"])[0, :3].tolist() == [95, 95, 0]
