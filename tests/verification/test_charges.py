"""Random histories of charges against an independent recomputation: the short form, and bugs it is for."""

import pytest

from sottovoce.accounting import question
from sottovoce.ledger import cost
from sottovoce.ledger.balance import Charge
from verification import charges


def verdicts(histories):
    return [each for number in range(histories) for each in charges.lived(1, number)]


def test_no_total_is_below_the_truth():
    judged = charges.score(verdicts(8))
    assert judged["totals"] > 40
    assert judged["below"] == 0
    assert judged["closed_form_close"] >= 0.9 * judged["closed_form"]


def sampled_though_seen(monkeypatch):
    right = question.PrivacyQuestion.local_guarantee
    monkeypatch.setattr(
        question.PrivacyQuestion, "local_guarantee", lambda self, **options: right(self, hidden=True)
    )


def a_replacement_is_a_removal(monkeypatch):
    monkeypatch.setattr(
        cost, "_restated", lambda release, adjacency: cost.replace(release, adjacency=adjacency)
    )


def any_stored_view_counts(monkeypatch):
    right = Charge.guarantee

    def least(self, adjacency, view):
        known = [each for each in self.guarantees if each.adjacency in (adjacency, "user")]
        return min(known, key=lambda each: each.epsilon(1e-5), default=right(self, adjacency, view))

    monkeypatch.setattr(Charge, "guarantee", least)


def records_cost_users_nothing(monkeypatch):
    right = Charge.guarantee
    monkeypatch.setattr(
        Charge, "guarantee", lambda self, adjacency, view: right(self, self.releases[0].adjacency, view)
    )


@pytest.mark.parametrize(
    "bug",
    [sampled_though_seen, a_replacement_is_a_removal, any_stored_view_counts, records_cost_users_nothing],
    ids=lambda bug: bug.__name__,
)
def test_planted_bugs_are_caught(bug, monkeypatch):
    bug(monkeypatch)
    assert charges.score(verdicts(14))["below"] > 0
