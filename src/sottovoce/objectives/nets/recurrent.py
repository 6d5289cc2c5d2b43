"""Recurrent layers as a linear layer and a recursion, which have stacked twins (`layers`).

`nn.LSTM`, `nn.GRU` and `nn.RNN` call one large function that hides their steps. Written as a linear layer
over all positions and a recursion of the state (`recurrence`), their per-sample gradients cost what those of
linear layers cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.objectives.nets.attention import linear_of, replace_layer, untouched
from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.recurrence import Recurrence

KINDS = (nn.LSTM, nn.GRU, nn.RNN)


class LastStates:
    """The last states of all layers: picked by number, since stacked they would have the samples second."""

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
    """The same function as a recurrent ``layer`` with the samples first, from layers that share its
    weights; it starts from zeros.
    """

    batch_first = True

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.num_layers, self.dropout = layer.num_layers, layer.dropout
        self.directions = 2 if layer.bidirectional else 1
        self.has_memory = type(layer) is nn.LSTM
        kind = {nn.LSTM: "lstm", nn.GRU: "gru"}.get(type(layer)) or layer.nonlinearity
        for name in self._names():
            biases = [getattr(layer, f"bias_{part}_{name}", None) for part in ("ih", "hh")]
            setattr(self, f"ih_{name}", linear_of(getattr(layer, f"weight_ih_{name}"), biases[0]))
            own = getattr(layer, f"weight_hh_{name}")
            setattr(self, f"hh_{name}", Recurrence(kind, own, biases[1], name.endswith("_reverse")))

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
        final = LastStates([states[0] for states in last])
        return x, (final, LastStates([states[1] for states in last])) if self.has_memory else final

    def _run(self, x: Any, name: str, backwards: bool) -> tuple[Any, list[Any]]:
        outputs = getattr(self, f"hh_{name}")(getattr(self, f"ih_{name}")(x))
        return outputs[0], [states[:, 0 if backwards else -1] for states in outputs]


def split_recurrent(net: nn.Module) -> list[str]:
    """Replace every plain recurrent layer with the samples first; return their paths."""
    paths = []
    for name, layer in list(net.named_modules()):
        if type(layer) not in KINDS or not name or not layer.batch_first or layer.proj_size:
            continue
        if untouched(layer):
            replace_layer(net, name, SplitRecurrent(layer))
            paths.append(name)
    return paths


def recurrent_slots(slots: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return ``slots`` with the places of the linear layers of every `SplitRecurrent` added."""
    places = dict(slots)
    for path in paths:
        for key, slot in slots.items():
            part, _, rest = key.removeprefix(f"{path}.").partition("_")
            if key.startswith(f"{path}.") and part in ("weight", "bias"):
                places[f"{path}.{rest}.{part}"] = slot
    return places
