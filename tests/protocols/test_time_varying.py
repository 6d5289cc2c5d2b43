"""Gossip whose matrix changes: dropout."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.protocols import Dropout


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
