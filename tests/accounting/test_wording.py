"""Guarantees in words: never below the truth."""

import re
from pathlib import Path

import pytest

from sottovoce.accounting import wording


def test_what_is_not_covered_follows_from_the_statement():
    lines = wording.not_covered("network", "add-remove", accepted=["standardize"], simulated=True,
                              assumptions=["observers are honest but curious and share"])  # fmt: skip
    assert len(lines) == 6
    assert lines[0].startswith("Read of private records and not charged: the mean and deviation")
    assert "protects nobody" in lines[1]
    assert "More than 2 members" in wording.not_covered("colluders", "user", count=2, has_ledger=True)[0]
    assert wording.not_covered("local", "user", has_ledger=True) == []


@pytest.mark.parametrize("page", ["README.md", "docs/privacy.md"])
def test_tables_of_labels_are_the_one_table(page):
    shown = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    rows = [f"| `{name}` | {wording.label(name)} | " for name in wording.LABELS]
    yes_or_no = ["yes |" if wording.is_guarantee(name) else "no |" for name in wording.LABELS]
    assert "\n".join(map("".join, zip(rows, yes_or_no, strict=True))) in shown


def test_best_guesses_in_words_are_never_below_the_truth():
    for best in (0.5001, 0.505, 0.5099, 0.5548, 0.995, 0.99999):
        shown = float(re.search(r"at most ([\d.]+) times", wording.guess(best))[1])
        assert 100 * best <= shown <= 100
    assert wording.guess(0.5548).startswith("at most 56 times")


@pytest.mark.parametrize(
    ("epsilon", "limit", "sentence"),
    [
        (1.9996, 2.0, "epsilon 2 at delta 1e-05 against any one member, within the budget of 2"),
        (2.00001, 2.0, "epsilon 2.001 at delta 1e-05 against any one member, more than the budget of 2"),
        (0.0004, None, "epsilon 0.0004 at delta 1e-05 against any one member; no budget was set"),
        (
            1.23456,
            1.2346,
            "epsilon 1.2346 at delta 1e-05 against any one member, within the budget of 1.2346",
        ),
    ],
)
def test_the_sentence_about_a_budget_shows_the_comparison_it_makes(epsilon, limit, sentence):
    answer, why = wording.private(epsilon, 1e-5, "any one member", "exact", 0.6, limit=limit)
    assert sentence in why
    assert (answer == "yes") == (limit is None or epsilon <= limit)


def test_what_is_not_private_says_why():
    numbers = 1.0, 1e-5, "any one node"
    assert wording.private(*numbers, "exact", 0.6, accepted=["tuning"])[0] == "only in part"
    assert wording.private(*numbers, "conditional", 0.6)[0] == "no"
    assert wording.private(*numbers, "exact", 0.999)[0] == "no"
    assert "protects nobody" in wording.private(*numbers, "exact", 0.6, simulated=True)[1]
    assert wording.private(float("inf"), 1e-5, "any one node", "exact", 1.0)[1] == wording.NO_PRIVACY
