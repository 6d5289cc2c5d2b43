"""Checks of networks on random records."""

import numpy as np
import pytest
from tests.objectives.nets.networks import CLASSES, CLIP, WIDTH, Net, Network, records
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


X, Y = records((WIDTH,))
LINEAR = nn.Linear(WIDTH, CLASSES)
BROKEN = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(5, CLASSES))


@pytest.mark.parametrize(
    ("net", "loss", "targets", "sentence"),
    [
        (BROKEN, "cross_entropy", Y, r"layer '2' \(Linear\) cannot use an input of shape \(1, 4\)"),
        (LINEAR, "cross_entropy", Y.double(), r"labels.long\(\)"),
        (LINEAR, "cross_entropy", Y + 7, "out of range"),
        (LINEAR, "cross_entropy", Y[..., None, None].expand(1, 12, 2, 2), "the loss cannot use outputs"),
        (LINEAR, "cross_entropy", Y[:, :5], r"shape \(agents, batch"),
        (LINEAR, lambda out, y: out.mean(), Y, "reduction='none'"),
    ],
)
def test_user_errors_are_one_sentence(net, loss, targets, sentence):
    objective = NetObjective(net, loss)
    with pytest.raises(InvalidInput, match=sentence):
        objective.clipped_sums(objective.start(1), X, targets)


def test_types_and_names_that_are_not_known_are_refused():
    with pytest.raises(InvalidInput, match=r"module.float\(\)"):
        NetObjective(nn.Linear(2, 2).half())
    with pytest.raises(InvalidInput, match="cross_entropy"):
        NetObjective(nn.Linear(2, 2), "hinge")


@pytest.mark.parametrize("output", [lambda net, x: net.layer(x).detach(), lambda net, x: x[:, :CLASSES]])
def test_network_that_trains_nothing_is_refused_before_a_run(output):
    objective = NetObjective(Network(output, layer=nn.Linear(WIDTH, CLASSES)))
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
    objective = NetObjective(
        Network(lambda net, x: net.layer(x - x.mean(0)), layer=nn.Linear(WIDTH, CLASSES))
    )
    with pytest.raises(InvalidInput, match="other samples of the batch"):
        objective.clipped_sums(objective.start(1), *records((WIDTH,), batch_size=4))
