"""Correlated noise: explicit matrices, duality, printed values and simulated covariance."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.noise.correlated import (
    PairSharedNoise,
    TimeCorrelatedNoise,
    _root,
    mafalda,
    mafalda_gram,
    time_correlation,
)
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise

RING = sv.graphs.ring(8)


def test_gram_against_the_explicit_matrix():
    network, T = sv.graphs.florentine(), 4
    n, W = network.n, network.W.toarray()
    stacked = np.zeros((n * T, n * T))
    for t in range(T):
        for s in range(t + 1):
            stacked[t * n : (t + 1) * n, s * n : (s + 1) * n] = np.linalg.matrix_power(W, t - s + 1)
    blocks = [stacked[:, s * n : (s + 1) * n] for s in range(T)]
    expected = [[np.sum(a * b) for b in blocks] for a in blocks]
    np.testing.assert_allclose(mafalda_gram(network, T), expected, rtol=1e-12)
    C = np.tril(np.random.default_rng(0).normal(size=(T, T))) + 3 * np.eye(T)
    mixed = stacked @ np.kron(np.linalg.inv(C), np.eye(n))
    result = time_correlation(C, mafalda_gram(network, T))
    assert result.error / result.sens**2 == pytest.approx(np.sum(mixed**2), rel=1e-10)


def test_printed_values_on_a_ring():
    M = mafalda_gram(RING, 16)
    assert time_correlation(np.eye(16), M).error == pytest.approx(194.63, abs=5e-3)
    assert mafalda(RING, 16).error == pytest.approx(91.03, abs=5e-3)
    assert time_correlation(mafalda(None, 16).C, M).error == pytest.approx(95.00, abs=5e-3)
    anti = np.tril(np.ones((16, 16)))  # AntiPGD: each noise is taken back one step later
    assert time_correlation(anti, M).error == pytest.approx(803.6, abs=5e-2)


@pytest.mark.parametrize("network", [None, RING, sv.graphs.star(5)], ids=str)
def test_optimal_by_duality(network):
    best, M = mafalda(network, 12), mafalda_gram(network, 12)
    X = best.C.T @ best.C
    assert np.diagonal(X) == pytest.approx(np.ones(12), rel=1e-9)
    # Lagrangian dual: 2 tr (V^1/2 M V^1/2)^1/2 - sum v is a lower bound for any v >= 0
    inverse = np.linalg.inv(X)
    v = np.diagonal(inverse @ M @ inverse)
    dual = 2 * np.trace(_root(np.sqrt(v)[:, None] * M * np.sqrt(v))) - v.sum()
    assert dual <= best.error * (1 + 1e-12)
    assert dual == pytest.approx(best.error, rel=1e-6)
    # noise of a step mixes fresh noises of no later step
    assert not np.triu(best.C, 1).any()
    assert not np.triu(best.inverse, 1).any()
    np.testing.assert_allclose(best.inverse @ best.C, np.eye(12), atol=1e-12)
    assert best.sens == pytest.approx(np.linalg.norm(best.C, axis=0).max())


def test_several_participations():
    single = mafalda(RING, 12, [[t] for t in range(12)])
    assert single.error == pytest.approx(mafalda(RING, 12).error, rel=1e-6)
    sets = [[s, s + 4, s + 8] for s in range(4)]
    best = mafalda(RING, 12, sets)
    M = mafalda_gram(RING, 12)
    assert best.error < time_correlation(mafalda(RING, 12).C, M, sets).error
    assert best.error < time_correlation(np.eye(12), M, sets).error
    # the sensitivity bounds every choice of unit vectors a user could contribute
    rng = np.random.default_rng(1)
    for members in sets:
        for _ in range(50):
            change = np.zeros((12, 3))
            change[members] = rng.normal(size=(3, 3))
            change[members] /= np.linalg.norm(change[members], axis=1, keepdims=True)
            assert np.linalg.norm(best.C @ change) <= best.sens * (1 + 1e-12)
    with pytest.raises(InvalidInput, match="disjoint"):
        mafalda(RING, 4, [[0, 1], [1, 2]])
    with pytest.raises(InvalidInput, match="triangular"):
        time_correlation(np.ones((2, 2)), M[:2, :2])


def test_noise_over_time_is_the_matrix_on_fresh_draws():
    source, best = SimulatedNoise(3), mafalda(RING, 5)
    noise = TimeCorrelatedNoise(source, best)
    zeros = np.zeros((2, 4))
    fresh = [source.perturb(zeros, agents=[1, 6], step=s, std=1.0) for s in range(5)]
    for step in (0, 4):
        rows = noise.perturb(zeros, agents=[1, 6], step=step, std=2.0)
        expected = 2.0 * best.sens * np.einsum("s,sij->ij", best.inverse[step], fresh)
        np.testing.assert_allclose(rows, expected, rtol=1e-12)
    with pytest.raises(InvalidInput, match="over 5 steps, got step 5"):
        noise.perturb(zeros, agents=[1, 6], step=5, std=2.0)
    with pytest.raises(InvalidInput, match="simulate"):
        TimeCorrelatedNoise(ProtectiveNoise(), best)


def test_shared_noise_cancels_in_the_sum():
    noise = PairSharedNoise(SimulatedNoise(1), RING, 3.0)
    rows = noise.perturb(np.zeros((8, 20_000)), agents=range(8), step=0, std=0.0)
    assert np.abs(rows.sum(axis=0)).max() < 1e-12
    assert rows.std(axis=1) == pytest.approx(np.full(8, 3.0 * math.sqrt(2)), rel=0.04)
    some = noise.perturb(np.zeros((2, 20_000)), agents=[3, 5], step=0, std=0.0)
    assert (some == rows[[3, 5]]).all()
    with pytest.raises(InvalidInput, match="simulate"):
        PairSharedNoise(ProtectiveNoise(), RING, 3.0)
