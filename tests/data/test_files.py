"""Readers of files."""

import gzip

import numpy as np
import pytest

from sottovoce.data import TableData, read_columns, read_npz, read_table
from sottovoce.data.ingest import ingest
from sottovoce.errors import DataError

TABLES = {
    "t.csv": "a,b,y\n1,2,0\n3,4,1\n",
    "t.tsv": "a\tb\ty\n1\t2\t0\n3\t4\t1\n",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_formats_agree(tmp_path, name, zipped):
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(TABLES[name].encode()) if zipped else TABLES[name].encode())
    records = ingest(TableData(file, "y", bounds="none"))
    assert records.inputs.tolist() == [[1, 2], [3, 4]]
    assert records.targets.tolist() == [0, 1]


def test_npz_refuses_objects(tmp_path):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    np.savez(good, X=np.eye(2), y=np.array([0, 1]))
    np.savez(bad, X=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    assert read_npz(good).n == 2
    with pytest.raises(DataError, match="plain arrays"):
        read_npz(bad)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "a,y\n1\n", "line 2: expected 2 values"),
        ("t.csv", "a,a\n1,2\n", "two columns 'a'"),
        ("t.csv", "a,y\nred,1\n", "row 0 is the first.*expected numbers"),
        ("t.csv", "a,z\n1,1\n", "no column 'y'"),
        ("t.csv", "a,y\n?,1\n", "missing or infinite"),
        ("t.csv", "a,y\ninf,1\n", "missing or infinite"),
        ("t.txt", "a,y\n1,1\n", "must be a .csv"),
    ],
)
def test_bad_tables_say_what_is_wrong(tmp_path, name, text, sentence):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=sentence):
        ingest(TableData(file, "y", bounds="none"))


def test_missing_rows_can_be_dropped(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.array([[np.nan], [2.0]]), y=np.array([1, 0]))
    with pytest.raises(DataError, match="missing or infinite"):
        read_npz(tmp_path / "t.npz")
    data = read_npz(tmp_path / "t.npz", missing="drop")
    assert (data.X.tolist(), data.y.tolist()) == ([[2.0]], [0])


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes("\ufeffa,y\r\n1,0\r\n".encode())
    assert read_columns(file) == {"a": ["1"], "y": ["0"]}
    assert list(read_table(file)) == ["a", "y"]
