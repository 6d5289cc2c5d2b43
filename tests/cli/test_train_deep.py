"""Plan files about networks: trained, priced, searched, refused."""

import json

import numpy as np
import pytest

from sottovoce.algorithms.event_log import read_events
from sottovoce.cli.config import read_toml
from sottovoce.cli.main import main
from sottovoce.cli.train_deep import price_file, train_file
from sottovoce.errors import ConfigError, DataError, InvalidInput

PLAN = """
[network]
graph = "ring:5"
[data]
name = "digits"
skew = 0.5
[model]
name = "mlp"
options = { inputs = 64, hidden = 8 }
[train]
method = "METHOD"
steps = 8
lot = 64
accounting = "rdp"
learning_rate = [0.5, 0.1]
[budget]
epsilon = 20.0
delta = 1e-5
[noise]
seed = 1
"""


def write(folder, text=PLAN, method="dsgt", **changes):
    text = text.replace("METHOD", method)
    for old, new in changes.items():
        text = text.replace(f"{old} = ", f"{old} = {new} # ")
    path = folder / "plan.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("method", ["sgd", "dsgd", "dsgt", "dinno", "consensus", "muffliato", "walk"])
def test_every_method_trains_from_a_file(method, tmp_path):
    path = write(tmp_path, method=method)
    result = train_file(path, read_toml(path))
    assert 0 <= result.metrics["accuracy"] <= 100
    assert result.history[-1]["step"] == 8


def test_logs_and_resume(tmp_path):
    path = write(tmp_path)
    whole = train_file(path, read_toml(path), checkpoint=tmp_path / "a.npz", logs=tmp_path / "logs")
    again = train_file(path, read_toml(path), checkpoint=tmp_path / "a.npz", resume=True)
    np.testing.assert_array_equal(whole.outputs["rows"], again.outputs["rows"])
    events = read_events(next((tmp_path / "logs").iterdir()))
    assert events[-1][0] == 8
    assert events[-1][1]["epsilon"] <= 20.0
    assert {"accuracy", "epsilon"} <= set(events[-1][1])


def test_price_before_anything_runs(tmp_path):
    path = write(tmp_path)
    price = price_file(path, read_toml(path))
    assert max(price["epsilon_by_agent"]) <= 20.0
    assert price["cost"]["messages"] == 8 * 10
    assert price["guarantees"][0]["adjacency"] == "add-remove"


def test_the_commands_plan_and_train_take_such_a_file(tmp_path, capsys):
    path = write(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["plan", str(path)])
    assert stop.value.code == 0
    assert "add-remove" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["train", str(path), "--logs", str(tmp_path / "logs"), "-o", str(tmp_path / "r.json"), "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] > 0
    assert (tmp_path / "r.json").is_file()


def test_search_says_what_it_spends(tmp_path, capsys):
    path = write(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["search", str(path), "--rates", "0.1,0.5", "--clips", "1", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 2
    assert found["epsilon_of_the_search"] > found["epsilon_of_one_run"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"lot": "5000"}, DataError, "fewer than the lot"),
        ({"name": '"nothing"'}, DataError, "no image set"),
        ({"accounting": '"magic"'}, ConfigError, "accounting"),
        ({"steps": "0"}, ConfigError, "steps"),
    ],
)
def test_bad_files_are_one_sentence(changes, error, words, tmp_path):
    path = write(tmp_path, **changes)
    with pytest.raises(error, match=words):
        train_file(path, read_toml(path))


def test_unknown_models_and_missing_sections(tmp_path):
    path = write(tmp_path, PLAN.replace('"mlp"', '"unknown"'))
    with pytest.raises(InvalidInput, match="model must be one of"):
        train_file(path, read_toml(path))
    path = write(tmp_path, PLAN.replace('[network]\ngraph = "ring:5"\n', ""))
    with pytest.raises(ConfigError, match="who talks to whom"):
        train_file(path, read_toml(path))
    path = write(tmp_path, PLAN.replace("[budget]\nepsilon = 20.0\ndelta = 1e-5\n", ""))
    with pytest.raises(ConfigError, match=r"\[budget\]"):
        train_file(path, read_toml(path))
