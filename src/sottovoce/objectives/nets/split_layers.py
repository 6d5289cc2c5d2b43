"""Attention and recurrent layers as linear layers, which have stacked copies (`layers`).

`nn.MultiheadAttention`, `nn.LSTM`, `nn.GRU` and `nn.RNN` call one large function that hides their steps.
Written as linear layers, a product per head and a recursion of the state (`recurrence`), their per-sample
gradients cost what those of linear layers cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.objectives.nets.layers import Slot
from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.quick_layers import QuickMish, WindowMaxima
from sottovoce.objectives.nets.recurrence import Recurrence, RecurrentInput

_SECOND_AXIS = "the last states of a recurrent layer have the samples on the second axis"


def split_layers(net: nn.Module) -> tuple[list[str], list[str]]:
    """Replace plain attention and recurrent layers with the samples first, and return the paths of both.

    Layers of `quick_layers` are put in as well; they have no parameters.
    """
    attention, recurrent = [], []
    for name, layer in list(net.named_modules()):
        twin: nn.Module
        if not name or not _untouched(layer):
            continue
        if type(layer) is nn.MultiheadAttention:
            plain = layer.batch_first and layer._qkv_same_embed_dim and layer.bias_k is None
            if not plain or layer.add_zero_attn or not _untouched(layer.out_proj):
                continue
            twin = SplitAttention(layer)
            attention.append(name)
        elif type(layer) in (nn.LSTM, nn.GRU, nn.RNN) and layer.batch_first and not layer.proj_size:
            twin = SplitRecurrent(layer)
            recurrent.append(name)
        elif type(layer) is nn.MaxPool2d and (maxima := WindowMaxima.of(layer)):
            twin = maxima
        elif type(layer) is nn.Mish:
            twin = QuickMish()
        else:
            continue
        parent, _, last = name.rpartition(".")
        setattr(net.get_submodule(parent), last, twin.train(layer.training))
    return attention, recurrent


def split_slots(slots: Mapping[str, Slot], attention: list[str], recurrent: list[str]) -> dict[str, Slot]:
    """Return ``slots`` with the places of the linear layers of every replaced layer added."""
    places = dict(slots)
    for path in attention:
        for key in ("weight", "bias"):
            whole = slots.get(f"{path}.in_proj_{key}")
            if whole is None:
                continue
            places[f"{path}.fused.{key}"] = whole
            third = (whole.stop - whole.start) // 3
            shape = (whole.shape[0] // 3, *whole.shape[1:])
            for i, part in enumerate("qkv"):
                start = whole.start + i * third
                places[f"{path}.{part}.{key}"] = whole._replace(start=start, stop=start + third, shape=shape)
    for path in recurrent:
        for key, slot in slots.items():
            part, _, rest = key.removeprefix(f"{path}.").partition("_")
            if key.startswith(f"{path}.") and part in ("weight", "bias"):
                places[f"{path}.{rest}.{part}"] = slot
    return places


def _untouched(layer: nn.Module) -> bool:
    """Return whether a layer does what its class says: no hooks, and its class's own ``forward``."""
    forward = (layer._forward_hooks, layer._forward_pre_hooks)
    hooks = any((*forward, layer._backward_hooks, layer._backward_pre_hooks))
    return not hooks and "forward" not in layer.__dict__ and "parametrizations" not in layer._modules


class SplitAttention(nn.Module):
    """The same function as ``layer``, with the samples first, from linear layers that share its weights."""

    batch_first = True
    in_proj_bias = None  # tells nn.TransformerEncoderLayer not to go round this forward when it evaluates

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.dropout = layer.num_heads, layer.dropout
        weight, bias = layer.in_proj_weight, layer.in_proj_bias
        self.fused = _linear(weight, bias)
        thirds = [part.detach() for part in weight.chunk(3)]
        shifts = [None] * 3 if bias is None else [part.detach() for part in bias.chunk(3)]
        trains = (weight.requires_grad, bias is not None and bias.requires_grad)
        self.q, self.k, self.v = (_linear(w, b, *trains) for w, b in zip(thirds, shifts, strict=True))
        self.out_proj = _linear(layer.out_proj.weight, layer.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs and, if asked for, the weights of attention, as `nn.MultiheadAttention` does."""
        if query is key and key is value:
            q, k, v = (self._heads(part) for part in self.fused(query).chunk(3, -1))
        else:
            q, k, v = self._heads(self.q(query)), self._heads(self.k(key)), self._heads(self.v(value))
        mask = self._mask(q, key_padding_mask, attn_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            if dropout:
                weights = F.dropout(weights, dropout)
            heads = torch.matmul(weights, v)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)

    def _mask(self, q: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """What is added to the scores, (samples or 1, 1, 1 or queries, keys)."""
        mask = None
        if attention is not None:
            if attention.ndim != 2:
                raise NotPerSample("attn_mask has an axis for samples and heads together")
            mask = _additive(attention, q.dtype)
        if padding is not None:
            hidden = _additive(padding, q.dtype)[:, None, None, :]
            mask = hidden if mask is None else hidden + mask
        return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def _linear(
    weight: Tensor,
    bias: Tensor | None,
    trains: bool | None = None,
    bias_trains: bool | None = None,
    kind: type[nn.Linear] = nn.Linear,
) -> Any:
    """Return a linear layer over these weights, which it shares; it trains what they train, unless told."""
    layer = kind(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), weight.requires_grad if trains is None else trains)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), bias.requires_grad if bias_trains is None else bias_trains)
    return layer


class LastStates:
    """The last states of all layers: picked by number, since stacked they would have the samples second."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    def __getitem__(self, index: object) -> Any:
        if not isinstance(index, int) or isinstance(index, bool):
            raise NotPerSample(_SECOND_AXIS)
        return self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._states)

    def squeeze(self, dim: int = 0) -> Any:
        """Return the state of a single layer without the axis of layers."""
        if dim != 0 or len(self._states) != 1:
            raise NotPerSample(_SECOND_AXIS)
        return self._states[0]

    def __getattr__(self, name: str) -> Any:
        raise NotPerSample(f"'.{name}' of the last states, which have the samples on the second axis")


class SplitRecurrent(nn.Module):
    """The same function as a recurrent ``layer`` with the samples first, from layers that share its
    weights; it starts from zeros.
    """

    batch_first = True

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.num_layers, self.dropout = layer.num_layers, layer.dropout
        self.directions = 2 if layer.bidirectional else 1
        self.has_memory = type(layer) is nn.LSTM
        kind = layer.nonlinearity if isinstance(layer, nn.RNN) else type(layer).__name__.lower()
        parts: Any = layer._parameters
        for name in self._names():
            added = _linear(parts[f"weight_ih_{name}"], parts.get(f"bias_ih_{name}"), kind=RecurrentInput)
            own = _linear(parts[f"weight_hh_{name}"], parts.get(f"bias_hh_{name}"), kind=Recurrence)
            own.cell, own.backwards = kind, name.endswith("_reverse")
            self.add_module(f"ih_{name}", added)
            self.add_module(f"hh_{name}", own)

    def _names(self) -> list[str]:
        ends = ["", "_reverse"][: self.directions]
        return [f"l{k}{end}" for k in range(self.num_layers) for end in ends]

    def forward(self, x: Tensor, hx: object = None) -> tuple[Any, Any]:
        """Return outputs of all positions and the last states."""
        if hx is not None:
            raise NotPerSample("a recurrent layer starts from states that were given to it")
        if x.ndim != 3:
            raise NotPerSample("a recurrent layer takes the samples for another axis")
        last: list[Any] = []
        for k in range(self.num_layers):
            if k and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            ends = ["", "_reverse"][: self.directions]
            both = [self._run(x, f"l{k}{end}", bool(end)) for end in ends]
            last += [state for _, state in both]
            x = both[0][0] if len(both) == 1 else torch.cat([out for out, _ in both], dim=-1)
        final = LastStates([states[0] for states in last])
        return x, (final, LastStates([states[1] for states in last])) if self.has_memory else final

    def _run(self, x: Tensor, name: str, backwards: bool) -> tuple[Any, list[Any]]:
        added = self.get_submodule(f"ih_{name}")(x)
        outputs = self.get_submodule(f"hh_{name}")(added)
        return outputs[0], [states[:, 0 if backwards else -1] for states in outputs]
