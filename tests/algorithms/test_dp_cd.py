"""DP-CD at a trusted holder."""

import math

import numpy as np
import pytest
from tests.algorithms.toys import MODELS, cd, gcd, hosted, named, problem

from sottovoce.algorithms import DPCD
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, gaussian_mu


@pytest.mark.parametrize("model", MODELS[:3], ids=named)
@pytest.mark.parametrize("period", [None, 5])
def test_dp_cd_equals_its_numpy_twin(model, period):
    """Textbook proximal coordinate descent on the coordinates drawn, with running averages."""
    X, y = problem(1)
    M = model.coordinate_smoothness(X)
    plan = cd(
        model, clip_norm=math.inf, noise_multiplier=0.0, smoothness=tuple(M), step_scale=0.8, period=period
    )
    random = RunRandomness.from_rng(np.random.default_rng(3))
    _, mechanism = hosted(plan, (X, y), random)
    w, since = np.zeros(4), []
    for t, j in enumerate(mechanism.chosen(0, 23)):
        if period and t % period == 0 and t > 0:
            w, since = np.mean(since, axis=0), []
        gamma = 0.8 / M[j]
        v = w[j] - gamma * model.gradient(w, X, y)[j]
        w = w.copy()
        w[j] = model.regularizer.prox(np.array([v]), gamma)[0]
        since.append(w)
    outputs = plan.run((X, y), np.random.default_rng(3)).outputs
    assert np.allclose(outputs["coef"], np.mean(since, axis=0), atol=1e-11)
    assert np.allclose(outputs["last"], w, atol=1e-11)


@pytest.mark.parametrize(("adjacency", "moves"), [("replace-one", 2), ("add-remove", 1)])
def test_dp_cd_costs_the_gaussian_composition(adjacency, moves):
    public = cd(steps=100, noise_multiplier=20.0, adjacency=adjacency)
    assert public.privacy().mu == pytest.approx(10 * moves / 20, rel=1e-15)
    private = cd(steps=100, noise_multiplier=20.0, bounds=(1.0, 1.0), smoothness_mu=0.3, adjacency=adjacency)
    assert private.privacy().mu ** 2 == pytest.approx((moves / 2) ** 2 + 0.09, rel=1e-12)
    shared = cd(
        steps=100, noise_multiplier=20.0, bounds=(1.0, 1.0), smoothness_share=0.2, adjacency=adjacency
    )
    smoothness = shared.releases(0)[0]
    assert (smoothness.sensitivity / smoothness.noise_std) ** 2 == pytest.approx(
        0.2 * shared.privacy().mu ** 2, rel=1e-12
    )


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_published_noise_of_dp_cd_meets_its_epsilon(epsilon, delta):
    """DP-CD: s^2 = 12 L^2 T ln(1/delta) / (n eps)^2; DP-GCD: scale 8 L sqrt(T ln(1/delta)) / (n eps)."""
    T = 50
    z = math.sqrt(12 * T * math.log(1 / delta)) / epsilon  # in units of the clip L
    assert cd(steps=T, noise_multiplier=z).privacy().epsilon(delta) <= 0.97 * epsilon
    r = 4 * math.sqrt(T * math.log(1 / delta)) / epsilon
    assert gcd(steps=T, noise_ratio=r).privacy().epsilon(delta) <= 0.94 * epsilon


def test_resumed_protective_run_does_not_use_a_second_release_of_the_smoothness(tmp_path):
    """M_j is charged once: what the checkpoint holds is what goes on."""
    X, y = problem(6)
    plan = cd(steps=100, bounds=(3.0,) * 4)
    first = plan.run((X, y), ProtectiveNoise(), checkpoint=tmp_path / "run").outputs["smoothness"]
    again = plan.run((X, y), ProtectiveNoise(), checkpoint=tmp_path / "run").outputs["smoothness"]
    assert (first == again).all()


@pytest.mark.parametrize(("epsilon", "delta"), [(6.925, 1e-3), (4.873, 1e-6), (7.996, 1e-5), (2.487, 1e-7)])
def test_closed_form_calibration_never_exceeds_the_budget(epsilon, delta):
    """Here the quotient alone is a rounding too small."""
    plan = DPCD(GLM(), records=10, steps=4, clip_norm=1.0, noise_multiplier=1.0, smoothness=(0.25,))
    short = plan.with_noise(plan.privacy().mu / gaussian_mu(epsilon, delta))
    fitted = plan.calibrated_to(epsilon, delta)
    assert fitted.epsilon(delta) <= epsilon < short.epsilon(delta)
    assert fitted.noise_multiplier == pytest.approx(short.noise_multiplier, rel=1e-10)
