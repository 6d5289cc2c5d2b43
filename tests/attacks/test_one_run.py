"""Audits with one run: they hold, they have power, they find a planted bug."""

import numpy as np
import pytest

from sottovoce.attacks import one_run
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Curve, Guarantee

CLAIM = Guarantee(Adversary("local"), "add-remove", "ldp", Curve.gaussian(1.0))


def test_right_claims_hold_in_many_audits_and_a_tenth_of_the_noise_is_found():
    rng = np.random.default_rng(0)
    fair, weak = [], []
    for _ in range(100):
        coins = rng.random(1000) < 0.5
        fair.append(one_run.audit_one_run(coins + rng.normal(size=1000), coins, CLAIM, guesses=200))
        scores = coins + 0.1 * rng.normal(size=1000)
        weak.append(one_run.audit_one_run(scores, coins, CLAIM, guesses=800, delta=1e-4))
    assert not any(audit.refuted for audit in fair)
    assert np.median([audit.epsilon for audit in fair]) > 0.5
    assert np.mean([audit.refuted for audit in weak]) > 0.9


def test_invalid_input_is_refused():
    with pytest.raises(InvalidInput, match="one score per canary"):
        one_run.audit_one_run(np.zeros(3), np.zeros(4), CLAIM)
    with pytest.raises(InvalidInput, match="at most the number of canaries"):
        one_run.audit_one_run(np.zeros(3), np.zeros(3), CLAIM, guesses=4)
