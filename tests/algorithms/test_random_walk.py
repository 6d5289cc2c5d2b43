"""Random-walk SGD: the kernel against a numpy twin, the walk's law, caps, tokens, prices."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms.blocks import randomness
from sottovoce.algorithms.random_walk import RandomWalkSGD, hop
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM, clip_rows


def shards(n=6, records=1, seed=0, p=3):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n * records, p)), np.sign(rng.normal(size=n * records))
    return Shards.from_parts(X, y, np.arange(n * records).reshape(n, records))


def numpy_twin(plan, data, rng):
    """One token, plain Python and numpy, the same draws."""
    random, W = randomness(rng), plan.network.W.toarray()
    holder = int(random.draws(3).integers(plan.n, size=1)[0])
    block = min(max(1, plan.steps // 50), 1 << 16)
    theta, counts = np.zeros(data.dim), np.zeros(plan.n, int)
    for start in range(0, plan.steps, block):
        size = min(block, plan.steps - start)
        noise = random.draws(1, 0, start // block).standard_normal((size, data.dim))
        uniforms = random.draws(0, 0, start // block).random(size)
        for k in range(size):
            X, y = data.user(holder)
            g = plan.objective.gradient(theta, X, y) + plan.objective.l2 * theta
            if plan.cap is not None and counts[holder] >= plan.cap:
                g = 0 * g
            g = clip_rows(g[None], plan.clip)[0]
            counts[holder] += 1
            theta = theta - plan.learning_rate * (g + plan.noise_multiplier * plan.clip * noise[k])
            holder = int(np.searchsorted(np.cumsum(W[holder]), uniforms[k], side="right"))
    return theta, counts


@pytest.mark.parametrize(
    "graph", [sv.graphs.complete(6), sv.graphs.path(6), sv.graphs.star(6)], ids=lambda g: g.name
)
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("loss", ["logistic", "squared", "huber"])
def test_the_kernel_equals_its_numpy_twin(graph, records, loss):
    data = shards(records=records)
    plan = RandomWalkSGD(GLM(loss, l2=0.05), graph, 130, 0.3, 0.5, 0.7, cap=15)
    found = plan.run(data, np.random.default_rng(4))
    theta, counts = numpy_twin(plan, data, np.random.default_rng(4))
    assert np.allclose(found.outputs["coef"], theta, atol=1e-10)
    assert (found.outputs["contributions"] == counts).all()


def test_a_peer_s_hop_is_the_kernel_s_step():
    data = shards()
    plan = RandomWalkSGD(GLM(), sv.graphs.complete(6), 1, 0.3, 0.5, 0.7)
    found = plan.run(data, np.random.default_rng(1)).outputs
    random = randomness(np.random.default_rng(1))
    holder = int(np.flatnonzero(found["contributions"])[0])
    noise = random.draws(1, 0, 0).standard_normal((1, 3))[0] * 0.7 * 0.5
    X, y = data.user(holder)
    assert (hop(GLM(), X, y, np.zeros(3), learning_rate=0.3, clip=0.5, noise=noise) == found["coef"]).all()


def test_the_walk_follows_the_transition_law():
    """Visits of a long walk against the stationary law (uniform, for symmetric W), on an irregular graph."""
    data = shards(n=6)
    plan = RandomWalkSGD(GLM(), sv.graphs.star(6), 200_000, 0.1, 1.0, 0.0)
    counts = plan.run(data, np.random.default_rng(0)).outputs["contributions"]
    assert np.abs(counts / counts.sum() - 1 / 6).max() < 0.01


@pytest.mark.parametrize("bad", [1e300, np.nan, np.inf, 1e160])
def test_influence_of_a_holder(bad):
    rng = np.random.default_rng(5)
    for records in (1, 3):
        X, theta = rng.normal(size=(records, 2)), rng.normal(size=2)
        y = np.ones(records)
        broken = X.copy()
        broken[0] = bad
        for model in (GLM(), GLM("squared", l2=0.1), GLM("huber")):
            a, b = (
                hop(model, D, y, theta, learning_rate=0.5, clip=0.8, noise=np.zeros(2)) for D in (X, broken)
            )
            assert np.linalg.norm(a - b) / 0.5 <= 2 * 0.8 * (1 + 1e-9)
        assert (
            hop(GLM(), X, y, theta, learning_rate=0.5, clip=0.8, noise=np.zeros(2), contribute=False) == theta
        ).all()


def test_prices():
    graph = sv.graphs.complete(6)
    base = {"objective": GLM(), "network": graph, "steps": 60, "learning_rate": 0.3, "clip": 0.5}
    plan = RandomWalkSGD(**base, noise_multiplier=8.0, cap=12)
    assert plan.privacy("local").mu == pytest.approx(2 / 8 * math.sqrt(12))
    assert RandomWalkSGD(**base, noise_multiplier=8.0).privacy("local").mu == pytest.approx(
        2 / 8 * math.sqrt(60)
    )
    assert RandomWalkSGD(**base, noise_multiplier=8.0, tokens=2).privacy("local").mu == pytest.approx(
        2 / 8 * math.sqrt(120)
    )
    assert plan.privacy("network", observer=0).label == "ldp"
    fitted = RandomWalkSGD.for_budget(epsilon=1.0, delta=1e-5, cap=12, **base)
    assert 0.999 < fitted.privacy().epsilon(1e-5) <= 1.0
    assert plan.cost()["messages"] == 60


def test_a_step_too_long_for_amplification_is_refused():
    plan = RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 9.0, 1.0, 8.0, feature_norm=1.0)
    with pytest.raises(InvalidInput, match="learning_rate <= 2/beta = 8"):
        plan.privacy("pairwise", observer=0, user=1)
    clipped = RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 1.0, 0.5, 8.0, feature_norm=1.0)
    with pytest.raises(InvalidInput, match="the clip never touches"):
        clipped.privacy("pairwise", observer=0, user=1)
    with pytest.raises(DataError, match="longer than feature_norm"):
        clipped.run(shards(), np.random.default_rng(0))


def test_the_path_accountant_amplifies():
    base = {"network": sv.graphs.complete(12), "steps": 60, "clip": 1.0, "noise_multiplier": 10.0}
    plan = RandomWalkSGD(GLM(), learning_rate=1.0, feature_norm=1.0, **base)
    pair = plan.privacy("pairwise", observer=0, user=1)
    rough = RandomWalkSGD(GLM(), learning_rate=1.0, **base).privacy("pairwise", observer=0, user=1)
    assert pair.label == rough.label == "exact"
    assert pair.rdp(2.0) < rough.rdp(2.0) < plan.privacy("local").rdp(2.0)


def test_resume_and_tokens(tmp_path):
    data = shards(n=6)
    plan = RandomWalkSGD(GLM(), sv.graphs.ring(6), 100, 0.3, 0.5, 0.7, tokens=3)
    whole = plan.run(data, np.random.default_rng(3)).outputs
    assert whole["rows"].shape == (3, 3)
    assert np.allclose(whole["rows"].mean(axis=0), whole["coef"])

    class Stop(Exception):
        pass

    def stop_later(w, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 7:
            raise Stop
        return {}

    path = tmp_path / "walk.npz"
    with pytest.raises(Stop):
        plan.run(data, np.random.default_rng(3), checkpoint=path, evaluate=stop_later)
    resumed = plan.run(data, np.random.default_rng(3), checkpoint=path).outputs
    assert (resumed["rows"] == whole["rows"]).all()
    assert (plan.run(data, sv.privacy.ProtectiveNoise()).outputs["coef"] != whole["coef"]).any()


def test_a_rounding_slack_above_the_clip_is_refused():
    """Below zero the clip would have grown again with the slack."""
    plan = RandomWalkSGD(
        GLM("logistic"), sv.graphs.complete(2), steps=2, learning_rate=0.1, clip=1.0, noise_multiplier=1e6
    )
    shards = Shards(np.ones((2, 1)), np.array([1.0, -1.0]), np.array([0, 1, 2]))
    with pytest.raises(InvalidInput, match="rounding slack exceeds the clip"):
        plan.run(shards, sv.privacy.ProtectiveNoise())
