"""Random plans against an independent recomputation: the short form of `make verify-recomputation`."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from sottovoce.accounting import fresh_trees, question, release
from sottovoce.accounting.observation import coalitions, consensus, random_walk
from verification import recomputation

CASES = [(False, number) for number in range(60)] + [(True, number) for number in (0, 3, 4, 5, 6, 7, 10, 11)]


@pytest.mark.parametrize("batch", range(8))
def test_no_price_is_below_the_truth_and_all_are_close(batch):
    for sampled, number in CASES[batch::8]:
        result = recomputation.check(1, sampled, number)
        assert not result["low"], result
        assert result["close"] or not result.get("closed_form", True), result


# ---- bugs it is for ---------------------------------------------------------------------------------------


# what is replaced, by which function of the right one, and the plans that show it: most within ten
EARLY = range(150)
BUGS = {
    "half the sensitivity of users": (release.MOVES, "user", lambda right: 1.0, EARLY),
    "half the sensitivity of replaced records": (release.MOVES, "replace-one", lambda right: 1.0, EARLY),
    "a share instead of its root": (
        release.ReleaseKind, "curve",
        lambda right: lambda self, count, share=1.0, method="pld": right(self, count, share**2, method),
        EARLY),
    "all agents hide each": (
        consensus, "_hiding_variances",
        lambda right: lambda *facts: np.full(len(facts[3]), np.square(facts[3]).sum()), EARLY),
    "the noise of colluders counts": (
        question.PrivacyQuestion, "largest_noise_coalitions", lambda right: lambda self, stds: [()], EARLY),
    "one release forgotten": (
        release.Release, "draws",
        lambda right: property(lambda self: max(1, self.steps * self.count - 1)), EARLY),
    "participation hidden though seen": (
        release.ReleaseKind, "from_release",
        lambda right: lambda one: right(one)._replace(hidden=True), EARLY),
    "releases travel a step late": (
        question.PrivacyQuestion, "last_steps_in_reach",
        lambda right: lambda self, delay: right(self, delay + 1), EARLY),
    "the first masks stand for all": (
        coalitions, "_protocols", lambda right: lambda question: [question.protocol], [663, 710]),
    "rates that fall count as equal": (
        random_walk, "_waiting_costs", lambda right: lambda *facts: right(*facts[:3], None), [523]),
    "one member fewer on trees": (
        fresh_trees, "largest_losses", lambda right: lambda *facts: right(*facts[:3], facts[3] - 1), EARLY),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug, monkeypatch):
    holder, name, faulty, plans = BUGS[bug]
    if isinstance(holder, dict):
        monkeypatch.setitem(holder, name, faulty(holder[name]))
    else:
        monkeypatch.setattr(holder, name, faulty(getattr(holder, name)))
    assert any(recomputation.check(1, False, number)["low"] for number in plans)


# ---- the reference itself --------------------------------------------------------------------------------


def world(play, n, *more):
    played = recomputation.World(n)
    play(played, played.releases([Fraction(1)] * n), *more)
    return played


def test_a_path_of_three_by_hand():
    path = recomputation.metropolis(3, [[0, 1], [1, 2]])
    gossip = world(recomputation.gossip, 3, [path] * 2, None, Fraction(0))
    assert gossip.losses([2]) == [1, 1, 0]
    assert gossip.losses([], tap=True) == [1, 1, 1]
    assert world(recomputation.gossip, 3, [path], None, Fraction(0)).losses([2]) == [0, 1, 0]


def test_sums_over_trees_and_cubes_by_hand():
    tree = world(recomputation.tree, 4, [-1, 0, 1, 2], None)
    assert tree.losses([1]) == [1, 0, Fraction(1, 2), Fraction(1, 2)]
    assert tree.losses([], rows=tree.final[:1]) == [Fraction(1, 4)] * 4
    assert world(recomputation.swaps, 4).losses([0]) == [0, 1, Fraction(1, 2), Fraction(1, 2)]


def test_masks_leave_sums_over_components():
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]  # a ring of partners
    masked = world(recomputation.tree, 5, [-1, 0, 0, 1, 1], pairs)
    assert masked.losses([], tap=True) == [Fraction(1, 5)] * 5
    assert masked.losses([0], tap=True) == [0, *[Fraction(1, 4)] * 4]
    assert masked.losses([0, 2], tap=True) == [0, 1, 0, Fraction(1, 2), Fraction(1, 2)]


def test_a_token_that_comes_back_carries_a_value_twice():
    walked = recomputation.World(3)
    recomputation.walk(walked, [0, 1, 0, 2], Fraction(1), final_public=False)
    assert walked.losses([2])[:2] == [Fraction(4, 3), Fraction(1, 3)]  # the sum of three, twice node 0
    untouched = recomputation.World(3)
    recomputation.walk(untouched, [0, 1], Fraction(1), final_public=False)
    assert untouched.losses([], rows=untouched.final[2:]) == [0, 0, 0]  # its row is zeros


def test_news_travels_one_edge_a_round():
    path = recomputation.heard([recomputation.metropolis(4, [[0, 1], [1, 2], [2, 3]])])
    assert [recomputation.in_reach(0, [v], [path] * 5, 0) for v in range(1, 4)] == [5, 4, 3]
    assert [recomputation.in_reach(0, [v], [path] * 5, 1) for v in range(1, 4)] == [4, 3, 2]
    assert recomputation.in_reach(0, [3], [path * 3, path], 0) == 1  # three rounds first, then one
    assert recomputation.in_reach(0, [3], [path, path * 3], 0) == 2
    first, second = [[(1, 0), (0, 1)]], [[(2, 1), (1, 2)]]  # an edge at a time
    assert recomputation.in_reach(0, [2], [first, second], 0) == 1
    assert recomputation.in_reach(2, [0], [first, second], 0) == 0


def test_components_by_search():
    line = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert recomputation.components(5, line, [2]) == [{0, 1}, {3, 4}]
    assert recomputation.components(5, line, [1, 3]) == [{0}, {2}, {4}]
    assert recomputation.components(2, [], []) == [{0}, {1}]


def test_what_a_path_shows_by_hand():
    shown, falling = recomputation.shown_of_path, [Fraction(1), Fraction(1, 2), Fraction(1, 4)]
    assert shown([0, 2, 1], 0, 1, falling, None, False) == Fraction(4, 5)  # 1 within 1 + 1/4
    assert shown([0, 0, 1], 0, 1, falling, None, False) == Fraction(9, 5)
    assert shown([0, 0, 1], 0, 1, falling, 1, False) == Fraction(4, 5)  # the second is noise alone
    assert shown([1, 0, 2], 0, 1, falling, None, False) == 0
    assert shown([1, 0, 2], 0, 1, falling, None, True) == Fraction(4, 5)
    assert shown([0, 2, 0], 0, 1, None, None, True) == 2
    every = list(recomputation.paths(recomputation.metropolis(3, [[0, 1], [1, 2]]), 3))
    assert sum(p for _, p in every) == 1
    probabilities = {tuple(path): p for path, p in every}
    assert probabilities[0, 0, 1] == Fraction(1, 3) * Fraction(2, 3) * Fraction(1, 3)


def test_a_drawn_shift_by_hand():
    """Fifty rounds at rate .05 and a shift of 4/12: 3.002 at 1e-5."""
    mixture = [(Fraction(k, 9), math.comb(50, k) * 0.05**k * 0.95 ** (50 - k)) for k in range(51)]
    assert recomputation.mixture_epsilon(mixture, 1e-5) == pytest.approx(3.002, abs=5e-4)
    assert recomputation.judge_mixture(mixture, 3.0, 1e-5) == (True, True)
    assert recomputation.judge_mixture(mixture, 3.01, 1e-5) == (False, True)
    assert recomputation.judge_mixture(mixture, 3.1, 1e-5) == (False, False)
    step = (recomputation.Step("mixture", tuple(mixture)),)
    larger = (recomputation.Step("gaussian", Fraction(1)),)
    assert recomputation.judge([step, larger], 4.3771, 1e-5)["low"]
    assert recomputation.judge([step, larger], 4.3773, 1e-5)["close"]
    far = {"low": False, "close": False, "truth": pytest.approx(3.002, abs=5e-4)}
    assert recomputation.judge([step], 3.1, 1e-5) == far


@pytest.mark.parametrize("seed", range(5))
def test_projections_are_those_of_numpy(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, size=(4, 6)).tolist()
    weights = rng.integers(1, 5, size=6).tolist()
    reduced = [row for _, row in recomputation.echelon(rows)]
    shares = recomputation.projected(reduced, reduced, weights, 6)
    K = np.array(rows, float)
    expected = np.diag(K.T @ np.linalg.pinv(K @ np.diag(weights) @ K.T) @ K)
    np.testing.assert_allclose([float(share) for share in shares], expected, atol=1e-9)


def test_the_judge_knows_low_and_far():
    """A shift of one standard deviation is epsilon 4.3772 at delta 1e-5."""
    assert recomputation.judge_gaussian(Fraction(1), 4.3773, 1e-5) == (False, True)
    assert recomputation.judge_gaussian(Fraction(1), 4.3771, 1e-5) == (True, True)
    assert recomputation.judge_gaussian(Fraction(1), 4.43, 1e-5) == (False, False)
    assert recomputation.judge_gaussian(math.inf, 1e9, 1e-5) == (True, False)
    steps = (recomputation.Step("sampled", 1.5, 12, 0.1),)
    near = {"low": False, "close": True, "truth": pytest.approx(1.379, abs=1e-3)}
    assert recomputation.judge([steps], 1.385, 1e-5) == near
    assert recomputation.judge([steps], 1.37, 1e-5)["low"]
    assert not recomputation.judge([steps], 1.42, 1e-5)["close"]
    both = [(recomputation.Step("laplace", 0.1, 3), recomputation.Step("pure", 0.2, 3)), steps]
    assert recomputation.lower_epsilon(both[0], 1e-9, 1e-4) == pytest.approx(0.9, abs=2e-3)
    assert set(recomputation.worst([*both, (recomputation.Step("sampled", 2.0, 12, 0.1),)])) == set(both)


def test_draws_repeat():
    for sampled, number in itertools.product((False, True), range(3)):
        one, two = (recomputation.case(7, sampled, number) for _ in range(2))
        assert (repr(one.plan), one.question, one.delta) == (repr(two.plan), two.question, two.delta)
