"""The papers' formulas side by side, against closed forms written down here without the library."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.published import formulas
from sottovoce.accounting.published.exact_comparison import DENSE, published_bounds
from sottovoce.accounting.published.formulas import published_error
from sottovoce.errors import InvalidInput, Refused
from sottovoce.graphs import Network
from sottovoce.graphs.parsing import family_of


def rows_of(network, protocol, **options):
    bounds = published_bounds(network, protocol, **options)
    return {row["function"]: row for row in bounds["losses"]}, bounds


@pytest.mark.parametrize(
    ("name", "gap"), [("ring:12", (2 - math.sqrt(3)) / 3), ("complete:7", 1.0), ("hypercube:4", 2 / 5)]
)
def test_theorem_two_and_its_rounds(name, gap):
    network = sv.graphs.parse(name)
    (row,) = published_bounds(network, sv.protocols.Chebyshev(network, 50))["errors"]
    assert (row["formula"], row["bound"], row["unit"]) == ("Theorem 2", "yes", "sigma^2")
    assert row["value"] == pytest.approx(3 / network.n)
    assert row["rounds_needed"] == math.ceil(math.log(network.n) / math.sqrt(gap) - 1e-9)


def test_randomized_gossip_has_its_own_lines():
    network = sv.graphs.ring(12)
    protocol = sv.protocols.Randomized(network, 30, np.random.default_rng(5))
    heard = np.zeros(12)
    for t in range(30):
        matrix = protocol.matrix(t).toarray()
        heard += ((matrix != 0) & ~np.eye(12, dtype=bool)).sum(axis=1)
    rows, bounds = rows_of(network, protocol)
    assert set(rows) == {"published_loss", "published_mean_loss", "published_walk_loss"}
    seven = rows["published_mean_loss"]
    assert (seven["mean"], seven["largest"]) == pytest.approx((heard.mean() / 12, heard.max() / 12))
    (first,) = bounds["errors"]
    gap = (2 - 2 * math.cos(2 * math.pi / 12)) / 3  # 1 minus the second eigenvalue of the ring
    assert (first["formula"], first["value"]) == ("Theorem 3", pytest.approx(2 / 12))
    assert first["rounds_needed"] == math.ceil(12 * math.log(12) / gap)
    assert "ticks" in first["why"]


@pytest.mark.parametrize("name", ["er:40:1.5:seed=2", "erdos-renyi:40:0.9:seed=2"])
def test_erdos_renyi_graphs_have_theorem_four(name):
    network = sv.graphs.parse(name)
    rows, _ = rows_of(network, sv.protocols.Gossip(network, 6))
    degrees = np.bincount(np.asarray(network.edges).ravel())
    expected = [2 * 6 * d / (40 - d) for d in degrees]
    four = rows["erdos_renyi_published_loss"]
    assert (four["mean"], four["largest"]) == pytest.approx((np.mean(expected), max(expected)))
    assert ("c above 1" in four["why"]) == ("0.9" in name)
    rows, _ = rows_of(network, sv.protocols.Gossip(network, 6), observer=7)
    assert rows["erdos_renyi_published_loss"]["mean"] == pytest.approx(expected[7])


def test_families_are_read_off_names():
    assert family_of("er:40:1.5:seed=2:weights=lazy") == ("er", (40, 1.5))
    assert family_of(sv.graphs.erdos_renyi(40, 1.5, np.random.default_rng(1)).name) == ("er", (40, 1.5))
    assert family_of("Line:4") == ("path", (4,))
    for other in ("network", "", "er", "er:40", "er:forty:1", "edges:0-1,1-2", "mine: er:40:2"):
        assert family_of(other) == ("", ())


# ---- beside the truth ---------------------------------------------------------------------------------

NETWORKS = [
    sv.graphs.path(3), sv.graphs.ring(9), sv.graphs.star(6), sv.graphs.grid(3, 4), sv.graphs.florentine(),
    sv.graphs.hypercube(4), sv.graphs.complete(6), sv.graphs.parse("er:30:1.5:seed=3"),
]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_rows_state_the_formula_and_the_exact_loss_beside_it(network, rounds):
    n, steps, gossip = network.n, 3, sv.protocols.Gossip(network, rounds)
    rows, _ = rows_of(network, gossip, steps=steps)
    exact, six = sv.privacy.exact_loss(network, rounds=rounds), sv.privacy.published_loss(network, rounds)
    corollary = formulas.corollary_loss(network, rounds)
    off = ~np.eye(n, dtype=bool)
    for name, losses, local, truth in (
        ("published_loss", six, 1, exact),
        ("corollary_loss", corollary, 1, exact),
        ("published_sgd_loss", formulas.published_sgd_loss(network, steps, rounds), steps, None),
        ("published_walk_loss", formulas.published_walk_loss(network, n * steps), steps, None),
    ):
        row = rows[name]
        assert (row["local"], row["exact_largest"] is None) == (local, truth is None)
        assert row["mean"] == pytest.approx(losses[off].sum() / n**2, rel=1e-10)
        assert row["largest"] == pytest.approx(losses[off].max(), rel=1e-10)
        if truth is not None:
            assert row["bound"] == "no"
            assert row["exact_largest"] == pytest.approx(truth[off].max())
            assert row["understated"] == pytest.approx((truth[off] > losses[off] + 1e-9).mean())
    seven, per_observer = rows["published_mean_loss"], np.where(off, exact, 0).mean(axis=0)
    assert seven["mean"] == pytest.approx(rounds * network.degrees.mean() / n)
    assert seven["understated"] == 0
    assert seven["exact_mean"] == pytest.approx(exact[off].sum() / n**2)
    assert seven["exact_largest"] == pytest.approx(per_observer.max())
    assert seven["largest"] >= per_observer.max() - 1e-12
    # Corollary 1 is derived from (6), by steps that only enlarge it
    assert (corollary[off] >= six[off] - 1e-9).all()
    alone, _ = rows_of(network, gossip, observer=0)
    assert alone["published_loss"]["mean"] == pytest.approx(six[1:, 0].sum() / n)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
@pytest.mark.parametrize("noise_std", [0.3, 1.0, 2.0])
def test_theorem_two_holds_for_the_error_computed_without_drawing(network, noise_std):
    """Half the mean squared error is a sum of squares: sigma^2 |P|^2 and the disagreement of the values."""
    spread = 0.25
    stop = sv.protocols.rounds_for(network, noise_std=noise_std, variance=spread)
    P = sv.protocols.Chebyshev(network, stop).apply(np.eye(network.n))
    ends = np.where(np.arange(network.n) % 2, 0.5, -0.5)  # as far apart as values of width 1 can be
    wrong = P @ ends - ends.mean()
    half = (noise_std**2 * (P**2).sum() + wrong @ wrong) / (2 * network.n)
    assert half <= published_error(network, noise_std)


def test_noise_puts_theorem_two_in_the_unit_of_the_values():
    network = sv.graphs.ring(16)
    loud = published_bounds(network, sv.protocols.Chebyshev(network, 40), noise_std=2.0)["errors"][0]
    assert (loud["value"], loud["unit"]) == (pytest.approx(3 * 4 / 16), "radius^2")
    quiet = published_bounds(network, sv.protocols.Chebyshev(network, 40), noise_std=0.01)["errors"][0]
    gap = (2 - 2 * math.cos(2 * math.pi / 16)) / 3
    assert quiet["rounds_needed"] == math.ceil(math.log(16 / 0.01**2) / math.sqrt(gap))
    assert quiet["rounds_needed"] > 40
    assert quiet["bound"] == "not here"


def test_theorem_two_is_not_about_plain_gossip_or_few_rounds():
    network = sv.graphs.ring(16)
    for protocol in (sv.protocols.Gossip(network, 99), sv.protocols.Chebyshev(network, 3)):
        first = published_bounds(network, protocol)["errors"][0]
        assert first["bound"] == "not here"
        assert f"here it is {protocol.name} of {protocol.rounds}" in first["why"]


def test_every_line_is_labeled_and_sourced():
    for protocol in ("Gossip", "Chebyshev"):
        network = sv.graphs.parse("er:30:1.5:seed=3")
        bounds = published_bounds(network, getattr(sv.protocols, protocol)(network, 4), steps=2)
        assert len(bounds["losses"]) == 6
        for row in (*bounds["losses"], *bounds["errors"], bounds):
            assert row["label"] == "published"
        for row in (*bounds["losses"], *bounds["errors"]):
            assert callable(getattr(formulas, row["function"]))
            assert row["source"] in ("Cyffers et al. 2022", "Cyffers et al. 2024")
            assert row["why"]


def test_what_is_refused():
    ring, one, large = sv.graphs.ring(6), sv.graphs.complete(1), sv.graphs.ring(5000)
    drifting = Network([(0, 1)], [[0.5, 0.5], [0.3, 0.7]], averaging=False)
    for network, options, error, words in (
        (ring, {"steps": 0}, InvalidInput, "steps"),
        (drifting, {}, InvalidInput, "not symmetric"),
        (one, {}, InvalidInput, "one node"),
        (large, {"observer": 0}, Refused, "at most 4,096"),
    ):
        with pytest.raises(error, match=words):
            published_bounds(network, sv.protocols.Gossip(network, 2), **options)
    with pytest.raises(InvalidInput, match="none for tree"):
        published_bounds(ring, sv.protocols.Tree(ring))
    with pytest.raises(InvalidInput, match="noise_std"):
        published_error(ring, 0.0)


def test_dense_formulas_are_left_out_of_large_networks():
    large = sv.graphs.ring(DENSE + 1)
    rows, bounds = rows_of(large, sv.protocols.Gossip(large, 2), observer=0)
    assert set(rows) == {"published_loss", "published_mean_loss"}
    assert bounds["left_out"] == ["Corollary 1 and the walk, above 2,048 nodes"]
