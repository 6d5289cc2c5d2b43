"""Records of several tensors."""

import pytest
import torch
from tests.estimators.cases import Text, rng, sentences
from torch import nn

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
