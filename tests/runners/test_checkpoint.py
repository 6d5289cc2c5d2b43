"""Checkpoints: whole or not there, of this plan or refused, readable by any number of ranks."""

from typing import NamedTuple

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError, DataError, InvalidInput
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.runners.checkpoint import Checkpoint, identity_of


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
    _, loaded, _ = saved(tmp_path).load(agents, like)
    assert isinstance(loaded, State)
    assert (loaded.theta == state(agents).theta).all()
    assert (loaded.moments["first"] == state(agents).moments["first"]).all()
    assert loaded.count == 5


def test_an_unfinished_write_changes_nothing(tmp_path):
    checkpoint = saved(tmp_path)
    checkpoint.write(8, np.array([0, 1, 4]), state(np.array([0, 1, 4])), 0)
    assert checkpoint.latest().step == 7
    assert checkpoint.load(np.array([4]), state(np.array([4])))[1].theta.tolist() == [[4.0, 8.0]]


def test_older_files_go_when_a_newer_checkpoint_is_whole(tmp_path):
    saved(tmp_path)
    saved(tmp_path, parts=([0, 1, 2, 3, 4],))
    assert len(list(tmp_path.glob("step-*"))) == 1


def test_refusals_say_why(tmp_path):
    assert Checkpoint(tmp_path, "a").latest() is None
    checkpoint = saved(tmp_path)
    with pytest.raises(ConfigError, match="another plan"):
        Checkpoint(tmp_path, "b").latest()
    with pytest.raises(DataError, match="lacks agent 9"):
        checkpoint.load(np.array([4, 9]), state(np.array([4, 9])))
    with pytest.raises(ConfigError, match="shape"):
        checkpoint.load(np.array([0]), state(np.array([0]))._replace(theta=np.zeros((1, 3))))
    with pytest.raises(ConfigError, match="arrays"):
        checkpoint.load(np.array([0]), np.zeros((1, 2)))
    part = next(tmp_path.glob("step-*"))
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.load(np.array([0]), state(np.array([0])))
    (tmp_path / "current.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        checkpoint.latest()


def test_one_process_saves_and_loads(tmp_path):
    everybody, checkpoint = np.arange(5), Checkpoint(tmp_path / "new" / "folder", "a")
    assert checkpoint.load(everybody, state(everybody)) is None
    checkpoint.save(7, everybody, state(everybody), about={"seeds": (1, np.int64(2)), "best": np.inf})
    step, loaded, about = checkpoint.load(everybody, state(0 * everybody))
    assert step == 7
    assert isinstance(loaded, State)
    assert (loaded.theta == state(everybody).theta).all()
    assert about == {"seeds": [1, 2], "best": "inf"}
    checkpoint.save(8, everybody, state(2 * everybody))
    step, loaded, about = checkpoint.load(everybody, state(everybody))
    assert (step, about) == (8, {})
    assert (loaded.theta == state(2 * everybody).theta).all()
    assert sorted(p.name for p in checkpoint.folder.iterdir()) == [
        "current.json",
        "step-000000008.part-00000.npz",
    ]


def test_parts_of_ranks_and_of_one_process_are_one_format(tmp_path):
    saved(tmp_path)
    step, loaded, _ = Checkpoint(tmp_path, "a").load(np.arange(5), state(np.zeros(5, int)))
    assert (step, loaded.theta.tolist()) == (7, state(np.arange(5)).theta.tolist())
    Checkpoint(tmp_path, "a").save(9, np.arange(5), loaded)
    assert Checkpoint(tmp_path, "a").load(np.array([3]), state(np.array([0])))[1].theta.tolist() == [
        [3.0, 6.0]
    ]


def test_what_is_stored_keeps_its_precision(tmp_path):
    """A fresh state may begin in float32 and as a whole number, and have become something else since."""
    checkpoint, third = Checkpoint(tmp_path, "a"), np.full((2, 1), 1 / 3)
    checkpoint.save(1, np.arange(2), (third, 0.5))
    _, (rows, number), _ = checkpoint.load(np.arange(2), (np.zeros((2, 1), np.float32), 0))
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
    with pytest.raises(ConfigError, match=r"shape \(3,\), this algorithm's state has \(4,\)"):
        checkpoint.load(everybody, (np.zeros(4), np.zeros((2, 1))))
    checkpoint.save(1, everybody, ())
    with pytest.raises(ConfigError, match="0 arrays, this algorithm's state has 2"):
        checkpoint.load(everybody, (np.zeros(3), np.zeros((2, 1))))
    (tmp_path / "a" / "current.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read: not text"):
        checkpoint.latest()
    (tmp_path / "a" / "current.json").unlink()
    (tmp_path / "a" / "current.json").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        checkpoint.latest()


def test_leftovers_of_a_crash_go_with_the_next_checkpoint(tmp_path):
    checkpoint = saved(tmp_path)
    for name in (".step-000000008.part-00000.npz.7-ab.part", ".current.json.7-ab.part"):
        (tmp_path / name).write_bytes(b"half")
    checkpoint.save(9, np.arange(5), state(np.arange(5)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current.json", "step-000000009.part-00000.npz"]


RING, PATH = (sv.protocols.Gossip(graph, rounds=2) for graph in (sv.graphs.ring(4), sv.graphs.path(4)))
PLAN = {"clip_norm": 1.0, "X": np.arange(4.0)}
OTHERS = {
    "steps": lambda: identity_of(PLAN, RING, 4),
    "protocol": lambda: identity_of(PLAN, PATH, 3),
    "last protocol": lambda: identity_of(PLAN, lambda k: PATH if k == 2 else RING, 3),
    "rounds": lambda: identity_of(PLAN, sv.protocols.Gossip(sv.graphs.ring(4), rounds=3), 3),
    "clip_norm": lambda: identity_of({**PLAN, "clip_norm": 2.0}, RING, 3),
    "data": lambda: identity_of({**PLAN, "X": np.arange(4.0)[::-1]}, RING, 3),
    "noise": lambda: identity_of(PLAN, RING, 3, noise=SimulatedNoise(1)),
    "seed": lambda: identity_of(PLAN, RING, 3, noise=SimulatedNoise(2)),
    "walk": lambda: identity_of(PLAN, sv.protocols.Walk(sv.graphs.ring(4), 4, np.random.default_rng(0)), 3),
}


def test_another_run_has_another_identity(monkeypatch):
    own = identity_of(PLAN, RING, 3)
    names = {name: other() for name, other in OTHERS.items()}
    assert len({own, *names.values()}) == len(OTHERS) + 1
    again = sv.protocols.Gossip(sv.graphs.ring(4), rounds=2)  # equal, not the same object
    assert own == identity_of(dict(reversed(PLAN.items())), lambda k: again, 3)
    monkeypatch.setattr(sv, "__version__", "0.0.0")
    assert own != identity_of(PLAN, RING, 3)
