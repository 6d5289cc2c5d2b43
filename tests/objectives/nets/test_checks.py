"""Checks of networks on random records."""

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import CLASSES, CLIP, WIDTH, Net, records
from torch import nn

from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.objective import NetObjective


def test_a_memory_in_a_global_is_refused():
    memory = []

    def remembers(net, h):
        memory.append(h.detach().mean().item())
        return h * (1 + abs(sum(memory)))

    objective = NetObjective(Net(remembers), clip_norm=CLIP)
    with pytest.raises(InvalidInput, match=r"other samples|seen before"):
        objective.clipped_sums(objective.start(1), *records((WIDTH,)))


def test_user_errors_are_one_sentence():
    x, y = records((WIDTH,))
    net = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(5, CLASSES))
    objective = NetObjective(net)
    with pytest.raises(InvalidInput, match=r"layer '2' \(Linear\) cannot use an input of shape \(1, 4\)"):
        objective.clipped_sums(objective.start(1), x, y)
    objective = NetObjective(nn.Linear(WIDTH, CLASSES))
    with pytest.raises(InvalidInput, match=r"labels.long\(\)"):
        objective.clipped_sums(objective.start(1), x, y.double())
    with pytest.raises(InvalidInput, match="out of range"):
        objective.clipped_sums(objective.start(1), x, y + 7)
    with pytest.raises(InvalidInput, match="the loss cannot use outputs"):
        objective.clipped_sums(objective.start(1), x, y[..., None, None].expand(1, 12, 2, 2))
    with pytest.raises(InvalidInput, match=r"module.float\(\)"):
        NetObjective(nn.Linear(2, 2).half())
    with pytest.raises(InvalidInput, match="shape \\(agents, batch"):
        objective.clipped_sums(objective.start(1), x, y[:, :5])


class Constant(nn.Module):
    """Its output is a constant for training, whatever its weights are."""

    def __init__(self, detached):
        super().__init__()
        self.layer, self.detached = nn.Linear(WIDTH, CLASSES), detached

    def forward(self, x):
        return self.layer(x).detach() if self.detached else x[:, :CLASSES]


@pytest.mark.parametrize("detached", [True, False])
def test_network_that_trains_nothing_is_refused_before_a_run(detached):
    objective = NetObjective(Constant(detached))
    x, y = records((WIDTH,))
    data = AgentData(x[0], y[0], [np.arange(len(y[0]))])
    data.inputs = data.targets = None  # shapes decide, no record is read
    with pytest.raises(InvalidInput, match="does not depend on the trainable parameters"):
        objective.prepared(data)
    with pytest.raises(InvalidInput, match="does not depend on the trainable parameters"):
        objective.clipped_sums(objective.start(1), x, y)


def test_layers_that_mix_samples_are_refused_by_name():
    with pytest.raises(InvalidInput, match=r"'1' \(BatchNorm2d\).*GroupNorm\(4, 4\)"):
        NetObjective(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    with pytest.raises(InvalidInput, match="running statistics"):
        NetObjective(nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True)))
    with pytest.raises(InvalidInput, match="max_norm"):
        NetObjective(nn.Embedding(3, 2, max_norm=1.0))


def test_mixing_without_a_layer_is_refused_by_the_probe():
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x - x.mean(0))

    objective = NetObjective(Centered())
    with pytest.raises(InvalidInput, match="other samples of the batch"):
        objective.clipped_sums(objective.start(1), torch.randn(1, 4, 4), torch.zeros(1, 4, dtype=torch.long))
