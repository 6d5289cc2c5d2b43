"""`sottovoce advise` and `compare`: arguments in, tables, files and one verdict out."""

import numpy as np
import pytest


def test_advice_in_words_and_as_json(call):
    told = call("advise", 6, "--epsilon", 2, "--records", 100)
    assert told.code == 0, told.err
    assert "Take consensus-sgd over masked: private: yes; useful: yes." in told.out
    assert "What it reveals" in told.out
    assert "If members cannot share keys" in told.out
    found = call("advise", 6, "--epsilon", 2, "--records", 100, "--json").json
    assert found["recommended"] == "consensus-sgd over masked"
    assert found["rows"][0]["epsilon_member"] <= 2
    assert found["written"] == []


def test_a_question_without_an_answer_says_the_way_out_and_exits_with_one(call):
    told = call("advise", 10, "--epsilon", 1, "--hide", "member", "--records", 50)
    assert told.code == 1
    assert "Nothing fits." in told.out
    assert "Allow epsilon 1.65." in told.out
    assert "Hide a record instead of a member" in told.out


def test_the_plan_file_it_writes_runs_and_answers_well(call, tmp_path):
    """Thirty members, one value each: advise, price, average; the mean comes out within its error."""
    call("advise", "ring:30", "--epsilon", 4, "--hide", "member", "--values", "0,10", "--out", "advice")
    values = np.linspace(2, 9, 30)
    np.savetxt(tmp_path / "advice" / "values.csv", values)
    priced = call("plan", "advice/plan.toml", "--json")
    assert priced.code == 0, priced
    assert priced.json["feasible"]
    ran = call("average", "advice/plan.toml", "--json")
    assert ran.code == 0, ran
    side = call("compare", "advice/plan.toml", "--json").json["rows"][0]
    rows = np.ravel(ran.json.get("rows", ran.json.get("outputs", {}).get("rows")))
    assert abs(rows[0] - values.mean()) < 5 * side["error"]
    assert side["error"] < 0.5
    assert side["epsilon_member"] <= 4


def test_a_mean_over_records_runs_from_its_plan_file(call, tmp_path):
    call("advise", 4, "--epsilon", 2, "--records", 50, "--values", "0,1", "--out", "advice")
    rng = np.random.default_rng(0)
    lines = ["one,value,site"]
    values = rng.uniform(0, 1, 200)
    lines += [f"1,{value - 0.5},{k % 4}" for k, value in enumerate(values)]
    (tmp_path / "advice" / "records.csv").write_text("\n".join(lines) + "\n")
    rows = call("compare", "advice/plan.toml", "--json").json["rows"]
    assert rows[0]["epsilon_member"] <= 2
    assert rows[0]["useful"]
    ran = call("train", "advice/plan.toml", "--json")
    assert ran.code == 0, ran
    coef = np.ravel(ran.json["outputs"]["coef"] if "outputs" in ran.json else ran.json["coef"])
    assert abs(coef[0] + 0.5 - values.mean()) < 5 * rows[0]["error"]


def test_compare_marks_the_dominated(call, tmp_path):
    text = """version = 2
[network]
graph = "{graph}"
[protocol]
name = "tree"
[average]
radius = 0.5
adjacency = "user"
[noise]
multiplier = 4.0
"""
    for name in ("star", "path"):
        (tmp_path / f"{name}.toml").write_text(text.format(graph=f"{name}:7"))
    told = call("compare", "star.toml", "path.toml", "--out", "front.svg")
    assert told.code == 0, told.err
    assert (tmp_path / "front.svg").exists()
    rows = call("compare", "star.toml", "path.toml", "--json").json["rows"]
    assert [row["dominated_by"] for row in rows] == [None, "star.toml"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("advise", 1, "--epsilon", 1), "two members"),
        (("advise", 5, "--epsilon", 1, "--records", "many"), "--records"),
        (("advise", 5, "--epsilon", 1, "--values", "3"), "--values"),
        (("advise", 5, "--epsilon", 1, "--against", "nobody"), "against"),
        (("advise", 5, "--epsilon", -1), "epsilon"),
        (("advise", "ring:none", "--epsilon", 1), "ring"),
        (("compare", "gone.toml"), "gone.toml"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(refused, arguments, word):
    assert word in refused(*arguments)
