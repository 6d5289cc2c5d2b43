"""The sixteen clinics of the demonstration: what they hold, reveal, learn, and which claims hold."""

import json

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.demo import clinics as parts
from sottovoce.report import page
from sottovoce.report.result_files import read_result
from sottovoce.runners import Result


@pytest.fixture(scope="module")
def clinics():
    return parts.consortium()


def test_consortium_matches_its_description(clinics):
    assert clinics.network.n == len(set(parts.NAMES)) == 16
    assert clinics.shards.sizes.tolist() == [parts.PATIENTS] * 16
    assert len(clinics.y_test) == 114
    np.testing.assert_allclose(clinics.shares() * parts.PATIENTS, parts.MALIGNANT)
    assert np.linalg.norm(clinics.shards.X, axis=1).max() <= 1 + 1e-12
    # neighbors are of different kinds
    large = np.array(parts.MALIGNANT) > 10
    assert all(large[u] != large[v] for u, v in clinics.network.edges)


def test_reconstruction_recovers_what_the_view_determines(clinics):
    recovered = parts.reconstruction(clinics).metrics["recovered"]
    distance = clinics.network.distances_from(0)
    assert {row["clinic"] for row in recovered} == {
        parts.NAMES[u] for u in range(16) if distance[u] in (1, 3, 4)
    }
    assert max(abs(row["true share"] - row["as computed by Acquarosa"]) for row in recovered) < 1e-10


def test_promises_for_one_patient_and_for_a_clinic(clinics):
    patient, _, clinic = parts.promises(sv.protocols.HypercubeExchange(16), 0)
    assert patient["epsilon"] == pytest.approx(1.0)
    assert patient["adjacency"] == "replace-one"
    assert clinic["adjacency"] == "user"
    assert clinic["mu"] == pytest.approx(parts.PATIENTS * patient["mu"])


def test_averages_cost_what_the_views_imply(clinics):
    methods = {m["method"]: m for m in parts.averages(clinics, runs=4000).metrics["methods"]}
    mu, epsilon = sv.privacy.gaussian_mu(1.0, 1e-5), sv.privacy.gaussian_epsilon
    assert methods["tree"]["error"] == pytest.approx(parts.noise_for_patients() / 4, rel=0.05)
    assert methods["masked sum"]["error"] == pytest.approx(methods["tree"]["error"], rel=1e-6)
    assert methods["masked sum"]["epsilon_worst"] == pytest.approx(epsilon(mu / 15**0.5, 1e-5))
    assert methods["trusted curator"]["epsilon_worst"] == pytest.approx(epsilon(mu / 4, 1e-5))
    for m in methods.values():
        assert m["epsilon_typical"] <= m["epsilon_worst"] <= 1.0 + 1e-9


def test_training_stays_within_its_budget(clinics):
    result = parts.training(clinics, steps=5, repeats=1)
    epsilons = [row["epsilon"] for row in result.metrics["methods"] if row["epsilon"] is not None]
    assert len(epsilons) == 4
    assert all(0.999 < epsilon <= 1.0 for epsilon in epsilons)
    labels = {(g["what"], g["adversary"]["kind"]): g["label"] for g in result.guarantees}
    assert labels["another tree every step", "network"] == labels["masked sum", "network"] == "exact"
    assert labels["gossip", "local"] == "ldp"


def test_audit_refutes_only_the_published_formula(clinics):
    audits = parts.audit(clinics, runs=6000).metrics["audits"]
    broken = {name: a["label"] for name, a in audits.items() if a["refuted"]}
    assert list(broken.values()) == ["published"]


def test_demo_prints_and_writes_the_tour(call, tmp_path):
    answer = call("demo", "--quick")
    assert answer.code == 0, answer.err
    assert answer.err == ""
    for word in ("Acquarosa", "Torrelieve", "9 of 15", "exact", "ldp", "one record", "1e-05"):
        assert word in answer.out
    assert "No guarantee was refuted" in " ".join(answer.out.split())
    assert "\x1b[" not in answer.out  # readable when piped
    assert max(map(len, answer.out.splitlines())) <= 120
    folder = tmp_path / "sottovoce-demo"
    assert sorted(p.stem for p in (folder / "results").iterdir()) == sorted(parts.parts())
    page_text = (folder / "report.html").read_text()
    assert page_text.count("<figure>") == 2
    assert "Simulation." in page_text
    # what it says to try next is there, and of use
    assert "sottovoce plan sottovoce-demo/plan.toml" in answer.out
    plan = call("plan", "sottovoce-demo/plan.toml")
    assert plan.code == 0, plan.err
    assert "Private: yes; useful: yes" in " ".join(plan.out.split())
    # the report can be made again from the results alone
    again = call("report", *sorted((folder / "results").iterdir()), "-o", "again.html", "--json")
    assert again.json["inputs"] == 5
    assert read_result(folder / "results" / "audit.json")["metrics"]["runs"] == 8000


def test_demo_as_json(call, monkeypatch, tmp_path):
    for part in ("averages", "training", "audit"):
        monkeypatch.setattr(parts, part, lambda *a, name=part, **k: Result(name, metrics={"done": True}))
    monkeypatch.setattr(page, "build", lambda *a: "<!doctype html>")
    answer = call("demo", "--quick", "--json", "--out", "tour")
    assert answer.code == 0
    output = json.loads(answer.out)
    assert len(output["reconstruction"]["recovered"]) == 9
    assert output["audit"] == {"done": True}
    assert output["report"] == "tour/report.html"
    assert (tmp_path / "tour" / "report.html").read_text() == "<!doctype html>"
