"""Private ADMM at a trusted curator, and what its variants share."""

import itertools
import math

import numpy as np
import pytest
from tests.algorithms.cases import prox_logistic, prox_squared_batch
from tests.algorithms.toys import admm_problem

import sottovoce as sv
from sottovoce.algorithms import CentralADMM, FederatedADMM, TokenADMM
from sottovoce.errors import InvalidInput, NotAGuarantee
from sottovoce.mechanisms.admm_kernels import client_moves, prox_rows
from sottovoce.objectives import GLM, clip_rows


def test_kernels_equal_the_maps_in_numpy():
    rng = np.random.default_rng(3)
    X, v = rng.normal(size=(5, 3)), rng.normal(size=3)
    y = np.sign(rng.normal(size=5))
    assert np.allclose(prox_rows(1, 1.0, X, y, v, 0.7), prox_squared_batch(v, X, y, 0.7), atol=1e-12)
    assert np.allclose(prox_rows(0, 1.0, X[:1], y[:1], v, 0.7), prox_logistic(v, X[0], y[0], 0.7), atol=1e-12)
    for model in (GLM("logistic"), GLM("squared"), GLM("huber", width=0.3), GLM("hinge", width=0.3)):
        for m, start in itertools.product((1, 5), (v, 9 * v, -9 * v)):
            w = prox_rows(model.kind, 0.3, X[:m], y[:m], start, 2.0)
            assert np.allclose(w - start + 2.0 * model.gradient(w, X[:m], y[:m]), 0, atol=1e-8)


@pytest.mark.parametrize("noise_in", ["mean", "increment"])
def test_influence_of_a_record_on_every_release_given_the_past(noise_in):
    """Replay the same releases under D and D': each un-noised mean differs by at most what is booked."""
    n, p, T = 10, 2, 8
    X, y = admm_problem(6, n, p)
    other = X.copy()
    other[3] = [40.0, -90.0]
    plan = CentralADMM(GLM("logistic", l1=0.01), n, T, 1.5, 0.6, 0.2, 0.5, noise_in)
    rng = np.random.default_rng(0)
    u = [np.zeros((n, p)), np.zeros((n, p))]
    zh = np.zeros(p)
    for _ in range(T):
        z = plan.objective.regularizer.prox(zh, 1.5)
        means = []
        for which, D in enumerate((X, other)):
            free = math.inf if noise_in == "mean" else 0.6
            each, everyone = np.arange(n + 1), np.ones(n, bool)
            moves = client_moves(0, 1.0, D, y, each, u[which], z, 1.5, free, everyone)
            u[which] = u[which] + moves
            means.append(
                clip_rows(u[which] - z, 0.6).mean(axis=0) if noise_in == "mean" else 2 * moves.mean(axis=0)
            )
        assert np.linalg.norm(means[0] - means[1]) / 0.2 <= plan.privacy().mu / math.sqrt(T) * (1 + 1e-9)
        noise = 0.2 * rng.normal(size=p)
        zh = z + means[0] + noise if noise_in == "mean" else zh + 0.5 * (means[0] + noise)
    # both data sets were given the same released z; the other records' states do not know the difference
    assert (np.delete(u[0], 3, 0) == np.delete(u[1], 3, 0)).all()


def test_labels_and_privacy_costs():
    fed = FederatedADMM(GLM("squared"), 50, 20, 0.2, 1.0, 1.0, 4.0)
    hidden = sv.privacy.Curve.sampled_gaussian(0.2, 2.0, 20, adjacency="replace-one")
    assert fed.privacy("local").curve == hidden
    assert fed.privacy("local", participations=3).rdp(2.0) == pytest.approx(8 * 2.0 * 3 / 16)
    # closed form: noise multiplier sigma sqrt(n) / (2 C) over the clip, replace-one
    for colluders in ((), (1, 2)):
        z = 4.0 * math.sqrt(50 - len(colluders)) / 2
        want = sv.privacy.Curve.sampled_gaussian(0.2, z, 20, adjacency="replace-one").epsilon(1e-5)
        view = {"view": "colluders", "colluders": colluders} if colluders else {"view": "central"}
        guarantee = fed.privacy(**view)
        assert guarantee.label == "exact"
        assert guarantee.epsilon(1e-5) == pytest.approx(want, rel=1e-9)
    # without a secure sum messages are seen, and who sent them: each round costs all or nothing
    seen = FederatedADMM(GLM("squared"), 50, 20, 0.2, 1.0, 1.0, 4.0, secure_sum=False).privacy("central")
    assert (seen.label, seen.curve) == ("ldp", sv.privacy.Curve.gaussian_mixture([0, 1], [0.8, 0.2], 20))
    token = TokenADMM(GLM("squared"), 50, 500, 1.0, 1.0, 8.0, cap=10)
    assert token.privacy("local").rdp(2.0) == pytest.approx(8 * 2.0 * 10 / 64)
    published = token.privacy("network", label="published")
    assert published.rdp(2.0) == pytest.approx(8 * 2.0 * 10 / 64 * math.log(50) / 50)
    with pytest.raises(NotAGuarantee):
        published.require(100.0, 1e-5)
    assert token.privacy("network").mu == token.privacy("local").mu
    spend = {"epsilon": 1, "delta": 1e-5, "steps": 3, "records": 9, "gamma": 1.0, "clip_norm": 1.0}
    with pytest.raises(NotAGuarantee):
        CentralADMM.for_budget(GLM("squared"), noise_in="state", **spend)
    wider = CentralADMM(GLM("squared"), 9, 3, 1.0, 1.0, 0.5, noise_in="increment")
    assert wider.privacy().mu == pytest.approx(math.sqrt(3) * 4 / (9 * 0.5))


def test_invalid_plans_are_refused():
    data = admm_problem(n=8)
    with pytest.raises(InvalidInput, match="clip_norm must be positive, and finite"):
        TokenADMM(GLM(), 9, 3, 1.0, math.inf, 0.5)
    with pytest.raises(InvalidInput, match="9 records"):
        CentralADMM(GLM(), 9, 3, 1.0, 1.0, 0.5).run(data, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="rounding slack"):
        CentralADMM(GLM(), 8, 3, 1.0, 1e-6, 1.0).run(data, sv.privacy.ProtectiveNoise())


def central_twin(plan, X, y, seed):
    """z of the last step, in numpy, from the formulas of the module's head."""
    noise = sv.privacy.SimulatedNoise(seed)
    n, p = X.shape
    u, zh, lam = np.zeros((n, p)), np.zeros(p), plan.relaxation
    for k in range(plan.steps):
        z = plan.objective.regularizer.prox(zh, plan.gamma)
        eta = noise.perturb(np.zeros((1, p)), agents=[0], step=k, std=plan.noise_std)[0]
        w = np.array([prox_logistic(2 * z - u[i], X[i], y[i], plan.gamma) for i in range(n)])
        moves = w - z if plan.noise_in == "mean" else clip_rows(w - z, plan.clip_norm)
        u = u + 2 * lam * moves
        if plan.noise_in == "mean":
            zh = z + clip_rows(u - z, plan.clip_norm).mean(axis=0) + eta
        else:
            zh = zh + lam * (2 * moves.mean(axis=0) + eta)
            u = u + lam * eta * (plan.noise_in == "state")
    return plan.objective.regularizer.prox(zh, plan.gamma), zh


@pytest.mark.parametrize("noise_in", ["mean", "increment", "state"])
def test_central_admm_equals_its_numpy_twin(noise_in):
    X, y = admm_problem(8, n=12, p=3)
    plan = CentralADMM(GLM(l1=0.02, l2=0.1), 12, 15, 0.8, 0.3, 0.2, 0.4, noise_in)
    outputs = plan.run((X, y), sv.privacy.SimulatedNoise(6)).outputs
    z, zh = central_twin(plan, X, y, 6)
    assert np.allclose(outputs["coef"], z, atol=1e-12)
    assert np.allclose(outputs["mean"], zh, atol=1e-12)
