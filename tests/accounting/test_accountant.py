"""The one pricer: every kind of plan, every view, whom it was asked about, and what it must refuse.

The numbers beside the cases were computed once by separate code for each algorithm; closed forms stand beside
them where there are any.
"""

import itertools
import json
import math
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.observation import (
    Averaging,
    Consensus,
    Curator,
    Federation,
    LinearGossip,
    LocalOnly,
    ObservationModel,
    PairCorrelated,
    TimeCorrelated,
    TokenWalk,
)
from sottovoce.accounting.tree_noise import least_tree_noise
from sottovoce.errors import InvalidInput, NotAGuarantee
from sottovoce.privacy import Adversary, Curve, Guarantee, Release, account

D = 1e-5
RING = sv.graphs.ring(8)
TREES = [sv.protocols.Tree(RING, kind="uniform", rng=np.random.default_rng([0, k])) for k in range(12)]
NOBODY, PAIR, TWO = {}, {"observer": 0, "user": 3}, {"colluders": [0, 3]}
SEES = {"local": NOBODY, "central": NOBODY, "network": NOBODY, "pairwise": PAIR, "colluders": TWO}


def plan(model, releases, n=8, steps=12, schedule=TREES, adjacency="user", assumptions=(), **more):
    def at(k):
        return schedule[k] if isinstance(schedule, list) else schedule

    return SimpleNamespace(
        n=n,
        steps=steps,
        observation=model,
        adjacency=adjacency,
        assumptions=assumptions,
        schedule=at,
        releases=releases,
        **{"width": 1, "is_stationary": False, "accounting": "pld", **more},
    )


def every(sensitivity, std, steps=12, **more):
    """The same run of releases for every agent; a list of noises gives each its own."""

    def releases(u):
        size, noise = (x[u] if isinstance(x, (list, tuple)) else x for x in (sensitivity, std))
        rate = {k: v[u] if isinstance(v, (list, tuple)) else v for k, v in more.items()}
        return [Release(u, 0, sensitivity=size, noise_std=noise, steps=steps, **rate)]

    return releases


# ---- exact consensus -------------------------------------------------------------------------------------

SIZES = [10, 20, 30, 40, 50, 60, 70, 80]
RECORDS = {"adjacency": "add-remove", "sample_rate": 0.05}
RATES = [25 / size for size in (500, 400, 300, 500, 500, 500, 500, 250)]
CONSENSUS = {
    "user": (
        plan(Consensus(), every(2.0, 4.0)),
        [8.385418924216832, 2.501739978732043, 5.279546483266544, 3.197639107355488, 5.54483092266025],
    ),
    "record": (
        plan(Consensus(), every(1.0, 2.0, adjacency="add-remove"), adjacency="add-remove"),
        [8.385418924216832, 2.501739978732043, 5.279546483266544, 3.197639107355488, 5.54483092266025],
    ),
    "sampled": (
        plan(Consensus(), every(1.0, 1.0, **RECORDS), adjacency="add-remove"),
        [1.7313862474573016, 0.24773449696505426, 1.3077463523529163, 0.3716175653652568, 1.2154088657882252],
    ),
    "unequal sizes": (
        plan(
            Consensus(), every([1 / m for m in SIZES], [1 / m for m in SIZES], **RECORDS),
            adjacency="add-remove",
        ),
        [1.7313862474573016, 1.0461945532425305, 1.6132313595945593, 0.33632757335867525, 1.2039733392896723],
    ),
    "networks, add-remove": (
        plan(
            Consensus(), every(1.0, 1.5, adjacency="add-remove", sample_rate=RATES), adjacency="add-remove"
        ),
        [1.3849736721261177, None, 0.9504099010543963, 0.19937089598029634, 0.8886439134853454],
    ),
    "networks, replace-one": (
        plan(
            Consensus(), every(2.0, 1.5, adjacency="replace-one", sample_rate=RATES), adjacency="replace-one"
        ),
        [1.9831169090219876, None, 1.3034259507387562, 0.3521634302749784, 1.2464650250453437],
    ),
    "networks, user": (
        plan(Consensus(), every(2.0, 1.5, sample_rate=RATES)),
        [29.659497512327906, None, 17.636764136288377, 10.172359356189727, 18.625532334177795],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSENSUS)
def test_consensus_costs_what_it_did(name):
    priced, expected = CONSENSUS[name]
    for (view, who), value in zip(SEES.items(), expected, strict=True):
        found = account(priced, view, **who)
        assert found.label == ("ldp" if view == "local" else "exact")
        assert found.adjacency == priced.adjacency
        if value is not None:
            assert found.epsilon(D) == pytest.approx(value, rel=1e-9), view
        sampled = "sampled" in name or "sizes" in name or name in ("networks, add-remove",)
        assert any("Poisson" in said for said in found.assumptions) == (
            sampled or name == "networks, replace-one"
        )


def test_the_released_model_of_networks_costs_an_nth_and_not_the_local_number():
    priced, _ = CONSENSUS["networks, user"]
    assert account(priced, "central").mu == pytest.approx(account(priced, "local").mu / math.sqrt(8))


def test_schedules_are_priced_step_by_step_and_every_step_must_end_in_consensus():
    shares = np.array([tree.shares(0)[3] for tree in TREES])
    assert account(CONSENSUS["user"][0], "pairwise", **PAIR).mu == pytest.approx(0.5 * shares.sum() ** 0.5)
    mixed = [*TREES[:7], sv.protocols.Gossip(RING, 3), *TREES[8:]]
    with pytest.raises(InvalidInput, match="at step 7"):
        account(plan(Consensus(), every(2.0, 4.0), schedule=mixed), "network")
    assert account(plan(Consensus(), every(2.0, 4.0), schedule=mixed), "local").label == "ldp"


def test_run_lengths_counts_and_other_mechanisms_are_charged_once_each():
    exchange = sv.protocols.HypercubeExchange(4)

    def releases(u):  # noise changes at step 3; two values a step from then on; one Laplace release
        return [
            Release(u, 0, sensitivity=1.0, noise_std=2.0, steps=3),
            Release(u, 3, sensitivity=1.0, noise_std=4.0, steps=2, count=2),
            Release(u, 0, sensitivity=1.0, noise_std=50.0, mechanism="laplace"),
        ]

    found = account(plan(Consensus(), releases, n=4, steps=5, schedule=exchange), "pairwise", **PAIR).curve
    expected = Curve.gaussian(math.sqrt((3 / 4 + 4 / 16) / 2)) + Curve.laplace(1 / 50)
    assert found.renyi(4.0) == pytest.approx(expected.renyi(4.0), rel=1e-9)
    seen = []
    account(
        plan(Consensus(), releases, n=4, steps=5, schedule=exchange), "pairwise", **PAIR, progress=seen.append
    )
    assert seen == [1, 2, 3, 4, 5]


def test_what_lies_beyond_the_schedule_or_is_joint_is_charged_in_full():
    late = plan(
        Consensus(), every(1.0, 2.0, steps=6), n=4, steps=4, schedule=sv.protocols.HypercubeExchange(4)
    )
    assert account(late, "pairwise", **PAIR).mu == pytest.approx(0.5 * math.sqrt(4 / 2 + 2))
    joint = plan(
        Consensus(),
        every(1.0, 2.0, steps=4, joint=True),
        n=4,
        steps=4,
        schedule=sv.protocols.HypercubeExchange(4),
    )
    assert account(joint, "pairwise", **PAIR).mu == pytest.approx(0.5)


def test_who_adds_no_noise_is_hidden_by_the_others_alone():
    quiet = plan(Consensus(), every(1.0, [3.0, 0.0, 4.0, 0.0], steps=1), n=4, steps=1,
                 schedule=sv.protocols.Tree(sv.graphs.path(4), root=0))  # fmt: skip
    assert account(quiet, "central", user=1).mu == pytest.approx(1 / 5)
    # node 0 sees the sum of 1, 2, 3, in which only 2 has noise; node 2 sees node 3 without any
    assert account(quiet, "pairwise", observer=0, user=1).mu == pytest.approx(1 / 4)
    assert account(quiet, "pairwise", observer=2, user=3).mu == math.inf
    assert account(quiet, "local").mu == math.inf
    assert account(quiet, "colluders", colluders=[0, 2], user=1).mu == math.inf


# ---- averaging --------------------------------------------------------------------------------------------


def visits(walk, std):
    counts = np.bincount(walk.path, minlength=walk.n)

    def releases(u):
        again = int(counts[u])
        return [Release(u, 0, sensitivity=1.0, noise_std=std, count=again)] if again else []

    return releases


WALK = sv.protocols.Walk(RING, 20, np.random.default_rng(0), std=2.0)
AVERAGING = {
    "gossip": (
        sv.protocols.Gossip(RING, 3), every(1.0, 2.0, steps=1),
        [1.99309140441512, 1.1100139957114608, 1.99309140441512, 1.99309140441512, 1.99309140441512],
    ),
    "exchange": (
        sv.protocols.HypercubeExchange(8), every(1.0, 2.0, steps=1),
        [1.99309140441512, 0.6339783761989402, 1.99309140441512, 1.3564673644570406, 1.99309140441512],
    ),
    "refreshed": (
        sv.protocols.FreshNoiseGossip(RING, 3, tau=0.2, sigma=2.0), every(1.0, 2.0, steps=1),
        [1.99309140441512, 1.0924868418335028, 1.99309140441512, 1.363042443278953, 1.99309140441512],
    ),
    "walk": (
        WALK, visits(WALK, 2.0),
        [5.544830922655905, None, 4.455891139058521, 0.0, 3.637266030849735],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGING)
def test_averaging_costs_what_it_did(name):
    protocol, releases, expected = AVERAGING[name]
    priced = plan(Averaging(), releases, steps=1, schedule=protocol)
    for (view, who), value in zip(SEES.items(), expected, strict=True):
        found = account(priced, view, **who)
        if value is not None and name == "refreshed" and view in ("pairwise", "network", "colluders"):
            # the stored value leaves out what rounding before fresh noise adds: 4.5e-5 in mu here
            assert value <= found.epsilon(D) <= value * (1 + 1e-3), view
        elif value is not None:
            assert found.epsilon(D) == pytest.approx(value, rel=1e-9, abs=1e-12), view
        assert found.label == ("ldp" if view == "local" else "exact")
    assert account(priced, "outsider").epsilon(D) == pytest.approx(expected[0], rel=1e-9)
    assert account(priced, "outsider").label == "ldp"
    if name == "walk":  # the row of a named node
        assert account(priced, "central", observer=0).epsilon(D) == pytest.approx(2.6548204657264916)
        missed = next(v for v in range(8) if v not in set(WALK.path.tolist()))
        assert account(priced, "central", observer=missed).mu == 0.0  # its row is zero, not its own


def test_unequal_noise_is_what_hides_the_others():
    stds = [1.0, 2.0, 3.0, 4.0]
    priced = plan(
        Averaging(), every(1.0, stds, steps=1), n=4, steps=1, schedule=sv.protocols.HypercubeExchange(4)
    )
    # node 0 sees node 1 and the sum of 2 and 3
    expected = {1: 1 / 2, 2: 1 / 5, 3: 1 / 5}
    for user, mu in expected.items():
        assert account(priced, "pairwise", observer=0, user=user).mu == pytest.approx(mu)
    assert account(priced, "central", user=0).mu == pytest.approx(1 / math.sqrt(30))
    assert account(priced, "network", user=3).mu == pytest.approx(1 / 4)


def test_any_so_many_members_are_the_worst_coalition():
    tree = sv.protocols.Tree(sv.graphs.path(6), root=0)
    priced = plan(Averaging(), every(1.0, 1.0, steps=1), n=6, steps=1, schedule=tree)
    named = account(priced, "colluders", colluders=[1, 5], user=3)
    assert named.mu == pytest.approx(math.sqrt(1 / 3))
    anyone = account(priced, "colluders", colluders=2, user=3)
    assert anyone.mu == pytest.approx(1.0)  # its two neighbors
    assert str(anyone.adversary) == "any 2 nodes together, about node 3"
    assert account(priced, "colluders", colluders=1, user=3).mu == account(priced, "network", user=3).mu


def by_name(priced, c, **about):
    """The worst over every coalition of c, each asked about by name."""
    left = [v for v in range(priced.n) if v != about.get("user")]
    return max(
        account(priced, "colluders", colluders=who, **about).epsilon(D)
        for who in itertools.combinations(left, c)
    )


@pytest.mark.parametrize("model", [Averaging(), Consensus()], ids=["averaging", "consensus"])
@pytest.mark.parametrize("seed", range(3))
def test_the_worst_coalition_on_a_tree_is_known_without_trying_all(model, seed):
    rng = np.random.default_rng(seed)
    tree = sv.protocols.Tree(sv.graphs.complete(7), kind="uniform", rng=rng)
    sizes, stds = rng.uniform(0.5, 2.0, 7).tolist(), rng.lognormal(size=7).tolist()
    steps = 1 if isinstance(model, Averaging) else 3
    priced = plan(model, every(sizes, stds, steps=steps), n=7, steps=steps, schedule=tree, is_stationary=True)
    for c in (2, 3):
        found = account(priced, "colluders", colluders=c)
        assert found.label == "exact"
        assert found.epsilon(D) == pytest.approx(by_name(priced, c), rel=1e-9)
        about = account(priced, "colluders", colluders=c, user=4).epsilon(D)
        assert about == pytest.approx(by_name(priced, c, user=4), rel=1e-9)


def test_unlike_steps_and_unlike_lists_are_gone_through_one_by_one():
    """Who sits beside a member in one step may not in the next; a coalition is the same in all of them."""
    trees = [sv.protocols.Tree(sv.graphs.complete(6), parents=p) for p in
             ([-1, 0, 1, 2, 3, 4], [-1, 0, 0, 1, 1, 2], [4, 5, 4, 5, -1, 4])]  # fmt: skip
    fresh = plan(Consensus(), every(1.0, [1, 2, 1, 3, 1, 2], steps=3), n=6, steps=3, schedule=trees)
    assert account(fresh, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(fresh, 2))

    def at_times(u):
        return [Release(u, k, sensitivity=1.0, noise_std=1.0 + u) for k in range(3) if (u + k) % 3]

    some = plan(Consensus(), at_times, n=6, steps=3, schedule=trees[1], is_stationary=True)
    assert account(some, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(some, 2))

    def louder(u):  # who is loud changes, so the worst neighbor does, too
        return [Release(u, k, sensitivity=1.0, noise_std=1.0 + (u + 2 * k) % 6) for k in range(3)]

    changing = plan(Consensus(), louder, n=6, steps=3, schedule=trees[1], is_stationary=True)
    assert account(changing, "colluders", colluders=2).epsilon(D) == pytest.approx(by_name(changing, 2))
    assert account(changing, "network").epsilon(D) == pytest.approx(by_name(changing, 1))


def test_more_coalitions_than_can_be_tried_are_no_reason_to_say_local():
    tree = sv.protocols.Tree(sv.graphs.complete(60), parents=[-1, *((v - 1) // 3 for v in range(1, 60))])
    stds = np.sqrt(least_tree_noise(tree, 3, floor=0.09)).tolist()
    priced = plan(Averaging(), every(1.0, stds, steps=1), n=60, steps=1, schedule=tree)
    assert account(priced, "local").mu == pytest.approx(1 / 0.3)
    assert account(priced, "colluders", colluders=3).mu == pytest.approx(1.0)  # one loud member is left
    assert account(priced, "colluders", colluders=4).mu == pytest.approx(1 / 0.3)


# ---- masked sums ------------------------------------------------------------------------------------------


class Masks(sv.protocols.Tree):
    """A masked sum as the accountant sees it: any coalition learns sums over its complement's blocks."""

    masked, tolerate = True, 2

    def blocks(self, v=()):
        who = (v,) if isinstance(v, int) else tuple(v)
        return [np.setdiff1d(np.arange(self.n), who)]

    def view(self, observers=(), own_noise=True):
        block = self.blocks(observers)[0]
        basis = np.zeros((self.n, 1))
        basis[block] = 1 / math.sqrt(len(block))
        return sv.protocols.GaussianView(self.n, tuple(observers), basis, np.arange(self.n), ())

    def assumptions(self, who=()):
        return ("masks hold", f"computed for {sorted(who)}")


@pytest.mark.parametrize("model", [Averaging(), Consensus()], ids=["averaging", "consensus"])
def test_masked_sums_hide_everybody_in_all_others(model):
    masked = Masks(sv.graphs.grid(4, 4))
    priced = plan(model, every(1.0, 1.0, steps=1), n=16, steps=1, schedule=masked)
    assert account(priced, "network").mu == pytest.approx(math.sqrt(1 / 15))  # MATH 16.7
    assert account(priced, "colluders", colluders=[0, 3, 5]).mu == pytest.approx(math.sqrt(1 / 13))
    assert account(priced, "outsider").mu == pytest.approx(1 / 4)
    assert account(priced, "outsider").label == "exact"
    assert account(priced, "local").mu == 1.0
    by_default = account(priced)
    assert by_default.mu == pytest.approx(math.sqrt(1 / 14))
    assert str(by_default.adversary) == "any 2 nodes together"
    assert "masks hold" in by_default.assumptions
    assert not any("computed for [" in said for said in by_default.assumptions)  # whoever they are
    named = account(priced, "colluders", colluders=[0, 3, 5])
    assert "computed for [0, 3, 5]" in named.assumptions
    assert not any("honest but curious" in said for said in by_default.assumptions)


def test_the_loudest_members_are_missed_most():
    masked = Masks(sv.graphs.grid(2, 3))
    stds = [1.0, 5.0, 2.0, 4.0, 3.0, 1.0]
    priced = plan(Consensus(), every(1.0, stds, steps=1), n=6, steps=1, schedule=masked)
    assert account(priced, "network", user=0).mu == pytest.approx(1 / math.sqrt(1 + 4 + 16 + 9 + 1))
    assert account(priced, "network").mu == pytest.approx(1 / math.sqrt(1 + 4 + 16 + 9 + 1))
    assert account(priced, "colluders", colluders=2, user=1).mu == pytest.approx(
        1 / math.sqrt(1 + 25 + 4 + 1)
    )


# ---- gossip without consensus ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [sv.protocols.Gossip, sv.protocols.Chebyshev])
@pytest.mark.parametrize("stds", [1.0, [1.0, 2.0, 0.5, 3.0, 1.0, 1.0, 4.0, 2.0]], ids=["equal", "unequal"])
def test_the_worst_neighbor_hears_the_first_row_in_clear(kind, stds):
    """The short way against every observer's own view."""
    protocol = kind(RING, 3)
    priced = plan(Averaging(), every(1.0, stds, steps=1), steps=1, schedule=protocol)
    each = [account(priced, "network", observer=v).mu for v in range(8)]
    assert account(priced, "network").mu == pytest.approx(max(each)) == account(priced, "local").mu
    assert account(priced, "network").label == "exact"
    about = [account(priced, "pairwise", observer=v, user=2).mu for v in range(8) if v != 2]
    assert account(priced, "network", user=2).mu == pytest.approx(max(about))


def test_one_view_tells_of_all_others_also_where_gossip_learns_in_one_step():
    priced = plan(LinearGossip(), every(1.0, 1.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 3))
    each = sv.privacy.account_each(priced, [0])
    for u in (1, 4):
        assert each[u] == account(priced, "network", observer=0, user=u)
    assert each[4].label == "exact"


def test_what_is_not_heard_in_clear_is_worked_out():
    """No round at all, and weights that let nobody hear node 0."""
    silent = plan(Averaging(), every(1.0, 1.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 0))
    assert account(silent, "network").mu == 0


def test_learning_over_gossip_is_local_and_the_linear_number_has_to_be_asked_for_by_name():
    priced = plan(LinearGossip(), every(2.0, 4.0, steps=5), steps=5, schedule=sv.protocols.Gossip(RING, 1))
    for view, who in SEES.items():
        found = account(priced, view, **who)
        assert found.label == "ldp"
        assert found.epsilon(D) == pytest.approx(4.983306405970711, rel=1e-9)
    for who, value in (
        ({"view": "network", "observer": 2}, 4.904792283245693),
        ({"view": "pairwise", **PAIR}, 0.5194097281072311),
        ({"view": "colluders", **TWO}, 4.983306405970711),
    ):
        found = account(priced, **who, label="conditional")
        assert found.label == "conditional"
        assert found.epsilon(D) == pytest.approx(value, rel=1e-9)
        with pytest.raises(NotAGuarantee):
            found.require(100.0, D)
    memory = plan(LinearGossip(), every(2.0, 4.0, steps=5), steps=5, schedule=sv.protocols.Chebyshev(RING, 2))
    with pytest.raises(InvalidInput, match="without memory"):
        account(memory, "pairwise", **PAIR, label="conditional")
    assert account(memory, "pairwise", **PAIR).label == "ldp"


def test_one_step_of_learning_is_averaging():
    priced = plan(LinearGossip(), every(2.0, 4.0, steps=1), steps=1, schedule=sv.protocols.Gossip(RING, 2))
    assert account(priced, "network", observer=2).epsilon(D) == pytest.approx(1.99309140441512)
    found = account(priced, "pairwise", **PAIR)
    assert (found.label, found.mu) == ("exact", 0.0)


@pytest.mark.parametrize("draws", [{"steps": 6}, {"steps": 3, "count": 2}], ids=["DSGD, DSGT", "DiNNO"])
def test_the_methods_of_networks_are_priced_by_their_releases(draws):
    rates = [0.05] * 7 + [0.1]
    releases = every(1.0, 1.5, adjacency="add-remove", sample_rate=rates, **draws)
    priced = plan(LocalOnly(), releases, steps=6, adjacency="add-remove")
    for view in ("local", "central", "network"):
        assert account(priced, view).epsilon(D) == pytest.approx(1.0872906906186293, rel=1e-9)
    assert account(priced, "pairwise", **PAIR).epsilon(D) == pytest.approx(0.5543734085420173, rel=1e-9)


def test_renyi_accounting_is_kept_where_a_plan_asks_for_it():
    releases = every(1.0, 1.5, adjacency="add-remove", sample_rate=0.05)
    by_pld = account(plan(LocalOnly(), releases, adjacency="add-remove"), "local").epsilon(D)
    by_rdp = account(plan(LocalOnly(), releases, adjacency="add-remove", accounting="rdp"), "local").epsilon(
        D
    )
    assert by_rdp > 1.01 * by_pld
    assert by_rdp == pytest.approx(Curve.sampled_gaussian(0.05, 1.5, 12, method="rdp").epsilon(D), rel=1e-12)


# ---- walks, correlated noise -------------------------------------------------------------------------------


def test_walks_cost_what_they_did_and_never_more_than_local():
    path = sv.graphs.path(8)
    model = TokenWalk(path, steps=20, final_public=False)
    priced = plan(model, every(2.0, 20.0, steps=20), steps=20, schedule=None)
    found = account(priced, "pairwise", **PAIR)
    assert found.label == "exact"
    assert found.epsilon(D) == pytest.approx(1.0159218234646155, rel=1e-9)
    assert "the final model stays hidden" in found.assumptions
    assert account(priced, "local").epsilon(D) == pytest.approx(1.7600571495138815, rel=1e-9)
    worst = account(priced, "network")
    each = [
        account(priced, "pairwise", observer=v, user=u).epsilon(D)
        for v in range(8) for u in range(8) if u != v
    ]  # fmt: skip
    assert worst.epsilon(D) == pytest.approx(max(each), rel=1e-9)
    assert max(each) <= 1.7600571495138815 * (1 + 1e-12)  # pairs next to each other were above it
    assert account(priced, "colluders", **TWO).label == "ldp"


def test_capped_walks_with_two_tokens():
    model = TokenWalk(sv.graphs.complete(8), steps=20, tokens=2, cap=4, contractive=True, final_public=False)
    priced = plan(model, every(2.0, 20.0, steps=4), steps=20, schedule=None)
    found = account(priced, "pairwise", **PAIR)
    assert account(priced, "local").epsilon(D) == pytest.approx(0.725521750857796, rel=1e-9)
    assert found.epsilon(D) == pytest.approx(0.725521750857796, rel=1e-9)  # was 0.7618: above local
    assert found.rdp(3.0) == pytest.approx(0.029986342984137382, rel=1e-9)
    assert account(priced).rdp(3.0) == pytest.approx(found.rdp(3.0))  # all pairs of a complete graph
    public = TokenWalk(sv.graphs.complete(8), steps=20, tokens=2, cap=4, contractive=True)
    shown = account(plan(public, every(2.0, 20.0, steps=4), steps=20), "pairwise", **PAIR)
    assert "the final model stays hidden" not in shown.assumptions
    assert shown.rdp(3.0) > found.rdp(3.0)
    assert Guarantee.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_shared_noise_is_no_secret_from_a_neighbor():
    model = PairCorrelated(sv.graphs.star(8), own_std=2.0, pair_std=6.0)
    priced = plan(model, every(2.0, 2.0, steps=10), steps=10)
    assert account(priced, "outsider").epsilon(D) == pytest.approx(6.785189343716804, rel=1e-9)
    assert account(priced, "outsider").label == "exact"
    assert account(priced, "network", observer=2).epsilon(D) == pytest.approx(7.080667452642921, rel=1e-9)
    assert account(priced, "pairwise", **PAIR).epsilon(D) == pytest.approx(17.85658683010762, rel=1e-9)
    assert account(priced, "colluders", **TWO).epsilon(D) == pytest.approx(17.85658683010762, rel=1e-9)
    # the default is the worst member, and local is own noise alone
    assert account(priced).epsilon(D) == pytest.approx(17.85658683010762, rel=1e-9)
    assert account(priced, "local").mu == pytest.approx(math.sqrt(10))
    assert account(priced, "local").label == "ldp"
    wrong = PairCorrelated(sv.graphs.star(8), own_std=3.0, pair_std=6.0)
    with pytest.raises(InvalidInput, match="must be the same"):
        account(plan(wrong, every(2.0, 2.0, steps=10), steps=10), "outsider")


def test_noise_correlated_over_time_is_one_mechanism():
    priced = plan(TimeCorrelated(), every(2.0, 2.0, steps=9, joint=True), steps=9)
    for view, who in SEES.items():
        found = account(priced, view, **who)
        assert (found.label, found.mu) == ("ldp", 1.0)


# ---- one holder, a server, a token ------------------------------------------------------------------------


def curated(*releases, published=None, adjacency="add-remove"):
    return plan(Curator(published), lambda u: list(releases), n=1, steps=100, adjacency=adjacency)


def test_curators_cost_what_they_did():
    step = {"sender": 0, "step": 0, "adjacency": "add-remove"}
    sgd = Release(**step, sensitivity=1.0, noise_std=2.0, sample_rate=0.2, steps=50)
    assert account(curated(sgd)).epsilon(D) == pytest.approx(3.4880435872339053, rel=1e-9)
    step["adjacency"] = "replace-one"
    cd = Release(**step, sensitivity=2.0, noise_std=40.0, steps=100)
    smoothness = Release(**step, sensitivity=1.0, noise_std=10.0)
    assert account(curated(cd, smoothness, adjacency="replace-one")).epsilon(D) == pytest.approx(
        2.037234382799366, rel=1e-9
    )
    choice = Release(**step, sensitivity=1.0, noise_std=20.0, mechanism="noisy-max", steps=10)
    value = Release(**step, sensitivity=1.0, noise_std=20.0, mechanism="laplace", steps=10)
    assert account(curated(choice, value, adjacency="replace-one")).epsilon(D) == pytest.approx(
        1.2274411297786099, rel=1e-9
    )
    admm = Release(**step, sensitivity=2 / 100, noise_std=0.1, steps=25)
    found = account(curated(admm, adjacency="replace-one"))
    assert found.epsilon(D) == pytest.approx(4.377178095681225, rel=1e-9)
    assert (found.label, found.adversary) == ("exact", Adversary("central"))
    assert "the curator who holds the records is trusted" in found.assumptions
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


def test_federations_cost_what_they_did():
    releases = every(4.0, 4.0, steps=20, user_rate=0.2)
    secure = plan(Federation(50, secure_sum=True), releases, n=50, steps=20)
    assert account(secure, "local").epsilon(D) == pytest.approx(28.373473803257394, rel=1e-9)
    some = account(secure, "local", participations=5)
    assert some.epsilon(D) == pytest.approx(11.48002280917257, rel=1e-9)
    assert "the client takes part in 5 rounds" in some.assumptions
    assert account(secure, "central").epsilon(D) == pytest.approx(0.4399917999690076, rel=1e-6)
    assert account(secure, "colluders", colluders=2).epsilon(D) == pytest.approx(0.4498852180322394, rel=1e-6)
    assert account(secure, "colluders", colluders=[1, 2]).curve == (
        account(secure, "colluders", colluders=2).curve
    )
    one = account(secure)
    assert str(one.adversary) == "any one node"
    assert any(said.startswith("49 clients") for said in one.assumptions)
    assert any("Poisson" in said for said in one.assumptions)
    # without a secure sum who took part is seen, and nothing is amplified
    seen = plan(Federation(50, secure_sum=False), releases, n=50, steps=20)
    for view in ("local", "network", "central", "outsider"):
        assert account(seen, view).epsilon(D) == pytest.approx(28.373473803257394, rel=1e-9)


def test_a_published_formula_is_kept_apart():
    printed = (Curve.gaussian(0.6), "as printed by somebody")
    priced = plan(LocalOnly(printed), every(4.0, 8.0, steps=20), steps=500)
    assert account(priced, "local").epsilon(D) == pytest.approx(11.48002280917257, rel=1e-9)
    assert account(priced).label == "ldp"
    found = account(priced, label="published")
    assert (found.label, found.mu) == ("published", 0.6)
    assert "as printed by somebody" in found.assumptions
    for view in ("central", "outsider", "local"):
        with pytest.raises(InvalidInput, match="no published number"):
            account(priced, view, label="published")


def test_an_unknown_law_yields_the_local_number_restated():
    class Hearsay(ObservationModel):
        pass

    priced = plan(Hearsay(), every(2.0, 4.0))
    for view, who in {**SEES, "outsider": NOBODY}.items():
        found = account(priced, view, **who)
        assert found.label == "ldp"
        assert found.mu == pytest.approx(0.5 * math.sqrt(12))
    for label in ("exact", "conditional", "published"):
        with pytest.raises(InvalidInput, match=f"no {label} number"):
            account(priced, label=label)


# ---- whom was asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "who", "sentence"),
    [
        ("local", {"observer": 1}, "no observer"),
        ("outsider", {"observer": 1}, "no observer"),
        ("central", {"observer": 1}, "no observer"),
        ("local", {"colluders": [1]}, "takes no colluders"),
        ("network", {"colluders": 2}, "takes no colluders"),
        ("pairwise", {"observer": 1}, "needs observer=... and user"),
        ("pairwise", {"user": 1}, "needs observer=... and user"),
        ("colluders", {}, "needs colluders"),
        ("colluders", {"colluders": 2, "observer": 1}, "not both"),
        ("colluders", {"colluders": 8}, "no agent is left"),
        ("colluders", {"colluders": range(8)}, "no agent is left"),
        ("network", {"observer": 3, "user": 3}, "knows its own records"),
        ("network", {"observer": 8}, "names node 8"),
        ("local", {"user": 8}, "names node 8"),
        ("network", {"participations": 3}, "participations"),
        ("nosy", {}, "view must be one of"),
        ("network", {"label": "rumour"}, "label must be one of"),
    ],
)
def test_nothing_said_about_whom_is_ignored(view, who, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        account(CONSENSUS["user"][0], view, **who)


def test_a_lone_agent_has_no_other_member():
    alone = plan(LocalOnly(), every(1.0, 2.0), n=1)
    assert account(alone).adversary == Adversary("local")
    with pytest.raises(InvalidInput, match="no agent is left"):
        account(alone, "network")


def test_defaults_and_names():
    priced = CONSENSUS["user"][0]
    assert account(priced).adversary == Adversary("network")
    assert account(priced, observer=0, user=3).adversary == Adversary("pairwise", 0, 3)
    assert account(priced, "network", observer=0, user=3) == account(priced, "pairwise", **PAIR)
    assert account(priced, colluders=[1, 2]).adversary == Adversary("colluders", [1, 2])
    assert account(priced, "network", user=3).adversary == Adversary("network", user=3)
    assert "whole data set of node 3" in account(priced, "network", user=3).statement(D)
    said = account(plan(Consensus(), every(2.0, 4.0), assumptions=("clocks agree",)), "local")
    assert said.assumptions == ("clocks agree",)


def test_a_release_under_another_adjacency_is_refused():
    with pytest.raises(InvalidInput, match="account for them separately"):
        account(plan(LocalOnly(), every(1.0, 1.0, adjacency="replace-one")), "local")


def test_too_many_coalitions_are_bounded_by_local():
    big = plan(
        Averaging(), every(1.0, 1.0, steps=1), n=32, steps=1, schedule=sv.protocols.HypercubeExchange(32)
    )
    found = account(big, "colluders", colluders=6)
    assert (found.label, found.mu) == ("ldp", 1.0)
    with pytest.raises(InvalidInput, match="no exact number"):
        account(big, "colluders", colluders=6, label="exact")


def test_somebody_with_two_noises_or_none_is_priced_by_what_holds_anyway():
    """One view covers one noise each: with two the own noise alone counts, without any nothing is hidden."""
    both = lambda u: [  # noqa: E731
        Release(u, 0, sensitivity=1.0, noise_std=2.0),
        Release(u, 0, sensitivity=1.0, noise_std=3.0, stream=1),
    ]
    gossip = sv.protocols.Gossip(RING, 2)
    twice = account(plan(Averaging(), both, steps=1, schedule=gossip), "pairwise", observer=0, user=4)
    assert twice.label == "ldp"
    assert twice.mu == pytest.approx(math.sqrt(1 / 4 + 1 / 9))

    silent = [1.0, 2.0, 0.0, 1.5, 1.0, 1.0, 1.0, 1.0]
    priced = plan(Averaging(), every(1.0, silent, steps=1), steps=1, schedule=gossip)
    seen = gossip.view(0).leakage() > 0
    assert seen[2]
    assert not seen[4]
    assert account(priced, "pairwise", observer=0, user=2).epsilon(D) == math.inf
    assert account(priced, "pairwise", observer=0, user=1).mu == pytest.approx(1 / 2)  # all of its own noise
    assert account(priced, "pairwise", observer=0, user=4).epsilon(D) == 0.0


@pytest.mark.parametrize("silent", [0, 2, 4])
def test_the_worst_member_on_a_tree_with_a_silent_one_is_the_worst_by_name(silent):
    stds = [1.0 + v for v in range(5)]
    stds[silent] = 0.0
    tree = sv.protocols.Tree(sv.graphs.path(5), root=0)
    priced = plan(Averaging(), every(1.0, stds, steps=1), n=5, steps=1, schedule=tree)
    for user in range(5):
        named = [account(priced, "pairwise", observer=v, user=user) for v in range(5) if v != user]
        worst = max(found.epsilon(D) for found in named)
        assert account(priced, "network", user=user).epsilon(D) == pytest.approx(worst, rel=1e-9)
        pairs = combinations([v for v in range(5) if v != user], 2)
        worst = max(account(priced, "colluders", colluders=who, user=user).epsilon(D) for who in pairs)
        found = account(priced, "colluders", colluders=2, user=user)
        assert found.epsilon(D) == pytest.approx(worst, rel=1e-9)
