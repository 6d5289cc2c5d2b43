"""Noisy gradients of networks leave room for the rounding of a protective source, at both levels."""

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.objectives.lots import AgentData, Lots, NoisyGradients
from sottovoce.objectives.nets import NetObjective

SLACK = 0.2


class Rounding:
    """A source that rounds by up to SLACK and keeps what it was handed."""

    protective = True

    def slack(self, dim, std=1.0):
        return SLACK

    def perturb(self, values, *, agents, step, std, stream=0):
        self.handed = values.copy()
        return values


def handed(x, adjacency):
    torch.manual_seed(0)
    objective = NetObjective(nn.Linear(3, 2), max_grad_norm=1.0)
    data = AgentData(x, np.zeros(len(x), int), [np.arange(len(x))])
    source = Rounding()
    noisy = NoisyGradients(
        objective, data, Lots(data.sizes, [1.0], seed=0), source, [1.0], [len(x)], adjacency=adjacency
    )
    noisy(np.zeros_like(objective.start(1)), step=0)
    return source.handed


def test_a_user_moves_the_rounded_row_by_at_most_twice_the_clip():
    rows = [handed(np.full((4, 3), size, np.float32), "user") for size in (100.0, -100.0)]
    lengths = [float(np.linalg.norm(row)) for row in rows]
    assert lengths == pytest.approx([1 - SLACK] * 2, abs=1e-5)  # 2 (C - slack) + 2 slack = 2C


def test_a_record_moves_the_rounded_sum_by_at_most_the_clip():
    x = np.full((4, 3), 100.0, np.float32)
    moved = handed(x, "add-remove") - handed(x[:3], "add-remove")
    assert float(np.linalg.norm(moved)) == pytest.approx(1 - 2 * SLACK, abs=1e-5)  # C - 2 slack + 2 slack = C
