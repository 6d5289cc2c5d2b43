"""DP-DiNNO."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import DPDiNNO
from sottovoce.objectives import GLM


@pytest.mark.parametrize(("share", "dies"), [(0.97, True), (1.03, False)])
def test_dinno_disagreement_vanishes_below_four_thirds(share, dies):
    """Without gradients the agents agree if and only if rate * rho * (largest Laplacian value) < 4/3."""
    graph = sv.graphs.random_connected(10, 0.06, np.random.default_rng(3))
    A = graph.adjacency.toarray()
    degrees = A.sum(axis=1)
    largest = np.linalg.eigvalsh(np.diag(degrees) - A)[-1]

    class Nothing:
        agents = range(10)

        def gradient_with_l2(self, theta, k, stream):
            return np.zeros_like(theta)

    options = {"clip_norm": 1.0, "adjacency": "user", "learning_rate": 0.5, "optimizer": "sgd"}
    rho = share * 4 / 3 / largest / 0.5
    plan = DPDiNNO(GLM(dim=3), graph, steps=600, rho=rho, rho_growth=1.0, **options)
    algorithm = plan.algorithm(Nothing(), np.random.default_rng(0).normal(size=(10, 3)))
    state = algorithm.init()
    for k in range(600):
        state = algorithm.update(state, A @ algorithm.message(state, k), k)
    assert (np.ptp(algorithm.output(state), axis=0).max() < 1e-3) == dies


@pytest.mark.parametrize(("fresh", "end"), [(True, 0.0), (False, -0.0506)])
def test_dinno_forgets_the_moments_of_adam_unless_it_keeps_them(fresh, end):
    """Gradients 1 and then -3: with fresh moments a step of Adam is the sign of the gradient."""

    class Turning:
        agents = range(2)

        def gradient_with_l2(self, theta, k, stream):
            return np.full_like(theta, (1.0, -3.0)[k])

    options = {"clip_norm": 1.0, "adjacency": "user", "learning_rate": 0.1, "rho": 1e-9}
    plan = DPDiNNO(GLM(dim=1), "path:2", steps=2, fresh_moments=fresh, **options)
    algorithm = plan.algorithm(Turning(), np.zeros((2, 1)))
    state = algorithm.init()
    for k in range(2):
        state = algorithm.update(state, algorithm.message(state, k)[::-1], k)
    assert algorithm.output(state).ravel() == pytest.approx([end] * 2, abs=1e-4)
