"""Layers whose weights differ from agent to agent, and the norms and sums of their per-sample gradients.

A stacked copy replaces one layer. Its call takes the batches of all agents laid end to end,
(agents * batch, ...), and uses the weights of row ``a`` for the samples of agent ``a``. In the backward pass
it keeps its input and the gradient of its output. These give, per sample, the squared norm of the weight
gradient, and then the weighted sum over the batch. With T positions, D inputs and p outputs a gradient
``sum_t g_t x_t^T`` has p D numbers and comes from T (D + p). If it is not several times larger than these,
it is formed in float32, measured and kept; the sum over the batch, in float64 (`float64_sums`), adds exactly
the numbers that were measured, and costs little more than a gradient without clipping. If it is larger, its
ghost norm ``sum_{t,s} <g_t, g_s> <x_t, x_s>`` is taken and one product in float64 sums the batch.

A record can make two positions nearly cancel: its gradient is then short although its terms are huge, and
its ghost norm in float32 would be rounding error. The norm is therefore taken in float64, in which products
of float32 numbers are exact, and enlarged by the largest possible rounding error.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad as convolution

from sottovoce.objectives.nets.float64_sums import (
    add_weighted_products,
    add_weighted_rows,
    row_squares,
    token_squares,
)
from sottovoce.objectives.nets.losses import sharing_copy
from sottovoce.objectives.nets.products import products
from sottovoce.objectives.nets.recurrence import Recurrence, RecurrentInput, recur

_FEW = 16  # roundings in addition to one per position
_FORMED = 4  # gradients of single samples are kept where they need at most so many times what they come from
_SUM_FLOATS = 2_000_000  # and for the sum over a batch in pieces that let large sums be touched seldom
_PATCH_FLOATS = 300_000  # patches of a convolution are unfolded in pieces that stay in the cache


class Slot(NamedTuple):
    """The columns of one parameter in a row of parameters."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class Stacked:
    """Base of the stacked copies: weights by agent, and what the backward pass says of each sample."""

    def __init__(self, layer: Any, slots: Mapping[str, Slot]) -> None:
        self.layer = layer
        self.slots = slots
        self._room: Tensor | None = None
        self.forget()

    def forget(self) -> None:
        """Drop the last batch and the weights, which are views of rows."""
        self.weights: dict[str, Tensor] = {}
        self.seen: list[tuple[Tensor, Tensor]] = []  # inputs and output gradients of the calls of this layer
        self.formed: tuple[Tensor, Tensor] | None = None  # or gradients of weight and bias, a row per sample

    @property
    def held(self) -> list[Tensor]:
        """What is kept for norms and sums beside the inputs; empty without a backward pass."""
        return [*(self.formed or ()), *(gradient for _, gradient in self.seen)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_room": None}

    def room(self, like: Tensor, *shape: int) -> Tensor:
        """Return memory for numbers like those of ``like``; it is reused, since fresh pages cost time."""
        count = math.prod(shape)
        if self._room is None or self._room.numel() < count or self._room.dtype != like.dtype:
            self._room = like.new_empty(count)
        return self._room[:count].view(shape)

    def load(self, theta: Tensor, anchor: Tensor) -> None:
        """Take the weights of every agent from the rows of ``theta`` (views, no copy)."""
        self.forget()
        self.agents, self.anchor = theta.shape[0], anchor
        self.weights = {
            key: theta[:, slot.start : slot.stop].view(-1, *slot.shape) for key, slot in self.slots.items()
        }

    def __call__(self, inputs: Tensor) -> Any:
        return _Recorded.apply(self.anchor, inputs, self)

    def each_agent(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return ``function(agent, part, ...)`` of the parts of every agent, laid end to end."""
        parts = zip(*(tensor.chunk(self.agents) for tensor in tensors), strict=True)
        first = function(0, *next(parts))
        if self.agents == 1:
            return first
        whole = first.new_empty(self.agents, *first.shape)  # written in turn, while each part is in the cache
        whole[0] = first
        for a, part in enumerate(parts, 1):
            whole[a] = function(a, *part)
        return whole.flatten(0, 1)

    def weights_of(self, a: int) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of one agent."""
        bias = self.weights.get("bias")
        return self.weights["weight"][a], None if bias is None else bias[a]

    def by_agent(self, tensor: Tensor) -> Tensor:
        """Return ``(agents * batch, ...)`` as ``(agents, batch, ...)``."""
        return tensor.reshape(self.agents, -1, *tensor.shape[1:])

    def record(self, inputs: Tensor, gradient: Tensor) -> None:
        """Keep what norms and sums need of one call."""
        self.seen.append((inputs, gradient))

    def keep(self, weight: Tensor, bias: Tensor) -> None:
        """Keep the per-sample gradients of one call, added to those of earlier calls."""
        if self.formed is not None:
            weight, bias = self.formed[0] + weight, self.formed[1] + bias
        self.formed = weight, bias

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each sample's gradient of this layer, (agents * batch,)."""
        if self.formed is None:
            return self.ghost_norms()
        weight, bias = self.formed
        squared = row_squares(weight)
        return squared + row_squares(bias) if "bias" in self.slots else squared

    def add_weighted(self, sums: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        """Add the weighted sum over each batch to this layer's columns; ``bad`` samples count zero."""
        if self.formed is None:
            self.add_products(sums, weights, bad)
            return
        # the numbers that are added are the ones that were measured
        for key, each in zip(("weight", "bias"), _without(bad, *self.formed), strict=True):
            if key in self.slots:
                start = self.slots[key].start
                add_weighted_rows(sums, start, self.by_agent(weights), self.by_agent(each))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output."""
        raise NotImplementedError

    def input_gradient(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the input from that of the output; tokens have none."""
        raise NotImplementedError

    def ghost_norms(self) -> Tensor:
        """Return the squared norms from inputs and output gradients."""
        raise NotImplementedError

    def add_products(self, sums: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        """Add the weighted sums from inputs and output gradients."""
        raise NotImplementedError


class _Recorded(torch.autograd.Function):
    """One call of a copy; the anchor makes autograd run although no weight requires a gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, inputs: Tensor, copy: Stacked) -> Tensor:
        ctx.copy = copy
        ctx.save_for_backward(inputs)
        return copy.forward(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (inputs,) = ctx.saved_tensors
        copy = ctx.copy
        gradient = gradient.contiguous()
        copy.record(inputs, gradient)
        wanted = ctx.needs_input_grad[1]
        return None, copy.input_gradient(inputs, gradient) if wanted else None, None


class StackedLinear(Stacked):
    """``y = x W_a^T + b_a``; positions between the first and the last axis are summed over."""

    @staticmethod
    def products(
        left: Tensor, right: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return ``left @ right + bias`` of several matrices."""
        return torch.bmm(left, right, out=out) if bias is None else torch.baddbmm(bias, left, right)

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self.weights["weight"], self.weights.get("bias")
        rows = inputs.reshape(self.agents, -1, inputs.shape[-1])
        out = self.products(rows, weight.mT, None if bias is None else bias[:, None])
        return out.view(*inputs.shape[:-1], -1)

    def input_gradient(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        rows = gradient.reshape(self.agents, -1, gradient.shape[-1])
        return self.products(rows, self.weights["weight"]).view(inputs.shape)

    def squared_norms(self) -> Tensor:
        x, g = self._positions()
        positions, inputs, outputs = x.shape[1], x.shape[2], g.shape[2]
        if positions > 1 and inputs * outputs <= _FORMED * positions * (inputs + outputs):
            each = self.room(x, len(x), outputs, inputs)
            self.products(g.mT, x, out=each)
            self.formed, self.seen = (each.flatten(1), g.sum(1)), []
        return super().squared_norms()

    def ghost_norms(self) -> Tensor:
        x, g = self._positions()
        if x.shape[1] > 1:
            squared = _matrix_norms(x, g)
            return squared + _sum_norms(g) if "bias" in self.slots else squared
        of_bias = row_squares(g)
        squared = row_squares(x) * of_bias
        return squared + of_bias if "bias" in self.slots else squared

    def add_products(self, sums: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        x, g = _without(bad, *self._positions())
        each = self.by_agent(weights[:, None].expand(-1, x.shape[1]).flatten())
        g, x = (t.reshape(self.agents, -1, t.shape[-1]) for t in (g, x))
        add_weighted_products(sums, self.slots["weight"].start, each, g, x)
        if "bias" in self.slots:
            add_weighted_rows(sums, self.slots["bias"].start, each, g)

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients as (samples, positions, channels), calls laid after one another."""
        if len(self.seen) > 1 or self.seen[0][0].ndim != 3:
            calls = (
                [t.reshape(t.shape[0], -1, t.shape[-1]) for t in part]
                for part in zip(*self.seen, strict=True)
            )
            x, g = (_joined(part) for part in calls)
            self.seen = [(x, g)]
        return self.seen[0]


class StackedRecurrentInput(StackedLinear):
    """The input's part of a recurrent layer."""

    products = staticmethod(products)


class StackedRecurrence(StackedRecurrentInput):
    """The state's part of a recurrent layer: a linear layer whose input is the state before each position."""

    def __call__(self, inputs: Tensor) -> Any:
        weight, bias = self.weights["weight"], self.weights.get("bias")
        layer = self.layer
        return recur(layer.cell, layer.backwards, inputs, weight, bias, self.anchor, self.record)


class StackedConv(Stacked):
    """Convolution in one or two dimensions; agent after agent, since each has its own kernel."""

    def __init__(self, layer: Any, slots: Mapping[str, Slot]) -> None:
        super().__init__(layer, slots)
        self.flat = isinstance(layer, nn.Conv1d)
        one, none = ((1,), (0,)) if self.flat else ((), ())  # a sequence is an image of height one
        self.kernel, self.stride = one + tuple(layer.kernel_size), one + tuple(layer.stride)
        self.dilation, self.padding = one + tuple(layer.dilation), none + tuple(layer.padding)
        # as functions of torch take them
        self.options: tuple[Any, ...] = (self.stride, self.padding, self.dilation, layer.groups)

    def __call__(self, inputs: Tensor) -> Any:
        if not self.flat:
            return super().__call__(inputs)
        return super().__call__(inputs.unsqueeze(2)).squeeze(2)

    def _kernel(self, a: int) -> Tensor:
        weight = self.weights["weight"][a]
        return weight.unsqueeze(2) if self.flat else weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.each_agent(
            lambda a, x: F.conv2d(x, self._kernel(a), self.weights_of(a)[1], *self.options), inputs
        )

    def input_gradient(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        return self.each_agent(
            lambda a, x, g: convolution.conv2d_input(x.shape, self._kernel(a), g, *self.options),
            inputs,
            gradient,
        )

    def record(self, inputs: Tensor, gradient: Tensor) -> None:
        positions = gradient.shape[2] * gradient.shape[3]
        outputs, per_patch = self._kernel(0).shape[0] // self.layer.groups, self._kernel(0)[0].numel()
        small = outputs * per_patch <= positions * (outputs + per_patch)
        self.seen.append((inputs, gradient))
        if small or self.formed is not None or len(self.seen) > 1:
            # the input is not needed again: the small gradients serve both the norm and the sum
            for x, g in self.seen:
                self.keep(self._form(x, g), g.sum((2, 3)))
            self.seen = []

    def _form(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Return per-sample weight gradients (samples, p D)."""
        shape = (len(inputs), self._kernel(0).numel())
        # a second call in one pass must not write over the first
        whole = self.room(inputs, *shape) if self.formed is None else inputs.new_empty(shape)
        for rows, patches, g in self._pieces(inputs, gradient):
            torch.bmm(g, patches.mT, out=whole[rows].view(len(g), g.shape[1], patches.shape[1]))
        return whole

    def _pieces(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Patches (samples * groups, D, positions) and gradients (.., p, positions) of a few samples each."""
        groups = self.layer.groups
        numbers = gradient[0, 0].numel() * self._kernel(0)[0].numel() * groups
        step = max(1, _PATCH_FLOATS // numbers)
        for first in range(0, len(inputs), step):
            rows = slice(first, first + step)
            patches = self._patches(inputs[rows])
            patches = patches.view(len(patches) * groups, -1, patches.shape[-1])
            yield rows, patches, gradient[rows].reshape(len(patches), -1, patches.shape[-1])

    def _patches(self, x: Tensor, by_position: bool = False) -> Tensor:
        """(samples, inputs per patch, positions), or the last two the other way round.

        Rows are copied whole, several times faster than im2col.
        """
        if self.dilation != (1, 1):
            patches = F.unfold(x, self.kernel, self.dilation, self.padding, self.stride)
            return patches.mT if by_position else patches
        (up, left), (k, m) = self.padding, self.kernel
        if up or left:
            x = F.pad(x, (left, left, up, up))
        windows = x.unfold(2, k, self.stride[0]).unfold(3, m, self.stride[1])
        if by_position:
            return windows.permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], -1, x.shape[1] * k * m)
        return windows.permute(0, 1, 4, 5, 2, 3).reshape(x.shape[0], x.shape[1] * k * m, -1)

    def ghost_norms(self) -> Tensor:
        inputs, gradient = self.seen[0]
        groups, pieces = self.layer.groups, self._pieces(inputs, gradient)
        squared = torch.cat(
            [_matrix_norms(patches.mT, g.mT).view(-1, groups).sum(1) for _, patches, g in pieces]
        )
        return squared + _sum_norms(gradient.flatten(2).mT) if "bias" in self.slots else squared

    def add_products(self, sums: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        x, g = _without(bad, *self.seen[0])
        slot = self.slots["weight"]
        for total, *part in zip(sums, *(self.by_agent(t) for t in (x, g, weights)), strict=True):
            self._add_products(total[slot.start : slot.stop].view(self.layer.groups, -1), *part)
        if "bias" in self.slots:
            each = g.sum((2, 3), dtype=torch.float64)
            add_weighted_rows(sums, self.slots["bias"].start, self.by_agent(weights), self.by_agent(each))

    def _add_products(self, total: Tensor, x: Tensor, g: Tensor, weights: Tensor) -> None:
        """Add the weighted sum of one agent's weight gradients, (groups, p D): a product over positions."""
        groups, positions = self.layer.groups, g[0, 0].numel()
        outputs, inputs = len(self._kernel(0)) // groups, self._kernel(0)[0].numel()
        step = max(1, _SUM_FLOATS // (groups * inputs * positions))
        for part in range(0, len(x), step):
            rows = slice(part, part + step)
            patches = self._patches(x[rows], by_position=True)
            each = weights[rows, None].expand(-1, positions).flatten().expand(groups, -1)
            gs = g[rows].reshape(len(patches), groups, outputs, positions).permute(1, 0, 3, 2)
            wide = patches.reshape(len(patches) * positions, groups, inputs).transpose(0, 1)
            add_weighted_products(total, 0, each, gs.flatten(1, 2), wide)


class StackedScale(Stacked):
    """The affine part of GroupNorm, InstanceNorm, LayerNorm and RMSNorm; the rest has no parameters."""

    def __init__(self, layer: Any, slots: Mapping[str, Slot]) -> None:
        super().__init__(layer, slots)
        self.plain = sharing_copy(layer)
        for key in layer._parameters:
            setattr(self.plain, key, None)
        self.by_channel = not isinstance(layer, (nn.LayerNorm, nn.RMSNorm))  # one weight each, not per place

    def __call__(self, inputs: Tensor) -> Any:
        return super().__call__(self.plain(inputs))

    def _spread(self, key: str, like: Tensor) -> Tensor:
        """Return the weights of every agent, broadcast against (agents, batch, ...)."""
        weight = self.weights[key]
        if self.by_channel:
            return weight.view(self.agents, 1, -1, *[1] * (like.ndim - 2))
        return weight.view(self.agents, *[1] * (like.ndim - weight.ndim + 1), *weight.shape[1:])

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.by_agent(inputs) * self._spread("weight", inputs)
        if "bias" in self.weights:
            out += self._spread("bias", inputs)
        return out.view(inputs.shape)

    def input_gradient(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        return (self.by_agent(gradient) * self._spread("weight", inputs)).view(inputs.shape)

    def record(self, inputs: Tensor, gradient: Tensor) -> None:
        """Keep the sums over positions: they are the per-sample gradients, and small."""
        self.keep(self._reduce(inputs * gradient), self._reduce(gradient))

    def _reduce(self, product: Tensor) -> Tensor:
        if self.by_channel:
            return _channel_sums(product)
        return product.reshape(product.shape[0], -1, self.weights["weight"][0].numel()).sum(1)


class StackedEmbedding(Stacked):
    """Table look-up: tokens that repeat within a sample add up before the norm is taken."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.each_agent(lambda a, tokens: F.embedding(tokens, self.weights["weight"][a]), inputs)

    def _tokens(self) -> tuple[Tensor, Tensor]:
        size = self.weights["weight"].shape[-1]
        tokens = _joined([inputs.reshape(inputs.shape[0], -1) for inputs, _ in self.seen])
        g = _joined([gradient.reshape(gradient.shape[0], -1, size) for _, gradient in self.seen])
        if self.layer.padding_idx is not None:
            g = torch.where((tokens == self.layer.padding_idx)[..., None], 0.0, g)
        return tokens, g

    def ghost_norms(self) -> Tensor:
        tokens, g = self._tokens()
        return _enlarged(token_squares(tokens, g), torch.linalg.vector_norm(g, dim=2))

    def add_products(self, sums: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        tokens, g = self._tokens()
        (g,) = _without(bad, g)
        vocabulary, size = self.weights["weight"].shape[1:]
        row = self.by_agent(tokens) + vocabulary * torch.arange(self.agents, device=g.device)[:, None, None]
        table = sums.new_zeros(self.agents * vocabulary, size)
        table.index_add_(0, row.flatten(), (g * weights.double()[:, None, None]).reshape(-1, size))
        slot = self.slots["weight"]
        sums[:, slot.start : slot.stop] += table.view(self.agents, -1)


class StackedByFunction(Stacked):
    """Any other layer that keeps samples apart: `torch.func` forms the gradient of each sample."""

    def __init__(self, layer: Any, slots: Mapping[str, Slot]) -> None:
        super().__init__(layer, slots)
        self.twin = sharing_copy(layer)  # whose call is not replaced by this copy

    def _call(self, a: int, x: Tensor, weights: dict[str, Tensor] | None = None) -> Any:
        own = {key: weight[a] for key, weight in self.weights.items()}
        return torch.func.functional_call(self.twin, own if weights is None else weights, (x,))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.each_agent(self._call, inputs)

    def input_gradient(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        def of_agent(a: int, x: Tensor, g: Tensor) -> Tensor:
            _, back, *_ = torch.func.vjp(lambda x: self._call(a, x), x)
            return back(g)[0]

        return self.each_agent(of_agent, inputs, gradient)

    def record(self, inputs: Tensor, gradient: Tensor) -> None:
        def of_sample(a: int, x: Tensor, g: Tensor) -> Tensor:
            weights = {key: weight[a] for key, weight in self.weights.items()}
            _, back, *_ = torch.func.vjp(lambda w: self._call(a, x[None], w), weights)
            return torch.cat([part.flatten() for part in back(g[None])[0].values()])

        each = torch.func.vmap(of_sample, in_dims=(None, 0, 0))
        rows = self.each_agent(lambda a, x, g: each(a, x, g), inputs, gradient)
        sizes = [weight[0].numel() for weight in self.weights.values()]
        parts = dict(zip(self.weights, rows.split(sizes, 1), strict=True))
        self.keep(parts["weight"], parts.get("bias", parts["weight"]))


_TWINS: dict[type[nn.Module], type[Stacked]] = {
    nn.Linear: StackedLinear,
    RecurrentInput: StackedRecurrentInput,
    Recurrence: StackedRecurrence,
    nn.Embedding: StackedEmbedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), StackedConv),
    **dict.fromkeys(
        (nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), StackedByFunction
    ),
    nn.PReLU: StackedByFunction,
    **dict.fromkeys((nn.GroupNorm, nn.LayerNorm, nn.RMSNorm), StackedScale),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), StackedScale),
}


def stacked_copy(layer: nn.Module, slots: Mapping[str, Any]) -> Stacked | None:
    """Return the copy of ``layer``, or None if there is none."""
    copy = _TWINS.get(type(layer))
    if copy is StackedConv and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        copy = StackedByFunction
    return None if copy is None else copy(layer, slots)


def _channel_sums(product: Tensor) -> Tensor:
    """Return the sums over all positions of each channel."""
    return product.flatten(2).sum(2) if product.ndim > 2 else product


def _matrix_norms(x: Tensor, g: Tensor) -> Tensor:
    """Return ``|sum_t g_t x_t^T|^2`` per sample for x (N, T, D), g (N, T, p), without keeping the sums."""
    if x.shape[1] == 1:
        return row_squares(x) * row_squares(g)
    lengths = torch.linalg.vector_norm(x, dim=2) * torch.linalg.vector_norm(g, dim=2)
    if g.dtype == torch.float32:
        xs, gs = x.double(), g.double()
        squared = (torch.bmm(xs, xs.mT) * torch.bmm(gs, gs.mT)).sum((1, 2))
        return _ghost(squared, lengths, x.shape[2] + g.shape[2])
    # of float64 terms that cancel no wider type could take the ghost norm
    return _enlarged(row_squares(torch.bmm(g.mT, x)), lengths)


def _sum_norms(terms: Tensor) -> Tensor:
    """Return the squared norms of the sums of ``terms`` (N, T, p) over positions, taken in float64."""
    squared = row_squares(terms.sum(1, dtype=torch.float64))
    return squared if terms.shape[1] == 1 else _enlarged(squared, torch.linalg.vector_norm(terms, dim=2))


def _ghost(squared: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Return the most that ghost norms may truly be, of float32 terms of such ``lengths`` (N, T).

    A scalar product of two rows is off by at most half a unit of float64 for each of its ``width`` numbers,
    the sum over all pairs of positions by one for each pair, of the product of the lengths.
    """
    roundings = (width + lengths.shape[1] ** 2 + _FEW) * torch.finfo(torch.float64).eps
    return squared.clamp(min=0) + roundings * lengths.double().sum(1).square()


def _enlarged(squared: Tensor, lengths: Tensor) -> Tensor:
    """Return the most that squared norms of sums, in float64, of terms of such ``lengths`` may truly be."""
    roundings = (lengths.shape[1] + _FEW) * torch.finfo(torch.float64).eps / 2
    return (squared.clamp(min=0).sqrt() + roundings * lengths.double().sum(1)).square()


def _joined(calls: list[Tensor]) -> Tensor:
    """Positions of several calls after one another."""
    return calls[0] if len(calls) == 1 else torch.cat(calls, 1)


def _without(bad: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors with the rows of bad samples set to zero (0 times NaN would be NaN)."""
    if bad is None:
        return tensors
    return tuple(torch.where(bad.view(-1, *[1] * (t.ndim - 1)), 0.0, t) for t in tensors)
