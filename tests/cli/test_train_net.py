"""Plan files about networks: the same path as for linear models; trained, priced, searched, refused."""

import json

import numpy as np
import pytest

from sottovoce.advice.assessment import assess
from sottovoce.cli.train import read_training, run_training
from sottovoce.planfile.read import plan_from_settings, read_plan_file

from .plans import NET

METHODS = ("dp-dsgd", "dp-dsgt", "dp-dinno", "consensus-sgd", "muffliato-sgd", "random-walk-sgd")


def write(folder, text=NET, algorithm="dp-dsgt", **changes):
    text = text.replace('"dp-dsgt"', f'"{algorithm}"')
    for old, new in changes.items():
        assert f"{old} = " in text
        text = text.replace(f"{old} = ", f"{old} = {new} # ")
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def train_file(path, **options):
    return run_training(read_training(path), **options)


@pytest.mark.parametrize("algorithm", METHODS)
def test_every_method_trains_from_a_file(algorithm, tmp_path):
    result = train_file(write(tmp_path, algorithm=algorithm))
    assert 0 <= result.metrics["accuracy"] <= 100
    assert result.history[-1]["step"] == 8


def test_one_holder_of_all_records_needs_no_network(tmp_path):
    text = NET.replace('[network]\ngraph = "ring:5"\n', "").replace('view = "local"\n', "")
    result = train_file(write(tmp_path, text, algorithm="dp-sgd"))
    assert result.outputs["rows"].shape[0] == 1
    assert result.config["sizes"] == (1437,)


def test_logs_and_resume(tmp_path):
    path = write(tmp_path)
    whole = train_file(path, checkpoint=tmp_path / "kept", logs=tmp_path / "logs")
    again = train_file(path, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(whole.outputs["rows"], again.outputs["rows"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert {"accuracy", "epsilon"} <= set(log.Tags()["scalars"])
    spent = [event.value for event in log.Scalars("epsilon")]
    assert log.Scalars("epsilon")[-1].step == 8
    assert spent == sorted(spent)
    assert spent[0] < 10 < spent[-1] <= 20.0


def test_price_before_anything_runs(tmp_path):
    path = write(tmp_path)
    priced = assess(plan_from_settings(read_plan_file(path), tmp_path, "plan.toml"))
    assert priced["feasible"] is True
    assert 19.9 < priced["guarantees"][0]["epsilon"] <= 20.0
    assert priced["cost"]["messages"] == 8 * 10
    assert priced["guarantees"][0]["adjacency"] == "add-remove"


def test_the_commands_plan_and_train_take_such_a_file(call, tmp_path):
    write(tmp_path)
    answer = call("plan", "plan.toml")
    assert answer.code == 0, answer
    assert "add-remove" in answer.out
    answer = call("train", "plan.toml", "--logs", "logs", "-o", "model", "--json")
    assert answer.json["metrics"]["accuracy"] > 0
    assert (tmp_path / "model" / "record.json").is_file()
    with np.load(tmp_path / "model" / "arrays.npz") as kept:  # the weights are kept
        assert kept["output.rows"].shape == (5, 64 * 8 + 8 + 8 * 10 + 10)
    assert "accuracy" in json.loads((tmp_path / "model" / "record.json").read_text())["metrics"]


def test_search_says_what_it_spends(call, tmp_path):
    write(tmp_path)
    found = call("search", "plan.toml", "--rates", "0.1,0.5", "--clip-norms", "1", "--json").json
    assert found["runs"] == 2
    assert found["epsilon_of_one_run"] <= 20.0 < found["epsilon_of_the_search"] < 40.0
    assert found["best"]["accuracy"] == max(row["accuracy"] for row in found["tried"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": "5000"}, "batch_size"),
        ({"skew": "2.0"}, "[data] skew"),
        ({"accounting": '"magic"'}, "accounting must be"),
        ({"steps": "0"}, "steps"),
        ({"hidden": "8, width = 1 }"}, "plan.toml: [model]: mlp cannot be built from these options: "),
    ],
)
def test_bad_files_are_one_sentence(refused, changes, words, tmp_path):
    write(tmp_path, **changes)
    assert words in refused("train", "plan.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"mlp"', '"unknown"', "[model]: model must be one of"),
        ('name = "digits"', 'name = "nothing"', "no data set 'nothing'"),
        ('[network]\ngraph = "ring:5"\n', "", "who talks to whom"),
        ('[budget]\nepsilon = 20.0\ndelta = 1e-5\nview = "local"\n', "", "Neither [noise] nor [budget]"),
        ("skew = 0.5", "unit_rows = true", "[data] unit_rows is for tables"),
        ("clip_norm = 1.0", "device = 'cpu'", "has no option 'device'"),
    ],
)
def test_unknown_models_and_missing_sections(refused, tmp_path, old, new, words):
    assert old in NET
    (tmp_path / "plan.toml").write_text(NET.replace(old, new))
    assert words in refused("train", "plan.toml")


def test_images_need_a_network(refused, tmp_path):
    text = NET.replace('[model]\nname = "mlp"\noptions = { inputs = 64, hidden = 8 }\n', "")
    (tmp_path / "plan.toml").write_text(text.replace("skew = 0.5", "side = 4"))
    assert "a [model] section" in refused("train", "plan.toml")
