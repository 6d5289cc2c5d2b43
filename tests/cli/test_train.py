"""`sottovoce train` and `reproduce`: priced first, refused in a sentence, resumed to the same bytes."""

import json

import pytest

from sottovoce.cli.main import main

DATA = '[data]\nname = "breast_cancer"\nstandardise = true\nunit_rows = true\ntest_share = 0.2\n'
NET = '[network]\ngraph = "hypercube:3"\n'
PLANS = {
    "dp-sgd": "steps = 20\nlot = 50\nlearning_rate = 2.0\n",
    "dp-cd": "steps = 60\nsmoothness = 0.01\n",
    "dp-gcd": "steps = 5\nsmoothness = 0.01\n",
    "admm": "steps = 10\ngamma = 2.0\n",
    "admm-federated": "steps = 10\ngamma = 2.0\nsample_rate = 0.5\n",
    "admm-token": "steps = 40\ngamma = 2.0\n",
    "muffliato-sgd": "steps = 5\nlearning_rate = 1.0\n",
    "consensus-sgd": "steps = 5\nlearning_rate = 1.0\n",
    "decor": "steps = 5\nlearning_rate = 1.0\npair_multiplier = 2.0\n",
    "mafalda-sgd": "steps = 5\nlearning_rate = 1.0\n",
    "random-walk-sgd": "steps = 50\nlearning_rate = 0.1\n",
}
PROTOCOL = {"consensus-sgd": 'name = "tree"\n', "decor": 'name = "gossip"\nrounds = 1\n'}
PROTOCOL["mafalda-sgd"] = PROTOCOL["decor"]


def call(capsys, *words):
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code or 0
    else:
        code = 0
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def plan_text(algorithm, extra="[noise]\nmultiplier = 2.0\nseed = 1\n"):
    protocol = f"[protocol]\n{PROTOCOL[algorithm]}" if algorithm in PROTOCOL else ""
    net = NET if algorithm == "decor" or (algorithm.endswith("-sgd") and algorithm != "dp-sgd") else ""
    return f'{DATA}{net}{protocol}[train]\nalgorithm = "{algorithm}"\n{PLANS[algorithm]}{extra}'


@pytest.mark.parametrize("algorithm", PLANS)
def test_every_algorithm_is_planned_and_trained(tmp_path, capsys, algorithm):
    file, out = tmp_path / "plan.toml", tmp_path / "out.json"
    file.write_text(plan_text(algorithm))
    code, text, _ = call(capsys, "plan", file, "--json")
    assert code == 0
    priced = json.loads(text)
    assert priced["guarantees"]
    assert "messages" in priced["cost"]
    code, text, _ = call(capsys, "train", file, "--json", "--out", out)
    assert code == 0
    record = json.loads(text)
    assert record["config"]["algorithm"] == algorithm
    assert 0 <= record["metrics"]["test_accuracy"] <= 1
    assert "simulation" in record["provenance"]["noise"]
    assert json.loads(out.read_text())["outputs"]["coef"] == record["outputs"]["coef"]
    for found in (*priced["guarantees"], *record["guarantees"]):  # what was read without being charged
        assert any("standardised" in line for line in found["assumptions"])
        assert any("held-out" in line for line in found["assumptions"])


def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, capsys, monkeypatch):
    file = tmp_path / "plan.toml"
    file.write_text(plan_text("consensus-sgd"))
    _, text, _ = call(capsys, "train", file, "--json")
    whole = json.loads(text)["outputs"]["coef"]
    import sottovoce.algorithms.decentralized as module

    saved = module.save_checkpoint

    def die(path, identity, step, state):
        saved(path, identity, step, state)
        if step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_checkpoint", die)
    code, _, _ = call(capsys, "train", file, "--json", "--checkpoint", tmp_path / "c.npz")
    assert code == 130
    monkeypatch.setattr(module, "save_checkpoint", saved)
    _, text, _ = call(capsys, "train", file, "--json", "--checkpoint", tmp_path / "c.npz")
    assert json.loads(text)["outputs"]["coef"] == whole


def test_budget_is_met_or_refused_before_anything_runs(tmp_path, capsys):
    file, out = tmp_path / "plan.toml", tmp_path / "out.json"
    budget = '[budget]\nepsilon = 4.0\ndelta = 1e-5\nview = "network"\n[noise]\nseed = 1\n'
    file.write_text(plan_text("consensus-sgd", budget))
    code, text, _ = call(capsys, "train", file, "--json")
    record = json.loads(text)
    assert code == 0
    worst = next(g for g in record["guarantees"] if g["adversary"]["kind"] == "network")
    assert 3.9 < worst["epsilon"] <= 4.0
    file.write_text(
        plan_text("consensus-sgd", "[noise]\nmultiplier = 1.0\n[budget]\nepsilon = 0.1\ndelta = 1e-5\n")
    )
    code, text, _ = call(capsys, "train", file, "--json", "--out", out)
    assert code == 1
    assert "more than the budget" in json.loads(text)["error"]
    assert not out.exists()
    view = '[budget]\nepsilon = 4.0\ndelta = 1e-5\nview = "pairwise"\nobserver = 0\nuser = 7\n'
    gossip = plan_text("muffliato-sgd", view).replace(
        "[train]", '[protocol]\nname = "gossip"\nrounds = 2\n[train]'
    )
    file.write_text(gossip)
    code, text, _ = call(capsys, "train", file, "--json")
    assert code == 1
    assert "conditional" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.replace('"dp-sgd"', '"sgd"'), "algorithm must be one of"),
        (lambda t: t.replace("lot = 50", "cap = 3"), "cap is not a setting of dp-sgd"),
        (lambda t: t.replace("lot = 50\n", ""), "lot is missing"),
        (lambda t: t.replace("lot = 50", "lott = 50"), "lott is not known"),
        (lambda t: t.replace('name = "breast_cancer"', 'name = "nothing"'), "no data set 'nothing'"),
        (
            lambda t: t.replace("[noise]\nmultiplier = 2.0\nseed = 1\n", ""),
            "Neither \\[noise\\] nor \\[budget\\]",
        ),
        (lambda t: t.replace("steps = 20", "steps = 0"), "steps"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(tmp_path, capsys, change, sentence):
    file = tmp_path / "plan.toml"
    file.write_text(change(plan_text("dp-sgd")))
    code, text, _ = call(capsys, "train", file, "--json")
    assert code == 1
    import re

    assert re.search(sentence, json.loads(text)["error"])


def test_reproduce_lists_runs_and_draws(tmp_path, capsys):
    code, text, _ = call(capsys, "reproduce", "list", "--json")
    assert code == 0
    assert "admm-lasso" in json.loads(text)["experiments"]
    out, plot = tmp_path / "r.json", tmp_path / "r.svg"
    code, text, _ = call(capsys, "reproduce", "topologies", "--quick", "--json", "--out", out, "--plot", plot)
    assert code == 0
    assert json.loads(text)["metrics"]["hypercube"]["n"] == 32
    assert plot.read_text().startswith("<?xml")
    code, text, _ = call(capsys, "reproduce", "nothing", "--json")
    assert code == 1
    code, text, _ = call(capsys, "reproduce", "topologies", "--quick")
    assert "understated_pairs" in text
