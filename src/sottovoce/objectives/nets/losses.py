"""Losses of torch, taken record by record."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn


class PerRecord(nn.Module):
    """A loss module of torch as one number per record: what its mean over a lot would be the mean of."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = copy.deepcopy(loss)
        self.loss.reduction = "none"

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        if isinstance(outputs, dict) and "logits" in outputs:
            outputs = outputs["logits"]
        if not isinstance(self.loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and outputs.ndim != targets.ndim:
            targets = targets.reshape(outputs.shape)
        if isinstance(self.loss, nn.BCEWithLogitsLoss):
            targets = targets.to(outputs.dtype)
        each = self.loss(outputs, targets)
        return each.flatten(1).mean(1) if each.ndim > 1 else each
