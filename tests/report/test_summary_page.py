"""Summary pages: their numbers are the plan's, uncharged reads are red, standards are filled from them."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.conftest import Consortium

import sottovoce as sv
from sottovoce._format import fixed, number
from sottovoce.accounting import wording
from sottovoce.errors import ConfigError, DataError
from sottovoce.report.explorer.model import open_plan
from sottovoce.report.inputs import read_input
from sottovoce.report.page import build
from sottovoce.report.rendering import value_text
from sottovoce.report.sections import section_of
from sottovoce.report.standards import nist, registry
from sottovoce.report.summary_page import of_audit, of_plan, of_reconstruction, of_result, of_statement

from .conftest import PLAN, results_of

DELTA = 1e-5


def plan(noise=2.0):
    return sv.PrivateAveraging("tree", network="star:5", noise_std=noise, radius=0.5)


def test_page_of_a_plan_shows_its_privacy_cost():
    averaging, page = plan(), of_plan(plan(), title="A mean", limit=3.0, names=list("abcde"))
    losses = {row["who"]: row for row in page["losses"]}
    worst = max(range(5), key=lambda u: averaging.privacy("network", user=u).epsilon(DELTA))
    stated = averaging.privacy("network", user=worst)
    assert losses["worst member"]["epsilon"] == stated.epsilon(DELTA) == averaging.epsilon(DELTA)
    assert losses["worst member"]["guess"] == page["guess"] == wording.guess(averaging.privacy().best_guess)
    assert losses["against everybody"]["epsilon"] == averaging.epsilon(DELTA, "local")
    each = sorted(averaging.privacy("network", user=u).epsilon(DELTA) for u in range(5))
    assert losses["typical member"]["epsilon"] == each[2]
    exact = sv.privacy.exact_loss(averaging.protocol)
    for u in range(5):
        for v in range(5):
            value = page["matrix"]["values"][u][v]
            assert (value is None) if u == v else value == pytest.approx(exact[u, v], abs=1e-12)
    (budget,) = page["budgets"]
    assert budget["left"] == pytest.approx(3.0 - averaging.epsilon(DELTA), abs=1e-8)


CLINICS = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 4.0, "batch_size": 50, "steps": 5}
UNLIKE = [  # plans whose members lose unlike amounts, beside the protocol alone
    sv.algorithms.ConsensusSGD(
        sv.objectives.GLM(), protocol="masked", network="complete:6", sizes=(100, *[5000] * 5), **CLINICS
    ),
    sv.algorithms.ConsensusSGD(
        sv.objectives.GLM(), protocol="masked", network="complete:6", weighting="sites",
        sizes=(100, 500, 5000, 5000, 5000, 200), **CLINICS
    ),
    sv.PrivateAveraging("tree", network="path:6", noise_std=1.0, radius=0.5, noise_allocation="optimal"),
    sv.PrivateAveraging("walk:12", network="ring:5", noise_std=1.0, radius=0.5),
]  # fmt: skip


@pytest.mark.parametrize("unlike", UNLIKE, ids=lambda plan: plan.name)
def test_a_page_quotes_the_guarantee_of_the_member_that_loses_most(unlike):
    page, stated = of_plan(unlike), unlike.privacy()
    worst = page["losses"][0]
    assert (worst["who"], worst["epsilon"]) == ("worst member", stated.epsilon(DELTA))
    assert f"epsilon {number(stated.epsilon(DELTA), 'epsilon')}" in page["answers"][0]["why"]
    each = [unlike.privacy(user=u).epsilon(DELTA) for u in range(unlike.n)]
    if worst["name"] != "any":
        assert each[int(worst["name"].split()[-1])] == max(each) == pytest.approx(worst["epsilon"], rel=1e-9)
    filled = {"name": "plan", "config": dict(unlike.describe()), "summary_page": page}
    parameters = registry(filled)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters["epsilon"] == stated.epsilon(DELTA)
    assert fixed(stated.epsilon(DELTA), "epsilon") in nist(filled)[0]["answer"]


def test_a_matrix_knows_the_noise_of_every_member():
    uneven = UNLIKE[2]
    values = of_plan(uneven)["matrix"]["values"]
    for u, v in itertools.permutations(range(6), 2):
        pair, local = uneven.privacy("pairwise", observer=v, user=u), uneven.privacy("local", user=u)
        assert values[u][v] == pytest.approx((pair.mu / local.mu) ** 2, rel=1e-9)
    assert values[0][2] == pytest.approx(10 / 11)
    sites = of_plan(replace(UNLIKE[1], batch_size=None))["matrix"]["values"]
    assert sites[0][1] > 0.7
    assert sites[2][1] < 0.001
    assert (
        of_plan(UNLIKE[3])["matrix"] is None
    )  # rows enter more than once: a share of one is no share of all


@pytest.mark.parametrize(
    ("noise", "options", "answer", "why"),
    [
        (2.0, {"limit": 3.0}, "yes", "within the budget of 3"),
        (2.0, {}, "yes", "no budget was set"),
        (2.0, {"limit": 0.1}, "no", "more than the budget of 0.1"),
        (2.0, {"limit": 3.0, "accepted": ["standardize"]}, "only in part", "leaves out"),
        (0.05, {}, "no", "all but certain"),
    ],
)
def test_verdict(noise, options, answer, why):
    first = of_plan(plan(noise), **options)["answers"][0]
    assert first["answer"] == answer
    assert why in first["why"]
    assert first["tone"] == ("good" if answer == "yes" else "bad")


MASKED = sv.PrivateAveraging("masked", network="complete:5", noise_std=2.0, radius=0.5)
CURATOR = sv.algorithms.DPGCD(
    sv.objectives.GLM("logistic", dim=3), records=500, steps=5, clip_norm=1.0, noise_ratio=40.0
)


@pytest.mark.parametrize(
    ("averaging", "view", "covered", "missing"),
    [
        (MASKED, {"view": "outsider"}, ["The members themselves: they see more"], "on their way"),
        (MASKED, {"view": "central"}, ["The members themselves, and whoever reads messages"], "urator"),
        (
            MASKED,
            {"view": "network"},
            ["Members who pool what they see: ", "Members who leave out their noise"],
            "or read what",
        ),
        (plan(), {"view": "network"}, ["Members who pool what they see, or read what others send"], "named"),
        (plan(), {"view": "network", "observer": 1}, ["Members other than the observers named"], "urator"),
        (plan(), {"view": "local"}, [], "embers"),
        (plan(), {"view": "outsider"}, [], "embers"),  # it is the local guarantee, which covers all others
        (CURATOR, {"view": "central"}, ["The curator who holds the records"], "embers"),
    ],
)
def test_what_is_not_covered_follows_from_plan_and_view(averaging, view, covered, missing):
    lines = of_plan(averaging, adversary=view)["not_covered"]
    for start in covered:
        assert any(line.startswith(start) for line in lines)
    assert not any(missing in line for line in lines)


def test_statement_and_lifetime_ledger_are_those_of_the_run(inputs, tmp_path):
    (result,) = results_of(inputs["statement"])
    page = result["summary_page"]
    statement = json.loads((Path(inputs["statement"][0]) / "statement.json").read_text())
    assert page["losses"][0]["epsilon"] == statement["guarantee"]["epsilon"]
    assert page["losses"][0]["epsilon"] == pytest.approx(sv.privacy.gaussian_epsilon(1.0, DELTA), rel=1e-6)
    assert page["marks"]["run"] == statement["run_id"]
    assert page["marks"]["head of the ledger"] == result["metrics"]["account"]["ledger_head"]
    (row,) = page["budgets"]
    assert row["spent"] == 0
    charged = pytest.approx(statement["guarantee"]["epsilon"], rel=1e-6)
    assert row["adds"] == charged
    assert row["total"] == charged
    assert row["limit"] == 9.0
    assert not any("Other runs" in line for line in page["not_covered"])
    together = results_of(inputs["together"])
    assert together[1]["summary_page"]["members"] == together[0]["summary_page"]["members"]
    assert all(member["signed"] for member in together[0]["summary_page"]["members"])


def test_an_unsigned_or_changed_agreement_says_so(inputs, tmp_path):
    text = Path(inputs["agreement"][0]).read_text()
    (tmp_path / "changed.toml").write_text(text.replace("north and south", "south and north"))
    (result,) = results_of([tmp_path / "changed.toml"])
    assert result["summary_page"]["answers"][-1]["answer"] == "no"
    assert [member["signed"] for member in result["summary_page"]["members"]] == [False, False]


def test_an_agreement_that_may_leave_out_exchanges_states_the_local_guarantee_only(tmp_path):
    file = Consortium(tmp_path, 2, "path:2").file
    (known,) = results_of([file])
    assert known["summary_page"]["matrix"] is not None
    assert {row["adversary"]["kind"] for row in known["guarantees"]} == {"local", "network"}
    text = file.read_text().replace("[budget]", '[timing]\nlate = "drop"\ndeadline = 30.0\n\n[budget]', 1)
    file.write_text(text)
    (drops,) = results_of([file])
    assert drops["summary_page"]["matrix"] is None
    assert {row["adversary"]["kind"] for row in drops["guarantees"]} == {"local"}
    assert {row["label"] for row in drops["summary_page"]["losses"]} == {"ldp"}
    with pytest.raises(ConfigError, match="may leave out exchanges"):
        open_plan(file)


def test_statements_with_uncharged_reads_are_red():
    stated = {"view": "local", "adversary": "all others with their keys and noise", "label": "ldp"}
    stated |= {"adjacency": "user", "epsilon": 1.0, "delta": DELTA, "best_guess": 0.6, "assumptions": []}
    statement = {
        "run_id": "ab",
        "member": "north",
        "finished": True,
        "rounds": 3,
        "of": 3,
        "protocol": "tree",
    }
    statement |= {"algorithm": "averaging", "budget": {"epsilon": 2.0, "delta": DELTA}, "guarantee": stated}
    assert of_statement(statement)["answers"][0]["answer"] == "yes"
    page = of_statement(statement | {"accepted": ["tuning"]})
    assert page["answers"][0]["answer"] == "only in part"
    assert "settings that were chosen on the private records" in page["not_covered"][0]
    assert of_statement(statement | {"noise": "simulated: not protective"})["answers"][0]["answer"] == "no"
    assert of_statement(statement | {"finished": False})["answers"][1]["tone"] == "bad"


@pytest.mark.parametrize(
    ("budget", "words"),
    [("", "The plan spends"), ("8.0", "Meets its budget. The plan"), ("0.5", "Exceeds its budget. The plan")],
)
def test_a_plan_is_judged_against_a_budget_that_it_has(budget, words, tmp_path):
    text = PLAN.split("[budget]")[0] + "[noise]\nnoise_std = 2.0\n"
    text += f"[budget]\nepsilon = {budget}\ndelta = 1e-5\n" if budget else ""
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    assert section_of(read_input(tmp_path / "plan.toml")).lead.startswith(words)


def test_a_plan_with_a_seed_is_a_simulation_that_protects_nobody(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN + "[noise]\nseed = 1\n", encoding="utf-8")
    result = read_input(file)
    assert (result["metrics"]["private"], result["metrics"]["feasible"]) == (False, True)
    private = result["summary_page"]["answers"][0]
    assert private["answer"] == "no"
    assert result["metrics"]["verdict"].endswith(private["why"].partition(", but")[2])
    assert private["why"].endswith("but the noise is drawn from a seed: a simulation protects nobody.")
    assert any("protects nobody" in line for line in result["summary_page"]["not_covered"])
    assert "simulation" in nist(result)[7]["answer"]
    assert nist(result)[7]["topic"] == "Implementation"
    file.write_text(PLAN.replace("epsilon = 8.0", "epsilon = 0.1") + "[noise]\nnoise_std = 1.0\nseed = 1\n")
    assert "more than the budget of 0.1, but the noise" in read_input(file)["metrics"]["verdict"]


def test_the_guarantees_of_a_plan_have_the_names_of_its_file(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN + 'view = "colluders"\ncolluders = [1, 3]\n', encoding="utf-8")
    result = read_input(tmp_path / "plan.toml")
    assert result["config"]["labels"][:2] == ["Aachen", "Bonn"]
    annex = build([result]).split("What it reveals")[-1]
    assert "Bonn and Düren" in annex


def test_a_reconstruction_without_noise_is_not_private():
    facts = {"graph": "path:3", "n": 3, "protocol": "gossip", "rounds": 2, "attackers": [0]}
    (answer,) = of_reconstruction(facts | {"reconstructed": [1, 2], "names": ["1", "2"]})["answers"]
    assert answer["answer"] == "no"
    assert answer["why"] == "Node 0 computes the value of 2 of 2 others after 2 rounds of gossip."


def test_an_audit_tells_our_guarantees_from_the_printed_formula():
    audit_of_view = {"label": "exact", "mu_claimed": 1.0, "mu_lower": 0.9, "refuted": False}
    refuted = audit_of_view | {"label": "published", "refuted": True}
    audit = {"audits": {"a": audit_of_view, "b": refuted}, "runs": 9, "confidence": 0.999}
    assert [a["answer"] for a in of_audit(audit)["answers"]] == ["yes", "no"]
    audit["audits"]["a"] = audit_of_view | {"refuted": True}
    assert of_audit(audit)["answers"][0]["answer"] == "no"


def test_results_without_a_guarantee_have_no_page():
    assert of_result(sv.Result("x", metrics={"error": 0.5}).to_dict()) is None
    assert 'class="summary_page"' not in build([sv.Result("x", metrics={"error": 0.5}).to_dict()])


def test_files_without_what_their_page_needs_are_refused_with_a_sentence(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"run_id": 1, "member": 2, "guarantee": {}, "budget": {}}')
    with pytest.raises(DataError, match="lacks what its page shows"):
        read_input(file)
    with pytest.raises(DataError, match="holds neither"):
        read_input(tmp_path)
    file.write_text('{"what": 1}')
    with pytest.raises(DataError, match="has no name"):
        read_input(file)


def test_one_number_format():
    page = {"losses": [{"epsilon": 1.0, "delta": 1e-5, "guess": "x"}], "n": 3, "far": "inf", "no": None}
    shown = [value_text(page, path) for path in ("losses.0.epsilon", "losses.0.delta", "n", "far", "no")]
    assert shown == ["1.000", "1e-05", "3", "∞", "–"]
