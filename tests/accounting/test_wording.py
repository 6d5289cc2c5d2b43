"""Guarantees in words: never below the truth."""

import re

from sottovoce.accounting import wording


def test_what_is_not_covered_follows_from_the_statement():
    lines = wording.not_covered("network", "add-remove", accepted=["standardize"], simulated=True,
                              assumptions=["observers are honest but curious and share"])  # fmt: skip
    assert len(lines) == 6
    assert lines[0].startswith("Read of private records and not charged: the mean and deviation")
    assert "protects nobody" in lines[1]
    assert "More than 2 members" in wording.not_covered("colluders", "user", count=2, has_ledger=True)[0]
    assert wording.not_covered("local", "user", has_ledger=True) == []


def test_best_guesses_in_words_are_never_below_the_truth():
    for best in (0.5001, 0.505, 0.5099, 0.553, 0.995, 0.99999):
        shown = float(re.search(r"([\d.]+) times", wording.guess(best))[1])
        assert shown >= 100 * best - 0.5
        assert 50 < shown <= 100
