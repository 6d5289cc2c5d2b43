"""Planted bugs: every target exists, and a planted bug makes its tests fail."""

import pytest
from verification.planted_bugs import BUGS, outcome, place


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_target_of_every_bug_exists_and_is_replaced(bug):
    holder, name = place(bug.target)
    right = getattr(holder, name)
    assert bug.faulty(right) is not right


def test_names_are_unique():
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_a_planted_bug_is_caught_by_tests_that_pass_without_it():
    tests = "tests/peers/test_wire_format.py -k malformed"
    assert outcome(tests) == "passed"
    assert outcome(tests, "digests of frames are not compared") == "failed"
