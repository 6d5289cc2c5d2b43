"""Randomized gossip, and its acceleration against its differential equation and exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.protocols import AcceleratedRandomized, Randomized
from verification import exact_spans


def test_randomized_ticks_follow_the_weights_and_idle():
    network = sv.graphs.star(4)
    protocol = Randomized(network, 40_000, np.random.default_rng(0))
    idle = (protocol.edges[:, 0] < 0).mean()
    assert idle == pytest.approx(network.W.diagonal().sum() / 4, abs=0.01)
    u, v = network.edges[0]
    share = (protocol.edges == [u, v]).all(axis=1).mean()
    assert share == pytest.approx(2 * network.W[u, v] / 4, abs=0.01)


def condition(network, intensities):
    """theta and g from the condition numbers, by the pseudo-inverse."""
    laplacian = np.zeros((network.n, network.n))
    for (u, v), p in zip(network.edges, intensities, strict=True):
        e = np.zeros(network.n)
        e[u], e[v] = 1, -1
        laplacian += p * np.outer(e, e)
    inverse = np.linalg.pinv(laplacian)
    resistance = max(inverse[u, u] + inverse[v, v] - 2 * inverse[u, v] for u, v in network.edges)
    kappa = 2 / np.linalg.eigvalsh(laplacian)[1]
    return 1 / math.sqrt(kappa * resistance), math.sqrt(kappa / resistance)


def by_hand(protocol, theta, g, rows, exact=float):
    """Yield x before every tick and at the end: two rows per node, moved as the equation says."""
    x, z = [list(r) for r in rows], [list(r) for r in rows]
    theta, g, half = exact(theta), exact(g), exact(1) / 2
    for t, (u, v) in enumerate(protocol.edges):
        if t:
            met = exact(-math.expm1(-2 * float(theta) * protocol.waits[t]) / 2)
            for a, b in zip(x, z, strict=True):
                for j in range(len(a)):
                    a[j], b[j] = a[j] + met * (b[j] - a[j]), b[j] + met * (a[j] - b[j])
        yield x
        if u >= 0:
            for j in range(len(x[u])):
                difference = x[u][j] - x[v][j]
                x[u][j] -= half * difference
                x[v][j] += half * difference
                z[u][j] -= g * half * difference
                z[v][j] += g * half * difference
    yield x


@pytest.mark.parametrize("intensities", ["weights", "uniform"])
def test_rows_follow_the_differential_equation(intensities):
    rng = np.random.default_rng(3)
    network = sv.graphs.florentine()
    protocol = AcceleratedRandomized(network, 300, rng, intensities=intensities)
    theta, g = condition(network, protocol.intensities)
    assert protocol.momentum == pytest.approx((theta, g), rel=1e-9)
    values = rng.normal(size=(15, 2))
    *_, last = by_hand(protocol, theta, g, values.tolist())
    np.testing.assert_allclose(protocol.apply(values), last, atol=1e-12)


@pytest.mark.parametrize("network", [sv.graphs.ring(24), sv.graphs.torus(5, 5), sv.graphs.path(9)],
                         ids=lambda n: n.name)  # fmt: skip
def test_errors_fall_at_the_stated_rate(network):
    """The mean over runs against 2 exp(-theta t), and far below plain ticks where those are slow."""
    rng = np.random.default_rng(5)
    theta = AcceleratedRandomized(network, 1, rng).momentum[0]
    ticks = math.ceil(8 / theta)
    left, plain = [], []
    for _ in range(20):
        fast = AcceleratedRandomized(network, ticks, rng)
        values = rng.normal(size=(network.n, 4))
        values -= values.mean(axis=0)
        start = (values**2).sum()
        left.append((fast.apply(values) ** 2).sum() / start)
        plain.append((Randomized(network, ticks, edges=fast.edges).apply(values) ** 2).sum() / start)
    assert np.mean(left) < 2 * math.exp(-8)
    if network.name != "torus:5:5":  # well connected: momentum gains little
        assert np.mean(left) < np.mean(plain) / 20


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("own_noise", [True, False])
def test_views_against_exact_fractions(seed, own_noise):
    """Every message by the equation in fractions, projected exactly: never more than claimed."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    network = sv.graphs.path(n) if seed % 2 else sv.graphs.ring(n)
    protocol = AcceleratedRandomized(network, int(rng.integers(3, 14)), rng, intensities="uniform")
    observers = (0,) if seed % 3 else (0, n - 1)
    unit = [[Fraction(int(i == k)) for i in range(n)] for k in range(n)]
    seen = []
    theta, g = protocol.momentum
    states = by_hand(protocol, theta, g, unit, Fraction)
    for (u, v), x in zip(protocol.edges, states, strict=False):
        seen += [list(x[w]) for w, other in ((u, v), (v, u)) if other in observers]
    if own_noise:
        seen = [[Fraction(0) if j in observers else value for j, value in enumerate(row)] for row in seen]
    whole = [[int(value * math.lcm(*(q.denominator for q in row))) for value in row] for row in seen]
    exact = np.array([float(share) for share in exact_spans.projected(whole, n)])
    view = protocol.view(observers, own_noise=own_noise)
    claimed = view.leakage()
    assert (claimed >= exact - 1e-9).all()
    if not view.rounded_up:
        np.testing.assert_allclose(claimed, exact, atol=1e-7)
