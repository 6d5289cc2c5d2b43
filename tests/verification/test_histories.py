"""Random histories of one member directory: no total is below what left, and bugs are caught."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from verification.histories import History

from sottovoce.peers import lifetime_ledger as book_module
from sottovoce.peers import member_directory as home_module
from sottovoce.peers import run_ledger as ledger_module
from sottovoce.peers import training_charges as trainings_module
from sottovoce.peers.lifetime_ledger import LifetimeLedger
from sottovoce.peers.run_ledger import SqliteLedger
from sottovoce.peers.training_charges import MARK


@pytest.fixture
def histories(monkeypatch):
    """Yield histories that have been lived; in memory, for the order of syncs has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

    def lived(count, steps=20):
        for seed in range(count):
            with monkeypatch.context() as patch, tempfile.TemporaryDirectory(dir=memory) as folder:
                history = History(seed, Path(folder), patch)
                for _ in range(steps):
                    history.step()
                history.settle()
                yield history

    return lived


def check_histories(lived, least):
    sent = exact = 0
    for history in lived:
        assert history.violations == []
        sent += len(history.sent)
        exact += not history.loose and len(history.sent) > 3
    assert sent > 10 * least
    assert exact >= least


def test_no_history_of_runs_crashes_and_backups_is_under_counted(histories):
    """The printed total is never below what was started, and equal to it where all is known."""
    check_histories(histories(16), least=1)


@pytest.mark.slow
def test_200_histories(histories):
    check_histories(histories(200), least=5)


def _without_witness(*args, **options):
    return SqliteLedger(*args, **{**options, "witness": None})


def _any_mark(folder, directory):
    try:
        return json.loads((folder / MARK).read_text())["training"]
    except OSError:
        return os.urandom(8).hex()


PLANTED = {
    "run folders may be set back": (home_module, "SqliteLedger", _without_witness),
    "nobody notes that a ledger exists": (LifetimeLedger, "begun", lambda self, run: None),
    "an older lifetime ledger is taken": (
        LifetimeLedger,
        "_verified",
        lambda self: book_module._read(self.path),
    ),
    "an older ledger closes a run": (
        home_module,
        "read_ledger",
        lambda folder, *, witness: ledger_module.read_ledger(folder),
    ),
    "a checkpoint set back is free": (trainings_module, "_named", _any_mark),
    "a known run is charged to nobody": (
        LifetimeLedger,
        "_charged",
        lambda self, rows, state, new, act: self._write(
            [*rows, book_module._row(rows, {**book_module.charge_to_row(new, act), "releases": []})]
        ),
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_histories_catch_planted_bugs(bug, histories, monkeypatch):
    place, name, replacement = PLANTED[bug]
    monkeypatch.setattr(place, name, replacement)
    assert any(history.violations for history in histories(60))
