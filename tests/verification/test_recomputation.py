"""Random plans against an independent recomputation: the short form of `make verify-recomputation`."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from sottovoce.accounting import question, release
from sottovoce.accounting.observation import consensus
from verification import recomputation

CASES = [(False, number) for number in range(32)] + [(True, number) for number in (0, 3, 4, 5, 6, 7, 10, 11)]


@pytest.mark.parametrize("batch", range(8))
def test_no_price_is_below_the_truth_and_all_are_close(batch):
    for sampled, number in CASES[batch::8]:
        result = recomputation.check(1, sampled, number)
        assert not result["low"], result
        assert result["close"], result


# ---- bugs it is for ---------------------------------------------------------------------------------------


def half_the_sensitivity(monkeypatch):
    monkeypatch.setitem(release.MOVES, "user", 1.0)
    monkeypatch.setitem(release.MOVES, "replace-one", 1.0)


def a_share_instead_of_its_root(monkeypatch):
    right = release.MechanismKey.curve
    monkeypatch.setattr(
        release.MechanismKey,
        "curve",
        lambda self, count, share=1.0, method="pld": right(self, count, share**2, method),
    )


def everybody_hides_everybody(monkeypatch):
    monkeypatch.setattr(
        consensus,
        "_step_shares",
        lambda question, protocol, coalition, stds: np.square(stds) / np.square(stds).sum(),
    )


def the_noise_of_colluders_counts(monkeypatch):
    monkeypatch.setattr(question.PrivacyQuestion, "largest_noise_coalitions", lambda self, stds: [()])


def sampled_though_seen(monkeypatch):
    right = question.PrivacyQuestion.counts
    monkeypatch.setattr(
        question.PrivacyQuestion,
        "counts",
        lambda self, agent, *, hidden=False: right(self, agent, hidden=True),
    )


def one_release_forgotten(monkeypatch):
    monkeypatch.setattr(release.Release, "draws", property(lambda self: max(1, self.steps * self.count - 1)))


BUGS = [
    half_the_sensitivity, a_share_instead_of_its_root, everybody_hides_everybody,
    the_noise_of_colluders_counts, sampled_though_seen, one_release_forgotten,
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_caught(bug, monkeypatch):
    """Each among the first plans of the long run; most within ten."""
    bug(monkeypatch)
    assert any(recomputation.check(1, False, number)["low"] for number in range(150))


# ---- the reference itself --------------------------------------------------------------------------------


def world(play, n, *more):
    made = recomputation.World(n)
    play(made, made.releases([Fraction(1)] * n), *more)
    return made


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


@pytest.mark.parametrize("seed", range(5))
def test_projections_are_those_of_numpy(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, size=(4, 6)).tolist()
    weights = rng.integers(1, 5, size=6).tolist()
    reduced = [row for _, row in recomputation.echelon(rows)]
    found = recomputation.projected(reduced, reduced, weights, 6)
    K = np.array(rows, float)
    expected = np.diag(K.T @ np.linalg.pinv(K @ np.diag(weights) @ K.T) @ K)
    np.testing.assert_allclose([float(x) for x in found], expected, atol=1e-9)


def test_the_judge_knows_low_and_far():
    """A shift of one standard deviation is epsilon 4.3772 at delta 1e-5."""
    assert recomputation.judge_gaussian(Fraction(1), 4.3773, 1e-5) == (False, True)
    assert recomputation.judge_gaussian(Fraction(1), 4.3771, 1e-5) == (True, True)
    assert recomputation.judge_gaussian(Fraction(1), 4.43, 1e-5) == (False, False)
    assert recomputation.judge_gaussian(math.inf, 1e9, 1e-5) == (True, False)
    steps = (recomputation.Step("sampled", 1.5, 12, 0.1),)
    assert recomputation.judge([steps], 1.385, 1e-5) == {
        "low": False,
        "close": True,
        "truth": pytest.approx(1.379, abs=1e-3),
    }
    assert recomputation.judge([steps], 1.37, 1e-5)["low"]
    assert not recomputation.judge([steps], 1.42, 1e-5)["close"]
    both = [(recomputation.Step("laplace", 0.1, 3), recomputation.Step("pure", 0.2, 3)), steps]
    assert recomputation.lower_epsilon(both[0], 1e-9, 1e-4) == pytest.approx(0.9, abs=2e-3)
    assert set(recomputation.worst([*both, (recomputation.Step("sampled", 2.0, 12, 0.1),)])) == set(both)


def test_draws_repeat():
    for sampled, number in itertools.product((False, True), range(3)):
        one, two = (recomputation.case(7, sampled, number) for _ in range(2))
        assert (repr(one.plan), one.question, one.delta) == (repr(two.plan), two.question, two.delta)
