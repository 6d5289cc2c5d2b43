"""Learning plans: prices, schedules, sizes, runs that resume, refusals; contracts are in test_contract.py."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sottovoce as sv
from sottovoce.algorithms import DPDSGD, DPDSGT, ConsensusSGD, DPDiNNO, MuffliatoSGD, Optimizer, Rate
from sottovoce.data import Shards
from sottovoce.data.agent_tensors import AgentData
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.errors import BudgetInfeasible, ConfigError, DataError, InvalidInput, NotAGuarantee
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.objectives.nets.objective import NetObjective

DELTA = 1e-5
N, P = 8, 3
RING = sv.graphs.ring(N)
FOUR = sv.graphs.ring(4)
COMMON = {"steps": 6, "learning_rate": 0.4, "clip_norm": 0.7, "noise_multiplier": 2.0, "adjacency": "user"}


def shards(seed=0, n=N, records=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * records, P))
    y = np.sign(X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=n * records))
    return Shards(X, y, np.arange(n + 1) * records)


def blobs(agents=4, each=40, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, agents * each)
    x = (rng.normal(size=(len(y), 5)) + 2 * np.eye(3, 5)[y]).astype(np.float32)
    return AgentData(x, y, np.split(np.arange(len(y)), agents), test=(x, y), classes=3)


def net(clip_norm=1.0):
    torch.manual_seed(0)
    return NetObjective(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), clip_norm=clip_norm)


SCHEDULES = {
    "gossip": lambda: sv.protocols.Gossip(RING, 3),
    "chebyshev": lambda: sv.protocols.Chebyshev(RING, 4),
    "fresh": lambda: (
        lambda k: sv.protocols.Gossip(sv.graphs.erdos_renyi(N, 2.0, np.random.default_rng([9, k])), 2)
    ),
    "varying": lambda: sv.protocols.TimeVarying([RING, sv.graphs.complete(N)]),
    "dropout": lambda: sv.protocols.Dropout(RING, 3, nodes={1: [2]}),
    "refreshed": lambda: sv.protocols.FreshNoiseGossip(RING, 3, tau=0.1),
}
NETS = {
    "dsgd": lambda o, **k: DPDSGD(o, network=FOUR, **k),
    "dsgt": lambda o, **k: DPDSGT(o, network=FOUR, **k),
    "dinno": lambda o, **k: DPDiNNO(o, network=FOUR, **k),
    "consensus": lambda o, **k: ConsensusSGD(o, network=FOUR, **k),
    "exchange": lambda o, **k: ConsensusSGD(o, "exchange", network=FOUR, **k),
    "muffliato": lambda o, **k: MuffliatoSGD(o, "chebyshev:2", network=FOUR, **k),
}


# ---- schedules ------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_muffliato_takes_every_schedule_and_keeps_the_mean(name):
    plan = MuffliatoSGD(GLM("logistic", l2=0.1), SCHEDULES[name](), **COMMON)
    random = RunRandomness(SimulatedNoise(0), 1, 2)
    source = plan.source(shards(), range(N), random)
    text = plan.algorithm(source, np.zeros((N, P)))
    state = text.init()
    for k in range(3):
        sent = text.message(state, k)
        got = plan.schedule(k).apply(sent, noise=random.noise, step=k)
        if name != "refreshed":
            assert np.allclose(got.mean(axis=0), sent.mean(axis=0), atol=1e-13)
        state = text.update(state, got, k)
    assert plan.privacy("local").label == "ldp"
    assert plan.privacy("pairwise", observer=0, user=4).valid


def test_a_run_drops_the_trees_it_draws_and_keeps_those_that_were_priced():
    """A small thing kept for every step pins the memory of the rows around it."""
    fresh, asked = (ConsensusSGD(GLM(), "tree:kind=uniform", network=RING, **COMMON) for _ in range(2))
    before = [asked.schedule(k) for k in range(asked.steps)]
    drawn = fresh.schedule.in_order()
    for k in range(fresh.steps):
        assert drawn(k) is drawn(k)
    assert list(fresh.schedule._drawn) == [
        0,
        fresh.steps - 1,
    ]  # every plan looks at the first when it is made
    rows = [plan.run(shards(), np.random.default_rng(1)).outputs["rows"] for plan in (fresh, asked)]
    assert (rows[0] == rows[1]).all()
    assert all(asked.schedule(k) is kept for k, kept in enumerate(before))
    assert [fresh.schedule(k).parents.tolist() for k in range(fresh.steps)] == [
        kept.parents.tolist() for kept in before
    ]  # what was dropped comes back as it was


def test_a_schedule_that_draws_is_drawn_once():
    """What is priced is what runs: a function that draws gives the same protocol when asked again."""
    rng = np.random.default_rng(0)
    plan = ConsensusSGD(GLM(), lambda k: sv.protocols.Tree(RING, kind="uniform", rng=rng), **COMMON)
    asked = [plan.privacy("network").mu for _ in range(3)]
    assert len(set(asked)) == 1
    assert plan.with_noise(5.0).schedule(3) is plan.schedule(3)  # calibration prices the same trees
    plan.run(shards(), np.random.default_rng(1))
    assert plan.privacy("network").mu == asked[0]
    again = ConsensusSGD(GLM(), RING, **COMMON)
    assert [again.schedule(k).parents.tolist() for k in range(4)] == [
        ConsensusSGD(GLM(), RING, **COMMON).schedule(k).parents.tolist() for k in range(4)
    ]


def test_exact_consensus_is_demanded_of_every_step():
    gossip, exchange = sv.protocols.Gossip(RING, 2), sv.protocols.HypercubeExchange(N)
    plan = ConsensusSGD(GLM(), lambda k: exchange if k == 0 else gossip, **COMMON)
    for use in (
        lambda: plan.privacy("network"),
        lambda: plan.privacy("central"),
        lambda: plan.run(shards(), np.random.default_rng(0)),
        plan.cost,
    ):
        with pytest.raises(InvalidInput, match="Tree or an Exchange"):
            use()
    with pytest.raises(InvalidInput, match="Tree or an Exchange"):
        ConsensusSGD(GLM(), [exchange] * 5 + [gossip], **COMMON).privacy("network")


# ---- prices ------------------------------------------


def test_labels_say_what_is_a_guarantee():
    plan = MuffliatoSGD(GLM(), SCHEDULES["gossip"](), **COMMON)
    asked = {"observer": 0, "user": 4}
    assert plan.privacy("pairwise", **asked).label == "ldp"
    linear = plan.privacy("pairwise", **asked, label="conditional")
    assert linear.mu <= plan.privacy("local").mu
    with pytest.raises(NotAGuarantee):
        linear.require(1e6, DELTA)
    with pytest.raises(NotAGuarantee):
        plan.privacy("pairwise", **asked, label="conditional").require(1e6, DELTA)


def test_exact_consensus_price_is_that_of_the_schedule():
    plan = ConsensusSGD(GLM(), "exchange", network=RING, **COMMON)
    for user, share in ((1, 1.0), (2, 0.5), (7, 0.25)):
        want = (2 / 2.0) ** 2 * 6 * share
        assert plan.privacy("pairwise", observer=0, user=user).mu ** 2 == pytest.approx(want)
    assert plan.privacy("central").mu ** 2 == pytest.approx(6 / N)
    assert plan.privacy("network").mu ** 2 == pytest.approx(6.0)
    batches = {**COMMON, "adjacency": "add-remove", "sizes": [40] * N, "batch_size": 10}
    record = ConsensusSGD(GLM(), "exchange", network=RING, **batches)
    pair = record.privacy("pairwise", observer=0, user=7)
    expected = sv.privacy.sampled_gaussian(0.25, 2.0 * 2, 6)
    assert pair.label == "exact"
    assert pair.epsilon(DELTA) == pytest.approx(expected.epsilon(DELTA), rel=1e-6)
    assert pair.epsilon(DELTA) < record.epsilon(DELTA, "local")


def test_the_released_model_costs_a_network_what_it_costs_a_linear_model():
    """Sixteen agents: a sixteenth of the local square, whatever is trained (it was the local number once)."""
    sixteen = {"network": sv.graphs.hypercube(4), "steps": 10, "sizes": [100] * 16, "noise_multiplier": 8.0}
    deep = ConsensusSGD(net(), "exchange", **sixteen)
    flat = ConsensusSGD(GLM(), "exchange", clip_norm=1.0, **sixteen)
    assert deep.privacy("central").mu == flat.privacy("central").mu == pytest.approx(math.sqrt(10 / 16) / 8)


def test_a_small_node_is_not_hidden_by_the_quiet_noise_of_large_ones():
    """Mean of sites' means: node 0 holds 10 records, the others 1,000; the noise is nearly all node 0's."""
    options = COMMON | {"adjacency": "add-remove", "noise_multiplier": 1.0}
    uneven = ConsensusSGD(
        GLM(), sv.protocols.HypercubeExchange(4), sizes=(10, 1000, 1000, 1000), weighting="sites", **options
    )
    data = Shards(np.ones((3010, 1)), np.tile([1.0, -1.0], 1505), np.array([0, 10, 1010, 2010, 3010]))
    source = uneven.source(uneven.prepared(data), range(4), RunRandomness.from_rng(np.random.default_rng(0)))
    std = source.stds / source.divisors  # what really stands behind a row of each node
    assert std == pytest.approx(0.7 / np.array([10, 1000, 1000, 1000]))
    steps = options["steps"]
    # node 3 hears node 2 alone, then the sum of nodes 0 and 1
    share = 0.1**2 / (0.1**2 + 0.001**2)
    assert uneven.privacy("pairwise", observer=3, user=0).mu ** 2 == pytest.approx(steps * share)
    whole = 0.1**2 / (0.1**2 + 3 * 0.001**2)
    assert uneven.privacy("central", user=0).mu ** 2 == pytest.approx(steps * whole)
    even = ConsensusSGD(GLM(), sv.protocols.HypercubeExchange(4), sizes=(10, 1000, 1000, 1000), **options)
    assert even.privacy("pairwise", observer=3, user=0).mu ** 2 == pytest.approx(steps / 2)


def test_one_step_is_averaging_and_exact():
    plan = MuffliatoSGD(GLM(), sv.protocols.Gossip(sv.graphs.path(3), 2), **{**COMMON, "steps": 1})
    pair = plan.privacy("pairwise", observer=2, user=0)
    assert pair.label == "exact"
    assert pair.mu == pytest.approx(1.0)  # own noise known: all of the local loss


def test_one_multiplier_has_one_price():
    """noise_multiplier 4, one user-level release: the same epsilon in averaging and in training."""
    averaging = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0 * 0.5, radius=0.5)
    assert averaging.noise_multiplier == 4.0
    training = ConsensusSGD(
        GLM(), "exchange", network=FOUR, **{**COMMON, "steps": 1, "noise_multiplier": 4.0}
    )
    want = 1.993091  # mu = 2/4 at delta 1e-5
    assert averaging.epsilon(DELTA, "local") == pytest.approx(want, abs=1e-6)
    assert training.epsilon(DELTA, "local") == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "multipliers"),
    [
        (1 / 22, (15.78, 8.359, 1.296, 0.4834)),
        (1 / 24, (14.375, 7.656, 1.218, 0.4686)),
        (1 / 27, (12.81, 6.797, 1.125, 0.4499)),
    ],
)
def test_noise_multipliers_of_b23(rate, multipliers):
    from sottovoce.accounting.calibration import calibrate
    from sottovoce.privacy import Curve

    for epsilon, printed in zip((0.5, 1, 10, 100), multipliers, strict=True):
        z = calibrate(
            lambda z: Curve.sampled_gaussian(rate, z, 2000, method="rdp"), epsilon, DELTA, tolerance=1e-3
        )
        assert abs(z / printed - 1) < 0.01, (epsilon, z, printed)
        assert Curve.sampled_gaussian(rate, z, 2000).epsilon(DELTA) < epsilon


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


@pytest.mark.parametrize("view", ["local", "network", "central"])
def test_a_budget_is_spent_against_the_adversary_it_names(view):
    """The whole of it: a plan made for one view does not spend the number of another."""
    plan = ConsensusSGD.for_budget(
        GLM(), RING, steps=6, clip_norm=1.0, sizes=[50] * N, epsilon=2.0, delta=DELTA, view=view
    )
    assert 1.99 < plan.epsilon(DELTA, view) <= 2.0
    default = ConsensusSGD.for_budget(
        GLM(), RING, steps=6, clip_norm=1.0, sizes=[50] * N, epsilon=2.0, delta=DELTA
    )
    assert 1.99 < default.epsilon(DELTA, "network") <= 2.0


def test_dinno_pays_for_every_primal_step():
    options = {"sizes": [500] * 4, "batch_size": 50, "noise_multiplier": 1.0}
    once = DPDiNNO(net(), FOUR, steps=40, **options)
    twice = DPDiNNO(net(), FOUR, steps=40, primal_steps=2, **options)
    longer = DPDiNNO(net(), FOUR, steps=80, **options)
    assert twice.epsilon(DELTA) == longer.epsilon(DELTA) > once.epsilon(DELTA)


def test_statements_name_adjacency_view_and_places():
    plan = DPDSGD(net(), FOUR, steps=10, sizes=[500] * 4, batch_size=50, noise_multiplier=2.0)
    text = plan.privacy("local").statement(DELTA)
    for word in ("one record is added or removed", "Poisson", "public, not protected"):
        assert word in text
    for adjacency, empty in (("add-remove", True), ("replace-one", False)):
        options = {"steps": 2, "sizes": [20] * 4, "noise_multiplier": 1.0, "adjacency": adjacency}
        plan = ConsensusSGD(net(), sv.graphs.complete(4), **options)
        for found in (
            plan.privacy("local"),
            plan.privacy("pairwise", observer=0, user=1),
            plan.privacy("network"),
        ):
            assert any("public, not protected" in line for line in found.assumptions) is empty
            counts_public = ("how many records each member has is public", "the number of records is public")
            assert any(line.startswith(counts_public) for line in found.assumptions)
    assert DPDSGD(GLM(), FOUR, **COMMON).privacy("local").assumptions == ()


# ---- texts against their equations beyond the contract ------------------------------------------


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


@pytest.mark.parametrize("make", [DPDSGD, ConsensusSGD, MuffliatoSGD])
def test_one_agent_alone_is_sgd(make):
    objective, data = net(math.inf), blobs(agents=1)
    start = objective.start()[0]
    expected = sgd_by_hand(objective, data.inputs, data.targets, start, [0.5, 0.05, 0.005])
    plan = make(objective, sv.graphs.complete(1), steps=3, sizes=data.sizes, learning_rate=(0.5, 0.005))
    rows = plan.run(data, np.random.default_rng(0), start=start).outputs["rows"]
    np.testing.assert_allclose(rows[0], expected, rtol=1e-5, atol=1e-6)


def test_without_noise_muffliato_converges_to_the_minimizer():
    data, model = shards(records=8), GLM("logistic", l2=0.1)
    plan = MuffliatoSGD(
        model, sv.protocols.Chebyshev(RING, 12), 300, 0.8, clip_norm=math.inf, adjacency="user"
    )
    rows = plan.run(data, np.random.default_rng(0)).outputs["rows"]
    assert np.allclose(rows, model.minimize(data.X, data.y), atol=2e-3)


@pytest.mark.parametrize("adjacency", ["user", "add-remove"])
def test_the_l2_term_is_that_of_ridge(adjacency):
    """Inside the clip at user level, after the mean at record level: the same point without a clip."""
    data, model = shards(records=8), GLM("logistic", l2=0.1)
    options = {"clip_norm": math.inf, "adjacency": adjacency, "sizes": [8] * N}
    rows = ConsensusSGD(model, RING, 400, 0.8, **options).run(data, np.random.default_rng(0)).outputs["rows"]
    assert np.allclose(rows[0], model.minimize(data.X, data.y), atol=1e-6)


def test_dsgt_tracks_the_sum_of_the_gradients():
    objective, data = net(), blobs()
    plan = DPDSGT(objective, FOUR, steps=6, sizes=data.sizes, batch_size=20, noise_multiplier=0.7)
    source = plan.source(data, range(4), RunRandomness.from_rng(np.random.default_rng(5)))
    text = plan.algorithm(source, objective.start(4))
    state, gossip = text.init(), sv.protocols.Gossip(FOUR, 1)
    for k in range(6):
        state = text.update(state, gossip.apply(text.message(state, k)), k)
        np.testing.assert_allclose(state.own.y.sum(0), state.own.g.sum(0), atol=1e-4)


def test_dinno_lowers_a_convex_loss_and_brings_agents_together():
    torch.manual_seed(0)
    objective, data = NetObjective(nn.Linear(5, 3), clip_norm=math.inf), blobs(agents=4)
    start = np.zeros(18, np.float32)
    before = objective.losses(start[None], data.inputs, data.targets).mean()
    for optimizer, rate in ((Optimizer("sgd"), 0.2), (Optimizer("adam"), 0.01)):
        plan = DPDiNNO(objective, FOUR, steps=200, sizes=data.sizes, learning_rate=rate, optimizer=optimizer)
        rows = plan.run(data, np.random.default_rng(0), start=start).outputs["rows"]
        after = objective.losses(rows, data.inputs, data.targets).mean(1)
        assert (after < 0.35 * before).all()
        assert np.abs(rows - rows.mean(0)).max() < 0.05 * np.abs(rows).max()


@pytest.mark.parametrize(("share", "dies"), [(0.97, True), (1.03, False)])
def test_disagreement_in_dinno_dies_out_up_to_four_thirds(share, dies):
    """Without gradients the agents agree if and only if rate * rho * (largest Laplacian value) < 4/3."""
    graph = sv.graphs.random_connected(10, 0.06, np.random.default_rng(3))
    A = graph.adjacency.toarray()
    degrees = A.sum(axis=1)
    largest = np.linalg.eigvalsh(np.diag(degrees) - A)[-1]

    class Nothing:
        agents = range(10)

        def gradient_with_l2(self, theta, k, stream):
            return np.zeros_like(theta)

    options = {"clip_norm": 1.0, "adjacency": "user", "learning_rate": 0.5, "optimizer": "sgd"}
    rho = share * 4 / 3 / largest / 0.5
    plan = DPDiNNO(GLM(dim=3), graph, steps=600, rho=rho, rho_growth=1.0, **options)
    text = plan.algorithm(Nothing(), np.random.default_rng(0).normal(size=(10, 3)))
    state = text.init()
    for k in range(600):
        state = text.update(state, A @ text.message(state, k), k)
    assert (np.ptp(text.output(state), axis=0).max() < 1e-3) == dies


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_optimizers_equal_torch(kind):
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(2, 3))
    parameter = nn.Parameter(torch.tensor(theta.copy()))
    theirs = {
        "sgd": lambda: torch.optim.SGD([parameter], lr=0.1),
        "momentum": lambda: torch.optim.SGD([parameter], lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam([parameter], lr=0.1),
    }[kind]()
    ours = Optimizer(kind)
    state = ours.init(theta)
    for _ in range(5):
        g = rng.normal(size=(2, 3))
        parameter.grad = torch.tensor(g)
        theirs.step()
        step, state = ours.step(state, g, 0.1)
        theta = theta - step
    np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=1e-6)


def test_rates():
    assert Rate(1.0, 0.5, "linear")(1, 3) == pytest.approx(0.75)
    assert Rate(1.0, 0.5, "cosine")(2, 3) == pytest.approx(0.5)
    assert Rate.from_value((0.1, 0.01)) == Rate(0.1, 0.01)
    with pytest.raises(InvalidInput):
        Rate(0.1, 0.01, "zigzag")


# ---- runs ------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", NETS)
def test_runs_reproduce_resume_and_learn(name, tmp_path):
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
        plan.run(data, np.random.default_rng(3), on_step=stop, checkpoint=folder, every=4)
    resumed = plan.run(data, np.random.default_rng(3), checkpoint=folder, every=4)
    assert resumed.outputs["rows"].tobytes() == whole.tobytes()
    assert resumed.history[0]["step"] == 8
    assert resumed.metrics["accuracy"] > 60


@pytest.mark.parametrize("protocol", ["gossip:3", "exchange", "tree:kind=uniform"])
def test_a_linear_run_resumes_to_the_same_bits_and_refuses_another(protocol, tmp_path):
    cls = MuffliatoSGD if protocol.startswith("gossip") else ConsensusSGD
    plan, data, folder = cls(GLM(), protocol, network=RING, **COMMON), shards(), tmp_path / "run"
    whole = plan.run(data, np.random.default_rng(2)).outputs["rows"]
    seen = []

    def stop_later(rows):
        seen.append(1)
        if len(seen) == 4:
            raise Stop
        return {}

    with pytest.raises(Stop):
        plan.run(data, np.random.default_rng(2), checkpoint=folder, evaluate=stop_later)
    assert (plan.run(data, np.random.default_rng(2), checkpoint=folder).outputs["rows"] == whole).all()
    with pytest.raises(ConfigError, match="another plan"):
        plan.run(data, np.random.default_rng(3), checkpoint=folder)
    with pytest.raises(ConfigError, match="another plan"):
        plan.with_noise(3.0).run(data, np.random.default_rng(2), checkpoint=folder)


def test_a_checkpoint_of_a_protective_run_holds_no_key(tmp_path):
    data, folder = blobs(), tmp_path / "run"
    plan = DPDSGD(net(), FOUR, steps=4, sizes=data.sizes, batch_size=10, noise_multiplier=1.0)
    plan.run(data, ProtectiveNoise(), checkpoint=folder, every=2)
    text = (folder / "current.json").read_text()
    assert '"seeds": null' in text
    for file in folder.glob("*.npz"):
        with np.load(file, allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)


def test_protective_noise_lowers_the_clip_and_differs_every_time():
    objective, data = net(), blobs()
    plan = DPDSGD(objective, FOUR, steps=3, sizes=data.sizes, noise_multiplier=1.0)
    one, two = (plan.run(data, ProtectiveNoise(), start=objective.start()[0]) for _ in range(2))
    assert one.outputs["rows"].tobytes() != two.outputs["rows"].tobytes()
    assert one.provenance["noise"] == "protective"
    source = plan.source(data, range(4), RunRandomness.from_rng(ProtectiveNoise()))
    assert source.inner_clip < 1.0 == objective.clip_norm
    linear = ConsensusSGD(GLM(), RING, **COMMON)
    once, again = (linear.run(shards(), ProtectiveNoise()).outputs["coef"] for _ in range(2))
    assert (once != again).any()


SLACK = 0.2


class Rounding:
    """A source that rounds by up to SLACK and keeps what it was handed."""

    protective = True

    def slack(self, dim, std=1.0):
        return SLACK

    def perturb(self, values, *, agents, step, std, stream=0):
        self.handed = values.copy()
        return values


def handed(x, adjacency):
    torch.manual_seed(0)
    objective = NetObjective(nn.Linear(3, 2), clip_norm=1.0)
    data = AgentData(x, np.zeros(len(x), int), [np.arange(len(x))])
    noise = Rounding()
    source = GradientMechanism(
        query=objective.query(data), agents=[0], random=RunRandomness(noise, 0, 0), clip_norm=1.0,
        noise_multipliers=[1.0], adjacency=adjacency, rates=[1.0], divisors=[len(x)],
    )  # fmt: skip
    source(np.zeros_like(objective.start(1)), 0)
    return noise.handed


def test_rounding_is_paid_for_by_clipping_lower():
    rows = [handed(np.full((4, 3), size, np.float32), "user") for size in (100.0, -100.0)]
    lengths = [float(np.linalg.norm(row)) for row in rows]
    assert lengths == pytest.approx([1 - SLACK] * 2, abs=1e-5)  # 2 (C - slack) + 2 slack = 2C
    x = np.full((4, 3), 100.0, np.float32)
    moved = handed(x, "add-remove") - handed(x[:3], "add-remove")
    assert float(np.linalg.norm(moved)) == pytest.approx(1 - 2 * SLACK, abs=1e-5)  # C - 2 slack + 2 slack


# ---- lots ------------------------------------------


@pytest.mark.parametrize("key", [1, bytes(range(32))])
@pytest.mark.parametrize(("size", "rate", "draws"), [(400, 0.1, 500), (10_000, 0.005, 400)])
def test_lots_are_poisson_with_the_rate_that_is_booked(key, size, rate, draws):
    """Inclusion counts by chi-square, sizes by variance: simulated, secret, dense and sparse form."""
    batches = PoissonSampler([size], [rate], key)
    counts, sizes = np.zeros(size), []
    for step in range(draws):
        (batch_size,) = batches.draw([0], step)
        assert (np.diff(batch_size) > 0).all()
        counts[batch_size] += 1
        sizes.append(len(batch_size))
    spread = draws * rate * (1 - rate)
    chi2 = ((counts - draws * rate) ** 2 / spread).sum()
    assert abs(chi2 - size) < 6 * math.sqrt(2 * size) * max(1.0, 1 / math.sqrt(2 * spread))
    assert abs(np.mean(sizes) - size * rate) < 5 * math.sqrt(size * rate / draws)
    assert 0.75 < np.var(sizes) / (size * rate * (1 - rate)) < 1.3  # a fixed-size sampler would give 0
    assert batches.draw([0], 3, stream=1)[0].tolist() != batches.draw([0], 3)[0].tolist()
    assert batches.draw([0], 3)[0].tolist() == PoissonSampler([size], [rate], key).draw([0], 3)[0].tolist()


def test_lots_follow_the_number_and_not_the_place():
    whole = PoissonSampler([50, 60, 70], [0.5] * 3, 9)
    part = PoissonSampler([70, 50], [0.5] * 2, 9, numbers=[2, 0])
    assert part.draw([0], 4)[0].tolist() == whole.draw([2], 4)[0].tolist()
    assert part.draw([1], 4)[0].tolist() == whole.draw([0], 4)[0].tolist()


# ---- refusals ------------------------------------------


def test_bad_plans_are_refused_with_one_sentence():
    def refused(error, match, make):
        with pytest.raises(error, match=match) as caught:
            make()
        assert str(caught.value).replace("...", "").count(". ") == 0

    record = {k: v for k, v in COMMON.items() if k != "adjacency"}
    refused(
        InvalidInput,
        "Tree or an Exchange",
        lambda: ConsensusSGD(GLM(), sv.protocols.Gossip(RING, 2), **COMMON),
    )
    refused(
        InvalidInput,
        "runs over tree or exchange",
        lambda: ConsensusSGD(GLM(), "gossip:2", network=RING, **COMMON),
    )
    refused(InvalidInput, "l2 only", lambda: MuffliatoSGD(GLM(l1=0.1), RING, **COMMON))
    refused(
        InvalidInput, "2 protocols for 6 steps",
        lambda: MuffliatoSGD(GLM(), [sv.protocols.Gossip(RING, 2)] * 2, **COMMON),
    )  # fmt: skip
    refused(InvalidInput, "divisor is public", lambda: DPDSGD(GLM(), RING, **record))
    refused(InvalidInput, "needs clip", lambda: DPDSGD(GLM(), RING, adjacency="user"))
    refused(
        InvalidInput,
        "clip_norm must be positive",
        lambda: DPDSGD(GLM(), RING, **{**COMMON, "clip_norm": 0.0}),
    )
    refused(
        InvalidInput, "finite where noise", lambda: DPDSGD(GLM(), RING, **{**COMMON, "clip_norm": math.inf})
    )
    refused(InvalidInput, "adjacency of dp-dsgd", lambda: DPDSGD(GLM(), RING, **{**COMMON, "adjacency": "x"}))
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


def test_a_network_may_be_a_name_or_a_networkx_graph():
    import networkx as nx

    by_name = ConsensusSGD(GLM(), network="ring:8", **COMMON)
    by_graph = ConsensusSGD(GLM(), nx.cycle_graph(8), **COMMON)
    assert by_name.n == by_graph.n == 8
    assert by_name.schedule(2).parents.tolist() == by_graph.schedule(2).parents.tolist()
