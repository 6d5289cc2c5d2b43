"""Logs for TensorBoard: numbers are written, and a missing package is one sentence."""

import pytest

from sottovoce.errors import MissingDependency
from sottovoce.report import tensorboard
from sottovoce.report.tensorboard import EventLog


def test_numbers_are_written_and_read_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventLog(tmp_path / "logs")
    log.scalars(10, {"step": 10, "accuracy": 93.5, "note": "not a number", "done": True})
    log.scalars(20, {"accuracy": 94})
    log.close()
    read = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert read.Tags()["scalars"] == ["accuracy"]
    assert [(event.step, event.value) for event in read.Scalars("accuracy")] == [(10, 93.5), (20, 94.0)]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'sottovoce\[tensorboard\]'"):
        EventLog(tmp_path)
