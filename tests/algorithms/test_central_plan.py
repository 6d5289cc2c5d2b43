"""Plans of one holder: sensitivity, noise, budgets, resumed runs, refused data."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
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


def test_protective_runs_differ():
    X, y = problem(5)
    for plan in (sgd(), cd(), cd(bounds=(3.0,) * 4), gcd()):
        once, again = (plan.run((X, y), ProtectiveNoise()) for _ in range(2))
        assert (once.outputs["coef"] != again.outputs["coef"]).any()
        assert once.provenance["noise"] == "protective"
        same = [plan.run((X, y), np.random.default_rng(8)) for _ in range(2)]
        assert (same[0].outputs["coef"] == same[1].outputs["coef"]).all()
        assert "simulation" in same[0].provenance["noise"]


def test_user_level_is_refused_where_it_is_not_accounted():
    for make in (sgd, cd, gcd):
        with pytest.raises(InvalidInput, match=r"adjacency of dp-.* must be add-remove or replace-one"):
            make(adjacency="user")


def test_invalid_plans_and_data_are_refused():
    X, y = problem(7)
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="separable"):
        cd(GLM(ball=1.0))
    with pytest.raises(InvalidInput, match="either public smoothness"):
        DPCD(GLM(), 60, 3, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="leave it out or give bounds"):
        cd(smoothness_mu=1.0)
    with pytest.raises(InvalidInput, match="2 coordinates"):
        cd(smoothness=(1.0, 1.0)).run((X, y), rng)
    with pytest.raises(InvalidInput, match="2 coordinates"):
        gcd(smoothness=(1.0, 1.0)).run((X, y), rng)
    with pytest.raises(InvalidInput, match="public number"):
        cd().run((X[1:], y[1:]), rng)
    cd(adjacency="add-remove").run((X[1:], y[1:]), rng)
    with pytest.raises(DataError, match="the plan was made for"):
        sgd().run((X[1:], y[1:]), rng)
    sgd(records=None, batch_size=12, sample_rate=0.2).run((X[1:], y[1:]), rng)
    with pytest.raises(DataError, match="Labels"):
        sgd().run((X, y + 5), rng)
    with pytest.raises(DataError, match="Dataset, a pair"):
        sgd().run(None, rng)
    with pytest.raises(DataError, match=r"Expected features \(n, p\)"):
        cd().run((X, y[1:]), rng)
    with pytest.raises(DataError, match="take at most 60"):
        sgd(batch_size=61)
    with pytest.raises(InvalidInput, match="one holder"):
        sgd(network="ring:4")
    with pytest.raises(InvalidInput, match="got 2 agents"):
        DPSGD(GLM(), steps=1, clip_norm=1.0, sizes=(3, 4))
    with pytest.raises(InvalidInput, match="give one"):
        sgd(sizes=(3,))
    with pytest.raises(InvalidInput, match="one part, got 2 users"):
        cd().run(Shards(X, y, np.array([0, 30, 60])), rng)
    for make in (sgd, cd, gcd):
        with pytest.raises(InvalidInput, match="central"):
            make().privacy("local")
    for make in (sgd, cd):
        with pytest.raises(InvalidInput, match="dense features"):
            make().run((sp.csr_array(X), y), rng)
        with pytest.raises(InvalidInput, match="finite"):
            make(clip_norm=math.inf)
        assert math.isinf(make(noise_multiplier=0.0).privacy().epsilon(1e-5))
    assert cd(steps=3, noise_multiplier=2.0).privacy().epsilon(1e-5) == gaussian_epsilon(math.sqrt(3), 1e-5)


def test_curator_needs_at_least_one_record():
    central = DPSGD(GLM(), records=1, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    result = central.run((np.ones((1, 2)), np.ones(1)), np.random.default_rng(0))
    assert np.isfinite(result.outputs["coef"]).all()
    cd = DPCD(GLM(), records=1, steps=2, clip_norm=1.0, noise_multiplier=1.0, smoothness=(0.25, 0.25))
    assert np.isfinite(cd.run((np.ones((1, 2)), np.ones(1)), np.random.default_rng(0)).outputs["coef"]).all()
    with pytest.raises(DataError, match="n >= 1 labels"):
        cd.run((np.ones((0, 2)), np.ones(0)), np.random.default_rng(0))
