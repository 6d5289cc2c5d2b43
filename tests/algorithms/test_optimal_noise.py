"""Uneven noise on trees: the least total, certified; plans, files and agreements that carry it."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize

import sottovoce as sv
from sottovoce.accounting.tree_noise import fresh_tree_noise, least_tree_noise
from sottovoce.algorithms import ConsensusSGD
from sottovoce.algorithms.averaging import noise_in_result, noise_stds
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import example_agreement, member_entry, write_agreement
from sottovoce.protocols import Tree


def drawn(graph, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [Tree(sv.graphs.parse(graph), kind="uniform", rng=rng) for _ in range(steps)]


def losses(trees, variances, c=1):
    """By hand: over the steps, one over what hides u from the coalition."""
    n, found = trees[0].n, {}
    for coalition in itertools.combinations(range(n), c):
        for tree in trees:
            for block in tree.blocks(coalition):
                for u in block.tolist():
                    key = (coalition, u)
                    found[key] = found.get(key, 0.0) + 1 / math.fsum(variances[block]) / len(trees)
    return np.array(list(found.values()))


@pytest.mark.parametrize(
    ("graph", "c", "floor"), [("grid:2:3", 1, 0.0), ("complete:5", 2, 0.2), ("star:5", 1, 0.1)]
)
def test_fresh_trees_reach_the_optimum_of_a_general_solver(graph, c, floor):
    trees = drawn(graph, 4)
    n = trees[0].n
    found = fresh_tree_noise(trees, c, floor=floor, gap=1e-4)
    assert losses(trees, found, c).max() <= 1 + 1e-9
    assert found.min() >= floor
    rival = minimize(
        lambda v: v.sum(), np.ones(n), jac=lambda v: np.ones(n), method="SLSQP",
        bounds=[(max(floor, 1e-6), None)] * n, options={"maxiter": 500, "ftol": 1e-10},
        constraints={"type": "ineq", "fun": lambda v: 1 - losses(trees, v, c)},
    )  # fmt: skip
    assert found.sum() == pytest.approx(rival.fun, rel=2e-3)
    assert found.sum() < n  # less than local privacy, which any member could have had


def test_one_tree_again_and_again_is_the_closed_form():
    (tree,) = drawn("grid:3:3", 1)
    assert fresh_tree_noise([tree] * 5, floor=0.1).sum() == pytest.approx(
        least_tree_noise(tree, 1, floor=0.1).sum(), rel=1.1e-3
    )


@pytest.mark.parametrize("protocol", ["tree:kind=few-leaves", "tree:kind=uniform", "tree"])
@pytest.mark.parametrize("c", [1, 2])
def test_the_price_of_a_plan_is_that_of_its_blocks(protocol, c):
    """mu against every coalition, from the components and the noises alone, and it is the budget's."""
    plan = ConsensusSGD(
        GLM(dim=2), protocol, network="grid:2:4", steps=6, clip_norm=1.0, adjacency="user", noise="optimal",
        floor=0.2, tolerate=c,
    ).calibrated_to(2.0, 1e-5, "colluders", colluders=c)  # fmt: skip
    trees = [plan.schedule(k) for k in range(6)]
    stds = np.array([plan.releases(u)[0].noise_std for u in range(8)])
    mu = (
        math.sqrt(6 * losses(trees, stds**2, c).max()) * 2.0
    )  # a member's mean gradient moves by twice the clip
    stated = plan.privacy("colluders", colluders=c)
    assert stated.label == "exact"
    assert stated.mu == pytest.approx(mu, rel=1e-9)
    assert stated.epsilon(1e-5) <= 2.0
    assert stds.min() ** 2 >= 0.2 * stds.max() ** 2 * (1 - 1e-9)
    equal = ConsensusSGD(
        GLM(dim=2), protocol, network="grid:2:4", steps=6, clip_norm=1.0, adjacency="user", seed=0
    ).calibrated_to(2.0, 1e-5, "colluders", colluders=c)  # fmt: skip
    assert math.fsum(stds**2) < 8 * equal.releases(0)[0].noise_std ** 2 * 1.0001


def test_sites_that_divide_by_their_own_need_unlike_noise():
    sizes = [400, 20, 20, 20, 20, 400]
    plan = ConsensusSGD(
        GLM(dim=2), "tree", network="path:6", steps=3, clip_norm=1.0, sizes=sizes,
        weighting="sites", noise="optimal", floor=0.05, noise_multiplier=5.0,
    )  # fmt: skip
    tree, listed = plan.schedule(0), [plan.releases(u)[0] for u in range(6)]
    stds, moves = np.array([r.noise_std for r in listed]), np.array([r.sensitivity for r in listed])
    worst = max(
        moves[u] ** 2 / math.fsum(stds[block] ** 2)
        for v in range(6) for block in tree.blocks([v]) for u in block
    )  # fmt: skip
    assert plan.privacy("network").mu == pytest.approx(math.sqrt(3 * worst), rel=1e-9)
    equal = ConsensusSGD(
        GLM(dim=2), "tree", network="path:6", steps=3, clip_norm=1.0, sizes=sizes,
        weighting="sites", noise_multiplier=5.0,
    ).calibrated_to(plan.epsilon(1e-5, "network"), 1e-5, "network")  # fmt: skip
    before = math.fsum(equal.releases(u)[0].noise_std ** 2 for u in range(6))
    assert math.fsum(stds**2) < 0.9 * before


def test_an_average_carries_the_noise_that_is_priced():
    plan = sv.PrivateAveraging(
        "tree:kind=few-leaves", network="grid:2:4", noise_std=2.0, radius=0.5, noise="optimal"
    )
    assert sorted(np.round(noise_stds(plan), 6).tolist())[-2:] == [2.0, 2.0]
    rows = plan.run(np.zeros((8, 20_000)), np.random.default_rng(0)).outputs["rows"]
    told = sv.advice.usefulness(plan).error
    assert rows.std(axis=1).max() == pytest.approx(told, rel=0.03)
    assert told == pytest.approx(2.0 * math.sqrt(2 + 6 * 0.1) / 8, rel=1e-12)
    assert noise_in_result(plan) == pytest.approx(told, rel=1e-12)


def test_an_agreement_carries_it_too(tmp_path):
    _, identities = example_agreement(tmp_path)
    from sottovoce.peers.identity import make_identity

    identities += [make_identity(tmp_path / name, name) for name in ("cy", "dee")]
    draft = {
        "version": 1, "title": "uneven", "graph": "path:4",  # one tree only, whatever the run is called
        "algorithm": {
            "name": "consensus-sgd", "protocol": "tree:kind=uniform", "adjacency": "user", "clip_norm": 1.0,
            "noise_multiplier": 6.0, "steps": 4, "learning_rate": 0.5, "noise": "optimal", "floor": 0.25,
        },
        "model": {"kind": "logistic", "parameters": 2}, "budget": {"epsilon": 50.0, "delta": 1e-5},
    }  # fmt: skip
    entries = [member_entry(one.certificate, f"{one.name}.example:4433") for one in identities]
    job = AgreedRun(write_agreement(tmp_path / "four.toml", draft, entries))
    table = job.table()
    assert len({row["epsilon_local"] for row in table}) > 1
    trees = [job.plan.schedule(k) for k in range(4)]
    stds = np.array([job.plan.releases(u)[0].noise_std for u in range(4)])
    worst = math.sqrt(4 * losses(trees, stds**2).max()) * 2.0
    assert max(row["epsilon_network"] for row in table) == pytest.approx(
        sv.privacy.gaussian_epsilon(worst, 1e-5), rel=1e-9
    )


def test_a_plan_file_carries_it_too(call_plan):
    priced = call_plan(
        'version = 1\n[network]\ngraph = "grid:2:4"\n[protocol]\nname = "tree:kind=few-leaves"\n[average]\n'
        'radius = 0.5\nadjacency = "user"\nnoise = "optimal"\nfloor = 0.05\n'
        "[budget]\nepsilon = 1.0\ndelta = 1e-5\n"
    )
    assert priced["feasible"]
    assert priced["plan"]["noise"] == "optimal"
    assert priced["noise_in_result"] == pytest.approx(3.7306 * math.sqrt(2 + 6 * 0.05) / 8, rel=1e-3)


@pytest.fixture
def call_plan(tmp_path):
    from sottovoce.advice.assessment import assess
    from sottovoce.planfile.read import plan_from_settings, read_plan_file

    def priced(text):
        file = tmp_path / "plan.toml"
        file.write_text(text)
        return assess(plan_from_settings(read_plan_file(file), tmp_path, file.name))

    return priced


MEAN = {"noise_std": 1.0, "radius": 0.5, "network": "ring:4"}
BAD = [
    (lambda: sv.PrivateAveraging("exchange", noise="optimal", **MEAN), InvalidInput, "is for trees"),
    (lambda: sv.PrivateAveraging("masked", noise="optimal", **MEAN), InvalidInput, "is for trees"),
    (lambda: sv.PrivateAveraging("tree", noise="best", **MEAN), InvalidInput, '"equal" or "optimal"'),
    (lambda: sv.PrivateAveraging("tree", noise="optimal", floor=0.0, **MEAN), InvalidInput, "floor"),
    (
        lambda: sv.PrivateAveraging("tree", noise="optimal", tolerate=4, **MEAN),
        InvalidInput,
        "below the 4 members",
    ),
    (
        lambda: sv.PrivateAveraging("tree", noise="optimal", **MEAN).calibrated_to(1.0, 1e-5, "local"),
        BudgetInfeasible, "view",
    ),
    (
        lambda: ConsensusSGD(GLM(dim=1), "tree", network="ring:4", clip_norm=1.0, adjacency="user",
                             noise="optimal", noise_multiplier=(1.0, 2.0, 3.0, 4.0)),
        InvalidInput, "one number",
    ),
    (lambda: fresh_tree_noise([]), InvalidInput, "tree of every step"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "words"), BAD)
def test_what_has_no_optimal_noise_is_refused(make, kind, words):
    with pytest.raises(kind, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
