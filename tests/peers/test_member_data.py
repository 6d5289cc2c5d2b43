"""A member's records: read from CSV and NPZ, refused with the name of the file."""

import csv

import numpy as np
import pytest

from sottovoce.errors import DataError
from sottovoce.peers.member_data import read_records


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "no column 'c'"),
        ("a,b,c\n1,2\n", "line 2"),
        ("a,b,c\n", "at least one record"),
        ("a,b,c\n1,2,x\n", "expected numbers"),
        ("a,b,c\n1,2,nan\n", "missing or infinite"),
    ],
)
def test_data_that_does_not_fit_names_the_file(content, words, consortium, tmp_path):
    group = consortium(data={"features": ["a", "b", "c"]})
    file = tmp_path / "mine.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        read_records(file, group.agreement)
    assert str(file) in str(caught.value)


def test_csv_and_npz_give_the_same_records(consortium, tmp_path):
    group = consortium(
        algorithm={"name": "dp-dsgd", "protocol": "gossip:1", "steps": 2},
        data={"features": ["a", "b", "c"], "target": "t"},
    )
    (tmp_path / "m.csv").write_text("t,c,b,a\n1,3,2,1\n0,6,5,4\n")
    np.savez(tmp_path / "m.npz", a=[1.0, 4.0], b=[2.0, 5.0], c=[3.0, 6.0], t=[1.0, 0.0])
    first, second = (read_records(tmp_path / name, group.agreement) for name in ("m.csv", "m.npz"))
    assert np.array_equal(first.X, second.X)
    assert first.y.tolist() == second.y.tolist() == [1.0, -1.0]
    np.savez(tmp_path / "o.npz", a=np.array([{"x": 1}], dtype=object), b=[1.0], c=[1.0], t=[1.0])
    with pytest.raises(DataError, match="plain arrays"):
        read_records(tmp_path / "o.npz", group.agreement)


def test_spreadsheets_are_read_and_doubtful_ones_refused(consortium, tmp_path):
    group = consortium(n=2, graph="path:2", dim=2, data={"features": ["größe", "b"]})
    file = tmp_path / "mine.csv"
    file.write_bytes("\ufeffgröße,b\r\n1,2\r\n".encode())
    assert read_records(file, group.agreement).X.tolist() == [[1.0, 2.0]]
    for content, words in (
        ("größe,b,b\n1,2,3\n", "two columns 'b'"),
        (f"größe,b\n{'1' * 200_000},2\n", "limit"),
    ):
        file.write_text(content, encoding="utf-8")
        for limit in (csv.field_size_limit(), 10**9):  # other libraries move the limit of the process
            before = csv.field_size_limit(limit)
            with pytest.raises(DataError, match=words):
                read_records(file, group.agreement)
            csv.field_size_limit(before)
