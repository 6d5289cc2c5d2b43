"""Per-sample gradients of any module, one record at a time.

The gradient of a record is computed from that record, the parameters and a fresh copy of the module and of
the loss, so it is a function of one record for every module: statistics over the batch are statistics of one,
and buffers or counters that a pass writes are discarded with the copy.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.trace import sharing_copy


class OneByOne:
    """Gradients of ``loss(module(x[None]), y[None])`` for each record, as rows.

    Parameters
    ----------
    module : in the mode it is to run in; left as it is.
    loss : ``(outputs, targets) -> (samples,)``.
    named : makes a dict of parameters by name from a row.
    """

    def __init__(
        self, module: nn.Module, loss: Callable[..., Any], named: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        self.module, self.loss, self.named = module, loss, named

    def _loss_of(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        module, loss = sharing_copy(self.module), fresh_loss(self.loss)

        def loss_of(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(module, self.named(row), (x[None],))
            value = loss(out, y[None])
            if value.shape != (1,):
                raise InvalidInput(
                    f"the loss must give one number per sample, shape (1,) for one sample, got "
                    f"{tuple(value.shape)}; use reduction='none'."
                )
            return value.sum()

        return loss_of

    def loop(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients (samples, parameters), each from a pass and a copy of its own."""
        rows = []
        for x, y in zip(inputs, targets, strict=True):
            leaf = row.detach().clone().requires_grad_()
            with torch.enable_grad():
                loss = self._loss_of()(leaf, x, y)
                gradient = None
                if loss.requires_grad:
                    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
            rows.append(torch.zeros_like(row) if gradient is None else gradient)
        return torch.stack(rows) if rows else row.new_zeros(0, len(row))

    def mapped(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same by `torch.func`, the records side by side; some modules refuse."""
        each = torch.func.vmap(torch.func.grad(self._loss_of()), in_dims=(None, 0, 0), randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return each(row, inputs, targets)


def fresh_loss(loss: Any) -> Any:
    """Return a loss without state of earlier calls: a function itself, else a copy."""
    if isinstance(loss, (types.FunctionType, types.BuiltinFunctionType)):
        return loss
    return sharing_copy(loss) if isinstance(loss, nn.Module) else copy.deepcopy(loss)
