"""What can run behind masked sums, beside what it must equal, and what its price must be."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import DPSGD, ConsensusFedAvg, ConsensusSGD, FederatedADMM
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.noise.grid import SummedNoise
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, gaussian_epsilon
from sottovoce.protocols import Masked

SIZES = [4, 9, 5, 12, 10]


def shards(sizes=SIZES, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(sizes), dim))
    y = (X @ np.arange(1.0, dim + 1) + rng.standard_normal(sum(sizes)) > 0).astype(float)
    return Shards(X, y, np.concatenate([[0], np.cumsum(sizes)]))


# ---- federated ADMM -------------------------------------------------------------------------------------


def admm(**more):
    options = {
        "users": 6, "steps": 12, "sample_rate": 1.0, "gamma": 1.0, "clip_norm": 1.0, "noise_std": 6.0
    } | more  # fmt: skip
    return FederatedADMM(GLM("squared", dim=3), **options)


def test_masked_admm_learns_what_it_learns_with_a_server():
    data = shards([5] * 6)
    for rate in (1.0, 0.5):
        masked, server = admm(network="ring:6", sample_rate=rate), admm(sample_rate=rate)
        a, b = (plan.run(data, np.random.default_rng(3)).outputs["coef"] for plan in (masked, server))
        # rounded once per row and step, and steps add up
        assert np.abs(a - b).max() <= 12 * masked.grid.step
        assert np.abs(a).max() > 0.05


def test_masked_admm_is_priced_by_the_clients_still_joined_by_keys():
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


def test_masked_admm_sends_integers_of_the_grid_to_others():
    plan, sent = admm(network="ring:6"), []

    class Watching(Masked):
        def apply(self, rows, noise=None, step=0):
            sent.append(np.asarray(rows))
            return super().apply(rows, noise, step)

    object.__setattr__(plan, "protocol", Watching(sv.graphs.ring(6), grid_step=plan.grid.step))
    plan.run(shards([5] * 6), ProtectiveNoise())
    rows = np.concatenate(sent) / plan.grid.step
    assert (rows == np.rint(rows)).all()
    assert np.std(rows * plan.grid.step) == pytest.approx(6.0, rel=0.2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"protocol": "masked"}, "needs a network"),
        ({"protocol": "tree", "network": "ring:6"}, "masked or a server, not over tree"),
        ({"protocol": sv.protocols.Tree(sv.graphs.ring(6))}, "masked or a server, got Tree"),
        ({"network": "ring:5"}, "5 nodes, the plan 6 users"),
        ({"network": "ring:6", "secure_sum": False}, "masks are a secure sum"),
    ],
)
def test_masked_admm_refuses_what_it_cannot_do(more, words):
    with pytest.raises(InvalidInput, match=words):
        admm(**more)


# ---- DP-SGD over sites ------------------------------------------------------------------------------------


def descend(X, y, weights, steps=15, rate=0.5):
    """Plain descent of the weighted logistic loss, by hand."""
    w = np.zeros(X.shape[1])
    for _ in range(steps):
        residual = 1 / (1 + np.exp(-X @ w)) - y
        gradients = X * residual[:, None]
        norms = np.linalg.norm(gradients, axis=1)
        w -= rate * weights @ (gradients * np.minimum(1, 0.7 / norms)[:, None])
    return w


@pytest.mark.parametrize("weighting", ["records", "sites"])
def test_unequal_sites_behind_masks_learn_the_mean_that_was_named(weighting):
    """ "records" weighs every record alike and is DP-SGD on the pooled records, "sites" weighs every site."""
    data = shards()
    common = {"steps": 15, "clip_norm": 0.7, "noise_multiplier": 0.0, "learning_rate": 0.5}
    plan = ConsensusSGD(
        GLM("logistic", dim=3), "masked", network="ring:5", sizes=SIZES, weighting=weighting, **common
    )
    found = plan.run(data, np.random.default_rng(0), start=np.zeros(3)).outputs["coef"]
    n = sum(SIZES)
    each = {"records": [1 / n] * 5, "sites": [1 / (5 * size) for size in SIZES]}[weighting]
    by_hand = descend(data.X, data.y, np.repeat(each, SIZES))
    np.testing.assert_allclose(found, by_hand, atol=1e-7)
    central = DPSGD(GLM("logistic", dim=3), records=n, **common)
    pooled = central.run((data.X, data.y), np.random.default_rng(0), start=np.zeros(3)).outputs["coef"]
    assert np.allclose(found, pooled, atol=1e-7) == (weighting == "records")


def test_sampled_sites_cost_what_the_curator_would_pay_for_less_noise():
    """Poisson lots at every site: against any two of five, DP-SGD with sqrt(3) times one site's noise."""
    sites = ConsensusSGD(
        GLM(dim=3),
        "masked:tolerate=2",
        network="ring:5",
        sizes=[100] * 5,
        steps=40,
        clip_norm=1.0,
        batch_size=10,
        noise_multiplier=1.0,
    )
    curator = DPSGD(
        GLM(dim=3), records=100, steps=40, clip_norm=1.0, batch_size=10, noise_multiplier=np.sqrt(3)
    )
    assert sites.epsilon(1e-5) == pytest.approx(curator.epsilon(1e-5), rel=1e-6)


def test_federated_averaging_behind_masks():
    plan = ConsensusFedAvg(
        GLM(dim=3),
        "masked:tolerate=2",
        network="ring:6",
        steps=9,
        clip_norm=1.0,
        noise_multiplier=4.0,
        local_steps=3,
    )
    mu = np.sqrt(9) * 2 / (4 * np.sqrt(4))
    assert plan.epsilon(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)
    data = shards([6] * 6)
    tree = ConsensusFedAvg(
        GLM(dim=3), "tree", network="ring:6", steps=9, clip_norm=1.0, noise_multiplier=4.0, local_steps=3
    )
    rows = [p.run(data, np.random.default_rng(2), start=np.zeros(3)).outputs["rows"] for p in (plan, tree)]
    np.testing.assert_allclose(rows[0], rows[1], atol=9 * 2 * plan.grid.step)


# ---- the law of the sum --------------------------------------------------------------------------------


def test_noise_of_the_sum_has_the_law_of_many_draws():
    plan = sv.PrivateAveraging("masked", noise_std=3.0, radius=1.0, network="ring:50", dim=20_000)
    zeros = np.zeros((50, 20_000))
    once, each = (
        plan.run(zeros, noise).outputs["rows"][0] for noise in (SummedNoise(1), np.random.default_rng(1))
    )
    for mean in (once, each):
        assert np.std(mean) == pytest.approx(3 / np.sqrt(50), rel=0.03)  # six standard errors
        assert abs(np.mean(mean)) < 5 * 3 / np.sqrt(50 * 20_000)
    assert not np.allclose(once, each)


def test_noise_of_the_sum_is_refused_where_rows_are_seen_or_weighted():
    data = shards()
    common = {"network": "ring:5", "steps": 2, "clip_norm": 1.0, "noise_multiplier": 1.0, "sizes": SIZES}
    masked = ConsensusSGD(GLM(dim=3), "masked", **common)
    assert np.isfinite(masked.run(data, SummedNoise(0)).outputs["coef"]).all()
    for protocol, weighting in (("tree", "records"), ("masked", "sites")):
        plan = ConsensusSGD(GLM(dim=3), protocol, weighting=weighting, **common)
        with pytest.raises(InvalidInput, match="noise of the sum alone"):
            plan.run(data, SummedNoise(0))


# ---- averaging around a point of one's own ---------------------------------------------------------------


def test_a_masked_average_around_a_far_point_is_on_a_grid_that_reaches_it():
    """Bound, noise and center are those of the values: 2,000 numbers tell a factor of two in any of them."""
    center = tuple(np.tile([5.0, -0.25], 1000))
    plan = sv.PrivateAveraging(
        "masked", noise_std=0.5, radius=40.0, center=center, dim=2000, network="complete:4"
    )
    grid = plan.grid
    assert 45.0 <= grid.bound * grid.step <= 45.0 + 2 * grid.step
    values = np.array(center) + np.random.default_rng(0).uniform(-0.5, 0.5, size=(4, 2000))
    error = plan.run(values, ProtectiveNoise()).outputs["coef"] - values.mean(axis=0)
    assert abs(error.mean()) < 5 * 0.25 / np.sqrt(2000)
    assert error.std() == pytest.approx(0.5 / 2, rel=0.08)  # the mean of four
