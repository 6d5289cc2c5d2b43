"""Losses of single records, and copies of networks and losses without state of earlier passes."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.errors import InvalidInput

PerSampleLoss = Callable[[Any, Tensor], Tensor]


def logits(outputs: object) -> Any:
    """Return the scores of a network that returns them in a dict or as an attribute, as Hugging Face's do."""
    if isinstance(outputs, dict):
        return outputs.get("logits", outputs)
    # a tensor that is being traced answers to any name, so only an attribute that is really there counts
    own = "logits" in getattr(outputs, "__dict__", ()) or hasattr(type(outputs), "logits")
    return getattr(outputs, "logits") if own else outputs  # noqa: B009, `object` has no such attribute


def cross_entropy(outputs: object, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (samples,)."""
    return nn.functional.cross_entropy(logits(outputs), targets, reduction="none")


def squared_error(outputs: object, targets: Tensor) -> Tensor:
    """Return half the squared error of each sample, (samples,)."""
    scores, targets = _same_axes(outputs, targets)
    return 0.5 * (scores - targets).flatten(1).square().sum(1)


def absolute_error(outputs: object, targets: Tensor) -> Tensor:
    """Return the absolute error of each sample, summed over its numbers, (samples,)."""
    scores, targets = _same_axes(outputs, targets)
    return (scores - targets).flatten(1).abs().sum(1)


def binary_cross_entropy(outputs: object, targets: Tensor) -> Tensor:
    """Return the mean logistic loss of each sample's yes-or-no labels, (samples,)."""
    scores, targets = _same_axes(outputs, targets)
    each = nn.functional.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")
    return each.flatten(1).mean(1)


def _same_axes(outputs: object, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and targets of one shape: (samples, 1) minus (samples,) would subtract every pair."""
    scores = logits(outputs)
    return scores, targets if scores.ndim == targets.ndim else targets.reshape(scores.shape)


LOSSES: dict[str, PerSampleLoss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
}
TASKS: dict[Any, str] = {
    cross_entropy: "classification",
    binary_cross_entropy: "labels",
    squared_error: "regression",
    absolute_error: "regression",
}


_TORCH_TASKS = {
    nn.CrossEntropyLoss: "classification",
    nn.BCEWithLogitsLoss: "labels",
    **dict.fromkeys((nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss), "regression"),
}


def custom_loss(loss: PerSampleLoss) -> tuple[PerSampleLoss, str]:
    """Return a loss of the caller's as one number per record, and the task that it fits."""
    if not callable(loss):
        raise InvalidInput(f"loss must be a name or a function of (outputs, targets), got {loss!r}.")
    if isinstance(loss, nn.Module) and "reduction" in vars(loss):
        return PerRecord(loss), _TORCH_TASKS.get(type(loss), "own")
    return loss, "own"


class PerRecord(nn.Module):
    """A loss module of torch as one number per record, whose mean over a batch is the module's mean."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = copy.deepcopy(loss)
        vars(self.loss)["reduction"] = "none"

    def forward(self, outputs: object, targets: Tensor) -> Tensor:
        scores = logits(outputs)
        if not isinstance(self.loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and scores.ndim != targets.ndim:
            targets = targets.reshape(scores.shape)
        if isinstance(self.loss, nn.BCEWithLogitsLoss):
            targets = targets.to(scores.dtype)
        each = self.loss(scores, targets)
        return each.flatten(1).mean(1) if each.ndim > 1 else each


class WeightedLoss(nn.Module):
    """A loss of single records times the public weight of their class; labels of 0 and 1 count as classes."""

    def __init__(self, loss: PerSampleLoss, weights: Sequence[float]) -> None:
        super().__init__()
        self.loss = fresh_loss(loss)
        self.weights = nn.Embedding(len(weights), 1, _weight=torch.tensor(weights)[:, None], _freeze=True)

    def forward(self, outputs: object, targets: Tensor) -> Tensor:
        each = self.loss(outputs, targets)
        classes = targets.reshape(each.shape).to(torch.int64)
        return each * self.weights(classes).reshape(each.shape).to(each.dtype)


def restore_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore afterwards the states of torch's generators on the host and on the device in use."""
    if device.type == "cpu" or not hasattr(getattr(torch, device.type, None), "get_rng_state"):
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


def sharing_copy(module: nn.Module) -> nn.Module:
    """Return a copy with state of its own, except that parameters are shared (buffers are not)."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


def fresh_loss(loss: PerSampleLoss) -> PerSampleLoss:
    """Return a loss without state of earlier calls: a function itself, else a copy."""
    if isinstance(loss, (types.FunctionType, types.BuiltinFunctionType)):
        return loss
    return sharing_copy(loss) if isinstance(loss, nn.Module) else copy.deepcopy(loss)
