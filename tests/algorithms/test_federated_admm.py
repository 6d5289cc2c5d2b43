"""Private ADMM between a server, or masked sums in its place, and sampled clients."""

import numpy as np
import pytest
from tests.algorithms.cases import prox_logistic
from tests.algorithms.toys import admm_problem, unequal_shards

import sottovoce as sv
from sottovoce.algorithms import FederatedADMM
from sottovoce.algorithms.federated_admm import absorbed
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.admm import ClientProxMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM, clip_rows
from sottovoce.privacy import ProtectiveNoise, gaussian_epsilon
from sottovoce.protocols import Masked


def admm(**more):
    options = {
        "users": 6, "steps": 12, "sample_rate": 1.0, "gamma": 1.0, "clip_norm": 1.0, "noise_std": 6.0
    } | more  # fmt: skip
    return FederatedADMM(GLM("squared", dim=3), **options)


@pytest.mark.parametrize("secure_sum", [True, False])
def test_no_central_guarantee_without_a_secure_sum(secure_sum):
    plan = admm(sample_rate=0.5, secure_sum=secure_sum)
    kinds = [guarantee.adversary.kind for guarantee in plan.guarantees()]
    assert kinds == (["local", "central"] if secure_sum else ["local"])
    mean = plan.schedule(0).apply(np.full((6, 1), 6.0))[0]
    assert absorbed(np.zeros(1), mean, plan.relaxation).tolist() == [3.0]


def test_a_result_names_the_rounds_of_clients_where_they_are_seen(monkeypatch):
    sent, release = np.zeros(6, dtype=int), ClientProxMechanism.add_noise

    def counted(self, rows, places, k):
        sent[places] += 1
        return release(self, rows, places, k)

    monkeypatch.setattr(ClientProxMechanism, "add_noise", counted)
    data = unequal_shards([5] * 6)
    seen = admm(sample_rate=0.5, secure_sum=False).run(data, np.random.default_rng(3))
    drawn = (seen.metrics["fewest_rounds"], seen.metrics["most_rounds"])
    assert drawn == (sent.min(), sent.max())
    assert 0 < drawn[0] < drawn[1] < 12
    hidden = admm(sample_rate=0.5).run(data, np.random.default_rng(3))
    assert "most_rounds" not in hidden.metrics


def test_masked_admm_equals_admm_with_a_server():
    data = unequal_shards([5] * 6)
    for rate in (1.0, 0.5):
        masked, server = admm(network="ring:6", sample_rate=rate), admm(sample_rate=rate)
        a, b = (plan.run(data, np.random.default_rng(3)).outputs["coef"] for plan in (masked, server))
        # rounded once per row and step, and steps add up
        assert np.abs(a - b).max() <= 12 * masked.grid.spacing
        assert np.abs(a).max() > 0.05


def test_masked_admm_is_accounted_by_partner_components():
    def steps_of(epsilon_mu):  # twelve Gaussian steps of sensitivity 4C
        return gaussian_epsilon(np.sqrt(12) * 4.0 / (6.0 * np.sqrt(epsilon_mu)), 1e-5)

    masked = admm(protocol="masked:tolerate=2", network="ring:6")
    assert masked.privacy("outsider").epsilon(1e-5) == pytest.approx(steps_of(6), rel=1e-6)
    assert masked.epsilon(1e-5, "network") == pytest.approx(steps_of(5), rel=1e-6)
    assert str(masked.privacy().adversary) == "any 2 nodes together"
    assert masked.epsilon(1e-5) == pytest.approx(steps_of(4), rel=1e-6)
    assert masked.privacy().assumptions[0] == "X25519, AES-256 and HMAC hold"
    # members 0 and 3 cut a circle of partners in halves; a server's assumed sum knows no such thing
    cut = admm(protocol=Masked(sv.graphs.complete(6), partners=sv.graphs.ring(6), tolerate=None))
    assert cut.epsilon(1e-5, "colluders", colluders=[0, 3]) == pytest.approx(steps_of(2), rel=1e-6)
    assert admm().epsilon(1e-5, "colluders", colluders=[0, 3]) == pytest.approx(steps_of(4), rel=1e-6)
    assert cut.epsilon(1e-5, "colluders", colluders=[0, 2]) == pytest.approx(masked.epsilon(1e-5, "local"))


def test_masked_admm_sends_grid_integers():
    plan, sent = admm(network="ring:6"), []

    class Watching(Masked):
        def apply(self, rows, noise=None, step=0):
            sent.append(np.asarray(rows))
            return super().apply(rows, noise, step)

    object.__setattr__(plan, "protocol", Watching(sv.graphs.ring(6), grid_spacing=plan.grid.spacing))
    plan.run(unequal_shards([5] * 6), ProtectiveNoise())
    rows = np.concatenate(sent) / plan.grid.spacing
    assert (rows == np.rint(rows)).all()
    assert np.std(rows * plan.grid.spacing) == pytest.approx(6.0, rel=0.2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"protocol": "masked"}, "needs a network"),
        ({"protocol": "tree", "network": "ring:6"}, "runs over masked, not over tree"),
        ({"protocol": sv.protocols.Tree(sv.graphs.ring(6))}, "masked or a server, got Tree"),
        ({"network": "ring:5"}, "5 nodes, the plan 6 users"),
        ({"network": "ring:6", "secure_sum": False}, "masks are a secure sum"),
    ],
)
def test_invalid_masked_admm_is_refused(more, words):
    with pytest.raises(InvalidInput, match=words):
        admm(**more)


def test_results_do_not_name_participants():
    """The central statement needs it hidden."""
    result = admm(sample_rate=0.5).run(unequal_shards([5] * 6), np.random.default_rng(0))
    assert set(result.outputs) == {"rows", "coef", "mean"}


@pytest.mark.parametrize("secure", [True, False])
def test_federated_admm_equals_its_numpy_twin(secure):
    X, y = admm_problem(9, n=6, p=3)
    shards = Shards.from_parts(X, y, np.arange(6)[:, None])
    plan = FederatedADMM(GLM(l1=0.02, l2=0.1), 6, 15, 0.6, 0.8, 0.3, 0.2, 0.4, secure_sum=secure)
    outputs = plan.run(shards, np.random.default_rng(3)).outputs
    random = RunRandomness.from_rng(np.random.default_rng(3))
    u, zh = np.zeros((6, 3)), np.zeros(3)
    for k in range(15):
        z = plan.objective.regularizer.prox(zh, 0.8)
        part = random.draws(0, k).random(6) < 0.6
        eta = random.noise.perturb(np.zeros((6, 3)), agents=range(6), step=k, std=0.2)
        moves = np.array([prox_logistic(2 * z - u[i], X[i], y[i], 0.8) - z for i in range(6)])
        rows = 2 * clip_rows(moves, 0.3) * part[:, None]
        sent = rows + (eta if secure else eta * part[:, None])
        u = u + 0.4 * (rows if secure else sent)
        zh = zh + 0.4 * sent.mean(axis=0)
    assert np.allclose(outputs["mean"], zh, atol=1e-12)
    for name in ("rows", "coef"):
        assert np.allclose(outputs[name], plan.objective.regularizer.prox(zh, 0.8), atol=1e-12)
