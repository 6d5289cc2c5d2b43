"""Whole lots are shared, sampled ones are not, and neither changes what a step takes."""

import numpy as np
import pytest

from sottovoce.data.lots import Lots


def test_whole_lots_are_every_record_and_one_list_for_the_same_agents():
    lots = Lots([3, 5, 3], [1.0, 1.0, 1.0], key=1)
    first, again = lots.draw([0, 1, 2], 0), lots.draw(range(3), 7, 2)
    assert [lot.tolist() for lot in first] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2]]
    assert again is first
    assert [lot.tolist() for lot in lots.draw([1], 0)] == [[0, 1, 2, 3, 4]]
    assert [len(lot) for lot in lots.draw([2, 1], 0)] == [3, 5]  # other agents, other lots


def test_nobody_can_change_a_shared_lot():
    (lot,) = Lots([4], [1.0], key=1).draw([0], 0)
    with pytest.raises(ValueError, match="read-only"):
        lot[0] = 3


def test_whole_lots_beside_sampled_ones():
    """One agent that samples leaves the others whole, and its own lots are those it has alone."""
    mixed, alone = Lots([50, 6], [0.3, 1.0], key=9), Lots([50], [0.3], key=9)
    for step in range(4):
        sampled, whole = mixed.draw([0, 1], step)
        assert np.array_equal(sampled, alone.draw([0], step)[0])
        assert whole.tolist() == list(range(6))
    assert not np.array_equal(mixed.draw([0], 0)[0], mixed.draw([0], 1)[0])
