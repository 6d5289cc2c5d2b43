"""Records of several tensors."""

import pytest
import torch
from tests.estimators.cases import Text, rng, sentences
from torch import nn

from sottovoce.objectives.nets.checks import random_inputs
from sottovoce.objectives.nets.inputs import Layout, Unpacking
from sottovoce.objectives.nets.objective import NetObjective


@pytest.mark.parametrize("beside", [False, True])
def test_gradients_of_several_inputs_are_those_of_single_records(beside):
    inputs, y = sentences(6)
    if beside:
        inputs["number"] = rng(3).normal(size=(6, 1))
    net = Text(beside).double()
    layout = Layout.of(inputs)
    objective = NetObjective(Unpacking(net, layout), clip_norm=0.05)
    x = layout.pack(inputs)
    sums = objective.clipped_sums(objective.start(2), x.view(2, 3, -1), torch.as_tensor(y).view(2, 3))
    for agent in range(2):
        expected = torch.zeros(objective.n_params, dtype=torch.float64)
        for i in range(3 * agent, 3 * agent + 3):
            one = {k: torch.as_tensor(v[i : i + 1]) for k, v in inputs.items()}
            loss = nn.functional.cross_entropy(net(**one), torch.as_tensor(y[i : i + 1]))
            g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(net.parameters()))])
            expected += g * min(1, 0.05 / g.norm())
        assert torch.allclose(sums[agent], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_random_records_of_the_checks_hide_no_token(kind):
    """Models that count positions by the mask would look up places that they do not have."""
    mask = torch.zeros(1, 3, dtype=torch.int64)
    layout = Layout.of({"ids": torch.tensor([[4, 5, 6]]), "attention_mask": mask})
    numbers = random_inputs(Unpacking(nn.Embedding(7, 2), layout), (50, 6), kind)
    parts = layout.unpack(numbers)
    assert (parts["attention_mask"] == 1).all()
    assert set(parts["ids"].flatten().tolist()) == set(range(7))
