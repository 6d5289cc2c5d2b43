"""Releases read back exactly; a ledger never records past its budget."""

import pytest

from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, LedgerError
from sottovoce.privacy.releases import Budget, Kind, Release, Spending, compose, draws, epsilon_of


def linear(counts, delta):
    return sum(count / kind.ratio for kind, count in counts.items())


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
    [{"sender": -1}, {"step": 1.5}, {"sensitivity": -1.0}, {"noise_std": -1.0}, {"noise_std": float("nan")},
     {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"count": 0}, {"adjacency": "no"}, {"mechanism": "none"}],
)  # fmt: skip
def test_a_release_is_checked_at_birth(wrong):
    with pytest.raises(InvalidInput):
        Release(**{**RELEASE.to_dict(), **wrong})


def test_what_passes_the_budget_is_refused_and_not_counted():
    spending = Spending(Budget(1.0, 1e-5), price=linear)
    spending.add(*[RELEASE] * 4)
    with pytest.raises(BudgetExceeded, match="nothing was sent"):
        spending.require(RELEASE)
    assert spending.epsilon() == 1.0


@pytest.mark.parametrize("several", [{"count": 3}, {"steps": 3}])
def test_a_run_of_releases_is_charged_as_so_many(several):
    spending = Spending(Budget(1.0, 1e-5), price=linear)
    spending.add(Release(sender=1, step=0, sensitivity=2.0, noise_std=8.0, **several), RELEASE)
    with pytest.raises(BudgetExceeded):
        spending.require(RELEASE)


def test_a_joint_release_is_one_mechanism():
    joint = Release(sender=1, step=0, sensitivity=2.0, noise_std=8.0, steps=3, joint=True)
    assert compose([joint]) == compose([RELEASE])


def test_unlike_adjacencies_are_not_added():
    other = Release(sender=1, step=0, sensitivity=2.0, noise_std=8.0, adjacency="add-remove")
    with pytest.raises(CannotCompose):
        Spending(Budget(1.0, 1e-5, adjacency="user"), price=linear).require(other)
    with pytest.raises(CannotCompose):
        compose([RELEASE, other])


def test_sampling_records_amplifies_nothing_at_user_level_nor_users_at_record_level():
    at = {"sender": 0, "step": 0, "sensitivity": 1.0, "noise_std": 1.0, "steps": 50}
    plain = compose([Release(**at)]).epsilon(1e-5)
    assert compose([Release(**at, sample_rate=0.01)]).epsilon(1e-5) == plain
    assert compose([Release(**at, user_rate=0.01)]).epsilon(1e-5) < plain
    record = compose([Release(**at, adjacency="add-remove")]).epsilon(1e-5)
    assert compose([Release(**at, adjacency="add-remove", user_rate=0.01)]).epsilon(1e-5) == record


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
    spending = Spending(Budget(0.1, 1e-5), price=linear)
    spending.add(Release(sender=1, step=0, sensitivity=0.0, noise_std=8.0))
    assert spending.epsilon() == 0.0


def test_sampled_releases_are_priced_under_their_own_adjacency():
    from sottovoce.privacy import Curve

    both = {
        Kind("gaussian", "add-remove", 1.5, 0.05, 1.0): 40,
        Kind("gaussian", "add-remove", 10.0, 1.0, 1.0): 4,
    }
    expected = Curve.sampled_gaussian(0.05, 1.5, 40) + Curve.gaussian(0.2)
    assert epsilon_of(both, 1e-5) == pytest.approx(expected.epsilon(1e-5), rel=1e-12)
    # noise over sensitivity 1.5 with sensitivity twice the clip norm: clip multiplier 3
    replaced = Curve.sampled_gaussian(0.05, 3.0, 40, adjacency="replace-one").epsilon(1e-5)
    assert epsilon_of({Kind("gaussian", "replace-one", 1.5, 0.05, 1.0): 40}, 1e-5) == replaced
    assert replaced != pytest.approx(Curve.sampled_gaussian(0.05, 3.0, 40).epsilon(1e-5), rel=0.1)


def test_releases_of_one_step_are_told_apart_by_their_stream():
    """A choice and a value per step: each draw belongs to exactly one of them."""
    choose = Release(0, 0, sensitivity=2.0, noise_std=4.0, mechanism="noisy-max", steps=3)
    value = Release(0, 0, sensitivity=2.0, noise_std=4.0, mechanism="laplace", steps=3, stream=1, count=2)
    covered = [[r.covers(1, stream) for r in (choose, value)] for stream in range(4)]
    assert covered == [[True, False], [False, True], [False, True], [False, False]]
    assert [(step, stream) for step, stream, _ in draws([value])][:3] == [(0, 1), (0, 2), (1, 1)]
    assert value.at(2).stream == 1
