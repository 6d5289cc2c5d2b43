"""Accelerated gossip against its polynomial."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.protocols import Chebyshev


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
