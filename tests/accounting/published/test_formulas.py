"""Published formulas against the authors' numbers, a literal evaluation, and the places where they fail."""

import dataclasses
import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.published import formulas
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, Translations


def literal(matrices, senders):
    """Equation (6) by its letters: [u, v], one matrix per round, senders[t][v] the nodes v hears in t."""
    n = matrices[0].shape[0]
    loss = np.zeros((n, n))
    product = np.eye(n)
    for W, heard in zip(matrices, senders, strict=True):
        for v in range(n):
            for w in heard[v]:
                loss[:, v] += product[w] ** 2 / (product[w] @ product[w])
        product = W @ product
    return loss


def on_network(network, rounds):
    W = network.W.toarray()
    if rounds == 0:
        return np.zeros(W.shape)
    return literal([W] * rounds, [[network.neighbors(v) for v in range(network.n)]] * rounds)


NETWORKS = [
    sv.graphs.path(5), sv.graphs.ring(7), sv.graphs.star(6), sv.graphs.grid(3, 4), sv.graphs.torus(3, 4),
    sv.graphs.hypercube(4), sv.graphs.complete(6), sv.graphs.florentine(), sv.graphs.exponential(9),
]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS, ids=lambda g: g.name)
@pytest.mark.parametrize("rounds", [0, 1, 2, 9])
def test_equation_six_by_its_letters(network, rounds):
    loss = formulas.published_loss(network, rounds)
    np.testing.assert_allclose(loss, on_network(network, rounds), rtol=1e-12, atol=1e-14)
    # with u = v included the losses add up to the number of messages received
    np.testing.assert_allclose(loss.sum(axis=0), network.degrees * rounds, rtol=1e-12)
    np.testing.assert_allclose(formulas.published_mean_loss(network, rounds), loss.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("spec", "rounds", "largest", "gap"),
    [
        (sv.graphs.ring(64), 74, 2.02555258, 0.00321018222),
        (sv.graphs.complete(32), 4, 3.78417969, 1.0),
        (sv.graphs.florentine(), 12, 4.55002654, 0.0574413008),
    ],
    ids=["ring", "complete", "florentine"],
)
def test_the_authors_own_numbers(spec, rounds, largest, gap):
    assert formulas.mean_loss(formulas.published_loss(spec, rounds)).max() == pytest.approx(largest, abs=5e-9)
    assert spec.spectral_gap == pytest.approx(gap, rel=1e-9)


def test_the_formula_understates():
    assert formulas.published_loss(sv.graphs.path(3), 2)[0, 2] == pytest.approx(1 / 3)
    assert formulas.corollary_loss(sv.graphs.path(3), 2)[0, 2] == pytest.approx(1 / 3)
    exact = sv.privacy.exact_loss(sv.graphs.path(3), rounds=2, observer=2)
    assert exact[0] == pytest.approx(1.0)
    cube = sv.graphs.hypercube(10)
    far = np.flatnonzero(cube.distances_from(0) == 9)
    assert formulas.published_loss(cube, 17)[far[0], 0] == pytest.approx(0.023, abs=5e-4)


def test_a_false_symmetry_is_not_believed():
    claimed = dataclasses.replace(sv.graphs.path(6), symmetry=Translations((6,)))
    np.testing.assert_allclose(formulas.published_loss(claimed, 4), on_network(claimed, 4), rtol=1e-12)


def test_asymmetric_weights_use_the_sender_row():
    W = np.array([[0.6, 0.4, 0.0], [0.2, 0.5, 0.3], [0.0, 0.7, 0.3]])
    network = Network([(0, 1), (1, 2)], W, averaging=False)
    loss = formulas.published_loss(network, 5)
    np.testing.assert_allclose(loss, on_network(network, 5), rtol=1e-12)
    turned = dataclasses.replace(network, W=W.T / W.T.sum(axis=1, keepdims=True))
    assert not np.allclose(loss, on_network(turned, 5))


def test_protocols_with_changing_matrices():
    rng = np.random.default_rng(3)
    protocol = sv.protocols.Randomized(sv.graphs.ring(6), 25, rng)
    matrices = [protocol.matrix(t).toarray() for t in range(25)]
    senders = [[np.flatnonzero((np.arange(6) != v) & (W[v] != 0)) for v in range(6)] for W in matrices]
    expected = literal(matrices, senders)
    np.testing.assert_allclose(formulas.published_loss(protocol), expected, rtol=1e-12, atol=1e-14)
    gossip = sv.protocols.Gossip(sv.graphs.florentine(), 4)
    expected = formulas.published_loss(sv.graphs.florentine(), 4)
    np.testing.assert_allclose(formulas.published_loss(gossip), expected, rtol=1e-12, atol=1e-14)
    with pytest.raises(InvalidInput, match="leave it out"):
        formulas.published_loss(gossip, rounds=5)
    with pytest.raises(InvalidInput, match="one noise per node"):
        formulas.published_loss(sv.protocols.FreshNoiseGossip(sv.graphs.ring(4), 3, 0.1))


def test_corollary_and_learning():
    network = sv.graphs.florentine()
    W, total, power = network.W.toarray(), np.zeros((15, 15)), np.eye(15)
    for _ in range(4):
        power = power @ W
        total += power**2
    v = 3
    factor = max(W[v, w] ** -2 for w in network.neighbors(v))
    np.testing.assert_allclose(formulas.corollary_loss(network, 4)[:, v], 15 * factor * total[:, v])
    seven = 7 * formulas.published_loss(network, 3)
    np.testing.assert_allclose(formulas.published_sgd_loss(network, 7, 3), seven, rtol=1e-14)


def test_random_walk_logarithm():
    L = -formulas._log_gap(sv.graphs.ring(4))
    np.testing.assert_allclose(L[0], [0.13081, 0.07192, -0.27465, 0.07192], atol=6e-6)
    for network in (sv.graphs.florentine(), sv.graphs.hypercube(4)):
        L = -formulas._log_gap(network)
        np.testing.assert_allclose(L.sum(axis=1), 0, atol=1e-13)
        W, n, T = network.W.toarray(), network.n, 4000
        series, power = np.zeros((n, n)), np.eye(n)
        for t in range(1, T + 1):
            power = W @ power
            series += power / t
        harmonic = sum(1 / k for k in range(1, T + 1))
        np.testing.assert_allclose(series, harmonic / n + L, atol=2e-14)
        expected = 2 * T / n * (math.log(T) / n + L)
        np.testing.assert_allclose(formulas.published_walk_loss(network, T), expected, rtol=1e-12)
    np.testing.assert_allclose(formulas._log_gap(sv.graphs.complete(6)), 0, atol=1e-14)


def test_random_walk_printed_values():
    per_unit = 2 / (2 * 20)  # alpha 2, sigma^2 20
    complete = formulas.published_walk_loss(sv.graphs.complete(64), 1280)[0, 1] * per_unit
    assert complete == pytest.approx(0.2236, abs=5e-5)
    cube = formulas.published_walk_loss(sv.graphs.hypercube(6), 1280)[:, 0] * per_unit
    np.testing.assert_allclose(cube[[1, 3, 63]], [0.550, 0.230, 0.142], atol=5e-4)


def test_table_of_utilities():
    utility, rows = formulas.published_utility, ("ldp", "curator", "expander", "complete", "ring", "torus")
    ring, complete, cube = sv.graphs.ring(64), sv.graphs.complete(64), sv.graphs.hypercube(6)
    at = {row: utility(ring, 0.5, alpha=3.0, sensitivity=2.0, row=row) for row in rows}
    unit = 3 * 4 / 0.5
    assert at["ldp"] == pytest.approx(unit / 64)
    assert at["curator"] == at["expander"] == pytest.approx(unit / 64**2)
    assert at["ring"] == at["complete"] == at["ldp"]
    assert at["torus"] == pytest.approx(unit * 2 / 64**1.5)
    assert utility(complete, 1.0, row="complete", randomized=True) == pytest.approx(2 / 64**2)
    assert utility(cube, 1.0) == pytest.approx(2 * 6 / 64**2 / math.sqrt(cube.spectral_gap))
    assert utility(cube, 1.0, randomized=True) == pytest.approx(2 / 64**2 / cube.spectral_gap)


def test_bad_input():
    with pytest.raises(InvalidInput, match="rounds"):
        formulas.published_loss(sv.graphs.ring(4))
    with pytest.raises(InvalidInput, match="pairs"):
        formulas.mean_loss(np.ones(3))
    with pytest.raises(InvalidInput):
        formulas.published_loss(sv.graphs.ring(4), -1)
