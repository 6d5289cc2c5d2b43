"""Gossip whose matrix changes: dropout, and matrices that cannot average."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Dropout, TimeVarying


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


INVALID = [
    (lambda: TimeVarying([np.array([[0.5, 0.44], [0.44, 0.5]])]), "sums to 0.94"),
    (lambda: TimeVarying([sv.graphs.ring(4), sv.graphs.ring(5)]), "Round 1 has 5 nodes"),
    (lambda: TimeVarying([]), "at least one"),
    (lambda: Dropout(sv.graphs.ring(4), 2, nodes={5: [0]}), "round 5"),
    (lambda: Dropout(sv.graphs.ring(4), 2, edges={0: [(0, 2)]}), "not an edge"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
