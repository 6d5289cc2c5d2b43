import json

import numpy as np
import pytest

import sottovoce as sv

from .plans import AVERAGE

PLAN = AVERAGE + '[budget]\nepsilon = 1.0\ndelta = 1e-5\nview = "network"\n'


def test_protective_noise_by_default_and_never_twice_the_same(call, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    first, second = (call("average", "plan.toml", "--json").json for _ in range(2))
    assert first["provenance"]["noise"] == "protective"
    assert first["rows"] != second["rows"]
    assert "mean_squared_error" not in first["metrics"]


def test_seed_makes_a_simulation(call):
    words = ("average", "0,0,1,1", "--graph", "ring:4", "--noise", 2, "--radius", 1, "--seed", 3, "--json")
    first, second = call(*words).json, call(*words).json
    assert first["rows"] == second["rows"]
    assert "not protective" in first["provenance"]["noise"]
    network = sv.graphs.ring(4)
    plan = sv.PrivateAveraging(
        sv.protocols.Chebyshev(network, sv.protocols.rounds_for(network)), noise_std=2.0, radius=1.0
    )
    expected = plan.run([0, 0, 1, 1], sv.privacy.SimulatedNoise(3)).outputs["rows"]
    np.testing.assert_array_equal(first["rows"], expected)


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_results_are_written_whole(call, tmp_path, suffix):
    np.savez(tmp_path / "rows.npz", rows=np.zeros((4, 3)))
    out = tmp_path / "deep" / f"r.{suffix}"
    answer = call("average", "rows.npz", "--graph", "ring:4", "--noise", 1, "--out", out)
    assert answer.code == 0
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    if suffix == "json":
        rows = json.loads(out.read_text())["outputs"]["rows"]
    else:
        rows = np.loadtxt(out, delimiter=",")
    assert np.shape(rows) == (4, 3)


def test_brackets_in_names_are_not_styles(call, tmp_path):
    (tmp_path / "plan.toml").write_text(
        PLAN.replace('"hypercube:3"', '"path:2"\nnames = ["[red]Rosso", "[/]Slash"]')
        .replace('"exchange"', '"tree"')
        .replace("[0, 0, 0, 0, 1, 1, 1, 1]", "[0, 1]")
        .replace("Waiting", "[/bold]Waiting")
    )
    answer = call("average", "plan.toml")
    assert answer.code == 0
    assert "[red]Rosso" in answer.out
    assert "[/bold]Waiting" in answer.out


def test_site_weights_by_option_and_by_plan_file(call, tmp_path):
    words = "0.1,0.9,0.4 --graph ring:3 --protocol tree --noise 0 --seed 1 --json".split()
    typed_answer = call("average", *words, "--site-weights", "9,58,30")
    expected = np.average([0.1, 0.9, 0.4], weights=[9, 58, 30])
    assert np.allclose(json.loads(typed_answer.out)["rows"], expected)
    (tmp_path / "weights.csv").write_text("9\n58\n30\n")
    again = call("average", *words, "--site-weights", tmp_path / "weights.csv")
    assert json.loads(again.out)["rows"] == json.loads(typed_answer.out)["rows"]
    plan = PLAN.split("[budget]")[0].replace("hypercube", "ring").replace("exchange", "tree")
    values = "[0.1, 0.9, 0.4]\nsite_weights = [9, 58, 30]"
    plan = plan.replace("[0, 0, 0, 0, 1, 1, 1, 1]", values).replace(
        "radius = 0.5\ncenter = 0.5", "radius = 1.0"
    )
    (tmp_path / "plan.toml").write_text(f"{plan}[noise]\nnoise_multiplier = 0\nseed = 1\n")
    filed = call("average", tmp_path / "plan.toml", "--json")
    assert json.loads(filed.out)["rows"] == json.loads(typed_answer.out)["rows"]
    short = call("average", *words, "--site-weights", "9,58")
    assert short.code == 1
    assert "one positive number per node (3)" in short.out


@pytest.mark.parametrize("content", [b"a,b\n1,2\nx,3\n", b"1,2\n3\n", b"", b"\xff\xfe\x00", b"word\n"])
def test_tables_that_cannot_be_read(refused, tmp_path, content):
    for name in ("rows.csv", "rows.npz"):
        (tmp_path / name).write_bytes(content)
        refused("average", name, "--graph", "path:2", "--noise", 1)


def test_values_that_cannot_be_averaged_and_results_that_cannot_be_written(refused, tmp_path):
    options = ("--graph", "ring:4", "--noise", 1, "--out")
    assert "There is no file" in refused("average", "rows.csv", *options, "r.json")
    assert "There is no file" in refused("average", "1,2,three,4", *options, "r.json")
    assert "one row per node (4)" in refused("average", "1,2,3", *options, "r.json")
    assert "must end in .json or .csv" in refused("average", "1,2,3,4", *options, "r.docx")
    (tmp_path / "folder.json").mkdir()
    assert "is a folder" in refused("average", "1,2,3,4", *options, "folder.json")
