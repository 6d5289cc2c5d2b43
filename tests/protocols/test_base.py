"""What holds for every protocol: runner, observer and peers tell the same run, bit for bit."""

import numpy as np
import pytest
from tests.protocols.cases import CountingNoise, averaging_protocols, run_locally

import sottovoce as sv
from sottovoce.attacks.membership import Replicated
from sottovoce.protocols import (
    Chebyshev,
    FreshNoiseGossip,
    Gossip,
    HypercubeExchange,
    NeighborSum,
    Tree,
    Walk,
)

CAN_LEAVE = ("chebyshev", "accelerated-randomized", "tree")  # weights below zero, and sums
everywhere = pytest.mark.parametrize("protocol", averaging_protocols(), ids=lambda p: p.name)


@everywhere
def test_the_mean_is_kept(protocol):
    values = np.random.default_rng(0).normal(size=(protocol.n, 3))
    np.testing.assert_allclose(protocol.apply(values).mean(axis=0), values.mean(axis=0), atol=1e-12)


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
    walk, masked = Walk(ring, 3, path=[0, 1, 2]), sv.protocols.Masked(ring)
    refreshed = FreshNoiseGossip(ring, 3, fresh_noise_std=0.1, noise_std=1.0)
    assert (walk.ends_at, walk.adds_noise, walk.convex) == (2, True, False)
    assert (masked.masked, masked.tolerate, Tree(ring).masked, Tree(ring).tolerate) == (True, 1, False, None)
    assert (refreshed.fresh_std, refreshed.convex, Gossip(ring, 3).fresh_std) == (0.1, False, 0.0)
    assert masked.assumptions() != () == Tree(ring).assumptions()
    goes_on = [p.name for p in (*averaging_protocols(), refreshed, walk, masked) if p.tolerates_dropout]
    assert goes_on == ["gossip", "refreshed"]


@everywhere
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("dim", [1, 5])
def test_peers_give_the_same_bits_as_the_stacked_run(protocol, dtype, dim):
    values = np.random.default_rng(1).normal(size=(protocol.n, dim)).astype(dtype)
    stacked = protocol.apply(values)
    local, sent = run_locally(protocol, values)
    assert stacked.dtype == local.dtype == dtype
    assert stacked.tobytes() == local.tobytes()
    assert sent == protocol.messages


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
        assert protocol.messages == 0


def every_protocol():
    rng = np.random.default_rng(12)
    er = sv.graphs.erdos_renyi(8, 1.5, rng)
    return [
        *averaging_protocols(),
        Chebyshev(er, 5, gamma=1.3),
        FreshNoiseGossip(er, 4, fresh_noise_std=0.3),
        FreshNoiseGossip(er, 1, fresh_noise_std=0.3),
        NeighborSum(er),
        Gossip(er, 0),
        Walk(er, 19, rng, std=0.4),
        Walk(er, 19, rng, std=0.4, final_public=True),
        Replicated(FreshNoiseGossip(er, 4, fresh_noise_std=0.3), 1),
    ]


@pytest.mark.parametrize("protocol", every_protocol(), ids=lambda p: f"{type(p).__name__}-{p.rounds}")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_run_observers_and_peers_agree(protocol, dtype):
    """Bit for bit, over several steps: what peers end with, and what they are sent against what is seen."""
    rows = np.random.default_rng(4).normal(size=(protocol.n, 3)).astype(dtype)
    rows[0, 0] = -0.0
    observers = (1, 2)
    runs = []
    for step in (0, 1, 5):
        stacked = protocol.apply(rows, noise=CountingNoise(), step=step)
        nodes = [protocol.local(v) for v in range(protocol.n)]
        for v, node in enumerate(nodes):
            node.start(rows[v], CountingNoise(), step)
        sent = {}
        for t in range(protocol.rounds):
            outbox = {(v, to): node.message(t) for v, node in enumerate(nodes) for to in node.sends(t)}
            # a walk numbers a sum by the contributions in it, the others a row by its round
            sent |= {(t + isinstance(protocol, Walk), v): row for (v, _), row in outbox.items()}
            for v, node in enumerate(nodes):
                node.receive(t, {w: outbox[w, v] for w in node.expects(t)}, CountingNoise(), step)
        assert np.array([node.result() for node in nodes]).tobytes() == stacked.tobytes()
        seen = protocol.observe(rows, observers, noise=CountingNoise(), step=step)
        messages = protocol.view(observers).messages
        assert len(seen) == len(messages)
        heard = [k for k, (_, w) in enumerate(messages) if w not in observers]
        assert heard or not protocol.rounds
        for k in heard:
            assert seen[k].ravel().tobytes() == sent[messages[k]].tobytes()
        runs.append(seen.tobytes())
    fresh = getattr(protocol, "protocol", protocol)
    draws = bool(getattr(fresh, "fresh_std", 0) or getattr(fresh, "std", 0)) and protocol.rounds > 1
    assert len(set(runs)) == (3 if draws else 1)
