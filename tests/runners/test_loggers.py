"""Loggers: numbers are written to TensorBoard and CSV, packages add loggers, bad targets are one sentence."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError, InvalidInput, MissingDependency
from sottovoce.runners import loggers
from sottovoce.runners.loggers import TensorBoardLogger, evaluation_log, open_logger


def test_numbers_are_written_and_read_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLogger(tmp_path / "logs")
    log.scalars(10, {"step": 10, "accuracy": 93.5, "note": "not a number", "done": True})
    log.scalars(20, {"accuracy": 94})
    log.close()
    read = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert read.Tags()["scalars"] == ["accuracy"]
    assert [(event.step, event.value) for event in read.Scalars("accuracy")] == [(10, 93.5), (20, 94.0)]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'sottovoce\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)


class Remembering:
    def __init__(self, text=""):
        self.text, self.entries, self.closed = text, [], False

    def scalars(self, step, values):
        self.entries.append((step, dict(values)))

    def close(self):
        self.closed = True


PLAN = sv.algorithms.ConsensusSGD(
    sv.objectives.GLM("logistic", dim=2), "tree", network=sv.graphs.ring(4), sizes=(10,) * 4, steps=8,
    clip_norm=1.0, noise_multiplier=2.0,
)  # fmt: skip


@pytest.mark.parametrize("adversary", [None, {}, {"view": "network"}])
def test_entries_carry_epsilon_up_to_the_step(adversary):
    log = Remembering()
    with evaluation_log(log, PLAN, 1e-5, adversary) as write:
        write(0, {"loss": 1.0})
        write(4, {"loss": 0.5})
        write(8, {"loss": 0.4})
    assert log.closed
    assert log.entries[0] == (0, {"loss": 1.0})
    whole = PLAN.guarantees()[0] if adversary is None else PLAN.privacy(**adversary)
    assert log.entries[2][1]["epsilon"] == whole.epsilon(1e-5)
    assert 0 < log.entries[1][1]["epsilon"] < log.entries[2][1]["epsilon"]


def test_a_csv_file_holds_the_numbers_and_is_never_overwritten(tmp_path):
    path = tmp_path / "run.csv"
    with evaluation_log(path, PLAN, 1e-5) as write:
        write(4, {"step": 4, "loss": 0.5, "note": "text", "done": True})
        write(8, {"step": 8, "loss": 0.25, "late": 1.0})
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in rows] == [("4", "0.5"), ("8", "0.25")]
    assert list(rows[0]) == ["step", "loss", "epsilon"]
    with pytest.raises(ConfigError, match="exists; name another"):
        open_logger(path)


def test_packages_add_loggers_by_entry_points(monkeypatch):
    point = SimpleNamespace(name="own", load=lambda: Remembering)
    monkeypatch.setattr(loggers, "entry_points", lambda group: [point] * (group == "sottovoce.loggers"))
    assert open_logger("own:trial:7").text == "trial:7"


def test_other_targets_are_refused_in_one_sentence():
    with pytest.raises(InvalidInput, match=r"scalars\(step, values\) and close\(\), got int"):
        open_logger(7)


@pytest.mark.parametrize("value", [0.1, 1.9999999, 2.0, 1e-12, 7.3])
def test_epsilon_is_not_rounded_down(value):
    assert loggers._float32_above(value) >= value
    assert np.float32(loggers._float32_above(value)) == loggers._float32_above(value)
