"""Results on disk: what is no result is refused with a sentence."""

import pytest

from sottovoce.errors import DataError
from sottovoce.report import result_files


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not JSON"),
        (b"[1]", "has no name"),
        (b'{"name": 3}', "has no name"),
        (b'{"name": "x", "metrics": []}', "'metrics'"),
        (b"\xff\xfe", "not text"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_no_results(tmp_path, content, sentence):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        result_files.read_result(tmp_path / "r.json")


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        result_files.read_result(tmp_path / "r.json")


def test_results_hold_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        result_files.write_result(tmp_path / "r.json", {"name": "x", "metrics": {"a": float("nan")}})
    assert list(tmp_path.iterdir()) == []
