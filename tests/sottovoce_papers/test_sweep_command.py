"""`sottovoce sweep`: results, resumption, refusals."""

import csv
import json

import numpy as np
import pytest
from tests.cli.plans import BUDGETED_AVERAGE

from sottovoce.ledger.lifetime import VARIABLE, LifetimeBudget
from sottovoce.peers.member_directory import MemberDirectory


def test_a_sweep_leaves_one_record_per_trial_and_repeats_none(call, tmp_path):
    words = "sweep audit --set graph=path:3,ring:5 --set runs=200 --repeats 2 --json -o trials".split()
    first = call(*words)
    assert first.code == 0
    paths = list(tmp_path.glob("trials/*.json"))
    assert first.json["trials"] == 4 == len(paths)
    times = {path: path.stat().st_mtime_ns for path in paths}
    assert call(*words).json == first.json
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*.json")} == times


@pytest.mark.parametrize("name", ["attack-geometric", "admm-lasso"])
def test_repeats_differ_by_their_seed_alone(call, tmp_path, name):
    assert call("sweep", name, "--quick", "--repeats", 2, "-o", "trials", "--json").code == 0
    records = [json.loads(path.read_text()) for path in tmp_path.glob("trials/*.json")]
    configs = [record["value"]["config"] for record in records]
    assert {c["seed"] for c in configs} == {record["seed"] % 2**31 for record in records}
    assert len({json.dumps(record["value"]["metrics"]) for record in records}) == 2


@pytest.mark.parametrize("name", ["table1", "consensus-mnist"])
def test_a_reproduction_in_trials_is_the_one_of_one_process(call, tmp_path, name):
    words = ("reproduce", name, "--quick", "--json")
    alone = call(*words)
    assert alone.code == 0
    first = call(*words, "--records", "trials").json
    assert all(first[key] == alone.json[key] for key in ("metrics", "history", "config"))
    paths = sorted(tmp_path.glob("trials/*.json"))
    assert len(paths) >= 3
    assert json.loads(paths[0].read_text())["seed"] is None  # the trials bring their own
    paths[0].unlink()  # as if the run had been interrupted before this trial ended
    before = {path: path.stat().st_mtime_ns for path in paths[1:]}
    again = call(*words, "--records", "trials", "--jobs", 2).json
    assert all(again[key] == alone.json[key] for key in ("metrics", "history"))
    assert sorted(tmp_path.glob("trials/*.json")) == paths
    assert {path: path.stat().st_mtime_ns for path in paths[1:]} == before


def test_options_of_an_experiment_are_set_by_name(call):
    words = ("reproduce", "table1", "--quick", "--json", "--set", "method=dsgt", "--set", "epsilon=10")
    assert [row["method"] for row in call(*words).json["history"]] == ["dsgt"]


ONE_PIECE = "attack-geometric is one piece, not independent trials"
AVERAGE = BUDGETED_AVERAGE.format(graph="ring:4", protocol="masked", epsilon=9.0).replace(
    "radius = 0.5", "radius = 0.5\ncenter = 0.5\nvalues = [0.1, 0.4, 0.3, 0.9]"
)
TRAINING = """version = 1
[network]
graph = "ring:4"
[data]
file = "t.csv"
test_file = "t.csv"
label = "y"
bounds = { x = [0, 6] }
intercept = true
[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 5
clip_norm = 1.0
[budget]
epsilon = 3.0
delta = 1e-4
"""


@pytest.fixture
def plans(tmp_path):
    (tmp_path / "average.toml").write_text(AVERAGE)
    (tmp_path / "train.toml").write_text(TRAINING)
    rows = [f"{k % 7},{int(k % 7 > 3)}" for k in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]))
    return tmp_path


def test_a_plan_file_is_swept_resumed_and_written_as_a_table(call, plans):
    words = ("sweep", "average.toml", "--epsilon", "2,50", "--network", "ring:4,complete:4", "--repeats", 6)
    first = call(*words, "--out", "table.csv", "--json")
    assert first.code == 0, first.err
    assert first.json["simulated"]
    assert (len(first.json["rows"]), len(first.json["means"])) == (24, 4)
    rows = first.json["rows"]
    little, much = (np.mean([row["rmse"] for row in rows if row["epsilon"] == eps]) for eps in (2, 50))
    assert much < little / 3
    assert all(row["spent"] <= row["epsilon"] for row in first.json["rows"])
    table = list(csv.DictReader((plans / "table.csv").read_text().splitlines()))
    assert [float(row["rmse"]) for row in table] == [row["rmse"] for row in first.json["rows"]]
    paths = sorted(plans.glob("table/*.json"))
    paths[3].unlink()  # as if the sweep had been interrupted
    times = {path: path.stat().st_mtime_ns for path in paths if path != paths[3]}
    again = call(*words, "--out", "table.csv", "--json", "--jobs", 2)
    assert again.json == first.json
    assert {path: path.stat().st_mtime_ns for path in times} == times
    (plans / "average.toml").write_text(AVERAGE.replace("0.9]", "0.8]"))  # another file, other trials
    assert call(*words, "--out", "table.csv", "--json").json != first.json


def test_a_training_plan_is_swept_over_any_setting_and_charges_nothing(call, plans, monkeypatch):
    limit = LifetimeBudget(1e-3, 1e-5, "add-remove", "local")
    home = MemberDirectory.create(plans / "home", "m", population="p", budgets=[limit], copy=plans / "copy")
    monkeypatch.setenv(VARIABLE, str(home.folder))
    before = home.lifetime_ledger.summary()
    settings = ("--set", "train.steps=1,20", "--set", "train.learning_rate=2")
    answer = call("sweep", "train.toml", "--epsilon", 3, *settings)
    assert answer.code == 0, answer.err
    assert "simulations, whose noise is reproducible" in " ".join(answer.out.split())
    assert "accuracy" in answer.out
    assert len(list(plans.glob("train-sweep/*.json"))) == 2
    assert home.lifetime_ledger.summary() == before


def test_all_problems_of_a_plans_sweep_come_before_anything_runs(refused, plans):
    networks = ("--network", "ring:4,ring:5,mesh:4")
    message = refused("sweep", "average.toml", *networks, "--set", "average.radius=0.5,-1")
    assert message.startswith("the sweep has")
    for words in ("one row per node (5)", "mesh", "radius"):
        assert words in message
    (plans / "average.toml").write_text(AVERAGE + "[noise]\nnoise_multiplier = 2.0\n")
    assert "an epsilon changes nothing" in refused("sweep", "average.toml", "--epsilon", "1,2")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("sweep audit", "needs --out FOLDER"),
        ("sweep audit --epsilon 1 -o out", "--epsilon and --network: for plan files"),
        ("sweep nothing.toml", "There is no plan file"),
        ("sweep nothing.toml -o out.json", "must end in .csv"),
        ("sweep attack-ego414 --quick --repeats 2 -o out", "takes no seed"),
        ("sweep guess -o out", "guess"),
        ("sweep audit --set graph -o out", "--set"),
        ("sweep audit --backend slurm -o out", "backend"),
        ("sweep audit --jobs 0 -o out", "jobs"),
        ("reproduce convex-audits --quick --jobs 0", "jobs"),
        ("reproduce convex-audits --quick --backend slurm", "backend"),
        ("reproduce attack-geometric --quick --jobs 2", ONE_PIECE),
        ("reproduce attack-geometric --quick --backend loky", ONE_PIECE),
        ("reproduce attack-geometric --quick --records trials", ONE_PIECE),
        ("reproduce table1 --quick --set color=red", "table1 has no option --color; it has --method, --e"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(refused, words, sentence):
    assert sentence in refused(*words.split())
