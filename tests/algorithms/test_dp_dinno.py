"""DP-DiNNO."""

import math

import numpy as np
import pytest
import torch
from tests.algorithms.toys import DELTA, FOUR, blobs, net
from torch import nn

import sottovoce as sv
from sottovoce.algorithms import DPDiNNO, Optimizer
from sottovoce.objectives import GLM
from sottovoce.objectives.nets.objective import NetObjective


def test_dinno_accounts_every_primal_step():
    options = {"sizes": [500] * 4, "batch_size": 50, "noise_multiplier": 1.0}
    once = DPDiNNO(net(), FOUR, steps=40, **options)
    twice = DPDiNNO(net(), FOUR, steps=40, primal_steps=2, **options)
    longer = DPDiNNO(net(), FOUR, steps=80, **options)
    assert twice.epsilon(DELTA) == longer.epsilon(DELTA) > once.epsilon(DELTA)


def test_dinno_lowers_a_convex_loss_and_brings_agents_together():
    torch.manual_seed(0)
    objective, data = NetObjective(nn.Linear(5, 3), clip_norm=math.inf), blobs(agents=4)
    start = np.zeros(18, np.float32)

    def mean_losses(rows):
        outputs = objective.outputs(rows, data.inputs)
        return np.array([objective.loss(each, data.targets).mean().item() for each in outputs])

    before = mean_losses(start[None])
    for optimizer, rate in ((Optimizer("sgd"), 0.2), (Optimizer("adam"), 0.01)):
        plan = DPDiNNO(objective, FOUR, steps=200, sizes=data.sizes, learning_rate=rate, optimizer=optimizer)
        rows = plan.run(data, np.random.default_rng(0), start=start).outputs["rows"]
        assert (mean_losses(rows) < 0.35 * before).all()
        assert np.abs(rows - rows.mean(0)).max() < 0.05 * np.abs(rows).max()


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
