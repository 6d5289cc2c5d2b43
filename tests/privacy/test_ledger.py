"""Releases read back exactly; a ledger never records past its budget."""

import pytest

from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, LedgerError
from sottovoce.privacy.ledger import Budget, Ledger, MemoryLedger, Release, Spending


def linear(counts, delta):
    return sum(count / kind.noise_multiplier for kind, count in counts.items())


RELEASE = Release(sender=1, step=3, sensitivity=2.0, noise_std=8.0)


def test_canonical_bytes_read_back():
    odd = Release(
        sender=0, step=9, sensitivity=0.1, noise_std=1 / 3, adjacency="add-remove", sample_rate=0.01, count=2
    )
    for release in (RELEASE, odd):
        assert Release.from_bytes(release.to_bytes()) == release
        assert len(release.digest) == 64
    assert RELEASE.digest != odd.digest


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b"nan", RELEASE.to_bytes() + b" ", RELEASE.to_bytes().replace(b"2.0", b"2"),
     RELEASE.to_bytes().replace(b"gaussian", b"shouting")],
)  # fmt: skip
def test_anything_but_the_canonical_form_is_refused(raw):
    with pytest.raises((LedgerError, InvalidInput)):
        Release.from_bytes(raw)


@pytest.mark.parametrize(
    "wrong",
    [{"sender": -1}, {"step": 1.5}, {"sensitivity": -1.0}, {"noise_std": 0.0}, {"noise_std": float("nan")},
     {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"count": 0}, {"adjacency": "no"}, {"mechanism": "none"}],
)  # fmt: skip
def test_a_release_is_checked_at_birth(wrong):
    with pytest.raises(InvalidInput):
        Release(**{**RELEASE.to_dict(), **wrong})


def test_memory_ledger_refuses_past_the_budget_and_keeps_nothing_of_it():
    ledger = MemoryLedger(Budget(1.0, 1e-5), price=linear)
    for _ in range(4):
        ledger.charge(RELEASE)
    with pytest.raises(BudgetExceeded, match="nothing was sent"):
        ledger.charge(RELEASE)
    assert len(ledger.releases) == 4
    assert ledger.epsilon() == 1.0
    assert isinstance(ledger, Ledger)


def test_count_is_charged_as_so_many_releases():
    ledger = MemoryLedger(Budget(1.0, 1e-5), price=linear)
    ledger.charge(Release(sender=1, step=0, sensitivity=2.0, noise_std=8.0, count=3))
    ledger.charge(RELEASE)
    with pytest.raises(BudgetExceeded):
        ledger.charge(RELEASE)


def test_unlike_adjacencies_are_not_added():
    ledger = MemoryLedger(Budget(1.0, 1e-5, adjacency="user"), price=linear)
    with pytest.raises(CannotCompose):
        ledger.charge(Release(sender=1, step=0, sensitivity=2.0, noise_std=8.0, adjacency="add-remove"))
    assert ledger.releases == ()


def test_a_priced_plan_is_not_priced_again():
    calls = []
    spending = Spending(
        Budget(1.0, 1e-5), price=lambda counts, delta: calls.append(1) or linear(counts, delta)
    )
    assert spending.fits(*[RELEASE] * 4)
    for _ in range(4):
        spending.require(RELEASE)
        spending.add(RELEASE)
    assert len(calls) == 1
    assert not spending.fits(RELEASE)


def test_a_release_without_sensitivity_costs_nothing():
    ledger = MemoryLedger(Budget(0.1, 1e-5), price=linear)
    ledger.charge(Release(sender=1, step=0, sensitivity=0.0, noise_std=8.0))
    assert ledger.epsilon() == 0.0


def test_sampled_releases_are_priced_under_their_own_adjacency():
    from sottovoce.privacy import Curve
    from sottovoce.privacy.ledger import Kind, epsilon_of

    both = {Kind("add-remove", 1.5, 0.05): 40, Kind("add-remove", 10.0, 1.0): 4}
    expected = Curve.sampled_gaussian(0.05, 1.5, 40) + Curve.gaussian(0.2)
    assert epsilon_of(both, 1e-5) == pytest.approx(expected.epsilon(1e-5), rel=1e-12)
    # noise over sensitivity 1.5 with sensitivity twice the clip norm: clip multiplier 3
    replaced = Curve.sampled_gaussian(0.05, 3.0, 40, adjacency="replace-one").epsilon(1e-5)
    assert epsilon_of({Kind("replace-one", 1.5, 0.05): 40}, 1e-5) == replaced
    assert replaced != pytest.approx(Curve.sampled_gaussian(0.05, 3.0, 40).epsilon(1e-5), rel=0.1)
