"""Checks of networks on random records."""

import pytest
from tests.objectives.nets.networks import CLASSES, CLIP, WIDTH, Net, records
from torch import nn

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
