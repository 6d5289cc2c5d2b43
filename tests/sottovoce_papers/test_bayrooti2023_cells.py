"""The tables of Bayrooti et al. 2023: the quick forms run, cells are stored, printed values are reached."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError, InvalidInput
from sottovoce_papers.bayrooti2023.cells import Cell, run_cell
from sottovoce_papers.bayrooti2023.settings import Settings, settings_of
from sottovoce_papers.bayrooti2023.tables import cells_of
from sottovoce_papers.common import unpack
from sottovoce_papers.extensions.consensus_mnist import Recipe, run_trial
from sottovoce_papers.registry import find

SMALL = {"data": "digits", "steps": 4, "batch_size": 32, "agents": 5}


@pytest.mark.parametrize("name", ["table1", "table2", "figure1", "consensus-mnist"])
def test_quick_forms_spend_their_budgets(quick, name):
    for row in quick(name)["history"]:
        assert 0 <= row["accuracy"] <= 100
        assert float(row["epsilon_spent"]) <= float(row["epsilon"])


def test_exact_consensus_without_noise_says_that_it_is_not_private():
    record = json.loads(json.dumps(find("consensus-mnist").run(quick=True, epsilon=float("inf")).to_dict()))
    (row,) = record["history"]
    assert (row["epsilon"], row["epsilon_spent"], row["epsilon_of_the_worst_pair"]) == ("inf",) * 3
    (noisy,) = find("consensus-mnist").run(quick=True, epsilon=0.5).history
    assert row["accuracy"] > noisy["accuracy"] + 5
    assert find("consensus-mnist").table(record).rows[0][0] == "none"


def test_a_finished_cell_is_not_run_again(tmp_path):
    cell = Cell("dsgd", 10.0, 0.39, 1.0, **SMALL)
    first = run_cell(cell, 0, results=tmp_path)
    path = next(tmp_path.iterdir())
    changed = {**json.loads(path.read_text()), "accuracy": -1.0}
    path.write_text(json.dumps(changed))
    assert run_cell(cell, 0, results=tmp_path)["accuracy"] == -1.0
    assert run_cell(cell, 0)["accuracy"] == first["accuracy"]  # same seed, same answer


def test_settings_and_bad_cells():
    assert isinstance(settings_of("dsgd", 10.0), Settings)
    with pytest.raises(InvalidInput, match="method must be one of"):
        Cell("sgd", 1.0)
    with pytest.raises(InvalidInput, match="positive"):
        Cell("dsgd", -1.0)


def test_table_4_asks_for_its_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="CIFAR-100"):
        find("table4").run()


def test_table_4_in_its_quick_form_is_resnet_9_with_two_primal_steps(monkeypatch):
    from sottovoce_papers.bayrooti2023 import cells

    plans = []
    monkeypatch.setattr(
        cells, "_plan", lambda *options, make=cells._plan: plans.append(make(*options)) or plans[-1]
    )
    (row,) = find("table4").run(quick=True, device="cpu").history
    assert (row["method"], row["epsilon"], row["trials"]) == ("dinno", 10.0, 1)
    (plan,) = plans
    assert plan.primal_steps == 2
    assert [r.draws for r in plan.releases(0)] == [2]  # one step, two releases, both paid for
    assert plan.objective.n_params == 7_802_724 - 90 * 513  # ten classes in place of a hundred
    with pytest.raises(InvalidInput, match=r"--device nowhere cannot be used here: .*; try cpu"):
        find("table4").run(quick=True, device="nowhere")


def test_table_4_on_a_small_file_of_the_same_format(monkeypatch, tmp_path):
    from sottovoce_papers.bayrooti2023 import cells

    rng = np.random.default_rng(0)
    (tmp_path / "cifar100").mkdir()
    for file, count in (("train.bin", 200), ("test.bin", 5)):
        rows = rng.integers(0, 256, (count, 3074), dtype=np.uint8)
        rows[:, 1] = np.arange(count) % 100
        (tmp_path / "cifar100" / file).write_bytes(rows.tobytes())
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    cell = Cell("dsgd", 10.0, 1.0, 0.0, "cifar100", steps=1, batch_size=2, agents=2)
    try:
        record = run_cell(cell, 0)
    finally:
        cells._images.cache_clear()
        cells._tensors.cache_clear()
    assert 0 <= record["accuracy"] <= 100
    assert os.environ["SOTTOVOCE_DATA"] == str(tmp_path)


def test_consensus_does_not_depend_on_graph_and_split_without_noise_to_speak_of():
    options = {"recipe": Recipe("oriented", 4, steps=5, drawings=300), "data": "digits", "agents": 5}
    seen = [
        run_trial(1e6, 0, fiedler=fiedler, skew=skew, **options)["accuracy"]
        for fiedler, skew in ((1.0, 1.0), (0.39, 1.0), (0.39, 0.0))
    ]
    assert max(seen) - min(seen) < 0.6


def test_a_record_of_other_settings_or_half_a_record_is_not_taken_for_this_one(tmp_path):
    cell = Cell("dsgd", 10.0, 0.39, data="digits", steps=2, batch_size=16, agents=5)
    run_cell(cell, 0, settings=Settings(1.0, 0.1, 0.1, 2), results=tmp_path)
    with pytest.raises(ConfigError, match="a different value of settings"):
        run_cell(cell, 0, settings=Settings(3.0, 0.1, 0.1, 2), results=tmp_path)
    larger = Cell("dsgd", 10.0, 0.39, data="digits", steps=2, batch_size=20, agents=5)
    with pytest.raises(ConfigError, match="a different value of cell"):
        run_cell(larger, 0, settings=Settings(1.0, 0.1, 0.1, 2), results=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:50])
    with pytest.raises(ConfigError, match="is not a result"):
        run_cell(cell, 0, settings=Settings(1.0, 0.1, 0.1, 2), results=tmp_path)


def test_the_published_records_are_those_of_the_settings_in_the_code(tmp_path):
    """Stored trials with noise have the settings of the code, and the better ones reach the paper."""
    folder = tmp_path
    unpack(Path(__file__).parents[2] / "docs" / "results", folder)
    for cell in (*cells_of("table1"), *cells_of("table2")):
        if cell.method == "central" or not np.isfinite(cell.epsilon):
            continue
        means, most = [], 0
        for which, mark in (("printed", "_printed"), ("tuned", "")):
            trials = len(list(folder.glob(f"{cell.key}{mark}_trial*.json")))
            most = max(most, trials)
            records = [run_cell(cell, trial, which=which, results=folder) for trial in range(trials)]
            means += [np.mean([record["accuracy"] for record in records])] if records else []
        mean, std = cell.printed()
        assert max(means) >= mean - std, cell.key
        assert most >= 3, cell.key
    for epsilon, least in ((0.5, 93.0), (1.0, 94.5), (10.0, 96.5)):
        accuracies = [run_trial(epsilon, trial, results=folder)["accuracy"] for trial in range(5)]
        assert np.mean(accuracies) >= least
