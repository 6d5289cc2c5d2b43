"""`sottovoce plan`: verdicts, suggestions, masked sums, and files that are refused."""

import re

import pytest

from .plans import BUDGETED_AVERAGE, BUDGETED_TRAINING

SITES = """version = 1
[network]
graph = "ring:3"
[protocol]
name = "masked"
[data]
file = "records.csv"
label = "y"
group = "site"
partition = "column"
bounds = "none"
[train]
algorithm = "consensus-sgd"
weighting = "{weighting}"
steps = 3
learning_rate = 1.0
clip_norm = 1.0
adjacency = "add-remove"
[noise]
noise_multiplier = 4.0
"""

PLAN = BUDGETED_AVERAGE.format(graph="hypercube:3", protocol="exchange", epsilon=1.0).split("[budget]")[0]
STD = "[noise]\nnoise_std = 1\n"


def test_suggestions_for_a_useless_average_hold(call, tmp_path):
    def write(name, epsilon, graph="hypercube:3", protocol="exchange"):
        plan = BUDGETED_AVERAGE.format(graph=graph, protocol=protocol, epsilon=epsilon)
        (tmp_path / name).write_text(plan)

    write("plan.toml", 1.0)
    answer = call("plan", "plan.toml")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "Private: yes; useful: no." in text
    assert "Values in a range of 1 are answered ± 1.32, wider than the range." in text
    assert "Hides: everything a member holds" in text
    assessment = call("plan", "plan.toml", "--json").json
    assert (assessment["private"], assessment["useful"]) == (True, False)
    assert assessment["error"] == pytest.approx(1.319, rel=1e-3)
    assert len(assessment["suggestions"]) == 3
    # each suggestion helps as much as it promises
    suggested = " ".join(assessment["suggestions"])
    epsilon = float(re.search(r"Allow epsilon ([\d.]+): ± (\d+\.\d+)", suggested)[1])
    write("wider.toml", epsilon)
    assert call("plan", "wider.toml", "--json").json["useful"] is True
    write("less.toml", epsilon * 0.97)
    assert call("plan", "less.toml", "--json").json["useful"] is False
    members = re.search(r"Find (\d+) members and take masked sums: ± (\d+\.\d+)", suggested)
    write("more.toml", 1.0, f"complete:{members[1]}", "masked")
    more = call("plan", "more.toml", "--json").json
    assert more["useful"] is True
    assert more["error"] == pytest.approx(float(members[2]), rel=5e-3)


def test_plan_and_compare_mean_the_same_by_error(call, tmp_path):
    text = BUDGETED_AVERAGE.format(graph="ring:8", protocol="gossip:2", epsilon=1.0)
    (tmp_path / "plan.toml").write_text(text)
    plan = call("plan", "plan.toml", "--json").json
    (row,) = call("compare", "plan.toml", "--json").json["rows"]
    assert row["bias"] > 0
    assert (plan["error"], plan["bias"]) == (row["error"], row["bias"])


def test_training_that_hides_members_gets_a_suggestion(call, tmp_path):
    plan = BUDGETED_TRAINING.format(protocol="masked", adjacency="user", steps=20, epsilon=1.0)
    (tmp_path / "plan.toml").write_text(plan.replace("seed = 1\n", ""))
    answer = call("plan", "plan.toml")
    text = " ".join(answer.out.split())
    assert "Private: only in part; useful: no." in text
    assert "synthetic records" in text
    assert "Hide a record instead of a member" in text
    assert "Reads: breast_cancer" in text
    assert "{" not in answer.out  # no tables of the program's own in prose
    (tmp_path / "record.toml").write_text(plan.replace('"user"', '"add-remove"'))
    better = call("plan", "record.toml", "--json").json
    assert (better["useful"], better["private"]) == (True, False)  # its noise is drawn from a seed
    assert better["hides"].startswith("a single record")
    assert better["score"]["mean"] > 0.7
    ran = call("train", "record.toml", "--json").json
    assert ran["metrics"]["accuracy"] > 0.88


def test_a_plan_over_its_budget_is_not_private_and_names_the_noise(call, tmp_path):
    plan = BUDGETED_AVERAGE.format(graph="complete:40", protocol="masked", epsilon=1.0)
    plan += "[noise]\nnoise_multiplier = 0.1\n"
    (tmp_path / "plan.toml").write_text(plan)
    text = call("plan", "plan.toml")
    assert text.code == 1
    assert "What it reveals" in text.out
    assert text.err.startswith("sottovoce: The plan spends epsilon")
    answer = call("plan", "plan.toml", "--json")
    assert answer.code == 1
    assert answer.json["private"] is answer.json["feasible"] is False
    assert "more than the budget of 1" in answer.json["verdict"]
    noise = float(re.search(r"Take noise ([\d.]+)", answer.json["suggestions"][0])[1])
    (tmp_path / "plan.toml").write_text(plan.replace("0.1", str(noise * 1.001)))
    assert call("plan", "plan.toml", "--json").json["private"] is True


@pytest.mark.parametrize(
    ("weighting", "words"),
    [("records", "the mean over all records"), ("sites", "the mean of the sites' means")],
)
def test_a_plan_of_unequal_sites_says_which_mean_it_computes(call, tmp_path, weighting, words):
    rows = [f"{k % 7},{k % 2},{site}" for site, size in (("a", 4), ("b", 9), ("c", 7)) for k in range(size)]
    (tmp_path / "records.csv").write_text("\n".join(["x,y,site", *rows]) + "\n")
    (tmp_path / "plan.toml").write_text(SITES.format(weighting=weighting))
    (note,) = call("plan", "plan.toml", "--json").json["notes"]
    assert words in note


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ("epsilon = 1.0\ndelta = 0.0", "[budget] delta"),
        ("epsilon = -1.0\ndelta = 1e-5", "[budget] epsilon"),
        ("epsilon = 1.0", "[budget] delta is missing"),
        ('epsilon = 1.0\ndelta = 1e-5\nview = "everybody"', "[budget] view"),
        ('epsilon = 1.0\ndelta = 1e-5\nview = "pairwise"', "observer"),
        ("epsilon = 1.0\ndelta = 1e-5\nvieuw = 3", "[budget] vieuw is not known"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "average"])
def test_budgets_that_cannot_be_met_or_read(refused, tmp_path, command, budget, sentence):
    plan = PLAN.replace("radius = 0.5\n", "radius = 0.5\nvalues = [0, 0, 0, 0, 1, 1, 1, 1]\n")
    (tmp_path / "plan.toml").write_text(f"{plan}[budget]\n{budget}\n")
    assert sentence in refused(command, "plan.toml", "--out", "r.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "plan.toml has no version; write version = 1 at its top"),
        (PLAN.replace("version = 1", "version = 3"), "plan.toml is of version 3"),
        ("version = 1\n", "needs either [average], what is averaged, or [train]"),
        (PLAN.replace('[network]\ngraph = "hypercube:3"\n', ""), "[network] is missing"),
        (PLAN.replace('adjacency = "user"\n', ""), "[average] adjacency is missing"),
        (PLAN.replace('"user"', '"add-remove"') + STD, "adjacency of averaging must be user"),
        ("[network]\ngraph = ring\n", "not valid TOML"),
        (PLAN + "[noise]\nnoise_multiplier = 1\nnoise_std = 1\n", "both"),
        (PLAN, "Neither [noise] nor [budget]"),
        (PLAN.replace("exchange", "telepathy"), "[protocol]: A protocol is one of gossip"),
        (PLAN.replace('"exchange"', '"tree"\nrounds = 3') + STD, "follow from the network"),
        (PLAN.replace('name = "exchange"', "rounds = 3"), "[protocol] rounds needs a name"),
        (PLAN.replace("0.5", "inf") + STD, "[average]: radius must be"),
        (PLAN.replace('"hypercube:3"', '"hypercube:3"\nmatrix = "W.csv"') + STD, "either"),
        (PLAN.replace("radius = 0.5", "radius = 0.5\nradios = 1"), "'radios' (did you mean 'radius'?)"),
    ],
)
def test_plan_files_that_are_wrong(refused, tmp_path, text, sentence):
    (tmp_path / "plan.toml").write_text(text)
    assert sentence in refused("plan", "plan.toml", "--out", "r.json")


def test_missing_and_binary_plan_files(refused, tmp_path):
    refused("plan", "nowhere.toml")
    (tmp_path / "plan.toml").write_bytes(b"\xff\x00\xfe")
    refused("plan", "plan.toml")
    refused("plan", ".")
