"""Elements of a page: best guesses, and guarantees as the page shows them."""

from scipy.stats import norm

import sottovoce as sv
from sottovoce.report import build, elements


def test_best_guess_is_the_bound_of_the_definition():
    for epsilon in (0.1, 1.0, 5.0):
        mu = sv.privacy.gaussian_mu(epsilon, 1e-5)
        attained = norm.cdf(mu / 2)  # the best test of a Gaussian pair, fair coin
        assert attained <= elements.best_guess(epsilon, 1e-5) <= 1
    assert [elements.best_guess(*point) for point in ((0.0, 0.0), ("inf", 1e-5))] == [0.5, 1.0]


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
