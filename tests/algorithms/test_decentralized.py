"""Decentralized learning: means kept, one text for every runner, sensitivities, labels, limits."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.decor import Decor
from sottovoce.algorithms.mafalda import Mafalda
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.data import Shards
from sottovoce.errors import ConfigError, DataError, InvalidInput, NotAGuarantee
from sottovoce.objectives import GLM
from sottovoce.privacy import SimulatedNoise

N, P = 8, 3


def shards(seed=0, n=N, records=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * records, P))
    y = np.sign(X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=n * records))
    return Shards.from_parts(X, y, np.arange(n * records).reshape(n, records))


RING = sv.graphs.ring(N)
SCHEDULES = {
    "gossip": lambda: sv.protocols.Gossip(RING, 3),
    "dsgd": lambda: sv.protocols.Gossip(RING, 1),
    "chebyshev": lambda: sv.protocols.Chebyshev(RING, 4),
    "fresh": lambda: (
        lambda k: sv.protocols.Gossip(sv.graphs.erdos_renyi(N, 2.0, np.random.default_rng([9, k])), 2)
    ),
    "varying": lambda: sv.protocols.TimeVarying([RING, sv.graphs.complete(N)]),
    "dropout": lambda: sv.protocols.Dropout(RING, 3, nodes={1: [2]}),
    "refreshed": lambda: sv.protocols.Refreshed(RING, 3, tau=0.1),
}
COMMON = {"steps": 6, "learning_rate": 0.4, "clip": 0.7, "noise_multiplier": 2.0}


def plans(**changes):
    options = {**COMMON, **changes}
    one = sv.protocols.Gossip(RING, 1)
    made = {
        f"muffliato-{name}": MuffliatoSGD(GLM("logistic", l2=0.1), make(), **options)
        for name, make in SCHEDULES.items()
    }
    made["tree"] = ConsensusSGD(
        GLM("huber"),
        lambda k: sv.protocols.Tree(RING, kind="uniform", rng=np.random.default_rng([1, k])),
        **options,
    )
    made["exchange"] = ConsensusSGD(GLM("logistic"), sv.protocols.Exchange(N), momentum=0.5, **options)
    made["decor"] = Decor(GLM("logistic"), one, pair_multiplier=3.0, **options)
    made["mafalda"] = Mafalda(GLM("logistic"), one, **options)
    return made


NAMES = list(plans())


class Spy:
    """A source that adds nothing and keeps (values, std) of every release."""

    protective = False

    def __init__(self):
        self.seen = []

    def perturb(self, values, *, agents, step, std, stream=0):
        if stream == 0:
            self.seen.append((np.array(values), np.broadcast_to(std, len(values))))
        return np.array(values)

    def slack(self, dim, std=1.0):
        return 0.0


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_moves_by_the_mean_step_only(name):
    """Without noise, averaging keeps the mean: mean(theta') = mean(theta) - step * mean(gradient)."""
    plan, data = plans(noise_multiplier=0.0)[name], shards()
    text = plan.algorithm(data, range(N), SimulatedNoise(0))
    state = text.init()
    for k in range(3):
        sent = text.message(state, k)
        got = plan.schedule(k).apply(sent, noise=Spy(), step=k)
        assert np.allclose(got.mean(axis=0), sent.mean(axis=0), atol=1e-13)
        state = text.update(state, got, k)
    assert np.isfinite(text.output(state)).all()


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_computes_the_same_bytes_wherever_it_is_hosted(name):
    """Stacked, cluster and peer run one text: rows of hosted agents do not depend on the others."""
    plan, data = plans()[name], shards()
    noise = SimulatedNoise(5)
    whole = plan.algorithm(data, range(N), noise)
    state = whole.init()
    hosted = [1, 4, 6]
    part = plan.algorithm(data.take(hosted), hosted, noise)
    mine = part.init()
    for k in range(3):
        sent = whole.message(state, k)
        assert (part.message(mine, k) == sent[hosted]).all()
        got = plan.schedule(k).apply(sent, noise=noise, step=k)
        state, mine = whole.update(state, got, k), part.update(mine, got[hosted], k)
    assert (part.output(mine) == whole.output(state)[hosted]).all()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mafalda"])
@pytest.mark.parametrize("bad", [1e3, 1e200, np.nan, np.inf])
def test_influence_of_a_user_on_a_release(name, bad):
    """All records of user 3 replaced: its un-noised release moves by at most 2C, others' by nothing."""
    plan, data = plans()[name], shards()
    X = data.X.copy()
    X[data.offsets[3] : data.offsets[4]] = bad
    other = Shards(X, data.y, data.offsets)
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(N, P)) * 10 ** rng.uniform(-1, 2)
    seen = []
    for which in (data, other):
        spy = Spy()
        text = plan.algorithm(which, range(N), spy)
        state = text.init()
        state = state._replace(theta=theta) if hasattr(state, "_replace") else theta
        text.message(state, 2)
        seen.append(spy.seen[-1])
    moved = np.linalg.norm(seen[0][0] - seen[1][0], axis=1) / seen[0][1]
    assert np.isfinite(moved).all()
    booked = 2 / plan.noise_multiplier  # per step, before any amplification
    assert moved[3] <= booked * (1 + 1e-9)
    assert np.delete(moved, 3).max() == 0


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mafalda"])
def test_the_worst_change_of_a_user_moves_its_release_by_exactly_what_is_booked(name):
    """User 3 pulls one way, then the other, with the full clip: 2C, no more and no less."""
    plan, data = plans()[name], shards()
    seen = []
    for label in (1.0, -1.0):
        X, y = data.X.copy(), data.y.copy()
        X[data.offsets[3] : data.offsets[4]] = 1e3
        y[data.offsets[3] : data.offsets[4]] = label
        spy = Spy()
        text = plan.algorithm(Shards(X, y, data.offsets), range(N), spy)
        text.message(text.init(), 0)
        seen.append(spy.seen[-1])
    moved = np.linalg.norm(seen[0][0] - seen[1][0], axis=1) / seen[0][1]
    assert moved[3] == pytest.approx(2 / plan.noise_multiplier, rel=1e-9)


def test_influence_of_a_user_on_correlated_releases():
    """MAFALDA: over the whole run |C (G - G')| / std stays below the one number booked."""
    plan, data = plans()["mafalda"], shards()
    found = plan.correlation()
    rng = np.random.default_rng(2)
    for _ in range(50):
        gap = rng.normal(size=(plan.steps, P))
        gap *= 2 * plan.clip / np.linalg.norm(gap, axis=1, keepdims=True)
        if rng.random() < 0.5:
            gap[:] = gap[0] * np.sign(rng.normal(size=(plan.steps, 1)))
        std = plan.noise_multiplier * plan.clip * found.sens
        assert np.linalg.norm(found.C @ gap) / std <= plan.privacy().mu * (1 + 1e-9)
    assert data.n == N


@pytest.mark.parametrize("rate", [None, 0.5])
def test_influence_of_a_record_and_its_lots(rate):
    data = shards()
    plan = MuffliatoSGD(
        GLM("logistic", l2=0.1), sv.protocols.Gossip(RING, 1), level="record", sample_rate=rate, **COMMON
    )
    theta = np.random.default_rng(3).normal(size=(N, P))
    X = data.X.copy()
    X[13] = 0.0  # a record of zeros contributes nothing: it is as good as removed
    seen = []
    for which in (data, Shards(X, data.y, data.offsets)):
        noise = SimulatedNoise(4)
        spy = Spy()
        text = plan.algorithm(which, range(N), noise)
        spy_text = plan.algorithm(which, range(N), spy)
        assert text.message(theta, 0).shape == (N, P)
        spy_text.message(theta, 0)
        seen.append(spy.seen[-1])
    moved = np.linalg.norm(seen[0][0] - seen[1][0], axis=1) / seen[0][1]
    assert moved[3] <= 1 / plan.noise_multiplier * (1 + 1e-9)
    assert plan.privacy("local").adjacency == "add-remove"
    assert plan.privacy("pairwise", observer=0, user=1).label == "ldp"


def test_lots_are_poisson_with_the_rate_that_is_booked():
    plan = MuffliatoSGD(GLM(), sv.protocols.Gossip(RING, 1), level="record", sample_rate=0.3, **COMMON)
    from sottovoce.algorithms.decentralized import Gradients

    data = shards(records=20)
    g = Gradients(
        GLM(), data, range(N), SimulatedNoise(1), clip=1.0, noise_multiplier=1.0, level="record",
        sample_rate=plan.sample_rate,
    )  # fmt: skip
    lots = np.array([g._lot(k) for k in range(600)])
    counts = lots.sum(axis=0)
    chi = ((counts - 180) ** 2 / (600 * 0.3 * 0.7)).sum()
    assert 110 < chi < 220  # 160 degrees of freedom
    assert abs(lots.sum(axis=1).var() / (160 * 0.3 * 0.7) - 1) < 0.25


@pytest.mark.parametrize("name", NAMES)
def test_labels_say_what_is_a_guarantee(name):
    plan = plans()[name]
    local = plan.privacy("local")
    assert local.valid
    pair = plan.privacy("pairwise", observer=0, user=4)
    if name.startswith("muffliato") and "chebyshev" not in name and "refreshed" not in name:
        assert pair.label == "conditional"
        with pytest.raises(NotAGuarantee):
            pair.require(1e6, 1e-5)
    else:
        assert pair.valid
    assert pair.mu <= local.mu * math.sqrt(1 + 1e-9) or name == "decor"
    assert plan.cost(dim=P)["bytes"] == plan.cost()["messages"] * P * 8
    assert plan.describe()["algorithm"] == plan.name


def test_exact_consensus_price_is_that_of_the_schedule():
    plan = plans()["exchange"]
    for user, share in ((1, 1.0), (2, 0.5), (7, 0.25)):
        want = (2 / 2.0) ** 2 * 6 * share
        assert plan.privacy("pairwise", observer=0, user=user).mu ** 2 == pytest.approx(want)
    assert plan.privacy("central").mu ** 2 == pytest.approx(6 / N)
    assert plan.privacy("network").mu ** 2 == pytest.approx(6.0)
    tree = plans()["tree"]
    total = sum(tree.shares(v).sum() for v in range(N))
    assert total == pytest.approx(6 * 2 * (N - 1))  # the mean over nodes of the sum is 2(n-1)/n a step
    record = ConsensusSGD(
        GLM(), sv.protocols.Exchange(N), level="record", sample_rate=0.25, **COMMON
    ).privacy("pairwise", observer=0, user=7)
    assert record.label == "exact"
    assert record.epsilon(1e-5) < ConsensusSGD(
        GLM(), sv.protocols.Exchange(N), level="record", sample_rate=0.25, **COMMON
    ).privacy("local").epsilon(1e-5)


def test_all_nodes_end_with_the_same_model_over_exact_consensus():
    for name in ("tree", "exchange"):
        rows = plans()[name].run(shards(), np.random.default_rng(0)).outputs["rows"]
        assert (rows == rows[0]).all()


def test_without_noise_exact_consensus_is_gradient_descent_on_the_mean():
    data = shards()
    model = GLM("logistic", l2=0.1)
    plan = ConsensusSGD(model, sv.protocols.Exchange(N), 30, 0.5, math.inf, 0.0)
    w = np.zeros(P)
    for _ in range(30):
        w = w - 0.5 * (model.gradient(w, data.X, data.y) + 0.1 * w)
    assert np.allclose(plan.run(data, np.random.default_rng(0)).outputs["coef"], w, atol=1e-12)


def test_without_noise_muffliato_converges_to_the_minimiser():
    data, model = shards(records=8), GLM("logistic", l2=0.1)
    plan = MuffliatoSGD(model, sv.protocols.Chebyshev(RING, 12), 300, 0.8, math.inf, 0.0)
    rows = plan.run(data, np.random.default_rng(0)).outputs["rows"]
    assert np.allclose(rows, model.minimise(data.X, data.y), atol=2e-3)


def test_one_step_is_averaging_and_exact():
    plan = MuffliatoSGD(GLM(), sv.protocols.Gossip(sv.graphs.path(3), 2), 1, 0.5, 1.0, 2.0)
    pair = plan.privacy("pairwise", observer=2, user=0)
    assert pair.label == "exact"
    assert pair.mu == pytest.approx(1.0)  # own noise known: all of the local loss


def test_decor_numbers():
    ring = sv.protocols.Gossip(sv.graphs.ring(16), 1)
    plan = Decor(GLM(), ring, 5, 0.1, 1.0, 0.5, pair_multiplier=3.0)
    assert plan.variance_share() == pytest.approx(0.38196, abs=1e-5)
    assert plan.privacy("local").rdp(2.0) == pytest.approx(2 * 2.0 * 0.38196 * 5, abs=1e-3)
    assert plan.privacy("colluders", colluders=[1, 3], user=2).mu > plan.privacy("local").mu
    alone = plan.privacy(
        "colluders", colluders=[1, 3], user=2
    ).mu  # both neighbours collude: only s_d is left
    assert alone == pytest.approx(2 / 0.5 * math.sqrt(5))
    no_pairs = Decor(GLM(), ring, 5, 0.1, 1.0, 0.5)
    assert no_pairs.privacy("local").mu == pytest.approx(2 / 0.5 * math.sqrt(5))
    # shared noise cancels in the mean
    data = shards()
    quiet = Decor(GLM(), sv.protocols.Gossip(RING, 1), 1, 1.0, 1.0, 0.0, pair_multiplier=3.0)
    loud = quiet.algorithm(data, range(N), SimulatedNoise(3)).message(np.zeros((N, P)), 0)
    plain = plans(noise_multiplier=0.0)["muffliato-dsgd"]
    clear = MuffliatoSGD(GLM(), plain.protocol, 1, 1.0, 1.0, 0.0).algorithm(data, range(N), SimulatedNoise(3))
    assert np.abs(loud - clear.message(np.zeros((N, P)), 0)).max() > 1
    assert np.allclose(loud.mean(axis=0), clear.message(np.zeros((N, P)), 0).mean(axis=0), atol=1e-12)


def test_mafalda_adds_the_noise_of_its_correlation():
    """Over many runs the noise of the steps has covariance (z C sens)^2 (X^-1), X = C'C."""
    plan = Mafalda(GLM(), sv.protocols.Gossip(RING, 1), 4, 1.0, 0.5, 2.0)
    found = plan.correlation()
    zeros = Shards(np.zeros((N, P)), np.ones(N), np.arange(N + 1))
    rows = []
    for seed in range(300):
        text = plan.algorithm(zeros, range(N), SimulatedNoise(seed))
        state, steps = text.init(), []
        for k in range(4):
            sent = text.message(state, k)
            steps.append(state.theta - sent)
            state = text.update(state, sent, k)
        rows.append(np.stack(steps))
    Z = np.stack(rows).transpose(2, 3, 0, 1).reshape(-1, 4)  # nodes, coordinates and runs by steps
    want = (2.0 * 0.5 * found.sens) ** 2 * np.linalg.inv(found.X)
    assert np.allclose(np.cov(Z.T), want, atol=0.06 * want.max())


@pytest.mark.parametrize("name", ["muffliato-gossip", "exchange", "mafalda"])
def test_an_interrupted_run_resumes_to_the_same_bits(name, tmp_path):
    plan, data, path = plans()[name], shards(), tmp_path / "c.npz"
    whole = plan.run(data, np.random.default_rng(2)).outputs["rows"]

    class Stop(Exception):
        pass

    def stop_later(rows, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 4:
            raise Stop
        return {}

    with pytest.raises(Stop):
        plan.run(data, np.random.default_rng(2), checkpoint=path, evaluate=stop_later)
    assert (plan.run(data, np.random.default_rng(2), checkpoint=path).outputs["rows"] == whole).all()
    with pytest.raises(ConfigError, match="another plan"):
        plan.run(data, np.random.default_rng(3), checkpoint=path)


def test_protective_noise_runs():
    data = shards()
    for name in ("muffliato-gossip", "tree"):
        once, again = (
            plans()[name].run(data, sv.privacy.ProtectiveNoise()).outputs["coef"] for _ in range(2)
        )
        assert (once != again).any()


def test_bad_plans_are_refused():
    with pytest.raises(InvalidInput, match="Tree or an Exchange"):
        ConsensusSGD(GLM(), sv.protocols.Gossip(RING, 2), **COMMON)
    with pytest.raises(InvalidInput, match="l2 only"):
        MuffliatoSGD(GLM(l1=0.1), sv.protocols.Gossip(RING, 2), **COMMON)
    with pytest.raises(InvalidInput, match="2 protocols for 6 steps"):
        MuffliatoSGD(GLM(), [sv.protocols.Gossip(RING, 2)] * 2, **COMMON)
    with pytest.raises(InvalidInput, match="the data have 4 users"):
        plans()["exchange"].run(shards(n=4), np.random.default_rng(0))
    data = shards()
    with pytest.raises(DataError, match="NaN"):
        plans()["exchange"].run(Shards(data.X * np.nan, data.y, data.offsets), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="needs observer"):
        plans()["muffliato-gossip"].privacy("network")
    budget = MuffliatoSGD.for_budget(
        epsilon=2.0, delta=1e-5, objective=GLM(), protocol=sv.protocols.Gossip(RING, 1), steps=3,
        learning_rate=1.0, clip=1.0,
    )  # fmt: skip
    assert 1.99 < budget.privacy("local").epsilon(1e-5) <= 2.0


def test_a_small_node_is_not_hidden_by_the_quiet_noise_of_large_ones():
    """Record level: node 0 holds 10 records, the others 1,000; the mean's noise is nearly all node 0's."""
    options = COMMON | {"level": "record", "noise_multiplier": 1.0}
    even = ConsensusSGD(GLM(), sv.protocols.Exchange(4), **options)
    uneven = ConsensusSGD(GLM(), sv.protocols.Exchange(4), sizes=(10, 1000, 1000, 1000), **options)
    steps = options["steps"]
    # node 3 hears node 2 alone, then the sum of nodes 0 and 1
    share = 0.1**2 / (0.1**2 + 0.001**2)
    assert uneven.privacy("pairwise", observer=3, user=0).mu ** 2 == pytest.approx(steps * share)
    assert even.privacy("pairwise", observer=3, user=0).mu ** 2 == pytest.approx(steps / 2)
    whole = 0.1**2 / (0.1**2 + 3 * 0.001**2)
    assert uneven.privacy("central").mu ** 2 == pytest.approx(steps * whole)
    for view in ("central", "network"):
        assert "equally many records" in even.privacy(view).assumptions[-1]
        assert "equally many records" not in " ".join(uneven.privacy(view).assumptions)


def test_record_level_consensus_refuses_data_it_was_not_priced_for():
    options = COMMON | {"level": "record"}
    data = shards()
    counts = data.sizes.tolist()
    counts[0], counts[1] = counts[0] + 3, counts[1] - 3
    uneven = type(data)(data.X, data.y, np.concatenate([[0], np.cumsum(counts)]))
    plan = ConsensusSGD(GLM("logistic"), sv.protocols.Exchange(N), **options)
    with pytest.raises(DataError, match=r"sizes=data\.sizes"):
        plan.run(uneven, np.random.default_rng(0))
    stated = ConsensusSGD(GLM("logistic"), sv.protocols.Exchange(N), sizes=tuple(counts), **options)
    stated.run(uneven, np.random.default_rng(0))
    with pytest.raises(DataError, match="the plan was made for"):
        stated.run(data, np.random.default_rng(0))


def test_a_schedule_that_turns_inexact_later_is_refused_before_anything_is_stated():
    gossip, exchange = sv.protocols.Gossip(sv.graphs.ring(N), 2), sv.protocols.Exchange(N)
    plan = ConsensusSGD(GLM(), lambda k: exchange if k == 0 else gossip, **COMMON)
    with pytest.raises(InvalidInput, match="needs a Tree or an Exchange"):
        plan.privacy("network")


def test_a_record_that_takes_its_place_with_it_would_cost_twice():
    """Divisor and noise follow the number of records, so the statements are about an emptied place."""
    from sottovoce.algorithms.decentralized import Gradients

    n, C = 9, 1.0
    X, y = np.full((n + 1, 1), 100.0), np.ones(n + 1)
    y[-1] = -1.0  # pulls against all others, each at the clip

    def released(features, labels):
        shards = Shards(features, labels, np.array([0, len(labels)]))
        source = Gradients(
            GLM(), shards, [0], SimulatedNoise(0), clip=C, noise_multiplier=1.0, level="record"
        )
        return source(np.zeros((1, 1)), 0)[0, 0], source.std[0]

    whole, std = released(X, y)
    emptied, _ = released(np.where(np.arange(n + 1)[:, None] == n, 0.0, X), y)
    gone, _ = released(X[:-1], y[:-1])
    assert abs(whole - emptied) / std == pytest.approx(1.0)  # what is booked
    assert abs(whole - gone) / std == pytest.approx(2.0)
    record = COMMON | {"level": "record", "noise_multiplier": 1.0}
    exchange = sv.protocols.Exchange(4)
    for view, who in (("local", {}), ("central", {}), ("pairwise", {"observer": 0, "user": 3})):
        for plan in (ConsensusSGD(GLM(), exchange, **record), MuffliatoSGD(GLM(), exchange, **record)):
            assert any("empty place" in line for line in plan.privacy(view, **who).assumptions)
    assert ConsensusSGD(GLM(), exchange, **(COMMON | {"noise_multiplier": 1.0})).local().assumptions == ()


def test_numbers_of_records_are_compared_across_ranks():
    """Each rank hosts equal nodes; together they are unequal, and the statement would be too small."""
    from sottovoce.algorithms.ranks import _learning

    plan = ConsensusSGD(
        GLM(), sv.protocols.Exchange(4), **(COMMON | {"level": "record", "noise_multiplier": 1.0})
    )
    shards = Shards(np.ones((22, 1)), np.tile([1.0, -1.0], 11), np.array([0, 1, 2, 12, 22]))
    with pytest.raises(DataError, match="their noises differ"):
        _learning(plan, shards, SimulatedNoise(0))


def test_colluders_of_decor_count_under_every_view():
    """They know seeds, so seeing every message is not all they do; once they were left out without a word."""
    options = COMMON | {"noise_multiplier": 0.5, "pair_multiplier": 3.0}
    plan = Decor(GLM(), sv.protocols.Gossip(sv.graphs.ring(6), 1), **options)
    together = plan.privacy("colluders", colluders=[1, 5], user=0)
    assert together.mu == pytest.approx(2 / 0.5 * math.sqrt(plan.steps))  # both neighbours: no seed left
    for view in ("local", "central"):
        assert plan.privacy(view, colluders=[1, 5], user=0) == together
    assert plan.privacy("local").mu < together.mu
