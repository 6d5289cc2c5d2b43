"""Multi-head attention as linear layers, which have stacked twins (`layers`).

`nn.MultiheadAttention` holds one matrix for queries, keys and values and calls one large function. Written
as linear layers, a split into heads and a product per head, its per-sample gradients cost what those of
linear layers cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.objectives.nets.per_sample_rules import NotPerSample


class SplitAttention(nn.Module):
    """The same function as ``layer``, with the samples first, from linear layers that share its weights."""

    batch_first = True
    in_proj_bias = None  # tells nn.TransformerEncoderLayer not to go round this forward when it evaluates

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.dropout = layer.num_heads, layer.dropout
        weight, bias = layer.in_proj_weight, layer.in_proj_bias
        self.fused = linear_of(weight, bias)
        thirds = [part.detach() for part in weight.chunk(3)]
        shifts = [None] * 3 if bias is None else [part.detach() for part in bias.chunk(3)]
        trains = (weight.requires_grad, bias is not None and bias.requires_grad)
        self.q, self.k, self.v = (linear_of(w, b, *trains) for w, b in zip(thirds, shifts, strict=True))
        self.out_proj = linear_of(layer.out_proj.weight, layer.out_proj.bias)

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


def linear_of(
    weight: Any, bias: Any, trains: bool | None = None, bias_trains: bool | None = None
) -> nn.Linear:
    """Return a linear layer over these weights, which it shares; it trains what they train, unless told."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), weight.requires_grad if trains is None else trains)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), bias.requires_grad if bias_trains is None else bias_trains)
    return layer


def split_attention(net: nn.Module) -> list[str]:
    """Replace every plain `nn.MultiheadAttention` with the samples first; return their paths."""
    paths = []
    for name, layer in list(net.named_modules()):
        if type(layer) is not nn.MultiheadAttention or not name:
            continue
        plain = (
            layer.batch_first
            and layer._qkv_same_embed_dim
            and layer.bias_k is None
            and not layer.add_zero_attn
        )
        if plain and untouched(layer) and untouched(layer.out_proj):
            replace_layer(net, name, SplitAttention(layer))
            paths.append(name)
    return paths


def untouched(layer: nn.Module) -> bool:
    """Whether a layer does what its class says: nothing is hooked to it, and its `forward` is its own."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return not any(hooks) and "forward" not in layer.__dict__ and not getattr(layer, "parametrizations", None)


def replace_layer(net: nn.Module, name: str, twin: nn.Module) -> None:
    """Put ``twin`` in the place of the layer at the path ``name``, in the same mode."""
    parent, _, last = name.rpartition(".")
    setattr(net.get_submodule(parent), last, twin.train(net.get_submodule(name).training))


def attention_slots(slots: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return ``slots`` with the places of the linear layers of every `SplitAttention` added."""
    places = dict(slots)
    for path in paths:
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
    return places
