"""The protocol averages, and the accountant's view is the attack's."""

import numpy as np
from my_protocol import TwoStars

import sottovoce as sv


def test_it_averages():
    protocol = TwoStars(8, rounds=120)
    rows = protocol.apply(np.arange(8.0))
    assert np.allclose(rows, 3.5, atol=1e-3)


def test_it_fits_a_budget_and_is_useful():
    plan = sv.PrivateAveraging.for_budget(TwoStars(8, 60), radius=0.5, epsilon=12.0, delta=1e-5)
    assert plan.epsilon(1e-5) <= 12.0
    assert sv.advice.usefulness(plan).useful


def test_what_a_node_computes_is_what_the_accountant_says():
    protocol = TwoStars(6, rounds=3)
    recovered = set(sv.attacks.gossip_attack(protocol, [1]).nodes)
    shares = protocol.view(1).leakage()
    assert recovered == {u for u in range(6) if u != 1 and shares[u] > 1 - 1e-9}
    assert recovered  # the hub's value is sent as it is
