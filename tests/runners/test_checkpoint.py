"""Checkpoints: whole or not there, of this plan or refused, readable by any number of ranks."""

from typing import NamedTuple

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError, InvalidInput
from sottovoce.runners.checkpoint import Checkpoint


class State(NamedTuple):
    theta: np.ndarray
    moments: dict
    count: int


def state(agents):
    return State(np.outer(agents, [1.0, 2.0]), {"first": agents[:, None].astype(np.float32)}, 5)


def saved(folder, parts=([0, 1, 4], [2, 3])):
    checkpoint = Checkpoint(folder, "a")
    names = [checkpoint.write(7, np.array(p), state(np.array(p)), k) for k, p in enumerate(parts)]
    checkpoint.commit(7, names)
    return checkpoint


@pytest.mark.parametrize("agents", [[0], [1, 2], [0, 1, 2, 3, 4], [3, 4]])
def test_any_slice_comes_back(tmp_path, agents):
    agents = np.array(agents)
    like = state(agents)._replace(theta=np.zeros((len(agents), 2)), count=0)
    _, loaded = saved(tmp_path).load(agents, like)
    assert isinstance(loaded, State)
    assert (loaded.theta == state(agents).theta).all()
    assert (loaded.moments["first"] == state(agents).moments["first"]).all()
    assert loaded.count == 5


def test_an_unfinished_write_changes_nothing(tmp_path):
    checkpoint = saved(tmp_path)
    checkpoint.write(8, np.array([0, 1, 4]), state(np.array([0, 1, 4])), 0)
    assert checkpoint.latest().step == 7
    assert checkpoint.load(np.array([4]), state(np.array([4])))[1].theta.tolist() == [[4.0, 8.0]]


def test_refusals_say_why(tmp_path):
    assert Checkpoint(tmp_path, "a").latest() is None
    checkpoint = saved(tmp_path)
    with pytest.raises(ConfigError, match="another plan"):
        Checkpoint(tmp_path, "b").latest()
    with pytest.raises(DataError, match="lacks agent 9"):
        checkpoint.load(np.array([4, 9]), state(np.array([4, 9])))
    with pytest.raises(ConfigError, match="shape"):
        checkpoint.load(np.array([0]), state(np.array([0]))._replace(theta=np.zeros((1, 3))))
    part = next(tmp_path.glob("step-*"))
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.load(np.array([0]), state(np.array([0])))


def test_one_process_saves_and_goes_on_from_ranks(tmp_path):
    everybody, checkpoint = np.arange(5), Checkpoint(tmp_path / "new" / "folder", "a")
    assert checkpoint.load(everybody, state(everybody)) is None
    saved(checkpoint.folder)
    step, loaded = checkpoint.load(everybody, state(0 * everybody))
    assert isinstance(loaded, State)
    assert (step, loaded.theta.tolist()) == (7, state(everybody).theta.tolist())
    checkpoint.save(8, everybody, state(2 * everybody))
    step, loaded = checkpoint.load(np.array([3]), state(np.array([0])))
    assert (step, loaded.theta.tolist()) == (8, [[6.0, 12.0]])


def test_what_is_stored_keeps_its_precision(tmp_path):
    """A fresh state may begin in float32 and as a whole number, and have become something else since."""
    checkpoint, third = Checkpoint(tmp_path, "a"), np.full((2, 1), 1 / 3)
    checkpoint.save(1, np.arange(2), (third, 0.5))
    _, (rows, number) = checkpoint.load(np.arange(2), (np.zeros((2, 1), np.float32), 0))
    assert rows.dtype == np.float64
    assert (rows == third).all()
    assert number == 0.5


def test_what_is_refused_in_one_process(tmp_path):
    (tmp_path / "file.npz").touch()
    everybody = np.arange(2)
    for ask in (lambda c: c.latest(), lambda c: c.save(1, everybody, np.zeros((2, 1)))):
        with pytest.raises(ConfigError, match=r"file\.npz is a file, a checkpoint is a folder"):
            ask(Checkpoint(tmp_path / "file.npz", "a"))
    checkpoint = Checkpoint(tmp_path / "a", "a")
    with pytest.raises(InvalidInput, match="arrays and numbers only"):
        checkpoint.save(1, everybody, [np.array([object()])])
    checkpoint.save(1, everybody, (np.zeros(3), np.zeros((2, 1))))
    with pytest.raises(ConfigError, match=r"shapes .*\(3,\).* state has \[\(4,\), \(2, 1\)\]"):
        checkpoint.load(everybody, (np.zeros(4), np.zeros((2, 1))))
    checkpoint.save(1, everybody, ())
    with pytest.raises(ConfigError, match=r"shapes \[\], this algorithm's state has"):
        checkpoint.load(everybody, (np.zeros(3), np.zeros((2, 1))))
    current = tmp_path / "a" / "current.json"
    for damage in (lambda: current.write_text("{"), lambda: current.write_bytes(b"\xff\xfe"), current.unlink):
        damage()
        current.exists() or current.mkdir()
        with pytest.raises(DataError, match="is damaged"):
            checkpoint.latest()


def test_leftovers_of_a_crash_go_with_the_next_checkpoint(tmp_path):
    checkpoint = saved(tmp_path)
    for name in (".step-000000008.part-00000.npz.7-ab.part", ".current.json.7-ab.part"):
        (tmp_path / name).write_bytes(b"half")
    checkpoint.save(9, np.arange(5), state(np.arange(5)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current.json", "step-000000009.part-00000.npz"]
