"""SGD over exact consensus: averaging of iterates, weights of sites, optimal noise, privacy costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.algorithms.toys import COMMON, FOUR, RING, SIZES, N, blobs, net, shards, unequal_shards
from torch import nn

import sottovoce as sv
from sottovoce.algorithms import DPSGD, ConsensusFedAvg, ConsensusSGD
from sottovoce.algorithms.consensus_sgd import estimand
from sottovoce.algorithms.tree_noise import fresh_tree_noise
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import gaussian_epsilon
from sottovoce.protocols import Tree


def plan(**options):
    settings = {
        "protocol": "exchange", "network": sv.graphs.complete(4), "steps": 5, "clip_norm": 1.0,
        "noise_multiplier": 2.0, "sizes": [10, 20, 30, 60], **options,
    }  # fmt: skip
    return ConsensusSGD(GLM(dim=2), **settings)


class Constant:
    """A mechanism that always answers the same."""

    def __init__(self, decay=0.0):
        self.decay = decay

    def __call__(self, theta, k, stream=0):
        return np.ones_like(theta)


def descended(steps, average_from, decay=0.0, received=2.0):
    options = {"clip_norm": 1.0, "adjacency": "user", "learning_rate": 0.5, "average_from": average_from}
    plan = ConsensusSGD(GLM(dim=1), "tree", network="path:2", steps=5, **options)
    algorithm = plan.algorithm(Constant(decay), np.zeros((2, 1)))
    state = algorithm.init()
    for k in range(steps):
        assert algorithm.message(state, k).tolist() == [[1.0], [1.0]]
        state = algorithm.update(state, np.full((2, 1), received), k)
    return algorithm.output(state)[0, 0]


def test_iterates_are_averaged_from_a_rounded_share_of_the_steps():
    """Iterates after steps 0, ..., 4 are -1, -2, -3, -4, -5."""
    assert descended(5, average_from=1.0) == -5.0
    assert descended(5, average_from=0.48) == -4.0
    assert descended(5, average_from=0.0) == -3.0
    assert descended(0, average_from=0.0) == 0.0


@pytest.mark.parametrize(
    ("options", "divisors"),
    [
        ({}, [30.0] * 4),
        ({"sample_rate": 0.5}, [15.0] * 4),
        ({"batch_size": 5}, [5.0] * 4),
        ({"weighting": "sites"}, [10.0, 20.0, 30.0, 60.0]),
        ({"weighting": "sites", "sample_rate": 0.5}, [5.0, 10.0, 15.0, 30.0]),
        ({"weighting": "sites", "batch_size": 5}, [5.0] * 4),
    ],
)
def test_divisors_follow_the_weighting(options, divisors):
    built = plan(**options)
    assert built._divisors(built.sizes) == divisors
    for agent, divisor in enumerate(divisors):
        (release,) = built.releases(agent)
        assert (release.sensitivity, release.noise_std) == (1 / divisor, 2 / divisor)


def test_default_guarantees_of_consensus():
    kinds = [g.adversary.kind for g in plan().guarantees()]
    assert kinds == ["local", "central", "network"]
    long = plan(steps=513)  # 16 pairs, 513 steps: too long to ask for every member unasked
    assert [g.adversary.kind for g in long.guarantees()] == ["local", "central"]
    assert len(plan(steps=512).guarantees()) == 3
    alone = ConsensusSGD(GLM(), "exchange", network=sv.graphs.complete(1), steps=2, clip_norm=1.0, sizes=[5])
    assert [g.adversary.kind for g in alone.guarantees()] == ["local"]


def test_mask_grid_covers_the_largest_site():
    """Sums of up to 60 clipped records over a common divisor of 30: twice the clip in one number."""
    built = plan(protocol="masked", network=sv.graphs.complete(4), clip_norm=0.5, noise_multiplier=8.0)
    assert 1.0 <= built.grid.bound * built.grid.spacing <= 1.0 + 2 * built.grid.spacing
    assert built.grid.steps == 5
    average = sv.PrivateAveraging("masked", noise_std=1.0, radius=0.5, network="complete:4")
    assert average.grid.steps == 1


def test_estimand_of_unequal_sites_in_words():
    def words(**options):
        plan = ConsensusSGD(GLM(dim=2), "tree", network="ring:3", steps=1, clip_norm=1.0, **options)
        return estimand(plan).partition(":")[0]

    assert words(sizes=[5, 5, 5]) == "the mean over all records, which is that of the sites' means"
    assert words(sizes=[5, 5, 20]) == "the mean over all records"
    assert words(sizes=[5, 5, 20], weighting="sites") == "the mean of the sites' means"
    assert words(batch_size=4, sample_rate=0.5) == "the mean over all records"
    assert words(adjacency="user") == "the mean of the members' clipped contributions"


def test_every_step_must_end_in_exact_consensus():
    gossip, exchange = sv.protocols.Gossip(RING, 2), sv.protocols.HypercubeExchange(N)
    plan = ConsensusSGD(GLM(), lambda k: exchange if k == 0 else gossip, **COMMON)
    for use in (
        lambda: plan.privacy("network"),
        lambda: plan.privacy("central"),
        lambda: plan.run(shards(), np.random.default_rng(0)),
        plan.cost,
    ):
        with pytest.raises(InvalidInput, match="tree, an exchange or a masked sum"):
            use()
    with pytest.raises(InvalidInput, match="tree, an exchange or a masked sum"):
        ConsensusSGD(GLM(), [exchange] * 5 + [gossip], **COMMON).privacy("network")


def sgd_by_hand(objective, x, y, theta, rates):
    """Plain full-batch gradient descent with torch's own optimizer."""
    module = objective.module(theta).train()
    for rate in rates:
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()


@pytest.mark.parametrize("protocol", ["tree:kind=uniform", "tree", "exchange"])
def test_consensus_of_a_network_without_noise_is_sgd_on_all_records(protocol):
    objective, data = net(math.inf), blobs()
    start = objective.start()[0]
    expected = sgd_by_hand(objective, data.inputs, data.targets, start, [0.5] * 4)
    plan = ConsensusSGD(objective, protocol, network=FOUR, steps=4, sizes=data.sizes, learning_rate=0.5)
    rows = plan.run(data, np.random.default_rng(0), start=start).outputs["rows"]
    assert (rows == rows[0]).all()
    np.testing.assert_allclose(rows[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("adjacency", ["user", "add-remove"])
def test_l2_term_gives_ridge_regression(adjacency):
    """Inside the clip at user level, after the mean at record level: the same point without a clip."""
    data, model = shards(records=8), GLM("logistic", l2=0.1)
    options = {"clip_norm": math.inf, "adjacency": adjacency, "sizes": [8] * N}
    rows = ConsensusSGD(model, RING, 400, 0.8, **options).run(data, np.random.default_rng(0)).outputs["rows"]
    assert np.allclose(rows[0], model.minimize(data.X, data.y), atol=1e-6)


def drawn(graph, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [Tree(sv.graphs.parse(graph), kind="uniform", rng=rng) for _ in range(steps)]


def losses(trees, variances, c=1):
    """By hand: over the steps, one over what hides u from the coalition."""
    n, actual = trees[0].n, {}
    for coalition in itertools.combinations(range(n), c):
        for tree in trees:
            for block in tree.blocks(coalition):
                for u in block.tolist():
                    key = (coalition, u)
                    actual[key] = actual.get(key, 0.0) + 1 / math.fsum(variances[block]) / len(trees)
    return np.array(list(actual.values()))


@pytest.mark.parametrize(
    ("graph", "c", "floor"), [("grid:2:3", 1, 0.0), ("complete:5", 2, 0.2), ("star:5", 1, 0.1)]
)
def test_fresh_trees_reach_the_optimum_of_a_general_solver(graph, c, floor):
    trees = drawn(graph, 4)
    n = trees[0].n
    actual = fresh_tree_noise(trees, c, floor=floor, gap=1e-4)
    assert losses(trees, actual, c).max() <= 1 + 1e-9
    assert actual.min() >= floor
    rival = minimize(
        lambda v: v.sum(), np.ones(n), jac=lambda v: np.ones(n), method="SLSQP",
        bounds=[(max(floor, 1e-6), None)] * n, options={"maxiter": 500, "ftol": 1e-10},
        constraints={"type": "ineq", "fun": lambda v: 1 - losses(trees, v, c)},
    )  # fmt: skip
    assert actual.sum() == pytest.approx(rival.fun, rel=2e-3)
    assert actual.sum() < n  # less than local privacy, which any member could have had


@pytest.mark.parametrize("protocol", ["tree:kind=few-leaves", "tree:kind=uniform", "tree"])
@pytest.mark.parametrize("c", [1, 2])
def test_privacy_cost_with_optimal_noise_is_that_of_the_blocks(protocol, c):
    """mu against every coalition, from the components and the noises alone, and it is the budget's."""
    plan = ConsensusSGD(
        GLM(dim=2), protocol, network="grid:2:4", steps=6, clip_norm=1.0, adjacency="user",
        noise_allocation="optimal", floor=0.2, tolerate=c,
    ).calibrated_to(2.0, 1e-5, view="colluders", colluders=c)  # fmt: skip
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
    ).calibrated_to(2.0, 1e-5, view="colluders", colluders=c)  # fmt: skip
    assert math.fsum(stds**2) < 8 * equal.releases(0)[0].noise_std ** 2 * 1.0001


def test_optimal_noise_with_unequal_divisors():
    sizes = [400, 20, 20, 20, 20, 400]
    plan = ConsensusSGD(
        GLM(dim=2), "tree", network="path:6", steps=3, clip_norm=1.0, sizes=sizes,
        weighting="sites", noise_allocation="optimal", floor=0.05, noise_multiplier=5.0,
    )  # fmt: skip
    tree, releases = plan.schedule(0), [plan.releases(u)[0] for u in range(6)]
    stds, moves = np.array([r.noise_std for r in releases]), np.array([r.sensitivity for r in releases])
    worst = max(
        moves[u] ** 2 / math.fsum(stds[block] ** 2)
        for v in range(6) for block in tree.blocks([v]) for u in block
    )  # fmt: skip
    assert plan.privacy("network").mu == pytest.approx(math.sqrt(3 * worst), rel=1e-9)
    equal = ConsensusSGD(
        GLM(dim=2), "tree", network="path:6", steps=3, clip_norm=1.0, sizes=sizes,
        weighting="sites", noise_multiplier=5.0,
    ).calibrated_to(plan.epsilon(1e-5, "network"), 1e-5, view="network")  # fmt: skip
    before = math.fsum(equal.releases(u)[0].noise_std ** 2 for u in range(6))
    assert math.fsum(stds**2) < 0.9 * before


MEAN = {"noise_std": 1.0, "radius": 0.5, "network": "ring:4", "noise_allocation": "optimal"}
BAD = [
    (lambda: sv.PrivateAveraging("exchange", **MEAN), InvalidInput, "is for trees"),
    (lambda: sv.PrivateAveraging("masked", **MEAN), InvalidInput, "is for trees"),
    (
        lambda: sv.PrivateAveraging("tree", **(MEAN | {"noise_allocation": "best"})),
        InvalidInput, "one of equal, optimal",
    ),
    (lambda: sv.PrivateAveraging("tree", floor=0.0, **MEAN), InvalidInput, "floor"),
    (
        lambda: sv.PrivateAveraging("tree", tolerate=4, **MEAN),
        InvalidInput,
        "below the 4 members",
    ),
    (
        lambda: sv.PrivateAveraging("tree", **MEAN).calibrated_to(1.0, 1e-5, view="local"),
        BudgetInfeasible, "view",
    ),
    (
        lambda: ConsensusSGD(GLM(dim=1), "tree", network="ring:4", clip_norm=1.0, adjacency="user",
                             noise_allocation="optimal", noise_multiplier=(1.0, 2.0, 3.0, 4.0)),
        InvalidInput, "one number",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "words"), BAD)
def test_optimal_noise_without_a_tree_is_refused(make, kind, words):
    with pytest.raises(kind, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def descend(X, y, weights, steps=15, rate=0.5):
    """Plain descent of the weighted logistic loss, by hand."""
    w = np.zeros(X.shape[1])
    for _ in range(steps):
        residual = 1 / (1 + np.exp(-X @ w)) - y
        gradients = X * residual[:, None]
        norms = np.linalg.norm(gradients, axis=1)
        w -= rate * weights @ (gradients * np.minimum(1, 0.7 / norms)[:, None])
    return w


@pytest.mark.parametrize("weighting", ["records", "sites"])
def test_masked_consensus_learns_the_mean_of_its_weighting(weighting):
    """ "records" weighs every record alike and is DP-SGD on the pooled records, "sites" weighs every site."""
    data = unequal_shards()
    common = {"steps": 15, "clip_norm": 0.7, "noise_multiplier": 0.0, "learning_rate": 0.5}
    plan = ConsensusSGD(
        GLM("logistic", dim=3), "masked", network="ring:5", sizes=SIZES, weighting=weighting, **common
    )
    actual = plan.run(data, np.random.default_rng(0), start=np.zeros(3)).outputs["coef"]
    n = sum(SIZES)
    each = {"records": [1 / n] * 5, "sites": [1 / (5 * size) for size in SIZES]}[weighting]
    by_hand = descend(data.X, data.y, np.repeat(each, SIZES))
    np.testing.assert_allclose(actual, by_hand, atol=1e-7)
    central = DPSGD(GLM("logistic", dim=3), records=n, **common)
    pooled = central.run((data.X, data.y), np.random.default_rng(0), start=np.zeros(3)).outputs["coef"]
    assert np.allclose(actual, pooled, atol=1e-7) == (weighting == "records")


def test_sampled_consensus_costs_what_a_curator_with_less_noise_costs():
    """Poisson batches at every site: against any two of five, DP-SGD with sqrt(3) times one site's noise."""
    common = {"steps": 40, "clip_norm": 1.0, "batch_size": 10}
    sites = ConsensusSGD(
        GLM(dim=3), "masked:tolerate=2", network="ring:5", sizes=[100] * 5, noise_multiplier=1.0, **common
    )
    curator = DPSGD(GLM(dim=3), records=100, noise_multiplier=np.sqrt(3), **common)
    assert sites.epsilon(1e-5) == pytest.approx(curator.epsilon(1e-5), rel=1e-6)


def test_consensus_fedavg_over_masked_sums():
    options = {"network": "ring:6", "steps": 9, "clip_norm": 1.0, "noise_multiplier": 4.0, "local_steps": 3}
    plan, tree = (ConsensusFedAvg(GLM(dim=3), p, **options) for p in ("masked:tolerate=2", "tree"))
    mu = np.sqrt(9) * 2 / (4 * np.sqrt(4))
    assert plan.epsilon(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)
    data = unequal_shards([6] * 6)
    rows = [p.run(data, np.random.default_rng(2), start=np.zeros(3)).outputs["rows"] for p in (plan, tree)]
    np.testing.assert_allclose(rows[0], rows[1], atol=9 * 2 * plan.grid.spacing)
