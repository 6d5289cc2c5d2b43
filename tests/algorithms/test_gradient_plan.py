"""Plans of noisy gradients: statements, budgets, runs that resume, refused options."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from tests.algorithms.toys import COMMON, DELTA, FOUR, RING, N, Stop, blobs, net, shards

import sottovoce as sv
from sottovoce.algorithms import (
    DPDSGD,
    DPDSGT,
    ConsensusSGD,
    DPDiNNO,
    GradientPlan,
    MuffliatoSGD,
    Optimizer,
    RandomWalkSGD,
)
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.data import Shards
from sottovoce.data.agent_tensors import AgentData
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
    plan = DPDSGD.for_budget(
        net(),
        FOUR,
        steps=10,
        sizes=[300, 300, 300, 900],
        batch_size=50,
        epsilon=2.0,
        delta=DELTA,
        view="local",
    )
    each = [plan.privacy("local", user=i).epsilon(DELTA) for i in range(4)]
    assert max(each) <= 2.0
    assert min(each) > 1.99
    assert len(set(plan.noise_multiplier)) == 2
    assert plan.calibrated_to(np.inf, DELTA, view="local").noise_multiplier == 0.0


@pytest.mark.parametrize("view", ["local", "network", "central"])
def test_budget_is_spent_against_the_adversary_it_names(view):
    """The whole of it: a plan made for one view does not spend the number of another."""
    plan = ConsensusSGD.for_budget(
        GLM(), RING, steps=6, clip_norm=1.0, sizes=[50] * N, epsilon=2.0, delta=DELTA, view=view
    )
    assert 1.99 < plan.epsilon(DELTA, view) <= 2.0
    default = ConsensusSGD.for_budget(
        GLM(), RING, steps=6, clip_norm=1.0, sizes=[50] * N, epsilon=2.0, delta=DELTA
    )
    assert 1.99 < default.epsilon(DELTA, "network") <= 2.0


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
    assert resumed.history[0]["step"] == 8
    assert resumed.metrics["accuracy"] > 0.6


def test_checkpoint_of_a_protective_run_holds_no_key(tmp_path):
    data, folder = blobs(), tmp_path / "run"
    plan = DPDSGD(net(), FOUR, steps=4, sizes=data.sizes, batch_size=10, noise_multiplier=1.0)
    plan.run(data, ProtectiveNoise(), checkpoint=folder, every=2)
    assert set(json.loads((folder / "current.json").read_text())) == {"step", "identity", "files"}
    for file in folder.glob("*.npz"):
        with np.load(file, allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)


def test_invalid_gradient_plans_are_refused():
    def refused(error, match, make):
        with pytest.raises(error, match=match) as caught:
            make()
        assert str(caught.value).replace("...", "").count(". ") == 0

    record = {k: v for k, v in COMMON.items() if k != "adjacency"}
    refused(
        InvalidInput,
        "tree, an exchange or a masked sum",
        lambda: ConsensusSGD(GLM(), sv.protocols.Gossip(RING, 2), **COMMON),
    )
    refused(
        InvalidInput,
        "runs over tree or exchange",
        lambda: ConsensusSGD(GLM(), "gossip:2", network=RING, **COMMON),
    )
    refused(
        InvalidInput, "2 protocols for 6 steps",
        lambda: MuffliatoSGD(GLM(), [sv.protocols.Gossip(RING, 2)] * 2, **COMMON),
    )  # fmt: skip
    refused(InvalidInput, "divisor is public", lambda: DPDSGD(GLM(), RING, **record))
    refused(InvalidInput, "needs clip", lambda: DPDSGD(GLM(), RING, adjacency="user"))
    refused(
        InvalidInput, "finite where noise", lambda: DPDSGD(GLM(), RING, **{**COMMON, "clip_norm": math.inf})
    )
    refused(InvalidInput, "needs a network", lambda: DPDSGD(GLM(), **COMMON))
    refused(
        DataError, "agent 1 holds 30 records, fewer than batch_size 50",
        lambda: DPDSGD(net(), FOUR, steps=10, sizes=[500, 30, 500, 500], batch_size=50),
    )  # fmt: skip
    refused(InvalidInput, "8 nodes, but sizes are given for 4", lambda: DPDSGD(net(), RING, sizes=[500] * 4))
    refused(
        InvalidInput, "plain steps",
        lambda: DPDSGT(net(), FOUR, sizes=[500] * 4, optimizer=Optimizer("adam")),
    )  # fmt: skip
    refused(
        InvalidInput, "no noise while others do",
        lambda: DPDSGD(net(), FOUR, sizes=[500] * 4, noise_multiplier=(1.0, 0.0, 1.0, 1.0)),
    )  # fmt: skip
    refused(
        BudgetInfeasible, "take fewer steps",
        lambda: DPDSGD.for_budget(
            net(), FOUR, steps=10, sizes=[500] * 4, epsilon=1e-13, delta=1e-30, accounting="rdp"
        ),
    )  # fmt: skip
    refused(
        InvalidInput, "the data have 4 users",
        lambda: ConsensusSGD(GLM(), RING, **COMMON).run(shards(n=4), np.random.default_rng(0)),
    )  # fmt: skip
    data = shards()
    broken = Shards(data.X * np.nan, data.y, data.offsets)
    refused(
        DataError, "NaN", lambda: ConsensusSGD(GLM(), RING, **COMMON).run(broken, np.random.default_rng(0))
    )
    refused(
        DataError, "make the plan for these data",
        lambda: DPDSGD(net(), FOUR, steps=2, sizes=[500] * 4).run(blobs(), np.random.default_rng(0)),
    )  # fmt: skip
    refused(InvalidInput, "known without data", lambda: DPDSGD(GLM(), RING, **COMMON).width)
    refused(
        DataError,
        "label 3, but the classes are 0 to 2",
        lambda: AgentData(np.zeros((2, 5)), [0, 3], [[0], [1]], classes=3),
    )
    refused(DataError, "two agents", lambda: AgentData(np.zeros((2, 5)), [0, 1], [[0], [0]]))


@pytest.mark.parametrize("term", [{"l1": 0.1}, {"ball": 1.0}, {"box": 1.0}])
def test_term_that_needs_a_proximal_map_is_refused_where_there_is_none(term):
    with pytest.raises(InvalidInput, match="takes l2 only"):
        ConsensusSGD(GLM(**term), "tree", network="ring:3", steps=1, clip_norm=1.0, adjacency="user")


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
