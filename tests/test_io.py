"""Atomic files, plain values, TOML and digests."""

import hashlib
import json
import os
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from sottovoce._io import atomic_write, digest, to_jsonable, to_toml
from sottovoce.errors import DataError, InvalidInput


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("content", ["é", "é".encode(), lambda file: file.write("é".encode())])
def test_content_in_three_forms(tmp_path, content, durable):
    path = atomic_write(tmp_path / "a" / "b.txt", content, durable=durable)
    assert path.read_bytes() == "é".encode()
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


def failing(file):
    file.write(b"half")
    raise ZeroDivisionError


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = atomic_write(tmp_path / "a", "old")
    with pytest.raises(ZeroDivisionError):
        atomic_write(path, failing)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_refused_in_one_sentence(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    path = atomic_write(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"a cannot be written: No space left on device\.$"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a folder"):
        atomic_write(tmp_path, "x")
    with pytest.raises(DataError, match="cannot be written"):
        atomic_write(tmp_path / "file" / "below", "x")


def test_durable_means_file_before_name_before_folder(tmp_path, monkeypatch):
    """The order is what a crash of the machine depends on."""
    seen, fsync, replace = [], os.fsync, os.replace

    def synced(handle):
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def renamed(*names):
        seen.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    atomic_write(tmp_path / "a", "x")
    assert seen == ["file", "name", "folder"]
    seen.clear()
    atomic_write(tmp_path / "a", "x", durable=False)
    assert seen == ["name"]


def test_bytes_are_flushed_before_the_file_is_synced(tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync

    def synced(handle):
        sizes.append(os.fstat(handle).st_size)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    atomic_write(tmp_path / "a", b"x" * 100)
    assert sizes[0] == 100


def test_rights(tmp_path):
    (tmp_path / "plain").touch()
    open_to_all = atomic_write(tmp_path / "a", "x").stat().st_mode
    assert open_to_all == (tmp_path / "plain").stat().st_mode
    assert stat.S_IMODE(atomic_write(tmp_path / "b", "x", mode=0o600).stat().st_mode) == 0o600


def test_plain_values_are_json():
    value = {1: np.float32(0.5), "a": (np.int64(2), {"y", "x"}), "b": [np.nan, -np.inf], "c": Path("d/e")}
    assert to_jsonable(value) == {"1": 0.5, "a": [2, ["x", "y"]], "b": [None, "-inf"], "c": "d/e"}
    assert json.loads(json.dumps(to_jsonable(value), allow_nan=False)) == to_jsonable(value)
    assert to_jsonable(np.array([[1, 2]])) == [[1, 2]]
    assert to_jsonable(True) is True


def test_the_digest_of_plain_values_is_that_of_their_json():
    value = {"b": [1, 2.5, None], "a": "é"}
    assert digest(value) == hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    assert digest({"x": (1, 2)}) == digest({"x": [np.int64(1), 2]})


DIFFERENT = [
    np.zeros(4), np.zeros(4, int), np.zeros(4, np.float32), np.zeros((2, 2)), np.zeros(5), np.ones(4),
    np.zeros(0),
    np.zeros((0, 1)), np.zeros((2, 2, 1)), [0.0] * 4, sparse.csr_array(np.eye(2)), np.eye(2),
    sparse.csr_array(np.eye(2)[::-1]), {"x": np.ones(2)}, {"y": np.ones(2)}, np.array(["a", "b"]),
    None, 0, "0",
    np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 3.0], [2.0, 4.0]]),
]  # fmt: skip


def test_arrays_count_by_type_shape_and_bytes():
    assert len({digest(value) for value in DIFFERENT}) == len(DIFFERENT)
    turned = np.array([[1.0, 3.0], [2.0, 4.0]]).T  # the same values, laid out otherwise
    assert digest(turned) == digest(np.ascontiguousarray(turned))
    assert digest(sparse.coo_array(np.eye(2))) == digest(sparse.csr_array(np.eye(2)))


def test_objects_without_stable_bytes_have_no_digest():
    for value in (object(), {"f": len}, [1j]):
        with pytest.raises(InvalidInput, match="plain values and arrays"):
            digest(value)


def test_tables_are_written_as_toml_and_read_back():
    tables = {
        "version": 1, "title": 'a "title"\u2028', "text": "two\nlines",
        "network": {"graph": "ring:4", "names": ["ä", "b c"], "odd key": {"x": (1, 2.5, True)}},
        "members": [{"name": "ada", "certificate": "-----\n" + "A" * 120 + "\n"}],
    }  # fmt: skip
    text = to_toml(tables, ["first", "second"])
    assert text.startswith("# first\n# second\nversion = 1\n")
    read = tomllib.loads(text)
    tables["network"]["odd key"]["x"] = [1, 2.5, True]
    assert read == tables
