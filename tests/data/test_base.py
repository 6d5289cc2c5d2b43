"""Data sets and shards."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Dataset, Shards, signed_labels
from sottovoce.data.base import as_agent_records
from sottovoce.errors import DataError


@pytest.mark.parametrize("bad", [[0, 1, 2], [1, 2], ["a", "b"], [np.nan, 1]])
def test_labels_outside_two_classes_are_refused(bad):
    with pytest.raises(DataError, match="Labels must be 0/1 or -1/1"):
        signed_labels(bad)


def test_bounds_scale_features_or_are_refused():
    data = Dataset("d", np.array([[0.0, 9.0], [4.0, 1.0]]), np.ones(2))
    with pytest.raises(DataError, match="low < high"):
        data.bounded(1, -1)
    with pytest.raises(DataError, match="one number or one per feature"):
        data.bounded([0, 0, 0], [1, 1, 1])
    assert data.bounded([0, 0], [4, 2]).X.tolist() == [[-1, 1], [1, 0]]
    assert data.bounded(-1, 1).X.tolist() == [[0, 1], [1, 1]]


def test_standardizing_is_uncharged():
    data = Dataset("d", np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([1, -1]))
    assert data.uncharged == ()
    assert data.standardized().uncharged == ("standardize",)
    assert data.standardized().X.tolist() == [[-1, 0], [1, 0]]


def test_shards_refuse_empty_users_and_shared_records():
    with pytest.raises(DataError, match="Agent 1 has no records"):
        Shards.from_parts(np.eye(2), np.ones(2), [np.array([0, 1]), np.array([], dtype=int)])
    with pytest.raises(DataError, match="two agents"):
        Shards.from_parts(np.eye(2), np.ones(2), [np.array([0, 1]), np.array([1])])


def test_a_list_of_pairs_becomes_shards():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(k, 3)), np.sign(rng.normal(size=k))) for k in (4, 2, 5)]
    shards = as_agent_records(pairs)
    assert shards.sizes.tolist() == [4, 2, 5]
    for i, (X, y) in enumerate(pairs):
        assert (shards.user(i)[0] == X).all()
        assert (shards.user(i)[1] == y).all()
    assert as_agent_records(shards) is shards


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "one per agent, got NoneType"),
        (np.eye(3), "one per agent, got ndarray"),
        ((np.eye(3), np.ones(3)), "one per agent, got tuple"),
        ([(np.eye(3), np.ones(2))], "agent 0 must have"),
        ([(np.eye(3), np.ones(3)), (np.eye(2), np.ones(2))], "agent 1 must have"),
        ([([["a"]], [1])], "must hold numbers"),
        ([], "There are no agents"),
    ],
)
def test_other_data_are_refused_in_one_sentence(data, message):
    options = {"steps": 2, "sizes": [3] * 4, "batch_size": 2, "clip_norm": 1.0, "noise_multiplier": 2.0}
    plan = sv.algorithms.DPDSGD(sv.objectives.GLM(dim=3), sv.graphs.ring(4), **options)
    with pytest.raises(DataError, match=message) as caught:
        plan.run(data, np.random.default_rng(0))
    assert "\n" not in str(caught.value)
