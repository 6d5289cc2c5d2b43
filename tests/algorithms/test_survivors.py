"""Facts of the texts that no contract states: what mutants of these files would change, one by one."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import DPCD, DPSGD, ConsensusSGD, FederatedADMM, MuffliatoSGD, RandomWalkSGD
from sottovoce.algorithms.averaging import noise_in_result
from sottovoce.algorithms.federated_admm import absorbed
from sottovoce.algorithms.fixed_point import FixedPoint
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.algorithms.optimizers import Optimizer, Rate
from sottovoce.algorithms.random_walk_sgd import holders
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.noise.grid import mask_grid
from sottovoce.objectives import GLM


def plan(**options):
    given = {
        "protocol": "exchange", "network": sv.graphs.complete(4), "steps": 5, "clip_norm": 1.0,
        "noise_multiplier": 2.0, "sizes": [10, 20, 30, 60], **options,
    }  # fmt: skip
    return ConsensusSGD(GLM(dim=2), **given)


class Constant:
    """A source that always answers the same."""

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
    for wrong in (-0.1, 1.1):
        with pytest.raises(InvalidInput):
            plan(average_from=wrong)


def test_the_l2_term_is_added_after_the_mean():
    """theta <- theta - 0.5 (2 + 0.5 theta): -1, -1.75, -2.3125."""
    assert descended(3, average_from=1.0, decay=0.5) == -2.3125


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
def test_one_divisor_for_all_or_each_its_own(options, divisors):
    made = plan(**options)
    assert made._divisors(made.sizes) == divisors
    for agent, divisor in enumerate(divisors):
        (release,) = made.releases(agent)
        assert (release.sensitivity, release.noise_std) == (1 / divisor, 2 / divisor)


def test_what_is_stated_by_default():
    kinds = [g.adversary.kind for g in plan().guarantees()]
    assert kinds == ["local", "central", "network"]
    long = plan(steps=513)  # 16 pairs, 513 steps: too long to ask for every member unasked
    assert [g.adversary.kind for g in long.guarantees()] == ["local", "central"]
    assert len(plan(steps=512).guarantees()) == 3
    alone = ConsensusSGD(GLM(), "exchange", network=sv.graphs.complete(1), steps=2, clip_norm=1.0, sizes=[5])
    assert [g.adversary.kind for g in alone.guarantees()] == ["local"]
    with pytest.raises(InvalidInput, match="weighting"):
        plan(weighting="nobody")


def test_fresh_noise_adds_to_the_noise_in_the_result():
    """The root of the measured variance of the worst node, to a few per cent; fresh noise is much of it."""
    network = sv.graphs.path(4)
    plan = sv.PrivateAveraging(
        sv.protocols.FreshNoiseGossip(network, 3, tau=1.5), noise_std=1.0, radius=0.5, dim=20_000
    )
    plain = sv.PrivateAveraging(sv.protocols.Gossip(network, 3), noise_std=1.0, radius=0.5)
    rows = plan.run(np.zeros((4, 20_000)), np.random.default_rng(0)).outputs["rows"]
    assert noise_in_result(plan) == pytest.approx(np.std(rows, axis=1).max(), rel=0.03)
    assert noise_in_result(plan) > 1.5 * noise_in_result(plain)


@pytest.mark.parametrize("users", [0, -3, 2.5])
def test_federated_admm_has_a_whole_number_of_users(users):
    with pytest.raises(InvalidInput, match="users"):
        FederatedADMM(GLM(), users=users, steps=1, sample_rate=1.0, gamma=1.0, clip_norm=1.0, noise_std=1.0)


def test_federated_admm_hands_out_both_points():
    """z is the proximal point of z^: with an l1 term the two differ, and z has the zeros."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 4)), np.sign(rng.normal(size=40))
    plan = FederatedADMM(
        GLM(l1=0.3), users=4, steps=30, sample_rate=1.0, gamma=1.0, clip_norm=1.0, noise_std=0.0
    )
    outputs = plan.run(Shards(X, y, np.arange(5) * 10), rng).outputs
    prox = np.sign(outputs["mean"]) * np.maximum(np.abs(outputs["mean"]) - 0.3, 0.0)
    np.testing.assert_allclose(outputs["coef"], prox, atol=1e-12)
    assert np.abs(outputs["mean"]).max() > 0


@pytest.mark.parametrize("clip_norm", [0.25, 3.0])
def test_the_common_grid_of_masked_admm_is_measured_in_clips(clip_norm):
    """A client's row is a difference of two moves of at most the clip, and its noise is the same for all."""
    options = {
        "users": 6,
        "steps": 4,
        "sample_rate": 1.0,
        "gamma": 1.0,
        "clip_norm": clip_norm,
        "noise_std": 2.0,
    }
    grid = FederatedADMM(GLM(dim=3), protocol="masked", network=sv.graphs.ring(6), **options).grid
    told = mask_grid(bound=2 * clip_norm, sensitivity=4 * clip_norm, noise_std=[2.0] * 6, dim=3, steps=4)
    assert grid == told
    assert 2 * clip_norm <= grid.bound * grid.step <= 2 * clip_norm + 2 * grid.step


@pytest.mark.parametrize("secure_sum", [True, False])
def test_a_server_that_sees_rows_one_by_one_promises_no_central_number(secure_sum):
    plan = FederatedADMM(
        GLM(),
        users=6,
        steps=4,
        sample_rate=0.5,
        gamma=1.0,
        clip_norm=1.0,
        noise_std=2.0,
        secure_sum=secure_sum,
    )
    kinds = [found.adversary.kind for found in plan.guarantees()]
    assert kinds == (["local", "central"] if secure_sum else ["local"])
    assert absorbed(
        np.zeros(1), plan.schedule(0).apply(np.full((6, 1), 6.0))[0], plan.relaxation
    ).tolist() == [3.0]


@pytest.mark.parametrize(
    ("options", "divisor"),
    [
        ({"adjacency": "user"}, 1.0),
        ({"adjacency": "user", "sizes": [10, 20, 30, 60], "batch_size": 5}, 1.0),
        ({"sizes": [10, 20, 30, 60]}, 10.0),
        ({"sizes": [10, 20, 30, 60], "sample_rate": 0.5}, 5.0),
        ({"sizes": [10, 20, 30, 60], "batch_size": 5}, 5.0),
    ],
)
def test_fresh_noise_by_name_is_in_proportion_to_the_noise_of_a_row(options, divisor):
    """fresh x rate x multiplier x clip over what a gradient is divided by, in every step."""
    plan = MuffliatoSGD(
        GLM(),
        "refreshed:2:fresh=1.5",
        network=sv.graphs.ring(4),
        steps=3,
        clip_norm=0.5,
        noise_multiplier=4.0,
        learning_rate=(0.4, 0.1),
        **options,
    )
    stds = [plan.schedule(k).tau for k in range(3)]
    assert stds == pytest.approx([1.5 * rate * 4.0 * 0.5 / divisor for rate in (0.4, 0.2, 0.1)])
    assert plan.schedule(1) is plan.schedule(1)
    assert plan.with_noise(0.0).schedule(1).tau == 1.5  # nothing to be in proportion to


@pytest.mark.parametrize(
    ("shape", "middle"), [("geometric", 0.2), ("linear", 0.25), ("cosine", 0.25), ("constant", 0.4)]
)
def test_a_learning_rate_goes_from_its_first_to_its_last_value(shape, middle):
    rate = Rate(0.4, 0.1, shape)
    assert rate(0, 5) == 0.4
    assert rate(2, 5) == pytest.approx(middle)
    assert rate(4, 5) == pytest.approx(0.4 if shape == "constant" else 0.1)
    quarter = {"geometric": 0.4 * 0.25**0.25, "linear": 0.325, "cosine": 0.1 + 0.15 * (1 + 0.5**0.5)}
    assert rate(1, 5) == pytest.approx(quarter.get(shape, 0.4))
    assert Rate(0.4, 0.1, shape)(0, 1) == 0.4


def test_the_defaults_of_an_optimizer_are_those_of_torch():
    torch = pytest.importorskip("torch")
    for kind, made in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        told = made([torch.zeros(1, requires_grad=True)]).defaults
        ours = Optimizer(kind)
        assert (ours.beta, ours.beta2, ours.epsilon) == (*told["betas"], told["eps"])
        assert Optimizer.from_value({"name": kind}) == ours


def test_sizes_are_kept_as_whole_numbers_whatever_holds_them():
    """Plans are compared, hashed and written to files."""
    for given in ([10, 20, 30, 60], np.array([10, 20, 30, 60])):
        made = plan(sizes=given)
        assert made.sizes == (10, 20, 30, 60)
        assert {type(size) for size in made.sizes} == {int}


def test_a_tree_drawn_for_every_step_is_no_steady_protocol():
    def made(protocol, steps):
        return ConsensusSGD(
            GLM(), protocol, network=sv.graphs.complete(4), steps=steps, clip_norm=1.0, sizes=[5] * 4
        )

    assert [made("tree:kind=uniform", steps).is_stationary for steps in (1, 2, 3)] == [True, False, False]
    assert [made("tree", steps).is_stationary for steps in (1, 2)] == [True, True]
    assert made(sv.protocols.HypercubeExchange(4), 2).is_stationary


def test_one_record_is_enough_for_a_curator_and_none_is_not():
    central = DPSGD(GLM(), records=1, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    found = central.run((np.ones((1, 2)), np.ones(1)), np.random.default_rng(0))
    assert np.isfinite(found.outputs["coef"]).all()
    cd = DPCD(GLM(), records=1, steps=2, clip_norm=1.0, noise_multiplier=1.0, smoothness=(0.25, 0.25))
    assert np.isfinite(cd.run((np.ones((1, 2)), np.ones(1)), np.random.default_rng(0)).outputs["coef"]).all()
    with pytest.raises(DataError, match="n >= 1 labels"):
        cd.run((np.ones((0, 2)), np.ones(0)), np.random.default_rng(0))


def test_a_member_the_token_never_visits_gets_the_noise_of_the_others():
    walk = RandomWalkSGD.for_budget(
        GLM(), network=sv.graphs.ring(4), path=(0, 1, 2, 1), steps=4, clip_norm=1.0, adjacency="user",
        epsilon=2.0, delta=1e-5, view="local",
    )  # fmt: skip
    noises = noise_multipliers(walk)
    assert not walk.releases(3)
    assert noises[3] == max(noises) == noises[1]  # visited twice
    assert noises[0] == noises[2] < noises[1]
    assert walk.epsilon(1e-5, "local") == pytest.approx(2.0, rel=1e-3)


def test_a_secret_walk_lists_its_releases_from_the_first_step_and_its_records_reach_the_bound():
    walk = RandomWalkSGD(
        GLM(), network=sv.graphs.ring(4), path="secret", steps=4, clip_norm=2.0, noise_multiplier=1.0,
        adjacency="user", feature_norm=2.0,
    )  # fmt: skip
    (release,) = walk.releases(1)
    assert (release.step, release.steps) == (0, 4)

    def ready(length):
        return walk.prepared(Shards(np.full((4, 1), length), np.ones(4), np.arange(5)))

    assert ready(2.0).n == ready(2.0 * (1 + 1e-10)).n == 4
    with pytest.raises(DataError, match="longer than feature_norm"):
        ready(2.0 * (1 + 1e-8))


def test_a_drawn_path_is_nobodys_to_change():
    walk = RandomWalkSGD(
        GLM(), network=sv.graphs.ring(4), steps=6, clip_norm=1.0, noise_multiplier=1.0, adjacency="user"
    )
    with pytest.raises(ValueError, match="read-only"):
        holders(walk)[0] = 3


def test_a_network_in_place_of_a_protocol_may_be_named_too():
    named = sv.PrivateAveraging("ring:8", noise_std=1.0, radius=0.5)
    given = sv.PrivateAveraging(sv.graphs.ring(8), noise_std=1.0, radius=0.5)
    assert (named.n, named.protocol.name, named.protocol.rounds) == (8, "chebyshev", given.protocol.rounds)


def test_only_a_server_makes_a_network_optional():
    assert FederatedADMM.network_optional
    assert not any(kind.network_optional for kind in (ConsensusSGD, MuffliatoSGD, RandomWalkSGD, DPSGD, DPCD))


def test_one_holder_knows_its_number_of_records_however_it_was_said():
    assert DPSGD(GLM(), sizes=[30], steps=1, clip_norm=1.0).records == 30
    assert DPSGD(GLM(), records=30, steps=1, clip_norm=1.0).sizes == (30,)
    assert DPSGD(GLM(), batch_size=5, sample_rate=0.1, steps=1, clip_norm=1.0).records is None


def test_a_masked_row_has_room_for_the_largest_site():
    """Sums of up to 60 clipped records over a common divisor of 30: twice the clip in one number."""
    made = plan(protocol="masked", network=sv.graphs.complete(4), clip_norm=0.5, noise_multiplier=8.0)
    assert 1.0 <= made.grid.bound * made.grid.step <= 1.0 + 2 * made.grid.step
    assert made.grid.steps == 5
    average = sv.PrivateAveraging("masked", noise_std=1.0, radius=0.5, network="complete:4")
    assert average.grid.steps == 1


def test_a_fixed_point_travels_as_one_row_of_all_blocks():
    class Half:
        blocks = 2

        def released(self, u, k):
            return np.array([1]), u[1:] / 2

    plan = FixedPoint(lambda u, data: u, 1.0, 1.0, steps=1, start=np.ones((2, 3)))
    text = plan.algorithm(Half(), np.ones((1, 6)))
    sent = text.message(text.init(), 0)
    assert sent.tolist() == [[1.0, 1.0, 1.0, 0.5, 0.5, 0.5]]
