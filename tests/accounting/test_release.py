"""Releases read back exactly; a ledger never records past its budget."""

import math
from collections import Counter

import pytest

from sottovoce.accounting.budget import Budget
from sottovoce.accounting.release import Release, ReleaseKind, ShareCurves, Spending, compose
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, LedgerError
from sottovoce.privacy import Curve

RELEASE = Release(sender=1, step=3, sensitivity=2.0, noise_std=8.0)


def test_canonical_bytes_read_back():
    odd = Release(0, 9, 0.1, 1 / 3, adjacency="add-remove", sample_rate=0.01, count=2)
    for release in (RELEASE, odd):
        assert Release.from_bytes(release.to_bytes()) == release


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
     {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"count": 0}, {"adjacency": "no"}, {"mechanism": "none"},
     {"step": -1}, {"steps": 0}, {"stream": -1}, {"user_rate": 0.0}],
)  # fmt: skip
def test_a_release_is_checked_at_birth(wrong):
    with pytest.raises(InvalidInput):
        Release(**{**RELEASE.to_dict(), **wrong})


def test_unlike_adjacencies_are_not_added():
    other = Release(1, 0, 2.0, 8.0, adjacency="add-remove")
    with pytest.raises(CannotCompose):
        Spending(Budget(1.0, 1e-5, adjacency="user")).require(other)
    with pytest.raises(CannotCompose):
        compose([RELEASE, other])


# ---- number by number --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["laplace", "noisy-max"])
def test_only_gaussian_noise_is_sampled_or_joint(mechanism):
    Release(0, 0, 1.0, 1.0, mechanism=mechanism)
    for more in ({"sample_rate": 0.5}, {"user_rate": 0.5}, {"joint": True}):
        with pytest.raises(InvalidInput, match="Gaussian"):
            Release(0, 0, 1.0, 1.0, mechanism=mechanism, **more)
        Release(0, 0, 1.0, 1.0, **more)


def test_a_stretch_covers_its_first_and_last_draw_and_no_other():
    release = Release(0, 3, 1.0, 2.0, steps=2, count=3, stream=1)
    covered = [(step, stream) for step in range(8) for stream in range(8) if release.covers(step, stream)]
    assert covered == [(step, stream) for step in (3, 4) for stream in (1, 2, 3)]
    assert Release(0, 3, 1.0, 2.0).covers(3)
    part = release.at(4)
    assert (part.step, part.steps, part.count, part.draws) == (4, 1, 1, 1)
    assert release.at(4, 3).draws == 3
    assert (release.draws, release.noise_to_sensitivity) == (6, 2.0)


def test_a_share_of_a_gaussian_kind_is_a_share_of_its_square():
    kind = ReleaseKind("gaussian", "user", 2.0, 0.5, 1.0)
    assert kind.curve(1).mu == 0.5
    assert kind.curve(9).mu == pytest.approx(1.5)
    assert kind.curve(9, 0.25).mu == pytest.approx(0.75)
    for nothing in (kind.curve(0), kind.curve(3, 0.0), kind._replace(noise_to_sensitivity=math.inf).curve(3)):
        assert nothing.epsilon(1e-9) == 0.0
    assert kind.curve(3, 1e-12).mu > 0
    for noiseless in (kind, kind._replace(adjacency="add-remove"), kind._replace(mechanism="laplace")):
        assert noiseless._replace(noise_to_sensitivity=0.0).curve(1).epsilon(1e-5) == math.inf
    assert ReleaseKind("noisy-max", "user", 0.0, 1.0, 1.0).curve(1).epsilon(1e-5) == math.inf


def test_who_is_sampled_decides_which_rate_counts():
    record, user = 0.1, 0.2
    kinds = [
        ReleaseKind("gaussian", adjacency, 1.0, record, user)
        for adjacency in ("add-remove", "replace-one", "user")
    ]
    added, replaced, whole = (kind.curve(4).epsilon(1e-5) for kind in kinds)
    assert added == Curve.sampled_gaussian(record, 1.0, 4).epsilon(1e-5)
    assert replaced == Curve.sampled_gaussian(record, 2.0, 4, adjacency="replace-one").epsilon(1e-5)
    assert whole == Curve.gaussian_mixture([0.0, 1.0], [0.8, 0.2], 4).epsilon(1e-5)
    hidden = kinds[2]._replace(hidden=True).curve(4)
    assert hidden == Curve.sampled_gaussian(user, 2.0, 4, adjacency="replace-one")
    assert hidden.epsilon(1e-5) < whole < Curve.gaussian(2.0).epsilon(1e-5)
    assert kinds[0].curve(4, method="rdp").epsilon(1e-5) > added
    assert kinds[0]._replace(sample_rate=1.0).curve(4, method="rdp").method == "rdp"


def test_a_composition_is_that_of_its_parts():
    parts = [
        Release(0, 0, 1.0, 2.0, steps=4),
        Release(0, 4, 3.0, 4.0, count=2),
        Release(0, 0, 0.0, 1.0, steps=9),
    ]
    assert compose(parts).mu == pytest.approx(math.sqrt(4 / 4 + 2 * 9 / 16))
    assert compose([Release(1, 0, 2.0, 8.0, steps=3, joint=True)]) == compose([RELEASE])
    assert (compose(parts).method, compose(parts, method="rdp").method) == ("pld", "rdp")
    assert compose({}).epsilon(1e-5) == 0.0


class CountSpending(Spending):
    computed = 0

    def cost(self, counts, delta):
        self.computed += 1
        return delta * sum(counts.values())


def test_spending_without_a_budget():
    free = CountSpending()
    assert free.fits(RELEASE, Release(0, 0, 1.0, 1.0, "add-remove"))
    free.require(RELEASE)
    assert free.epsilon(0.5) == 0.0
    free.add(RELEASE)
    free.add(RELEASE, RELEASE)
    assert free.epsilon(0.5) == 1.5
    with pytest.raises(InvalidInput, match="needs a delta"):
        free.epsilon()


def test_what_passes_a_budget_is_refused_and_not_counted():
    spending = CountSpending(Budget(1.0, 0.25, adjacency="user"))
    spending.add(RELEASE)
    assert (spending.epsilon(), spending.epsilon(0.5)) == (0.25, 0.5)
    spending.require(*[RELEASE] * 3)  # to the last
    computed = spending.computed
    spending.require(RELEASE, Release(1, 3, 2.0, 8.0, steps=2))  # counts that fitted are not computed again
    assert spending.computed == computed
    for several in ({"count": 4}, {"steps": 4}):
        with pytest.raises(BudgetExceeded, match="nothing was sent"):
            spending.require(Release(1, 0, 2.0, 8.0, **several))
    assert spending.counts == {ReleaseKind.from_release(RELEASE): 1}
    other = Release(1, 3, 2.0, 9.0)
    assert spending.fits(RELEASE, other)  # fewer in number than what fitted, but not of each kind
    assert not spending.fits(other, *[RELEASE] * 3)


def test_share_curves_round_up():
    counts = Counter({ReleaseKind("gaussian", "user", 2.0, 1.0, 1.0): 4})
    curves = ShareCurves("pld")
    first, second, third, smaller, none = (
        curves.add(counts, h) for h in (0.3, 0.3 - 1e-15, 0.3 - 3e-14, 0.2, 0.0)
    )
    assert first is second is third is curves.worst or first == second == third == curves.worst
    assert first.mu == pytest.approx(math.sqrt(0.3), rel=1e-9)
    assert first.mu >= math.sqrt(0.3)
    assert smaller.mu == pytest.approx(math.sqrt(0.2), rel=1e-9)
    assert none == Curve.none()
