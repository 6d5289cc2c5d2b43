import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from sottovoce import __version__
from sottovoce.cli import doctor
from sottovoce.cli import main as cli
from sottovoce.errors import GraphError
from sottovoce.report.result_files import read_result

from .plans import BUDGETED_AVERAGE


def test_version(call):
    assert call("--version") == (0, f"sottovoce {__version__}\n", "")


def test_help_lists_every_command_without_importing_one(call, monkeypatch):
    def load(command):
        raise AssertionError(f"{command.target} was imported to print the help")

    monkeypatch.setattr(cli.Command, "load", load)
    answer = call("--help")
    assert answer.code == 0
    for name, command in cli.commands().items():
        assert name in answer.out
        assert command.summary.split()[0] in answer.out


@pytest.mark.parametrize("name", cli.commands())
def test_every_command_teaches_with_an_example(call, name):
    answer = call(name, "--help")
    assert answer.code == 0
    assert f"sottovoce {name}" in answer.out.split("Usage:")[1].split("\n", 1)[1]
    assert "<bool>" not in answer.out  # a flag takes no value, --help neither


def test_help_is_quick_because_nothing_heavy_is_imported():
    script = (
        "import sys\nfrom sottovoce.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'matplotlib', 'sklearn', 'networkx', 'torch', 'numba'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip().endswith("HEAVY []"), done.stdout[-300:] + done.stderr


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["doctor", "--no-such-option"], ["doctor", "extra"]]
)
def test_usage_errors_exit_with_2(call, arguments):
    answer = call(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert answer.out == ""


def raising(error):
    def command() -> None:
        raise error

    return lambda self: command


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (GraphError("One sentence."), 1, "sottovoce: One sentence."),
        (FileNotFoundError(2, "No such file or directory", "x.csv"), 1, "No such file or directory: x.csv."),
        (MemoryError(), 1, "not enough memory"),
        (ZeroDivisionError("oops"), 1, "A bug in Sottovoce"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_a_sentence_and_a_code(call, monkeypatch, error, code, sentence):
    monkeypatch.setattr(cli.Command, "load", raising(error))
    answer = call("doctor")
    assert answer.code == code
    assert sentence in answer.err
    assert "Traceback" not in answer.err


def test_traceback_of_a_bug(monkeypatch):
    monkeypatch.setattr(cli.Command, "load", raising(ZeroDivisionError("oops")))
    monkeypatch.setenv("SOTTOVOCE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


def test_errors_as_json(call, monkeypatch):
    def command(json: bool = False) -> None:
        raise GraphError("Two lines,\n one sentence.")

    monkeypatch.setattr(cli.Command, "load", lambda self: command)
    answer = call("doctor", "--json")
    assert (answer.code, answer.json, answer.err) == (1, {"error": "Two lines, one sentence."}, "")


ANSWERS = [
    ("account", "--graph", "ring:5", "--noise", "2"),
    ("attack", "gossip", "--graph", "florentine", "--attackers", "0", "--rounds", "3"),
    ("attack", "dgd", "--graph", "path:4", "--attackers", "0"),
    ("audit", "--graph", "path:3", "--rounds", "2", "--user", "2", "--observers", "0", "--runs", "2000"),
    ("average", "0.1,0.9,0.4,0.6", "--graph", "ring:4", "--noise", "2", "--seed", "1"),
    ("plan", "plan.toml"),
]


@pytest.mark.parametrize("words", ANSWERS, ids=lambda words: "-".join(words[:2]))
def test_json_and_out_have_the_same_content(call, tmp_path, words):
    plan = BUDGETED_AVERAGE.format(graph="ring:6", protocol="tree", epsilon=20.0)
    (tmp_path / "plan.toml").write_text(plan)
    answer = call(*words, "--json", "--out", "answer.json")
    assert answer.code == 0, answer
    assert json.loads((tmp_path / "answer.json").read_text()) == answer.json
    result = read_result(tmp_path / "answer.json")
    assert result["metrics"]
    assert result["provenance"]["version"]


def test_members_are_called_by_their_names(call, tmp_path):
    words = ("--graph", "florentine", "--attackers", "0", "--rounds", "3")
    answer = call("attack", "gossip", *words)
    assert "Medici" in answer.out
    assert not re.search(r"\bx\d", answer.out)
    answer = call("account", "--graph", "florentine", "--noise", 2, "--observer", 8, "--protocol", "tree")
    assert "distance" in answer.out
    assert "all others with their keys and noise" in answer.out
    assert " Albizzi " in answer.out.split("against")[1]
    assert "node 8" not in answer.out
    plan = BUDGETED_AVERAGE.format(graph="path:3", protocol="tree", epsilon=30.0)
    plan = plan.replace('"path:3"', '"path:3"\nnames = ["Rome", "Milan", "Turin"]')
    (tmp_path / "plan.toml").write_text(plan + 'view = "pairwise"\nobserver = 1\nuser = 0\n')
    answer = call("plan", "plan.toml")
    assert "Milan, about Rome" in " ".join(answer.out.split())
    assert "node 1" not in answer.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("account", "--graph", "ring:5", "--protocol", "tre"), ("masked", "exchange", "tree")),
        (("account", "--graph", "ring:5", "--protocol", "tree:kind=tall"), ("bfs", "few-leaves")),
        (("account", "--graph", "ring:5", "--weights", "heavy"), ("metropolis", "lazy", "uniform")),
        (("average", "1,2,3", "--graph", "ring:3", "--epsilon", "1", "--view", "all"), ("local", "network")),
        (("audit", "--graph", "ring:5", "--claim", "true"), ("exact", "published")),
        (("attack", "dgd", "--data", "faces"), ("digits", "mnist", "cifar10")),
        (("advise", "5", "--epsilon", "1", "--compute", "median"), ("mean", "logistic", "net")),
        (("advise", "5", "--epsilon", "1", "--hide", "patient"), ("record", "member")),
        (("init", "averge"), ("average", "consortium")),
        (("account", "--graph", "rng:5"), ("ring",)),
        (("account",), ("--graph", "--matrix")),
    ],
)
def test_wrong_value_lists_the_right_ones(refused, words, expected):
    error = refused(*words)
    assert all(word in error for word in expected), error


def test_flags_of_a_command_in_a_group_take_no_value(call):
    assert "<bool>" not in call("peer", "status", "--help").out


def process(*words, **settings):
    return subprocess.run(
        [sys.executable, "-m", "sottovoce", *words], capture_output=True, text=True,
        env={**os.environ, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("file", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_brackets_in_help_are_escaped(file):
    """The help would take them as markup, and leave them out."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and "\n    Example" in (ast.get_docstring(node, False) or ""):
            assert re.findall(r"(?<!\\)\[[a-z_]+\]", ast.get_docstring(node)) == []


def test_the_package_is_a_command_and_completes(call):
    assert process("--version").stdout.startswith("sottovoce ")

    def completed(line, position):
        environment = {"COMP_WORDS": line, "COMP_CWORD": str(position), "_TYPER_COMPLETE_ARGS": line}
        return process(_SOTTOVOCE_COMPLETE="complete_bash", **environment).stdout.split()

    assert completed("sottovoce ave", 1) == ["average"]
    assert "--graph" in completed("sottovoce account --", 2)


# ---- doctor ------------------------------------------------------------------------------------------------


def test_doctor_finds_what_is_installed(call):
    report = call("doctor", "--json").json
    assert report["ready"] is True
    assert report["packages"]["numpy"]["installed"] == numpy.__version__


@pytest.mark.parametrize(("missing", "ready", "extra"), [("torch", True, "[deep]"), ("scipy", False, "")])
def test_doctor_says_what_to_do_about_a_missing_package(monkeypatch, missing, ready, extra):
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == missing else version(name))
    report = doctor.diagnosis()
    assert report["ready"] is ready
    (line,) = (line for line in report["advice"] if f"{missing} is not installed" in line)
    assert f"sottovoce{extra}" in line
