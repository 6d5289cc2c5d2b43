"""Plans of one holder: sensitivity, noise, budgets, resumed runs, refused data."""

import math

import numpy as np
import pytest
from tests.algorithms.toys import MODELS, cd, gcd, hosted, named, problem, sgd

from sottovoce.algorithms import DPCD, DPGCD, DPSGD
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import RecordedNoise
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, gaussian_epsilon
from sottovoce.runners import run_stacked
from sottovoce.runners.state import leaves


@pytest.mark.parametrize("model", MODELS, ids=named)
@pytest.mark.parametrize("make", [
    lambda model: sgd(model, steps=23, learning_rate=(0.5, 0.1), output="mean"),
    lambda model: sgd(model, steps=23, batch_size=None),
    lambda model: cd(model),
    lambda model: cd(model, period=5),
    lambda model: cd(model, bounds=(2.0,) * 4, adjacency="add-remove"),
    lambda model: cd(model, noise_multiplier=0.0, clip_norm=math.inf),
], ids=["sgd-mean", "sgd-full", "cd", "cd-period", "cd-private", "cd-plain"])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True], ids=["simulated", "on-the-grid"])
@pytest.mark.parametrize("every", [7, 23])
def test_compiled_block_equals_single_steps(model, make, recorded, every):
    """The compiled loop against message and update, one step at a time; protective draws are replayed."""
    if model.ball and make(MODELS[0]).name == "dp-cd":
        pytest.skip("coordinate descent refuses the ball")
    plan, data = make(model), problem(8)
    tape = RecordedNoise(ProtectiveNoise())
    actual = []
    for compiled in (True, False):
        random = RunRandomness(tape, 5, 7) if recorded else RunRandomness.from_rng(np.random.default_rng(3))
        algorithm, mechanism = hosted(plan, data, random)
        mechanism.recording()
        assert algorithm.block is not None
        algorithm = algorithm if compiled else algorithm._replace(block=None)
        state = run_stacked(algorithm, plan.schedule, plan.steps, every=every)
        charged = sum(release.draws for release in mechanism.drain())
        actual.append((algorithm.output(state), state.common, charged))
    assert (actual[0][0] == actual[1][0]).all()
    assert actual[0][2] == actual[1][2]
    for one, other in zip(leaves(actual[0][1]), leaves(actual[1][1]), strict=True):
        assert np.array_equal(one, other)


def test_calibration_meets_the_budget_tightly():
    options = {
        "objective": GLM(),
        "records": 1000,
        "clip_norm": 1.0,
        "epsilon": 1.0,
        "delta": 1e-6,
        "steps": 30,
    }
    for plan in (
        DPSGD.for_budget(batch_size=50, learning_rate=1.0, **options),
        DPCD.for_budget(bounds=(1.0, 2.0), **options),
        DPCD.for_budget(bounds=(1.0, 2.0), smoothness_mu=0.05, **options),
        DPCD.for_budget(smoothness=(1.0, 2.0), adjacency="add-remove", **options),
        DPGCD.for_budget(**options),
    ):
        assert 0.999 <= plan.privacy().epsilon(1e-6) <= 1.0
        assert plan.privacy().adversary.kind == "central"
        plan.privacy("central").require(1.0, 1e-6)
        assert plan.cost()["messages"] == 0
    exact = DPCD.for_budget(smoothness=(1.0, 2.0), **options)
    assert exact.privacy().epsilon(1e-6) == pytest.approx(1.0, rel=1e-9)


X, Y = problem(7)
BAD = [
    ("separable", lambda: cd(GLM(ball=1.0))),
    ("either public smoothness", lambda: DPCD(GLM(), 60, 3, 1.0, 1.0)),
    ("leave it out or give bounds", lambda: cd(smoothness_mu=1.0)),
    ("2 coordinates", lambda: ran(cd(smoothness=(1.0, 1.0)))),
    ("2 coordinates", lambda: ran(gcd(smoothness=(1.0, 1.0)))),
    ("public number", lambda: ran(cd(), X[1:], Y[1:])),
    ("the plan was made for", lambda: ran(sgd(), X[1:], Y[1:])),
    ("Labels", lambda: ran(sgd(), X, Y + 5)),
    ("Dataset, a pair", lambda: sgd().run(None, np.random.default_rng(0))),
    (r"Expected features \(n, p\)", lambda: ran(cd(), X, Y[1:])),
    ("n >= 1 labels", lambda: ran(cd(records=1), np.ones((0, 4)), np.ones(0))),
    ("take at most 60", lambda: sgd(batch_size=61)),
    ("one holder", lambda: sgd(network="ring:4")),
    ("got 2 agents", lambda: DPSGD(GLM(), steps=1, clip_norm=1.0, sizes=(3, 4))),
    ("give one", lambda: sgd(sizes=(3,))),
    ("one part, got 2 users", lambda: cd().run(Shards(X, Y, np.array([0, 30, 60])), 0)),
    *(("central", lambda make=make: make().privacy("local")) for make in (sgd, cd, gcd)),
    *(("finite", lambda make=make: make(clip_norm=math.inf)) for make in (sgd, cd)),
]


def ran(plan, X=X, y=Y):
    return plan.run((X, y), np.random.default_rng(0))


@pytest.mark.parametrize(("words", "act"), BAD)
def test_invalid_plans_and_data_are_refused(words, act):
    with pytest.raises((InvalidInput, DataError), match=words):
        act()


def test_number_of_records_may_differ_where_it_is_not_public():
    ran(cd(adjacency="add-remove"), X[1:], Y[1:])
    ran(sgd(records=None, batch_size=12, sample_rate=0.2), X[1:], Y[1:])


@pytest.mark.parametrize("make", [sgd, cd])
def test_curator_needs_at_least_one_record(make):
    plan = make(records=1, **({"batch_size": None} if make is sgd else {}))
    assert np.isfinite(ran(plan, np.ones((1, 4)), np.ones(1)).coef).all()


def test_noise_and_steps_of_coordinate_descent_are_those_of_a_gaussian():
    assert cd(steps=3, noise_multiplier=2.0).privacy().epsilon(1e-5) == gaussian_epsilon(math.sqrt(3), 1e-5)
