"""Reconstruction of decentralized gradient descent: system, covariance, variance, accountant, bad input."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.attacks import descent
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Chebyshev, Gossip, TimeVarying


def averagings():
    ring, star = sv.graphs.ring(7), sv.graphs.star(7)
    return [sv.graphs.florentine(), Gossip(sv.graphs.path(6), 3), TimeVarying([ring, star])]


@pytest.mark.parametrize("averaging", averagings(), ids=["florentine-1", "path-3", "varying-2"])
def test_constant_gradients_come_back_exactly(averaging):
    rng = np.random.default_rng(0)
    attack = descent.gradient_attack(averaging, attackers=(0, 2), steps=6)
    n = attack.protocol.n
    gradients, start = rng.normal(size=(n, 4)), rng.normal(size=4)
    seen = descent.run_descent(attack, lambda theta, t: gradients, np.tile(start, (n, 1)), learning_rate=0.05)
    estimate = attack.gradients(seen, start, 0.05)
    solved = list(attack.identifiable)
    whole = attack.knowledge / np.abs(attack.knowledge).max()
    share = np.diag(np.linalg.pinv(whole, rcond=1e-9) @ whole)  # 1 exactly where determined
    assert solved == np.array(attack.targets)[share > 1 - 1e-6].tolist() != []
    np.testing.assert_allclose(estimate[solved], gradients[solved], atol=1e-6)
    assert np.isnan(estimate[[0, 2]]).all()


def test_nodes_that_are_not_identifiable_get_the_minimum_norm_solution():
    """Of the two leaves behind a hub only the sum is known: half of it each; two steps off, nothing."""
    rng = np.random.default_rng(0)
    attack = descent.gradient_attack(sv.graphs.star(5), attackers=1, steps=3)
    assert attack.identifiable == (0,)
    gradients = rng.normal(size=(5, 4))
    seen = descent.run_descent(attack, lambda theta, t: gradients, np.zeros((5, 4)), learning_rate=0.05)
    estimate = attack.gradients(seen, np.zeros(4), 0.05)
    np.testing.assert_allclose(estimate[0], gradients[0], atol=1e-8)
    np.testing.assert_allclose(estimate[2:], np.tile(gradients[2:].mean(axis=0), (3, 1)), atol=1e-8)
    early = descent.gradient_attack(sv.graphs.path(5), attackers=0, steps=2)
    assert early.reached == (1, 2)
    seen = descent.run_descent(early, lambda theta, t: gradients, np.zeros((5, 4)), learning_rate=0.05)
    estimate = early.gradients(seen, np.zeros(4), 0.05)
    assert np.isnan(estimate[[0, 3, 4]]).all()
    assert np.isfinite(estimate[[1, 2]]).all()


def test_known_matrix_for_one_round_a_step():
    """The row of (t, w) is the sum of the powers of the targets' block."""
    network = sv.graphs.florentine()
    attack = descent.gradient_attack(network, attackers=(4,), steps=4)
    targets = list(attack.targets)
    block = network.W.toarray()[np.ix_(targets, targets)]
    for row, (t, _, w) in enumerate(attack.messages):
        power = sum(np.linalg.matrix_power(block, i) for i in range(t + 1))
        np.testing.assert_allclose(attack.knowledge[row], power[targets.index(w)], atol=1e-12)
    for i, (t, _, w) in enumerate(attack.messages):
        for j, (s, _, x) in enumerate(attack.messages):
            expected = sum(
                np.linalg.matrix_power(block, t + s - 2 * r)[targets.index(w), targets.index(x)]
                for r in range(min(t, s) + 1)
            )
            assert attack.covariance[i, j] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("averaging", averagings()[:2], ids=["florentine-1", "path-3"])
def test_covariance_and_least_squares_match_monte_carlo(averaging):
    rng = np.random.default_rng(1)
    attack = descent.gradient_attack(averaging, attackers=3, steps=3)
    n, runs = attack.protocol.n, 40_000
    # independent runs are columns; the gradient of node u is u in all of them, plus fluctuations
    mean = np.tile(np.arange(n, dtype=float)[:, None], (1, runs))
    seen = descent.run_descent(
        attack, lambda theta, t: mean, np.zeros((n, runs)), 1.0, rng=rng, noise_std=0.5
    )
    clean = attack._without_own(seen, np.zeros(runs))
    sampled = np.cov(clean)
    predicted = 0.25 * attack.covariance
    spread = np.sqrt(np.outer(np.diag(predicted), np.diag(predicted)))
    assert np.abs((sampled - predicted) / spread).max() < 0.03  # five standard errors
    assert np.abs((sampled - 1.5 * predicted) / spread).max() > 0.3  # and it would notice another scale
    estimate = attack.gradients(seen, np.zeros(runs), 1.0)
    information = attack.knowledge.T @ np.linalg.pinv(predicted, rcond=1e-10) @ attack.knowledge
    variance = dict(zip(attack.targets, np.diag(np.linalg.pinv(information, rcond=1e-10)), strict=True))
    for u in attack.identifiable:
        assert estimate[u].mean() == pytest.approx(u, abs=5 * np.sqrt(variance[u] / runs))
        assert estimate[u].var() == pytest.approx(variance[u], rel=0.06)


def test_information_equals_the_accountants_projection():
    """1^T H 1 of the learning view, from the attack and from an explicit projector."""
    network, steps, v = sv.graphs.path(5), 5, 0
    W = network.W.toarray()
    rows = []
    for t in range(steps):
        block = np.zeros((steps, 5))
        for s in range(t + 1):
            block[s] = np.linalg.matrix_power(W, t - s)[1]
        rows.append(block)
    B = np.array(rows)
    B[:, :, v] = 0
    flat = B.reshape(steps, -1)
    projector = (np.linalg.pinv(flat) @ flat).reshape(steps, 5, steps, 5)
    information = np.insert((descent.gradient_attack(network, v, steps).whitened ** 2).sum(axis=0), v, 0.0)
    for u in range(1, 5):
        assert information[u] == pytest.approx(projector[:, u, :, u].sum(), abs=1e-8)
    np.testing.assert_allclose(information[2:], [0.713, 0.087, 0.007], atol=1e-3)
    assert information[1] <= 4.866


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: descent.gradient_attack(sv.graphs.path(4), 9, 3), "attackers names node 9"),
        (lambda: descent.gradient_attack(sv.graphs.path(4), range(4), 3), "nobody left"),
        (lambda: descent.gradient_attack(sv.graphs.path(4), 0, 0), "steps must be at least 1"),
        (lambda: descent.gradient_attack(Chebyshev(sv.graphs.path(4), 2), 0, 3), "memory"),
        (
            lambda: descent.gradient_attack(sv.graphs.path(4), 0, 3).gradients(
                descent.Transcript(np.zeros((2, 1)), np.zeros((3, 1, 1, 1))), np.zeros(1), 0.1
            ),
            "transcript must hold 3 received rows",
        ),
    ],
)
def test_invalid_input_is_refused(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()
