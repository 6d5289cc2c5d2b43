r"""The recursion of a recurrent layer over all positions, with its gradient.

.. math:: h_t = \mathrm{cell}(a_t,\ W h_{t-1} + b,\ h_{t-1})

The part :math:`a_t` of the input is a linear layer over all positions. The cells are those of `nn.LSTM`,
`nn.GRU` and `nn.RNN`; an LSTM in float32 on a processor is compiled, with its gradient. The backward pass
also returns the gradients of :math:`W h_{t-1} + b` at all positions, which with the states give the
per-sample gradients of W and b.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from sottovoce.objectives.nets.vectors import exp, load, spread, store

LANES = 16
Record = Callable[[Tensor, Tensor], None]


class Recurrence(nn.Module):
    """States of all positions from what the input adds at each; they start from zero.

    The kind is ``"lstm"``, ``"gru"``, or the function of a plain recurrent layer, ``"tanh"`` or ``"relu"``;
    weight and bias are those of the state. ``backwards`` begins with the last position.
    """

    def __init__(
        self, kind: str, weight: nn.Parameter, bias: nn.Parameter | None, backwards: bool = False
    ) -> None:
        super().__init__()
        self.kind, self.backwards = kind, backwards
        self.weight, self.bias = (
            None if part is None else nn.Parameter(part.detach(), part.requires_grad)
            for part in (weight, bias)
        )

    def forward(self, added: Tensor) -> tuple[Tensor, ...]:
        """Return the states (samples, positions, hidden); of an LSTM its memories too."""
        assert self.weight is not None
        bias = None if self.bias is None else self.bias[None]
        return recur(self.kind, self.backwards, added, self.weight[None], bias)


def recur(
    kind: str,
    backwards: bool,
    added: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    anchor: Tensor | None = None,
    record: Record | None = None,
) -> tuple[Tensor, ...]:
    """Return states (and memories) of several agents' samples laid end to end, each agent with its weights.

    ``added`` is (agents * batch, positions, gates * hidden), the weight (agents, gates * hidden, hidden); the
    anchor asks for a gradient where no other argument does. ``record`` is called in the backward pass with
    the states before each position and the gradients of ``W h + b`` there, (agents * batch, positions, ...).
    """
    return tuple(_Recur.apply(anchor, added, weight, bias, kind, backwards, record))


class _Recur(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        added: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kind: str,
        backwards: bool,
        record: Record | None,
    ) -> Any:
        a = added.reshape(len(weight), -1, *added.shape[1:]).permute(2, 0, 1, 3)
        a = a.flip(0) if backwards else a
        pass_over = _CompiledLSTM if kind == "lstm" and _compiles(weight) else _Positions
        ctx.done = pass_over(kind, a, weight, bias)
        ctx.set_materialize_grads(False)
        ctx.backwards, ctx.record, ctx.agents = backwards, record, len(weight)
        ctx.has_anchor, ctx.has_bias = anchor is not None, bias is not None
        return tuple(_by_sample(out, backwards) for out in ctx.done.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return (None,) * 7
        backwards, by_time = ctx.backwards, []
        for g, out in zip(gradients, ctx.done.outputs, strict=True):
            g = torch.zeros_like(out) if g is None else g.unflatten(0, (ctx.agents, -1)).permute(2, 0, 1, 3)
            by_time.append(g.flip(0) if backwards else g)
        inside, outside = ctx.done.gradients(by_time)
        before = ctx.done.before
        if ctx.record is not None:
            ctx.record(_by_sample(before, backwards), _by_sample(inside, backwards))
        needs = ctx.needs_input_grad
        rows = inside.transpose(0, 1).flatten(1, 2)
        by_weight = rows.mT @ before.transpose(0, 1).flatten(1, 2) if needs[2] else None
        by_bias = rows.sum(1) if ctx.has_bias and needs[3] else None
        zero = inside.new_zeros(()) if ctx.has_anchor else None
        return zero, _by_sample(outside, backwards), by_weight, by_bias, None, None, None


def _by_sample(whole: Tensor, backwards: bool) -> Tensor:
    """Positions in the order of time as (agents * batch, positions, ...), the samples' own order."""
    whole = whole.flip(0) if backwards else whole
    return whole.permute(1, 2, 0, 3).flatten(0, 1)


class _Positions:
    """A pass over all positions in the order of time, from zeros, whose gradient is torch's.

    ``before`` are the states before each position, ``outputs`` those after it (and memories); all are
    (positions, agents, batch, ...).
    """

    def __init__(self, kind: str, a: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        h = c = a.new_zeros(*a.shape[1:3], weight.shape[2])
        shift, across = a.new_zeros(()) if bias is None else bias[:, None].detach(), weight.detach().mT
        states, memories = [h], []
        self._added, self._inside = [each.detach().requires_grad_() for each in a], []
        with torch.enable_grad():
            for each in self._added:
                inside = torch.baddbmm(shift, h, across)
                inside.requires_grad_()  # of the first position, which comes from zeros
                if kind == "lstm":
                    i, f, g, o = (each + inside).chunk(4, -1)
                    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                    h = o.sigmoid() * c.tanh()
                    memories.append(c)
                elif kind == "gru":
                    own, of_n = inside.split((2 * h.shape[-1], h.shape[-1]), -1)
                    added, n = each.split((2 * h.shape[-1], h.shape[-1]), -1)
                    r, u = (added + own).sigmoid().chunk(2, -1)
                    h = torch.lerp((n + r * of_n).tanh(), h, u)
                else:
                    h = torch.tanh(each + inside) if kind == "tanh" else torch.relu(each + inside)
                states.append(h)
                self._inside.append(inside)
            self._graph = [torch.stack(states[1:]), *([torch.stack(memories)] if memories else [])]
        self.before = torch.stack(states[:-1]).detach()
        self.outputs = [out.detach() for out in self._graph]

    def gradients(self, by_time: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``W h + b`` and of what the input adds, at all positions."""
        leaves = [*self._inside, *self._added]
        parts = torch.autograd.grad(self._graph, leaves, by_time, retain_graph=True, materialize_grads=True)
        return torch.stack(parts[: len(parts) // 2]), torch.stack(parts[len(parts) // 2 :])


class _CompiledLSTM:
    """The same for an LSTM, each position being one product and one compiled pass."""

    def __init__(self, kind: str, a: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        positions, agents, batch_size, _ = a.shape
        across, self.weight = weight.mT, weight
        states = a.new_zeros(positions + 1, agents, batch_size, weight.shape[2])
        self.before, memory = states[:-1], torch.zeros_like(states)
        gates = torch.add(a, a.new_zeros(()) if bias is None else bias[:, None], out=a.new_empty(a.shape))
        bends, curved = torch.empty_like(self.before), torch.empty_like(self.before)
        self.saved = gates, bends, curved, memory[:-1]
        self.outputs = [states[1:], memory[1:]]
        arrays = [part.numpy() for part in (gates, bends, curved, memory, states)]
        # views of single positions, taken at once, cost a fraction of views taken in the loop
        for t, (h, z) in enumerate(zip(self.before.unbind(0), gates.unbind(0), strict=True)):
            torch.baddbmm(z, h, across, out=z)
            _step(t, *arrays)

    def gradients(self, by_time: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``W h + b`` and of what the input adds, which are the same."""
        positions, agents, batch_size, hidden = self.before.shape
        inside = self.weight.new_empty(agents, batch_size, positions, 4 * hidden).permute(2, 0, 1, 3)
        ahead = self.weight.new_zeros(agents, batch_size, hidden)  # what later positions say of this state
        later = [g.contiguous() for g in by_time]
        parts = (*self.saved, *later, ahead, torch.zeros_like(ahead), inside.permute(1, 2, 0, 3))
        arrays = [part.numpy() for part in parts]
        for t in range(positions - 1, -1, -1):
            _step_back(t, *arrays)
            torch.bmm(inside[t], self.weight, out=ahead)
        return inside, inside


def _compiles(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[2] % LANES == 0


@njit(cache=True, error_model="numpy")
def _step(t: int, gates: Any, bends: Any, curved: Any, memory: Any, states: Any) -> None:
    """From what is added at position t: its gates, in place, and the next memory and state."""
    hidden = states.shape[3]
    for a in range(states.shape[1]):
        for s in range(states.shape[2]):
            z, new, bent = gates[t, a, s], bends[t, a, s], curved[t, a, s]
            c, next_c, next_h = memory[t, a, s], memory[t + 1, a, s], states[t + 1, a, s]
            for k in range(0, hidden, LANES):
                i, f = _sigmoid(load(z, k, LANES)), _sigmoid(load(z, hidden + k, LANES))
                g, o = _tanh(load(z, 2 * hidden + k, LANES)), _sigmoid(load(z, 3 * hidden + k, LANES))
                m = f * load(c, k, LANES) + i * g
                b = _tanh(m)
                store(z, k, i, LANES)
                store(z, hidden + k, f, LANES)
                store(z, 3 * hidden + k, o, LANES)
                store(new, k, g, LANES)
                store(next_c, k, m, LANES)
                store(bent, k, b, LANES)
                store(next_h, k, o * b, LANES)


@njit(cache=True, error_model="numpy")
def _step_back(
    t: int,
    gates: Any,
    bends: Any,
    curved: Any,
    memory: Any,
    heads: Any,
    tails: Any,
    ahead: Any,
    remembered: Any,
    inside: Any,
) -> None:
    """Gradients of the gates at position t and, in ``remembered``, of the memory before it."""
    hidden = ahead.shape[2]
    for a in range(ahead.shape[0]):
        for s in range(ahead.shape[1]):
            z, out, later, carried = gates[t, a, s], inside[a, s, t], ahead[a, s], remembered[a, s]
            new, bent, before = bends[t, a, s], curved[t, a, s], memory[t, a, s]
            of_h, of_c = heads[t, a, s], tails[t, a, s]
            for k in range(0, hidden, LANES):
                one, g, b = spread(np.float32(1), LANES), load(new, k, LANES), load(bent, k, LANES)
                i, f = load(z, k, LANES), load(z, hidden + k, LANES)
                o = load(z, 3 * hidden + k, LANES)
                dh = load(later, k, LANES) + load(of_h, k, LANES)
                dc = load(carried, k, LANES) + dh * o * (one - b * b) + load(of_c, k, LANES)
                store(out, k, dc * g * i * (one - i), LANES)
                store(out, hidden + k, dc * load(before, k, LANES) * f * (one - f), LANES)
                store(out, 2 * hidden + k, dc * i * (one - g * g), LANES)
                store(out, 3 * hidden + k, dh * b * o * (one - o), LANES)
                store(carried, k, dc * f, LANES)


@njit(inline="always", error_model="numpy")
def _sigmoid(x: Any) -> Any:
    one = spread(np.float32(1), LANES)
    return one / (exp(x * np.float32(-1), spread(np.float32(80), LANES)) + np.float32(1))


@njit(inline="always", error_model="numpy")
def _tanh(x: Any) -> Any:
    return _sigmoid(x * np.float32(2)) * np.float32(2) - spread(np.float32(1), LANES)
