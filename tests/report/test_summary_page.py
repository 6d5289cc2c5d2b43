"""Page one: its numbers are the plan's, what is not charged is red, and standards are filled from it."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import sottovoce as sv
from sottovoce.accounting import wording
from sottovoce.errors import DataError
from sottovoce.report import figures
from sottovoce.report.inputs import read_input
from sottovoce.report.page import build, value_text
from sottovoce.report.standards import MEMBERS, nist, registry
from sottovoce.report.summary_page import of_audit, of_plan, of_result, of_statement

DELTA = 1e-5


def helper():
    spec = importlib.util.spec_from_file_location("made", Path(__file__).parent / "made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = helper()


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return made.everything(tmp_path_factory.mktemp("things"))


def plan(noise=2.0):
    return sv.PrivateAveraging("tree", network="star:5", noise_std=noise, radius=0.5)


def test_page_one_of_a_plan_is_the_plans_own_price():
    asked, front = plan(), of_plan(plan(), title="A mean", limit=3.0, names=list("abcde"))
    lost = {row["who"]: row for row in front["losses"]}
    worst = max(range(5), key=lambda u: asked.privacy("network", user=u).epsilon(DELTA))
    stated = asked.privacy("network", user=worst)
    assert lost["worst member"]["epsilon"] == stated.epsilon(DELTA) == asked.epsilon(DELTA)
    assert lost["worst member"]["guess"] == front["guess"] == wording.guess(asked.privacy().best_guess)
    assert lost["against everybody"]["epsilon"] == asked.epsilon(DELTA, "local")
    each = sorted(asked.privacy("network", user=u).epsilon(DELTA) for u in range(5))
    assert lost["typical member"]["epsilon"] == each[2]
    exact = sv.privacy.exact_loss(asked.protocol)
    for u in range(5):
        for v in range(5):
            value = front["matrix"]["values"][u][v]
            assert (value is None) if u == v else value == pytest.approx(exact[u, v], abs=1e-12)
    (budget,) = front["budgets"]
    assert budget["left"] == pytest.approx(3.0 - asked.epsilon(DELTA), abs=1e-8)


@pytest.mark.parametrize(
    ("options", "answer", "why"),
    [
        ({"limit": 3.0}, "yes", "within the budget of 3"),
        ({}, "yes", "no budget was set"),
        ({"limit": 0.1}, "no", "more than the budget of 0.1"),
        ({"limit": 3.0, "accepted": ["standardize"]}, "only in part", "not charged"),
    ],
)
def test_the_verdict(options, answer, why):
    first = of_plan(plan(), **options)["answers"][0]
    assert first["answer"] == answer
    assert why in first["why"]
    assert first["tone"] == ("good" if answer == "yes" else "bad")


def test_a_true_and_useless_guarantee_is_not_called_private():
    first = of_plan(plan(noise=0.05))["answers"][0]
    assert first["answer"] == "no"
    assert "all but certain" in first["why"]


def test_what_is_not_covered_follows_from_the_statement():
    lines = wording.not_covered("network", "add-remove", accepted=["standardize"], simulated=True,
                              assumptions=["observers are honest but curious and share"])  # fmt: skip
    assert len(lines) == 6
    assert lines[0].startswith("Read of private records and not charged: the mean and deviation")
    assert "protects nobody" in lines[1]
    assert "More than 2 members" in wording.not_covered("colluders", "user", count=2, has_ledger=True)[0]
    assert wording.not_covered("local", "user", has_ledger=True) == []


def test_best_guesses_in_words_are_never_below_the_truth():
    for best in (0.5001, 0.505, 0.5099, 0.553, 0.995, 0.99999):
        shown = float(re.search(r"([\d.]+) times", wording.guess(best))[1])
        assert shown >= 100 * best - 0.5
        assert 50 < shown <= 100


def test_statement_and_book_are_those_of_the_run(things, tmp_path):
    (record,) = made.record_of(things["statement"], tmp_path)
    front = record["summary_page"]
    kept = json.loads((Path(things["statement"][0]) / "statement.json").read_text())
    assert front["losses"][0]["epsilon"] == kept["guarantee"]["epsilon"]
    assert front["losses"][0]["epsilon"] == pytest.approx(sv.privacy.gaussian_epsilon(1.0, DELTA), rel=1e-6)
    assert front["marks"]["run"] == kept["run"]
    assert front["marks"]["head of the ledger"] == record["metrics"]["account"]["ledger_head"]
    (row,) = front["budgets"]
    assert row["spent"] == 0
    assert row["total"] == pytest.approx(row["adds"]) == pytest.approx(kept["guarantee"]["epsilon"], rel=1e-6)
    assert row["limit"] == 9.0
    assert not any("Other runs" in line for line in front["not_covered"])
    together = made.record_of(things["together"], tmp_path)
    assert together[1]["summary_page"]["members"] == together[0]["summary_page"]["members"]
    assert all(member["signed"] for member in together[0]["summary_page"]["members"])


def test_an_unsigned_or_changed_agreement_says_so(things, tmp_path):
    text = Path(things["agreement"][0]).read_text()
    (tmp_path / "changed.toml").write_text(text.replace("north and south", "south and north"))
    (record,) = made.record_of([tmp_path / "changed.toml"], tmp_path)
    assert record["summary_page"]["answers"][-1]["answer"] == "no"
    assert [member["signed"] for member in record["summary_page"]["members"]] == [False, False]


def test_statements_with_uncharged_reads_are_red():
    stated = {"view": "local", "adversary": "anyone who sees every message", "label": "ldp",
              "adjacency": "user", "epsilon": 1.0, "delta": DELTA, "assumptions": []}  # fmt: skip
    kept = {"run": "ab", "member": "north", "finished": True, "rounds": 3, "of": 3, "algorithm": "averaging",
            "protocol": "tree", "budget": {"epsilon": 2.0, "delta": DELTA}, "guarantee": stated}  # fmt: skip
    assert of_statement(kept)["answers"][0]["answer"] == "yes"
    front = of_statement(kept | {"accepted": ["tuning"]})
    assert front["answers"][0]["answer"] == "only in part"
    assert "settings that were chosen on the private records" in front["not_covered"][0]
    assert of_statement(kept | {"noise": "simulated: not protective"})["answers"][0]["answer"] == "no"
    assert of_statement(kept | {"finished": False})["answers"][1]["tone"] == "bad"


def test_an_audit_tells_our_guarantees_from_the_printed_formula():
    one = {"label": "exact", "mu_claimed": 1.0, "mu_lower": 0.9, "refuted": False}
    found = {"audits": {"a": one, "b": one | {"label": "published", "refuted": True}}, "runs": 9,
             "confidence": 0.999}  # fmt: skip
    assert [a["answer"] for a in of_audit(found)["answers"]] == ["yes", "no"]
    found["audits"]["a"] = one | {"refuted": True}
    assert of_audit(found)["answers"][0]["answer"] == "no"


def test_records_without_a_guarantee_have_no_page_one():
    assert of_result(sv.Result("x", metrics={"error": 0.5}).to_dict()) is None
    assert 'class="summary_page"' not in build([sv.Result("x", metrics={"error": 0.5}).to_dict()])


def test_the_registry_entry_has_the_registrys_fields_and_our_numbers(things, tmp_path):
    target = tmp_path / "entry.json"
    page = tmp_path / "page.html"
    assert made.command("report", *things["training"], "-o", page, "--registry", target, "--nist",
                        tmp_path / "nist.json") == 0  # fmt: skip
    entry = json.loads(target.read_text())["deployment"]
    assert set(entry) == {
        "name", "data_curator", "intended_use", "data_product_type", "data_product_region",
        "data_product_description", "publication_date", "additional_information_urls", "dp_flavor",
        "privacy_loss", "model", "additional_dp_information", "implementation",
    }  # fmt: skip
    (record,) = made.record_of(things["training"], tmp_path)
    loss = record["summary_page"]["losses"][0]
    assert entry["privacy_loss"]["privacy_parameters"]["epsilon"] == loss["epsilon"] <= 3.0
    assert "mean and deviation" in entry["implementation"]["pre_processing_eda_hyperparameter_tuning"]
    assert entry["intended_use"] == MEMBERS
    answers = {row["topic"]: row["answer"] for row in json.loads((tmp_path / "nist.json").read_text())}
    assert f"{loss['epsilon']:.3f}" in answers["Privacy parameters"]
    assert "mean and deviation" in answers["Data collection"]
    assert answers["Unit of privacy"] == "The whole data set of one member is replaced."
    with pytest.raises(DataError, match="states no guarantee"):
        registry(read_input(things["attack"][0]))
    assert len(nist(record)) == 12


def test_mu_of_the_registry_is_that_of_the_charged_adversary():
    one = plan()
    stated = [g.to_dict(delta=DELTA) for g in one.guarantees()]
    record = {"name": "plan", "config": dict(one.describe()), "metrics": {}, "provenance": {},
              "guarantees": stated, "summary_page": of_plan(one)}  # fmt: skip
    parameters = registry(record)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters["mu"] == one.privacy("network").mu
    assert sv.privacy.gaussian_epsilon(parameters["mu"], DELTA) == pytest.approx(parameters["epsilon"])


def test_files_without_what_their_page_needs_are_refused_with_a_sentence(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"run": 1, "member": 2, "guarantee": {}, "budget": {}}')
    with pytest.raises(DataError, match="lacks what its page shows"):
        read_input(file)
    with pytest.raises(DataError, match="holds neither"):
        read_input(tmp_path)
    file.write_text('{"what": 1}')
    with pytest.raises(DataError, match="has no name"):
        read_input(file)


def test_text_of_records_is_escaped_on_page_one(things, tmp_path):
    (record,) = made.record_of(things["training"], tmp_path)
    page = build([record])
    assert "<of four>" not in page
    assert "&lt;of four&gt;" in page


def test_one_number_format():
    front = {"losses": [{"epsilon": 1.0, "delta": 1e-5, "guess": "x"}], "n": 3, "far": "inf", "no": None}
    shown = [value_text(front, path) for path in ("losses.0.epsilon", "losses.0.delta", "n", "far", "no")]
    assert shown == ["1.000", "1e-05", "3", "∞", "–"]


def luminance(color):
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("band", ["#f5f7f9", "#1b2129"])
def test_lines_of_charts_stand_out_from_the_page(band):
    for color in figures.CYCLE:
        light, dark = sorted((luminance(color), luminance(band)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, color
