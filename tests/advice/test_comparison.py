"""Plans side by side: the dominated ones are marked, and the front is drawn."""

import pytest

import sottovoce as sv
from sottovoce.advice.comparison import compare
from sottovoce.errors import InvalidInput


def test_compare_marks_what_is_dominated():
    make = lambda network, std: sv.PrivateAveraging("tree", network=network, noise_std=std, radius=0.5)  # noqa: E731
    rows = compare(
        {"star": make("star:7", 2.0), "path": make("path:7", 2.0), "loud": make("star:7", 3.0)}, delta=1e-5
    )
    by = {row.name: row.dominated_by for row in rows}
    assert by == {"star": None, "path": "star", "loud": None}  # the loud one reveals less
    assert rows[1].seconds > rows[0].seconds
    with pytest.raises(InvalidInput, match="at least one plan"):
        compare([], delta=1e-5)


def test_the_front_is_drawn(tmp_path):
    advice = sv.advise(4, epsilon=4.0, delta=1e-5, records=30)
    assert b"<svg" in advice.plot(tmp_path / "front.svg").read_bytes()
    assert advice.plot(tmp_path / "front.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InvalidInput, match="drawn as"):
        advice.plot(tmp_path / "front.pdf")
