"""A trusted curator: one view, and printed formulas that are no guarantee."""

import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from tests.accounting.other_accountants import INTERVAL, composed_epsilon, sampled
from tests.accounting.small_plans import D, plan_of

from sottovoce.accounting.observation import Curator
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Release, account


def curated(*releases, published=None):
    facts = {"n": 1, "steps": 100, "adjacency": releases[0].adjacency}
    return plan_of(Curator(published), lambda u: list(releases), **facts)


def test_curator_matches_reference_values():
    def release(sensitivity, noise_std, steps, mechanism="gaussian"):
        return Release(0, 0, sensitivity, noise_std, "replace-one", mechanism=mechanism, steps=steps)

    noisy = account(curated(release(1.0, 20.0, 10, "noisy-max"), release(1.0, 20.0, 10, "laplace")))
    assert noisy.epsilon(D) == pytest.approx(1.2274411297786099, rel=1e-9)
    admm = release(2 / 100, 0.1, 25)
    guarantee = account(curated(admm))
    assert guarantee.epsilon(D) == pytest.approx(4.377178095681225, rel=1e-9)
    assert (guarantee.label, guarantee.adversary) == ("exact", Adversary("central"))
    assert "the curator who holds the records is trusted" in guarantee.assumptions
    printed = account(curated(admm, published="as printed"))
    assert printed.label == "published"
    assert "as printed" in printed.assumptions
    views = [({"view": view}, "only view is 'central'") for view in ("local", "network", "outsider")]
    for question, words in (*views, ({"user": 0}, "no user"), ({"label": "ldp"}, "no ldp number")):
        with pytest.raises(InvalidInput, match=words):
            account(curated(admm), **question)


def test_a_curators_mixture_by_dp_accounting():
    same = {"sender": 0, "step": 0, "adjacency": "add-remove"}
    plan = curated(
        Release(**same, sensitivity=1.0, noise_std=20.0, mechanism="noisy-max", steps=10),
        Release(**same, sensitivity=1.0, noise_std=25.0, mechanism="laplace", steps=10),
        Release(**same, sensitivity=1.0, noise_std=4.0),
        Release(**same, sensitivity=1.0, noise_std=2.0, sample_rate=0.05, steps=20),
        Release(**same, sensitivity=0.0, noise_std=2.0, steps=1000),
    )
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
    assert account(plan).epsilon(1e-6) == pytest.approx(expected, rel=5e-3)
