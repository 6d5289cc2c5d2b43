"""`sottovoce sweep`: records, resumption, sentences."""

import json

import pytest

from sottovoce.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *arguments])
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
    code, said = run(capsys, *words)
    first = json.loads(said.out)
    assert code == 0
    assert first["trials"] == 4 == len(list(tmp_path.glob("*.json")))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert json.loads(run(capsys, *words)[1].out) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == times


def test_an_experiment_gets_derived_seeds(tmp_path, capsys):
    code, _ = run(capsys, "attack-geometric", "--quick", "--repeats", "2", "-o", str(tmp_path), "--json")
    assert code == 0
    records = [json.loads(path.read_text())["value"]["config"]["seed"] for path in tmp_path.glob("*.json")]
    assert len(set(records)) == 2


def test_bad_words_are_refused_with_a_sentence(tmp_path, capsys):
    for words in (
        ["guess"],
        ["audit", "--set", "graph"],
        ["audit", "--backend", "slurm"],
        ["audit", "--jobs", "0"],
    ):
        code, said = run(capsys, *words, "-o", str(tmp_path))
        assert code == 1
        assert said.err.count("\n") == 1
