"""D-SGD with noise correlated along edges; what it shares with noise correlated over time."""

import math

import numpy as np
import pytest
from tests.algorithms.toys import RING, N, P, shards

import sottovoce as sv
from sottovoce.algorithms import Decor, Mafalda
from sottovoce.algorithms.mafalda import correlation
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM, clip_rows

ONE = sv.protocols.Gossip(RING, 1)


def plans(**changes):
    options = {"steps": 8, "learning_rate": (0.4, 0.2), "clip_norm": 0.5, "noise_multiplier": 0.7, **changes}
    return {
        "decor": Decor(GLM(l2=0.1), ONE, pair_multiplier=1.5, **options),
        "mafalda": Mafalda(GLM(l2=0.1), ONE, **options),
    }


def added(name, plan, noise, k):
    """What a step adds to the clipped gradients, from the formulas of the modules' heads."""
    draw = {"agents": range(N), "std": 1.0}
    if name == "mafalda":
        correlated = correlation(plan)
        fresh = [noise.perturb(np.zeros((N, P)), step=s, **draw) for s in range(k + 1)]
        inverse = np.linalg.inv(correlated.C)
        return 0.7 * 0.5 * correlated.sens * sum(inverse[k, s] * fresh[s] for s in range(k + 1))
    own = 0.7 * 0.5 * noise.perturb(np.zeros((N, P)), step=k, **draw)
    for e, (u, v) in enumerate(RING.edges):
        shared = 1.5 * 0.5 * noise.perturb(np.zeros((1, P)), agents=[e], step=k, std=1.0, stream=1)[0]
        own[u] += shared
        own[v] -= shared
    return own


@pytest.mark.parametrize("name", ["decor", "mafalda"])
def test_decor_and_mafalda_equal_their_numpy_twins(name):
    plan, data = plans()[name], shards()
    actual = plan.run(data, np.random.default_rng(5)).outputs["rows"]
    noise, W = RunRandomness.from_rng(np.random.default_rng(5)).noise, RING.W.toarray()
    theta = np.zeros((N, P))
    for k in range(8):
        g = np.array([plan.objective.gradient(theta[v], *data.user(v)) for v in range(N)]) + 0.1 * theta
        theta = W @ (theta - plan.rate(k) * (clip_rows(g, 0.5) + added(name, plan, noise, k)))
    assert np.allclose(actual, theta, atol=1e-12)


def test_decor_privacy_costs():
    ring = sv.protocols.Gossip(sv.graphs.ring(16), 1)
    plan = Decor(GLM(), ring, 5, 0.1, 1.0, 0.5, pair_multiplier=3.0)
    outside = plan.privacy("outsider")
    assert outside.label == "exact"
    assert outside.rdp(2.0) == pytest.approx(2 * 2.0 * 0.38196 * 5, abs=1e-3)
    # both neighbors collude: only s_d is left, which is what local means whoever knows the seeds
    alone = plan.privacy("colluders", colluders=[1, 3], user=2)
    assert alone.mu == pytest.approx(2 / 0.5 * math.sqrt(5))
    assert plan.privacy("local").mu == pytest.approx(2 / 0.5 * math.sqrt(5))
    assert plan.privacy("local").label == "ldp"
    # one neighbor: by hand, the path of 15 nodes that is left, its end
    L = np.diag([1.0, *[2.0] * 13, 1.0]) - np.eye(15, k=1) - np.eye(15, k=-1)
    end = np.linalg.inv(0.25 * np.eye(15) + 9.0 * L)[0, 0]
    assert plan.privacy("network").mu == pytest.approx(2 * math.sqrt(5 * end))
    assert Decor(GLM(), ring, 5, 0.1, 1.0, 0.0, pair_multiplier=3.0).privacy("outsider").mu == math.inf
    no_pairs = Decor(GLM(), ring, 5, 0.1, 1.0, 0.5)
    assert no_pairs.privacy("outsider").mu == pytest.approx(2 / 0.5 * math.sqrt(5))


def test_budget_of_decor_is_not_met_against_less_than_one_member():
    """On a star the leaves' only neighbor is the center, whose seeds are all there are."""
    star = sv.protocols.Gossip(sv.graphs.star(8), 1)
    plan = Decor(GLM(), star, 1, 0.1, 1.0, 0.5, pair_multiplier=3.0)
    assert plan.privacy().mu == pytest.approx(plan.privacy("local").mu)
    assert plan.privacy("outsider").mu < 0.8 * plan.privacy().mu
    fitted = Decor.for_budget(GLM(), star, 1, 0.1, 1.0, pair_multiplier=3.0, epsilon=2.0, delta=1e-5)
    assert fitted.privacy("network", observer=0).epsilon(1e-5) <= 2.0


@pytest.mark.parametrize("kind", [Decor, Mafalda])
def test_invalid_plans_are_refused(kind):
    with pytest.raises(InvalidInput, match="one round of Gossip"):
        kind(GLM(), "gossip:2", 3, 0.1, 1.0, 1.0, network=RING)
    with pytest.raises(InvalidInput, match="one network for all steps"):
        kind(GLM(), lambda k: ONE, 3, 0.1, 1.0, 1.0)
