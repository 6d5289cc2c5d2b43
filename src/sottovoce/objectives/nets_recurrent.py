"""Recurrent layers taken apart into linear layers, which have twins (`nets_layers`).

`nn.LSTM`, `nn.GRU` and `nn.RNN` call one large function that hides their steps. Written as a linear layer
over all positions, a second one called at every position, and gates, their per-sample gradients cost what
those of linear layers cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.objectives.nets_attention import _linear
from sottovoce.objectives.per_sample import NotPerSample

__all__ = ["SplitRecurrent", "recurrent_slots", "split_recurrent"]

KINDS = (nn.LSTM, nn.GRU, nn.RNN)


class LastStates:
    """The last states of all layers: picked by number, since stacked they would have the samples second.

    Examples
    --------
    >>> LastStates([torch.zeros(3, 2), torch.ones(3, 2)])[-1].shape
    torch.Size([3, 2])
    """

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or isinstance(index, bool):
            raise NotPerSample("the last states of a recurrent layer have the samples on the second axis")
        return self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._states)

    def squeeze(self, dim: int = 0) -> Any:
        """Return the state of a single layer without the axis of layers."""
        if dim != 0 or len(self._states) != 1:
            raise NotPerSample("the last states of a recurrent layer have the samples on the second axis")
        return self._states[0]

    def __getattr__(self, name: str) -> Any:
        raise NotPerSample(f"'.{name}' of the last states, which have the samples on the second axis")


class SplitRecurrent(nn.Module):
    """The same function as a recurrent ``layer`` with the samples first, from linear layers that share its
    weights; it starts from zeros.

    Examples
    --------
    >>> layer, x = nn.GRU(3, 4, batch_first=True), torch.randn(2, 5, 3)
    >>> torch.allclose(SplitRecurrent(layer)(x)[0], layer(x)[0], atol=1e-6)
    True
    """

    batch_first = True

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.kind, self.hidden_size = type(layer), layer.hidden_size
        self.num_layers, self.dropout = layer.num_layers, layer.dropout
        self.directions = 2 if layer.bidirectional else 1
        self.activation = getattr(layer, "nonlinearity", "tanh")
        for name in self._names():
            for part in ("ih", "hh"):
                weight = getattr(layer, f"weight_{part}_{name}")
                bias = getattr(layer, f"bias_{part}_{name}", None)
                setattr(self, f"{part}_{name}", _linear(weight, bias))

    def _names(self) -> list[str]:
        ends = ["", "_reverse"][: self.directions]
        return [f"l{k}{end}" for k in range(self.num_layers) for end in ends]

    def forward(self, x: Any, hx: Any = None) -> tuple[Any, Any]:
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
        if self.kind is nn.LSTM:
            return x, (LastStates([h for h, _ in last]), LastStates([c for _, c in last]))
        return x, LastStates([h for h, _ in last])

    def _run(self, x: Any, name: str, backwards: bool) -> tuple[Any, Any]:
        inputs, step = getattr(self, f"ih_{name}")(x), getattr(self, f"hh_{name}")
        times = range(x.shape[1])
        h = c = x.new_zeros(x.shape[0], self.hidden_size)
        outs: list[Any] = []
        for t in reversed(times) if backwards else times:
            h, c = self._cell(inputs[:, t], step(h), h, c)
            outs.append(h)
        return torch.stack(outs[::-1] if backwards else outs, dim=1), (h, c)

    def _cell(self, a: Any, b: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """One position: what the input says, what the state says, state and memory."""
        if self.kind is nn.LSTM:
            i, f, g, o = (a + b).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        if self.kind is nn.GRU:
            (ra, za, na), (rb, zb, nb) = a.chunk(3, -1), b.chunk(3, -1)
            z = torch.sigmoid(za + zb)
            n = torch.tanh(na + torch.sigmoid(ra + rb) * nb)
            return n + z * (h - n), c
        return (torch.tanh if self.activation == "tanh" else torch.relu)(a + b), c


def split_recurrent(net: nn.Module) -> list[str]:
    """Replace every plain recurrent layer with the samples first; return their paths.

    Examples
    --------
    >>> split_recurrent(nn.ModuleDict({"cell": nn.LSTM(2, 3, batch_first=True), "old": nn.GRU(2, 3)}))
    ['cell']
    """
    found = []
    for name, layer in list(net.named_modules()):
        if type(layer) not in KINDS or not name or not layer.batch_first or layer.proj_size:
            continue
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
        if not hooks and "forward" not in layer.__dict__ and not getattr(layer, "parametrizations", None):
            parent = net.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], SplitRecurrent(layer).train(layer.training))
            found.append(name)
    return found


def recurrent_slots(slots: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return ``slots`` with the places of the linear layers of every `SplitRecurrent` added."""
    places = dict(slots)
    for path in paths:
        for key, slot in slots.items():
            part, _, rest = key.removeprefix(f"{path}.").partition("_")
            if key.startswith(f"{path}.") and part in ("weight", "bias"):
                places[f"{path}.{rest}.{part}"] = slot
    return places
