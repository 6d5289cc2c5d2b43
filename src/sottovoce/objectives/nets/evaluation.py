"""Quality of trained networks on public records."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets import checks
from sottovoce.objectives.nets.losses import TASKS, logits

if TYPE_CHECKING:
    from sottovoce.objectives.nets.objective import NetObjective


@torch.no_grad()
def evaluate(objective: NetObjective, rows: np.ndarray, data: AgentData) -> dict[str, float]:
    """Return the agents' mean loss on the public test set, and a score that fits the task.

    Classification: mean and least accuracy in percent. Yes-or-no labels: the percentage of right labels.
    Regression: the root of the mean squared error. A custom loss: accuracy if labels are whole numbers and
    the outputs have more numbers than one. Empty without a test set.
    """
    if data.test is None:
        return {}
    identical = bool((rows == rows[0]).all())
    inputs, targets = (t[0] for t in objective.paths.typed(data.test[0][None], data.test[1][None]))
    targets = targets.to(objective.device)
    task = TASKS.get(objective.loss)
    losses: list[float] = []
    scores: list[float] = []
    for outputs in objective.outputs(rows[:1] if identical else rows, inputs):
        losses.append(float(objective.loss(outputs, targets).double().mean()))
        score = _score(task, outputs, targets)
        if score is not None:
            scores.append(score)
    metrics = {"loss": float(np.mean(losses))}
    if (task is None and (targets.is_floating_point() or targets.ndim != 1)) or not scores:
        return metrics
    if task == "regression":
        return metrics | {"rmse": float(np.mean(scores))}
    return metrics | {"accuracy": float(np.mean(scores)), "accuracy_least": float(np.min(scores))}


def accuracy(objective: NetObjective, theta: Any, inputs: Tensor, targets: Tensor) -> np.ndarray:
    """Return the share of samples that each agent's network classifies correctly, (agents,)."""
    targets = targets.to(objective.device)
    shares = [_share_correct(outputs, targets) for outputs in objective.outputs(theta, inputs)]
    return np.array(shares)


def output_shape(objective: NetObjective, inputs: Tensor) -> tuple[int, ...] | None:
    """Return the shape of the output for one record like ``inputs``; None if the network cannot use it."""
    dtype = objective.paths.input_type(inputs[None, :1])
    x = checks.random_inputs(objective.network, (1, *inputs.shape[1:]), dtype).to(objective.device)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return tuple(_scores(copy.deepcopy(objective.network)(x)).shape[1:])
    except Exception:  # the first batch raises an error that explains the reason
        return None


def _score(task: str | None, outputs: Any, targets: Tensor) -> float | None:
    """Return the accuracy in percent or the root mean squared error; None if neither fits."""
    out = logits(outputs)
    if task == "regression":
        return float((out - targets.reshape(out.shape)).double().square().mean().sqrt())
    if task == "labels":
        return 100 * float(((out > 0) == (targets.reshape(out.shape) > 0.5)).double().mean())
    if task is None and not (torch.is_tensor(out) and out.ndim == 2 and out.shape[1] > 1):
        return None
    return 100 * _share_correct(out, targets)


def _share_correct(outputs: Any, targets: Tensor) -> float:
    return (_scores(outputs).argmax(-1) == targets).float().mean().item()


def _scores(outputs: Any) -> Tensor:
    """Return the tensor in which the largest number names the class."""
    outputs = logits(outputs)
    if not torch.is_tensor(outputs):
        raise InvalidInput(
            f"accuracy needs a network that gives one tensor of scores or a dict with 'logits', got "
            f"{type(outputs).__name__}; measure `losses` instead."
        )
    return outputs
