"""Planted bugs: every target exists, and a planted bug makes its tests fail."""

import re

import pytest
from verification.planted_bugs import BUGS, ROOT, outcome, place


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_target_of_every_bug_exists_and_is_replaced(bug):
    holder, name = place(bug.target)
    right = getattr(holder, name)
    assert bug.faulty(right) is not right


@pytest.mark.parametrize("tests", sorted({bug.tests for bug in BUGS}))
def test_the_tests_of_every_bug_exist(tests):
    files, _, words = tests.partition(" -k ")
    code = "".join((ROOT / file).read_text() for file in files.split())
    names = "\n".join(re.findall(r"def (\w+)", code))
    alternatives = re.findall(r"[a-z]\w+", words.partition("(")[0])
    assert all(word in names for word in alternatives if word not in ("and", "or", "not"))


def test_names_are_unique():
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_a_planted_bug_is_caught_by_tests_that_pass_without_it():
    tests = "tests/peers/test_wire_format.py -k malformed"
    assert outcome(tests) == "passed"
    assert outcome(tests, "digests of frames are not compared") == "failed"
