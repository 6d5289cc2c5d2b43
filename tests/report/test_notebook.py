"""What a notebook shows: the objects' own numbers, escaped, with a picture, whatever the object."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

import sottovoce as sv
from sottovoce._format import number
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.privacy import Adversary, Curve

GRID = sv.graphs.grid(3, 3)
PLAN = sv.PrivateAveraging(sv.protocols.Tree(GRID), noise_std=1.0, radius=0.5)
RUN = sv.Result(
    "demo",
    metrics={"error": 0.25},
    history=[{"step": 1, "accuracy": 0.5, "loss": 2.0}, {"step": 2, "accuracy": 0.75, "loss": 1.0}],
    guarantees=[PLAN.privacy("local").to_dict(1e-5)],
)
EXAMPLES = {
    "network": sv.graphs.florentine(),
    "gossip": sv.protocols.Gossip(GRID, rounds=3),
    "fresh-noise": sv.protocols.FreshNoiseGossip(GRID, 3, fresh_noise_std=0.2),
    "exchange": sv.protocols.HypercubeExchange(8),
    "masked": sv.protocols.Masked(GRID),
    "walk": sv.protocols.Walk(GRID, steps=5, rng=np.random.default_rng(0)),
    "view": sv.protocols.Gossip(GRID, rounds=3).view([0, 4]),
    "outsider": sv.protocols.Masked(GRID).view(),
    "guarantee": PLAN.privacy("network"),
    "average": PLAN,
    "training": sv.algorithms.ConsensusSGD(
        sv.objectives.GLM(dim=3), GRID, steps=4, clip_norm=1.0, noise_multiplier=8.0, sizes=[50] * 9
    ),
    "curator": sv.algorithms.DPSGD(
        sv.objectives.GLM(dim=3), records=100, steps=4, batch_size=10, clip_norm=1.0, noise_multiplier=4.0
    ),
    "result": RUN,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_everything_is_shown_and_drawn(name):
    page = EXAMPLES[name]._repr_html_()
    tree = ElementTree.fromstring(page.replace("<details>", "<div>").replace("</details>", "</div>"))
    assert tree.tag == "div"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    axes = Figure().add_subplot()
    assert EXAMPLES[name].plot(axes) is axes
    assert axes.has_data()


def test_a_guarantee_is_shown_with_its_own_numbers():
    guarantee = PLAN.privacy("pairwise", observer=0, user=8)
    page = guarantee._repr_html_()
    assert f"{number(guarantee.epsilon(1e-5), 'epsilon')} at delta 1e-05" in page
    assert wording.guess(guarantee.best_guess) in page
    assert "node 0, about node 8" in page
    assert "exact" in page
    assert all(line in page for line in guarantee.assumptions)


def test_published_numbers_and_uncharged_reads_are_red():
    local = Adversary("local")
    fine = Guarantee(local, "user", "ldp", Curve.gaussian(1.0))
    printed = Guarantee(local, "user", "published", Curve.gaussian(1.0))
    holed = Guarantee(local, "user", "ldp", Curve.gaussian(1.0), (wording.uncharged("standardize"),))
    red = "#c0392b"
    assert red not in fine._repr_html_()
    assert red in printed._repr_html_()
    assert "Not a guarantee" in printed._repr_html_()
    assert red in holed._repr_html_()


def test_plan_shows_privacy_cost_and_usefulness():
    page = PLAN._repr_html_()
    for guarantee in PLAN.guarantees():
        assert number(guarantee.epsilon(1e-5), "epsilon") in page
    assert str(sv.advice.usefulness(PLAN)) in page
    useless = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=9.0, radius=0.5)._repr_html_()
    assert "useful: no" in useless
    axes = PLAN.plot(Figure().add_subplot(), delta=1e-3)
    drawn = [bar.get_width() for bar in axes.patches]
    assert drawn == pytest.approx([g.epsilon(1e-3) for g in PLAN.guarantees()])


def test_the_pictures_of_protocol_and_view_are_the_leakage():
    protocol = EXAMPLES["gossip"]
    shown = protocol.plot(Figure().add_subplot()).get_images()[0].get_array()
    for v in range(9):
        h = protocol.view(v).leakage()
        assert np.delete(np.asarray(shown[v]), v) == pytest.approx(np.delete(h, v))
    axes = EXAMPLES["view"].plot(Figure().add_subplot())
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(EXAMPLES["view"].leakage().tolist())


def test_a_network_takes_colors_and_rings():
    axes = GRID.plot(Figure().add_subplot(), values=np.linspace(0, 1, 9), observers=4)
    points, ring = axes.collections[1:3]
    assert points.get_array().tolist() == pytest.approx(np.linspace(0, 1, 9).tolist())
    assert len(ring.get_offsets()) == 1
    with pytest.raises(sv.errors.InvalidInput, match="one node each"):
        GRID.plot(Figure().add_subplot(), values=[1.0])


def test_result_draws_its_history():
    axes = RUN.plot(Figure().add_subplot(), what=["accuracy", "loss"])
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.5, 0.75], [2.0, 1.0]]
    with pytest.raises(sv.errors.InvalidInput, match="accuracy, loss"):
        RUN.plot(Figure().add_subplot(), what="speed")
    with pytest.raises(sv.errors.InvalidInput, match="no history"):
        sv.Result("quiet").plot(Figure().add_subplot())


def test_text_is_escaped():
    evil = "<img src=x onerror=alert(1)>"
    network = sv.graphs.Network([(0, 1)], [[0.5, 0.5], [0.5, 0.5]], name=evil, node_names=(evil, "b"))
    result = sv.Result(evil, metrics={evil: evil}, history=[{"step": 1, evil: 1.0}, {"step": 2, evil: 2.0}])
    guarantee = Guarantee(
        Adversary("local"), "user", "ldp", Curve.gaussian(1.0), (evil, f"not charged {evil}")
    )
    stored = PLAN.privacy("local").to_dict(1e-5) | {"adversary": evil, "label": "ldp"}
    del stored["curve"]  # a record of somebody else's program may hold any words
    stored_result = sv.Result("booked", guarantees=[stored])
    assert "onerror" in stored_result._repr_html_()
    for example in (network, result, guarantee, stored_result):
        assert "<img" not in example._repr_html_()


def test_a_result_writes_its_page(tmp_path):
    page = RUN.report(tmp_path / "run.html").read_text()
    assert "0.25" in page
    assert RUN.report(tmp_path / "named.html", title="My title").read_text().count("My title") >= 1
    with pytest.raises(sv.errors.InvalidInput, match=r"report\.html"):
        RUN.report(tmp_path / "run.pdf")
