"""What an observer sees: closed forms, a second method, and properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verification.exact_spans import rational_leakage

import sottovoce as sv
from sottovoce.leakage.span import observed_span
from sottovoce.protocols import (
    Chebyshev,
    Dropout,
    FreshNoiseGossip,
    Gossip,
    HypercubeExchange,
    Randomized,
    TimeVarying,
    Tree,
    Walk,
)


def small_networks():
    names = ("path:5", "ring:6", "star:6", "hypercube:3", "complete:5", "grid:3:3", "er:12:1.4:seed=5")
    return list(map(sv.graphs.parse, names))


def small_protocols():
    rng = np.random.default_rng(7)
    ring, path, er = sv.graphs.ring(6), sv.graphs.path(6), sv.graphs.erdos_renyi(9, 1.5, rng)
    return [
        Gossip(ring, 4),
        Gossip(er, 3),
        Gossip(sv.graphs.star(6, weights="row_stochastic"), 3),
        Gossip(sv.graphs.florentine(weights="row_stochastic"), 2),
        Chebyshev(er, 3),
        Randomized(er, 25, rng),
        Randomized(path, 30, rng),
        TimeVarying([ring, path, ring, path]),
        Dropout.random(er, 5, rng, node_rate=0.2, edge_rate=0.2),
        HypercubeExchange(8),
        Tree(er, kind="bfs"),
        Tree(er, kind="uniform", rng=rng),
        Tree(er, kind="capped", rng=rng),
    ]


def by_general_recursion(protocol, observers):
    """The view from the backward recursion over the rounds, whatever form the protocol itself takes."""
    return protocol._view_of(observed_span(protocol.trace(observers)))


protocols = pytest.mark.parametrize("protocol", small_protocols(), ids=lambda p: f"{p.name}-{p.n}")


@protocols
@pytest.mark.parametrize("observers", [[0], [3], [0, 4]])
@pytest.mark.parametrize("own_noise", [True, False])
def test_leakage_is_the_rational_one(protocol, observers, own_noise):
    expected = rational_leakage(protocol, tuple(observers), own_noise)
    view = protocol.view(observers, own_noise)
    np.testing.assert_allclose(view.leakage(), np.array(expected, dtype=float), atol=1e-9)
    assert view.rank == sum(expected)
    determined = {u for u, h in enumerate(expected) if h == 1 and u not in observers}
    assert {u for u in range(protocol.n) if view.covers(u)} == determined


@protocols
@pytest.mark.parametrize("observers", [(1,), (0, 3)])
def test_general_recursion_agrees_with_the_special_forms(protocol, observers):
    general = by_general_recursion(protocol, observers)
    special = protocol.view(observers)
    assert general.rank == special.rank
    np.testing.assert_allclose(general.leakage(), special.leakage(), atol=1e-9)


@protocols
@pytest.mark.parametrize("own_noise", [True, False])
def test_reconstruction_is_exact_where_the_leakage_is_one(protocol, own_noise):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(protocol.n, 2))
    view = protocol.view(0, own_noise)
    estimate = view.reconstruct(protocol.observe(values, 0, own_noise))
    known = view.leakage() > 1 - 1e-8
    np.testing.assert_allclose(estimate[known], values[known], atol=1e-6)
    unknown = [u for u in range(protocol.n) if not known[u] and u != 0]
    assert all(np.abs(estimate[u] - values[u]).max() > 1e-6 for u in unknown)


@pytest.mark.parametrize("d", [3, 4, 6, 10])
def test_hypercube(d):
    view = Gossip(sv.graphs.hypercube(d), d).view(0)
    distance = np.array([bin(u).count("1") for u in range(2**d)])
    for k in range(1, d):
        np.testing.assert_allclose(view.leakage()[distance == k], d / math.comb(d, k), atol=1e-9)
    assert view.leakage()[-1] == pytest.approx(1.0)
    assert view.rank == d * (d - 1) + 1


@pytest.mark.parametrize("n", [5, 12, 30])
@pytest.mark.parametrize("inner", [0, 2])
def test_paths_and_rings_leak_everything_in_time(n, inner):
    for network, rounds in ((sv.graphs.path(n), n - 1), (sv.graphs.ring(n), n)):
        h = Gossip(network, rounds).view(inner).leakage()
        np.testing.assert_allclose(np.delete(h, inner), 1.0, atol=1e-7)


def fresh_noise_by_formula(network, rounds, tau, observer):
    """h = A_u' S^+ A_u with S = A A' + tau^2 sum_s R_s R_s', own columns deleted: the textbook form."""
    W = network.W.toarray()
    powers = [np.linalg.matrix_power(W, k) for k in range(rounds)]
    heard = network.neighbors(observer)
    keep = [u for u in range(network.n) if u != observer]
    blocks = []
    for s in range(rounds):
        block = [
            powers[t - s][w, keep] if t >= s else np.zeros(len(keep)) for t in range(rounds) for w in heard
        ]
        blocks.append(np.array(block))
    S = blocks[0] @ blocks[0].T + tau**2 * sum(b @ b.T for b in blocks[1:])
    h = np.zeros(network.n)
    h[keep] = np.einsum("iu,ij,ju->u", blocks[0], np.linalg.pinv(S, rcond=1e-12), blocks[0])
    return h


@pytest.mark.parametrize("tau", [1.0, 0.3, 0.1])
@pytest.mark.parametrize("network", small_networks(), ids=lambda g: g.name)
def test_gossip_with_fresh_noise_against_the_covariance_formula(network, tau):
    h = FreshNoiseGossip(network, 4, fresh_noise_std=tau).view(1).leakage()
    np.testing.assert_allclose(h, fresh_noise_by_formula(network, 4, tau, 1), atol=1e-6)


def test_no_fresh_noise_is_plain_and_continuous():
    network = sv.graphs.ring(7)
    plain = Gossip(network, 5).view(0).leakage()
    for fresh, atol in ((0.0, 1e-12), (1e-6, 1e-4)):
        leakage = FreshNoiseGossip(network, 5, fresh_noise_std=fresh).view(0).leakage()
        np.testing.assert_allclose(leakage, plain, atol=atol)


def test_walk_view_against_the_projector():
    rng = np.random.default_rng(4)
    network = sv.graphs.erdos_renyi(6, 1.5, rng)
    for final_public in (False, True):
        walk = Walk(network, 40, rng, final_public=final_public)
        for observers in ([0], [1, 4]):
            own = np.isin(walk.path, observers)
            ends = [t for t in range(1, 40) if own[t]] + ([40] if final_public else [])
            rows = np.array([(np.arange(40) < end) & ~own for end in ends], dtype=float)
            P = np.linalg.pinv(rows) @ rows
            by_user = np.array([(walk.path == u) & ~own for u in range(6)], float)
            expected = np.diag(by_user @ P @ by_user.T)
            np.testing.assert_allclose(walk.view(observers).leakage(), expected, atol=1e-9)


connected = st.builds(
    lambda n, seed, c: sv.graphs.erdos_renyi(n, c, np.random.default_rng(seed)),
    st.integers(4, 14),
    st.integers(0, 10_000),
    st.floats(1.1, 2.0),
)


@settings(max_examples=40, deadline=None)
@given(connected, st.integers(1, 8), st.integers(0, 10_000))
def test_properties_of_the_exact_loss(network, rounds, seed):
    rng = np.random.default_rng(seed)
    v, w = (int(x) for x in rng.permutation(network.n)[:2])
    view = Gossip(network, rounds).view(v)
    h = view.leakage()
    assert h.min() >= 0
    assert h.max() <= 1 + 1e-9
    assert h.sum() == pytest.approx(view.rank, abs=1e-8)
    more = Gossip(network, rounds + 1).view(v).leakage()
    assert (more >= h - 1e-8).all()
    both = Gossip(network, rounds).view([v, w]).leakage()
    rest = [u for u in range(network.n) if u not in (v, w)]
    assert (both[rest] >= h[rest] - 1e-8).all()
    loose = Gossip(network, rounds).view(v, own_noise=False).leakage()
    assert (h[rest] >= loose[rest] - 1e-8).all()


@settings(max_examples=25, deadline=None)
@given(connected, st.integers(1, 7))
def test_acceleration_changes_nothing_for_the_observer(network, rounds):
    fast = by_general_recursion(Chebyshev(network, rounds), (0,))
    plain = Gossip(network, rounds).view(0)
    assert fast.rank == plain.rank
    np.testing.assert_allclose(fast.leakage(), plain.leakage(), atol=1e-6)
