"""`sottovoce advise` and `compare`: arguments in, tables, files and one verdict out."""

import tomllib

import numpy as np
import pytest

from sottovoce._io import to_toml

from .plans import BUDGETED_AVERAGE


def test_advice_in_words_and_as_json(call):
    answer = call("advise", 6, "--epsilon", 2, "--records", 100)
    assert answer.code == 0, answer.err
    assert "Take: mean by masked sum. Private: yes, for one record, against any one member; u" in answer.out
    assert "What it reveals" in answer.out
    assert "If members cannot share keys" in answer.out
    advice = call("advise", 6, "--epsilon", 2, "--records", 100, "--json").json
    assert advice["recommended"] == "mean by masked sum"
    assert advice["rows"][0]["epsilon_network"] <= 2
    assert advice["written"] == []


def test_infeasible_requirements_print_suggestions_and_exit_with_1(call):
    answer = call("advise", 10, "--epsilon", 1, "--hide", "member", "--records", 50)
    assert answer.code == 1
    assert "Nothing fits." in answer.out
    assert "Allow epsilon 1.66: ±" in answer.out
    assert "Hide a record instead of a member" in answer.out


def test_written_plan_file_runs_and_its_error_holds(call, tmp_path):
    """Thirty members, one value each: advise, price, average; the mean comes out within its error."""
    call("advise", "ring:30", "--epsilon", 4, "--hide", "member", "--values", "0,10", "--out", "advice")
    values = np.linspace(2, 9, 30)
    np.savetxt(tmp_path / "advice" / "values.csv", values)
    plan = call("plan", "advice/plan.toml", "--json")
    assert plan.code == 0, plan
    assert plan.json["feasible"]
    ran = call("average", "advice/plan.toml", "--json")
    assert ran.code == 0, ran
    side = call("compare", "advice/plan.toml", "--json").json["rows"][0]
    assert abs(ran.json["rows"][0][0] - values.mean()) < 5 * side["error"]
    assert side["error"] < 0.5
    assert side["epsilon_network"] <= 4


def test_compare_marks_the_dominated(call, tmp_path):
    text = BUDGETED_AVERAGE.split("[budget]")[0] + "[noise]\nnoise_multiplier = 4.0\n"
    for name in ("star", "path"):
        (tmp_path / f"{name}.toml").write_text(text.format(graph=f"{name}:7", protocol="tree"))
    rows = call("compare", "star.toml", "path.toml", "--out", "front.svg", "--json").json["rows"]
    assert (tmp_path / "front.svg").exists()
    assert [row["dominated_by"] for row in rows] == [None, "star.toml"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("advise", 5, "--epsilon", 1, "--records", "many"), "--records"),
        (("advise", 5, "--epsilon", 1, "--values", "3"), "--values"),
        (("compare", "gone.toml"), "gone.toml"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(refused, arguments, word):
    assert word in refused(*arguments)


TOWNS = {"Bern": 200, "Basel": 20, "Zurich": 20, "Chur": 30, "Lugano": 10}
ROADS = "Bern Basel\nBasel Zurich\nZurich Bern\nZurich Chur\nChur Lugano\n"


@pytest.fixture
def towns(call, tmp_path):
    (tmp_path / "roads.txt").write_text(ROADS)
    sizes = ",".join(map(str, TOWNS.values()))
    options = ("--epsilon", 1, "--records", sizes, "--values", "0,10", "--out", "advice")
    answer = call("advise", "file:roads.txt", *options)
    assert answer.code == 0, answer.err
    return answer


def test_plan_file_is_accounted_before_its_records_exist(call, tmp_path, towns):
    """From the names of the members to the price, then to the answer, each as its file says."""
    assert "Member Bern holds 71.4% of all records" in " ".join(towns.out.split())
    plan = call("plan", "advice/plan.toml", "--json")
    assert plan.code == 0, plan
    assert plan.json["private"]
    assert plan.json["useful"]
    assert "no records (records.csv is not there yet" in " ".join(plan.json["reads"])
    assert call("compare", "advice/plan.toml", "--json").json["rows"][0]["epsilon_network"] <= 1
    answer = call("train", "advice/plan.toml")
    assert answer.code == 1
    assert "not for training" in answer.err
    values = np.random.default_rng(0).uniform(6, 10, sum(TOWNS.values()))  # not clipped as features would be
    sites = np.repeat(list(TOWNS), list(TOWNS.values()))
    lines = [f"1,{value - 5},{site}" for value, site in zip(values, sites, strict=True)][::-1]
    table = tmp_path / "advice" / "records.csv"
    table.write_text("\n".join(["one,value,site", *lines]) + "\n")
    again = call("plan", "advice/plan.toml", "--json").json
    assert [g["epsilon"] for g in again["guarantees"]] == [g["epsilon"] for g in plan.json["guarantees"]]
    assert again["error"] == plan.json["error"]
    ran = call("train", "advice/plan.toml", "--json")
    assert ran.code == 0, ran
    (coef,) = ran.json["outputs"]["coef"]
    assert abs(coef + 5 - values.mean()) < 5 * plan.json["error"] < 1
    table.write_text("\n".join(["one,value,site", *lines[1:]]) + "\n")
    answer = call("plan", "advice/plan.toml")
    assert answer.code == 1
    assert "(200, 20, 20, 30, 9), got (200, 20, 20, 30, 10)" in answer.err


def test_names_of_members_are_kept_in_the_files(towns, tmp_path):
    from sottovoce import graphs

    written = tomllib.loads((tmp_path / "advice" / "plan.toml").read_text())["network"]
    original = graphs.parse(f"file:{tmp_path / 'roads.txt'}")
    assert tuple(written["names"]) == original.node_names == tuple(TOWNS)
    assert graphs.parse(written["graph"]).edges.tolist() == original.edges.tolist()
    draft = (tmp_path / "advice" / "agreement-draft.toml").read_text()
    assert "# nodes 0 to 4 are Bern, Basel, Zurich, Chur, Lugano" in draft
    assert "against any one member" in draft


def test_draft_names_only_announced_columns(call, tmp_path, towns):
    """Announced records have the columns that the file names, and none of our invention."""
    assert call("peer", "draft", "advice/plan.toml", "-o", "draft.toml").code == 0
    draft = tomllib.loads((tmp_path / "draft.toml").read_text())
    assert draft["data"] == {"features": ["one"], "target": "value", "bounds": "none"}
    tables = tomllib.loads((tmp_path / "advice" / "plan.toml").read_text())
    assert tables["data"].pop("features") == ["one"]
    tables["data"]["width"] = 3
    (tmp_path / "advice" / "wide.toml").write_text(to_toml(tables))
    assert call("peer", "draft", "advice/wide.toml", "-o", "wide.toml").code == 0
    draft = tomllib.loads((tmp_path / "wide.toml").read_text())
    assert draft["data"] == {"target": "value"}
    assert draft["model"]["parameters"] == 3


@pytest.mark.parametrize("words", [("no", "yes"), (1, 2)])
def test_sample_may_have_any_two_labels(call, tmp_path, words):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    lines = [f"{a:.3f},{b:.3f},{words[int(a + b > 0)]}" for a, b in X]
    (tmp_path / "public.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    answer = call("advise", 4, "--epsilon", 4, "--records", 200, "--compute", "logistic", "--sample",
                "public.csv", "--json")  # fmt: skip
    assert answer.code == 0, answer
    assert answer.json["simulated_on"] == "Simulated on 120 public records; nothing private was read."
    assert answer.json["requirements"]["features"] == 2
    assert answer.json["rows"][0]["score"]["mean"] > 0.85


def test_a_network_is_accounted_before_its_records_exist(call):
    pytest.importorskip("torch")
    model = "mlp:inputs=3:hidden=2:classes=2"
    options = ("--epsilon", 2, "--records", 150, "--compute", "net", "--model", model, "--no-masks")
    advised = call("advise", 2, *options, "--out", "a")
    assert advised.code == 0, advised
    assert "typical pair" in advised.out
    plan = call("plan", "a/plan.toml", "--json").json
    assert plan["private"]
    assert plan["plan"]["sizes"] == [150] * 2


def test_a_sample_that_cannot_be_used_is_refused(refused, tmp_path):
    ask = ("advise", 4, "--epsilon", 4, "--records", 200, "--compute", "logistic", "--sample")
    (tmp_path / "three.csv").write_text("\n".join(["a,b", *(f"{k},{k % 3}" for k in range(12))]) + "\n")
    (tmp_path / "gaps.csv").write_text("\n".join(["a,b", *(f"nan,{k % 2}" for k in range(12))]) + "\n")
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert "two classes, got 3" in refused(*ask, "three.csv")
    assert "finite numbers" in refused(*ask, "gaps.csv")
    assert "save it as one of them" in refused(*ask, "notes.txt")
