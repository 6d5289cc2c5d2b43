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
