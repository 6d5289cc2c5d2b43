"""What holds for every protocol: runner, observer and peers tell the same run, bit for bit."""

import numpy as np
import pytest
from tests.protocols.cases import CountingNoise, averaging_protocols, run_locally

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import (
    AcceleratedRandomized,
    Chebyshev,
    Dropout,
    FreshNoiseGossip,
    Gossip,
    HypercubeExchange,
    Masked,
    NeighborSum,
    Randomized,
    TimeVarying,
    Tree,
    Walk,
)
from sottovoce.protocols.server import Server

CAN_LEAVE = ("chebyshev", "accelerated-randomized", "tree")  # weights below zero, and sums
everywhere = pytest.mark.parametrize("protocol", averaging_protocols(), ids=lambda p: p.name)


@everywhere
def test_the_mean_is_kept(protocol):
    values = np.random.default_rng(0).normal(size=(protocol.n, 3))
    np.testing.assert_allclose(protocol.apply(values).mean(axis=0), values.mean(axis=0), atol=1e-12)


def test_a_protocol_averages_only_over_weights_that_keep_the_mean():
    """Row-stochastic weights of a star pull every row to that of the hub; those of a ring keep the mean."""
    star, ring = (family(6, weights="row_stochastic") for family in (sv.graphs.star, sv.graphs.ring))
    one_way = 0.5 * np.eye(6) + 0.3 * np.roll(np.eye(6), 1, axis=1) + 0.2 * np.roll(np.eye(6), -1, axis=1)
    columns = sv.graphs.Network(ring.edges, one_way, averaging=False)  # not symmetric, columns sum to 1
    values, rng = np.arange(6.0) ** 2, np.random.default_rng(0)
    for network in (star, ring, columns):
        mixing = [
            Gossip(network, 200),
            Chebyshev(network, 200, gamma=1.0),
            FreshNoiseGossip(network, 200, fresh_noise_std=0.0),
            TimeVarying([network] * 200),
            Dropout(network, 200),
        ]
        for protocol in mixing:
            reaches_mean = np.allclose(protocol.apply(values), values.mean())
            assert (protocol.averages, protocol.mixes) == (reaches_mean, True) == (network is not star, True)
        assert not NeighborSum(network).averages
        assert Walk(network, 9, rng).averages == (network is not star)
        assert Randomized(network, 9, rng).averages
        assert Tree(network).averages


@everywhere
def test_convex_protocols_never_leave_the_hull_of_their_rows(protocol):
    """A corner of a cube can be left by a weight below zero and by a sum, not by a mean."""
    values = np.random.default_rng(0).choice([-1.0, 1.0], size=(protocol.n, 64))
    furthest = max(float(np.abs(rows).max()) for rows in protocol._states(values))
    assert furthest <= 1 + 1e-12 if protocol.convex else protocol.name in CAN_LEAVE
    if protocol.name in ("chebyshev", "tree"):
        assert furthest > 1  # the look can tell


def test_declared_capabilities():
    """Plans, accounts, peers and files read these instead of a class or a name."""
    ring = sv.graphs.ring(4)
    walk, masked = Walk(ring, 3, path=[0, 1, 2]), Masked(ring)
    fresh_noise = FreshNoiseGossip(ring, 3, fresh_noise_std=0.1, noise_std=1.0)
    assert (walk.ends_at, walk.adds_noise, walk.convex) == (2, True, False)
    assert (masked.masked, masked.tolerate, Tree(ring).masked, Tree(ring).tolerate) == (True, 1, False, None)
    assert (fresh_noise.fresh_std, fresh_noise.convex, Gossip(ring, 3).fresh_std) == (0.1, False, 0.0)
    assert masked.assumptions() != () == Tree(ring).assumptions()
    goes_on = [p.name for p in (*averaging_protocols(), fresh_noise, walk, masked) if p.tolerates_dropout]
    assert goes_on == ["gossip", "fresh-noise"]


@pytest.mark.parametrize(
    "protocol", [HypercubeExchange(16), Tree(sv.graphs.grid(4, 5)), Tree(sv.graphs.star(9))]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_consensus_is_bit_identical_at_every_node(protocol, dtype):
    values = np.random.default_rng(2).normal(size=(protocol.n, 50)).astype(dtype)
    out = protocol.apply(values)
    assert (out == out[0]).all()
    np.testing.assert_allclose(out[0], values.mean(axis=0), atol=1e-5 if dtype == np.float32 else 1e-12)


def test_networks_of_one_node():
    one = sv.graphs.complete(1)
    for protocol in (Gossip(one, 3), Chebyshev(one, 3), HypercubeExchange(1), Tree(one)):
        assert protocol.apply(np.array([4.0])).tolist() == [[4.0]]
        assert protocol.message_count == 0


def every_protocol():
    er = sv.graphs.erdos_renyi(8, 1.5, np.random.default_rng(12))
    return [
        *averaging_protocols(),
        Chebyshev(er, 5, gamma=1.3),
        FreshNoiseGossip(er, 4, fresh_noise_std=0.3),
        FreshNoiseGossip(er, 1, fresh_noise_std=0.3),
        NeighborSum(er),
        Gossip(er, 0),
    ]


@pytest.mark.parametrize("protocol", every_protocol(), ids=lambda p: f"{type(p).__name__}-{p.rounds}")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("dim", [1, 3])
def test_run_observers_and_peers_agree(protocol, dtype, dim):
    """Bit for bit, over several steps: what peers end with, and what they are sent against what is seen."""
    rows = np.random.default_rng(4).normal(size=(protocol.n, dim)).astype(dtype)
    rows[0, 0] = -0.0
    observers = (1, 2)
    runs = []
    for step in (0, 1, 5):
        stacked = protocol.apply(rows, noise=CountingNoise(), step=step)
        local, sent = run_locally(protocol, rows, CountingNoise(), step)
        assert stacked.dtype == local.dtype == dtype
        assert local.tobytes() == stacked.tobytes()
        assert len(sent) == protocol.message_count
        sent_by = {(t, v): row for (t, v, _), row in sent.items()}
        seen = protocol.observe(rows, observers, noise=CountingNoise(), step=step)
        messages = protocol.view(observers).messages
        assert len(seen) == len(messages)
        heard = [k for k, (_, w) in enumerate(messages) if w not in observers]
        assert heard or not protocol.rounds
        for k in heard:
            assert seen[k].ravel().tobytes() == sent_by[messages[k]].tobytes()
        runs.append(seen.tobytes())
    draws = getattr(protocol, "protocol", protocol).fresh_std and protocol.rounds > 1
    assert len(set(runs)) == (3 if draws else 1)


RING, RING6 = sv.graphs.ring(4), sv.graphs.ring(6)
INVALID = [
    (lambda: Gossip(RING, -1), "at least 0"),
    (lambda: Gossip(RING, 1.5), "whole number"),
    (lambda: Gossip(RING, 2).view(4), "0 to 3"),
    (lambda: Gossip(RING, 2).view([]), "at least one node"),
    (lambda: Gossip(RING, 2).apply([1.0, np.nan, 2.0, 3.0]), "row 1"),
    (lambda: Gossip(RING, 2).apply(np.zeros((3, 2))), "one row per node"),
    (lambda: Gossip(RING, 2).apply(["a"] * 4), "numbers"),
    (lambda: FreshNoiseGossip(RING, 2, fresh_noise_std=-1), "fresh_noise_std"),
    (lambda: FreshNoiseGossip(RING, 3, fresh_noise_std=1).apply(np.zeros(4)), "noise="),
    (lambda: HypercubeExchange(6), "power of two"),
    (lambda: Randomized(RING, 5), "rng"),
    (lambda: Randomized(RING, 1, edges=[[0, 2]]), "not an edge"),
    (lambda: Randomized(RING, 1, edges=[[0, 6]]), "not an edge"),
    (lambda: Randomized(RING, 1, edges=[[0, 1]], intensities="even"), "weights, uniform"),
    (lambda: AcceleratedRandomized(RING, 1, edges=[[0, 1]]), "waits"),
    (lambda: AcceleratedRandomized(RING, 1, edges=[[0, 1]], waits=[-1.0]), "at least 0"),
    (lambda: TimeVarying([np.array([[0.5, 0.44], [0.44, 0.5]])]), "round 0 cannot average.*sums to 0.94"),
    (lambda: TimeVarying([RING, np.array([[0.5, 0.5], [np.nan, 0.5]])]), "round 1 cannot average.*nan"),
    (lambda: TimeVarying([RING, sv.graphs.ring(5)]), "Round 1 has 5 nodes"),
    (lambda: TimeVarying([]), "at least one"),
    (lambda: Dropout(RING, 2, nodes={5: [0]}), "round 5"),
    (lambda: Dropout(RING, 2, edges={0: [(0, 2)]}), "not an edge"),
    (lambda: Tree(RING, kind="uniform"), "rng"),
    (lambda: Tree(RING, parents=[1, 2, 3, 0]), "one -1"),
    (lambda: Tree(RING, parents=[-1, 2, 1, 0]), "never reaches"),
    (lambda: Tree(RING, parents=[-1, 0, 0, 0]), "not an edge"),
    (lambda: Walk(RING, 3, path=[0, 2, 1]), "not an edge"),
    (lambda: Walk(RING, 3), "rng"),
    (lambda: Walk(RING, 3, path=[0, 1, 2], std=1.0).apply(np.zeros(4)), "noise="),
    (lambda: Walk(RING, 3, path=[0, 1, 2], std=1.0).observe(np.zeros(4), 1), "noise="),
    (lambda: Walk(RING, 3, path=[0, 1, 2]).node_state(0), "runs in one process"),
    (lambda: Masked(sv.graphs.path(2)), "two members"),
    (lambda: Masked(sv.graphs.path(4), tolerate=3), "at most 2 of 4"),
    (lambda: Masked(sv.graphs.path(6), partners=sv.graphs.path(6)), "could part.* is 1"),
    (lambda: Masked(sv.graphs.path(6), partners=[(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]), "part"),
    (lambda: Masked(sv.graphs.ring(12), partners=4, tolerate=4), "could part.* is 4"),
    (lambda: Masked(RING6, partners=sv.graphs.ring(5)), "5 nodes, the network 6"),
    (lambda: Masked(RING6, partners=[(0, 7)], tolerate=None), "nodes of 0 to 5"),
    (lambda: Masked(RING6, grid_spacing=0.3), "power of two"),
    (lambda: Masked(RING6).apply(np.full(6, 1e9)), "larger grid spacing"),
    (lambda: Masked(RING6).apply(np.array([1, 2, 3, 4, 5, np.nan])), "finite"),
    (lambda: Masked(RING6).apply(np.ones((5, 2), np.int64)), "one row per node"),
    (lambda: Masked(RING6).node_state(0).start(np.array([np.nan])), "finite"),
    (lambda: Masked(RING6).view([6]), "0 to 5"),
    (lambda: Masked(RING6).shares(0, [1, 1, 0, 1, 1, 1]), "6 positive finite numbers"),
    (lambda: Tree(RING).shares(0, [1, 1]), "one per user"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_shares_are_those_of_the_view():
    exchange = HypercubeExchange(8)
    for v in range(8):
        np.testing.assert_allclose(exchange.shares(v), exchange.view(v).leakage(), atol=1e-12)
    assert HypercubeExchange(4).shares(0, noise_std=[1.0, 1.0, 2.0, 1.0]).tolist() == [0.0, 1.0, 0.8, 0.2]
    np.testing.assert_allclose(HypercubeExchange(4).output_view(0).leakage(), 0.25)


def test_the_mean_comes_back_to_every_client():
    server = Server(4)
    rows = np.arange(8.0).reshape(4, 2)
    assert server.apply(rows).tolist() == [[3.0, 4.0]] * 4
    assert server.message_count == 8
    assert server.view(0).leakage()[1:].min() == pytest.approx(1)  # as if every row went to every client
