"""Readers of files."""

import gzip

import numpy as np
import pytest

from sottovoce.data import TableData, read_columns, read_libsvm, read_npz, read_table
from sottovoce.data.ingest import ingest
from sottovoce.errors import DataError

TABLES = {
    "t.csv": "a,b,y\n1,2,0\n3,4,1\n",
    "semicolons.csv": '\n"a";b;y\n1;2;0\n\n3;"4";1\n',
    "t.tsv": "a\tb\ty\n1\t2\t0\n3\t4\t1\n",
    "t.arff": "@relation t\n@attribute a real\n@attribute 'b' real\n@attribute y {0,1}\n@data\n1,2,0\n3,4,1",
    "t.svm": "0 1:1 2:2\n1 1:3 2:4 # comment\n",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_formats_agree(tmp_path, name, zipped):
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(TABLES[name].encode()) if zipped else TABLES[name].encode())
    if name == "t.svm":
        data = read_libsvm(file)
        inputs, targets = data.X.toarray(), data.y
    else:
        records = ingest(TableData(file, "y", bounds="none"))
        inputs, targets = records.inputs, records.targets
    assert inputs.tolist() == [[1, 2], [3, 4]]
    assert targets.tolist() == [0, 1]


def test_arff_columns_hold_numbers_and_names(tmp_path):
    file = tmp_path / "t.arff"
    file.write_text(
        "@relation t\n@attribute age real\n@attribute sex {f,m}\n@attribute y {0,1}\n@data\n30,f,0\n?,m,1\n"
    )
    options = {"bounds": {"age": (0, 60)}, "categories": {"sex": ["f", "m"]}}
    records = ingest(TableData(file, "y", **options, missing="middle"))
    assert records.inputs.tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(DataError, match="missing or infinite"):
        ingest(TableData(file, "y", **options))


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
        ("t.csv", 'a;y\n"1,5";1\n', "decimal commas .*; write decimal points"),
        ("t.csv", '"a\nb",y\n1,1\n1\n', "line 4: expected 2 values, got 1"),
        ("t.csv", "a,y\nred,1\n", "row 0 is the first.*expected numbers"),
        ("t.csv", "a,z\n1,1\n", "no column 'y'"),
        ("t.csv", "a,y\n?,1\n", "missing or infinite"),
        ("t.csv", "a,y\ninf,1\n", "missing or infinite"),
        (
            "t.arff",
            "@relation t\n@attribute a real\n@attribute y real\n@data\n1\n",
            "not a readable ARFF table",
        ),
        ("t.arff", "@relation t\n@attribute a\n@data\n1\n", "not a readable ARFF table"),
        ("t.arff", "@relation t\n@attribute a string\n@data\nb\n", "not a readable ARFF table"),
        ("t.txt", "a,y\n1,1\n", "must be a .csv"),
    ],
)
def test_bad_tables_say_what_is_wrong(tmp_path, name, text, sentence):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=sentence):
        ingest(TableData(file, "y", bounds="none"))


@pytest.mark.parametrize("text", ["1 0:2\n", "1 2\n", "word 1:2\n"])
def test_bad_libsvm_lines_are_refused(tmp_path, text):
    (tmp_path / "t.svm").write_text(text)
    with pytest.raises(DataError, match=r"expected lines 'label index:value"):
        read_libsvm(tmp_path / "t.svm")


def test_missing_rows_can_be_dropped(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.array([[np.nan], [2.0]]), y=np.array([1, 0]))
    with pytest.raises(DataError, match="missing or infinite"):
        read_npz(tmp_path / "t.npz")
    data = read_npz(tmp_path / "t.npz", missing="drop")
    assert (data.X.tolist(), data.y.tolist()) == ([[2.0]], [0])
    (tmp_path / "t.svm").write_text("1 1:nan\n0 1:2\n")
    with pytest.raises(DataError, match="missing or infinite"):
        read_libsvm(tmp_path / "t.svm")
    assert read_libsvm(tmp_path / "t.svm", missing="drop").X.toarray().tolist() == [[2.0]]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes("\ufeffa,y\r\n1,0\r\n".encode())
    assert read_columns(file) == {"a": ["1"], "y": ["0"]}
    assert list(read_table(file)) == ["a", "y"]
