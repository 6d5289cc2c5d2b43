"""Losses of single records."""

import functools

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import CLASSES, CLIP, WIDTH, Network, plain, records, reference, rows
from torch import nn
from torch.nn import functional as F

from sottovoce.data.agent_tensors import AgentData
from sottovoce.objectives.nets import losses
from sottovoce.objectives.nets.losses import restore_generators
from sottovoce.objectives.nets.objective import NetObjective

OWN = functools.partial(F.cross_entropy, reduction="none", weight=torch.tensor([1.0, 2.0, 0.5]))


LOSSES = {
    "partial with weights": (OWN, torch.long),
    "module": (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), torch.long),
    "mse": (lambda o, y: F.mse_loss(o[:, 0], y, reduction="none"), torch.float32),
    "huber": (lambda o, y: F.huber_loss(o.mean(1), y, reduction="none"), torch.float32),
    "logistic": (
        lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y, reduction="none"),
        torch.float32,
    ),
    "multi label": (
        lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, 3).float(), reduction="none").mean(1),
        torch.long,
    ),
    "margin": (lambda o, y: F.multi_margin_loss(o, y, reduction="none"), torch.long),
    "nll": (lambda o, y: F.nll_loss(o.log_softmax(1), y, reduction="none"), torch.long),
    "focal": (lambda o, y: (lambda c: (1 - (-c).exp()) ** 2 * c)(plain(o, y)), torch.long),
    "picked": (lambda o, y: -o.log_softmax(-1).gather(1, y[:, None]).squeeze(1), torch.long),
    "squared error": (lambda o, y: losses.squared_error(o[:, :1], y), torch.float32),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_single_samples_are_fast_and_right(name):
    loss, kind = LOSSES[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    objective = NetObjective(module, loss, clip_norm=CLIP)
    x, y = records((WIDTH,), agents=2, batch_size=4)
    theta, y = rows(objective, 2), y.to(kind)
    assert objective.explain(x, y).startswith("fast")
    exact = functools.partial(OWN.func, **{**OWN.keywords, "weight": OWN.keywords["weight"].double()})
    double = exact if loss is OWN else loss
    expected = reference(
        module, lambda o, t: double(o, t.double() if kind.is_floating_point else t), theta, x, y, CLIP
    )
    assert (objective.clipped_sums(theta, x, y) - expected).norm() <= 1e-5 * expected.norm()


def test_a_dictionary_of_outputs():
    torch.manual_seed(0)
    net = Network(lambda net, x: {"logits": net.layer(x), "hidden": x}, layer=nn.Linear(WIDTH, CLASSES))
    objective = NetObjective(net, lambda out, y: plain(out["logits"], y), clip_norm=CLIP)
    x, y = records((WIDTH,), agents=2)
    expected = NetObjective(objective.network.layer, clip_norm=CLIP).clipped_sums(objective.start(2), x, y)
    assert (objective.clipped_sums(objective.start(2), x, y) - expected).norm() <= 1e-6
    assert objective.explain(x, y).startswith("fast")
    data = AgentData(x[0], y[0], [np.arange(12)], test=(x[0], y[0]))
    assert 0 <= objective.metrics(objective.start(1), data)["accuracy"] <= 1
    assert next(objective.outputs(objective.start(1), x[0]))["logits"].shape[0] == 12


def test_generators_of_the_host_and_of_a_card_are_restored(monkeypatch):
    card = [7]
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: card[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: card.__setitem__(0, state))
    before = torch.get_rng_state()
    with restore_generators(torch.device("cuda")):
        torch.rand(3)
        card[0] = 8
    assert card == [7]
    with restore_generators(torch.device("cpu")):
        torch.rand(3)
        card[0] = 8
    assert card == [8]
    assert torch.equal(torch.get_rng_state(), before)
