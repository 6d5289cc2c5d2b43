import json

from sottovoce.report.result_files import read_result

from .plans import BUDGETED_TRAINING


def test_search_has_an_out_and_a_result(call, tmp_path):
    (tmp_path / "plan.toml").write_text(
        BUDGETED_TRAINING.format(protocol="masked", adjacency="add-remove", steps=5, epsilon=4.0)
    )
    answer = call("search", "plan.toml", "--rates", "1,2", "--out", "result.json", "--json")
    assert answer.code == 0, answer
    assert read_result(tmp_path / "result.json")["metrics"]["runs"] == 2
    assert json.loads((tmp_path / "result.json").read_text()) == answer.json
