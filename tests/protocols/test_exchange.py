"""Hypercube exchange."""

import numpy as np

from sottovoce.protocols import HypercubeExchange


def test_shares_are_those_of_the_view():
    exchange = HypercubeExchange(8)
    for v in range(8):
        np.testing.assert_allclose(exchange.shares(v), exchange.view(v).leakage(), atol=1e-12)
    assert HypercubeExchange(4).shares(0, noise_std=[1.0, 1.0, 2.0, 1.0]).tolist() == [0.0, 1.0, 0.8, 0.2]
    np.testing.assert_allclose(HypercubeExchange(4).output_view(0).leakage(), 0.25)
