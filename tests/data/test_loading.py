"""Files, named data sets and partitions."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data import (
    Dataset,
    Shards,
    by_column,
    by_label,
    dirichlet,
    equal,
    load,
    read_file,
    signed_labels,
    skew_matrix,
)
from sottovoce.errors import DataError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def real_data(monkeypatch):
    folder = Path(os.environ.get("SOTTOVOCE_DATA") or SHARED)
    if not (folder / "electricity").is_dir():
        pytest.skip("no data folder; set SOTTOVOCE_DATA")
    monkeypatch.setenv("SOTTOVOCE_DATA", str(folder))


@pytest.mark.parametrize(
    ("name", "shape", "positive"),
    [
        ("electricity", (45312, 8), 19237),
        ("houses", (20640, 8), 8914),
        ("madelon", (2600, 500), 1300),
        ("dorothea", (800, 100_000), 78),
        ("heart_disease", (740, 10), None),
    ],
)
def test_named_sets_have_the_published_sizes(real_data, name, shape, positive):
    data = load(name)
    assert data.X.shape == shape
    assert set(np.unique(data.y)) == {-1.0, 1.0}
    if positive is not None:
        assert (data.y == 1).sum() == positive


def test_heart_disease_sites(real_data):
    parts = by_column(load("heart_disease").groups)
    assert sorted(map(len, parts)) == [46, 130, 261, 303]


def test_dorothea_stays_sparse(real_data):
    data = load("dorothea")
    assert sp.issparse(data.X)
    assert data.X.nnz == 727760
    assert sp.issparse(data.unit_rows().X)


TABLES = {
    "t.csv": "a,b,y\n1,2,0\n3,4,1\n",
    "t.tsv": "a\tb\ty\n1\t2\t0\n3\t4\t1\n",
    "t.arff": "@relation\n@attribute a real\n@attribute 'b' real\n@attribute y {0,1}\n@data\n1,2,0\n3,4,1\n",
    "t.svm": "0 1:1 2:2\n1 1:3 2:4 # comment\n",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_formats_agree(tmp_path, name, zipped):
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(TABLES[name].encode()) if zipped else TABLES[name].encode())
    options = {} if name == "t.svm" else {"label": "y"}
    data = read_file(file, **options)
    X = data.X.toarray() if sp.issparse(data.X) else data.X
    assert X.tolist() == [[1, 2], [3, 4]]
    assert data.y.tolist() == [0, 1]


def test_npz_refuses_objects(tmp_path):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    np.savez(good, X=np.eye(2), y=np.array([0, 1]))
    np.savez(bad, X=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    assert read_file(good).n == 2
    with pytest.raises(DataError, match="plain arrays"):
        read_file(bad)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a,y\n1\n", "line 2: expected 2 values"),
        ("a,y\nred,1\n", "'red' in row 0, expected numbers"),
        ("a,z\n1,1\n", "no column 'y'"),
        ("a,y\n?,1\n", "missing or infinite"),
        ("a,y\ninf,1\n", "missing or infinite"),
        ("a,y\n1,x\n2,z\n3,w\n", "two class names"),
    ],
)
def test_bad_tables_say_what_is_wrong(tmp_path, text, sentence):
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_file(file, label="y")


def test_missing_rows_can_be_dropped(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,s,y\n?,p,1\n2,q,0\n")
    data = read_file(file, label="y", group="s", missing="drop")
    assert data.X.tolist() == [[2.0]]
    assert data.groups.tolist() == ["q"]


@pytest.mark.parametrize("bad", [[0, 1, 2], [1, 2], ["a", "b"], [np.nan, 1]])
def test_labels_outside_two_classes_are_refused(bad):
    with pytest.raises(DataError, match="Labels must be 0/1 or -1/1"):
        signed_labels(bad)


def test_bounds_that_do_not_hold():
    data = Dataset("d", np.array([[0.0], [2.0]]), np.ones(2))
    with pytest.raises(DataError, match="low < high"):
        data.bounded(1, -1)
    with pytest.raises(DataError, match="one number or one per feature"):
        data.bounded([0, 0], [1, 1])
    assert data.bounded(-1, 1).X.tolist() == [[0.0], [1.0]]


def test_standardizing_is_noted_as_not_private():
    data = Dataset("d", np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([1, -1]))
    assert data.uncharged == ()
    assert data.standardized().uncharged == ("standardize",)
    assert data.standardized().X.tolist() == [[-1, 0], [1, 0]]


def test_shards_refuse_empty_users_and_shared_records():
    with pytest.raises(DataError, match="User 1 has no records"):
        Shards.from_parts(np.eye(2), np.ones(2), [np.array([0, 1]), np.array([], dtype=int)])
    with pytest.raises(DataError, match="two users"):
        Shards.from_parts(np.eye(2), np.ones(2), [np.array([0, 1]), np.array([1])])


@pytest.mark.parametrize("skew", [0.0, 0.25, 1.0])
def test_label_skew_follows_the_matrix(skew):
    y = np.repeat(np.arange(10), 1000)
    parts = by_label(y, 5, skew, np.random.default_rng(0))
    A = skew_matrix(5, 10, skew)
    assert np.allclose(A.sum(axis=0), 1)
    shares = np.array([[np.mean(np.isin(np.flatnonzero(y == c), part)) for c in range(10)] for part in parts])
    assert np.abs(shares - A).max() <= 1e-3
    assert sorted(np.concatenate(parts)) == list(range(10_000))


def test_partitions_are_disjoint_and_repeatable():
    for make in (
        lambda rng: equal(103, 10, rng),
        lambda rng: dirichlet(np.arange(103) % 3, 10, 0.05, rng),
    ):
        once, again = make(np.random.default_rng(7)), make(np.random.default_rng(7))
        assert all((a == b).all() for a, b in zip(once, again, strict=True))
        rows = np.concatenate(once)
        assert len(np.unique(rows)) == len(rows)
        assert min(map(len, once)) >= 1
    with pytest.raises(DataError, match="take fewer users"):
        equal(3, 4, np.random.default_rng(0))


# ---- records of several agents ----------------------------------------------------------------------------


def test_a_list_of_pairs_is_dealt_out():
    from sottovoce.data.base import as_agent_records

    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(k, 3)), np.sign(rng.normal(size=k))) for k in (4, 2, 5)]
    shards = as_agent_records(pairs)
    assert shards.sizes.tolist() == [4, 2, 5]
    for i, (X, y) in enumerate(pairs):
        assert (shards.user(i)[0] == X).all()
        assert (shards.user(i)[1] == y).all()
    assert as_agent_records(shards) is shards


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "one per agent, got NoneType"),
        (np.eye(3), "one per agent, got ndarray"),
        ((np.eye(3), np.ones(3)), "one per agent, got tuple"),
        ([(np.eye(3), np.ones(2))], "agent 0 must have"),
        ([(np.eye(3), np.ones(3)), (np.eye(2), np.ones(2))], "agent 1 must have"),
        ([([["a"]], [1])], "must hold numbers"),
        ([], "Offsets"),
    ],
)
def test_other_things_are_refused_in_one_sentence(given, said):
    import sottovoce as sv

    options = {"steps": 2, "sizes": [3] * 4, "batch_size": 2, "clip_norm": 1.0, "noise_multiplier": 2.0}
    plan = sv.algorithms.DPDSGD(sv.objectives.GLM(dim=3), sv.graphs.ring(4), **options)
    with pytest.raises(DataError, match=said) as caught:
        plan.run(given, np.random.default_rng(0))
    assert "\n" not in str(caught.value)
