"""Elements of a page: guarantees as the page shows them."""

import sottovoce as sv
from sottovoce.report import build, elements


def test_what_was_read_and_not_charged_is_not_shown_as_a_plain_guarantee():
    stated = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0).privacy(
        "local"
    )
    stored = stated.to_dict(delta=1e-5)
    assert elements.guarantee_row(stored)["verdict"] == "Guarantee"
    row = elements.guarantee_row(stored | {"accepted": ["standardize"]})
    assert row["verdict"] == "Guarantee, except for what was accepted: standardize"
    result = {"name": "plan", "config": {}, "metrics": {"cost": {"messages": 1}}, "provenance": {}}
    page = build([result | {"guarantees": [stored | {"accepted": ["standardize"]}]}], "t", "l")
    assert 'class="yes"' not in page
