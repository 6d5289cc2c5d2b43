"""Results: saved and loaded whole, or refused with a sentence."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.report.result_files import read_result
from sottovoce.runners import Result

RESULT = Result(
    "demo",
    config={"n": np.int64(2)},
    outputs={
        "coef": np.array([0.5, np.nan]),
        "file": np.zeros((2, 0), np.float32),
        "labels": np.array(["é"]),
    },
    metrics={"error": np.inf},
    history=[{"step": 1}],
    guarantees=[{"label": "ldp"}],
    provenance={"version": "0"},
)


def test_there_and_back(tmp_path):
    folder = RESULT.save(tmp_path / "new" / "study")
    again = Result.load(folder)
    assert again.to_dict() == RESULT.to_dict()
    assert list(again.outputs) == list(RESULT.outputs)
    for name, array in RESULT.outputs.items():
        assert again.outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(again.outputs[name], array)
    np.testing.assert_array_equal(again.coef, [0.5, np.nan])
    assert read_result(folder / "record.json")["metrics"] == {"error": "inf"}  # the report reads it too


def test_without_outputs(tmp_path):
    Result("bare").save(tmp_path)
    assert Result.load(tmp_path).outputs == {}
    with pytest.raises(InvalidInput, match="bare has no coef; its outputs are: none"):
        _ = Result.load(tmp_path).coef
    with pytest.raises(InvalidInput, match="its outputs are: 'rows'"):
        _ = Result("x", outputs={"rows": np.ones(1)}).coef


def test_no_code_is_written_or_read(tmp_path):
    with pytest.raises(InvalidInput, match="'odd' must be an array of numbers"):
        Result("x", outputs={"odd": np.array([object()])}).save(tmp_path)
    RESULT.save(tmp_path)
    with open(tmp_path / "arrays.npz", "wb") as file:
        np.savez(file, **{"output.coef": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        Result.load(tmp_path)


def test_what_is_no_result_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(DataError, match="There is no result in"):
            Result.load(place)
    with pytest.raises(DataError, match="is a file"):
        RESULT.save(tmp_path / "file")


@pytest.mark.parametrize("name", ["record.json", "arrays.npz"])
@pytest.mark.parametrize("damage", [lambda content: content[:-30], lambda content: b'{"name": "x"}'])
def test_damaged_results_are_refused(tmp_path, name, damage):
    RESULT.save(tmp_path)
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        Result.load(tmp_path)


def test_arrays_of_another_run_are_noticed(tmp_path):
    RESULT.save(tmp_path / "a")
    Result("demo", outputs={**RESULT.outputs, "coef": np.ones(2)}).save(tmp_path / "b")
    (tmp_path / "b" / "arrays.npz").replace(tmp_path / "a" / "arrays.npz")
    with pytest.raises(DataError, match="does not belong to the result"):
        Result.load(tmp_path / "a")


def test_a_history_as_a_data_frame_and_as_latex(monkeypatch):
    history = [{"step": 5, "loss": 0.5, "epsilon": 1.25}, {"step": 10, "loss": 0.25}]
    result = Result("run", history=history, metrics={"accuracy": 0.9, "cost": {"rounds": 3}})
    assert result.to_frame().dropna().to_dict("records") == history[:1]
    assert result.to_frame()["step"].tolist() == [5, 10]
    assert replace(result, history=()).to_frame().to_dict("records") == [result.metrics]
    assert result.to_latex().splitlines()[2:6] == [
        r"step & loss & epsilon \\", r"\midrule", r"5 & 0.5 & 1.25 \\", r"10 & 0.25 &  \\"
    ]  # fmt: skip
    assert r"accuracy \\" in replace(result, history=()).to_latex()  # a table in a table has no cell
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pip install pandas"):
        result.to_frame()
    with pytest.raises(InvalidInput, match="no numbers"):
        Result("run").to_latex()
