"""Random histories of one member directory: no total is below what left, and bugs are caught."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from verification.histories import History

from sottovoce.ledger import charge as charge_module
from sottovoce.ledger import run_ledger as ledger_module
from sottovoce.ledger.balance import Acts, charge_to_row, read_acts
from sottovoce.ledger.charge import CHARGE_FILE
from sottovoce.ledger.lifetime import LifetimeLedger
from sottovoce.ledger.run_ledger import RunLedger
from sottovoce.peers import member_directory as directory_module


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


def _without_head_file(*args, **options):
    return RunLedger(*args, **{**options, "head_file": None})


def _any_mark(folder, directory):
    try:
        return json.loads((folder / CHARGE_FILE).read_text())["training"]
    except OSError:
        return os.urandom(8).hex()


PLANTED = {
    "run folders may be set back": (directory_module, "RunLedger", _without_head_file),
    "nobody notes that a ledger exists": (LifetimeLedger, "start", lambda self, run_id: None),
    "an older lifetime ledger is taken": (LifetimeLedger, "_verified", lambda self: read_acts(self.path)),
    "an older ledger closes a run": (
        directory_module, "read_ledger", lambda folder, *, head_file: ledger_module.read_ledger(folder)),
    "a checkpoint set back is free": (charge_module, "_training_name", _any_mark),
    "a known run is charged to nobody": (
        Acts, "charge", lambda self, new: self.add({**charge_to_row(new), "releases": [], "guarantees": []})),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_the_histories_catch_planted_bugs(bug, histories, monkeypatch):
    place, name, replacement = PLANTED[bug]
    monkeypatch.setattr(place, name, replacement)
    assert any(history.violations for history in histories(60))
