"""Checkpoints: whole or not there, of this plan or refused, readable by any number of ranks."""

from typing import NamedTuple

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError
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
    got = saved(tmp_path).read(agents, like)
    assert isinstance(got, State)
    assert (got.theta == state(agents).theta).all()
    assert (got.moments["first"] == state(agents).moments["first"]).all()
    assert got.count == 5


def test_an_unfinished_write_changes_nothing(tmp_path):
    checkpoint = saved(tmp_path)
    checkpoint.write(8, np.array([0, 1, 4]), state(np.array([0, 1, 4])), 0)
    assert checkpoint.found().step == 7
    assert checkpoint.read(np.array([4]), state(np.array([4]))).theta.tolist() == [[4.0, 8.0]]


def test_older_files_go_when_a_newer_checkpoint_is_whole(tmp_path):
    saved(tmp_path)
    saved(tmp_path, parts=([0, 1, 2, 3, 4],))
    assert len(list(tmp_path.glob("step-*"))) == 1


def test_refusals_say_why(tmp_path):
    assert Checkpoint(tmp_path, "a").found() is None
    checkpoint = saved(tmp_path)
    with pytest.raises(ConfigError, match="another plan"):
        Checkpoint(tmp_path, "b").found()
    with pytest.raises(DataError, match="lacks agent 9"):
        checkpoint.read(np.array([4, 9]), state(np.array([4, 9])))
    with pytest.raises(ConfigError, match="shape"):
        checkpoint.read(np.array([0]), state(np.array([0]))._replace(theta=np.zeros((1, 3))))
    with pytest.raises(ConfigError, match="arrays"):
        checkpoint.read(np.array([0]), np.zeros((1, 2)))
    part = next(tmp_path.glob("step-*"))
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.read(np.array([0]), state(np.array([0])))
    (tmp_path / "current.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        checkpoint.found()
