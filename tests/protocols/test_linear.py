"""Linear protocols: the recursion that the accountant reads, and one node's state machine."""

import numpy as np
import pytest
from scipy import sparse
from tests.protocols.cases import run_locally

import sottovoce as sv
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Chebyshev, Gossip
from sottovoce.protocols.linear import LONG, LinearProtocol


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 16384, 16385, 40000])
def test_a_node_mixes_long_rows_bit_for_bit_as_all_together(dim, dtype):
    protocol = Gossip(sv.graphs.ring(5), 3)
    rows = np.random.default_rng(dim).normal(size=(5, dim)).astype(dtype)
    np.testing.assert_array_equal(run_locally(protocol, rows)[0], protocol.apply(rows))


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_rows_are_mixed_and_moved_bit_for_bit_as_by_scipy_and_numpy(dtype):
    # more than one stretch and a remainder; a node that hears nobody has zeros
    draw = np.random.default_rng(3)
    rows, directions = draw.normal(size=(2, 6, 2 * LONG + 5)).astype(dtype)
    heard = (draw.random((6, 6)) < 0.5) & (np.arange(6) != 2)[:, None]
    weights = sparse.csr_array(draw.normal(size=(6, 6)) * heard)

    class Once(LinearProtocol):
        name, n, rounds, _matrices = "once", 6, 1, [weights]

    mixed = (weights.astype(dtype) @ rows).tobytes()
    assert Once().apply(rows).tobytes() == Once().apply(np.asfortranarray(rows)).tobytes() == mixed
    sgd = Optimizer()
    moved, after = sgd.descend(sgd.init(rows), directions, 0.3, directions, rows)
    assert moved.tobytes() == (rows - dtype(0.3) * directions).tobytes()
    assert after.taken == 1
