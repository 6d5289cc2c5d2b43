"""The stacked runner: steps and blocks give the same states, whatever the stretches and wherever it began."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.runners import Algorithm, State, run_stacked

RING = sv.protocols.Gossip(sv.graphs.ring(4), rounds=2)
START = np.arange(8.0).reshape(4, 2)


def steps_only():
    """A text whose step depends on its number, so that a step left out or done twice shows."""

    def message(state, k):
        return state.common + (k + 1) * state.own

    def update(state, received, k):
        return State(received, 0.5 * state.own + k)

    return Algorithm(lambda: State(START, np.ones((4, 2))), message, update, lambda state: state.common)


def with_block(blocks):
    """The same, its block written out once more, remembering the steps of each call."""
    mixing = np.linalg.matrix_power(RING.matrix(0).toarray(), 2)

    def block(state, k, count):
        blocks.append((k, count))
        theta, own = state
        for step in range(k, k + count):
            theta, own = mixing @ (theta + (step + 1) * own), 0.5 * own + step
        return State(theta, own)

    return steps_only()._replace(block=block)


@pytest.mark.parametrize("start", [0, 3, 4])
@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_blocks_equal_steps(start, every):
    blocks, seen, wanted = [], {}, {}
    begin = run_stacked(steps_only(), RING, start)
    plain = run_stacked(steps_only(), RING, 10, state=begin, first_step=start, after_step=wanted.__setitem__)
    fast = run_stacked(
        with_block(blocks), RING, 10, state=begin, first_step=start, after_step=seen.__setitem__, every=every
    )
    for k, state in [*seen.items(), (9, fast)]:
        np.testing.assert_allclose(state.common, wanted[k].common, rtol=1e-13)
        np.testing.assert_array_equal(state.own, wanted[k].own)
    assert plain is wanted[9]
    # every step once, in order, and no stretch across a multiple of every
    assert [step for k, count in blocks for step in range(k, k + count)] == list(range(start, 10))
    assert all(k // every == (k + count - 1) // every for k, count in blocks)
    assert list(seen) == [k + count - 1 for k, count in blocks]
    assert {k for k in range(start, 10) if (k + 1) % every == 0} <= set(seen)


def test_without_a_block_every_step_is_seen():
    seen = []
    run_stacked(steps_only(), lambda k: RING, 5, after_step=lambda k, state: seen.append(k), every=3)
    assert seen == [0, 1, 2, 3, 4]


def test_nothing_to_do_and_bad_stretches():
    assert (run_stacked(steps_only(), RING, 0).common == START).all()
    with pytest.raises(InvalidInput, match="every must be at least 1"):
        run_stacked(steps_only(), RING, 1, every=0)
