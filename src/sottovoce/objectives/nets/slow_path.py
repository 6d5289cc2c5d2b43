"""Say once that gradients of a network are formed one record at a time: why, how much slower, what to do."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.objectives.nets.losses import fresh_loss, restore_generators, sharing_copy
from sottovoce.objectives.nets.objective import NetObjective

_RECORDS = 32
# what a reason speaks of -> what helps; the last line fits the rest
_CURES = {
    "the network itself": "hold its own parameters in layers, as nn.Embedding(1, width) for a learned token",
    "outside its layer": "hold the parameter in a layer, as nn.Embedding(1, width) for a learned token",
    "share a parameter": "give each layer its own, or freeze the shared one with requires_grad_(False)",
    "trains a part": "train all parameters of the layer, or freeze all of them with requires_grad_(False)",
    "has no float64": "take device='cpu' or device='cuda' for the fast path",
    "has no fast form": "use linear, convolutional, embedding, attention, recurrent or normalization layers "
    "of torch.nn in its place, or freeze it with requires_grad_(False)",
    "": "write that part with layers and functions of torch that act on each sample alone",
}


class SlowPath(UserWarning):
    """Gradients of a network are formed one record at a time, which is right and slow."""


def announce_slow_path(objective: NetObjective, inputs: Tensor, targets: Tensor) -> None:
    """Warn if sums of batches with these shapes, (agents, records, ...), are formed one record at a time.

    The factor is measured on random records: no private one is timed.
    """
    x, y = objective.paths.typed(inputs, targets)
    path = objective.paths.choose(x, y, objective.clip_norm)
    if path.trace is not None:
        return
    cure = next(words for phrase, words in _CURES.items() if phrase in path.reason)
    factor = _slowdown(objective, x, y)
    warnings.warn(
        f"{path.reason}, so gradients are formed one record at a time, about {factor:.0f} times as slow as "
        f"plain training; {cure}.",
        SlowPath,
        stacklevel=7,
    )


def _slowdown(objective: NetObjective, inputs: Tensor, targets: Tensor) -> float:
    """Return the time of single gradients over that of one backward pass of the same records."""
    forms = objective.forms
    x, y = forms.random_batch(inputs, targets, _RECORDS)
    module, loss, row = sharing_copy(forms.training), fresh_loss(forms.loss), forms.random_rows(1)[0]
    each = objective.paths.choose(inputs, targets, objective.clip_norm).each

    def plain() -> None:
        leaf = row.detach().clone().requires_grad_()
        with torch.enable_grad():
            total = loss(torch.func.functional_call(module, forms.named(leaf), (x,)), y).sum()
            torch.autograd.grad(total, leaf, allow_unused=True)

    with restore_generators(forms.device):
        try:
            batched = _seconds(plain)
        except Exception:  # a module that takes one sample at a time only
            return 1.0
        return max(1.0, _seconds(lambda: each(row, x, y)) / batched)


def _seconds(act: Callable[[], object]) -> float:
    """Return the time of the second call, which begins nothing."""
    act()
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
