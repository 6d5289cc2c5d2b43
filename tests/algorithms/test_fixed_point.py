"""DP-SGD, DP-CD and ADMM are instances of the noisy fixed-point iteration: the same iterates come out."""

import math

import numpy as np
import pytest

from sottovoce.algorithms.admm import CentralADMM, _moves
from sottovoce.algorithms.blocks import randomness
from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.algorithms.fixed_point import FixedPoint
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.objectives.glm import clipped_sum


def problem(seed=0, n=30, p=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n))


class Replay:
    """A noise source that adds prepared numbers, whatever it is asked for."""

    protective = False

    def __init__(self, rows):
        self.rows = rows

    def perturb(self, values, *, agents, step, std, stream=0):
        if stream:  # the sampling stream
            return values
        return values + std * self.rows[step, : values.shape[0]]

    def slack(self, dim, std=1.0):
        return 0.0


def test_gradient_descent_with_noise():
    X, y = problem()
    n, p = X.shape
    model, C, z, eta, T = GLM("logistic"), 0.8, 2.0, 0.6, 50
    beta = 1.5
    direct = DPSGD(model, n, T, n, eta, C, z).run((X, y), np.random.default_rng(7)).outputs["coef"]
    # one step per block there, so block k holds the noise of step k; it is subtracted, hence the sign
    drawn = np.stack(
        [randomness(np.random.default_rng(7)).gaussian(1, p, block=k, std=1.0) for k in range(T)]
    )

    def operator(u, data):
        g = clipped_sum(model.kind, model.width, u[0], *data, np.arange(n), C) / n
        return u - (2 / beta) * g

    plan = FixedPoint(
        operator, sensitivity=(2 / beta) * 2 * C / n, noise_std=(2 / beta) * z * C / n, steps=T,
        relaxation=eta * beta / 2,
    )  # fmt: skip
    found = plan.run((X, y), Replay(-drawn), start=np.zeros((1, p))).outputs["rows"][0]
    assert np.allclose(found, direct, atol=1e-12)
    # and the price is the same Gaussian composition, under replace-one
    assert plan.privacy().mu == pytest.approx(2 / z * math.sqrt(T))


def test_coordinate_descent_with_noise():
    X, y = problem(1)
    n, p = X.shape
    model, M, C, z, T = GLM("squared"), np.array([1.0, 2.0, 0.5]), 1.1, 1.5, 24
    direct = DPCD(model, n, T, C, z, smoothness=tuple(M), output="last")
    w = direct.run((X, y), np.random.default_rng(3)).outputs["coef"]
    source = randomness(np.random.default_rng(3))
    chosen = source.draws(0, 0).integers(p, size=T)
    drawn = source.gaussian(T, 1, block=0, std=1.0)
    clips = C * np.sqrt(M / M.sum())

    def operator(u, data):
        per_record = (data[0] @ u[:, 0] - data[1])[:, None] * data[0]
        return u - (np.clip(per_record, -clips, clips).mean(axis=0) / M)[:, None]

    unit = 2 * clips / n / M  # the sensitivity of a block; its noise is z times that
    rows = np.zeros((T, 1, 1))
    rows[:, 0, 0] = -drawn[:, 0] * unit[chosen]
    plan = FixedPoint(operator, 1.0, 1.0, T, active=lambda k, rng: chosen[k : k + 1])
    found = plan.run((X, y), Replay(rows * z), start=np.zeros((p, 1))).outputs["rows"][:, 0]
    assert np.allclose(found, w, atol=1e-12)


def test_admm_with_common_noise():
    X, y = problem(2)
    n, p = X.shape
    model, gamma, lam, sigma, T = GLM("squared", l1=0.2), 0.7, 0.4, 0.05, 20
    direct = CentralADMM(model, n, T, gamma, 5.0, sigma, lam, noise_in="state")
    z = direct.run((X, y), np.random.default_rng(5)).outputs["coef"]
    drawn = np.stack(
        [randomness(np.random.default_rng(5)).gaussian(1, p, block=k, std=1.0) for k in range(T)]
    )

    def operator(u, data):
        centre = model.regulariser.prox(u.mean(axis=0), gamma)
        return u + 2 * _moves(model.kind, model.width, *data, u, centre, gamma, 5.0)

    plan = FixedPoint(operator, 1.0, sigma, T, relaxation=lam, active_blocks=n)
    u = plan.run((X, y), Replay(np.repeat(drawn, n, axis=1)), start=np.zeros((n, p))).outputs["rows"]
    assert np.allclose(model.regulariser.prox(u.mean(axis=0), gamma), z, atol=1e-12)
    assert direct.privacy().label == "published"
    assert direct.privacy().rdp(3.0) == pytest.approx(8 * 3.0 * T * 5.0**2 / (sigma * n) ** 2)


def test_more_blocks_than_accounted_are_refused():
    plan = FixedPoint(lambda u, data: u, 1.0, 1.0, 2)
    with pytest.raises(InvalidInput, match="accounted"):
        plan.run(None, np.random.default_rng(0), start=np.zeros((2, 1)))
    with pytest.raises(InvalidInput, match="start="):
        plan.run(None, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="relaxation"):
        FixedPoint(lambda u, data: u, 1.0, 1.0, 2, relaxation=0.0)


def test_rounding_of_protective_noise_is_paid_for_in_noise():
    """An operator cannot clip lower, so the noise grows until rounding is covered."""

    asked = []

    class Source:
        protective = True

        def slack(self, dim, std=1.0):
            return 0.01 * math.sqrt(dim) * std

        def perturb(self, values, *, agents, step, std, stream=0):
            asked.append(std)
            return np.array(values)

    plan = FixedPoint(lambda u, data: 0.5 * u, sensitivity=1.0, noise_std=2.0, steps=1)
    plan.run(None, Source(), start=np.zeros((1, 4)))
    (std,) = asked
    assert (1.0 + 2 * Source().slack(4, std)) / std == pytest.approx(plan.privacy().mu)
    loud = FixedPoint(lambda u, data: 0.5 * u, sensitivity=1.0, noise_std=100.0, steps=1)
    with pytest.raises(InvalidInput, match="rounding"):
        loud.run(None, Source(), start=np.zeros((1, 4)))
