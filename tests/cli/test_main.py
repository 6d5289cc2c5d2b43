import os
import subprocess
import sys

import pytest

from sottovoce import __version__
from sottovoce.cli import main as cli
from sottovoce.errors import GraphError


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


def test_a_mistake_of_ours_can_be_traced(monkeypatch):
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
