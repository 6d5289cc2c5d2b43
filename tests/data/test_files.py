"""Readers of table files."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data import read_columns, read_file
from sottovoce.errors import DataError

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


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes("\ufeffa,y\r\n1,0\r\n".encode())
    assert read_columns(file) == {"a": ["1"], "y": ["0"]}
