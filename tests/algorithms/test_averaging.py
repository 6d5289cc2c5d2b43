"""Private averaging as a plan: its price, its run, its budget, and records that try to break it."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import BudgetExceeded, BudgetInfeasible, InvalidInput
from sottovoce.mechanisms.value import ValueMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
from sottovoce.objectives import clip_around
from sottovoce.protocols import Chebyshev, FreshNoiseGossip, Gossip, HypercubeExchange, Randomized, Tree, Walk


def plans():
    rng = np.random.default_rng(0)
    grid = sv.graphs.grid(4, 4)
    return [
        sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5)
        for protocol in (
            Gossip(grid, 9),
            Chebyshev(grid, 9),
            Randomized(grid, 200, rng),
            FreshNoiseGossip(grid, 9, tau=0.1),
            HypercubeExchange(16),
            Tree(grid),
            Walk(grid, 60, rng, final_public=True),
        )
    ]


every_plan = pytest.mark.parametrize("plan", plans(), ids=lambda p: p.protocol.name)


@every_plan
def test_no_view_exceeds_the_local_guarantee(plan):
    local = plan.privacy("local")
    assert local.label == "ldp"
    for view, who in (
        ("pairwise", {"observer": 0, "user": 15}),
        ("network", {"observer": 3}),
        ("colluders", {"colluders": [0, 5, 6]}),
        ("central", {}),
    ):
        guarantee = plan.privacy(view, **who)
        assert guarantee.label == "exact"
        assert guarantee.mu <= local.mu * (1 + 1e-9)


@every_plan
def test_colluders_learn_at_least_as_much_as_each_of_them(plan):
    together = plan.privacy("colluders", colluders=[0, 5], user=15).mu
    for v in (0, 5):
        assert together >= plan.privacy("pairwise", observer=v, user=15).mu - 1e-9


@every_plan
def test_error_has_the_predicted_size(plan):
    rng = np.random.default_rng(1)
    values = np.full((16, 4000), 0.0)
    values[:, 0] = rng.uniform(-0.3, 0.3, 16)
    result = plan.run(values, rng)
    spread = result.outputs["rows"][:, 1:]
    share = plan.protocol.output_view(0).basis if not isinstance(plan.protocol, Walk) else None
    if share is not None:
        expected = np.linalg.norm(plan.protocol.apply(np.eye(16), noise=SimulatedNoise(0))[0]) ** 2
        if not isinstance(plan.protocol, FreshNoiseGossip):
            assert spread[0].var() == pytest.approx(expected, rel=0.1)
    assert result.config["noise_std"] == 1.0
    assert "simulation" in result.provenance["noise"]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    plan = sv.PrivateAveraging(sv.graphs.ring(5), noise_std=1.0, radius=1.0)
    values = np.linspace(-1, 1, 5)
    runs = [plan.run(values, np.random.default_rng(seed)).outputs["rows"] for seed in (1, 1, 2)]
    assert runs[0].tobytes() == runs[1].tobytes()
    assert runs[0].tobytes() != runs[2].tobytes()


def test_protective_noise_ignores_every_seed():
    plan = sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0)
    runs = [plan.run(np.zeros(4), ProtectiveNoise()).outputs["rows"] for _ in range(2)]
    assert (runs[0] != runs[1]).all()
    record = plan.run(np.zeros(4), ProtectiveNoise()).to_dict()
    assert "mean_squared_error" not in record["metrics"]  # a function of the data: not for the record
    assert record["provenance"]["noise"] == "protective"


class Silent:
    """No noise at all: what is left is what one user can move."""

    protective = False

    def perturb(self, values, *, agents, step, std, stream=0):
        return values

    def slack(self, dim, std=1.0):
        return 0.0


@every_plan
@pytest.mark.parametrize("evil", [1e300, -1e300, np.nan, np.inf, -np.inf, 0.0, 3.0])
def test_influence_of_one_user_is_at_most_the_sensitivity(plan, evil):
    """With the noise off, replacing one row moves the first message by at most the booked sensitivity."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(16, 3))
    other = values.copy()
    other[7] = evil
    first, second = (
        ValueMechanism(
            rows=rows, agents=range(16), random=RunRandomness(Silent(), 0, 0), noise_std=1.0, radius=0.5
        ).released(0)
        for rows in (values, other)
    )
    moved = np.linalg.norm(first - second, axis=1)
    assert np.isfinite(moved).all()
    assert moved[7] <= 2 * plan.radius * (1 + 1e-12)
    assert (np.delete(moved, 7) == 0).all()


def test_clipping_happens_before_the_noise_only():
    plan = sv.PrivateAveraging(HypercubeExchange(2), noise_std=100.0, radius=1.0)
    rows = plan.run(np.zeros((2, 50)), np.random.default_rng(0)).outputs["rows"]
    assert np.abs(rows).max() > 50  # noise is never clipped away


def test_clipped_rows_keep_direction_and_precision():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [1e308, 1e308], [-1e308, 1e308]])
    out = clip_around(rows, 0.0, 1.0)
    np.testing.assert_allclose(out[0], [0.6, 0.8])
    np.testing.assert_array_equal(out[1], rows[1])
    np.testing.assert_allclose(np.linalg.norm(out[2:], axis=1), 1.0)
    centered = clip_around(np.array([[10.0]]), np.array([4.0]), 2.0)
    assert centered.item() == 6.0
    assert clip_around(rows[:2].astype(np.float32), 0.0, 1.0).dtype == np.float32


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(
    ("view", "who"),
    [("local", {}), ("pairwise", {"observer": 0, "user": 15}), ("network", {}), ("central", {})],
)
def test_for_budget_meets_the_target_and_not_much_more(epsilon, view, who):
    for protocol in (HypercubeExchange(16), FreshNoiseGossip(sv.graphs.path(16), 16, tau=0.1)):
        plan = sv.PrivateAveraging.for_budget(
            protocol, epsilon=epsilon, delta=1e-6, radius=0.5, view=view, **who
        )
        found = plan.privacy(view, **who).epsilon(1e-6)
        assert found <= epsilon
        assert found > epsilon * (1 - 1e-6)
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=-1.0, radius=1.0), "noise_std"),
        (lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=math.nan, radius=1.0), "noise_std"),
        (lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=0.0), "radius"),
        (lambda: sv.PrivateAveraging("tree", noise_std=1.0, radius=1.0), "needs a network"),
        (lambda: sv.PrivateAveraging(3, noise_std=1.0, radius=1.0), "protocol, a network or a name"),
        (
            lambda: sv.PrivateAveraging("ring", noise_std=1.0, radius=1.0, network="ring:4"),
            "A protocol is one of",
        ),
        (
            lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0).privacy("secret"),
            "view must be",
        ),
        (
            lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0).privacy("pairwise"),
            "observer",
        ),
        (
            lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0).privacy("colluders"),
            "colluders",
        ),
        (
            lambda: sv.PrivateAveraging(HypercubeExchange(4), noise_std=1.0, radius=1.0).run(
                np.zeros(3), np.random.default_rng(0)
            ),
            "one row per node",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()


def test_exact_consensus_is_within_a_factor_two_of_a_curator_on_a_tree():
    plan = sv.PrivateAveraging(Tree(sv.graphs.grid(8, 8)), noise_std=1.0, radius=0.5)
    mean = np.mean([plan.protocol.view(v).leakage().sum() / 64 for v in range(64)])
    assert mean == pytest.approx(2 * 63 / 64**2)
    assert plan.privacy("central").mu == pytest.approx(math.sqrt(1 / 64))


def test_halving_the_noise_is_noticed():
    """Power both ways: the output variance accepts the right scale and rejects 2/3 and 3/2 of it."""
    plan = sv.PrivateAveraging(HypercubeExchange(8), noise_std=1.0, radius=1.0)
    rows = plan.run(np.zeros((8, 20_000)), np.random.default_rng(3)).outputs["rows"]
    variance = rows[0].var() * 8
    spread = 4 * math.sqrt(2 / 20_000)
    assert abs(variance - 1.0) < spread
    for wrong in (2 / 3, 1.5):
        assert abs(variance - wrong**2) > spread


def test_a_node_the_token_never_reached_releases_nothing():
    """Its raw row once stood in the result, without noise."""
    walk = Walk(sv.graphs.path(3), 2, path=[2, 1])
    plan = sv.PrivateAveraging(walk, noise_std=1.0, radius=0.5)
    out = plan.run(np.array([0.3, 0.2, 0.1]), np.random.default_rng(0)).outputs["rows"].ravel()
    assert out[0] == 0.0
    assert plan.privacy("central", observer=0).mu == 0.0
    assert plan.privacy("central", observer=1).mu == pytest.approx(1 / math.sqrt(2))
    told = sv.PrivateAveraging(
        Walk(sv.graphs.path(3), 2, path=[2, 1], final_public=True), noise_std=1.0, radius=0.5
    )
    assert told.privacy("central", observer=0).mu == pytest.approx(1 / math.sqrt(2))


class Rounding:
    """A protective source with a large slack, which keeps what it is asked to hide."""

    protective = True

    def __init__(self):
        self.asked = []

    def slack(self, dim, std=1.0):
        return 0.25 * std

    def perturb(self, values, *, agents, step, std, stream=0):
        self.asked.append(np.array(values))
        return np.array(values)


@pytest.mark.parametrize(
    "protocol", [Walk(sv.graphs.path(3), 4, path=[0, 1, 2, 1]), Gossip(sv.graphs.path(3), 1)]
)
def test_rounding_is_paid_for_by_a_smaller_ball(protocol):
    source = Rounding()
    sv.PrivateAveraging(protocol, noise_std=1.0, radius=1.0).run(np.array([9.0, -9.0, 9.0]), source)
    assert max(np.abs(values).max() for values in source.asked) == 0.75


def test_rounding_before_fresh_noise_is_in_the_price():
    """Half a step each way, in every coordinate, at every node and round: lengths add up at most."""
    from sottovoce.noise.discrete import STEPS_PER_STD

    refreshed = FreshNoiseGossip(sv.graphs.path(4), 4, tau=0.5)
    one, many = (sv.PrivateAveraging(refreshed, noise_std=1.0, radius=0.5, dim=dim) for dim in (1, 10_000))
    pair = {"observer": 0, "user": 3}
    seen = math.sqrt(refreshed.scaled(1.0).view(0).leakage()[3])
    for plan in (one, many):
        allowed = math.sqrt(4 * 3 * plan.dim) / STEPS_PER_STD
        assert plan.privacy("pairwise", **pair).mu == pytest.approx(seen + allowed, rel=1e-9)
    assert many.privacy("network").mu <= many.privacy("local").mu
    with pytest.raises(InvalidInput, match="state dim=2"):
        one.run(np.zeros((4, 2)), ProtectiveNoise())


@pytest.mark.parametrize("protocol", ["masked", "tree", "gossip:30", "exchange"])
def test_an_infinite_budget_is_the_plain_mean(protocol):
    """No noise, no grid, an infinite price; and back to a finite budget from there."""
    options = {"network": sv.graphs.complete(4), "radius": 0.5}
    plan = sv.PrivateAveraging.for_budget(protocol, epsilon=math.inf, delta=1e-5, **options)
    for source in (np.random.default_rng(0), ProtectiveNoise()):
        result = plan.run(np.array([0.1, 0.2, 0.3, 9.0]), source)
        np.testing.assert_allclose(result.outputs["rows"], (0.1 + 0.2 + 0.3 + 0.5) / 4, atol=1e-9)
        assert result.provenance["noise"] == "none: no privacy"
    assert math.isinf(plan.privacy("network").epsilon(1e-5))
    again = plan.calibrated_to(2.0, 1e-5)
    wanted = sv.PrivateAveraging.for_budget(protocol, epsilon=2.0, delta=1e-5, **options)
    assert again.noise_std == pytest.approx(wanted.noise_std, rel=1e-9)
