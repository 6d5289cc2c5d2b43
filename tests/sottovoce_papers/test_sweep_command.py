"""`sottovoce sweep`: results, resumption, refusals."""

import json

import pytest

from sottovoce.cli.main import main


def run(capsys, *arguments, command="sweep"):
    with pytest.raises(SystemExit) as ended:
        main([command, *arguments])
    return ended.value.code, capsys.readouterr()


def test_a_sweep_leaves_one_record_per_trial_and_repeats_none(tmp_path, capsys):
    words = "audit --set graph=path:3,ring:5 --set runs=200 --repeats 2 --json".split()
    words += ["-o", str(tmp_path)]
    code, output = run(capsys, *words)
    first = json.loads(output.out)
    assert code == 0
    assert first["trials"] == 4 == len(list(tmp_path.glob("*.json")))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert json.loads(run(capsys, *words)[1].out) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == times


@pytest.mark.parametrize("name", ["attack-geometric", "admm-lasso"])
def test_repeats_differ_by_their_seed_alone(tmp_path, capsys, name):
    words = [name, "--quick", "--repeats", "2", "-o", str(tmp_path), "--json"]
    assert run(capsys, *words)[0] == 0
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    configs = [record["value"]["config"] for record in records]
    assert {c["seed"] for c in configs} == {record["seed"] % 2**31 for record in records}
    assert len({json.dumps(record["value"]["metrics"]) for record in records}) == 2


def test_experiments_without_a_seed_are_not_repeated(tmp_path, capsys):
    code, output = run(capsys, "attack-ego414", "--quick", "--repeats", "2", "-o", str(tmp_path))
    assert code == 1
    assert "takes no seed" in output.err


@pytest.mark.parametrize("name", ["table1", "consensus-mnist"])
def test_a_reproduction_in_trials_is_the_one_of_one_process(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, name, "--quick", "--json", command="reproduce")
    alone = json.loads(output.out)
    words = [name, "--quick", "--json", "--records", "trials"]
    first = json.loads(run(capsys, *words, command="reproduce")[1].out)
    assert all(first[key] == alone[key] for key in ("metrics", "history", "config"))
    paths = sorted(tmp_path.glob("trials/*.json"))
    assert len(paths) >= 3
    assert json.loads(paths[0].read_text())["seed"] is None  # the trials bring their own
    paths[0].unlink()  # as if the run had been interrupted before this trial ended
    before = {path: path.stat().st_mtime_ns for path in paths[1:]}
    again = json.loads(run(capsys, *words, "--jobs", "2", command="reproduce")[1].out)
    assert all(again[key] == alone[key] for key in ("metrics", "history"))
    assert sorted(tmp_path.glob("trials/*.json")) == paths
    assert {path: path.stat().st_mtime_ns for path in paths[1:]} == before
    assert code == 0


@pytest.mark.parametrize("words", [["--jobs", "2"], ["--backend", "loky"], ["--records", "trials"]])
def test_an_experiment_in_one_piece_says_so(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, "attack-geometric", "--quick", *words, command="reproduce")
    assert code == 1
    assert "attack-geometric is one piece, not independent trials" in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_options_of_an_experiment_are_set_by_name(capsys):
    words = ["table1", "--quick", "--json", "--set", "method=dsgt", "--set", "epsilon=10"]
    code, output = run(capsys, *words, command="reproduce")
    assert code == 0
    assert [row["method"] for row in json.loads(output.out)["history"]] == ["dsgt"]
    code, output = run(capsys, "table1", "--quick", "--set", "color=red", command="reproduce")
    assert code == 1
    assert "table1 has no option --color; it has --method, --epsilon, --fiedler" in output.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("reproduce", ["convex-audits", "--quick", "--jobs", "0"]),
        ("reproduce", ["convex-audits", "--quick", "--backend", "slurm"]),
        ("sweep", ["guess", "-o", "out"]),
        ("sweep", ["audit", "--set", "graph", "-o", "out"]),
        ("sweep", ["audit", "--backend", "slurm", "-o", "out"]),
        ("sweep", ["audit", "--jobs", "0", "-o", "out"]),
    ],
)
def test_bad_options_are_refused_in_one_sentence(tmp_path, capsys, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, *words, command=command)
    assert code == 1
    assert output.err.count("\n") == 1
