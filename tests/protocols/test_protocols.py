"""Running protocols: the mean is kept, the peer's state machine gives the same bits, bad input is named."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.attacks.membership import Replicated
from sottovoce.errors import InvalidInput
from sottovoce.protocols import (
    AcceleratedRandomized,
    Chebyshev,
    Dropout,
    FreshNoiseGossip,
    Gossip,
    HypercubeExchange,
    NeighborSum,
    Randomized,
    TimeVarying,
    Tree,
    Walk,
    fresh_erdos_renyi,
    rounds_for,
    spanning_tree,
)
from sottovoce.protocols.chebyshev import chebyshev_gamma


class CountingNoise:
    """A noise source whose draws are a function of (agent, step, stream): enough to compare runners."""

    protective = False

    def perturb(self, values, *, agents, step, std, stream=0):
        draws = [np.random.default_rng([a, step, stream]).normal(size=values.shape[1]) for a in agents]
        return values + (std * np.array(draws)).astype(values.dtype)


def averaging_protocols():
    rng = np.random.default_rng(11)
    er = sv.graphs.erdos_renyi(10, 1.5, rng)
    return [
        Gossip(er, 6),
        Chebyshev(er, 6),
        Randomized(er, 60, rng),
        AcceleratedRandomized(er, 40, rng),
        AcceleratedRandomized(er, 40, rng, intensities="uniform"),
        TimeVarying([er, sv.graphs.ring(10), er]),
        fresh_erdos_renyi(10, 4, rng),
        Dropout.random(er, 6, rng, node_rate=0.3, edge_rate=0.1),
        HypercubeExchange(8),
        Tree(er),
        Tree(er, kind="uniform", rng=rng),
        Tree(er, kind="capped", rng=rng, max_children=1),
    ]


CAN_LEAVE = ("chebyshev", "accelerated-randomized", "tree")  # weights below zero, and sums
everywhere = pytest.mark.parametrize("protocol", averaging_protocols(), ids=lambda p: p.name)


@everywhere
def test_the_mean_is_kept(protocol):
    values = np.random.default_rng(0).normal(size=(protocol.n, 3))
    np.testing.assert_allclose(protocol.apply(values).mean(axis=0), values.mean(axis=0), atol=1e-12)


@everywhere
def test_a_protocol_that_says_convex_never_sends_a_row_outside_the_rows_it_began_with(protocol):
    """A corner of a cube can be left by a weight below zero and by a sum, not by a mean."""
    values = np.random.default_rng(0).choice([-1.0, 1.0], size=(protocol.n, 64))
    furthest = max(float(np.abs(rows).max()) for rows in protocol._states(values))
    assert furthest <= 1 + 1e-12 if protocol.convex else protocol.name in CAN_LEAVE
    if protocol.name in ("chebyshev", "tree"):
        assert furthest > 1  # the look can tell


def test_what_is_declared_of_a_protocol():
    """Read by plans, prices, peers and files instead of a class or a name."""
    ring = sv.graphs.ring(4)
    walk, masked = Walk(ring, 3, path=[0, 1, 2]), sv.protocols.Masked(ring)
    refreshed = FreshNoiseGossip(ring, 3, tau=0.1, sigma=1.0)
    assert (walk.ends_at, walk.adds_noise, walk.convex) == (2, True, False)
    assert (masked.masked, masked.tolerate, Tree(ring).masked, Tree(ring).tolerate) == (True, 1, False, None)
    assert (refreshed.fresh_std, refreshed.convex, Gossip(ring, 3).fresh_std) == (0.1, False, 0.0)
    assert masked.assumptions() != () == Tree(ring).assumptions()
    goes_on = [p.name for p in (*averaging_protocols(), refreshed, walk, masked) if p.tolerates_dropout]
    assert goes_on == ["gossip", "refreshed"]


def run_locally(protocol, values, noise=None, step=0):
    nodes = [protocol.local(v) for v in range(protocol.n)]
    for v, node in enumerate(nodes):
        node.start(values[v])
    sent = 0
    for t in range(protocol.rounds):
        outbox = {(v, to): node.message(t) for v, node in enumerate(nodes) for to in node.sends(t)}
        sent += len(outbox)
        for v, node in enumerate(nodes):
            node.receive(t, {w: outbox[w, v] for w in node.expects(t)}, noise, step)
    return np.array([node.result() for node in nodes]), sent


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


def test_refreshed_peers_give_the_same_bits():
    protocol = FreshNoiseGossip(sv.graphs.ring(6), 5, tau=0.2)
    values = np.random.default_rng(1).normal(size=(6, 4))
    stacked = protocol.apply(values, noise=CountingNoise(), step=3)
    local, sent = run_locally(protocol, values, CountingNoise(), 3)
    assert stacked.tobytes() == local.tobytes()
    assert sent == protocol.messages
    assert not np.allclose(stacked, Gossip(sv.graphs.ring(6), 5).apply(values))


def test_refreshed_noise_has_the_predicted_variance():
    network, rounds, tau = sv.graphs.ring(5), 4, 0.5
    protocol = FreshNoiseGossip(network, rounds, tau=tau)
    rng = np.random.default_rng(0)

    class Source:
        def perturb(self, values, *, agents, step, std, stream=0):
            return values + std * rng.normal(size=values.shape)

    runs = protocol.apply(np.zeros((5, 40_000)), noise=Source())
    W = network.W.toarray()
    expected = tau**2 * sum(np.linalg.matrix_power(W, 2 * k)[0, 0] for k in range(1, rounds))
    assert runs[0].var() == pytest.approx(expected, rel=0.03)
    assert runs.mean(axis=0).var() == pytest.approx((rounds - 1) * tau**2 / 5, rel=0.03)


@pytest.mark.parametrize("final_public", [False, True])
def test_walking_peers_give_the_same_bits(final_public):
    rng = np.random.default_rng(3)
    walk = Walk(sv.graphs.ring(5), 23, rng, final_public=final_public)
    values = rng.normal(size=(5, 2))
    local, sent = run_locally(walk, values)
    np.testing.assert_array_equal(walk.apply(values), local)
    assert sent == walk.messages


@pytest.mark.parametrize(
    "protocol", [HypercubeExchange(16), Tree(sv.graphs.grid(4, 5)), Tree(sv.graphs.star(9))]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_consensus_is_bit_identical_at_every_node(protocol, dtype):
    values = np.random.default_rng(2).normal(size=(protocol.n, 50)).astype(dtype)
    out = protocol.apply(values)
    assert (out == out[0]).all()
    np.testing.assert_allclose(out[0], values.mean(axis=0), atol=1e-5 if dtype == np.float32 else 1e-12)


def test_gossip_converges_at_the_spectral_rate():
    network = sv.graphs.florentine()
    values = np.random.default_rng(0).normal(size=(15, 1))
    start = np.linalg.norm(values - values.mean())
    for rounds in (5, 20, 60):
        error = np.linalg.norm(Gossip(network, rounds).apply(values) - values.mean())
        assert error <= (1 - network.spectral_gap) ** rounds * start * (1 + 1e-9)


def test_chebyshev_is_the_polynomial_with_the_right_start():
    network = sv.graphs.florentine()
    W, gap = network.W.toarray(), network.spectral_gap
    gamma = 2 * (1 - np.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2
    assert chebyshev_gamma(gap) == pytest.approx(gamma)
    r = 1 - gap / 2
    assert gamma == pytest.approx(2 / (1 + np.sqrt(1 - r**2)))
    polynomials = [np.eye(15), W]
    for _ in range(2, 81):
        polynomials.append(gamma * W @ polynomials[-1] + (1 - gamma) * polynomials[-2])
    for k in (0, 1, 2, 9, 80):
        np.testing.assert_allclose(Chebyshev(network, k).apply(np.eye(15)), polynomials[k], atol=1e-10)
    distance = np.linalg.norm(polynomials[80] - 1 / 15, 2)
    assert 1e-10 < distance < 1e-7
    faster = 2 / (1 + np.sqrt(1 - (1 - gap) ** 2))
    assert np.linalg.norm(Chebyshev(network, 80, gamma=faster).apply(np.eye(15)) - 1 / 15, 2) < 1e-9


def test_the_zero_start_would_multiply_the_mean():
    """The planted bug of the published recursion, x^{-1} = 0, is visible on the Florentine graph."""
    network = sv.graphs.florentine()
    gamma = chebyshev_gamma(network.spectral_gap)
    previous, x = np.zeros(15), np.ones(15)
    for _ in range(300):
        previous, x = x, gamma * network.W @ x + (1 - gamma) * previous
    assert x.mean() == pytest.approx(1 / (2 - gamma), rel=1e-3)
    assert x.mean() == pytest.approx(2.60, abs=0.01)
    assert Chebyshev(network, 300).apply(np.ones(15)).mean() == pytest.approx(1.0)


def test_theoretical_rounds():
    assert rounds_for(sv.graphs.hypercube(11)) == 19
    assert rounds_for(sv.graphs.grid(45, 45)) in (243, 244)
    assert rounds_for(sv.graphs.complete(1)) == 0
    assert rounds_for(sv.graphs.ring(8), kind="randomized") > rounds_for(sv.graphs.ring(8))
    with pytest.raises(InvalidInput, match="synchronous"):
        rounds_for(sv.graphs.ring(8), kind="slow")


def test_randomized_ticks_follow_the_weights_and_idle():
    network = sv.graphs.star(4)
    protocol = Randomized(network, 40_000, np.random.default_rng(0))
    idle = (protocol.edges[:, 0] < 0).mean()
    assert idle == pytest.approx(network.W.diagonal().sum() / 4, abs=0.01)
    u, v = network.edges[0]
    share = (protocol.edges == [u, v]).all(axis=1).mean()
    assert share == pytest.approx(2 * network.W[u, v] / 4, abs=0.01)


def test_dropout_moves_the_weight_to_both_diagonals():
    network = sv.graphs.ring(5)
    protocol = Dropout(network, 3, edges={1: [(1, 0)]}, nodes={2: [3]})
    for t in range(3):
        M = protocol.matrix(t)
        np.testing.assert_allclose(M.sum(axis=1), 1)
        np.testing.assert_allclose(M.sum(axis=0), 1)
        assert abs(M - M.T).max() == 0
    assert protocol.matrix(1)[0, 1] == 0
    assert protocol.matrix(1)[0, 0] == pytest.approx(network.W[0, 0] + network.W[0, 1])
    assert protocol.senders(1, 0) == (4,)
    assert protocol.senders(2, 2) == (1,)
    assert protocol.matrix(2)[3, 3] == 1


def test_neighbor_sum_is_the_adjacency():
    network = sv.graphs.grid(2, 3)
    values = np.random.default_rng(0).normal(size=(6, 2))
    np.testing.assert_allclose(NeighborSum(network).apply(values), network.adjacency @ values)


def test_uniform_trees_are_uniform():
    """Wilson's algorithm on a 4-cycle: each of the four trees a quarter of the time (chi-square)."""
    rng = np.random.default_rng(0)
    ring = sv.graphs.ring(4)
    missing = []
    for _ in range(4000):
        parents = spanning_tree(ring, kind="uniform", rng=rng)
        used = {tuple(sorted((u, int(p)))) for u, p in enumerate(parents) if p >= 0}
        (gone,) = {tuple(e) for e in ring.edges.tolist()} - used
        missing.append(gone)
    _, counts = np.unique(np.array(missing), axis=0, return_counts=True)
    assert len(counts) == 4
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3  # 0.999 quantile, 3 degrees of freedom


def test_capped_trees_keep_the_cap_where_they_can():
    rng = np.random.default_rng(0)
    parents = spanning_tree(sv.graphs.complete(20), kind="capped", rng=rng, max_children=2)
    assert np.bincount(parents[parents >= 0]).max() <= 2
    star = spanning_tree(sv.graphs.star(6), kind="capped", rng=rng, max_children=2)
    assert (star == -1).sum() == 1
    assert (star >= -1).all()


def test_networks_of_one_node():
    one = sv.graphs.complete(1)
    for protocol in (Gossip(one, 3), Chebyshev(one, 3), HypercubeExchange(1), Tree(one)):
        assert protocol.apply(np.array([4.0])).tolist() == [[4.0]]
        assert protocol.messages == 0


bad = [
    (lambda: HypercubeExchange(6), "power of two"),
    (lambda: Gossip(sv.graphs.ring(4), -1), "at least 0"),
    (lambda: Gossip(sv.graphs.ring(4), 1.5), "whole number"),
    (lambda: Gossip(sv.graphs.ring(4), 2).view(4), "0 to 3"),
    (lambda: Gossip(sv.graphs.ring(4), 2).view([]), "at least one node"),
    (lambda: Gossip(sv.graphs.ring(4), 2).apply([1.0, np.nan, 2.0, 3.0]), "row 1"),
    (lambda: Gossip(sv.graphs.ring(4), 2).apply(np.zeros((3, 2))), "one row per node"),
    (lambda: Gossip(sv.graphs.ring(4), 2).apply(["a"] * 4), "numbers"),
    (lambda: Randomized(sv.graphs.ring(4), 5), "rng"),
    (lambda: Randomized(sv.graphs.ring(4), 1, edges=[[0, 2]]), "not an edge"),
    (lambda: Randomized(sv.graphs.ring(4), 1, edges=[[0, 1]], intensities="even"), "one number per edge"),
    (lambda: Randomized(sv.graphs.ring(4), 1, edges=[[0, 1]], intensities=[0.5, 0.5]), "shape"),
    (lambda: Randomized(sv.graphs.ring(4), 1, edges=[[0, 1]], intensities=[0.5] * 4), "2 in all"),
    (lambda: Randomized(sv.graphs.ring(4), 1, edges=[[0, 1]], intensities=[0.5, 0, 0, 0]), "positive"),
    (lambda: AcceleratedRandomized(sv.graphs.ring(4), 1, edges=[[0, 1]]), "waits"),
    (lambda: AcceleratedRandomized(sv.graphs.ring(4), 1, edges=[[0, 1]], waits=[-1.0]), "at least 0"),
    (lambda: TimeVarying([np.array([[0.5, 0.44], [0.44, 0.5]])]), "sums to 0.94"),
    (lambda: TimeVarying([sv.graphs.ring(4), sv.graphs.ring(5)]), "Round 1 has 5 nodes"),
    (lambda: TimeVarying([]), "at least one"),
    (lambda: Dropout(sv.graphs.ring(4), 2, nodes={5: [0]}), "round 5"),
    (lambda: Dropout(sv.graphs.ring(4), 2, edges={0: [(0, 2)]}), "not an edge"),
    (lambda: FreshNoiseGossip(sv.graphs.ring(4), 2, tau=-1), "tau"),
    (lambda: FreshNoiseGossip(sv.graphs.ring(4), 3, tau=1).apply(np.zeros(4)), "noise="),
    (lambda: Tree(sv.graphs.ring(4), kind="uniform"), "rng"),
    (lambda: Tree(sv.graphs.ring(4), parents=[1, 2, 3, 0]), "one -1"),
    (lambda: Tree(sv.graphs.ring(4), parents=[-1, 2, 1, 0]), "never reaches"),
    (lambda: Tree(sv.graphs.ring(4), parents=[-1, 0, 0, 0]), "not an edge"),
    (lambda: Walk(sv.graphs.ring(4), 3, path=[0, 2, 1]), "not an edge"),
    (lambda: Walk(sv.graphs.ring(4), 3), "rng"),
]


@pytest.mark.parametrize(("call", "words"), bad)
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_local_node_refuses_rounds_out_of_order():
    node = Gossip(sv.graphs.ring(3), 2).local(0)
    with pytest.raises(InvalidInput, match="start"):
        node.message(0)
    node.start(np.zeros(2))
    with pytest.raises(InvalidInput, match="round 0"):
        node.message(1)
    with pytest.raises(InvalidInput, match="needs the row"):
        node.receive(0, {1: np.zeros(2)})
    with pytest.raises(InvalidInput, match="still to come"):
        node.result()


# ---- one recursion: the stacked run, the observer and the peers tell the same run, step by step ------------


def every_protocol():
    rng = np.random.default_rng(12)
    er = sv.graphs.erdos_renyi(8, 1.5, rng)
    return [
        *averaging_protocols(),
        Chebyshev(er, 5, gamma=1.3),
        FreshNoiseGossip(er, 4, tau=0.3),
        FreshNoiseGossip(er, 1, tau=0.3),
        NeighborSum(er),
        Gossip(er, 0),
        Walk(er, 19, rng, std=0.4),
        Walk(er, 19, rng, std=0.4, final_public=True),
        Replicated(FreshNoiseGossip(er, 4, tau=0.3), 1),
    ]


@pytest.mark.parametrize("protocol", every_protocol(), ids=lambda p: f"{type(p).__name__}-{p.rounds}")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_run_observers_and_peers_tell_the_same_run(protocol, dtype):
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
        listed = protocol.view(observers).messages
        assert len(seen) == len(listed)
        heard = [k for k, (_, w) in enumerate(listed) if w not in observers]
        assert heard or not protocol.rounds
        for k in heard:
            assert seen[k].ravel().tobytes() == sent[listed[k]].tobytes()
        runs.append(seen.tobytes())
    fresh = getattr(protocol, "protocol", protocol)
    draws = bool(getattr(fresh, "fresh_std", 0) or getattr(fresh, "std", 0)) and protocol.rounds > 1
    assert len(set(runs)) == (3 if draws else 1)


def test_the_transition_is_what_one_round_does():
    """The accountant's matrix on (present, previous) against two rounds of the run itself."""
    network = sv.graphs.florentine()
    fast = Chebyshev(network, 2, gamma=1.4)
    unit = np.eye(15)
    state = np.vstack([unit, np.zeros((15, 15))])
    for t in range(2):
        (step,) = fast._events(t)
        state = step.transition @ state
    np.testing.assert_allclose(state[:15], fast.apply(unit), atol=1e-15)
    np.testing.assert_allclose(state[15:], network.W.toarray(), atol=1e-15)


def test_a_walk_with_fresh_noise_never_runs_without():
    walk = Walk(sv.graphs.ring(4), 3, path=[0, 1, 2], std=1.0)
    for call in (
        lambda: walk.apply(np.zeros(4)),
        lambda: walk.observe(np.zeros(4), 1),
        lambda: walk.local(0).start(np.zeros(1)),
    ):
        with pytest.raises(InvalidInput, match="noise="):
            call()


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_says_at_once_who_sends_what_its_matrices_say(seed):
    rng = np.random.default_rng(seed)
    tree = Tree(sv.graphs.complete(int(rng.integers(2, 9))), kind="uniform", rng=rng)
    who = rng.choice(tree.n, int(rng.integers(1, tree.n + 1)), replace=False).tolist()
    for t in range(tree.rounds):
        assert tree.senders(t, who) == sv.protocols.LinearProtocol.senders(tree, t, who)
