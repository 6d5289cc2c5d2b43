"""The sixteen clinics of the demonstration: what they hold, reveal, learn, and which claims hold."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.demo import clinics as parts


@pytest.fixture(scope="module")
def clinics():
    return parts.consortium()


def test_consortium_matches_its_description(clinics):
    assert clinics.network.n == len(set(parts.NAMES)) == 16
    assert clinics.shards.sizes.tolist() == [parts.PATIENTS] * 16
    assert len(clinics.y_test) == 114
    np.testing.assert_allclose(clinics.shares() * parts.PATIENTS, parts.MALIGNANT)
    assert np.linalg.norm(clinics.shards.X, axis=1).max() <= 1 + 1e-12
    # neighbors are of different kinds
    large = np.array(parts.MALIGNANT) > 10
    assert all(large[u] != large[v] for u, v in clinics.network.edges)


def test_scaling_depends_on_public_ranges_only(clinics):
    one = parts.scaled(np.full((1, 30), 1e9))
    assert np.isfinite(one).all()
    X = np.vstack([np.array(parts.LOW), np.array(parts.HIGH)])
    np.testing.assert_array_equal(parts.scaled(X)[0], parts.scaled(X[:1])[0])


def test_reconstruction_recovers_what_the_view_determines(clinics):
    metrics = parts.reconstruction(clinics).metrics
    distance = clinics.network.distances_from(0)
    assert {r["distance"] for r in metrics["recovered"]} == {1, 3, 4}
    assert metrics["reconstructed"] == [u for u in range(16) if distance[u] in (1, 3, 4)]
    assert max(r["error"] for r in metrics["recovered"]) < 1e-10


def test_promises_for_one_patient_and_for_a_clinic(clinics):
    patient, _, clinic = parts.promises(sv.protocols.HypercubeExchange(16), 0)
    assert patient["epsilon"] == pytest.approx(1.0)
    assert patient["adjacency"] == "replace-one"
    assert clinic["adjacency"] == "user"
    assert clinic["mu"] == pytest.approx(parts.PATIENTS * patient["mu"])


def test_averages_cost_what_the_views_imply(clinics):
    result = parts.averages(clinics, runs=4000)
    methods = {m["method"]: m for m in result.metrics["methods"]}
    std = parts.noise_for_patients()
    assert methods["tree"]["error"] == pytest.approx(std / 4, rel=0.05)
    assert methods["exchange"]["error"] == pytest.approx(methods["tree"]["error"])
    mu = sv.privacy.gaussian_mu(1.0, 1e-5)
    assert methods["exchange"]["epsilon_typical"] == pytest.approx(
        sv.privacy.gaussian_epsilon(mu / 8**0.5, 1e-5)
    )
    assert methods["masked sum"]["epsilon_worst"] == pytest.approx(
        sv.privacy.gaussian_epsilon(mu / np.sqrt(15), 1e-5)
    )
    assert methods["masked sum"]["error"] == pytest.approx(methods["tree"]["error"], rel=1e-6)
    assert methods["masked sum"]["messages"] == methods["tree"]["messages"]
    assert methods["trusted curator"]["epsilon_worst"] == pytest.approx(
        sv.privacy.gaussian_epsilon(mu / 4, 1e-5)
    )
    for m in methods.values():
        assert m["epsilon_typical"] <= m["epsilon_worst"] <= 1.0 + 1e-9


def test_training_stays_within_its_budget(clinics):
    result = parts.training(clinics, steps=5, repeats=1)
    for method in result.metrics["methods"]:
        if method["private"]:
            assert 0.999 < method["epsilon"] <= 1.0
    labels = {(g["what"], g["adversary"]["kind"]): g["label"] for g in result.guarantees}
    assert labels["exact consensus", "network"] == "exact"
    assert labels["masked sum", "network"] == "exact"
    assert labels["gossip", "local"] == "ldp"
    colluders = next(g for g in result.guarantees if g["adversary"]["kind"] == "colluders")
    assert colluders["epsilon"] > 0.3


def test_tree_shares_equal_the_leakage_of_views(clinics):
    for tree in parts.spread_trees(clinics.network, 3, np.random.default_rng(1), candidates=2):
        views = np.array([tree.view(v).leakage() for v in range(16)])
        np.testing.assert_allclose(parts.tree_shares(tree), views, atol=1e-9)


def test_audit_refutes_only_the_published_formula(clinics):
    audits = parts.audit(clinics, runs=6000).metrics["audits"]
    broken = {name: a["label"] for name, a in audits.items() if a["refuted"]}
    assert list(broken.values()) == ["published"]
