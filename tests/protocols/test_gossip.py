"""Gossip, accelerated, over changing networks, and how many rounds it takes."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import (
    AcceleratedRandomized,
    Chebyshev,
    Dropout,
    FreshNoiseGossip,
    NeighborSum,
    rounds_for,
)


def test_fresh_noise_has_the_predicted_variance():
    network, rounds, tau = sv.graphs.ring(5), 4, 0.5
    protocol = FreshNoiseGossip(network, rounds, fresh_noise_std=tau)
    rng = np.random.default_rng(0)

    class Source:
        def perturb(self, values, *, agents, step, std, stream=0):
            return values + std * rng.normal(size=values.shape)

    runs = protocol.apply(np.zeros((5, 40_000)), noise=Source())
    W = network.W.toarray()
    expected = tau**2 * sum(np.linalg.matrix_power(W, 2 * k)[0, 0] for k in range(1, rounds))
    assert runs[0].var() == pytest.approx(expected, rel=0.03)
    assert runs.mean(axis=0).var() == pytest.approx((rounds - 1) * tau**2 / 5, rel=0.03)


def test_neighbor_sum_is_the_adjacency():
    network = sv.graphs.grid(2, 3)
    values = np.random.default_rng(0).normal(size=(6, 2))
    np.testing.assert_allclose(NeighborSum(network).apply(values), network.adjacency @ values)


def test_chebyshev_is_the_polynomial_with_the_right_start():
    network = sv.graphs.florentine()
    W, gap = network.W.toarray(), network.spectral_gap
    gamma = 2 * (1 - np.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2
    assert Chebyshev(network, 1).gamma == pytest.approx(gamma)
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


def test_theoretical_rounds():
    assert rounds_for(sv.graphs.hypercube(11)) == 19
    assert rounds_for(sv.graphs.grid(45, 45)) in (243, 244)
    assert rounds_for(sv.graphs.complete(1)) == 0
    assert rounds_for(sv.graphs.ring(8), kind="randomized") > rounds_for(sv.graphs.ring(8))
    with pytest.raises(InvalidInput, match="synchronous"):
        rounds_for(sv.graphs.ring(8), kind="slow")


def test_accelerated_ticks_follow_the_remark():
    """With the rate in place of lambda(p) in Theorem 3; on rings by a factor of about n / 4 fewer."""
    ratio = []
    for n in (16, 64):
        ring = sv.graphs.ring(n)
        theta = AcceleratedRandomized(ring, 1, np.random.default_rng(0)).momentum[0]
        ticks = rounds_for(ring, kind="accelerated-randomized")
        assert ticks == math.ceil(math.log(n) / theta)
        ratio.append(rounds_for(ring, kind="randomized") / ticks)
    assert ratio[1] / ratio[0] > 2
