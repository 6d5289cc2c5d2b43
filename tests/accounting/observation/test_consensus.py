"""Exact consensus: steps compose, shares of sums, run lengths, several streams."""

import math

import numpy as np
import pytest
from tests.accounting.small_plans import (
    PAIR,
    RING,
    SEES,
    TREES,
    D,
    by_name,
    every,
    one,
    plan_of,
    stationary_plan,
)

import sottovoce as sv
from sottovoce.accounting import question
from sottovoce.accounting.observation import Consensus
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Curve, Release, account
from sottovoce.protocols import HypercubeExchange, Masked, Tree

SIZES = [10, 20, 30, 40, 50, 60, 70, 80]
RECORDS = {"adjacency": "add-remove", "sample_rate": 0.05}
RATES = [25 / size for size in (500, 400, 300, 500, 500, 500, 500, 250)]
CONSENSUS = {
    "user": (
        plan_of(Consensus(), every(2.0, 4.0)),
        [8.385418924216832, 2.501739978732043, 5.279546483266544, 3.197639107355488, 5.54483092266025],
    ),
    "sampled": (
        plan_of(Consensus(), every(1.0, 1.0, **RECORDS), adjacency="add-remove"),
        [1.7313862474573016, 0.24773449696505426, 1.3077463523529163, 0.3716175653652568, 1.2154088657882252],
    ),
    "unequal sizes": (
        plan_of(
            Consensus(), every([1 / m for m in SIZES], [1 / m for m in SIZES], **RECORDS),
            adjacency="add-remove",
        ),
        [1.7313862474573016, 1.0461945532425305, 1.6132313595945593, 0.33632757335867525, 1.2039733392896723],
    ),
    "networks, replace-one": (
        plan_of(
            Consensus(), every(2.0, 1.5, adjacency="replace-one", sample_rate=RATES), adjacency="replace-one"
        ),
        [1.9831169090219876, None, 1.3034259507387562, 0.3521634302749784, 1.2464650250453437],
    ),
    "networks, user": (
        plan_of(Consensus(), every(2.0, 1.5, sample_rate=RATES)),
        [29.659497512327906, None, 17.636764136288377, 10.172359356189727, 18.625532334177795],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSENSUS)
def test_consensus_matches_reference_values(name):
    plan, expected = CONSENSUS[name]
    for (view, who), value in zip(SEES.items(), expected, strict=True):
        guarantee = account(plan, view, **who)
        assert guarantee.label == ("ldp" if view == "local" else "exact")
        assert guarantee.adjacency == plan.adjacency
        if value is not None:
            assert guarantee.epsilon(D) == pytest.approx(value, rel=1e-9), view
        is_sampled = name in ("sampled", "unequal sizes", "networks, replace-one")
        assert any("Poisson" in sentence for sentence in guarantee.assumptions) == is_sampled


def test_consensus_accounts_each_step_and_requires_exact_protocols():
    shares = np.array([tree.shares(0)[3] for tree in TREES])
    assert account(CONSENSUS["user"][0], "pairwise", **PAIR).mu == pytest.approx(0.5 * shares.sum() ** 0.5)
    mixed = [*TREES[:7], sv.protocols.Gossip(RING, 3), *TREES[8:]]
    with pytest.raises(InvalidInput, match="at step 7"):
        account(plan_of(Consensus(), every(2.0, 4.0), schedule=mixed), "network")
    assert account(plan_of(Consensus(), every(2.0, 4.0), schedule=mixed), "local").label == "ldp"


def test_consensus_counts_run_lengths_and_other_mechanisms_once():
    def releases(u):  # noise changes at step 3; two values a step from then on; one Laplace release
        return [
            Release(u, 0, sensitivity=1.0, noise_std=2.0, steps=3),
            Release(u, 3, sensitivity=1.0, noise_std=4.0, steps=2, count=2),
            Release(u, 0, sensitivity=1.0, noise_std=50.0, mechanism="laplace"),
        ]

    finished = []
    plan = plan_of(Consensus(), releases, n=4, steps=5, schedule=HypercubeExchange(4))
    curve = account(plan, "pairwise", **PAIR, progress=finished.append).curve
    expected = Curve.gaussian(math.sqrt((3 / 4 + 4 / 16) / 2)) + Curve.laplace(1 / 50)
    assert curve.rdp(4.0) == pytest.approx(expected.rdp(4.0), rel=1e-9)
    assert finished == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("releases", "mu"),
    [({"steps": 6}, 0.5 * math.sqrt(4 / 2 + 2)), ({"steps": 4, "joint": True}, 0.5)],
    ids=["late", "joint"],
)
def test_late_and_joint_releases_count_in_full(releases, mu):
    plan = plan_of(Consensus(), every(1.0, 2.0, **releases), n=4, steps=4, schedule=HypercubeExchange(4))
    assert account(plan, "pairwise", **PAIR).mu == pytest.approx(mu)


def test_agent_without_noise_is_hidden_by_others():
    quiet = plan_of(Consensus(), every(1.0, [3.0, 0.0, 4.0, 0.0], steps=1), n=4, steps=1,
                 schedule=sv.protocols.Tree(sv.graphs.path(4), root=0))  # fmt: skip
    assert account(quiet, "central", user=1).mu == pytest.approx(1 / 5)
    # node 0 sees the sum of 1, 2, 3, in which only 2 has noise; node 2 sees node 3 without any
    assert account(quiet, "pairwise", observer=0, user=1).mu == pytest.approx(1 / 4)
    assert account(quiet, "pairwise", observer=2, user=3).mu == math.inf
    assert account(quiet, "local").mu == math.inf
    assert account(quiet, "colluders", colluders=[0, 2], user=1).mu == math.inf


def test_unequal_steps_are_tried_one_by_one():
    """Who sits beside a member in one step may not in the next; a coalition is the same in all of them."""
    trees = [sv.protocols.Tree(sv.graphs.complete(6), parents=p) for p in
             ([-1, 0, 1, 2, 3, 4], [-1, 0, 0, 1, 1, 2], [4, 5, 4, 5, -1, 4])]  # fmt: skip
    fresh = plan_of(Consensus(), every(1.0, [1, 2, 1, 3, 1, 2], steps=3), n=6, steps=3, schedule=trees)
    assert account(fresh, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(fresh, 2))

    def at_times(u):
        return [Release(u, k, sensitivity=1.0, noise_std=1.0 + u) for k in range(3) if (u + k) % 3]

    some = plan_of(Consensus(), at_times, n=6, steps=3, schedule=trees[1], is_stationary=True)
    assert account(some, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(some, 2))

    def louder(u):  # who is loud changes, so the worst neighbor does, too
        return [Release(u, k, sensitivity=1.0, noise_std=1.0 + (u + 2 * k) % 6) for k in range(3)]

    changing = plan_of(Consensus(), louder, n=6, steps=3, schedule=trees[1], is_stationary=True)
    assert account(changing, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(changing, 2))
    assert account(changing, "network").epsilon(D) == pytest.approx(by_name(changing, 1))


def test_outsider_is_local_unless_masked():
    clear = stationary_plan(Consensus(), HypercubeExchange(4), one)
    assert (account(clear, "outsider").label, account(clear, "outsider").mu) == ("ldp", 0.5)
    hidden = account(stationary_plan(Consensus(), Masked(Tree(sv.graphs.complete(4))), one), "outsider")
    assert (hidden.label, hidden.mu) == ("exact", pytest.approx(1 / 4, rel=1e-9))


@pytest.mark.parametrize("step", [0, 1])
def test_two_streams_with_different_noise_have_one_worst_observer(step):
    """Node 1 of four in a row: node 0 sees most of its first value, node 2 of the second, which counts."""
    first, second = [10.0, 1.0, 1.0, 1.0], [0.4, 0.4, 9.0, 9.0]

    def releases(agent):
        return [*one(agent, first[agent]), Release(agent, step, sensitivity=1.0, noise_std=second[agent])]

    plan = stationary_plan(Consensus(), Tree(sv.graphs.path(4)), releases, steps=1 + step)
    seen = [account(plan, observer=v, user=1).mu for v in (0, 2, 3)]
    assert seen[1] == pytest.approx(math.hypot(1 / math.hypot(10, 1), 1 / math.hypot(0.4, 0.4)), rel=1e-9)
    assert account(plan, "network", user=1).mu == max(seen) == seen[1] > 1.5 * seen[0]


def test_any_so_many_over_fresh_trees_count_noise_only_where_it_is(monkeypatch):
    """A member that is silent in a step hides nobody in it, whatever noise it has in others."""
    rng = np.random.default_rng(3)
    trees = [Tree(sv.graphs.complete(7), kind="uniform", rng=rng) for _ in range(4)]

    def releases(u):
        return one(u, steps=4 if u in (0, 3) else 1)

    plan = plan_of(Consensus(), releases, n=7, steps=4, schedule=trees)
    truth = by_name(plan, 3, user=3)
    monkeypatch.setattr(question, "_MAX_COALITIONS", 1)  # too many to try
    assert account(plan, "colluders", colluders=3, user=3).epsilon(D) >= truth * (1 - 1e-9)
