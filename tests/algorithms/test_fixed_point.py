"""Gradient descent, coordinate descent and ADMM as noisy fixed-point iterations: the same iterates."""

import math

import numpy as np
import pytest
from tests.algorithms.cases import prox_squared
from tests.algorithms.toys import problem

from sottovoce.algorithms import DPCD, DPSGD, FixedPoint
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import perturb_steps
from sottovoce.objectives import GLM


class Replay:
    """A noise source that adds prepared numbers, whatever the standard deviation."""

    protective = False

    def __init__(self, rows):
        self.rows = rows

    def perturb(self, values, *, agents, step, std, stream=0):
        return values + std * self.rows[step, : values.shape[0]]

    def slack(self, dim, std=1.0):
        return 0.0


def replayed(plan, data, rows):
    """The last iterate (blocks, dim) on prepared noise."""
    return plan.run(data, RunRandomness(Replay(rows), batches=1, start_seed=1)).outputs["blocks"]


def standard(rng, steps, dim):
    """The simulated noise of every step of a run from ``rng``, before its scale."""
    noise = RunRandomness.from_rng(rng).noise
    return perturb_steps(noise, np.zeros((steps, dim)), agent=0, step=0, std=1.0)


def test_fixed_point_equals_noisy_gradient_descent():
    X, y = problem(0, 30, 3)
    n, p = X.shape
    model, C, z, eta, T = GLM("logistic"), 0.8, 2.0, 0.6, 50
    beta = 1.5
    direct = DPSGD(model, records=n, steps=T, learning_rate=eta, clip_norm=C, noise_multiplier=z)
    w = direct.run((X, y), np.random.default_rng(7)).outputs["coef"]
    drawn = standard(np.random.default_rng(7), T, p)[:, None]

    def operator(u, data):
        slopes = -data[1] / (1 + np.exp(data[1] * (data[0] @ u[0])))
        each = slopes[:, None] * data[0]
        each *= np.minimum(1, C / np.linalg.norm(each, axis=1))[:, None]
        return u - (2 / beta) * each.mean(axis=0)

    plan = FixedPoint(
        operator, sensitivity=(2 / beta) * 2 * C / n, noise_std=(2 / beta) * z * C / n, steps=T,
        relaxation=eta * beta / 2, start=np.zeros((1, p)),
    )  # fmt: skip
    # what is added to R is subtracted by the gradient step, hence the sign
    assert np.allclose(replayed(plan, (X, y), -drawn)[0], w, atol=1e-12)
    # and the privacy cost is the same Gaussian composition, under replace-one
    assert plan.privacy().mu == pytest.approx(2 / z * math.sqrt(T))
    falling = FixedPoint(
        operator, 1.0, 0.0, T, start=np.zeros((1, p)), relaxation=lambda k: (beta / 2) * 0.4 / (k + 1)
    )
    plain = np.zeros((1, p))
    for k in range(T):
        plain = plain - 0.4 / (k + 1) * (plain - operator(plain, (X, y))) * beta / 2
    assert np.allclose(falling.run((X, y), np.random.default_rng(0)).outputs["blocks"], plain, atol=1e-12)


def test_fixed_point_equals_noisy_coordinate_descent():
    X, y = problem(1, 30, 3)
    n, p = X.shape
    model, M, C, z, T = GLM("squared"), np.array([1.0, 2.0, 0.5]), 1.1, 3.0, 24
    direct = DPCD(model, n, T, C, z, smoothness=tuple(M), output="last")
    w = direct.run((X, y), np.random.default_rng(3)).outputs["coef"]
    random = RunRandomness.from_rng(np.random.default_rng(3))
    chosen = direct.mechanism(direct.prepared((X, y)), [0], random).chosen(0, T)
    clips = C * np.sqrt(M / M.sum())

    def operator(u, data):
        per_record = (data[0] @ u[:, 0] - data[1])[:, None] * data[0]
        return u - (np.clip(per_record, -clips, clips).mean(axis=0) / M)[:, None]

    unit = clips / n / M  # the clip of a block; its noise is z times that
    rows = -standard(np.random.default_rng(3), T, 1)[:, None] * unit[chosen][:, None, None]
    plan = FixedPoint(
        operator, 2.0, z, T, active=lambda k, rng: chosen[k : k + 1], active_blocks=1, start=np.zeros((p, 1))
    )
    assert np.allclose(replayed(plan, (X, y), rows)[:, 0], w, atol=1e-12)
    assert plan.privacy().mu == pytest.approx(direct.privacy().mu, rel=1e-14)


def test_fixed_point_equals_admm_with_common_noise():
    """z = prox(mean u), w_i = prox(2z - u_i), u_i += 2 lambda (w_i - z) + lambda eta, written out."""
    X, y = problem(2, 30, 3)
    n, p = X.shape
    model, gamma, lam, sigma, T = GLM("squared", l1=0.2), 0.7, 0.4, 0.05, 20
    drawn = np.random.default_rng(5).normal(size=(T, 1, p))
    u = np.zeros((n, p))
    for k in range(T):
        z = model.regularizer.prox(u.mean(axis=0), gamma)
        for i in range(n):
            move = prox_squared(2 * z - u[i], X[i], y[i], gamma) - z
            u[i] = u[i] + 2 * lam * move + lam * sigma * drawn[k, 0]

    def operator(u, data):
        center = model.regularizer.prox(u.mean(axis=0), gamma)
        pairs = zip(*data, u, strict=True)
        return u + 2 * np.array([prox_squared(2 * center - v, x, t, gamma) - center for x, t, v in pairs])

    plan = FixedPoint(operator, 1.0, sigma, T, relaxation=lam, start=np.zeros((n, p)))
    assert np.allclose(replayed(plan, (X, y), np.repeat(drawn, n, axis=1)), u, atol=1e-12)
    assert plan.privacy().mu == pytest.approx(math.sqrt(T * n) / sigma)  # every block is charged


def test_error_is_added_to_the_operator():
    plan = FixedPoint(
        lambda u, data: data + 0 * u, 1.0, 0.0, 3, error=lambda u, data, k, rng: np.full_like(u, k),
        start=np.zeros((2, 1)),
    )  # fmt: skip
    assert plan.run(5.0, np.random.default_rng(0)).outputs["blocks"].tolist() == [[7.0], [7.0]]
