"""Comparing two records of what checkouts compute."""

import json
import sys

import pytest
from verification.compare_checkouts import compare, main
from verification.record import GROUPS, record, stable

COST = 1.2345678
RECORD = {
    "sampler/one": "00ff",
    "experiment/one/quick": [["loss", [0.5, 0.25]], ["steps", [3]]],
    "privacy/one": COST,
    "privacy/two": [["epsilon", [COST]], ["noise", [2.0]]],
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"sampler/one": "01ff"}, "sampler/one: '00ff' -> '01ff'"),
        ({"experiment/one/quick": [["loss", [0.5, 0.2500000000000001]], ["steps", [3]]]}, "loss[1]"),
        ({"experiment/one/quick": [["loss", [0.5, 0.25]]]}, "steps: missing in the new record"),
        ({"privacy/one": COST * (1 - 1e-12)}, "privacy/one: lower"),
        ({"privacy/one": COST * (1 + 1e-8)}, "privacy/one: "),
        ({"privacy/one": "refused"}, "-> 'refused'"),
        ({"privacy/two": [["epsilon", [COST * (1 - 1e-12)]], ["noise", [2.0]]]}, "epsilon[0]: lower"),
        ({"privacy/three": 1.0}, "privacy/three: missing in the old record"),
    ],
)
def test_difference_is_reported(changed, line):
    comparison = compare(RECORD, RECORD | changed)
    assert len(comparison.differences) == 1
    assert line in comparison.differences[0]


def test_missing_case_is_a_difference():
    assert compare(RECORD, {k: v for k, v in RECORD.items() if k != "sampler/one"}).differences == [
        "sampler/one: missing in the new record"
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"privacy/one": COST * (1 + 1e-12)},
        {"privacy/two": [["epsilon", [COST * (1 + 1e-12)]], ["noise", [2.0 * (1 - 1e-12)]]]},
    ],
)
def test_equal_runs_and_slightly_higher_costs_are_accepted(changed):
    comparison = compare(RECORD, RECORD | changed)
    assert comparison.differences == []
    assert comparison.equal == len(RECORD)


def test_case_without_data_is_not_compared():
    comparison = compare(RECORD, RECORD | {"sampler/one": "not recorded"})
    assert comparison.differences == []
    assert comparison.not_compared == ["sampler/one"]


def test_stored_records_are_compared_by_the_command(tmp_path, monkeypatch, capsys):
    for name, content in (("old", RECORD), ("new", RECORD | {"sampler/one": "01ff"})):
        (tmp_path / name).write_text(json.dumps(content))
    for files, code in ((("old", "old"), 0), (("old", "new"), 1)):
        monkeypatch.setattr(sys, "argv", ["compare", *(str(tmp_path / name) for name in files)])
        assert main() == code
    assert "3 cases agree, 1 differences" in capsys.readouterr().out


def test_a_choice_of_groups_compares_their_cases_and_never_nothing(tmp_path, monkeypatch, capsys):
    contents = {"old": RECORD, "some": {"sampler/one": RECORD["sampler/one"]}, "other": {"peers/one": 1}}
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    for new, code, equal in (("some", 0, 1), ("other", 1, 0)):
        words = ["compare", str(tmp_path / "old"), str(tmp_path / new), "--only", "sampler"]
        monkeypatch.setattr(sys, "argv", words)
        assert main() == code
        assert f"{equal} cases agree" in capsys.readouterr().out


def test_checkout_without_a_recorder_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path), str(tmp_path)])
    assert main() == 1
    assert "has no verification/record.py" in capsys.readouterr().out


def test_samplers_are_recorded_the_same_twice():
    first = record("sampler")
    assert len(first) > 150
    assert first == record("sampler")
    assert not compare(first, record("sampler")).differences


def test_results_become_sorted_labels_without_sentences():
    result = {"b": [{"clip_norm": 1.0}, {"clip_norm": 2.0}], "a": "word", "why": "two words", "seconds": 3.0}
    assert stable(result) == [["a", ["word"]], ["b.clip_norm", [1.0, 2.0]]]
    assert set(GROUPS) >= {"sampler", "contract", "experiment", "plans"}
