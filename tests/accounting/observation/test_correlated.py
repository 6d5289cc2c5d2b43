"""Correlated noise: explicit matrices, duality, printed values and simulated covariance."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.observation.correlated import decor_variances
from sottovoce.errors import InvalidInput

RING = sv.graphs.ring(8)


def test_decor_printed_values():
    ring = sv.graphs.ring(16)
    assert decor_variances(ring, 0.5, 3.0)[0] == pytest.approx(0.38196, abs=5e-6)
    assert decor_variances(ring, 0.5, 1e5)[0] == pytest.approx(0.25, rel=1e-6)
    assert decor_variances(ring, 0.5, 0.0)[0] == pytest.approx(4.0)


@pytest.mark.parametrize(
    "network", [sv.graphs.florentine(), sv.graphs.star(6), sv.graphs.grid(3, 3)], ids=str
)
def test_decor_against_the_stacked_noise(network):
    # the message noise is B z: private noise, and every edge's noise with opposite signs
    private, shared = 0.7, 1.9
    incidence = np.zeros((network.n, len(network.edges)))
    for k, (i, j) in enumerate(network.edges):
        incidence[i, k], incidence[j, k] = 1, -1
    B = np.hstack([private * np.eye(network.n), shared * incidence])
    expected = np.diagonal(np.linalg.inv(B @ B.T))
    np.testing.assert_allclose(decor_variances(network, private, shared), expected, rtol=1e-10)


def test_decor_colluders_remove_their_edges():
    network = sv.graphs.ring(8)
    alone, against = decor_variances(network, 0.5, 3.0), decor_variances(network, 0.5, 3.0, colluders=[0])
    assert against[0] == math.inf
    assert (against[1:] >= alone[1:] - 1e-12).all()
    assert against[1] > alone[1] * 1.01
    np.testing.assert_allclose(against[1:], decor_variances(sv.graphs.path(7), 0.5, 3.0), rtol=1e-12)
    assert decor_variances(network, 0.5, 3.0, colluders=[1, 7])[0] == pytest.approx(
        4.0
    )  # cut off: its own noise only
    for wrong in (
        lambda: decor_variances(network, 1, 1, colluders=range(8)),
        lambda: decor_variances(network, 0, 1),
    ):
        with pytest.raises(InvalidInput):
            wrong()
