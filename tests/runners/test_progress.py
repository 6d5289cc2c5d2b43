"""The progress bar: on standard error, with the last numbers, and only where somebody watches."""

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from sottovoce.runners.progress import bar


@pytest.fixture
def terminal(monkeypatch):
    """Have rich take standard error for a terminal, which the tests then read."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


WIPED = "\x1b[2K"


def test_steps_and_numbers_are_shown_on_standard_error(terminal, capsys):
    with bar(True, "[b]training", steps=8, done=2) as show:
        show(8, {"accuracy": np.float64(0.91234), "note": "skipped", "whole": True})
    shown = capsys.readouterr()
    assert "[b]training" in shown.err  # a name is words, not markup
    assert "2/8" in shown.err
    assert "8/8" in shown.err
    assert "accuracy 0.9123" in shown.err
    assert "skipped" not in shown.err
    assert "whole" not in shown.err
    assert shown.err.rstrip().endswith(WIPED)
    assert shown.out == ""


@pytest.mark.parametrize(("later", "shown"), [({}, "accuracy 0.9123"), ({"loss": 3}, "loss 3")])
def test_the_numbers_stay_until_others_come(later, shown, terminal, capsys):
    with bar(True, "training", steps=8) as show:
        show(3, {"accuracy": 0.91234})
        show(5, later)
    assert shown in capsys.readouterr().err.rpartition("5/8")[2]


def test_an_error_passes_and_the_bar_is_wiped(terminal, capsys):
    with pytest.raises(ZeroDivisionError), bar(True, "training", steps=8):
        raise ZeroDivisionError
    assert capsys.readouterr().err.rstrip().endswith(WIPED)


@pytest.mark.parametrize(("wanted", "times"), [(True, 1), (False, 0)])
def test_the_first_compilation_is_announced_once(wanted, times, terminal, capsys):
    first, second = njit(lambda x: x + 1), njit(lambda x: x + 2)
    with bar(wanted, "training", steps=2):
        assert second(first(1)) == 4
    assert capsys.readouterr().err.count("compiling: the first run on this machine") == times
    with bar(True, "training", steps=2):
        assert second(first(1)) == 4
    assert "compiling" not in capsys.readouterr().err


@pytest.mark.parametrize("wanted", [True, False])
def test_silent_where_nobody_watches(wanted, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with bar(wanted, "training", steps=2) as show:
        show(1, {"accuracy": 0.5})
    assert capsys.readouterr() == ("", "")


def test_rich_is_not_imported_for_nothing():
    code = "import sys; from sottovoce.runners.progress import bar\nwith bar(False, 'x', 1) as t: t(1, {})\n"
    code += "sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
