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

import torch
from torch import Tensor, nn

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
Record = Callable[[Tensor, Tensor], None]


class Recurrence(nn.Module):
    """States of all positions from what the input adds at each; they start from zero.

    Parameters
    ----------
    kind : ``"lstm"``, ``"gru"``, or the function of a plain recurrent layer, ``"tanh"`` or ``"relu"``.
    weight, bias : of the state, (gates * hidden, hidden) and (gates * hidden,) or None.
    backwards : begin with the last position.
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
    """What one pass leaves for the way back; (agents, batch, positions, hidden) each."""

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
        agents, hidden = weight.shape[0], weight.shape[2]
        a = added.reshape(agents, -1, *added.shape[1:])
        outputs, saved = _forward(kind, backwards, a, weight, bias, hidden)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.backwards, ctx.record, ctx.saved = kind, backwards, record, saved
        ctx.save_for_backward(weight)
        ctx.anchor, ctx.bias = anchor is not None, bias is not None
        return tuple(out.reshape(len(added), -1, hidden) for out in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (weight,) = ctx.saved_tensors
        agents = len(weight)
        by_agent = [
            None if g is None else g.reshape(agents, -1, *g.shape[1:]).contiguous() for g in gradients
        ]
        if all(g is None for g in by_agent):
            return (None,) * 7
        saved: _Saved = ctx.saved
        inside, outside = _backward(ctx.kind, ctx.backwards, saved, weight, by_agent)
        if ctx.record is not None:
            ctx.record(saved.before.flatten(0, 1), inside.flatten(0, 1))
        needs = ctx.needs_input_grad
        by_weight = inside.flatten(1, 2).mT @ saved.before.flatten(1, 2) if needs[2] else None
        by_bias = inside.sum((1, 2)) if ctx.bias and needs[3] else None
        zero = weight.new_zeros(()) if ctx.anchor else None
        return zero, outside.flatten(0, 1), by_weight, by_bias, None, None, None


def _forward(
    kind: str, backwards: bool, a: Tensor, weight: Tensor, bias: Tensor | None, hidden: int
) -> tuple[tuple[Tensor, ...], _Saved]:
    agents, batch_size, positions = a.shape[:3]
    states = a.new_zeros(agents, batch_size, positions + 1, hidden)
    after, before = (
        (slice(0, positions), slice(1, None)) if backwards else (slice(1, None), slice(0, positions))
    )
    if bias is not None and kind != "gru":  # there the state's part is multiplied before it is added
        a = a + bias[:, None, None]
    # single positions, in the order of time; views taken at once cost a fraction of views taken in the loop
    old, new, added = (_in_time(part, backwards) for part in (states[:, :, before], states[:, :, after], a))
    across, gates = weight.mT, torch.empty_like(a)
    if kind == "lstm":
        memory, curved = torch.zeros_like(states), a.new_empty(agents, batch_size, positions, hidden)
        parts = [_in_time(part, backwards) for part in (gates, *gates.chunk(4, -1), curved)]
        cells = [_in_time(memory[:, :, which], backwards) for which in (before, after)]
        for h, next_h, x, z, i, f, g, o, bent, c, next_c in zip(old, new, added, *parts, *cells, strict=True):
            x = torch.baddbmm(x, h, across)
            torch.sigmoid(x, out=z)
            torch.tanh(x[..., 2 * hidden : 3 * hidden], out=g)
            torch.mul(f, c, out=next_c).addcmul_(i, g)
            torch.mul(o, torch.tanh(next_c, out=bent), out=next_h)
        saved = _Saved(states[:, :, before], (gates, curved, memory[:, :, before]))
        return (states[:, :, after].contiguous(), memory[:, :, after].contiguous()), saved
    if kind == "gru":
        inner = a.new_empty(agents, batch_size, positions, hidden)
        parts = [
            _in_time(part, backwards)
            for part in (*_pair_and_rest(a, hidden), *_pair_and_rest(gates, hidden), inner)
        ]
        shift = a.new_zeros(()) if bias is None else bias[:, None]
        for h, next_h, x, last, both, n, b in zip(old, new, *parts, strict=True):
            product = torch.baddbmm(shift, h, across)
            b.copy_(product[..., 2 * hidden :])
            torch.add(x, product[..., : 2 * hidden], out=both).sigmoid_()
            torch.addcmul(last, both[..., :hidden], b, out=n).tanh_()
            torch.lerp(n, h, both[..., hidden:], out=next_h)
        return (states[:, :, after].contiguous(),), _Saved(states[:, :, before], (gates, inner))
    bend = torch.tanh if kind == "tanh" else torch.relu
    for h, next_h, x in zip(old, new, added, strict=True):
        next_h.copy_(bend(torch.baddbmm(x, h, across)))
    outputs = states[:, :, after].contiguous()
    return (outputs,), _Saved(states[:, :, before], (outputs,))


def _pair_and_rest(gates: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """The two gates of a GRU that are taken together, and its new state."""
    return gates[..., : 2 * hidden], gates[..., 2 * hidden :]


def _in_time(whole: Tensor, backwards: bool) -> tuple[Tensor, ...]:
    """The positions of (agents, batch, positions, ...) one by one, the last one first if ``backwards``."""
    single = whole.unbind(2)
    return single[::-1] if backwards else single


def _backward(
    kind: str, backwards: bool, saved: _Saved, weight: Tensor, gradients: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Gradients of ``W h + b`` and of what the input adds, at all positions."""
    agents, batch_size, positions, hidden = saved.before.shape
    inside = weight.new_empty(agents, batch_size, positions, GATES[kind], hidden)
    ahead = weight.new_zeros(agents, batch_size, hidden)  # what later positions say of this state
    nothing = [None] * positions

    def back(*wholes: Tensor | None) -> Any:
        return zip(
            *(nothing if part is None else _in_time(part, not backwards) for part in wholes), strict=True
        )

    if kind == "lstm":
        gates, curved, memory = saved.parts
        i, f, g, o = gates.chunk(4, -1)
        slopes = torch.stack([g * i * (1 - i), memory * f * (1 - f), i * (1 - g * g)], 3)
        of_o, through = curved * o * (1 - o), o * (1 - curved * curved)
        remembered = torch.zeros_like(ahead)
        first, last = inside[:, :, :, :3], inside[:, :, :, 3]
        steps = back(gradients[0], gradients[1], slopes, of_o, through, f, inside.flatten(3), first, last)
        for from_h, from_c, slope, slope_o, bent, kept_share, z, three, one in steps:
            dh = ahead if from_h is None else ahead.add_(from_h)
            dc = remembered.addcmul_(dh, bent)
            if from_c is not None:
                dc += from_c
            torch.mul(slope, dc[:, :, None], out=three)
            torch.mul(dh, slope_o, out=one)
            remembered = dc.mul_(kept_share)
            ahead = torch.bmm(z, weight)
        return inside.flatten(3), inside.flatten(3)
    if kind == "gru":
        gates, inner = saved.parts
        r, u, n = gates.chunk(3, -1)
        of_n = (1 - u) * (1 - n * n)
        slopes = torch.stack([of_n * inner * r * (1 - r), (saved.before - n) * u * (1 - u), of_n * r], 3)
        whole = torch.empty_like(of_n)
        for from_h, slope, share, dh, z, flat in back(
            gradients[0], slopes, u, whole, inside, inside.flatten(3)
        ):
            dh.copy_(ahead if from_h is None else ahead.add_(from_h))
            torch.mul(slope, dh[:, :, None], out=z)
            ahead = torch.baddbmm(dh * share, flat, weight)
        outside = inside.clone()
        torch.mul(whole, of_n, out=outside[:, :, :, 2])
        return inside.flatten(3), outside.flatten(3)
    (outputs,) = saved.parts
    slopes = 1 - outputs * outputs if kind == "tanh" else (outputs > 0).to(outputs.dtype)
    for from_h, slope, z in back(gradients[0], slopes, inside[:, :, :, 0]):
        torch.mul(ahead if from_h is None else ahead.add_(from_h), slope, out=z)
        ahead = torch.bmm(z, weight)
    return inside.flatten(3), inside.flatten(3)
