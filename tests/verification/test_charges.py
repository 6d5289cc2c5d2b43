"""Histories of charges and changes of membership against independent recomputations, and planted bugs."""

import pytest
from verification.membership_losses import CURATOR, DELTA, World, excess

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


def least_of_any_view(right):
    def least(self, adjacency, view):
        known = [each for each in self.guarantees if each.adjacency in (adjacency, "user")]
        return min(known, key=lambda each: each.epsilon(1e-5), default=right(self, adjacency, view))

    return least


BUGS = {
    "sampled though seen": (
        question.PrivacyQuestion, "local_guarantee",
        lambda right: lambda self, **options: right(self, hidden=True)),
    "a replacement is a removal": (
        cost, "_restated",
        lambda right: lambda release, adjacency: cost.replace(release, adjacency=adjacency)),
    "any stored view counts": (Charge, "guarantee", least_of_any_view),
    "records cost users nothing": (
        Charge, "guarantee",
        lambda right: lambda self, adjacency, view: right(self, self.releases[0].adjacency, view)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug, monkeypatch):
    holder, name, faulty = BUGS[bug]
    monkeypatch.setattr(holder, name, faulty(getattr(holder, name)))
    assert charges.score(verdicts(14))["below"] > 0


@pytest.mark.parametrize("worlds", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_losses_over_two_membership_versions_are_the_charged_ones(worlds):
    worst, tightest = excess(range(worlds))
    assert worst < 1e-9
    assert tightest == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    "bug", ["noise without the version", "a broken step is not charged", "the leaver is not counted"]
)
def test_broken_rules_of_a_membership_change_are_detected(bug):
    worst, _ = excess(range(25), bug)
    assert worst > 1e-3


def test_noise_without_the_version_gives_the_leavers_row_away():
    """The difference of the two sums of the broken step is the row of an honest leaver, noise and all."""
    losses = [
        world.losses()[world.leaver]
        for world in (World(seed, "noise without the version").play() for seed in range(25))
        if world.leaver not in world.coalition
    ]
    own_noise = [DELTA**2 / (CURATOR**2 / (n - c)) for n in (5, 6, 7) for c in (1, 2)]
    assert max(losses) >= min(own_noise)
