"""`sottovoce reproduce`: a list of states, a table a person can read, a record, a figure, refusals."""

import importlib
import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce_papers.common import unpack

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_list_names_sources_and_states(call):
    items = call("reproduce", "list", "--json").json["items"]
    sources = {item["source"] for item in items}
    assert sources >= {"Bayrooti et al. 2023", "Cyffers et al. 2022", "Bellet 2023"}
    assert all(item["state"] and item["why"] for item in items)
    answer = call("reproduce", "list")
    assert answer.code == 0
    assert "tables and figures:" in answer.out


def test_a_name_gives_table_record_and_figure(call, tmp_path):
    answer = call("reproduce", "attack-geometric", "--quick")
    assert answer.code == 0
    assert "nodes reconstructed" in answer.out
    assert "too small to decide" in answer.out
    assert "held" not in answer.out
    record = json.loads((tmp_path / "attack-geometric-quick.json").read_text())
    assert record["provenance"]["command"] == "sottovoce reproduce attack-geometric --quick"
    assert len(record["provenance"]["commit"]) == 40
    assert (tmp_path / "attack-geometric-quick.svg").read_text().startswith("<?xml")
    again = call(
        "reproduce", "attack-geometric", "--from", "attack-geometric-quick.json", "--plot", "again.svg"
    )
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "attack-geometric-quick.svg").read_bytes()
    assert "nodes reconstructed" in again.out
    page = call("report", "attack-geometric-quick.json")
    assert page.code == 0
    text = (tmp_path / "report.html").read_text()
    assert "<svg" in text
    assert "In this result it" not in text
    stored = call("reproduce", "attack-geometric", "--from", RESULTS / "attack-geometric.json")
    assert "In this result it held." in stored.out
    # --check compares a run with a stored result
    own = tmp_path / "attack-geometric-quick.json"
    words = ("reproduce", "attack-geometric", "--quick", "--check", own)
    assert "the same numbers" in call(*words).out
    record["config"]["seed"] = 12345
    own.write_text(json.dumps(record))
    answer = call(*words)
    assert answer.code == 1
    assert "differs from" in answer.err


def test_nothing_prints_pixels(call):
    for form in ([], ["--json"]):
        out = call("reproduce", "attack-line-cifar10", "--quick", *form).out
        assert len(out) < 6000
        assert not re.search(r"[A-Za-z0-9+/]{60}", out)


def test_help_of_an_experiment_lists_its_options(call):
    text = call("reproduce", "muffliato-houses", "--help").out
    assert "--users" in text
    assert "2000,4000" in text
    options = call("reproduce", "table1", "--help", "--json").json["options"]
    assert options["settings"]["default"] == "tuned"
    assert "gallery" in call("reproduce", "--help").out


def test_lists_and_infinity_are_values(call):
    words = "attack-erdos-renyi --sizes 12 --probabilities=0.5 --graphs 2 --rounds 2 --json".split()
    rows = call("reproduce", *words).json["history"]
    assert {(row["n"], row["p"]) for row in rows} == {(12, 0.5)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tabel1", "did you mean 'table1'"),
        ("attack-ego414 --color red", "it has --rounds"),
        ("topologies --egos x", "expects whole numbers"),
        ("attack-ego414 --rounds", "expects a whole number"),
        ("table1 --method foo", "it has central"),
        ("topologies --quick --plot a.bmp", ".svg, .png or .pdf"),
        ("topologies quickly", "takes no word"),
        ("topologies --from none.json", "no file"),
        ("table1 --from x --trials 3", "leave the experiment's options out"),
        ("topologies --observers 0", "at least 1, got '0'"),
        ("geometric-distance --quick --n 9", "quick form has its own --n 60"),
        (f"topologies --from {RESULTS / 'admm-lasso.json'}", "a result of admm-lasso"),
    ],
)
def test_bad_words_are_refused_with_a_sentence(refused, words, sentence):
    assert sentence in refused("reproduce", *words.split())


def test_incomplete_results_are_refused_in_one_sentence(call, tmp_path):
    record = json.loads((RESULTS / "dpgcd-dorothea.json").read_text())
    del record["metrics"]["curve"]
    (tmp_path / "old.json").write_text(json.dumps(record))
    answer = call("reproduce", "dpgcd-dorothea", "--from", "old.json")
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert "to make it again with this version" in answer.err
    assert not list(tmp_path.glob("*.svg"))


def test_records_of_an_experiment_are_not_taken_for_a_folder(call):
    for option in (("--set", "records=100"), ("--records", "100")):
        answer = call("reproduce", "imbalanced", "--quick", *option, "--json")
        assert "quick form has its own --records" in answer.out + answer.err


def test_tables_fit_a_hundred_columns_and_break_no_word(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = {}
    for name in ("table1", "muffliato-utility", "convex-audits"):
        answer = call("reproduce", name, "--from", RESULTS / f"{name}.json", "--plot", "x.svg")
        shown[name] = answer.out.splitlines()
        assert max(map(len, shown[name])) <= 100
        assert "rows more" not in answer.out
    listing = call("reproduce", "list").out
    assert max(map(len, listing.splitlines())) <= 100
    assert "walk-vs-gossip-averaging" in listing  # a name to type is not broken
    cells = [line for line in shown["table1"] if "89.16 ± 0.82" in line]
    assert re.search(r"^ ?DP-DSGT +0.06 +1 +1 .* yes", cells[0])  # one line a cell


def test_small_numbers_keep_the_digits_that_count(call):
    path = RESULTS / "dpcd-curves.json"
    medians = [m["median"] for form in json.loads(path.read_text())["metrics"].values()
               if isinstance(form, dict) for m in form.values()]  # fmt: skip
    text = call("reproduce", "dpcd-curves", "--from", path, "--plot", "x.svg").out
    assert all(f"{median:.3g}" in text for median in medians)


def test_the_gallery_goes_source_by_source(call, tmp_path):
    for name in ("admm-lasso", "table3", "walk-amplification"):
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    names = call("reproduce", "gallery", "--from", tmp_path, "--json").json["records"]
    assert names == ["table3", "walk-amplification", "admm-lasso"]


def test_an_interruption_says_what_is_kept(call, monkeypatch, tmp_path):
    """One piece keeps nothing, trials are kept in a folder, and no advice is given that is refused."""
    reproduce = importlib.import_module("sottovoce_papers.reproduce")
    sweep = importlib.import_module("sottovoce_papers.sweep")

    def piece(quick=False):
        raise KeyboardInterrupt

    def trials(quick=False, *, spread=None, results: str | None = None):
        raise KeyboardInterrupt

    known = reproduce.find

    def find(name):
        return replace(known(name), run=trials if name == "table1" else piece, config=None)

    monkeypatch.setattr(reproduce, "find", find)
    monkeypatch.setattr(sweep, "find", find)
    commands = (["topologies"], ["table1"], ["table1", "--results", "here"], ["table1", "--jobs", "2"])
    answers = [call("reproduce", *words) for words in commands]
    assert {answer.code for answer in answers} == {130}
    one, alone, folder, sweep = (answer.err for answer in answers)
    assert "stopped; nothing was written." in one
    assert "nothing was kept; --records FOLDER" in alone
    assert all("finished trials are kept" in text for text in (folder, sweep))
    assert not list(tmp_path.glob("*.json"))


def test_a_table_is_read_from_its_trials(call, tmp_path):
    folder = tmp_path / "trials"
    unpack(RESULTS, folder)
    trials = sorted(folder.glob("dsgt_eps1_fiedler0.06_t1_trial*.json"))
    reached = [json.loads(path.read_text())["accuracy"] for path in trials]
    assert len(reached) >= 3
    ours = f"{statistics.mean(reached):.2f} ± {statistics.stdev(reached):.2f}"
    answer = call("reproduce", "table1", "--from", folder)
    assert answer.code == 0
    assert "89.16 ± 0.82" in answer.out  # the paper
    assert ours in answer.out  # tuned
    few = tmp_path / "few"
    few.mkdir()
    for path in trials:
        shutil.copy(path, few)
    answer = call("reproduce", "table1", "--from", few)
    assert ours in answer.out
    assert "not run" in answer.out  # every other cell
    assert call("report", trials[0]).code == 0  # a trial has a page
    page = (tmp_path / "report.html").read_text()
    assert f"{reached[0]:.2f}" in page
    assert "test accuracy" in page


def test_a_result_of_stored_trials_names_their_folder(call, tmp_path):
    folder = tmp_path / "trials"
    command = ("reproduce", "table1", "--quick", "--method", "dsgt", "--results", folder, "--json")
    first, again = call(*command).json["provenance"], call(*command).json["provenance"]
    assert "assembled_from" not in first
    assert again["assembled_from"] == "trials"
