"""Settings are chosen on training records held out: the test set is not looked at, seeds are no trial's."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data.agent_tensors import AgentData
from sottovoce_papers.bayrooti2023 import cells, tuning
from sottovoce_papers.bayrooti2023.cells import Cell
from sottovoce_papers.bayrooti2023.settings import Settings, settings_of
from sottovoce_papers.bayrooti2023.tuning import GROUPS, SEEDS, TWICE, chosen, grid_of, tuning_trial
from sottovoce_papers.registry import find

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = Cell("dsgd", 10.0, 0.39, data="digits", steps=3, batch_size=32, agents=5)


def test_the_quick_form_shows_draws_and_cannot_say():
    record = json.loads(json.dumps(find("bayrooti2023-tuning").run(quick=True).to_dict()))
    shown = find("bayrooti2023-tuning").table(record)
    assert len(shown.rows) == 2
    assert all(row[-1] == "" for row in shown.rows)  # after two steps nothing is worth choosing
    assert find("bayrooti2023-tuning").plot(record).axes[0].get_ylabel()
    assert find("bayrooti2023-tuning").held(record) is None


@pytest.mark.parametrize("method", ["dsgd", "central"])
def test_neither_the_test_set_nor_the_records_held_out_are_learned_from(monkeypatch, method):
    cell = Cell(method, 10.0, 0.39, data="digits", steps=3, batch_size=32, agents=5)
    options = {"cell": asdict(cell), "settings": asdict(Settings(1.0, 0.5, 0.5)), "place": 0}
    before = tuning_trial(**options, held_out=200)["accuracy"]
    x, x_test = cells._tensors("digits")
    total, seen = len(cells._images("digits").y), []

    def watched(rows, labels, parts, *, test, classes):
        seen.append((len(rows), len(test[1]), max(part.max() for part in parts)))
        return AgentData(rows, labels, parts, test=test, classes=classes)

    monkeypatch.setattr("sottovoce.data.agent_tensors.AgentData", watched)
    monkeypatch.setattr(tuning, "_tensors", lambda name: (x, np.full_like(x_test, np.nan)))
    assert tuning_trial(**options, held_out=200)["accuracy"] == before
    assert seen == [(total - 200, 200, total - 201)]


def test_what_overflows_counts_as_nothing_and_other_refusals_stay():
    cell = Cell("dinno", 10.0, 0.39, data="digits", steps=40, batch_size=32, agents=5)
    options = {"cell": asdict(cell), "place": 0, "held_out": 200}
    wild = Settings(1.0, 1e6, 1e6, 40, "sgd", 100.0)
    with np.errstate(all="ignore"):
        assert tuning_trial(**options, settings=asdict(wild))["accuracy"] == 0.0
    with pytest.raises(ValueError, match="clip_norm"):
        tuning_trial(**options, settings=asdict(Settings(-1.0, 0.1, 0.1)))


def test_a_finished_setting_is_read_and_another_is_refused(tmp_path):
    options = {"cell": asdict(SMALL), "place": 3, "held_out": 200, "results": str(tmp_path)}
    tuning_trial(**options, settings=asdict(Settings(1.0, 0.5, 0.5)))
    path = tmp_path / f"{SMALL.key}_setting3.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": -1.0}))
    assert tuning_trial(**options, settings=asdict(Settings(1.0, 0.5, 0.5)))["accuracy"] == -1.0
    with pytest.raises(ValueError, match="a different value of settings"):
        tuning_trial(**options, settings=asdict(Settings(2.0, 0.5, 0.5)))


def test_the_best_is_chosen_and_a_rate_that_diverged_once_is_not():
    def row(cell, first, last, accuracy):
        settings = asdict(Settings(1.0, first, last))
        return {"cell": cell, "settings": settings, "held_out_accuracy": accuracy}

    tried = [
        row("a", 0.1, 0.1, 90.0), row("a", 0.1, 0.01, 91.0), row("a", 0.3, 0.3, 91.0),
        row("b", 0.1, 0.1, 90.0), row("b", 0.3, 0.3, 97.0), row("b", 0.3, 0.03, 9.8),
    ]  # fmt: skip
    assert chosen({"history": tried}) == {"a": Settings(1.0, 0.1, 0.01), "b": Settings(1.0, 0.1, 0.1)}
    # where some were tried on more seeds only these compete, each by its worst
    again = [
        row("a", 0.1, 0.1, 89.0),
        row("a", 0.3, 0.3, 70.0),
        row("a", 0.1, 0.1, 91.0),
        row("a", 0.3, 0.3, 95.0),
    ]
    assert chosen({"history": tried + again})["a"] == Settings(1.0, 0.1, 0.1)


def test_the_settings_used_are_those_the_record_chose():
    record = json.loads((RESULTS / "bayrooti2023-tuning.json").read_text())
    best = chosen(record)
    assert set(best) == {cell.key for cell in GROUPS}
    for cell in GROUPS:
        used = settings_of(cell.method, cell.epsilon, cell.fiedler)
        for name in ("clip_norm", "first_rate", "last_rate", "steps", "rho"):
            assert getattr(used, name) == pytest.approx(getattr(best[cell.key], name)), cell.key
        assert used.optimizer == best[cell.key].optimizer
        tried = [row["settings"] for row in record["history"] if row["cell"] == cell.key]
        assert list(dict.fromkeys(Settings(**row) for row in tried)) == grid_of(cell)
        seeds = [row["seed"] for row in record["history"] if row["cell"] == cell.key]
        assert sorted(set(seeds)) == list(SEEDS[: 3 if cell.key in TWICE else 1])
