"""The model comes home: a model from a plan file, loaded in another process, used on new records."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv

from .plans import NET, trained

PLAN = """version = 1
[data]
file = "mine.csv"
label = "state"
group = "town"
drop = ["id"]
classes = ["well", "so-so", "ill"]
bounds = { age = [20, 80], dose = [0, 10] }
categories = { sex = ["f", "m"] }
intercept = true
[network]
graph = "complete:3"
names = ["Rome", "Bern", "Oslo"]
[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 60
clip_norm = 1.0
learning_rate = 4.0
[budget]
epsilon = 3.0
delta = 1e-5
[noise]
seed = 1
"""
MODEL = """[model]
module = "mynet:build"
options = { inputs = 4 }
"""
MYNET = """from torch import nn

class Net(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.body, self.head = nn.Linear(inputs, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())

def build(inputs):
    import torch
    torch.manual_seed(0)
    return Net(inputs)
"""


def tables(folder, first="mine.csv", rows=1500, new=200, label="state", of=None):
    """Write records; the label follows from age and dose, by default in three classes, beside an id."""
    rng = np.random.default_rng(0)
    for name, n in ((first, rows), ("new.csv", new)):
        age, dose = rng.uniform(20, 80, n), rng.uniform(0, 10, n)
        sex, town = rng.choice(["f", "m"], n), rng.choice(["Bern", "Oslo", "Rome"], n)
        how = age / 60 + dose / 10
        state = np.where(how > 1.6, "ill", np.where(how < 1.1, "well", "so-so")) if of is None else of(how)
        columns = enumerate(zip(age, dose, sex, town, state, strict=True))
        lines = [f"r{i},{a:.1f},{d:.2f},{s},{t},{y}" for i, (a, d, s, t, y) in columns]
        table, left_out = [f"id,age,dose,sex,town,{label}", *lines], 0 if of is None else 1  # the id
        (folder / name).write_text("\n".join(line.split(",", left_out)[-1] for line in table))


def with_model(section=MODEL):
    """Return the plan of a neural network."""
    return PLAN.replace("intercept = true\n", "").replace("[network]", section + "[network]")


def column(file, name="state"):
    with open(file, newline="") as lines:
        return np.array([row[name] for row in csv.DictReader(lines)])


def in_another_process(folder, new, module=None):
    """The README's three lines, with nothing of this process."""
    loaded = f"sv.load_model({str(folder)!r}, module={module!r}).predict({str(new)!r})"
    words = [sys.executable, "-c", f"import json, sottovoce as sv\nprint(json.dumps({loaded}.tolist()))"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder.parent)
    return json.loads(ran.stdout)


def test_linear_model_from_a_file_to_predictions(call, tmp_path):
    tables(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    result = call("train", "plan.toml", "--out", "model", "--json").json
    assert result["saved_model"] == "model"
    files = {file.name for file in (tmp_path / "model").iterdir()}
    assert files == {
        "README.md", "arrays.npz", "model.json", "plan.toml", "record.json", "saved_model.json",
        "guarantee.txt",
    }  # fmt: skip
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["feature_names"] == ["age", "dose", "sex=f", "sex=m"]
    assert model["classes"] == ["well", "so-so", "ill"]
    assert np.shape(model["coef"]) == (3, 4)
    assert len(model["intercept"]) == 3
    answer = call("predict", "model", "new.csv", "--out", "predictions.csv", "--json").json
    truth = column(tmp_path / "new.csv")
    assert (np.array(answer["predictions"]) == truth).mean() > 0.85
    assert (column(tmp_path / "predictions.csv") == answer["predictions"]).all()
    assert answer["privacy"]["epsilon"] <= 3.0
    assert in_another_process(tmp_path / "model", tmp_path / "new.csv") == answer["predictions"]
    assert "new.csv" in (tmp_path / "model" / "README.md").read_text()
    assert "simulation and protects nobody" in (tmp_path / "model" / "guarantee.txt").read_text()


def test_scores_are_those_of_training_whatever_the_preparation(call, tmp_path):
    """A named set, standardized and of unit length: the model prepares raw records as the run did."""
    text = trained("consensus-sgd").replace("test_share", "intercept = true\ntest_share")
    (tmp_path / "plan.toml").write_text(text)
    result = call("train", "plan.toml", "--out", "model", "--json").json
    raw = sv.data.load("breast_cancer").split(0.2, np.random.default_rng(0))
    np.savez(tmp_path / "new.npz", X=raw.X_test)
    predictions = np.array(call("predict", "model", "new.npz", "--json").json["predictions"])
    assert (predictions == raw.y_test).mean() == pytest.approx(result["metrics"]["accuracy"])


@pytest.mark.parametrize("own", [False, True])
def test_network_by_name_or_from_a_module(call, refused, tmp_path, own):
    tables(tmp_path, rows=900)
    (tmp_path / "mynet.py").write_text(MYNET)
    model = MODEL if own else '[model]\nname = "mlp"\noptions = { hidden = 8 }\n'
    (tmp_path / "plan.toml").write_text(with_model(model))
    assert call("train", "plan.toml", "--out", "model", "--json").code == 0
    argument = ("--module", "mynet:build") if own else ()
    answer = call("predict", "model", "new.csv", "--json", *argument).json
    assert (np.array(answer["predictions"]) == column(tmp_path / "new.csv")).mean() > 0.6
    if own:
        again = in_another_process(tmp_path / "model", tmp_path / "new.csv", "mynet:build")
        assert again == answer["predictions"]
        assert "holds the weights of a Net and no code" in refused("predict", "model", "new.csv")


def test_protective_run_saves_its_model(call, refused, tmp_path):
    tables(tmp_path, rows=300)
    text = PLAN.replace("[noise]\nseed = 1\n", "").replace("steps = 60", "steps = 3")
    (tmp_path / "plan.toml").write_text(text)
    first = call("train", "plan.toml", "--json").json
    second = call("train", "plan.toml", "--json", "--out", "record.json").json
    assert (first["saved_model"], second["saved_model"]) == ("plan-model", "plan-model-2")
    assert "simulation" not in (tmp_path / "plan-model" / "guarantee.txt").read_text()
    for model in ("plan-model", "plan-model-2"):
        assert call("predict", model, "new.csv", "--json").json["records"] == 200
    (tmp_path / "taken").write_text("")
    assert "a model is saved as a folder" in refused("train", "plan.toml", "--out", "taken")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('drop = ["id"]\n', "", "column 'id' holds words"),
        ('drop = ["id"]', 'drop = ["ident"]', "the table has no column 'ident'"),
        ('"mynet:build"', '"othernet:build"', "There is no file"),
        ('"mynet:build"', '"mynet:make"', "has no function 'make'"),
        ('"mynet:build"', '"mynet"', 'a module is named "file:function"'),
        ("inputs = 4", "width = 4", "mynet:build failed with TypeError"),
        ("inputs = 4", "inputs = 5", "layer 'body' (Linear) cannot use an input of shape (1, 4)"),
        ("options", 'sha256 = "00"\noptions', "has the SHA-256"),
        ("options", 'weights = "new.csv"\noptions', "is not a safetensors file"),
        ("options", 'weights = "none.safetensors"\noptions', "cannot be read"),
        ("options", 'name = "mlp"\noptions', "[model] needs either name"),
        ("options", 'loss = "hinge"\noptions', "loss must be one of"),
        ('"so-so", "ill"]', '"so-so", "ill", "dead"]', "there are 4 classes, but the network gives 3 scores"),
        ('"Oslo"]', '"Oslo", "Turin"]', "distinct names"),
        ("complete:3", "complete:4", "3 sites"),
    ],
)
def test_wrong_modules_and_columns_are_one_sentence(refused, tmp_path, old, new, words):
    tables(tmp_path, rows=60)
    (tmp_path / "mynet.py").write_text(MYNET)
    text = with_model()
    assert old in text
    if "complete" in old:
        text = text.replace('names = ["Rome", "Bern", "Oslo"]\n', "")
    (tmp_path / "plan.toml").write_text(text.replace(old, new))
    assert words in refused("train", "plan.toml")


def test_new_records_that_do_not_fit_are_one_sentence(call, refused, tmp_path):
    tables(tmp_path, rows=60)
    (tmp_path / "plan.toml").write_text(PLAN.replace("steps = 60", "steps = 2"))
    call("train", "plan.toml", "--out", "model", "--json")
    (tmp_path / "short.csv").write_text("age,sex\n50,f\n")
    (tmp_path / "words.csv").write_text("age,dose,sex\nold,1,f\n")
    assert "There is no file none.csv" in refused("predict", "model", "none.csv")
    assert "the table has no column 'dose'" in refused("predict", "model", "short.csv")
    assert "expected numbers" in refused("predict", "model", "words.csv")
    assert "There is no saved model or result" in refused("predict", "nothing", "new.csv")


def test_fixed_features_are_saved_with_the_model(call, tmp_path, monkeypatch):
    from sottovoce_papers import image_features

    few = image_features.Whitened(image_features.OrientedFeatures(4), "strokes", drawings=200)
    monkeypatch.setattr(image_features, "handwriting", lambda: few)
    text = NET.replace("skew = 0.5", 'skew = 0.5\nfeatures = "handwriting"')
    text = text.replace('name = "mlp"\noptions = { inputs = 64, hidden = 8 }', 'name = "linear"')
    (tmp_path / "plan.toml").write_text(text.replace("[0.5, 0.1]", "8.0"))
    result = call("train", "plan.toml", "--out", "model", "--json").json
    digits = sv.data.images.load_images("digits")
    assert result["config"]["objective"]["n_params"] == (few(digits.x[:1, 0] / 255).shape[1] + 1) * 10
    np.savez(tmp_path / "new.npz", X=digits.x_test)
    predictions = np.array(call("predict", "model", "new.npz", "--json").json["predictions"])
    assert (predictions == digits.y_test).mean() > 0.5


def test_a_frozen_encoder_keeps_the_weights_it_was_given(call, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    tables(tmp_path, rows=120)
    frozen = MYNET.replace(
        "return Net(inputs)", "net = Net(inputs)\n    net.body.requires_grad_(False)\n    return net"
    )
    (tmp_path / "mynet.py").write_text(frozen)
    space = {}
    exec(frozen, space)
    start = {name: value + 1 for name, value in space["build"](4).state_dict().items()}
    save_file(start, tmp_path / "start.safetensors")
    text = with_model(MODEL + 'weights = "start.safetensors"\n').replace("steps = 60", "steps = 3")
    (tmp_path / "plan.toml").write_text(text)
    assert call("train", "plan.toml", "--out", "model", "--json").code == 0
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(weights["body.weight"], start["body.weight"])
    assert not torch.equal(weights["head.weight"], start["head.weight"])
    assert (weights["head.weight"] - start["head.weight"]).abs().max() < 20  # near its start


OWN_NETWORK = """import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
"""


def test_commands_of_the_page_on_own_networks(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # no home of this machine's

    page = (Path(__file__).parents[2] / "docs" / "own-networks.md").read_text()
    section = page.split("## The same by commands")[1].split("\n## ")[0]
    plan, commands = re.findall(r"```(?:toml)?\n(.*?)```", section, re.S)
    (tmp_path / "plan.toml").write_text(plan)
    (tmp_path / "mynet.py").write_text(OWN_NETWORK)
    tables(tmp_path, "clinic.csv", 2500, 300, "ill", lambda how: np.where(how > 1.5, "yes", "no"))
    lines = [shlex.split(line, comments=True) for line in commands.strip().splitlines()]
    assert len(lines) == 5
    for words in lines:
        if words[0] == "sottovoce":
            answer = call(*words[1:])
            assert answer.code == 0, answer.err
        else:
            assert words[:2] == ["python", "-c"]
            exec(words[2], {})
    predictions, truth = (column(tmp_path / name, "ill") for name in ("predictions.csv", "new.csv"))
    assert (predictions == truth).mean() > 0.85
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert "epsilon = 1.99" in (tmp_path / "model" / "guarantee.txt").read_text()
