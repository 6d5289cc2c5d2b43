"""Sections: the general one, and results that lack what their section shows."""

import pytest

import sottovoce as sv
from sottovoce.errors import DataError
from sottovoce.report import sections


def test_unknown_results_get_a_general_section():
    result = sv.Result(
        "something-new", config={"steps": 3}, metrics={"accuracy": 0.9, "rows": [1, 2]},
        history=[{"step": k, "loss": 1.0 / k} for k in range(1, 5)],
    ).to_dict()  # fmt: skip
    section = sections.section_of(result)
    assert [b.kind for b in section.blocks] == ["table", "figure", "table"]
    assert section.blocks[0].rows == (("accuracy", 0.9),)


def test_result_without_its_numbers_is_refused():
    with pytest.raises(DataError, match="lacks what its section shows"):
        sections.section_of(sv.Result("account").to_dict())
