"""Local privacy only, and printed formulas on request."""

from fractions import Fraction

import pytest
from tests.accounting.other_accountants import assert_gaussian
from tests.accounting.small_plans import PAIR, D, every, plan_of

from sottovoce.accounting.observation import (
    LocalOnly,
)
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Curve, Release, account


@pytest.mark.parametrize("draws", [{"steps": 6}, {"steps": 3, "count": 2}], ids=["DSGD, DSGT", "DiNNO"])
def test_local_cost_of_network_methods(draws):
    rates = [0.05] * 7 + [0.1]
    releases = every(1.0, 1.5, adjacency="add-remove", sample_rate=rates, **draws)
    plan = plan_of(LocalOnly(), releases, steps=6, adjacency="add-remove")
    for view in ("local", "central", "network"):
        assert account(plan, view).epsilon(D) == pytest.approx(1.0872906906186293, rel=1e-9)
    assert account(plan, "pairwise", **PAIR).epsilon(D) == pytest.approx(0.5543734085420173, rel=1e-9)


def test_published_label_must_be_requested():
    printed = (Curve.gaussian(0.6), "as printed by somebody")
    plan = plan_of(LocalOnly(printed), every(4.0, 8.0, steps=20), steps=500)
    assert account(plan, "local").epsilon(D) == pytest.approx(11.48002280917257, rel=1e-9)
    assert account(plan).label == "ldp"
    guarantee = account(plan, label="published")
    assert (guarantee.label, guarantee.mu) == ("published", 0.6)
    assert "as printed by somebody" in guarantee.assumptions
    for view in ("central", "outsider", "local"):
        with pytest.raises(InvalidInput, match="no published number"):
            account(plan, view, label="published")


def test_record_sampling_does_not_amplify_users():
    releases = [[Release(u, 0, sensitivity=1.0, noise_std=2.0, steps=4, sample_rate=0.01)] for u in range(2)]
    assert_gaussian(account(plan_of(LocalOnly(), releases.__getitem__, 2, 4), "network"), Fraction(4, 4))
