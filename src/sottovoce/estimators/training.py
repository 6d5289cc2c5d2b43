"""How a model is trained: the options of `sottovoce.fit` about steps, batches, rates and the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from sottovoce import _validate
from sottovoce.accounting.budget import Budget
from sottovoce.algorithms.optimizers import Optimizer, Rate, RateTable
from sottovoce.errors import InvalidInput
from sottovoce.estimators.schedulers import TorchScheduler, scheduled_rates
from sottovoce.models.adapters import LinearAdapter, ModelOptions
from sottovoce.objectives.base import Objective
from sottovoce.runners.stopping import EarlyStopping

# options of torch optimizers: those that are not supported, and those that all groups share
UNSUPPORTED = ("amsgrad", "maximize", "dampening", "centered")
SHARED = ("momentum", "nesterov", "betas", "eps")


@runtime_checkable
class TorchOptimizer(Protocol):
    """An optimizer of torch."""

    param_groups: list[dict[str, Any]]


@runtime_checkable
class HasLayout(Protocol):
    """An objective whose rows hold named parameters: a network."""

    layout: Sequence[Any]


@dataclass(frozen=True)
class TrainingOptions(ModelOptions):
    """How a model is trained.

    Parameters
    ----------
    steps : number of steps; by default 100, and for a linear model as many as the budget allows (10 to 40).
    epochs : passes over the data instead of ``steps``; needs ``batch_size``.
    batch_size : expected records of a node in a step; None takes all of them in every step.
    learning_rate : a number, a pair (first, last), or
        ``{"start": .5, "end": .01, "shape": "cosine", "warmup": .1}``; by default 0.01 for adam and adamw and
        0.5 else. Or a torch scheduler, whose ``step`` is called after every step, and after every pass over
        the data with ``{"scheduler": scheduler, "interval": "epoch"}``. A linear model needs none: without
        one it is fitted by `ConsensusNewton`.
    optimizer : a name, ``{"name": "AdamW", "weight_decay": .01}``, or a torch optimizer.
    clip_norm : l2 bound of one record's gradient (of one node's with adjacency ``"user"``); by default 1, and
        for a linear model what suits the budget.
    noise_multiplier : noise over the clip norm, instead of a budget.
    loss : ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, ``"absolute_error"``, a torch
        loss, or a function (outputs, targets) -> one number per record; by default what fits the labels.
    initial : ``"keep"`` starts from the module's weights, ``"reset"`` from new ones.
    classes : public class names, in order.
    class_weight : how much the loss of a record counts by its class: ``{"no": 1, "yes": 9}``, or weights in
        the order of the classes, both public; or ``"balanced"``, which weights every class by one over its
        public share, ``class_shares``. Weighted gradients are clipped like others: the guarantee stays.
    physical_batch, device : records through the network at a time (None: as many as fit into about 256 MB),
        and where.
    evaluate_every : steps between two entries of the history; by default a twentieth of the steps.
    early_stopping : ends training when a score on public test records no longer improves: an `EarlyStopping`,
        or the number of evaluations without improvement of the loss.

    Examples
    --------
    >>> TrainingOptions(epochs=2, batch_size=10).steps_for((50, 50))
    10
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: float | None = None
    learning_rate: float | tuple[float, float] | dict[str, Any] | Rate | RateTable | TorchScheduler | None = (
        None
    )
    optimizer: str | dict[str, Any] | Optimizer | TorchOptimizer = "sgd"
    noise_multiplier: float | None = None
    classes: Sequence[object] | None = None
    evaluate_every: int | None = None
    early_stopping: EarlyStopping | int | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every is not None:
            _validate.count(self.evaluate_every, "evaluate_every")

    def steps_for(self, sizes: Sequence[int]) -> int:
        """Return the number of steps for nodes with so many records."""
        if self.epochs is None:
            return 100 if self.steps is None else self.steps
        if self.steps is not None or self.batch_size is None:
            raise InvalidInput(
                "epochs goes with batch_size and without steps: it means epochs * records / batch_size steps."
            )
        return max(1, math.ceil(_validate.positive(self.epochs, "epochs") * self._steps_per_pass(sizes)))

    def _steps_per_pass(self, sizes: Sequence[int]) -> float:
        """Return how many steps see as many records as there are."""
        if self.batch_size is None:
            return 1.0
        return sum(sizes) / (_validate.positive(self.batch_size, "batch_size") * len(sizes))

    @property
    def stopping_rule(self) -> EarlyStopping | None:
        """The rule of early stopping, None without one."""
        rule = self.early_stopping
        return EarlyStopping(patience=rule) if isinstance(rule, int) else rule

    @property
    def needs_rate(self) -> bool:
        """Whether these options name a method with a learning rate."""
        return self.learning_rate is not None or self.optimizer != "sgd"

    def newton_options(self, adapter: LinearAdapter, budget: Budget) -> dict[str, object]:
        """Return the options of a `ConsensusNewton` plan, without noise; those not stated suit the budget."""
        stated: dict[str, object] = {
            "clip_norm": self.clip_norm,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "optimizer": None if self.optimizer == "sgd" else self.optimizer,
        }
        if self.steps is not None or self.epochs is not None:
            stated["steps"] = self.steps_for(adapter.sizes)
        stated = {name: value for name, value in stated.items() if value is not None}
        return {**adapter.newton_options(budget), "sizes": adapter.sizes, **stated}

    def plan_options(self, sizes: Sequence[int], objective: Objective) -> dict[str, object]:
        """Return the options of a plan, without noise."""
        optimizer, learning_rate = self.optimizer, self.learning_rate
        steps = self.steps_for(sizes)
        scheduler, calls = self._scheduler(sizes)
        if scheduler is not None:
            if optimizer == "sgd":
                optimizer = scheduler.optimizer
            if optimizer is not scheduler.optimizer:
                raise InvalidInput("the scheduler belongs to another optimizer; make it for this one.")
            learning_rate = scheduled_rates(scheduler, steps, calls)
        groups: tuple[tuple[int, int, float, float], ...] = ()
        if isinstance(optimizer, TorchOptimizer):
            first = optimizer.param_groups[0]
            for key in UNSUPPORTED:
                if any(group.get(key) for group in optimizer.param_groups):
                    raise InvalidInput(f"the torch optimizer's {key} is not supported; leave it off.")
            learning_rate = float(first["lr"]) if learning_rate is None else learning_rate
            groups = _parameter_groups(optimizer.param_groups, objective)
            options = {key: first[key] for key in (*SHARED, "weight_decay") if key in first}
            optimizer = {"name": type(optimizer).__name__, **options}
        chosen = replace(Optimizer.from_value(optimizer), groups=groups)
        if learning_rate is None:
            learning_rate = 0.01 if chosen.kind in ("adam", "adamw") else 0.5
        return {
            "steps": steps,
            "clip_norm": 1.0 if self.clip_norm is None else self.clip_norm,
            "sizes": tuple(sizes),
            "batch_size": self.batch_size,
            "optimizer": chosen,
            "learning_rate": learning_rate,
        }

    def _scheduler(self, sizes: Sequence[int]) -> tuple[TorchScheduler | None, int]:
        """Return the torch scheduler, if there is one, and the steps between two calls of it."""
        rate = self.learning_rate
        if isinstance(rate, TorchScheduler):
            return rate, 1
        if not isinstance(rate, dict) or "scheduler" not in rate:
            return None, 1
        interval = rate.get("interval", "step")
        if interval not in ("step", "epoch") or not isinstance(rate["scheduler"], TorchScheduler):
            raise InvalidInput(
                'learning_rate must be {"scheduler": a torch scheduler, "interval": "step" or "epoch"}, got '
                f"interval {interval!r} and {type(rate['scheduler']).__name__}."
            )
        return rate["scheduler"], 1 if interval == "step" else max(1, round(self._steps_per_pass(sizes)))


def _parameter_groups(
    groups: Sequence[Mapping[str, Any]], objective: Objective
) -> tuple[tuple[int, int, float, float], ...]:
    """Return (start, stop, factor of the rate, weight decay) of each parameter, in a row's order; of one
    group nothing."""
    first = groups[0]
    for key in SHARED:
        if any(group.get(key) != first.get(key) for group in groups):
            raise InvalidInput(f"parameter groups may differ in lr and weight_decay, not in {key}.")
    trained = [(group, p) for group in groups for p in group["params"] if p.requires_grad]
    layout = objective.layout if isinstance(objective, HasLayout) else []
    held, own = [tuple(p.shape) for _, p in trained], [slot.shape for slot in layout]
    if (held != own) if len(groups) > 1 else (sorted(held) != sorted(own) and layout):
        raise InvalidInput(
            "the groups of the torch optimizer must hold the module's trainable parameters, all of them, in "
            "their order; freeze the others with requires_grad_(False)."
        )
    if len(groups) == 1:
        return ()
    _validate.positive(float(first["lr"]), "the rate of the first parameter group")
    pairs = zip(trained, layout, strict=True)
    return tuple(
        (slot.start, slot.stop, float(group["lr"]) / float(first["lr"]), float(group["weight_decay"]))
        for (group, _), slot in pairs
    )
