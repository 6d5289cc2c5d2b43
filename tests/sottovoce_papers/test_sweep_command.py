"""`sottovoce sweep`: records, resumption, sentences."""

import json

import pytest

from sottovoce.cli.main import main


def run(capsys, *arguments, command="sweep"):
    with pytest.raises(SystemExit) as ended:
        main([command, *arguments])
    return ended.value.code, capsys.readouterr()


def test_a_sweep_leaves_one_record_per_trial_and_repeats_none(tmp_path, capsys):
    words = [
        "audit",
        "--set",
        "graph=path:3,ring:5",
        "--set",
        "runs=200",
        "--repeats",
        "2",
        "-o",
        str(tmp_path),
        "--json",
    ]
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


def test_what_has_no_seed_is_not_repeated(tmp_path, capsys):
    code, output = run(capsys, "attack-ego414", "--quick", "--repeats", "2", "-o", str(tmp_path))
    assert code == 1
    assert "takes no seed" in output.err


@pytest.mark.parametrize("name", ["table1", "consensus-mnist"])
def test_a_reproduction_in_trials_is_the_one_of_one_process(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, name, "--quick", "--json", command="reproduce")
    alone = json.loads(output.out)
    words = [name, "--quick", "--json", "--records", "kept"]
    first = json.loads(run(capsys, *words, command="reproduce")[1].out)
    assert [first[key] for key in ("metrics", "history", "config")] == [
        alone[key] for key in ("metrics", "history", "config")
    ]
    paths = sorted(tmp_path.glob("kept/*.json"))
    assert len(paths) >= 3
    assert json.loads(paths[0].read_text())["seed"] is None  # the trials bring their own
    paths[0].unlink()  # as if the run had been interrupted before this trial ended
    before = {path: path.stat().st_mtime_ns for path in paths[1:]}
    again = json.loads(run(capsys, *words, "--jobs", "2", command="reproduce")[1].out)
    assert [again[key] for key in ("metrics", "history")] == [alone[key] for key in ("metrics", "history")]
    assert sorted(tmp_path.glob("kept/*.json")) == paths
    assert {path: path.stat().st_mtime_ns for path in paths[1:]} == before
    assert code == 0


@pytest.mark.parametrize("words", [["--jobs", "2"], ["--backend", "loky"], ["--records", "kept"]])
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


def test_bad_jobs_are_refused_by_reproduce_too(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["--jobs", "0"], ["--backend", "slurm"]):
        code, output = run(capsys, "convex-audits", "--quick", *words, command="reproduce")
        assert code == 1
        assert output.err.count("\n") == 1


def test_bad_words_are_refused_with_a_sentence(tmp_path, capsys):
    for words in (
        ["guess"],
        ["audit", "--set", "graph"],
        ["audit", "--backend", "slurm"],
        ["audit", "--jobs", "0"],
    ):
        code, output = run(capsys, *words, "-o", str(tmp_path))
        assert code == 1
        assert output.err.count("\n") == 1


def test_a_cell_of_a_table_is_named_by_options_and_shown_beside_the_paper(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = run(
        capsys, "table1", "--quick", "--method", "dsgt", "--epsilon", "10", "--fiedler", "0.39",
        command="reproduce",
    )  # fmt: skip
    assert code == 0
    assert "DP-DSGT" in output.out
    assert "paper" in output.out
    code, output = run(capsys, "admm-lasso", "--quick", "--method", "dsgt", command="reproduce")
    assert code == 1
    assert "admm-lasso has no option --method" in output.err
