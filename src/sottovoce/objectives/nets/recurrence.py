r"""The recursion of a recurrent layer over all positions, with its gradient.

.. math:: h_t = \mathrm{cell}(a_t,\ W h_{t-1} + b,\ h_{t-1})

The part :math:`a_t` of the input is a linear layer over all positions. The cells are those of `nn.LSTM`,
`nn.GRU` and `nn.RNN`. Slopes of all positions are taken at once, so that one position of the backward pass
is a product and a few multiplications. The backward pass also returns the gradients of
:math:`W h_{t-1} + b` at all positions, which with the states give the per-sample gradients of W and b.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from sottovoce.objectives.nets.vectors import exp, load, spread, store

LANES = 16
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
Record = Callable[[Tensor, Tensor], None]
_OPS = torch.ops.aten  # slopes of sigmoid and tanh in one pass


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

    Parameters
    ----------
    added : (agents * batch, positions, gates * hidden), what the input adds.
    weight, bias : (agents, gates * hidden, hidden) and (agents, gates * hidden) or None.
    anchor : a number that asks for a gradient, where no other argument does.
    record : called in the backward pass with the states before each position and the gradients of
        ``W h + b`` there, (agents * batch, positions, ...).
    """
    return tuple(_Recur.apply(anchor, added, weight, bias, kind, backwards, record))


class _Saved(NamedTuple):
    """What one pass leaves for the way back; (positions, agents, batch, ...) each."""

    before: Tensor  # states before each position
    parts: tuple[Tensor, ...]


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
        agents = weight.shape[0]
        a = added.reshape(agents, -1, *added.shape[1:]).permute(2, 0, 1, 3)
        outputs, saved = _forward(kind, a.flip(0) if backwards else a, weight, bias)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.backwards, ctx.record, ctx.saved = kind, backwards, record, saved
        ctx.save_for_backward(weight)
        ctx.anchor, ctx.bias = anchor is not None, bias is not None
        return tuple(_by_sample(out, backwards) for out in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (weight,) = ctx.saved_tensors
        agents, backwards = len(weight), ctx.backwards
        by_time = [
            None if g is None else g.reshape(agents, -1, *g.shape[1:]).permute(2, 0, 1, 3) for g in gradients
        ]
        if all(g is None for g in by_time):
            return (None,) * 7
        if backwards:
            by_time = [None if g is None else g.flip(0) for g in by_time]
        saved: _Saved = ctx.saved
        inside, outside = _backward(ctx.kind, saved, weight, by_time)
        if ctx.record is not None:
            ctx.record(_by_sample(saved.before, backwards), _by_sample(inside, backwards))
        needs = ctx.needs_input_grad
        rows = inside.transpose(0, 1).flatten(1, 2)
        by_weight = rows.mT @ saved.before.transpose(0, 1).flatten(1, 2) if needs[2] else None
        by_bias = rows.sum(1) if ctx.bias and needs[3] else None
        zero = weight.new_zeros(()) if ctx.anchor else None
        return zero, _by_sample(outside, backwards), by_weight, by_bias, None, None, None


def _by_sample(whole: Tensor, backwards: bool) -> Tensor:
    """Positions in the order of time as (agents * batch, positions, ...), the samples' own order."""
    whole = whole.flip(0) if backwards else whole
    return whole.permute(1, 2, 0, 3).flatten(0, 1)


def _forward(kind: str, a: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[tuple[Tensor, ...], _Saved]:
    """States (and memories) of all positions, in the order of time, from zeros."""
    positions, agents, batch_size, _ = a.shape
    hidden, across = weight.shape[2], weight.mT
    states = a.new_zeros(positions + 1, agents, batch_size, hidden)
    before, outputs = states[:-1], states[1:]
    shift = a.new_zeros(()) if bias is None else bias[:, None]
    # of a GRU the state's part is multiplied before it is added
    gates = torch.add(a, a.new_zeros(()) if kind == "gru" else shift, out=a.new_empty(a.shape))
    # single positions; views taken at once cost a fraction of views taken in the loop
    if kind == "lstm":
        memory, curved = torch.zeros_like(states), torch.empty_like(before)
        bends = torch.empty_like(before)  # the third gate is bent, not squashed
        saved = _Saved(before, (gates, bends, curved, memory[:-1]))
        if _compiled(weight):
            arrays = [part.numpy() for part in (gates, bends, curved, memory, states)]
            for t, (h, z) in enumerate(_in_time(before, gates)):
                torch.baddbmm(z, h, across, out=z)
                _step(t, *arrays)
            return (outputs, memory[1:]), saved
        wholes = (before, outputs, gates, *gates.chunk(4, -1), bends, curved, memory[:-1], memory[1:])
        for h, next_h, z, i, f, g, o, new, bent, c, next_c in _in_time(*wholes):
            torch.baddbmm(z, h, across, out=z)
            torch.tanh(g, out=new)
            torch.sigmoid(z, out=z)
            torch.mul(f, c, out=next_c).addcmul_(i, new)
            torch.mul(o, torch.tanh(next_c, out=bent), out=next_h)
        return (outputs, memory[1:]), saved
    if kind == "gru":
        inner = torch.empty_like(before)
        both, last = gates[..., : 2 * hidden], gates[..., 2 * hidden :]
        for h, next_h, rest, n, b in _in_time(before, outputs, both, last, inner):
            product = torch.baddbmm(shift, h, across)
            b.copy_(product[..., 2 * hidden :])
            rest.add_(product[..., : 2 * hidden]).sigmoid_()
            n.addcmul_(rest[..., :hidden], b).tanh_()
            torch.lerp(n, h, rest[..., hidden:], out=next_h)
        return (outputs,), _Saved(before, (gates, inner))
    bend = torch.tanh if kind == "tanh" else torch.relu
    for h, next_h, z in _in_time(before, outputs, gates):
        next_h.copy_(bend(torch.baddbmm(z, h, across, out=z)))
    return (outputs,), _Saved(before, (outputs,))


def _compiled(weight: Tensor) -> bool:
    """Whether a position of an LSTM is one compiled pass in place of seven of torch."""
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


def _in_time(*wholes: Tensor | None, reverse: bool = False) -> Any:
    """The positions of several tensors one by one, None for every position of None."""
    positions = next(len(whole) for whole in wholes if whole is not None)
    parts = [[None] * positions if whole is None else whole.unbind(0) for whole in wholes]
    return zip(*(part[::-1] for part in parts) if reverse else parts, strict=True)


def _backward(
    kind: str, saved: _Saved, weight: Tensor, gradients: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Gradients of ``W h + b`` and of what the input adds, at all positions in the order of time."""
    positions, agents, batch_size, hidden = saved.before.shape
    inside = weight.new_empty(agents, batch_size, positions, GATES[kind] * hidden).permute(2, 0, 1, 3)
    each = inside.unflatten(3, (-1, hidden))  # first the slopes, then in place the gradients
    ahead = weight.new_zeros(agents, batch_size, hidden)  # what later positions say of this state
    if kind == "lstm":
        gates, bends, curved, memory = saved.parts
        if _compiled(weight):
            remembered = torch.zeros_like(ahead)
            later = [torch.zeros_like(memory) if g is None else g.contiguous() for g in gradients]
            parts = (gates, bends, curved, memory, *later, ahead, remembered, inside.permute(1, 2, 0, 3))
            arrays = [part.numpy() for part in parts]
            for t in range(positions - 1, -1, -1):
                _step_back(t, *arrays)
                torch.bmm(inside[t], weight, out=ahead)
            return inside, inside
        i, f, _, o = gates.chunk(4, -1)
        for k, factor, gate in ((0, bends, i), (1, memory, f), (3, curved, o)):
            _OPS.sigmoid_backward(factor, gate, grad_input=each[..., k, :])
        _OPS.tanh_backward(i, bends, grad_input=each[..., 2, :])
        through = _OPS.tanh_backward(o, curved)
        remembered = torch.zeros_like(ahead)
        wholes = (gradients[0], gradients[1], through, f, inside, each[..., :3, :], each[..., 3, :])
        for from_h, from_c, bent, share, z, three, one in _in_time(*wholes, reverse=True):
            if from_h is not None:
                ahead += from_h
            remembered.addcmul_(ahead, bent)
            if from_c is not None:
                remembered += from_c
            three *= remembered[:, :, None]
            one *= ahead
            remembered *= share
            torch.bmm(z, weight, out=ahead)
        return inside, inside
    if kind == "gru":
        gates, inner = saved.parts
        r, u, n = gates.chunk(3, -1)
        of_n = _OPS.tanh_backward(1 - u, n)
        _OPS.sigmoid_backward(of_n * inner, r, grad_input=each[..., 0, :])
        _OPS.sigmoid_backward(saved.before - n, u, grad_input=each[..., 1, :])
        torch.mul(of_n, r, out=each[..., 2, :])
        whole = torch.empty_like(of_n)
        for from_h, share, dh, flat, z in _in_time(gradients[0], u, whole, inside, each, reverse=True):
            dh.copy_(ahead if from_h is None else ahead.add_(from_h))
            z *= dh[:, :, None]
            torch.baddbmm(dh * share, flat, weight, out=ahead)
        outside = inside.clone()
        torch.mul(whole, of_n, out=outside[..., 2 * hidden :])
        return inside, outside
    (outputs,) = saved.parts
    slopes = 1 - outputs * outputs if kind == "tanh" else (outputs > 0).to(outputs.dtype)
    for from_h, slope, z in _in_time(gradients[0], slopes, inside, reverse=True):
        torch.mul(ahead if from_h is None else ahead.add_(from_h), slope, out=z)
        torch.bmm(z, weight, out=ahead)
    return inside, inside
