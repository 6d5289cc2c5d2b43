"""A trusted curator: one view, and printed formulas that are no guarantee."""

import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from tests.accounting.other_accountants import INTERVAL, composed_epsilon, sampled
from tests.accounting.small_plans import D, plan_of

from sottovoce.accounting.observation import Curator
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Release, account


def curated(*releases, published=None, adjacency="add-remove"):
    return plan_of(Curator(published), lambda u: list(releases), n=1, steps=100, adjacency=adjacency)


def test_curator_matches_reference_values():
    step = {"sender": 0, "step": 0, "adjacency": "add-remove"}
    step["adjacency"] = "replace-one"
    choice = Release(**step, sensitivity=1.0, noise_std=20.0, mechanism="noisy-max", steps=10)
    value = Release(**step, sensitivity=1.0, noise_std=20.0, mechanism="laplace", steps=10)
    assert account(curated(choice, value, adjacency="replace-one")).epsilon(D) == pytest.approx(
        1.2274411297786099, rel=1e-9
    )
    admm = Release(**step, sensitivity=2 / 100, noise_std=0.1, steps=25)
    guarantee = account(curated(admm, adjacency="replace-one"))
    assert guarantee.epsilon(D) == pytest.approx(4.377178095681225, rel=1e-9)
    assert (guarantee.label, guarantee.adversary) == ("exact", Adversary("central"))
    assert "the curator who holds the records is trusted" in guarantee.assumptions
    printed = account(curated(admm, published="as printed", adjacency="replace-one"))
    assert printed.label == "published"
    assert "as printed" in printed.assumptions
    for view in ("local", "network", "outsider"):
        with pytest.raises(InvalidInput, match="only view is 'central'"):
            account(curated(admm, adjacency="replace-one"), view)
    with pytest.raises(InvalidInput, match="no user"):
        account(curated(admm, adjacency="replace-one"), user=0)
    with pytest.raises(InvalidInput, match="no ldp number"):
        account(curated(admm, adjacency="replace-one"), label="ldp")


def test_a_curators_mixture_by_dp_accounting():
    same = {"sender": 0, "step": 0, "adjacency": "add-remove"}
    releases = [[
        Release(**same, sensitivity=1.0, noise_std=20.0, mechanism="noisy-max", steps=10),
        Release(**same, sensitivity=1.0, noise_std=25.0, mechanism="laplace", steps=10),
        Release(**same, sensitivity=1.0, noise_std=4.0),
        Release(**same, sensitivity=1.0, noise_std=2.0, sample_rate=0.05, steps=20),
        Release(**same, sensitivity=0.0, noise_std=2.0, steps=1000),
    ]]  # fmt: skip
    choice = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(2 / 20, 0), value_discretization_interval=INTERVAL
    )
    expected = composed_epsilon(
        1e-6,
        (choice, 10),
        (pld.from_laplace_mechanism(25.0, value_discretization_interval=INTERVAL), 10),
        (pld.from_gaussian_mechanism(4.0, value_discretization_interval=INTERVAL), 1),
        (sampled(0.05, 2.0), 20),
    )
    epsilon = account(plan_of(Curator(), releases.__getitem__, 1, 20, adjacency="add-remove")).epsilon(1e-6)
    assert epsilon == pytest.approx(expected, rel=5e-3)
