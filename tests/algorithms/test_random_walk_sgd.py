"""Random-walk SGD on secret and public paths."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.toys import SECRET, check_resumed, walk_shards

import sottovoce as sv
from sottovoce.algorithms import RandomWalkSGD
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.data import Shards
from sottovoce.errors import DataError, GraphError, InvalidInput, ReleaseMismatch
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM, clip_rows


def numpy_twin(plan, data, rng):
    """All tokens, plain Python and numpy, the same draws."""
    random, W, tokens = RunRandomness.from_rng(rng), plan.network.W.toarray(), plan.tokens
    holders = [int(v) for v in random.draws(3).integers(plan.n, size=tokens)]
    chunk = (1 << 17) // (data.dim * tokens)
    assert plan.steps <= chunk
    noise = [random.draws(1, t, 0).standard_normal((chunk, data.dim)) for t in range(tokens)]
    uniforms = [random.draws(0, t, 0).random(chunk) for t in range(tokens)]
    theta, counts = np.zeros((tokens, data.dim)), np.zeros(plan.n, int)
    for k in range(plan.steps):
        for t in range(tokens):
            X, y = data.user(holders[t])
            g = plan.objective.gradient(theta[t], X, y) + plan.objective.l2 * theta[t]
            if plan.cap is not None and counts[holders[t]] >= plan.cap:
                g = 0 * g
            g = clip_rows(g[None], plan.clip_norm)[0]
            counts[holders[t]] += 1
            theta[t] = theta[t] - plan.rate(k) * (g + plan.noise_multiplier * plan.clip_norm * noise[t][k])
            holders[t] = int(np.searchsorted(np.cumsum(W[holders[t]]), uniforms[t][k], side="right"))
    return theta, counts


GRAPHS = [sv.graphs.complete(6), sv.graphs.path(6), sv.graphs.star(6)]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize(("records", "tokens"), [(1, 1), (3, 1), (1, 3)])
@pytest.mark.parametrize("loss", ["logistic", "squared", "huber"])
def test_block_equals_its_numpy_twin(graph, records, tokens, loss):
    data = walk_shards(records=records)
    plan = RandomWalkSGD(
        GLM(loss, l2=0.05), graph, 130, (0.3, 0.1), 0.5, 0.7, cap=15, tokens=tokens, **SECRET
    )
    result = plan.run(data, np.random.default_rng(4))
    theta, counts = numpy_twin(plan, data, np.random.default_rng(4))
    assert np.allclose(result.outputs["rows"], theta, atol=1e-10)
    assert (result.outputs["contributions"] == counts).all()
    assert np.allclose(result.outputs["coef"], theta.mean(axis=0), atol=1e-10)


def test_privacy_costs_of_secret_walks():
    graph = sv.graphs.complete(6)
    base = {"network": graph, "steps": 60, "learning_rate": 0.3, "clip_norm": 0.5, **SECRET}
    base |= {"objective": GLM(), "noise_multiplier": 8.0}

    def mu(**more):
        return RandomWalkSGD(**{**base, **more}).privacy("local").mu

    assert mu(cap=12) == pytest.approx(2 / 8 * math.sqrt(12))
    assert mu() == pytest.approx(2 / 8 * math.sqrt(60))
    assert mu(tokens=2) == pytest.approx(2 / 8 * math.sqrt(120))
    # more contributions than steps: every token may come to the same node
    assert mu(steps=3, tokens=4, cap=10) == pytest.approx(2 / 8 * math.sqrt(10))
    plan = RandomWalkSGD(**base, cap=12)
    assert plan.privacy("colluders", colluders=[0, 1]).label == "ldp"
    assert plan.cost()["messages"] == 60 + 5
    assert RandomWalkSGD(**base, final_public=False).cost()["messages"] == 60


def test_secret_walk_with_private_result_cannot_run():
    plan = RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 0.3, 0.5, 0.7, final_public=False, **SECRET)
    with pytest.raises(InvalidInput, match="accounted but not run"):
        plan.run(walk_shards(), np.random.default_rng(0))
    assert RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 0.3, 0.5, 0.7, **SECRET).observation.final_public


def test_amplification_needs_records_within_the_clip():
    with pytest.raises(InvalidInput, match="the clip never touches"):
        RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 1.0, 0.5, 8.0, feature_norm=1.0, **SECRET)
    fine = RandomWalkSGD(GLM(), sv.graphs.complete(6), 20, 1.0, 1.0, 8.0, feature_norm=1.0, **SECRET)
    with pytest.raises(DataError, match="longer than feature_norm"):
        fine.run(walk_shards(), np.random.default_rng(0))


def test_secret_walk_with_tokens_resumes(tmp_path):
    plan = RandomWalkSGD(GLM(), sv.graphs.ring(6), 100, 0.3, 0.5, 0.7, tokens=3, **SECRET)
    check_resumed(plan, walk_shards(n=6), tmp_path / "walk", after=7)
    assert plan.run(walk_shards(n=6), sv.privacy.ProtectiveNoise()).outputs["rows"].shape == (3, 3)


def public_twin(plan, data, path, draws):
    """User level, all records, written without the library's algorithms, protocols and mechanism."""
    held = np.zeros((plan.n, data.dim))
    for k, v in enumerate(path):
        X, y = data.user(v)
        g = plan.objective.gradient(held[v], X, y) + plan.objective.l2 * held[v]
        g = g * min(1.0, plan.clip_norm / np.linalg.norm(g))
        held[v] = held[v] - plan.rate(k) * (g + plan.noise_multiplier * plan.clip_norm * draws[k])
        held[path[min(k + 1, len(path) - 1)]] = held[v]
    return held


@pytest.mark.parametrize("final_public", [True, False])
def test_public_walk_equals_its_numpy_twin(final_public):
    data = walk_shards(records=2)
    path = (0, 1, 1, 2, 3, 2, 1)
    plan = RandomWalkSGD(
        GLM(l2=0.1), "ring:6", 7, (0.5, 0.2), 0.5, 0.7, adjacency="user", path=path, final_public=final_public
    )
    rng = np.random.default_rng(8)
    outputs = plan.run(data, rng).outputs
    noise = RunRandomness.from_rng(np.random.default_rng(8)).noise
    draws = [
        noise.perturb(np.zeros((1, 3)), agents=[v], step=k, std=1.0, stream=0)[0] for k, v in enumerate(path)
    ]
    want = public_twin(plan, data, path, draws)
    assert np.allclose(outputs["coef"], want[1], atol=1e-12)
    if final_public:
        want[:] = want[1]
    assert np.allclose(outputs["rows"], want, atol=1e-12)
    assert [sum(r.draws for r in plan.releases(v)) for v in range(6)] == [1, 3, 2, 1, 0, 0]
    assert [(r.step, r.steps) for r in plan.releases(1)] == [(1, 2), (6, 1)]
    # visits on the path, and nothing else, are what is paid for
    for v, visits in enumerate((1, 3, 2, 1, 0, 0)):
        mu = 2 / 0.7 * math.sqrt(visits)
        assert plan.privacy("local", user=v).mu == pytest.approx(mu)
    assert plan.privacy().label == "ldp"
    assert plan.cost()["messages"] == 5 + (5 if final_public else 0)
    assert sum(plan.schedule(k).message_count for k in range(7)) == plan.cost()["messages"]


def test_public_path_is_drawn_from_the_seed():
    plan = RandomWalkSGD(
        GLM(), sv.graphs.grid(3, 3), 40, clip_norm=1.0, noise_multiplier=2.0, sizes=[20] * 9, seed=5
    )
    again = RandomWalkSGD(
        GLM(), sv.graphs.grid(3, 3), 40, clip_norm=1.0, noise_multiplier=3.0, sizes=[20] * 9, seed=5
    )
    assert (plan._holders == again._holders).all()
    path = sv.protocols.draw_path(sv.graphs.grid(3, 3), 40, np.random.default_rng(5))
    assert plan._holders.tolist() == path.tolist()
    visits = np.bincount(path, minlength=9)
    assert [sum(r.draws for r in plan.releases(v)) for v in range(9)] == visits.tolist()
    worst = plan.privacy("local")
    assert worst.mu == pytest.approx(1 / 2 * math.sqrt(visits.max()))
    fitted = RandomWalkSGD.for_budget(
        GLM(), sv.graphs.grid(3, 3), 40, clip_norm=1.0, sizes=[20] * 9, seed=5, epsilon=1.0, delta=1e-5,
        view="local",
    )  # fmt: skip
    assert 0.999 < fitted.epsilon(1e-5, "local") <= 1.0
    z = np.array(noise_multipliers(fitted))
    assert np.allclose((z / np.sqrt(visits))[visits > 0], z[0] / math.sqrt(visits[0]), rtol=2e-3)


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (GraphError, r"uses \(0, 3\), which is not an edge", {"path": (0, 3, 4)}),
        (InvalidInput, "path must hold 3 nodes", {"path": (0, 1)}),
        (InvalidInput, "one node per step", {"path": "hidden"}),
        (InvalidInput, 'for path="secret"', {"cap": 2}),
        (InvalidInput, "user level", {"path": "secret", "adjacency": "add-remove", "sizes": [2] * 6}),
        (InvalidInput, "needs a network", {"protocol": None}),
        (InvalidInput, "runs over walk, not over gossip", {"protocol": "gossip:1", "network": "ring:6"}),
    ],
)
def test_invalid_walks_are_refused(error, words, changes):
    options = {"protocol": "ring:6", "steps": 3, "clip_norm": 1.0, "adjacency": "user", **changes}
    with pytest.raises(error, match=words):
        RandomWalkSGD(GLM(), **options)


def test_secret_walk_runs_in_one_process_on_a_secret_path():
    plan = RandomWalkSGD(GLM(), "ring:6", 3, clip_norm=1.0, **SECRET)
    with pytest.raises(InvalidInput, match="one process"):
        plan.mechanism(walk_shards().subset([1]), [1], RunRandomness.from_rng(np.random.default_rng(0)))
    with pytest.raises(InvalidInput, match='must be "secret"'):
        replace(plan, path="public")
    assert plan.sequential


def test_mechanism_of_a_public_path_stops_a_visit_that_is_not_on_it():
    data = walk_shards()
    plan = RandomWalkSGD(GLM(), "ring:6", 3, 0.3, 0.5, 0.7, adjacency="user", path=(0, 1, 2))
    mechanism = plan.mechanism(data, range(6), RunRandomness.from_rng(np.random.default_rng(0)))
    mechanism.rows(np.zeros((1, 3)), 1, 0, [1])
    with pytest.raises(ReleaseMismatch, match="does not list"):
        mechanism.rows(np.zeros((1, 3)), 1, 0, [2])


def test_secret_walk_lists_its_releases_from_the_first_step_and_its_records_reach_the_bound():
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


@pytest.mark.parametrize(
    ("rate", "contracts"), [((8.0, 1.0), True), ((8.1, 1.0), False), ((1.0, 8.1), False)]
)
def test_every_step_must_contract_with_feature_norm(rate, contracts):
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
