"""The exact accountant against rational arithmetic, on random graphs and schedules of up to eight nodes.

Nothing is shared with the code under test but the protocol object: rows of messages are multiplied
*forwards* as fractions, and their span is made orthogonal by the Gram-Schmidt process without square roots,
so a direction is either there or not. The accountant works backwards in floating point and must agree to
1e-9: a lost direction understates a loss, a spurious one overstates it, and both move some user by far more
than that.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import sottovoce as sv
from sottovoce.privacy import exact_loss, learning_view
from sottovoce.protocols import (
    Dropout,
    FreshNoiseGossip,
    Gossip,
    HypercubeExchange,
    Randomized,
    TimeVarying,
    Tree,
)

TOLERANCE = 1e-9


# ---- the reference ----------------------------------------------------------------------------------


def rational(matrix):
    """The fractions a floating-point matrix of small weights stands for (1/3 for 0.333...)."""
    dense = matrix.toarray()
    exact = [[Fraction(float(x)).limit_denominator(10_000) for x in row] for row in dense]
    assert np.abs(np.array(exact, dtype=float) - dense).max() < 1e-12
    return exact


def times(A, B):
    rows = []
    for row in A:
        total = [Fraction(0)] * len(B[0])
        for weight, other in zip(row, B, strict=True):
            if weight:
                total = [x + weight * y for x, y in zip(total, other, strict=True)]
        rows.append(total)
    return rows


def unit(size, k):
    return [Fraction(int(i == k)) for i in range(size)]


def orthogonal(rows, basis=()):
    """Gram-Schmidt in fractions: extend ``basis`` by the rows; dependent rows vanish exactly."""
    found = [(list(q), sum(x * x for x in q)) for q in basis]
    for row in rows:
        left = list(row)
        for q, length in found:
            share = sum(x * y for x, y in zip(left, q, strict=True)) / length
            if share:
                left = [x - share * y for x, y in zip(left, q, strict=True)]
        if any(left):
            found.append((left, sum(x * x for x in left)))
    return found


def seen_rows(matrices, observers):
    """Every message the observers receive, as a row over the nodes' initial noisy values."""
    n = len(matrices[0])
    state = [unit(n, k) for k in range(n)]
    rows = []
    for M in matrices:
        heard = {w for v in observers for w in range(n) if w != v and M[v][w]}
        rows += [state[w] for w in sorted(heard)]
        state = times(M, state)
    return rows


def rational_loss(matrices, observers, own_noise):
    """(h, rank) as fractions: squared length of e_u projected on the span, known columns removed."""
    n = len(matrices[0])
    own = [unit(n, a) for a in observers] if own_noise else []
    basis = orthogonal(seen_rows(matrices, observers), own)[len(own) :]
    h = [sum(q[u] * q[u] / length for q, length in basis) for u in range(n)]
    return h, len(basis)


# ---- random instances -------------------------------------------------------------------------------


def random_network(rng, n):
    """A connected graph: a random tree and a few further edges."""
    order = rng.permutation(n)
    edges = {tuple(sorted((int(order[k]), int(order[rng.integers(k)])))) for k in range(1, n)}
    for _ in range(int(rng.integers(0, n))):
        u, v = sorted(int(x) for x in rng.choice(n, 2, replace=False))
        edges.add((u, v))
    return sv.graphs.network_of(np.array(sorted(edges)), n, "random")


def gossip(rng, n):
    return Gossip(random_network(rng, n), int(rng.integers(1, n + 2)))


def varying(rng, n):
    return TimeVarying([random_network(rng, n) for _ in range(int(rng.integers(2, 6)))])


def dropout(rng, n):
    return Dropout.random(random_network(rng, n), int(rng.integers(2, 7)), rng, node_rate=0.2, edge_rate=0.2)


def randomized(rng, n):
    return Randomized(random_network(rng, n), int(rng.integers(3, 20)), rng)


def tree(rng, n):
    return Tree(random_network(rng, n), root=int(rng.integers(n)))


def exchange(rng, n):
    return HypercubeExchange(4 if n < 6 else 8)


MAKERS = [gossip, varying, dropout, randomized, tree, exchange]


def instance(make, seed):
    rng = np.random.default_rng([seed, MAKERS.index(make) if make in MAKERS else 99])
    protocol = make(rng, int(rng.integers(3, 9)))
    size = int(rng.integers(1, min(3, protocol.n - 1) + 1))
    observers = tuple(sorted(int(v) for v in rng.choice(protocol.n, size, replace=False)))
    return protocol, observers


# ---- the comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize("own_noise", [True, False])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_exact_loss_is_the_rational_one(make, seed, own_noise):
    protocol, observers = instance(make, seed)
    matrices = [rational(protocol.matrix(t)) for t in range(protocol.rounds)]
    expected, rank = rational_loss(matrices, observers, own_noise)
    found = exact_loss(protocol, observer=observers[0], colluders=observers[1:], own_noise=own_noise)
    np.testing.assert_allclose(found, np.array(expected, dtype=float), atol=TOLERANCE)
    assert protocol.view(observers, own_noise).rank == rank
    assert found.sum() == pytest.approx(rank, abs=1e-8)
    # reconstructible exactly where the fraction is 1
    determined = {u for u, h in enumerate(expected) if h == 1 and u not in observers}
    assert {u for u in range(protocol.n) if protocol.view(observers, own_noise).covers(u)} == determined


@pytest.mark.parametrize("seed", range(5))
def test_all_pairs_and_known_weights(seed):
    rng = np.random.default_rng([seed, 7])
    network = random_network(rng, int(rng.integers(3, 8)))
    n, degrees = network.n, network.degrees
    W = [[Fraction(0)] * n for _ in range(n)]
    for u, v in network.edges:  # metropolis, from its definition
        W[u][v] = W[v][u] = Fraction(1, 1 + int(max(degrees[u], degrees[v])))
    for u in range(n):
        W[u][u] = 1 - sum(W[u])
    rounds = int(rng.integers(1, 7))
    found = exact_loss(network, rounds=rounds)
    for v in range(n):
        expected, _ = rational_loss([W] * rounds, (v,), True)
        np.testing.assert_allclose(found[:, v], np.array(expected, dtype=float), atol=TOLERANCE)


@pytest.mark.parametrize("own_noise", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_chebyshev_has_the_same_loss(seed, own_noise):
    rng = np.random.default_rng([seed, 8])
    network = random_network(rng, 6)
    rounds = int(rng.integers(1, 6))
    expected, rank = rational_loss([rational(network.W)] * rounds, (2,), own_noise)
    view = sv.protocols.Chebyshev(network, rounds).view(2, own_noise)
    np.testing.assert_allclose(view.leakage(), np.array(expected, dtype=float), atol=1e-7)
    assert view.rank == rank


@pytest.mark.parametrize("seed", range(5))
def test_refreshed_noise(seed):
    """Columns (s, node): the first noise carries the value, the others are scaled by tau and carry none."""
    rng = np.random.default_rng([seed, 9])
    network = random_network(rng, int(rng.integers(3, 6)))
    n, rounds, tau, v = network.n, int(rng.integers(2, 5)), Fraction(1, 5), int(rng.integers(3))
    W = rational(network.W)
    size = n * rounds
    state = [unit(size, k) for k in range(n)]
    rows = []
    for t in range(rounds):
        rows += [state[w] for w in range(n) if w != v and W[v][w]]
        state = times(W, state)
        for k in range(n):
            if t + 1 < rounds:
                state[k][(t + 1) * n + k] += tau
    own = [unit(size, s * n + v) for s in range(rounds)]
    basis = orthogonal(rows, own)[len(own) :]
    expected = [float(sum(q[u] * q[u] / length for q, length in basis)) for u in range(n)]
    found = exact_loss(FreshNoiseGossip(network, rounds, 0.2), observer=v)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("own_noise", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_many_gradient_steps(seed, own_noise):
    """Rows (step, round, sender), columns (step, node): the projector restricted to every user's columns."""
    rng = np.random.default_rng([seed, 10])
    n, steps, v = int(rng.integers(3, 6)), int(rng.integers(2, 4)), 0
    each = [Gossip(random_network(rng, n), int(rng.integers(1, 3))) for _ in range(steps)]
    size = n * steps
    state = [[Fraction(0)] * size for _ in range(n)]
    rows = []
    for s, protocol in enumerate(each):
        for k in range(n):
            state[k][s * n + k] += 1
        for t in range(protocol.rounds):
            W = rational(protocol.matrix(t))
            rows += [list(state[w]) for w in range(n) if w != v and W[v][w]]
            state = times(W, state)
    own = [unit(size, s * n + v) for s in range(steps)] if own_noise else []
    basis = orthogonal(rows, own)[len(own) :]
    view = learning_view(each, steps, v, own_noise)
    for u in range(n):
        expected = [
            [float(sum(q[s * n + u] * q[r * n + u] / length for q, length in basis)) for r in range(steps)]
            for s in range(steps)
        ]
        np.testing.assert_allclose(view.block(u), expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_bounded_by_what_they_can_do(seed):
    """The group bound is at least the loss of every change of signs, and exact for one user."""
    protocol, observers = instance(gossip, seed + 50)
    matrices = [rational(protocol.matrix(t)) for t in range(protocol.rounds)]
    basis = orthogonal(seen_rows(matrices, observers[:1]), [unit(protocol.n, observers[0])])[1:]
    view = protocol.view(observers[:1])
    users = [u for u in range(protocol.n) if u != observers[0]][:3]
    for signs in np.ndindex(*(2,) * len(users)):
        change = dict(zip(users, (1 - 2 * s for s in signs), strict=True))
        loss = sum(Fraction(sum(q[u] * d for u, d in change.items())) ** 2 / length for q, length in basis)
        assert view.group_leakage(users) >= float(loss) - TOLERANCE
    h, _ = rational_loss(matrices, observers[:1], True)
    assert view.group_leakage(users[:1]) == pytest.approx(float(h[users[0]]), abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_more_is_never_less(seed):
    """Rational losses grow with rounds and with colluders, and so must the reported ones."""
    rng = np.random.default_rng([seed, 11])
    network = random_network(rng, int(rng.integers(4, 9)))
    by_rounds = [exact_loss(network, rounds=T, observer=0) for T in range(1, 8)]
    for fewer, more in pairwise(by_rounds):
        assert (more >= fewer - 1e-9).all()
    others = np.arange(network.n) > 1
    alone, both = (exact_loss(network, rounds=3, observer=0, colluders=c) for c in ((), (1,)))
    assert (both[others] >= alone[others] - 1e-9).all()


# ---- long schedules: what double precision cannot resolve ------------------------------------------------


@pytest.mark.parametrize(
    ("network", "rounds"),
    [(sv.graphs.grid(14, 14), 48), (sv.graphs.grid(14, 14), 24), (sv.graphs.torus(7, 7), 40)],
    ids=["grid-48", "grid-24", "torus-40"],
)
def test_long_schedules_are_not_understated(network, rounds):
    """The backward recursion alone was low by .10 on a 20 x 20 grid; the Krylov form is right to 1e-15."""
    found = exact_loss(TimeVarying([network] * rounds), observer=0)
    truth = exact_loss(network, rounds=rounds, observer=0)
    assert (found >= truth - 1e-9).all()
    assert (found <= truth + 0.02).all()


def test_weights_too_faint_to_account_for_are_refused():
    """Through a weight of 1e-12 the far node is still determined exactly; the accountant would say 0."""
    faint = 1e-12
    W = np.array([[1 - faint, faint, 0], [faint, 0.5 - faint, 0.5], [0, 0.5, 0.5]])
    with pytest.raises(sv.errors.GraphError, match="at least 1e-08"):
        sv.graphs.from_matrix(W)
    with pytest.raises(sv.errors.GraphError, match="at least 1e-08"):
        TimeVarying([scipy.sparse.csr_array(W)])
    W = np.array([[1 - 1e-6, 1e-6, 0], [1e-6, 0.5 - 1e-6, 0.5], [0, 0.5, 0.5]])
    np.testing.assert_allclose(
        exact_loss(sv.graphs.from_matrix(W), rounds=2, observer=2), [1, 1, 0], atol=1e-9
    )


def fixed_point_loss(protocol, observer, digits=250):
    """The loss in ``digits`` digits, by Gram-Schmidt on whole numbers: fractions grow too long here."""
    n, bits = protocol.n, int(digits * 3.33)
    one = 1 << bits

    def scaled(y):
        length = math.isqrt(int((y * y).sum()))
        return np.array([(int(a) << bits) // length for a in y], dtype=object), length

    rows = [np.array([one * int(i == k) for i in range(n)], dtype=object) for k in range(n)]
    basis = []
    for t in range(protocol.rounds):
        M = rational(protocol.matrix(t))
        for w in (w for w in range(n) if w != observer and M[observer][w]):
            y = rows[w].copy()
            y[observer] = 0
            y, _ = scaled(y)
            for q in basis * 2:
                y = y - ((q * (int((q * y).sum()) >> bits)) >> bits)
            unit_row, length = scaled(y)
            if length.bit_length() > bits // 2:  # else dependent: nothing but the last digits is left
                basis.append(unit_row)
        mixed = []
        for i in range(n):
            terms = [(w, M[i][w]) for w in range(n) if M[i][w]]
            mixed.append(sum((rows[w] * x.numerator) // x.denominator for w, x in terms))
        rows = mixed
    return np.array([float(Fraction(sum(int(q[u]) ** 2 for q in basis), one * one)) for u in range(n)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_long_schedules_with_faults_are_not_understated(seed):
    rng = np.random.default_rng([seed, 12])
    protocol = Dropout.random(sv.graphs.grid(10, 10), 44, rng, edge_rate=0.002)
    assert (exact_loss(protocol, observer=0) >= fixed_point_loss(protocol, 0) - 1e-9).all()
