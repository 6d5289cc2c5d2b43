r"""The recursion of a recurrent layer over all positions, with its gradient.

.. math:: h_t = \mathrm{cell}(a_t,\ W h_{t-1} + b,\ h_{t-1})

The part :math:`a_t` of the input is a linear layer over all positions. The cells are those of `nn.LSTM`,
`nn.GRU` and `nn.RNN`. The backward pass also hands out the gradients of :math:`W h_{t-1} + b` at all
positions, which with the states give the per-sample gradients of W and b. On a processor both passes are
compiled loops over positions; samples are shared out among the threads. Other devices and float64 take
torch's operations.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import get_num_threads, njit, prange
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.objectives.nets.float64_sums import start_threads
from sottovoce.objectives.nets.products import TILE, multiply
from sottovoce.objectives.nets.vectors import choose, exp, larger, load, spread, store

LANES = 16
KINDS = ("lstm", "gru", "tanh", "relu")
_LSTM, _GRU, _TANH, _RELU = range(4)
GATES = (4, 3, 1, 1)
_SAVED = (4, 4, 0, 0)  # numbers per state that the way back needs; of a GRU also the inner part of the third
_WHOLE = max(LANES, TILE)  # numbers of states are rounded up to a multiple of it
_SAMPLES = 8  # that a thread takes at least
Record = Callable[[Tensor, Tensor], None]


class RecurrentInput(nn.Linear):
    """What the input adds at each position of a recurrent layer."""


class Recurrence(nn.Linear):
    """States of all positions from what the input adds at each; they start from zero.

    The cell is ``"lstm"``, ``"gru"``, or the function of a plain recurrent layer, ``"tanh"`` or ``"relu"``;
    weight and bias are those of the state. ``backwards`` begins with the last position.
    """

    cell: str
    backwards: bool

    def forward(self, added: Tensor) -> Any:
        """Return the states (samples, positions, hidden); of an LSTM its memories too."""
        bias = None if self.bias is None else self.bias.detach()[None]
        return recur(self.cell, self.backwards, added, self.weight.detach()[None], bias)


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

    Weight and bias get no gradients.

    Parameters
    ----------
    added : (agents * batch, positions, gates * hidden), what the input adds.
    weight, bias : (agents, gates * hidden, hidden) and (agents, gates * hidden) or None.
    anchor : a number that asks for a gradient, where no other argument does.
    record : called in the backward pass with the states before each position and the gradients of
        ``W h + b`` there, (agents * batch, positions, ...).
    """
    bias = weight.new_zeros(weight.shape[:2]) if bias is None else bias
    if added.device.type == "cpu" and added.dtype == torch.float32:
        outputs: tuple[Tensor, ...] = _Compiled.apply(anchor, added, weight, bias, kind, backwards, record)
    else:
        before: list[Tensor] = []
        probes = _Probes.apply(anchor, added, before, backwards, record)
        outputs = _by_operations(kind, backwards, added, weight, bias, probes, before)
    return outputs if kind == "lstm" else outputs[:1]


def _by_operations(
    kind: str,
    backwards: bool,
    added: Tensor,
    weight: Tensor,
    bias: Tensor,
    probes: Tensor,
    before: list[Tensor],
) -> tuple[Tensor, ...]:
    """The recursion as operations that torch differentiates; ``probes`` are zeros beside each ``W h + b``."""
    h = c = added.new_zeros(len(added), weight.shape[2])
    after: list[tuple[Tensor, Tensor]] = []
    steps = list(zip(added.unbind(1), probes.unbind(1), strict=True))
    for a, probe in reversed(steps) if backwards else steps:
        before.append(h.detach())
        product = torch.baddbmm(bias[:, None], h.view(len(weight), -1, h.shape[1]), weight.mT)
        inner = product.flatten(0, 1) + probe
        if kind == "lstm":
            i, f, g, o = (a + inner).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        elif kind == "gru":
            (a_r, a_u, a_n), (r, u, n) = a.chunk(3, 1), inner.chunk(3, 1)
            h = torch.lerp((a_n + (a_r + r).sigmoid() * n).tanh(), h, (a_u + u).sigmoid())
        else:
            h = torch.tanh(a + inner) if kind == "tanh" else torch.relu(a + inner)
        after.append((h, c))
    return tuple(torch.stack(of[::-1] if backwards else of, 1) for of in zip(*after, strict=True))


class _Probes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Any, added: Tensor, before: list[Tensor], backwards: bool, record: Any
    ) -> Tensor:
        ctx.before, ctx.backwards, ctx.record, ctx.anchor = before, backwards, record, anchor
        return torch.zeros_like(added)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.record is not None:
            ctx.record(torch.stack(ctx.before[::-1] if ctx.backwards else ctx.before, 1), gradients[0])
        return None if ctx.anchor is None else torch.zeros_like(ctx.anchor), None, None, None, None


class _Compiled(torch.autograd.Function):
    """The recursion as compiled loops, of arrays (samples, positions, ...) with whole vectors of states."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        added: Tensor,
        weight: Tensor,
        bias: Tensor,
        kind: str,
        backwards: bool,
        record: Record | None,
    ) -> Any:
        start_threads()
        code, (samples, positions, _), hidden = KINDS.index(kind), added.shape, weight.shape[2]
        gates, rest = GATES[code], -hidden % _WHOLE
        full = hidden + rest
        weight = F.pad(weight.unflatten(1, (gates, hidden)), (0, rest, 0, rest)).flatten(1, 2)
        states = added.new_zeros(samples, positions + 1, full)
        memory = torch.zeros_like(states) if kind == "lstm" else states
        activations = added.new_empty(samples, positions, _SAVED[code] * full)
        added, bias = _padded(added, gates, rest), _padded(bias, gates, rest)
        ctx.options = code, int(backwards), _blocks(samples // len(weight), len(weight))
        _run(*ctx.options, *_arrays(added, weight.mT, bias, activations, memory, states))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(activations, memory, states, weight)
        ctx.hidden, ctx.record, ctx.anchor = hidden, record, anchor
        after = slice(0, -1) if backwards else slice(1, None)
        return states[:, after, :hidden], memory[:, after, :hidden]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return (None,) * 7
        activations, memory, states, weight = ctx.saved_tensors
        code, backwards, _ = ctx.options
        gates, hidden, full = GATES[code], ctx.hidden, states.shape[2]
        of_states, of_memory = (
            torch.zeros_like(states[:, 1:]) if g is None else _padded(g, 1, full - hidden) for g in gradients
        )
        inside = states.new_empty(*of_states.shape[:2], gates * full)
        outside = torch.empty_like(inside) if code == _GRU else inside
        parts = (activations, memory, states, of_states, of_memory, weight, inside, outside)
        _run_back(*ctx.options, *_arrays(*parts))
        inside, outside = (
            part.unflatten(2, (gates, full))[..., :hidden].flatten(2) for part in (inside, outside)
        )
        if ctx.record is not None:
            before = slice(1, None) if backwards else slice(0, -1)
            ctx.record(states[:, before, :hidden], inside)
        zero = None if ctx.anchor is None else torch.zeros_like(ctx.anchor)
        return zero, outside, None, None, None, None, None


def _arrays(*parts: Tensor) -> list[np.ndarray]:
    return [part.detach().contiguous().numpy() for part in parts]


def _padded(whole: Tensor, gates: int, rest: int) -> Tensor:
    """The last axis with zeros after the states of each gate."""
    return F.pad(whole.unflatten(-1, (gates, -1)), (0, rest)).flatten(-2) if rest else whole


def _blocks(batch: int, agents: int) -> int:
    """How many threads share the samples of an agent; those of one thread share the weights in a product."""
    return max(1, min(batch // _SAMPLES, -(-get_num_threads() // agents)))


@njit(parallel=True, cache=True, error_model="numpy")
def _run(
    kind: int,
    backwards: int,
    blocks: int,
    added: Any,
    weight: Any,
    bias: Any,
    activations: Any,
    memory: Any,
    states: Any,
) -> None:
    """The states after every position, and what the way back needs; ``weight`` is (agents, hidden, gates)."""
    (samples, positions, wide), (agents, n, _) = added.shape, weight.shape
    batch = samples // agents
    for job in prange(agents * blocks):
        a, part = job // blocks, job % blocks
        first, last = a * batch + part * batch // blocks, a * batch + (part + 1) * batch // blocks
        products, flat = np.empty((last - first, wide), np.float32), states[first:last].reshape(-1)
        steps, sizes = ((positions + 1) * n, 1), (last - first, n, wide)
        for step in range(positions):
            t = positions - 1 - step if backwards else step
            before, after = t + backwards, t + 1 - backwards
            multiply(products.reshape(-1), flat[before * n :], steps, weight[a].reshape(-1), wide, sizes)
            for s in range(first, last):
                x, y, b, keep = added[s, t], products[s - first], bias[a], activations[s, t]
                h, next_h = states[s, before], states[s, after]
                for k in range(0, n, LANES):
                    if kind == _LSTM:
                        i, f = _sigmoid(_sum(x, y, b, k)), _sigmoid(_sum(x, y, b, n + k))
                        g, o = _tanh(_sum(x, y, b, 2 * n + k)), _sigmoid(_sum(x, y, b, 3 * n + k))
                        m = f * load(memory[s, before], k, LANES) + i * g
                        _store_gates(keep, k, n, i, f, g, o)
                        store(memory[s, after], k, m, LANES)
                        store(next_h, k, o * _tanh(m), LANES)
                    elif kind == _GRU:
                        r, u = _sigmoid(_sum(x, y, b, k)), _sigmoid(_sum(x, y, b, n + k))
                        inner = load(y, 2 * n + k, LANES) + load(b, 2 * n + k, LANES)
                        m = _tanh(load(x, 2 * n + k, LANES) + r * inner)
                        _store_gates(keep, k, n, r, u, m, inner)
                        store(next_h, k, m + u * (load(h, k, LANES) - m), LANES)
                    else:
                        z, zero = _sum(x, y, b, k), spread(np.float32(0), LANES)
                        store(next_h, k, _tanh(z) if kind == _TANH else larger(zero, z), LANES)


@njit(parallel=True, cache=True, error_model="numpy")
def _run_back(
    kind: int,
    backwards: int,
    blocks: int,
    activations: Any,
    memory: Any,
    states: Any,
    of_states: Any,
    of_memory: Any,
    weight: Any,
    inside: Any,
    outside: Any,
) -> None:
    """Gradients of ``W h + b`` and of what the input adds; ``weight`` is (agents, gates, hidden)."""
    (samples, positions, wide), (agents, _, n) = inside.shape, weight.shape
    batch = samples // agents
    for job in prange(agents * blocks):
        a, part = job // blocks, job % blocks
        first, last = a * batch + part * batch // blocks, a * batch + (part + 1) * batch // blocks
        steps, sizes = (positions * wide, 1), (last - first, wide, n)
        flat = inside[first:last].reshape(-1)
        ahead = np.zeros((last - first, n), np.float32)  # what later positions say of this state
        carried = np.zeros((last - first, n), np.float32)  # and of the memory, or past the product
        for step in range(positions):
            t = step if backwards else positions - 1 - step
            before, after = t + backwards, t + 1 - backwards
            for s in range(first, last):
                past, keep, out = carried[s - first], activations[s, t], inside[s, t]
                for k in range(0, n, LANES):
                    one, zero = spread(np.float32(1), LANES), spread(np.float32(0), LANES)
                    dh = load(ahead[s - first], k, LANES) + load(of_states[s, t], k, LANES)
                    if kind == _LSTM:
                        i, f, g, o = _load_gates(keep, k, n)
                        b = _tanh(load(memory[s, after], k, LANES))
                        dc = load(past, k, LANES) + load(of_memory[s, t], k, LANES)
                        dc = dc + dh * o * (one - b * b)
                        df = dc * load(memory[s, before], k, LANES) * f * (one - f)
                        dg, do = dc * i * (one - g * g), dh * b * o * (one - o)
                        _store_gates(out, k, n, dc * g * i * (one - i), df, dg, do)
                        store(past, k, dc * f, LANES)
                    elif kind == _GRU:
                        r, u, m, inner = _load_gates(keep, k, n)
                        dh = dh + load(past, k, LANES)
                        dm = dh * (one - u) * (one - m * m)
                        dr, h = dm * inner * r * (one - r), load(states[s, before], k, LANES)
                        du = dh * (h - m) * u * (one - u)
                        for to, last_gate in ((out, dm * r), (outside[s, t], dm)):
                            store(to, k, dr, LANES)
                            store(to, n + k, du, LANES)
                            store(to, 2 * n + k, last_gate, LANES)
                        store(past, k, dh * u, LANES)
                    else:
                        h = load(states[s, after], k, LANES)
                        dz = dh * (one - h * h) if kind == _TANH else choose(zero < h, dh, zero)
                        store(out, k, dz, LANES)
            multiply(ahead.reshape(-1), flat[t * wide :], steps, weight[a].reshape(-1), n, sizes)


@njit(inline="always", error_model="numpy")
def _sum(x: Any, y: Any, b: Any, at: int) -> Any:
    return load(x, at, LANES) + (load(y, at, LANES) + load(b, at, LANES))


@njit(inline="always", error_model="numpy")
def _load_gates(gates: Any, k: int, n: int) -> Any:
    first, second = load(gates, k, LANES), load(gates, n + k, LANES)
    return first, second, load(gates, 2 * n + k, LANES), load(gates, 3 * n + k, LANES)


@njit(inline="always", error_model="numpy")
def _store_gates(gates: Any, k: int, n: int, first: Any, second: Any, third: Any, fourth: Any) -> None:
    store(gates, k, first, LANES)
    store(gates, n + k, second, LANES)
    store(gates, 2 * n + k, third, LANES)
    store(gates, 3 * n + k, fourth, LANES)


@njit(inline="always", error_model="numpy")
def _sigmoid(x: Any) -> Any:
    one = spread(np.float32(1), LANES)
    y = one / (exp(x * np.float32(-1), spread(np.float32(80), LANES)) + np.float32(1))
    return choose(x == x, y, x)  # NaN stays NaN, which marks a record as bad


@njit(inline="always", error_model="numpy")
def _tanh(x: Any) -> Any:
    return _sigmoid(x * np.float32(2)) * np.float32(2) - spread(np.float32(1), LANES)
