"""The recursion of recurrent layers, and its gradient, against torch's own layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.objectives.nets.recurrence import Recurrence, recur

LAYERS = {
    "lstm": lambda: nn.LSTM(3, 4, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(3, 4, bidirectional=True, batch_first=True),
    "relu": lambda: nn.RNN(3, 4, bidirectional=True, batch_first=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("end", ["", "_reverse"])
@pytest.mark.parametrize("kind", LAYERS)
def test_states_and_gradients_are_those_of_torch(kind, end):
    torch.manual_seed(0)
    layer = LAYERS[kind]().double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    weight, bias = getattr(layer, f"weight_hh_l0{end}"), getattr(layer, f"bias_hh_l0{end}")
    ours = Recurrence(kind, weight, bias, backwards=bool(end))
    added = F.linear(x, getattr(layer, f"weight_ih_l0{end}"), getattr(layer, f"bias_ih_l0{end}"))
    states = ours(added)
    out, last = layer(x)
    half = slice(4, 8) if end else slice(0, 4)
    assert torch.allclose(states[0], out[..., half], atol=1e-12)
    mine, theirs = (states[0] * states[0].detach()).sum(), (out[..., half] * out[..., half].detach()).sum()
    if kind == "lstm":  # the memory is of use too
        memory, last_memory = states[1][:, 0 if end else -1], last[1][1 if end else 0]
        assert torch.allclose(memory, last_memory, atol=1e-12)
        mine, theirs = mine + memory.sin().sum(), theirs + last_memory.sin().sum()
    inputs = getattr(layer, f"weight_ih_l0{end}")
    for a, b in ((inputs, inputs), (ours.weight, weight), (ours.bias, bias)):
        one, two = (torch.autograd.grad(s, p, retain_graph=True)[0] for s, p in ((mine, a), (theirs, b)))
        assert torch.allclose(one, two, atol=1e-12)
        assert two.any()


@pytest.mark.parametrize("kind", LAYERS)
def test_agents_do_not_see_each_other(kind):
    """Weights of agent a for the samples of agent a, and what is recorded belongs to them."""
    torch.manual_seed(0)
    gates = LAYERS[kind]().weight_hh_l0.shape[0]
    added, weight = torch.randn(6, 5, gates), torch.randn(2, gates, 4)
    both = recur(kind, False, added, weight, None)
    each = [recur(kind, False, added[3 * a : 3 * a + 3], weight[a : a + 1], None) for a in range(2)]
    for part, joined in enumerate(both):
        assert torch.allclose(joined, torch.cat([one[part] for one in each]), atol=1e-6)
    seen = []
    anchor = torch.zeros((), requires_grad=True)
    out = recur(kind, False, added, weight, None, anchor, lambda h, g: seen.append((h, g)))[0]
    out[:3].sum().backward()
    ((states, gradients),) = seen
    assert torch.equal(states[:, 1:], both[0][:, :-1])
    assert not states[:, 0].any()
    assert gradients[:3].any()
    assert not gradients[3:].any()


class Remembers(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.cell = nn.LSTM(3, 4, batch_first=True)
        for name in ("weight_hh_l0", "bias_hh_l0") if frozen else ():
            getattr(self.cell, name).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[1][1][-1])


@pytest.mark.parametrize("frozen", [False, True])
def test_the_memory_of_an_lstm_is_differentiated(frozen):
    torch.manual_seed(0)
    objective = NetObjective(Remembers(frozen).double(), clip_norm=float("inf"))
    x, y = torch.randn(1, 4, 5, 3, dtype=torch.float64), torch.tensor([[0, 1, 1, 0]])
    assert objective.explain(x, y).startswith("fast")
    module = objective.module(objective.start(1)[0])
    F.cross_entropy(module(x[0]), y[0], reduction="sum").backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])
    assert torch.allclose(objective.clipped_sums(objective.start(1), x, y)[0], expected, atol=1e-12)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_compiled_lstm_is_the_recursion_in_float64(backwards, used):
    """Of two agents with a width that the compiled pass takes; both outputs or one are used."""
    g = torch.Generator().manual_seed(1)
    parts = [torch.randn(*shape, generator=g) for shape in ((6, 5, 128), (2, 128, 32), (2, 128))]
    results = []
    for dtype in (torch.float32, torch.float64):
        added, weight, bias = (part.to(dtype, copy=True).requires_grad_() for part in parts)
        seen = []
        outputs = recur(
            "lstm", backwards, added, weight / 4, bias, None, lambda *both, to=seen: to.extend(both)
        )
        loss = sum(outputs[k].sin().sum() for k in used)
        results.append([*outputs, *torch.autograd.grad(loss, (added, weight, bias)), *seen])
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one.double(), two, rtol=1e-4, atol=1e-5)
