"""How a model is trained: the options of `sottovoce.fit` about steps, batches, rates and the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sottovoce import _validate
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.errors import InvalidInput

UNSUPPORTED = ("amsgrad", "maximize", "dampening", "centered")  # options of torch optimizers


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained.

    Parameters
    ----------
    steps : number of steps; 100 by default.
    epochs : passes over the data instead of ``steps``; needs ``batch_size``.
    batch_size : expected records of a node in a step; None takes all of them in every step.
    learning_rate : a number, a pair (first, last), or
        ``{"start": .5, "end": .01, "shape": "cosine", "warmup": .1}``; by default 0.01 for adam and adamw and
        0.5 else.
    optimizer : a name, ``{"name": "AdamW", "weight_decay": .01}``, or a torch optimizer.
    clip_norm : l2 bound of one record's gradient (of one node's with adjacency ``"user"``).
    noise_multiplier : noise over the clip norm, instead of a budget.
    loss : ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, ``"absolute_error"``, a torch
        loss, or a function (outputs, targets) -> one number per record; by default what fits the labels.
    initial : ``"keep"`` starts from the module's weights, ``"reset"`` from new ones.
    classes : public class names, in order.
    physical_batch, device : records through the network at a time, and where.
    evaluate_every : steps between two entries of the history; by default a twentieth of the steps.

    Examples
    --------
    >>> TrainingOptions(epochs=2, batch_size=10).steps_for((50, 50))
    10
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: float | None = None
    learning_rate: Any = None
    optimizer: Any = "sgd"
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    loss: Any = None
    initial: Literal["keep", "reset"] = "keep"
    classes: Sequence[Any] | None = None
    physical_batch: int = 4096
    device: str = "cpu"
    evaluate_every: int | None = None

    def steps_for(self, sizes: Sequence[int]) -> int:
        """Return the number of steps for nodes with so many records."""
        if self.epochs is None:
            return 100 if self.steps is None else self.steps
        if self.steps is not None or self.batch_size is None:
            raise InvalidInput(
                "epochs goes with batch_size and without steps: it means epochs * records / batch_size steps."
            )
        epochs = _validate.positive(self.epochs, "epochs")
        batch_size = _validate.positive(self.batch_size, "batch_size")
        return max(1, math.ceil(epochs * sum(sizes) / (batch_size * len(sizes))))

    def plan_options(self, sizes: Sequence[int], objective: Any) -> dict[str, Any]:
        """Return the options of a plan, without noise."""
        optimizer, learning_rate = self._optimizer(objective)
        return {
            "steps": self.steps_for(sizes),
            "clip_norm": self.clip_norm,
            "sizes": tuple(sizes),
            "batch_size": self.batch_size,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
        }

    def _optimizer(self, objective: Any) -> tuple[Optimizer, Any]:
        """Return optimizer and rate; a torch optimizer has both, and its parameter groups."""
        optimizer, learning_rate = self.optimizer, self.learning_rate
        groups: tuple[tuple[int, int, float, float], ...] = ()
        if hasattr(optimizer, "param_groups"):
            torch_groups = optimizer.param_groups
            first = {key: value for key, value in torch_groups[0].items() if key != "params"}
            for key in UNSUPPORTED:
                if any(group.get(key) for group in torch_groups):
                    raise InvalidInput(f"the torch optimizer's {key} is not supported; leave it off.")
            learning_rate = float(first["lr"]) if learning_rate is None else learning_rate
            known = ("momentum", "nesterov", "betas", "eps", "weight_decay")
            if len(torch_groups) > 1:
                groups = _parameter_groups(torch_groups, first, objective)
            options = {key: value for key, value in first.items() if key in known}
            optimizer = {"name": type(optimizer).__name__, **options}
        chosen = replace(Optimizer.from_value(optimizer), groups=groups)
        if learning_rate is None:
            learning_rate = 0.01 if chosen.kind in ("adam", "adamw") else 0.5
        return chosen, learning_rate


def _parameter_groups(
    groups: Sequence[Mapping[str, Any]], first: Mapping[str, Any], objective: Any
) -> tuple[tuple[int, int, float, float], ...]:
    """Return (start, stop, factor of the rate, weight decay) of each parameter, in a row's order."""
    for group in groups[1:]:
        for key in ("momentum", "nesterov", "betas", "eps"):
            if group.get(key) != first.get(key):
                raise InvalidInput(f"parameter groups may differ in lr and weight_decay, not in {key}.")
    shapes = [tuple(p.shape) for group in groups for p in group["params"] if p.requires_grad]
    if shapes != [slot.shape for slot in objective.layout]:
        raise InvalidInput(
            "the groups of the torch optimizer must hold the module's trainable parameters, all of them, in "
            "their order; freeze the others with requires_grad_(False)."
        )
    slots = iter(objective.layout)
    ranges = []
    for group in groups:
        factor = float(group["lr"]) / float(first["lr"])
        for slot in [next(slots) for p in group["params"] if p.requires_grad]:
            ranges.append((slot.start, slot.stop, factor, float(group["weight_decay"])))
    return tuple(ranges)
