"""Linear protocols: the recursion that the accountant reads, and one node's state machine."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Chebyshev, Gossip


def test_the_transition_is_what_one_round_does():
    """The accountant's matrix on (present, previous) against two rounds of the run itself."""
    network = sv.graphs.florentine()
    fast = Chebyshev(network, 2, gamma=1.4)
    unit = np.eye(15)
    state = np.vstack([unit, np.zeros((15, 15))])
    for t in range(2):
        (step,) = fast._events(t)
        state = step.transition @ state
    np.testing.assert_allclose(state[:15], fast.apply(unit), atol=1e-15)
    np.testing.assert_allclose(state[15:], network.W.toarray(), atol=1e-15)


def test_a_local_node_refuses_rounds_out_of_order():
    node = Gossip(sv.graphs.ring(3), 2).node_state(0)
    with pytest.raises(InvalidInput, match="start"):
        node.message(0)
    node.start(np.zeros(2))
    with pytest.raises(InvalidInput, match="round 0"):
        node.message(1)
    with pytest.raises(InvalidInput, match="needs the row"):
        node.receive(0, {1: np.zeros(2)})
    with pytest.raises(InvalidInput, match="still to come"):
        node.result()
