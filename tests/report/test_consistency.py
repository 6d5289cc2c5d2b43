"""One quantity has one value on terminal, JSON, statement and page, for every template and saved model.

Whatever is printed is the exact number rounded to its safe side: texts of different lengths agree, because
rounding up twice is rounding up once to the coarser of both.
"""

import html
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import sottovoce as sv
from sottovoce._format import fixed, number, percent, significant
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.cli.init import write_template
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.identity import CERTIFICATE, make_identity
from sottovoce.planfile.read import load_file
from sottovoce.report.inputs import plan_result, read_inputs
from sottovoce.report.notebook import html as notebook_html
from sottovoce.report.page import build
from sottovoce.report.standards import nist, registry
from sottovoce.report.summary_page import of_plan

from .conftest import TRAINING, command

DELTA = 1e-5
# a loss, not the limit it is "of"
EPSILON = re.compile(r"(?<!of )[Ee]psilon (?:= )?([\d.]+(?:e-?\d+)?) at delta (?:= )?([\d.]+(?:e-?\d+)?)")
GUESS = re.compile(r"right (at most [\d.]+ times in 100 instead of 50|50 times in 100, as by chance)")


class Shown(NamedTuple):
    """What surfaces print, and the guarantees that they are about; the first is the one that decides."""

    texts: dict
    guarantees: list
    delta: float = DELTA


def text_of(page):
    """Return the words of an HTML page."""
    return " ".join(
        html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(style|svg).*?</\1>", "", page))).split()
    )


def forms(value):
    """Return the texts that may stand for a bound."""
    return {number(value, "epsilon"), fixed(value, "epsilon"), significant(value, "epsilon", 6)}


def check(shown):
    """Check every epsilon with its delta, and every best guess, on every surface."""
    epsilons = set().union(*(forms(g.epsilon(shown.delta)) for g in shown.guarantees))
    guesses = {wording.guess(g.best_guess) for g in shown.guarantees}
    headline = forms(shown.guarantees[0].epsilon(shown.delta))
    for surface, text in shown.texts.items():
        losses = EPSILON.findall(text)
        assert losses, surface
        assert {delta for _, delta in losses} == {number(shown.delta, "delta")}, surface
        assert {epsilon for epsilon, _ in losses} <= epsilons, surface
        assert losses[0][0] in headline, surface
        assert set(GUESS.findall(text)) <= guesses, surface


def check_page(result, shown):
    """Check the numbers of a page that stand in tables: they are those of the guarantees."""
    page = result["summary_page"]
    exact = {g.epsilon(shown.delta) for g in shown.guarantees}
    decisive = shown.guarantees[0]
    assert page["losses"][0]["epsilon"] in exact
    assert page["guess"] == wording.guess(decisive.best_guess)
    for row in page["losses"]:
        assert row["epsilon"] in exact
        assert row["guess"] in {wording.guess(g.best_guess) for g in shown.guarantees}
    whole = build([result])
    annex = whole[whole.index("What is promised</h3>") :]
    cells = re.findall(
        r'<td class="num">([^<]*)</td><td class="num">[^<]*</td><td class="num">([^<]*)</td>', annex
    )
    stated = [Guarantee.from_dict(g) for g in result["guarantees"]]
    assert cells == [
        (fixed(g.epsilon(shown.delta), "epsilon"), percent(g.best_guess, "best guess", 1)) for g in stated
    ]
    (about,) = [row["answer"] for row in nist(result) if row["topic"] == "Privacy parameters"]
    listed = registry(result)["deployment"]["privacy_loss"]
    assert listed["privacy_parameters"]["epsilon"] == page["losses"][0]["epsilon"]
    assert wording.guess(decisive.best_guess) in about
    assert wording.guess(decisive.best_guess) in listed["privacy_parameters_description"]


def of_every_member(plan, privacy):
    """Return what a page of a plan may speak of: the deciding view, each user, the plan's own."""
    each = [] if privacy.adversary.kind in ("central", "local") else range(plan.n)
    users = [plan.privacy(privacy.adversary.kind, user=u) for u in each if plan.observation.exact_pairs]
    return [privacy, *plan.guarantees(), *users, *([] if plan.central else [plan.privacy("local")])]


def terminal(capsys, *words):
    code = command(*words)
    assert code == 0
    return " ".join(capsys.readouterr().out.split())


PLANS = ["average", "train", pytest.param("net", marks=pytest.mark.slow), "tumors"]


@pytest.mark.parametrize("template", PLANS)
def test_plan_files(template, tmp_path, monkeypatch, capsys):
    if template == "tumors":  # something is accepted by name
        (tmp_path / "plan.toml").write_text(TRAINING)
    else:
        write_template(template, tmp_path / "t")
        tmp_path /= "t"
    monkeypatch.chdir(tmp_path)
    loaded = load_file("plan.toml")
    printed = terminal(capsys, "plan", "plan.toml")
    assert command("plan", "plan.toml", "--json") == 0
    assessment = json.loads(capsys.readouterr().out)
    assert command("report", "plan.toml", "-o", "page.html") == 0
    result = plan_result(assessment, loaded)
    texts = {
        "terminal": printed,
        "JSON": assessment["verdict"],
        "statement": loaded.privacy.statement(loaded.delta),
        "page": text_of(Path("page.html").read_text()),
    }
    shown = Shown(texts, of_every_member(loaded.plan, loaded.privacy), loaded.delta)
    check(shown)
    check_page(result, shown)
    exact = loaded.privacy.epsilon(loaded.delta)
    assert exact in [row["epsilon"] for row in assessment["guarantees"]]
    assert exact == result["summary_page"]["losses"][0]["epsilon"]
    first = result["summary_page"]["answers"][0]
    assert first["answer"] == assessment["private_in_words"]
    assert f"Private: {first['answer']};" in printed
    assert assessment["private"] == (first["answer"] == "yes")
    for row in assessment["guarantees"]:
        assert number(row["epsilon"], "epsilon") in printed


@pytest.mark.parametrize("template", ["average", "train", pytest.param("net", marks=pytest.mark.slow)])
def test_runs_and_saved_models(template, tmp_path, monkeypatch, capsys):
    write_template(template, tmp_path / "t")
    monkeypatch.chdir(tmp_path / "t")
    loaded = load_file("plan.toml")
    command_, stored = ("average", "result.json") if template == "average" else ("train", "model")
    printed = terminal(capsys, command_, "plan.toml", "--out", stored)
    assert command("report", stored, "-o", "page.html") == 0
    (result,) = read_inputs([Path(stored)])
    texts = {"terminal": printed, "page": text_of(Path("page.html").read_text())}
    if template != "average":
        texts["statement"] = Path("model/guarantee.txt").read_text()
    shown = Shown(texts, of_every_member(loaded.plan, loaded.privacy), loaded.delta)
    check(shown)
    check_page(result, shown)
    page, budget = result["summary_page"], loaded.settings.budget
    assert page["losses"][0]["epsilon"] == loaded.privacy.epsilon(loaded.delta)
    assert page["budgets"][0]["limit"] == budget.epsilon
    assert "no budget was set" not in texts["page"]
    assert (template == "average") == ("holds no score" in texts["page"])


def test_a_fit_shows_its_budget_its_score_and_the_budgets_view(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    data = X, X @ [1.0, -1.0]
    fitted = sv.fit(
        "squared",
        data,
        network="complete:4",
        budget=sv.Budget(2.0, DELTA, view="local"),
        training=sv.TrainingOptions(steps=5),
        test=data,
        rng=rng,
    )
    fitted.save(tmp_path / "model")
    (result,) = read_inputs([tmp_path / "model"])
    shown = Shown(
        {"repr": repr(fitted), "page": text_of(build([result]))}, [fitted.privacy, *fitted.plan.guarantees()]
    )
    check(shown)
    check_page(result, shown)
    private, useful = result["summary_page"]["answers"]
    assert "against all others with their keys and noise" in private["why"]
    assert "the noise is drawn from a seed" in private["why"]
    assert number(fitted.metrics["rmse"]) in useful["why"]
    assert result["summary_page"]["budgets"][0]["limit"] == 2.0


def test_the_consortium_template(tmp_path, monkeypatch, capsys):
    write_template("consortium", tmp_path / "t")
    monkeypatch.chdir(tmp_path / "t")
    words = []
    for k, name in enumerate(("north", "south", "east")):
        make_identity(Path(name), name)
        words += ["-m", f"{name}/{CERTIFICATE}@127.0.0.1:{7000 + k}"]
    printed = terminal(capsys, "peer", "agree", "draft.toml", *words, "-o", "agreement.toml")
    assert command("peer", "agree", "agreement.toml", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["members"]
    (result,) = read_inputs([Path("agreement.toml")])
    run = AgreedRun(read_agreement("agreement.toml"))
    charged = [run.charged_guarantee(node) for node in range(run.n)]
    local = run.plan.privacy("local")
    shown = Shown({"page": text_of(build([result]))}, [*charged, local, run.plan.privacy()])
    check(shown)
    check_page(result, shown)
    for row, guarantee in zip(rows, charged, strict=True):
        assert row["epsilon_colluders"] == guarantee.epsilon(DELTA)
        assert row["epsilon_local"] == local.epsilon(DELTA)
        for view in ("local", "colluders", "network"):
            assert number(row[f"epsilon_{view}"], "epsilon") in printed.split()


def test_agreement_and_statement_of_a_run(inputs, capsys):
    agreement, state = inputs["together"]
    statement = json.loads((Path(state) / "statement.json").read_text())
    results = read_inputs([Path(agreement), Path(state)])
    text = text_of(build(results))
    stated = [statement[key] for key in ("guarantee", "ldp", "network") if statement[key]]
    guesses = {wording.guess(row["best_guess"]) for row in stated}
    assert set(GUESS.findall(text)) == guesses
    epsilons = set().union(*(forms(row["epsilon"]) for row in stated))
    assert {epsilon for epsilon, _ in EPSILON.findall(text)} <= epsilons
    annex = build(results[1:])
    annex = annex[annex.index('class="annex"') :]
    for row in results[1]["guarantees"]:
        assert percent(row["best_guess"], "best guess", 1) in annex
        assert fixed(row["epsilon"], "epsilon") in annex
    printed = terminal(capsys, "peer", "status", state)
    assert f"spent epsilon {number(statement['guarantee']['epsilon'], 'spent')} of 6" in printed
    answers = {row["topic"]: row["answer"] for row in nist(results[1])}
    assert answers["Trust model"].startswith("Nobody. The promise holds against")
    assert answers["Utility"] == "The run finished. Its accuracy was not measured."


@pytest.mark.parametrize("template", ["protocol", "algorithm"])
def test_code_templates(template, tmp_path, monkeypatch):
    write_template(template, tmp_path / "t")
    monkeypatch.syspath_prepend(str(tmp_path / "t"))
    if template == "protocol":
        from my_protocol import TwoStars

        plan = sv.PrivateAveraging.for_budget(TwoStars(8, rounds=60), radius=0.5, epsilon=12.0, delta=DELTA)
    else:
        from my_algorithm import SignDescent

        options = {"steps": 30, "clip_norm": 1.0, "learning_rate": 0.5, "sizes": [200] * 8}
        plan = SignDescent.for_budget(
            sv.objectives.GLM(dim=5), "masked", network="complete:8", **options, epsilon=2.0, delta=DELTA
        )
    privacy = plan.privacy()
    stored = [g.to_dict(delta=DELTA) for g in plan.guarantees()]
    result = sv.Result(plan.name, plan.describe(), guarantees=stored).to_dict()
    result["summary_page"] = of_plan(plan, delta=DELTA, limit=12.0)
    texts = {
        "statement": privacy.statement(DELTA),
        "page": text_of(build([result])),
        "notebook": text_of(notebook_html(privacy)),
    }
    shown = Shown(texts, of_every_member(plan, privacy))
    check(shown)
    check_page(result, shown)
