import json

from sottovoce.report.result_files import read_result

from .plans import BUDGETED_TRAINING


def test_search_has_an_out_and_a_result(call, tmp_path):
    (tmp_path / "plan.toml").write_text(
        BUDGETED_TRAINING.format(protocol="masked", adjacency="add-remove", steps=5, epsilon=4.0)
    )
    told = call("search", "plan.toml", "--rates", "1,2", "--out", "found.json", "--json")
    assert told.code == 0, told
    assert read_result(tmp_path / "found.json")["metrics"]["runs"] == 2
    assert json.loads((tmp_path / "found.json").read_text()) == told.json
