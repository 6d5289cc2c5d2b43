"""Gossip with a fixed matrix, with fresh noise and with weights that do not average."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.protocols import FreshNoiseGossip, Gossip, NeighborSum


def test_gossip_converges_at_the_spectral_rate():
    network = sv.graphs.florentine()
    values = np.random.default_rng(0).normal(size=(15, 1))
    start = np.linalg.norm(values - values.mean())
    for rounds in (5, 20, 60):
        error = np.linalg.norm(Gossip(network, rounds).apply(values) - values.mean())
        assert error <= (1 - network.spectral_gap) ** rounds * start * (1 + 1e-9)


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
