"""DP-SGD at a trusted holder."""

import math

import numpy as np
import pytest
from tests.algorithms.toys import MODELS, hosted, named, problem, sgd

from sottovoce.algorithms import DPSGD, Optimizer
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_dp_sgd_is_proximal_gradient_descent(model):
    X, y = problem()
    w, total = np.zeros(4), np.zeros(4)
    for _ in range(7):
        w = w - 0.3 * model.gradient(w, X, y)
        w = np.sign(w) * np.maximum(np.abs(w) - 0.3 * model.l1, 0) / (1 + 0.3 * model.l2)
        if model.box:
            w = np.clip(w, -model.box, model.box)
        if model.ball:
            w = w * min(1.0, model.ball / np.linalg.norm(w))
        total += w
    for output, want in (("last", w), ("mean", total / 7)):
        plan = sgd(model, batch_size=None, clip_norm=math.inf, noise_multiplier=0.0, output=output)
        outputs = plan.run((X, y), np.random.default_rng(0)).outputs
        assert np.allclose(outputs["coef"], want, atol=1e-13)
        assert np.allclose(outputs["last"], w, atol=1e-13)


def test_dp_sgd_takes_an_optimizer_and_a_falling_rate():
    X, y = problem()
    model = GLM("squared")
    plan = sgd(
        model, batch_size=None, clip_norm=math.inf, noise_multiplier=0.0, learning_rate=(0.2, 0.05), steps=3,
        optimizer=Optimizer("momentum", 0.5), output="mean",
    )  # fmt: skip
    w, velocity, total = np.zeros(4), np.zeros(4), np.zeros(4)
    for rate in (0.2, 0.1, 0.05):
        velocity = 0.5 * velocity + model.gradient(w, X, y)
        w = w - rate * velocity
        total += w
    outputs = plan.run((X, y), np.random.default_rng(0)).outputs
    assert np.allclose(outputs["last"], w, atol=1e-13)
    assert np.allclose(outputs["coef"], total / 3, atol=1e-13)


def test_networks_and_optimizers_run_step_by_step():
    X, y = problem()
    algorithm, _ = hosted(
        sgd(optimizer=Optimizer("adam")), (X, y), RunRandomness.from_rng(np.random.default_rng(0))
    )
    assert algorithm.block is None


def test_records_and_sizes_of_dp_sgd_agree():
    assert DPSGD(GLM(), sizes=[30], steps=1, clip_norm=1.0).records == 30
    assert DPSGD(GLM(), records=30, steps=1, clip_norm=1.0).sizes == (30,)
    assert DPSGD(GLM(), batch_size=5, sample_rate=0.1, steps=1, clip_norm=1.0).records is None
