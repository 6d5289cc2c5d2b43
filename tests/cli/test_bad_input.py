"""Bad input: one sentence, exit code 1, no traceback, nothing written (see the fixture `refused`)."""

import pytest


def test_disconnected_graph_file(refused, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n2 3\n")
    assert "connected" in refused("account", "--graph", "file:edges.txt", "--out", "a.json")


def test_row_that_sums_to_094(refused, tmp_path):
    (tmp_path / "W.csv").write_text("0.5,0.5\n0.5,0.44\n")
    error = refused("account", "--matrix", "W.csv", "--rounds", 2, "--out", "a.json")
    assert "Row 1" in error
    assert "0.94" in error
    assert "expected 1" in error


@pytest.mark.parametrize("noise", ["-1", "0", "nan", "inf"])
def test_noise_that_is_not_positive(refused, noise):
    assert "noise" in refused("account", "--graph", "ring:4", "--noise", noise, "--out", "a.json")


def test_negative_noise_for_an_average(refused):
    error = refused("average", "1,2,3,4", "--graph", "ring:4", "--noise", "-2", "--out", "r.json")
    assert "noise_multiplier must be a finite number of at least 0, got -2" in error


@pytest.mark.parametrize("delta", ["0", "1", "-0.1", "nan"])
def test_delta_outside(refused, delta):
    assert "delta" in refused(
        "account", "--graph", "ring:4", "--noise", 1, "--delta", delta, "--out", "a.json"
    )
    assert "delta" in refused("account", "--graph", "ring:4", "--delta", delta)
    assert "delta" in refused("average", "1,2,3,4", "--graph", "ring:4", "--epsilon", 1, "--delta", delta)


def test_unknown_graph_name(refused):
    error = refused("account", "--graph", "hyperqube:4")
    assert "hyperqube" in error
    assert "hypercube" in error


@pytest.mark.parametrize("graph", ["ring", "ring:x", "ring:2", "er:20:1.5", "file:", "file:nowhere.txt", ""])
def test_malformed_graph_names(refused, graph):
    refused("account", "--graph", graph)


def test_malformed_edge_file_names_the_line(refused, tmp_path):
    (tmp_path / "edges.txt").write_text("# links\n0 1\n1 2 3 4\n")
    assert "Line 3" in refused("account", "--graph", "file:edges.txt", "--out", "a.json")


def test_binary_edge_file(refused, tmp_path):
    (tmp_path / "edges.txt").write_bytes(b"\xff\xfe\x00\x01")
    refused("account", "--graph", "file:edges.txt")


PLAN = (
    'version = 1\n[network]\ngraph = "hypercube:3"\n[protocol]\nname = "exchange"\n'
    '[average]\nadjacency = "user"\nradius = 0.5\n'
)
STD = "[noise]\nnoise_std = 1\n"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("epsilon = 1e-9\ndelta = 1e-5\nmax_noise = 0.1", "No noise meets epsilon 1e-09"),
        ("epsilon = 1.0\ndelta = 0.0", "[budget] delta"),
        ("epsilon = -1.0\ndelta = 1e-5", "[budget] epsilon"),
        ("epsilon = 1.0", "[budget] delta is missing"),
        ('epsilon = 1.0\ndelta = 1e-5\nview = "everybody"', "[budget] view"),
        ('epsilon = 1.0\ndelta = 1e-5\nview = "pairwise"', "observer"),
        ('epsilon = 1.0\ndelta = 1e-5\nview = "network"\nobserver = 99', "99"),
        ("epsilon = 1.0\ndelta = 1e-5\nvieuw = 3", "[budget] vieuw is not known"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "average"])
def test_budgets_that_cannot_be_met_or_read(refused, tmp_path, command, budget, said):
    (tmp_path / "plan.toml").write_text(
        PLAN.replace("radius = 0.5\n", "radius = 0.5\nvalues = [0, 0, 0, 0, 1, 1, 1, 1]\n")
        + f"[budget]\n{budget}\n"
    )
    assert said in refused(command, "plan.toml", "--out", "r.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "plan.toml has no version; write version = 1 at its top"),
        (PLAN.replace("version = 1\n", ""), "plan.toml has no version"),
        (PLAN.replace("version = 1", "version = 3"), "plan.toml is of version 3"),
        (PLAN.replace("version = 1", "version = true"), "is of version True"),
        ("version = 1\n", "needs either [average], what is averaged, or [train]"),
        (PLAN.replace('[network]\ngraph = "hypercube:3"\n', ""), "[network] is missing"),
        (PLAN.replace('adjacency = "user"\n', ""), "[average] adjacency is missing"),
        (
            PLAN.replace('"user"', '"add-remove"') + STD,
            "adjacency of averaging must be user",
        ),
        ("[network]\ngraph = ring\n", "not valid TOML"),
        (PLAN + "[noise]\nnoise_multiplier = -1\n", "[noise] noise_multiplier"),
        (PLAN + "[noise]\nnoise_multiplier = 1\nnoise_std = 1\n", "both"),
        (PLAN, "Neither [noise] nor [budget]"),
        (PLAN.replace("exchange", "telepathy"), "[protocol]: A protocol is one of gossip"),
        (
            PLAN.replace('"exchange"', '"tree"\nrounds = 3') + STD,
            "follows from the network",
        ),
        (PLAN.replace('name = "exchange"', "rounds = 3"), "[protocol] rounds needs a name"),
        (PLAN.replace("0.5", "inf") + STD, "[average]: radius must be"),
        (
            PLAN.replace('"hypercube:3"', '"hypercube:3"\nmatrix = "W.csv"') + STD,
            "either",
        ),
        (
            PLAN.replace("radius = 0.5", "radius = 0.5\nradios = 1"),
            "has no option 'radios' (did you mean 'radius'?)",
        ),
    ],
)
def test_plan_files_that_are_wrong(refused, tmp_path, text, said):
    (tmp_path / "plan.toml").write_text(text)
    assert said in refused("plan", "plan.toml", "--out", "r.json")


def test_missing_and_binary_plan_files(refused, tmp_path):
    refused("plan", "nowhere.toml")
    (tmp_path / "plan.toml").write_bytes(b"\xff\x00\xfe")
    refused("plan", "plan.toml")
    refused("plan", ".")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("rows.csv", "There is no file"),
        ("1,2,3", "one row per node (4)"),
        ("1,2,three,4", "There is no file"),
    ],
)
def test_values_that_cannot_be_averaged(refused, values, said):
    assert said in refused("average", values, "--graph", "ring:4", "--noise", 1, "--out", "r.json")


@pytest.mark.parametrize("content", [b"a,b\n1,2\nx,3\n", b"1,2\n3\n", b"", b"\xff\xfe\x00", b"word\n"])
def test_tables_that_cannot_be_read(refused, tmp_path, content):
    (tmp_path / "rows.csv").write_bytes(content)
    (tmp_path / "rows.npz").write_bytes(content)
    refused("average", "rows.csv", "--graph", "path:2", "--noise", 1)
    refused("average", "rows.npz", "--graph", "path:2", "--noise", 1)


def test_a_result_that_cannot_be_written(refused, tmp_path):
    refused("average", "1,2", "--graph", "path:2", "--noise", 1, "--out", "r.docx")
    (tmp_path / "folder.json").mkdir()
    refused("average", "1,2", "--graph", "path:2", "--noise", 1, "--out", "folder.json")


def test_too_many_pairs(refused):
    assert "--observer" in refused("account", "--graph", "regular:5000:4:seed=1")


def test_colluders_need_an_observer_and_numbers(refused):
    refused("account", "--graph", "ring:5", "--collude", "1")
    assert "node numbers" in refused("account", "--graph", "ring:5", "--observer", 0, "--collude", "one")
    refused("account", "--graph", "ring:5", "--observer", 7)
    refused("account", "--graph", "ring:5", "--protocol", "telepathy")
    refused("account", "--graph", "ring:5", "--protocol", "tree", "--rounds", 3)
    refused("account")
