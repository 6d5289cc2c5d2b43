"""The script that plants small changes: it changes numbers and not words, and its list of excuses is true."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "mutate.py"
spec = importlib.util.spec_from_file_location("mutate", SCRIPT)
mutate = importlib.util.module_from_spec(spec)
sys.modules["mutate"] = mutate  # dataclasses look their module up
spec.loader.exec_module(mutate)

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
    found = {(m.what, m.before, m.after) for m in mutate._Finder("f.py", SOURCE).all()}
    assert found == {
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
    listed = [m for file in mutate.targets() for m in mutate.mutants_of(file)]
    assert len(listed) > 2000
    assert len({(m.file, m.first, m.column, m.what, m.before, m.after) for m in listed}) == len(listed)
    for m in listed[::20]:
        source = (mutate.SRC / "sottovoce" / m.file).read_bytes()
        assert source[m.start : m.end].decode() == m.before
        compile(m.applied(source), m.file, "exec")


def test_every_excuse_is_about_a_mutant_that_exists():
    results = []
    for file in mutate.targets():
        lines = (mutate.SRC / "sottovoce" / file).read_text().splitlines()
        results += [
            {
                "file": m.file,
                "where": m.where,
                "before": m.before,
                "after": m.after,
                "text": lines[m.first - 1].strip(),
            }
            for m in mutate.mutants_of(file)
        ]  # fmt: skip
    for entry in mutate.accepted():
        assert any(mutate.is_accepted(result, [entry]) for result in results), entry


def test_a_survivor_counts_unless_it_is_excused():
    one = {"file": "objectives/clipping.py", "where": "clip_weights", "text": "", "line": 1, "what": "",
           "before": "1e-30", "after": "(2e-30)", "verdict": "survived"}  # fmt: skip
    found = mutate.summary([one, {**one, "before": "1"}, {**one, "verdict": "killed"}])
    assert (found["mutants"], found["killed"], found["accepted"], found["killed_of_the_rest"]) == (
        3,
        1,
        1,
        0.5,
    )
    assert [s["before"] for s in found["survivors"]] == ["1"]


def test_a_changed_module_reaches_all_that_import_it():
    reached = mutate.affected("sottovoce.privacy.releases")
    assert {"sottovoce.objectives.gradients", "sottovoce.algorithms.plan"} <= reached
    assert "sottovoce.algorithms.plan" in mutate.affected("sottovoce.privacy.guarantees")  # by its package
    assert "sottovoce.graphs.network" not in reached


def test_a_copy_that_dies_or_hangs_is_no_answer():
    assert mutate.forked(lambda: [1, "a"], 20) == [1, "a"]
    assert mutate.forked(lambda: sys.exit(3), 20) is None
    assert mutate.forked(lambda: mutate.time.sleep(60), 0.3) is None
