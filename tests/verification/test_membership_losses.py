"""Losses over two membership versions are the charged ones, and broken rules are detected."""

import pytest
from verification.membership_losses import CURATOR, DELTA, World, excess


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
