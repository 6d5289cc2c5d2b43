"""No direction of a view is lost: random weights, faint ones among them, against whole-number arithmetic."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.leakage.test_view import by_general_recursion

import sottovoce as sv
from sottovoce.accounting.observation import LinearGossip
from sottovoce.accounting.observation.averaging import SingleAveraging
from sottovoce.errors import InvalidInput
from sottovoce.leakage import exact_rank
from sottovoce.leakage.basis import RankMonitor
from sottovoce.leakage.trace import AddNoise, ApplyMatrix, ExecutionTrace, Observe
from sottovoce.privacy import account, exact_loss, learning_view
from sottovoce.protocols import Chebyshev, FreshNoiseGossip, Gossip, Randomized, TimeVarying
from verification import exact_spans


def weighted_path(weights):
    W = np.diag(weights, 1) + np.diag(weights, -1)
    return W + np.diag(1 - W.sum(axis=1))


# ---- small: exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", range(15))
def test_random_weights_are_never_understated(batch):
    """The long form, 2,000 cases, is `verification/exact_spans.py`."""
    for number in range(10 * batch, 10 * batch + 10):
        result = exact_spans.compare(*exact_spans.case(2, number)[:3])
        assert result["low"] < 1e-9
        assert result["close"]


def test_the_reference_knows_the_hand_checks():
    """The path of three by hand, with and without the observer's own noise."""
    path = Gossip(sv.graphs.path(3), 2)
    assert exact_spans.rational_leakage(path, (2,), True) == [1, 1, 0]
    assert exact_spans.rational_leakage(path, (2,), False) == [Fraction(1, 2), 1, Fraction(1, 2)]


@pytest.mark.parametrize("a", [2.0**-20, 2.0**-26])
def test_five_nodes_with_two_kinds_of_weights(a):
    """One round loses a weight squared, 9.1e-13: node 4 is determined, and was said to lose 5.8e-11.

    With the second weight what is left is 2.2e-16, like rounding: only the exact rank knows of it.
    """
    W = np.zeros((5, 5))
    for u, v, weight in [(0, 2, 0.125), (0, 3, 0.125), (1, 3, 0.125), (1, 4, a), (1, 2, a), (3, 4, a)]:
        W[u, v] = W[v, u] = weight
    W += np.diag(1 - W.sum(axis=1))
    gossip = Gossip(sv.graphs.from_matrix(W), 2)
    view = gossip.view(0)
    np.testing.assert_allclose(view.leakage(), [0, 1, 1, 1, 1], atol=1e-12)
    assert view.covers(4)
    assert not view.rounded_up
    guarantee = account(SingleAveraging(gossip, 1.0, 1.0), "pairwise", observer=0, user=4)
    assert guarantee.epsilon(1e-5) == pytest.approx(4.377, abs=1e-3)


@pytest.mark.parametrize("rounds", [3, 4, 7])
def test_a_path_of_four_with_faint_weights(rounds):
    W = weighted_path([2.0**-17] * 3)
    for protocol in (Gossip(sv.graphs.from_matrix(W), rounds), TimeVarying([W] * rounds)):
        for form in (protocol.view(0), by_general_recursion(protocol, (0,))):
            np.testing.assert_allclose(form.leakage(), [0, 1, 1, 1], atol=1e-12)
    loss = exact_loss(sv.graphs.from_matrix(W), rounds=rounds)
    np.testing.assert_allclose(loss, 1 - np.eye(4), atol=1e-12)


def test_memory_and_what_is_published():
    """Chebyshev sees what gossip sees; all final rows of an invertible matrix hold everything."""
    network = sv.graphs.from_matrix(weighted_path([2.0**-17] * 3))
    fast = by_general_recursion(Chebyshev(network, 4, gamma=1.25), (0,))
    np.testing.assert_allclose(fast.leakage(), [0, 1, 1, 1], atol=1e-9)
    mixed = Gossip(sv.graphs.ring(5), 40)  # all rows are 1/5 up to 1e-10, and still independent
    np.testing.assert_allclose(mixed.output_view(range(5)).leakage(), 1, atol=1e-12)
    assert mixed.output_view(0).rank == 1
    np.testing.assert_allclose(nearly_averaged().output_view([0, 1]).leakage(), [1, 1, 0], atol=1e-12)


def nearly_averaged():
    """Two nodes whose rows differ by 2.9e-11 after one round, and a third that speaks to nobody."""
    e = 2.0**-36
    return TimeVarying([np.array([[0.5 + e, 0.5 - e, 0], [0.5 - e, 0.5 + e, 0], [0, 0, 1]])])


def test_faint_fresh_noise_still_counts():
    """Fresh noise of 1e-9 protects by 1e-18, and the floating basis must not lose the value behind it."""
    W = sv.graphs.path(3)
    almost = FreshNoiseGossip(W, 3, fresh_noise_std=1e-9).view(0).leakage()
    np.testing.assert_allclose(almost, Gossip(W, 3).view(0).leakage(), atol=1e-6)
    assert (almost <= 1).all()


def test_random_ticks_are_checked_in_the_same_way():
    protocol = Randomized(sv.graphs.ring(6), 40, np.random.default_rng(3))
    pairs = protocol.trace((0,))
    mixes = [ApplyMatrix(protocol.matrix(t)) for t in range(40)]
    own = [(0,), *[()] * 39]  # its later rows follow from the first and from what it hears
    seen = [Observe((*own[t], *protocol.senders(t, (0,)))) for t in range(40)]
    general = [event for t in range(40) for event in (seen[t], mixes[t])]
    plain = ExecutionTrace(6, 6, (AddNoise(0, 6, 1.0), *general), (0,))
    assert exact_rank.independent_rows(pairs) == exact_rank.independent_rows(plain)
    for basis in (exact_rank.exact_basis(pairs), exact_rank.exact_basis(plain)):
        np.testing.assert_allclose((basis**2).sum(axis=1), protocol.view(0).leakage(), atol=1e-12)


def test_learning_steps_lose_nothing_either():
    """Three steps of three rounds on faint weights: every gradient's noisy value is determined."""
    network = sv.graphs.from_matrix(weighted_path([2.0**-17] * 2))
    view = learning_view(Gossip(network, 3), 3, 0)
    for user in (1, 2):
        np.testing.assert_allclose(view.block(user), np.eye(3), atol=1e-9)


# ---- large: rounded up, and said so ------------------------------------------------------------------------


def test_what_is_too_large_to_decide_is_rounded_up_and_says_so():
    """A path of 130 with weights of a hundredth, 60 rounds: the nodes within 60 steps are determined."""
    one, two = weighted_path([2.0**-7] * 129), weighted_path([2.0**-7] * 128 + [2.0**-6])
    protocol = TimeVarying([one, two] * 30)
    view = protocol.view(0)
    assert view.rounded_up
    assert (view.leakage()[1:61] > 1 - 1e-9).all()
    assert not view.leakage()[61:].any()
    guarantee = account(SingleAveraging(protocol, 1.0, 1.0), "pairwise", observer=0, user=60)
    assert "rounded up where floating point could not decide" in guarantee.assumptions
    assert sv.attacks.gossip_attack(protocol, 0, exact=False).nodes == ()  # no evidence of anything


def test_the_last_resort_holds_whatever_could_have_been_seen(monkeypatch):
    monkeypatch.setattr(exact_rank, "EXACT_WORK", 0.0)
    network = sv.graphs.from_matrix(weighted_path([2.0**-17] * 5))
    view = Gossip(network, 4).view(0)
    assert view.rounded_up
    assert view.leakage().tolist() == [0, 1, 1, 1, 1, 0]
    both = nearly_averaged().output_view([0, 1])
    assert both.rounded_up
    assert both.leakage().tolist() == [1, 1, 0]
    learning = learning_view(Gossip(network, 3), 2, 0)
    assert learning.rounded_up
    assert learning.worst_case().tolist() == [0, 2, 2, 2, 2, 2]
    plan = replace(SingleAveraging(Gossip(network, 3), 1.0, 1.0), steps=2, observation=LinearGossip())
    guarantee = account(plan, "pairwise", observer=0, user=1, label="conditional")
    assert "rounded up where floating point could not decide" in guarantee.assumptions


def test_standard_weights_are_never_rounded_up():
    rng = np.random.default_rng(5)
    for network in (sv.graphs.hypercube(6), sv.graphs.erdos_renyi(60, 1.5, rng), sv.graphs.karate()):
        for rounds in (3, 12, 30):
            assert not Gossip(network, rounds).view(0).rounded_up


# ---- unequal noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [3.0, 1e4, 1e8])
def test_unequal_noise_drops_nothing(ratio):
    """Two users seen only by their sum, one louder: h in the quiet one's unit, from the closed form."""
    view = sv.protocols.Tree(sv.graphs.path(3), root=0).view(0)
    leakage = view.with_noise([1.0, 1.0, ratio]).leakage()
    quiet = 1 / (1 + ratio**2)
    assert leakage[1] >= quiet
    assert leakage[1] <= quiet + max(1e-9, 2e-14 * ratio)
    assert leakage[2] >= 1 - quiet - 1e-12
    assert view.with_noise([1.0, 1.0, ratio]).rounded_up == (ratio > 1e5)
    with pytest.raises(InvalidInput, match="too much"):
        view.with_noise([1.0, 1.0, 1e13])


def test_the_watch_tells_rounding_from_information():
    watch = RankMonitor()
    watch.note(np.array([1.0, 0.02, 3e-16]))
    assert watch.dropped
    assert not watch.doubtful
    for _ in range(4):
        watch.note(np.array([0.009]))
    assert watch.doubtful  # a product of many short steps
