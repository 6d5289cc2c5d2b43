"""Private averaging as a plan: its privacy cost, its run, its budget, and records that try to break it."""

import math

import numpy as np
import pytest
from tests.mechanisms.toys import Spy

import sottovoce as sv
from sottovoce.algorithms.averaging import noise_in_result
from sottovoce.errors import BudgetExceeded, BudgetInfeasible, InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, RecordedNoise, SimulatedNoise
from sottovoce.protocols import FreshNoiseGossip, Gossip, HypercubeExchange, Walk


def test_error_against_the_true_mean_is_for_simulations_only():
    plan = sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0)
    assert "mean_squared_error" in plan.run(np.zeros(4), np.random.default_rng(0)).metrics
    assert "mean_squared_error" not in plan.run(np.zeros(4), ProtectiveNoise()).metrics


@pytest.mark.parametrize("epsilon", [0.1, 8.0])
@pytest.mark.parametrize(
    ("view", "who"),
    [("local", {}), ("pairwise", {"observer": 0, "user": 15}), ("network", {}), ("central", {})],
)
def test_for_budget_meets_the_target_and_not_much_more(epsilon, view, who):
    for protocol in (HypercubeExchange(16), FreshNoiseGossip(sv.graphs.path(16), 16, fresh_noise_std=0.1)):
        plan = sv.PrivateAveraging.for_budget(
            protocol, epsilon=epsilon, delta=1e-6, radius=0.5, view=view, **who
        )
        actual = plan.privacy(view, **who).epsilon(1e-6)
        assert actual <= epsilon
        assert actual > epsilon * (1 - 1e-6)
        plan.privacy(view, **who).require(epsilon, 1e-6)
        with pytest.raises(BudgetExceeded):
            plan.privacy(view, **who).require(epsilon * 0.99, 1e-6)


def test_infeasible_budgets_are_refused():
    with pytest.raises((BudgetInfeasible, InvalidInput), match="epsilon"):
        sv.PrivateAveraging.for_budget(HypercubeExchange(4), epsilon=-1.0, delta=1e-5, radius=1.0)
    with pytest.raises(InvalidInput, match="delta"):
        sv.PrivateAveraging.for_budget(HypercubeExchange(4), epsilon=1.0, delta=0.0, radius=1.0)
    with pytest.raises(BudgetInfeasible, match="learns nothing"):
        sv.PrivateAveraging.for_budget(
            Gossip(sv.graphs.path(5), 1), epsilon=1, delta=1e-5, radius=1, view="pairwise", observer=0, user=4
        )


FOUR = sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sv.PrivateAveraging("tree", noise_std=1.0, radius=1.0), "needs a network"),
        (lambda: weighted(FreshNoiseGossip(sv.graphs.ring(4), 3, 0.2)), "once; fresh-noise draws more"),
        (lambda: sv.PrivateAveraging(3, noise_std=1.0, radius=1.0), "protocol, a network or a name"),
        (
            lambda: sv.PrivateAveraging("ring", noise_std=1.0, radius=1.0, network="ring:4"),
            "A protocol is one of",
        ),
        (lambda: FOUR.privacy("secret"), "view must be"),
        (lambda: FOUR.privacy("pairwise"), "observer"),
        (lambda: FOUR.privacy("colluders"), "colluders"),
        (lambda: FOUR.run(np.zeros(3), np.random.default_rng(0)), "one row per node"),
    ],
)
def test_invalid_averaging_options_are_refused(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()


STAR = sv.graphs.star(6, weights="row_stochastic")


@pytest.mark.parametrize(
    "protocol",
    [
        Gossip(STAR, 50),
        FreshNoiseGossip(STAR, 9, 0.1),
        Walk(STAR, 4, path=[0, 1, 0, 2]),
        "gossip:5",
        "walk:9",
    ],
    ids=lambda p: p if isinstance(p, str) else p.name,
)
def test_weights_that_do_not_keep_the_mean_are_refused(protocol):
    """Gossip over them ends at another number, a fifth of the range from the mean if only the hub differs."""
    with pytest.raises(InvalidInput, match="do not keep the mean; take metropolis weights"):
        sv.PrivateAveraging(protocol, network=STAR, noise_std=1.0, radius=0.5)
    learning = {"steps": 2, "sizes": [9] * 6, "batch_size": 3, "clip_norm": 1.0, "noise_multiplier": 1.0}
    plan = sv.algorithms.DPDSGD(sv.objectives.GLM(dim=2), Gossip(STAR, 1), **learning)
    assert plan.privacy("local").label == "ldp"  # learning over them is allowed


@pytest.mark.parametrize("radius", [0.25, 0.5, 4.0])
def test_theoretical_rounds_depend_on_noise_over_radius(radius):
    """Values in a ball of radius 1/2 are within 1/2 of its center: the 1/4 of values in [0, 1]."""
    grid = sv.graphs.grid(4, 4)
    plan = sv.PrivateAveraging(grid, noise_std=0.2 * radius, radius=radius)
    assert plan.protocol.rounds == sv.protocols.rounds_for(grid, noise_std=0.1) == 17
    values = np.where(np.arange(16) % 4 < 2, -radius, radius)  # as far from their mean as can be
    rows = plan.protocol.apply(values)
    assert np.mean((rows - values.mean()) ** 2) / 2 <= 3 * plan.noise_std**2 / 16


def test_node_the_token_never_reached_releases_nothing():
    """Its raw row once stood in the result, without noise."""
    walk = Walk(sv.graphs.path(3), 2, path=[2, 1])
    plan = sv.PrivateAveraging(walk, noise_std=1.0, radius=0.5)
    out = plan.run(np.array([0.3, 0.2, 0.1]), np.random.default_rng(0)).outputs["rows"].ravel()
    assert out[0] == 0.0
    assert plan.privacy("central", observer=0).mu == 0.0
    assert plan.privacy("central", observer=1).mu == pytest.approx(1 / math.sqrt(2))
    released = sv.PrivateAveraging(
        Walk(sv.graphs.path(3), 2, path=[2, 1], final_public=True), noise_std=1.0, radius=0.5
    )
    assert released.privacy("central", observer=0).mu == pytest.approx(1 / math.sqrt(2))


@pytest.mark.parametrize(
    "protocol", [Walk(sv.graphs.path(3), 4, path=[0, 1, 2, 1]), Gossip(sv.graphs.path(3), 1)]
)
def test_rounding_slack_shrinks_the_ball(protocol):
    noise = Spy(slack=lambda dim, std: 0.25 * std, protective=True)
    sv.PrivateAveraging(protocol, noise_std=1.0, radius=1.0).run(np.array([9.0, -9.0, 9.0]), noise)
    assert max(np.abs(values).max() for _, values, _ in noise.seen) == 0.75


def test_protective_fresh_noise_needs_the_width_that_is_accounted():
    fresh_noise = FreshNoiseGossip(sv.graphs.path(4), 4, fresh_noise_std=0.5)
    with pytest.raises(InvalidInput, match="state dim=2"):
        sv.PrivateAveraging(fresh_noise, noise_std=1.0, radius=0.5).run(np.zeros((4, 2)), ProtectiveNoise())


@pytest.mark.parametrize("protocol", ["masked", "tree", "gossip:30", "exchange"])
def test_infinite_budget_is_the_plain_mean(protocol):
    """No noise, no grid, an infinite epsilon; and back to a finite budget from there."""
    options = {"network": sv.graphs.complete(4), "radius": 0.5}
    plan = sv.PrivateAveraging.for_budget(protocol, epsilon=math.inf, delta=1e-5, **options)
    for noise in (np.random.default_rng(0), ProtectiveNoise()):
        result = plan.run(np.array([0.1, 0.2, 0.3, 9.0]), noise)
        np.testing.assert_allclose(result.outputs["rows"], (0.1 + 0.2 + 0.3 + 0.5) / 4, atol=1e-9)
        assert result.provenance["noise"] == "none: no privacy"
    assert math.isinf(plan.privacy("network").epsilon(1e-5))
    again = plan.calibrated_to(2.0, 1e-5)
    wanted = sv.PrivateAveraging.for_budget(protocol, epsilon=2.0, delta=1e-5, **options)
    assert again.noise_std == pytest.approx(wanted.noise_std, rel=1e-9)


WEIGHTS = (9.0, 58.0, 30.0, 3.0)
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)
ROWS = np.array([[0.1, -0.2], [0.9, 0.1], [0.4, 0.3], [-0.6, 2.0]])  # the last is outside the ball


def weighted(protocol, **more):
    options = {"noise_std": 0.7, "radius": 1.0, "dim": 2, "site_weights": WEIGHTS} | more
    return sv.PrivateAveraging(protocol, **options)


def weighted_protocols():
    ring, complete = sv.graphs.ring(4), sv.graphs.complete(4)
    return {
        "tree": sv.protocols.Tree(ring),
        "exchange": sv.protocols.HypercubeExchange(4),
        "masked": sv.protocols.Masked(sv.protocols.Tree(complete)),
        "gossip": sv.protocols.Gossip(ring, 60),
        "chebyshev": sv.protocols.Chebyshev(ring, 30),
    }


@pytest.mark.parametrize("name", weighted_protocols())
@pytest.mark.parametrize("center", [0.0, (0.5, -1.0)])
def test_without_noise_it_is_the_weighted_mean(name, center):
    actual = weighted(weighted_protocols()[name], noise_std=0.0, center=center).run(
        ROWS, np.random.default_rng(0)
    )
    away = ROWS - np.asarray(center)
    clipped = away * np.minimum(1, 1 / np.linalg.norm(away, axis=1))[:, None]
    expected = center + SHARES @ clipped
    assert np.allclose(actual.outputs["rows"], expected, atol=1e-6)
    assert actual.metrics["mean_squared_error"] < 1e-12


@pytest.mark.parametrize("name", ["tree", "exchange", "masked"])
def test_noise_of_a_site_follows_its_weight(name):
    """The result has noise of std s sqrt(sum w^2) / sum w, and the weighted says so before it runs."""
    wide = weighted(weighted_protocols()[name], dim=40_000)
    noise = wide.run(np.zeros((4, 40_000)), np.random.default_rng(3)).outputs["rows"][0]
    expected = 0.7 * np.sqrt(np.sum(SHARES**2))
    assert noise_in_result(wide) == pytest.approx(expected)
    assert noise.std() == pytest.approx(expected, rel=0.02)
    assert sv.advice.usefulness(wide).error == pytest.approx(expected)


@pytest.mark.parametrize("name", weighted_protocols())
def test_local_privacy_is_the_same_for_every_site(name):
    assert [
        weighted(weighted_protocols()[name]).privacy("local", user=u).mu for u in range(4)
    ] == pytest.approx([2 / 0.7] * 4)


def test_privacy_costs_are_those_of_sums_of_unlike_noise():
    """Who sees the sum of some sites sees u's change 2 r w_u in noise s sqrt(sum of their w^2)."""
    path = weighted(sv.protocols.Tree(sv.graphs.path(4)))
    weights = np.array(WEIGHTS)

    def mu(user, others):
        return 2 / 0.7 * weights[user] / np.sqrt(np.sum(weights[list(others)] ** 2))

    # node 1 sees node 0 alone, and the sum of 2 and 3
    assert path.privacy("pairwise", observer=1, user=0).mu == pytest.approx(mu(0, [0]))
    assert path.privacy("pairwise", observer=1, user=3).mu == pytest.approx(mu(3, [2, 3]))
    assert path.privacy("central").mu == pytest.approx(mu(1, range(4)))
    masked = weighted(weighted_protocols()["masked"])
    assert masked.privacy("outsider").mu == pytest.approx(mu(1, range(4)))
    # any one member: it takes its own noise out, and the worst takes the largest but the user's
    assert masked.privacy("network").mu == pytest.approx(mu(1, [0, 1, 3]))
    assert masked.privacy("colluders", colluders=[1, 2]).mu == pytest.approx(mu(0, [0, 3]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1e308])
@pytest.mark.parametrize("name", ["tree", "masked"])
def test_weighted_row_moves_by_at_most_its_sensitivity(name, bad):
    """Two worlds, one row apart, the same noise: what leaves differs by at most 2 r w_u / mean w."""
    for user in range(4):
        sent = []
        for value in (-50.0, bad):
            rows = ROWS.copy()
            rows[user] = [value, 3.0]
            mechanism = weighted(weighted_protocols()[name]).mechanism(
                rows, range(4), RunRandomness.from_rng(SimulatedNoise(4))
            )
            sent.append(mechanism.noisy_rows(0))
        moved = np.linalg.norm(sent[0] - sent[1], axis=1)
        assert moved[user] <= 2 * WEIGHTS[user] / np.mean(WEIGHTS) + 1e-9
        assert moved[np.arange(4) != user].max() == 0


def test_weighted_rounding_slack_shrinks_the_ball():
    """Rows on the grid of their own noise lie inside their balls, and the noise has the planned width."""
    for name in ("tree", "masked"):
        wide = weighted(weighted_protocols()[name], dim=4000)
        tape = RecordedNoise(ProtectiveNoise())
        mechanism = wide.mechanism(np.full((4, 4000), 9.0), range(4), RunRandomness.from_rng(tape))
        balls = np.array(WEIGHTS) / np.mean(WEIGHTS)
        assert (np.linalg.norm(mechanism.rows, axis=1) <= balls).all()
        added = mechanism.noisy_rows(0) - mechanism.rows
        assert np.allclose(added.std(axis=1) / balls, 0.7, rtol=0.06)


def test_average_carries_the_noise_that_is_accounted():
    plan = sv.PrivateAveraging(
        "tree:kind=few-leaves", network="grid:2:4", noise_std=2.0, radius=0.5, noise_allocation="optimal"
    )
    assert sorted(np.round(plan._noise_stds, 6).tolist())[-2:] == [2.0, 2.0]
    rows = plan.run(np.zeros((8, 20_000)), np.random.default_rng(0)).outputs["rows"]
    predicted = sv.advice.usefulness(plan).error
    assert rows.std(axis=1).max() == pytest.approx(predicted, rel=0.03)
    assert predicted == pytest.approx(2.0 * math.sqrt(2 + 6 * 0.1) / 8, rel=1e-12)
    assert noise_in_result(plan) == pytest.approx(predicted, rel=1e-12)


def test_mask_grid_covers_a_distant_center():
    """Bound, noise and center are those of the values: 2,000 numbers tell a factor of two in any of them."""
    center = tuple(np.tile([5.0, -0.25], 1000))
    plan = sv.PrivateAveraging(
        "masked", noise_std=0.5, radius=40.0, center=center, dim=2000, network="complete:4"
    )
    grid = plan.grid
    assert 45.0 <= grid.bound * grid.spacing <= 45.0 + 2 * grid.spacing
    values = np.array(center) + np.random.default_rng(0).uniform(-0.5, 0.5, size=(4, 2000))
    error = plan.run(values, ProtectiveNoise()).outputs["coef"] - values.mean(axis=0)
    assert abs(error.mean()) < 5 * 0.25 / np.sqrt(2000)
    assert error.std() == pytest.approx(0.5 / 2, rel=0.08)  # the mean of four


@pytest.mark.parametrize(
    "protocol",
    [
        sv.protocols.HypercubeExchange(8),
        sv.protocols.Tree(sv.graphs.hypercube(3)),
        sv.protocols.Gossip(sv.graphs.path(5), 3),
        sv.protocols.Chebyshev(sv.graphs.path(5), 4),
        sv.protocols.FreshNoiseGossip(sv.graphs.path(5), 4, fresh_noise_std=0.5),
    ],
    ids=lambda p: p.name,
)
def test_noise_in_result_equals_the_noise_of_runs(protocol):
    plan = sv.PrivateAveraging(protocol, noise_std=2.0, radius=0.5)
    wide = np.zeros((protocol.n, 200_000), dtype=np.float32)
    out = plan.run(wide, np.random.default_rng(5)).outputs["rows"]
    assert noise_in_result(plan) == pytest.approx(out.std(axis=1).max(), rel=0.01)
