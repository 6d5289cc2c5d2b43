"""`sottovoce sweep`: results, resumption, refusals."""

import json

import pytest


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
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
        (
            "reproduce table1 --quick --set color=red",
            "table1 has no option --color; it has --method, --epsilon",
        ),
    ],
)
def test_bad_options_are_refused_in_one_sentence(refused, words, sentence):
    assert sentence in refused(*words.split())
