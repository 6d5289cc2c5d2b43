"""Small things a person meets: verdicts in two words, one schema, Ctrl-C, completion, names, right values."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from sottovoce.cli import main as cli
from sottovoce.report.result_files import read_result

AVERAGE = """version = 1
[network]
graph = "{graph}"
[protocol]
name = "{protocol}"
[average]
radius = 0.5
adjacency = "user"
[budget]
epsilon = {epsilon}
delta = 1e-5
"""
TRAIN = """version = 1
accept = ["standardize", "held-out score"]
[data]
name = "breast_cancer"
standardize = true
unit_rows = true
test_share = 0.2
[network]
graph = "hypercube:2"
[protocol]
name = "{protocol}"
[train]
algorithm = "consensus-sgd"
adjacency = "{adjacency}"
steps = {steps}
clip_norm = 1.0
learning_rate = 2.0
[noise]
seed = 1
[budget]
epsilon = {epsilon}
delta = 1e-5
"""


def test_a_private_and_useless_average_says_so_and_its_suggestions_hold(call, tmp_path):
    (tmp_path / "plan.toml").write_text(AVERAGE.format(graph="hypercube:3", protocol="exchange", epsilon=1.0))
    told = call("plan", "plan.toml")
    assert told.code == 0
    text = " ".join(told.out.split())
    assert "Private: yes; useful: no." in text
    assert "Values in a range of 1 are answered ± 1.32, wider than the range." in text
    assert "Hides: everything a member holds" in text
    found = call("plan", "plan.toml", "--json").json
    assert (found["private"], found["useful"]) == (True, False)
    assert found["error"] == pytest.approx(1.319, rel=1e-3)
    assert len(found["suggestions"]) == 3
    # each way out is taken, and helps as much as it said
    epsilon = float(re.search(r"Allow epsilon ([\d.]+): ± (\d+\.\d+)", " ".join(found["suggestions"]))[1])
    (tmp_path / "wider.toml").write_text(
        AVERAGE.format(graph="hypercube:3", protocol="exchange", epsilon=epsilon)
    )
    assert call("plan", "wider.toml", "--json").json["useful"] is True
    (tmp_path / "less.toml").write_text(
        AVERAGE.format(graph="hypercube:3", protocol="exchange", epsilon=epsilon * 0.97)
    )
    assert call("plan", "less.toml", "--json").json["useful"] is False
    members = re.search(
        r"Find (\d+) members and take masked sums: ± (\d+\.\d+)", " ".join(found["suggestions"])
    )
    (tmp_path / "more.toml").write_text(
        AVERAGE.format(graph=f"complete:{members[1]}", protocol="masked", epsilon=1.0)
    )
    more = call("plan", "more.toml", "--json").json
    assert more["useful"] is True
    assert more["error"] == pytest.approx(float(members[2]), rel=5e-3)


def test_training_that_hides_a_member_is_told_to_hide_a_record(call, tmp_path):
    plan = TRAIN.format(protocol="masked", adjacency="user", steps=20, epsilon=1.0)
    (tmp_path / "plan.toml").write_text(plan)
    told = call("plan", "plan.toml")
    text = " ".join(told.out.split())
    assert "Private: yes; useful: no." in text
    assert "synthetic records" in text
    assert "Hide a record instead of a member" in text
    assert "Reads: breast_cancer" in text
    assert "{" not in told.out  # no tables of the program's own in prose
    (tmp_path / "record.toml").write_text(plan.replace('"user"', '"add-remove"'))
    better = call("plan", "record.toml", "--json").json
    assert better["useful"] is True
    assert better["hides"].startswith("a single record")
    assert better["score"]["mean"] > 0.7
    ran = call("train", "record.toml", "--json").json
    assert ran["metrics"]["test_accuracy"] > 0.88


def test_a_plan_over_its_budget_is_not_private_and_names_the_noise(call, tmp_path):
    plan = (
        AVERAGE.format(graph="complete:40", protocol="masked", epsilon=1.0)
        + "[noise]\nnoise_multiplier = 0.1\n"
    )
    (tmp_path / "plan.toml").write_text(plan)
    told = call("plan", "plan.toml", "--json")
    assert told.code == 1
    assert told.json["private"] is False
    noise = float(re.search(r"Take noise ([\d.]+)", told.json["suggestions"][0])[1])
    (tmp_path / "plan.toml").write_text(plan.replace("0.1", str(noise * 1.001)))
    assert call("plan", "plan.toml", "--json").json["private"] is True


ANSWERS = [
    ("account", "--graph", "ring:5", "--noise", "2"),
    ("attack", "gossip", "--graph", "florentine", "--attackers", "0", "--rounds", "3"),
    ("attack", "dgd", "--graph", "path:4", "--attackers", "0"),
    ("audit", "--graph", "path:3", "--rounds", "2", "--user", "2", "--observers", "0", "--runs", "2000"),
    ("average", "0.1,0.9,0.4,0.6", "--graph", "ring:4", "--noise", "2", "--seed", "1"),
    ("plan", "plan.toml"),
]


@pytest.mark.parametrize("words", ANSWERS, ids=lambda words: "-".join(words[:2]))
def test_what_json_prints_is_what_out_writes(call, tmp_path, words):
    (tmp_path / "plan.toml").write_text(AVERAGE.format(graph="ring:6", protocol="tree", epsilon=20.0))
    told = call(*words, "--json", "--out", "answer.json")
    assert told.code == 0, told
    assert json.loads((tmp_path / "answer.json").read_text()) == told.json
    record = read_result(tmp_path / "answer.json")
    assert record["metrics"]
    assert record["provenance"]["version"]


def test_search_has_an_out_and_a_record(call, tmp_path):
    (tmp_path / "plan.toml").write_text(
        TRAIN.format(protocol="masked", adjacency="add-remove", steps=5, epsilon=4.0)
    )
    told = call("search", "plan.toml", "--rates", "1,2", "--out", "found.json", "--json")
    assert told.code == 0, told
    assert read_result(tmp_path / "found.json")["metrics"]["runs"] == 2
    assert json.loads((tmp_path / "found.json").read_text()) == told.json


def test_a_refuted_claim_says_which_number_refutes_it(call):
    told = call(
        "audit", "--graph", "path:3", "--rounds", 2, "--user", 2, "--observers", 0, "--claim", "published"
    )
    text = " ".join(told.out.split())
    assert re.search(
        r"refuted: mu is at least [\d.]+ where 1.15 is claimed; epsilon .* would not show it\.", text
    )


def test_members_are_called_by_their_names(call, tmp_path):
    words = ("--graph", "florentine", "--attackers", "0", "--rounds", "3")
    told = call("attack", "gossip", *words)
    assert "Medici" in told.out
    assert not re.search(r"\bx\d", told.out)
    told = call("account", "--graph", "florentine", "--noise", 2, "--observer", 8, "--protocol", "tree")
    assert " Albizzi " in told.out.split("against")[1]
    assert "node 8" not in told.out
    plan = AVERAGE.format(graph="path:3", protocol="tree", epsilon=30.0)
    plan = plan.replace('"path:3"', '"path:3"\nnames = ["Rome", "Milan", "Turin"]')
    (tmp_path / "plan.toml").write_text(plan + 'view = "pairwise"\nobserver = 1\nuser = 0\n')
    told = call("plan", "plan.toml")
    assert "Milan, about Rome" in " ".join(told.out.split())
    assert "node 1" not in told.out


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("account", "--graph", "ring:5", "--protocol", "tre"), ("masked", "exchange", "tree")),
        (("account", "--graph", "ring:5", "--protocol", "tree", "--tree", "tall"), ("bfs", "few-leaves")),
        (("account", "--graph", "ring:5", "--weights", "heavy"), ("metropolis", "lazy", "uniform")),
        (("average", "1,2,3", "--graph", "ring:3", "--epsilon", "1", "--view", "all"), ("local", "network")),
        (("audit", "--graph", "ring:5", "--claim", "true"), ("exact", "published")),
        (("attack", "dgd", "--data", "faces"), ("digits", "mnist", "cifar10")),
        (("advise", "5", "--epsilon", "1", "--compute", "median"), ("mean", "logistic", "net")),
        (("advise", "5", "--epsilon", "1", "--hide", "patient"), ("record", "member")),
        (("init", "averge"), ("average", "consortium", "algorithm")),
        (("account", "--graph", "rng:5"), ("ring",)),
        (("account",), ("--graph", "--matrix")),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(refused, words, listed):
    said = refused(*words)
    assert all(word in said for word in listed), said


def test_help_keeps_its_brackets(call):
    assert "[data] and [train]" in " ".join(call("train", "--help").out.split())
    assert "[data] and [train]" in " ".join(call("search", "--help").out.split())
    assert "masked" in " ".join(call("account", "--help").out.split())


def test_the_doctor_names_the_extra_with_its_brackets(call, monkeypatch):
    from sottovoce.cli import doctor

    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else "1.0")
    assert "'sottovoce[deep]'" in call("doctor").out


# ---- as a process of its own ---------------------------------------------------------------------------


def process(*words, **settings):
    return subprocess.run(
        [sys.executable, "-m", "sottovoce", *words], capture_output=True, text=True,
        env={**os.environ, **settings},
    )  # fmt: skip


def test_the_package_is_a_command_and_completes(call):
    assert process("--version").stdout.startswith("sottovoce ")

    def completed(line, position):
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(position), "_TYPER_COMPLETE_ARGS": line}
        return process(_SOTTOVOCE_COMPLETE="complete_bash", **asked).stdout.split()

    assert completed("sottovoce ave", 1) == ["average"]
    assert "--graph" in completed("sottovoce account --", 2)


@pytest.mark.slow
def test_ctrl_c_says_what_was_kept_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "plan.toml").write_text(
        TRAIN.format(protocol="exchange", adjacency="add-remove", steps=200_000, epsilon=900.0)
    )
    words = [sys.executable, "-m", "sottovoce", "train", "plan.toml", "--checkpoint", "kept"]
    running = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        if list(tmp_path.glob("kept/step-*")):
            break
        time.sleep(0.1)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    told = r"sottovoce: stopped; saved at step [\d,]+ in kept; the same command continues\.\n"
    assert re.search(told, said)
    assert "Traceback" not in said


def test_a_resumed_training_says_where_it_goes_on(call, tmp_path, monkeypatch):
    from sottovoce.runners import checkpoint

    plan = TRAIN.format(protocol="exchange", adjacency="add-remove", steps=40, epsilon=8.0)
    (tmp_path / "plan.toml").write_text(plan)
    write, count = checkpoint.Checkpoint.commit, []

    def interrupted(self, step, *others, **named):
        write(self, step, *others, **named)
        count.append(step)
        if len(count) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Checkpoint, "commit", interrupted)
    stopped = call("train", "plan.toml", "--checkpoint", "kept")
    assert stopped.code == 130
    assert f"saved at step {count[-1]}" in stopped.err
    from sottovoce.cli import output

    output._stopped.clear()
    resumed = call("train", "plan.toml", "--checkpoint", "kept")
    assert resumed.code == 0
    assert f"Continuing at step {count[2]} of 40 from kept." in resumed.err


def test_every_command_is_named_in_the_help(call):
    told = call("--help")
    assert all(f" {name} " in told.out for name in cli.commands())
