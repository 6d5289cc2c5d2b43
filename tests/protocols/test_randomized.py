"""Accelerated randomized gossip against its differential equation, its rate, and whole-number arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError
from sottovoce.protocols import AcceleratedRandomized, Randomized, parse, rounds_for
from verification import exact_spans


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
def test_it_is_the_equation_with_two_rows_per_node(intensities):
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
def test_errors_fall_at_least_as_fast_as_promised(network):
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


def test_the_number_of_ticks_is_the_one_of_the_remark():
    """With the rate in place of lambda(p) in Theorem 3; on rings by a factor of about n / 4 fewer."""
    for n in (16, 64):
        ring = sv.graphs.ring(n)
        theta = AcceleratedRandomized(ring, 1, np.random.default_rng(0)).momentum[0]
        assert rounds_for(ring, kind="accelerated-randomized") == math.ceil(math.log(n) / theta)
    ratio = [rounds_for(sv.graphs.ring(n), kind="randomized")
             / rounds_for(sv.graphs.ring(n), kind="accelerated-randomized") for n in (16, 64)]  # fmt: skip
    assert ratio[1] / ratio[0] > 2


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("own_noise", [True, False])
def test_what_is_seen_against_whole_numbers(seed, own_noise):
    """Every message by the equation in fractions, projected exactly: never more than what is claimed."""
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


def test_the_attacker_computes_what_the_account_says():
    rng = np.random.default_rng(8)
    protocol = AcceleratedRandomized(sv.graphs.path(4), 60, rng)
    values = rng.normal(size=(4, 3))
    view = protocol.view(0)
    known = view.leakage() > 1 - 1e-9
    assert known[1]
    found = view.reconstruct(protocol.observe(values, 0))
    np.testing.assert_allclose(found[known], values[known], atol=1e-6)


def test_an_average_by_a_walk_is_named_and_priced_on_its_path():
    """A visit is a release: the price of a node is that of its visits, and the mean goes to everybody."""
    network = sv.graphs.complete(6)
    plan = sv.PrivateAveraging("walk:60", network=network, noise_std=1.0, radius=0.5, seed=4)
    walk = plan.schedule(0)
    most = max(walk.contributions(v) for v in range(6))
    assert sum(walk.contributions(v) for v in range(6)) == 60
    assert plan.privacy("local").mu == pytest.approx(math.sqrt(most))
    rows = plan.run(np.linspace(-0.5, 0.5, 6), np.random.default_rng(0)).outputs["rows"]
    assert (rows == rows[0]).all()
    kept = sv.PrivateAveraging("walk:60:final=kept", network=network, noise_std=1.0, radius=0.5, seed=4)
    assert kept.privacy("network").mu <= plan.privacy("network").mu
    with pytest.raises(ConfigError, match="public"):
        parse("walk:60:final=never").at(network)


def test_protocols_that_change_are_called_by_name():
    """A name gives the same protocol again for one seed and step, and another for the next."""
    complete, ring = sv.graphs.complete(8), sv.graphs.ring(8)
    named_on = (("accelerated-randomized:30:intensities=uniform", ring), ("time-varying:5", complete),
                ("dropout:6:edges=0.3", ring), ("dropout:6:nodes=0.2", ring))  # fmt: skip
    for name, network in named_on:
        named = parse(name)
        assert named.drawn
        assert str(parse(str(named))) == str(named)
        first, same, other = (named.at(network, seed=1, step=k) for k in (0, 0, 1))
        rows = np.random.default_rng(0).normal(size=(8, 2))
        assert first.apply(rows).tobytes() == same.apply(rows).tobytes()
        assert first.apply(rows).tobytes() != other.apply(rows).tobytes()
        np.testing.assert_allclose(first.apply(rows).mean(axis=0), rows.mean(axis=0), atol=1e-12)
        plan = sv.PrivateAveraging(name, network=network, noise_std=1.0, radius=0.5, seed=1)
        assert plan.privacy("network").epsilon(1e-5) <= plan.privacy("local").epsilon(1e-5) + 1e-9
    with pytest.raises(ConfigError, match="all pairs"):
        parse("time-varying:5").at(ring)


@pytest.mark.parametrize("name", ["chebyshev:3", "randomized:20", "accelerated-randomized:20",
                                  "dropout:2:nodes=0.2", "time-varying:2", "tree", "exchange"])  # fmt: skip
@pytest.mark.parametrize("method", ["dp-dsgd", "dp-dsgt"])
def test_network_methods_run_over_any_of_them(method, name):
    """Prices are those of the releases, whatever mixes the rows; the mean moves as with exact consensus."""
    from sottovoce.algorithms.registry import algorithm

    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 40, 3)) / 2
    data = [(x, np.where(x @ [1.0, -1.0, 0.5] > 0, 1.0, -1.0)) for x in X]
    options = {"steps": 12, "sizes": [40] * 8, "batch_size": 10, "clip_norm": 1.0, "noise_multiplier": 2.0}
    kind = algorithm(method)
    plan = kind(sv.objectives.GLM(dim=3), name, network=sv.graphs.complete(8), **options)
    plain = kind(sv.objectives.GLM(dim=3), sv.graphs.complete(8), **options)
    assert plan.privacy("local").epsilon(1e-5) == plain.privacy("local").epsilon(1e-5)
    rows = plan.run(data, np.random.default_rng(1)).outputs["rows"]
    assert rows.shape == (8, 3)
    assert np.isfinite(rows).all()
