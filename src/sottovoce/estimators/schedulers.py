"""The learning rates of a torch scheduler, read ahead: a plan states the rate of every step in advance."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Protocol, runtime_checkable

from sottovoce.algorithms.optimizers import RateTable
from sottovoce.errors import InvalidInput

# what a step uses besides the rate, and a scheduler may not change
FIXED = ("momentum", "betas", "weight_decay")


@runtime_checkable
class TorchScheduler(Protocol):
    """A learning rate scheduler of torch."""

    optimizer: Any
    last_epoch: int

    def step(self) -> None:
        """Go on by one."""


def scheduled_rates(scheduler: TorchScheduler, steps: int, steps_per_call: int = 1) -> RateTable:
    """Return the rate of each of ``steps`` steps, with a call of ``step()`` every ``steps_per_call`` of them.

    The scheduler and its optimizer are left as they are.
    """
    kind = type(scheduler).__name__
    if kind == "ReduceLROnPlateau":
        raise InvalidInput(
            "ReduceLROnPlateau follows a score, so its rates are not known before the run; take a schedule "
            "of steps such as CosineAnnealingLR, or early_stopping."
        )
    twin = copy.deepcopy(scheduler)
    groups = twin.optimizer.param_groups
    first = {key: [group.get(key) for group in groups] for key in FIXED}
    shares = _shares(groups)
    values: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that no optimizer step came first
        for k in range(steps):
            if k and k % steps_per_call == 0:
                try:
                    twin.step()
                except Exception as error:  # a schedule may be the caller's code
                    sentence = (str(error).strip() or kind).splitlines()[0].rstrip(".")
                    raise InvalidInput(
                        f"{kind} has no rate for step {k + 1} of {steps}: {sentence}."
                    ) from None
            values.append(float(groups[0]["lr"]))
            if any([group.get(key) for group in groups] != first[key] for key in FIXED):
                raise InvalidInput(f"{kind} changes the momentum too; set cycle_momentum=False.")
            if any(abs(a - b) > 1e-9 * b for a, b in zip(_shares(groups), shares, strict=True)):
                raise InvalidInput(f"{kind} moves the rates of parameter groups apart; give one for all.")
    if not max(values) > 0:
        raise InvalidInput(f"{kind} gives no positive learning rate in {steps} steps.")
    return RateTable(values)


def _shares(groups: list[dict[str, Any]]) -> list[float]:
    """Return the rate of every parameter group over that of the first."""
    first = float(groups[0]["lr"])
    return [float(group["lr"]) / first if first else 1.0 for group in groups]
