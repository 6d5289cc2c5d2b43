"""The recursion of recurrent layers, and its gradient, against torch's own layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.objectives.nets import recurrence
from sottovoce.objectives.nets.products import products
from sottovoce.objectives.nets.recurrence import recur

LAYERS = {
    "lstm": lambda hidden: nn.LSTM(3, hidden, bidirectional=True, batch_first=True),
    "gru": lambda hidden: nn.GRU(3, hidden, bidirectional=True, batch_first=True),
    "tanh": lambda hidden: nn.RNN(3, hidden, bidirectional=True, batch_first=True),
    "relu": lambda hidden: nn.RNN(3, hidden, bidirectional=True, batch_first=True, nonlinearity="relu"),
}
BOTH_FORMS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)], ids=["operations", "compiled"]
)


@BOTH_FORMS
@pytest.mark.parametrize("hidden", [4, 32, 50])
@pytest.mark.parametrize("end", ["", "_reverse"])
@pytest.mark.parametrize("kind", LAYERS)
def test_states_and_gradients_are_those_of_torch(monkeypatch, kind, end, hidden, dtype, tolerance):
    """The gradient of the weights is the sum of products of what is recorded."""
    if hidden == 50:  # samples fall into parts of different size
        monkeypatch.setattr(recurrence, "_blocks", lambda batch, agents: 3)
    torch.manual_seed(0)
    layer = LAYERS[kind](hidden).double()
    x = torch.randn(19, 5, 3, dtype=torch.float64)
    weight, bias = getattr(layer, f"weight_hh_l0{end}"), getattr(layer, f"bias_hh_l0{end}")
    added = F.linear(x, getattr(layer, f"weight_ih_l0{end}"), getattr(layer, f"bias_ih_l0{end}")).to(dtype)
    recorded = []
    states = recur(
        kind,
        bool(end),
        added,
        weight.detach().to(dtype)[None],
        bias.detach().to(dtype)[None],
        record=lambda *both: recorded.extend(both),
    )
    out, last = layer(x)
    half = slice(hidden, None) if end else slice(0, hidden)
    assert torch.allclose(states[0].double(), out[..., half], atol=tolerance)
    mine, theirs = states[0].sin().sum(), out[..., half].sin().sum()
    if kind == "lstm":  # the memory is of use too
        memory, last_memory = states[1][:, 0 if end else -1], last[1][1 if end else 0]
        assert torch.allclose(memory.double(), last_memory, atol=tolerance)
        mine, theirs = mine + memory.sin().sum(), theirs + last_memory.sin().sum()
    ours = torch.autograd.grad(mine, getattr(layer, f"bias_ih_l0{end}"))[0]
    by_input, by_weight, by_bias = torch.autograd.grad(
        theirs, [getattr(layer, f"bias_ih_l0{end}"), weight, bias]
    )
    before, inside = recorded
    pairs = [
        (ours, by_input),
        (torch.einsum("stg,sth->gh", inside, before), by_weight),
        (inside.sum((0, 1)), by_bias),
    ]
    for one, two in pairs:
        assert torch.allclose(one.double(), two, rtol=tolerance, atol=19 * tolerance)
        assert two.any()


@BOTH_FORMS
@pytest.mark.parametrize("kind", LAYERS)
def test_agents_do_not_see_each_other(kind, dtype, tolerance):
    """Weights of agent a for the samples of agent a, and what is recorded belongs to them."""
    torch.manual_seed(0)
    gates = LAYERS[kind](4).weight_hh_l0.shape[0]
    added, weight = torch.randn(6, 5, gates, dtype=dtype), torch.randn(2, gates, 4, dtype=dtype)
    both = recur(kind, False, added, weight, None)
    each = [recur(kind, False, added[3 * a : 3 * a + 3], weight[a : a + 1], None) for a in range(2)]
    for part, joined in enumerate(both):
        assert torch.allclose(joined, torch.cat([one[part] for one in each]), atol=tolerance)
    seen = []
    anchor = torch.zeros((), dtype=dtype, requires_grad=True)
    out = recur(kind, False, added, weight, None, anchor, lambda h, g: seen.append((h, g)))[0]
    out[:3].sum().backward()
    ((states, gradients),) = seen
    assert torch.equal(states[:, 1:], both[0][:, :-1])
    assert not states[:, 0].any()
    assert gradients[:3].any()
    assert not gradients[3:].any()


@pytest.mark.parametrize("kind", LAYERS)
def test_undefined_input_stays_undefined(kind):
    added = torch.randn(2, 3, LAYERS[kind](4).weight_hh_l0.shape[0])
    added[0, 1] = float("nan")
    states = recur(kind, False, added, torch.randn(1, added.shape[2], 4), None)[0]
    assert states[0, 1:].isnan().all()
    assert states[0, 0].isfinite().all()
    assert states[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(1, 64, 16, 32), (3, 21, 5, 50), (2, 70, 1, 33), (2, 3, 4, 5), (1, 0, 4, 40)]
)
def test_products_are_those_of_torch(shape, dtype):
    """Of matrices whose rows or columns are contiguous, or which are a part of a larger one."""
    batch, rows, depth, columns = shape
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(batch, rows, depth, generator=draw, dtype=dtype)
    right = torch.randn(batch, depth + 2, columns, generator=draw, dtype=dtype)[:, 1:-1]
    bias = torch.randn(batch, 1, columns, generator=draw, dtype=dtype)
    expected = left.double() @ right.double()
    out = torch.empty(batch, rows, columns, dtype=dtype)
    assert products(left.mT.contiguous().mT, right, out=out) is out
    for result, exact in (
        (out, expected),
        (products(left, right.mT.contiguous().mT, bias), expected + bias),
        (products(left[:1].expand(batch, -1, -1), right), left[:1].double() @ right.double()),
    ):
        assert torch.allclose(result.double(), exact, atol=1e-5)
