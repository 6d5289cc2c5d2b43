"""Audits with one run: they hold, they have power, they find a planted bug."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.attacks import one_run
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Curve, Guarantee

CLAIM = Guarantee(Adversary("local"), "add-remove", "ldp", Curve.gaussian(1.0))


def test_right_claims_hold_in_many_audits_and_a_tenth_of_the_noise_is_found():
    rng = np.random.default_rng(0)
    found, weak = [], []
    for _ in range(100):
        coins = rng.random(1000) < 0.5
        found.append(one_run.audit_one_run(coins + rng.normal(size=1000), coins, CLAIM, guesses=200))
        scores = coins + 0.1 * rng.normal(size=1000)
        weak.append(one_run.audit_one_run(scores, coins, CLAIM, guesses=800, delta=1e-4))
    assert not any(audit.refuted for audit in found)
    assert np.median([audit.epsilon for audit in found]) > 0.5
    assert np.mean([audit.refuted for audit in weak]) > 0.9


def test_users_as_canaries_of_gossip_and_tree():
    rng = np.random.default_rng(1)
    network = sv.graphs.hypercube(6)
    for protocol in (
        sv.protocols.Gossip(network, 6),
        sv.protocols.Tree(network),
        sv.protocols.HypercubeExchange(64),
    ):
        found = one_run.one_run_averaging(
            protocol, 0, sensitivity=2.0, noise_std=1.0, dim=300, rng=rng, level=0.001
        )
        assert found.canaries == 63
        assert not found.refuted


def test_training_with_many_canaries_once():
    pytest.importorskip("torch")
    from sklearn.datasets import load_digits

    from sottovoce.attacks.membership import digits_problem
    from sottovoce.attacks.small_net import SmallNet
    from sottovoce_papers.bayrooti2023.audit import make_plan

    digits, net, rng = load_digits(), SmallNet(), np.random.default_rng(2)
    problem = digits_problem(digits.images / 16, digits.target, records=40)
    start = net.initial(rng)
    plan = make_plan(
        "dp-dsgd", net, start, problem.sizes, steps=30, batch_size=20, epsilon=4.0, delta=1e-2, clip_norm=1.0
    )
    canaries = rng.normal(size=(60, 14, 14)).astype(np.float32) * 3
    found = one_run.one_run_training(
        plan, net, problem, canaries, rng.integers(0, 3, 60), start=start, rng=rng, level=0.001
    )
    assert found.guesses == 60
    assert not found.refuted


def test_bad_input():
    with pytest.raises(InvalidInput, match="one score per canary"):
        one_run.audit_one_run(np.zeros(3), np.zeros(4), CLAIM)
    with pytest.raises(InvalidInput, match="at most the number of canaries"):
        one_run.audit_one_run(np.zeros(3), np.zeros(3), CLAIM, guesses=4)
