"""Weighted averages: what each site sends, what it adds, what it costs, against closed forms."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms.averaging import noise_in_result
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.noise.grid import SummedNoise
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, RecordedNoise, SimulatedNoise

WEIGHTS = (9.0, 58.0, 30.0, 3.0)
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)
ROWS = np.array([[0.1, -0.2], [0.9, 0.1], [0.4, 0.3], [-0.6, 2.0]])  # the last is outside the ball


def plan(protocol, **more):
    options = {"noise_std": 0.7, "radius": 1.0, "dim": 2, "site_weights": WEIGHTS} | more
    return sv.PrivateAveraging(protocol, **options)


def protocols():
    ring, complete = sv.graphs.ring(4), sv.graphs.complete(4)
    return {
        "tree": sv.protocols.Tree(ring),
        "exchange": sv.protocols.HypercubeExchange(4),
        "masked": sv.protocols.Masked(sv.protocols.Tree(complete)),
        "gossip": sv.protocols.Gossip(ring, 60),
        "chebyshev": sv.protocols.Chebyshev(ring, 30),
    }


@pytest.mark.parametrize("name", protocols())
@pytest.mark.parametrize("center", [0.0, (0.5, -1.0)])
def test_without_noise_it_is_the_weighted_mean(name, center):
    found = plan(protocols()[name], noise_std=0.0, center=center).run(ROWS, np.random.default_rng(0))
    away = ROWS - np.asarray(center)
    clipped = away * np.minimum(1, 1 / np.linalg.norm(away, axis=1))[:, None]
    expected = center + SHARES @ clipped
    assert np.allclose(found.outputs["rows"], expected, atol=1e-6)
    assert found.metrics["mean_squared_error"] < 1e-12


@pytest.mark.parametrize("name", ["tree", "exchange", "masked"])
def test_the_noise_of_a_site_follows_its_weight(name):
    """The result has noise of std s sqrt(sum w^2) / sum w, and the plan says so before it runs."""
    wide = plan(protocols()[name], dim=40_000)
    noise = wide.run(np.zeros((4, 40_000)), np.random.default_rng(3)).outputs["rows"][0]
    expected = 0.7 * np.sqrt(np.sum(SHARES**2))
    assert noise_in_result(wide) == pytest.approx(expected)
    assert noise.std() == pytest.approx(expected, rel=0.02)
    assert sv.advice.usefulness(wide).error == pytest.approx(expected)


def test_the_noise_of_the_sum_alone_has_the_same_law():
    wide = plan(protocols()["masked"], dim=40_000)
    noise = wide.run(np.zeros((4, 40_000)), SummedNoise(5)).outputs["rows"][0]
    assert noise.std() == pytest.approx(0.7 * np.sqrt(np.sum(SHARES**2)), rel=0.02)


@pytest.mark.parametrize("name", protocols())
def test_local_privacy_is_the_same_for_every_site(name):
    assert [plan(protocols()[name]).privacy("local", user=u).mu for u in range(4)] == pytest.approx(
        [2 / 0.7] * 4
    )


def test_prices_are_those_of_sums_of_unlike_noise():
    """Who sees the sum of some sites sees u's change 2 r w_u in noise s sqrt(sum of their w^2)."""
    path = plan(sv.protocols.Tree(sv.graphs.path(4)))
    weights = np.array(WEIGHTS)

    def mu(user, others):
        return 2 / 0.7 * weights[user] / np.sqrt(np.sum(weights[list(others)] ** 2))

    # node 1 sees node 0 alone, and the sum of 2 and 3
    assert path.privacy("pairwise", observer=1, user=0).mu == pytest.approx(mu(0, [0]))
    assert path.privacy("pairwise", observer=1, user=3).mu == pytest.approx(mu(3, [2, 3]))
    assert path.privacy("central").mu == pytest.approx(mu(1, range(4)))
    masked = plan(protocols()["masked"])
    assert masked.privacy("outsider").mu == pytest.approx(mu(1, range(4)))
    # any one member: it takes its own noise out, and the worst takes the largest but the user's
    assert masked.privacy("network").mu == pytest.approx(mu(1, [0, 1, 3]))
    assert masked.privacy("colluders", colluders=[1, 2]).mu == pytest.approx(mu(0, [0, 3]))


def test_gossip_is_priced_by_what_it_shows():
    """The view written out: rows of a gossip matrix over sites with unlike noise, in plain linear algebra."""
    network, rounds, observer = sv.graphs.ring(5), 3, 0
    weights = np.array([1.0, 4.0, 2.0, 0.5, 3.0])
    gossip = sv.PrivateAveraging(
        sv.protocols.Gossip(network, rounds), noise_std=0.7, radius=1.0, site_weights=weights
    )
    W = network.W.toarray()
    neighbors = np.flatnonzero(W[observer])
    seen = np.vstack(
        [np.linalg.matrix_power(W, t)[[v for v in neighbors if v != observer]] for t in range(rounds)]
    )
    honest = [1, 2, 3, 4]
    scaled = seen[:, honest] * (0.7 * weights[honest] / weights.mean())  # its own row and noise it knows
    for place, user in enumerate(honest):
        direction = scaled[:, place]  # the user's noise, which its change follows: 2 r over s of it
        h = direction @ np.linalg.pinv(scaled @ scaled.T, rcond=1e-12) @ direction
        found = gossip.privacy("pairwise", observer=observer, user=user).mu
        assert found == pytest.approx(2 / 0.7 * np.sqrt(h), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1e308])
@pytest.mark.parametrize("name", ["tree", "masked"])
def test_no_row_moves_more_than_its_sensitivity(name, bad):
    """Two worlds, one row apart, the same noise: what leaves differs by at most 2 r w_u / mean w."""
    for user in range(4):
        sent = []
        for value in (-50.0, bad):
            rows = ROWS.copy()
            rows[user] = [value, 3.0]
            source = plan(protocols()[name]).source(rows, range(4), RunRandomness.from_rng(SimulatedNoise(4)))
            sent.append(source.released(0))
        moved = np.linalg.norm(sent[0] - sent[1], axis=1)
        assert moved[user] <= 2 * WEIGHTS[user] / np.mean(WEIGHTS) + 1e-9
        assert moved[np.arange(4) != user].max() == 0


def test_protective_noise_pays_for_its_rounding():
    """Rows on the grid of their own noise lie inside their balls, and the noise has the planned width."""
    for name in ("tree", "masked"):
        wide = plan(protocols()[name], dim=4000)
        tape = RecordedNoise(ProtectiveNoise())
        source = wide.source(np.full((4, 4000), 9.0), range(4), RunRandomness.from_rng(tape))
        balls = np.array(WEIGHTS) / np.mean(WEIGHTS)
        assert (np.linalg.norm(source.rows, axis=1) <= balls).all()
        added = source.released(0) - source.rows
        assert np.allclose(added.std(axis=1) / balls, 0.7, rtol=0.06)


def test_another_weight_than_announced_is_noticed():
    theirs, ours = plan(protocols()["tree"], site_weights=(9, 59, 30, 3)), plan(protocols()["tree"])
    source = ours.source(ROWS, range(4), RunRandomness.from_rng(SimulatedNoise(0)))
    source.announced = type(source.announced)([theirs.releases(u) for u in range(4)])
    with pytest.raises(ReleaseMismatch):
        source.released(0)


def test_budget_and_optimal_noise():
    tree = sv.protocols.Tree(sv.graphs.star(4))
    equal = sv.PrivateAveraging.for_budget(tree, radius=1.0, epsilon=1, delta=1e-5, site_weights=WEIGHTS)
    best = sv.PrivateAveraging.for_budget(
        tree, radius=1.0, epsilon=1, delta=1e-5, site_weights=WEIGHTS, noise="optimal"
    )
    for found in (equal, best):
        assert 0.999 <= found.epsilon(1e-5) <= 1
    assert noise_in_result(best) <= noise_in_result(equal)
    with pytest.raises(InvalidInput, match="once; refreshed draws more"):
        plan(sv.protocols.FreshNoiseGossip(sv.graphs.ring(4), 3, tau=0.2))


@pytest.mark.parametrize(
    "bad", [(1.0,), (1.0, 2.0, 0.0, 1.0), (1.0, 2.0, np.nan, 1.0), (1.0, 2.0, np.inf, 1.0), "much", 3.0]
)
def test_weights_that_are_none_are_refused(bad):
    with pytest.raises(InvalidInput, match="positive"):
        plan(protocols()["tree"], site_weights=bad)


def test_alike_weights_are_none():
    alike, none = (
        plan(protocols()["tree"], site_weights=(5, 5, 5, 5)),
        plan(protocols()["tree"], site_weights=None),
    )
    assert [alike.releases(u) for u in range(4)] == [none.releases(u) for u in range(4)]
    rows = [each.run(ROWS, np.random.default_rng(1)).outputs["rows"] for each in (alike, none)]
    assert np.array_equal(*rows)
    assert "site_weights" not in none.describe()
