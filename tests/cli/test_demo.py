import json

from sottovoce.demo import clinics
from sottovoce.report import page
from sottovoce.report.result_files import read_result
from sottovoce.runners import Result


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
    assert sorted(p.stem for p in (folder / "results").iterdir()) == sorted(clinics.parts())
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
        monkeypatch.setattr(clinics, part, lambda *a, name=part, **k: Result(name, metrics={"done": True}))
    monkeypatch.setattr(page, "build", lambda *a: "<!doctype html>")
    answer = call("demo", "--quick", "--json", "--out", "tour")
    assert answer.code == 0
    output = json.loads(answer.out)
    assert len(output["reconstruction"]["recovered"]) == 9
    assert output["audit"] == {"done": True}
    assert output["report"] == "tour/report.html"
    assert (tmp_path / "tour" / "report.html").read_text() == "<!doctype html>"
