"""The texts at their edges: what is refused, what stands by default, and what is said of a plan."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import DPCD, DPSGD, ConsensusSGD, MuffliatoSGD, RandomWalkSGD, TokenADMM
from sottovoce.algorithms.averaging import averaging
from sottovoce.algorithms.consensus_sgd import estimand
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.optimizers import Optimizer, Rate
from sottovoce.algorithms.random_walk_sgd import published_losses
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM


def test_a_token_goes_between_two_users_at_least():
    options = {"steps": 4, "gamma": 1.0, "clip_norm": 1.0, "noise_std": 1.0}
    assert TokenADMM(GLM(), users=2, **options).users == 2
    with pytest.raises(InvalidInput, match="users"):
        TokenADMM(GLM(), users=1, **options)


def test_what_is_learned_of_unequal_sites_is_said_in_words():
    def words(**options):
        plan = ConsensusSGD(GLM(dim=2), "tree", network="ring:3", steps=1, clip_norm=1.0, **options)
        return estimand(plan).partition(":")[0]

    assert words(sizes=[5, 5, 5]) == "the mean over all records, which is that of the sites' means"
    assert words(sizes=[5, 5, 20]) == "the mean over all records"
    assert words(sizes=[5, 5, 20], weighting="sites") == "the mean of the sites' means"
    assert words(batch_size=4, sample_rate=0.5) == "the mean over all records"
    assert words(adjacency="user") == "the mean of the members' clipped contributions"


def test_fresh_noise_by_name_follows_the_loudest_row():
    """Half of the largest noise of a row: rate 0.2, clip 2, lot 4."""

    def fresh(noise, **options):
        plan = MuffliatoSGD(
            GLM(dim=2), "refreshed:2:fresh=0.5", network="ring:4", steps=2, clip_norm=2.0, learning_rate=0.2,
            noise_multiplier=noise, **options,
        )  # fmt: skip
        return plan.schedule(0).tau

    batches = {"batch_size": 4, "sample_rate": 0.5}
    assert fresh(3.0, **batches) == pytest.approx(0.5 * 0.2 * 3 * 2 / 4)
    assert fresh((1.0, 3.0, 2.0, 1.0), **batches) == pytest.approx(0.5 * 0.2 * 3 * 2 / 4)
    assert fresh((1.0, 3.0, 2.0, 1.0), adjacency="user") == pytest.approx(0.5 * 0.2 * 3 * 2)
    assert fresh(3.0, sizes=[9, 5, 7, 8]) == pytest.approx(0.5 * 0.2 * 3 * 2 / 5)


def test_the_answer_of_dp_sgd_is_its_last_iterate_unless_an_average_is_asked_for():
    """Steps of 0.5 along a constant slope: -0.5, -1, -1.5."""
    common = {"records": 9, "steps": 3, "clip_norm": 1.0, "learning_rate": 0.5}
    for options, answer in (({}, -1.5), ({"output": "mean"}, -1.0)):
        plan = DPSGD(GLM(dim=1), **common, **options)
        text = plan.algorithm(SimpleNamespace(descends=False), np.zeros((1, 1)))
        state = text.init()
        for k in range(3):
            state = text.update(state, np.ones((1, 1)), k)
        assert text.output(state).tolist() == [[answer]]


def test_a_schedule_given_as_a_function_is_stationary_for_one_step_only():
    exchange = sv.protocols.HypercubeExchange(2)
    schedules = [Schedule(lambda k: exchange, steps) for steps in (1, 2, 3)]
    assert [schedule.is_stationary for schedule in schedules] == [True, False, False]


@pytest.mark.parametrize("term", [{"l1": 0.1}, {"ball": 1.0}, {"box": 1.0}])
def test_a_term_that_needs_a_proximal_map_is_refused_where_there_is_none(term):
    with pytest.raises(InvalidInput, match="takes l2 only"):
        ConsensusSGD(GLM(**term), "tree", network="ring:3", steps=1, clip_norm=1.0, adjacency="user")


def test_disagreement_is_the_mean_square_distance_from_the_mean_row():
    """Rows (0, 2) and (4, 2) have the mean (2, 2): squares 4, 0, 4, 0."""
    silent = SimpleNamespace(objective=SimpleNamespace(metrics=lambda rows, data: {"loss": 3.0}))
    found = GradientPlan.metrics(silent, np.array([[0.0, 2.0], [4.0, 2.0]]), None, None)
    assert found == {"disagreement": 2.0, "loss": 3.0}


@pytest.mark.parametrize(
    ("rate", "contracts"), [((8.0, 1.0), True), ((8.1, 1.0), False), ((1.0, 8.1), False)]
)
def test_every_step_of_a_secret_walk_must_contract_where_that_is_counted_on(rate, contracts):
    """The logistic loss of records of length 1 is 1/4-smooth: steps up to 8."""
    options = {
        "network": "ring:4", "steps": 5, "clip_norm": 1.0, "noise_multiplier": 2.0, "adjacency": "user",
        "path": "secret", "feature_norm": 1.0, "learning_rate": rate,
    }  # fmt: skip
    if contracts:
        assert RandomWalkSGD(GLM(dim=2), **options).observation.contractive
    else:
        with pytest.raises(InvalidInput, match="learning_rate <= 2/beta = 8"):
            RandomWalkSGD(GLM(dim=2), **options)


def test_before_anything_was_released_an_average_knows_nothing_of_the_rows():
    text = averaging(SimpleNamespace(rows=np.ones((2, 3), np.float32), released=None))
    np.testing.assert_array_equal(text.output(text.init()), np.zeros((2, 3), np.float32))
    state = text.update(text.init(), np.full((2, 3), 0.5), 0)
    assert text.output(state).dtype == np.float32
    assert (text.output(state) == 0.5).all()


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_coordinates_with_any_noise_need_a_finite_clip(noise):
    options = {"records": 10, "steps": 2, "smoothness": (1.0, 1.0)}
    assert DPCD(GLM(dim=2), clip_norm=math.inf, noise_multiplier=0.0, **options).clip_norm == math.inf
    with pytest.raises(InvalidInput, match="clip_norm"):
        DPCD(GLM(dim=2), clip_norm=math.inf, noise_multiplier=noise, **options)


def test_a_rate_rises_for_its_share_of_the_steps_and_then_goes_its_way_over_the_rest():
    rate = Rate(0.4, 0.1, "linear", warmup=0.5)
    rising, falling = [0.08, 0.16, 0.24, 0.32, 0.4], [0.4, 0.325, 0.25, 0.175, 0.1]
    assert [rate(k, 10) for k in range(10)] == pytest.approx([*rising, *falling])


def test_adam_divides_by_the_root_and_a_hundred_millionth():
    """The first step of Adam is rate g / (|g| + epsilon): half the rate where g is epsilon."""
    adam, gradient = Optimizer("adam"), np.array([[1e-8, -1e-8, 3e-8]])
    step, _ = adam.step(adam.init(gradient), gradient, 0.2, np.zeros((1, 3)))
    np.testing.assert_allclose(step, [[0.1, -0.1, 0.15]], rtol=1e-9)


def test_the_first_holder_of_a_token_is_the_first_of_its_path():
    options = {"steps": 3, "clip_norm": 1.0, "adjacency": "user", "path": (2, 0, 1)}
    plan = RandomWalkSGD(GLM(dim=1), "ring:3", **options)
    text = plan.algorithm(SimpleNamespace(agents=[0, 1, 2]), np.zeros((3, 1)))
    assert int(text.init().common) == 2


def test_tokens_add_up_in_the_printed_formula():
    options = {
        "network": "complete:5", "steps": 6, "clip_norm": 1.0, "noise_multiplier": 2.0, "adjacency": "user",
        "path": "secret", "learning_rate": 0.1,
    }  # fmt: skip
    one, three = (published_losses(RandomWalkSGD(GLM(dim=2), tokens=tokens, **options)) for tokens in (1, 3))
    np.testing.assert_allclose(three, 3 * one)
    assert one.max() > 0


def test_a_search_for_the_noise_of_a_plan_leaves_less_than_a_thousandth():
    plan = ConsensusSGD(
        GLM(dim=2),
        "exchange",
        network="hypercube:2",
        steps=9,
        clip_norm=1.0,
        adjacency="user",
        noise_multiplier=1.0,
    )
    for view in ("local", "network"):
        spent = plan.calibrated_to(2.0, 1e-5, view).privacy(view).epsilon(1e-5)
        assert 2.0 * (1 - 8e-4) < spent <= 2.0
