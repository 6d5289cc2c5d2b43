"""Mutants and planted bugs: what they change, and that tests notice."""

import re
import sys

import pytest
from verification.planted_bugs import BUGS, ROOT, outcome, place

from verification import mutation

SOURCE = b'''"""Words 1 + 1."""
__all__ = ["f"]

def f(x: int = 3, *, y: "1 + 1" = None) -> bool:
    """Words 2 < 3."""
    if x < 2 and not y:
        raise ValueError(f"{x + 1} is wrong")
    check(x)
    total = -x / math.sqrt(4)
    return total if max(x, 2.5) else y[0]
'''


def test_every_sign_comparison_constant_index_and_call_and_no_words():
    mutants = {(m.what, m.before, m.after) for m in mutation._Finder("f.py", SOURCE).all()}
    assert mutants == {
        ("constant", "3", "(4)"), ("operator", "x < 2 and not y", "(x < 2 or not y)"),
        ("comparison", "x < 2", "(x <= 2)"), ("comparison", "x < 2", "(x >= 2)"), ("constant", "2", "(3)"),
        ("condition", "not y", "(y)"), ("call removed", "check(x)", "pass"),
        ("call removed", "check(x)", "(x)"),
        ("operator", "-x / math.sqrt(4)", "(-x * math.sqrt(4))"), ("sign", "-x", "(x)"),
        ("call removed", "math.sqrt(4)", "(4)"), ("constant", "4", "(5)"),
        ("condition", "max(x, 2.5)", "(not (max(x, 2.5)))"), ("twin", "max(x, 2.5)", "(min(x, 2.5))"),
        ("constant", "2.5", "(5.0)"), ("constant", "0", "(1)"),
    }  # fmt: skip


def test_all_mutants_are_distinct_python_that_differs():
    mutants = [m for file in mutation.targets() for m in mutation.mutants_of(file)]
    assert len(mutants) > 2000
    assert len({(m.file, m.first, m.column, m.what, m.before, m.after) for m in mutants}) == len(mutants)
    for m in mutants[::20]:
        source = (mutation.SRC / "sottovoce" / m.file).read_bytes()
        assert source[m.start : m.end].decode() == m.before
        compile(m.applied(source), m.file, "exec")


def test_the_score_is_the_share_of_noticed_mutants():
    one = {"file": "objectives/clipping.py", "where": "clip_weights", "text": "", "line": 1, "what": "",
           "before": "1e-30", "after": "(2e-30)", "verdict": "survived"}  # fmt: skip
    score = mutation.summary([one, {**one, "before": "1", "verdict": "killed"}])
    assert (score["mutants"], score["killed"], score["score"]) == (2, 1, 0.5)
    assert [survivor["before"] for survivor in score["survivors"]] == ["1e-30"]


def test_a_changed_module_reaches_all_that_import_it():
    reached = mutation.affected("sottovoce.accounting.release")
    assert {"sottovoce.mechanisms.gradient", "sottovoce.algorithms.plan"} <= reached
    by_its_package = mutation.affected("sottovoce.accounting.guarantee")
    assert "sottovoce.algorithms.plan" in by_its_package
    assert "sottovoce.graphs.network" not in reached


def test_a_copy_that_dies_or_hangs_is_no_answer():
    assert mutation.forked(lambda: [1, "a"], 20) == [1, "a"]
    assert mutation.forked(lambda: sys.exit(3), 20) is None
    assert mutation.forked(lambda: mutation.time.sleep(60), 0.3) is None


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
