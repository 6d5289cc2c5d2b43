"""sottovoce columns: facts that a table needs, without its values; its draft is a plan file."""

import json

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.files import read_table
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.member_data import read_records
from sottovoce.planfile.read import load_file


def test_columns_are_listed_and_drafted_without_values(call, refused, tmp_path):
    (tmp_path / "t.csv").write_text("age,town,ill\n37,Oslo,no\n72,Rome,yes\n72,Rome,yes\n")
    answer = call("columns", "t.csv", "--label", "ill", "--json")
    assert [column["kind"] for column in answer.json["columns"]] == ["number", "names", "names"]
    assert not any(value in answer.out for value in ("37", "72", "Oslo", "yes"))
    assert "age" in call("columns", "t.csv", "--label", "ill", "--out", "t.toml").out
    assert 'label = "ill"' in (tmp_path / "t.toml").read_text()
    assert "is there already" in refused("columns", "t.csv", "--out", "t.toml")
    assert "no column 'sick'" in refused("columns", "t.csv", "--label", "sick")


def clinic(rows, seed):
    """Return a table with a date, a boolean, many codes, gaps and a column of free text."""
    rng = np.random.default_rng(seed)
    days = np.datetime64("2020-01-01") + rng.integers(0, 1000, rows)
    age, smoker, code = rng.integers(20, 90, rows), rng.integers(0, 2, rows), rng.integers(0, 400, rows)
    risk = (age - 55) / 12 + smoker - 0.5 + (days - np.datetime64("2021-05-01")).astype(float) / 400
    lines = ["visit,age,smoker,code,note,site,ill"]
    for k in range(rows):
        shown = "" if k % 17 == 0 else age[k]
        ill = "yes" if risk[k] + rng.normal() > 0 else "no"
        note = "a note of more than four words"
        lines.append(f"{days[k]},{shown},{bool(smoker[k])},c{code[k]},{note},{'abcd'[k % 4]},{ill}")
    return "\n".join(lines) + "\n"


FILLED = {
    "classes = []": 'classes = ["no", "yes"]',
    "visit = []": "visit = [2020-01-01, 2022-12-31]",
    "age = []": "age = [18, 100]",
    "code = []": "code = 8",
    'graph = ""': 'graph = "complete:4"',
    'epsilon = ""': "epsilon = 3.0",
    'delta = ""': "delta = 1e-6",
}


def filled_draft(call, folder, label="ill", *options, **changed):
    """Draft the plan file of a table and fill in its blanks; return the file and its text."""
    table = next(name for name in ("clinic.csv", "t.csv") if (folder / name).exists())
    assert call("columns", table, "--label", label, *options, "-o", "plan.toml").code == 0
    text = (folder / "plan.toml").read_text()
    for before, after in {**FILLED, **changed}.items():
        text = text.replace(before, after)
    return folder / "plan.toml", text


SITE = ("--group", "site")


def test_from_a_table_to_its_draft_its_model_and_its_predictions(call, refused, tmp_path):
    (tmp_path / "clinic.csv").write_text(clinic(2000, 0))
    (tmp_path / "new.csv").write_text(clinic(500, 1))
    plan, text = filled_draft(call, tmp_path, "ill", *SITE)
    blank = refused("train", "plan.toml")
    assert blank.startswith("plan.toml has 6 problems: (1) [network] graph is blank; fill it in")
    assert "[data] bounds is blank for 'visit', 'age'" in blank
    assert "[data] categories is blank for 'code'" in blank
    assert all(before in plan.read_text() for before in FILLED)
    for missing in ("indicator", "drop", "middle"):
        plan.write_text(text.replace('missing = "middle"', f'missing = "{missing}"'))
        loaded = load_file(plan)
        table = sv.data.TableData.from_toml(plan)
        budget = sv.Budget(3.0, 1e-6)
        rng = np.random.default_rng(0)
        fitted = sv.fit("logistic", table, network="complete", budget=budget, rng=rng)
        rows = read_table(table.source)
        if missing == "drop":
            rows = fitted.columns.complete(rows, table.labels)
        order = np.argsort(rows["site"], kind="stable")  # shards have the records site by site
        rows = {name: values[order] for name, values in rows.items()}
        assert np.array_equal(loaded.adapter.data.X[:, :-1], fitted.columns(rows))
        assert loaded.adapter.columns == fitted.columns
        assert loaded.plan.describe() == fitted.plan.describe()  # one recipe, one table reader
    assert call("plan", "plan.toml").code == 0
    trained = call("train", "plan.toml", "--out", "model", "--json")
    assert trained.code == 0, trained.err
    answer = call("predict", "model", "new.csv", "--json")
    truth = [line.rsplit(",", 1)[1] for line in (tmp_path / "new.csv").read_text().split("\n")[1:-1]]
    assert np.mean(np.array(answer.json["predictions"]) == truth) > 0.75
    assert sv.load_model(tmp_path / "model").score(str(tmp_path / "new.csv")) > 0.8


@pytest.mark.parametrize("missing", ["indicator", "drop"])
def test_an_agreement_reads_the_table_as_its_plan_does(missing, call, tmp_path):
    (tmp_path / "clinic.csv").write_text(clinic(400, 0))
    file, text = filled_draft(call, tmp_path, "ill", *SITE)
    file.write_text(text.replace("1e-6", "1e-4").replace('"middle"', f'"{missing}"'))
    assert call("peer", "draft", "plan.toml", "-o", "draft.toml").code == 0
    members = []
    for k, name in enumerate("abcd"):
        assert call("peer", "keygen", name, "--name", name).code == 0
        members += ["-m", f"{name}/certificate.pem@127.0.0.1:{7300 + k}"]
    answer = call("peer", "agree", "draft.toml", *members, "-o", "agreement.toml")
    assert answer.code == 0, answer.err
    agreement = read_agreement(tmp_path / "agreement.toml")
    plan, records = load_file(tmp_path / "plan.toml").plan, load_file(tmp_path / "plan.toml").adapter
    assert agreement.plan.name == plan.name == "consensus-newton"
    assert (agreement.plan.steps, agreement.plan.feature_norm) == (plan.steps, plan.feature_norm)
    assert agreement.plan.optimizer == plan.optimizer
    lines = (tmp_path / "clinic.csv").read_text().split("\n")
    (tmp_path / "b.csv").write_text("\n".join([lines[0], *(row for row in lines if ",b," in row)]))
    mine = read_records(tmp_path / "b.csv", agreement)
    X, y = records.data.user(1)
    assert np.array_equal(mine.X, X)
    assert np.array_equal(mine.y, y)


def test_all_columns_of_a_filled_draft_are_checked_at_once(refused, tmp_path, call):
    (tmp_path / "clinic.csv").write_text(clinic(40, 0))
    file, text = filled_draft(call, tmp_path, "ill", *SITE)
    wrong = text.replace("[2020-01-01, 2022-12-31]", "[2020-01-01, 2019-12-31]").replace("18, 100", "100, 18")
    file.write_text(wrong.replace("code = 8", "code = 1").replace('"note"', '"nota"'))
    message = refused("train", "plan.toml")
    columns = ("no column 'nota'", "bounds of column 'visit'", "bounds of column 'age'", "'note' holds words")
    assert all(words in message for words in columns), message


@pytest.mark.parametrize(("label", "loss"), [("amount", "squared"), ("amount", "logistic"), ("flag", None)])
def test_drafts_for_amounts_and_booleans(label, loss, call, refused, tmp_path):
    rows = [f"{k % 7},{k % 2},{bool(k % 2)}" for k in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["x,amount,flag", *rows]))
    blanks = {"x = []": "x = [0, 6]", "flag = []": "flag = [0, 1]"}
    plan, text = filled_draft(call, tmp_path, label, **blanks)
    text = text.replace('loss = ""', f'loss = "{loss}"').replace("1e-6", "1e-4")
    if loss == "squared":
        plan.write_text(text)
        assert "[data] bounds is blank for 'amount'" in refused("train", "plan.toml")
        text = text.replace("amount = []", "amount = [0, 1]")
    if label == "flag":
        text = text.replace("amount = []", "amount = [0, 1]")
    plan.write_text(text + "[noise]\nseed = 1\n")
    answer = call("train", "plan.toml", "--out", "model", "--json")
    assert answer.code == 0, answer.err
    (tmp_path / "new.csv").write_text("x,amount,flag\n0,0,False\n")
    assert len(json.loads(call("predict", "model", "new.csv", "--json").out)["predictions"]) == 1
