"""DP-GCD at a trusted holder."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from tests.algorithms.toys import gcd, problem

from sottovoce.objectives import GLM


@pytest.mark.parametrize("sparse", [False, True])
def test_dp_gcd_takes_the_steepest_coordinate(sparse):
    X, y = problem(3)
    model, M = GLM("logistic", l1=0.01), np.array([0.2, 0.3, 0.4, 0.5])
    w, chosen = np.zeros(4), []
    for _ in range(6):
        G = model.gradient(w, X, y)
        j = np.argmax(np.abs(G) / np.sqrt(M))
        w[j] = model.regularizer.prox(w[j : j + 1] - G[j] / M[j], 1 / M[j])[0]
        chosen.append(j)
    plan = gcd(model, clip_norm=math.inf, noise_ratio=0.0, smoothness=tuple(M))
    data = (sp.csr_array(X) if sparse else X, y)
    outputs = plan.run(data, np.random.default_rng(0)).outputs
    assert np.allclose(outputs["coef"], w, atol=1e-12)
    assert outputs["chosen"].tolist() == chosen


def test_released_coordinate_has_the_announced_laplace_noise():
    """On data that contribute nothing: right scale in, 2/3 and 3/2 out."""
    plan = gcd(records=10, steps=1, clip_norm=2.0, noise_ratio=3.0, smoothness=1.0)
    rng, released = np.random.default_rng(0), []
    for _ in range(500):
        w = plan.run((np.zeros((10, 2)), np.ones(10)), rng).outputs["coef"]
        released.append(w[w != 0][0] / (3 * 2 * math.sqrt(2) / 10) / math.sqrt(2))
    assert 0.85 < np.std(released) < 1.15


def test_dp_gcd_costs_selections_and_laplace_releases():
    """Renyi: pure losses by the exact formula of randomized response, Laplace by Mironov's closed form."""
    T, r, a = 4, 20.0, 2.0
    plan = gcd(records=1000, steps=T, noise_ratio=r, smoothness=0.25)
    e = 2 / r
    selection = min(
        e, math.log((math.exp(e * (a - 1)) * math.exp(e) + math.exp(-e * (a - 1))) / (math.exp(e) + 1))
    )
    t = 1 / r
    value = math.log(a / (2 * a - 1) * math.exp((a - 1) * t) + (a - 1) / (2 * a - 1) * math.exp(-a * t)) / (
        a - 1
    )
    rdp = plan.privacy().rdp(a)
    assert T * value < rdp <= T * (a * e * e / 2 + value) * (1 + 1e-12)
    assert rdp >= T * (selection / (a - 1) + value) * (1 - 1e-6)
    # pure composition caps it: T (2/r + 1/r)
    assert plan.privacy().epsilon(1e-12) <= T * 3 / r * (1 + 1e-9)
    choose, answer = plan.releases(0)
    assert (choose.mechanism, answer.mechanism) == ("noisy-max", "laplace")
    assert (choose.noise_to_sensitivity, answer.noise_to_sensitivity, choose.draws, answer.draws) == (
        r,
        r,
        T,
        T,
    )
