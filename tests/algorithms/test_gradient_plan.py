"""Plans of noisy gradients: statements, budgets, runs that resume, refused options."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from tests.algorithms.toys import COMMON, DELTA, FOUR, RING, N, Stop, blobs, net, shards

import sottovoce as sv
from sottovoce.accounting.guarantee import PUBLIC_RECORD_COUNT
from sottovoce.algorithms import (
    DPDSGD,
    DPDSGT,
    ConsensusSGD,
    DPDiNNO,
    GradientPlan,
    MuffliatoSGD,
    RandomWalkSGD,
)
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.data import Shards
from sottovoce.errors import BudgetInfeasible, DataError, InvalidInput
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM

NETS = {
    "dsgd": lambda o, **k: DPDSGD(o, network=FOUR, **k),
    "dsgt": lambda o, **k: DPDSGT(o, network=FOUR, **k),
    "dinno": lambda o, **k: DPDiNNO(o, network=FOUR, **k),
    "consensus": lambda o, **k: ConsensusSGD(o, network=FOUR, **k),
    "exchange": lambda o, **k: ConsensusSGD(o, "exchange", network=FOUR, **k),
    "muffliato": lambda o, **k: MuffliatoSGD(o, "chebyshev:2", network=FOUR, **k),
}


def test_every_agent_gets_the_least_noise_that_meets_its_budget():
    options = {"steps": 10, "sizes": [300, 300, 300, 900], "batch_size": 50, "view": "local"}
    plan = DPDSGD.for_budget(net(), FOUR, epsilon=2.0, delta=DELTA, **options)
    each = [plan.privacy("local", user=i).epsilon(DELTA) for i in range(4)]
    assert max(each) <= 2.0
    assert min(each) > 1.99
    assert len(set(plan.noise_multiplier)) == 2
    assert plan.calibrated_to(np.inf, DELTA, view="local").noise_multiplier == 0.0


@pytest.mark.parametrize("view", ["local", "network", "central"])
def test_budget_is_spent_against_the_adversary_it_names(view):
    """The whole of it: a plan made for one view does not spend the number of another."""
    options = {"steps": 6, "clip_norm": 1.0, "sizes": [50] * N, "epsilon": 2.0, "delta": DELTA}
    plan = ConsensusSGD.for_budget(GLM(), RING, view=view, **options)
    assert 1.99 < plan.epsilon(DELTA, view) <= 2.0


@pytest.mark.parametrize("name", NETS)
def test_runs_are_reproducible_resumable_and_learn(name, tmp_path):
    objective, data = net(), blobs(each=120)
    plan = NETS[name](
        objective, sizes=data.sizes, steps=12, batch_size=60, learning_rate=0.2, noise_multiplier=0.2
    )
    whole = plan.run(data, np.random.default_rng(3)).outputs["rows"]
    assert whole.tobytes() == plan.run(data, np.random.default_rng(3)).outputs["rows"].tobytes()

    def stop(step, entry):
        if step == 8:
            raise Stop

    folder = tmp_path / "run"
    with pytest.raises(Stop):
        plan.run(data, np.random.default_rng(3), on_evaluation=stop, checkpoint=folder, every=4)
    resumed = plan.run(data, np.random.default_rng(3), checkpoint=folder, every=4)
    assert resumed.outputs["rows"].tobytes() == whole.tobytes()
    assert [entry["step"] for entry in resumed.history] == [12]  # step 8 was saved before it was shown
    assert resumed.metrics["accuracy"] > 0.6


def test_checkpoint_of_a_protective_run_holds_no_key(tmp_path):
    data, folder = blobs(), tmp_path / "run"
    plan = DPDSGD(net(), FOUR, steps=4, sizes=data.sizes, batch_size=10, noise_multiplier=1.0)
    plan.run(data, ProtectiveNoise(), checkpoint=folder, every=2)
    assert set(json.loads((folder / "current.json").read_text())) == {"step", "identity", "files"}
    for file in folder.glob("*.npz"):
        with np.load(file, allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)


SIZES = {"sizes": [500] * 4}
GOSSIP = sv.protocols.Gossip(RING, 2)
RNG = np.random.default_rng(0)
BAD = [
    ("tree, an exchange or a masked sum", lambda: ConsensusSGD(GLM(), GOSSIP, **COMMON)),
    ("runs over tree or exchange", lambda: ConsensusSGD(GLM(), "gossip:2", network=RING, **COMMON)),
    ("2 protocols for 6 steps", lambda: MuffliatoSGD(GLM(), [GOSSIP] * 2, **COMMON)),
    ("divisor is public", lambda: DPDSGD(GLM(), RING, clip_norm=1.0)),
    ("needs clip", lambda: DPDSGD(GLM(), RING, adjacency="user")),
    ("finite where noise", lambda: DPDSGD(GLM(), RING, **{**COMMON, "clip_norm": math.inf})),
    ("needs a network", lambda: DPDSGD(GLM(), **COMMON)),
    ("holds 500 records, fewer than batch_size", lambda: DPDSGD(net(), FOUR, batch_size=600, **SIZES)),
    ("8 nodes, but sizes are given for 4", lambda: DPDSGD(net(), RING, **SIZES)),
    ("plain steps", lambda: DPDSGT(net(), FOUR, optimizer="adam", **SIZES)),
    ("no noise while others do", lambda: DPDSGD(net(), FOUR, noise_multiplier=(1.0, 0.0, 1.0, 1.0), **SIZES)),
    ("take fewer steps", lambda: DPDSGD.for_budget(net(), FOUR, epsilon=1e-13, delta=1e-30, **SIZES)),
    ("the data have 4 users", lambda: ConsensusSGD(GLM(), RING, **COMMON).run(shards(n=4), RNG)),
    ("NaN", lambda: ConsensusSGD(GLM(), RING, **COMMON).run(broken(), RNG)),
    ("make the plan for these data", lambda: DPDSGD(net(), FOUR, **SIZES).run(blobs(), RNG)),
    ("known without data", lambda: DPDSGD(GLM(), RING, **COMMON).width),
    ("takes l2 only", lambda: ConsensusSGD(GLM(l1=0.1), RING, **COMMON)),
    ("takes l2 only", lambda: ConsensusSGD(GLM(ball=1.0), RING, **COMMON)),
    ("takes l2 only", lambda: ConsensusSGD(GLM(box=1.0), RING, **COMMON)),
]


def broken():
    data = shards()
    return Shards(data.X * np.nan, data.y, data.offsets)


@pytest.mark.parametrize(("words", "make"), BAD)
def test_invalid_gradient_plans_are_refused(words, make):
    with pytest.raises((InvalidInput, DataError, BudgetInfeasible), match=words) as caught:
        make()
    assert str(caught.value).replace("...", "").count(". ") == 0


def test_disagreement_is_the_mean_square_distance_from_the_mean_row():
    """Rows (0, 2) and (4, 2) have the mean (2, 2): squares 4, 0, 4, 0."""
    silent = SimpleNamespace(objective=SimpleNamespace(metrics=lambda rows, data: {"loss": 3.0}))
    actual = GradientPlan.metrics(silent, np.array([[0.0, 2.0], [4.0, 2.0]]), None, None)
    assert actual == {"disagreement": 2.0, "loss": 3.0}


def test_unvisited_member_gets_the_largest_noise():
    walk = RandomWalkSGD.for_budget(
        GLM(), network=sv.graphs.ring(4), path=(0, 1, 2, 1), steps=4, clip_norm=1.0, adjacency="user",
        epsilon=2.0, delta=1e-5, view="local",
    )  # fmt: skip
    noises = noise_multipliers(walk)
    assert not walk.releases(3)
    assert noises[3] == max(noises) == noises[1]  # visited twice
    assert noises[0] == noises[2] < noises[1]
    assert walk.epsilon(1e-5, "local") == pytest.approx(2.0, rel=1e-3)


def test_the_number_of_records_is_assumed_public_only_where_divisors_and_rates_follow_it():
    common = {"network": "ring:4", "steps": 2, "clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 5}
    stated = ConsensusSGD(GLM(), sizes=[20] * 4, **common)
    independent = ConsensusSGD(GLM(), sample_rate=0.25, **common)
    assert stated.privacy("local").curve == independent.privacy("local").curve
    assert PUBLIC_RECORD_COUNT in stated.privacy("local").assumptions
    assert not any("number of records" in line for line in independent.privacy("local").assumptions)
