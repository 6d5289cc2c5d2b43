"""From a gradient back to the record it was computed on.

A linear layer with bias gives its input away in closed form: its gradients are
:math:`\\partial L/\\partial W_k = \\delta_k x` and :math:`\\partial L/\\partial b_k = \\delta_k`, so
:math:`x = (\\partial L/\\partial W_k) / (\\partial L/\\partial b_k)` for any class with
:math:`\\delta_k \\neq 0`. For deeper models an image is searched whose gradient points the same way:

.. math:: \\min_{x \\in \\text{box}} 1 - \\frac{\\langle \\nabla\\ell(x), g \\rangle}
          {\\|\\nabla\\ell(x)\\| \\|g\\|} + \\tau\\, TV(x)

References: [1] Geiping, Bauermeister, Dröge, Moeller 2020, Proposition 3.1 and equation (4).
[2] Bellet, talk "Privacy in decentralized machine learning", 2024 (success: PSNR of at least 10).
Departures from [1]: all targets are searched together as one batch, from one start.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    from torch import Tensor, nn


class LinearInversion(NamedTuple):
    """Inputs and labels recovered from the gradients of a linear layer."""

    inputs: np.ndarray
    labels: np.ndarray


def invert_linear(weight_gradient: np.ndarray, bias_gradient: np.ndarray) -> LinearInversion:
    """Return the input of a linear or softmax layer from its gradient, in closed form.

    The gradients are ``(..., classes, dim)`` and ``(..., classes)``, the inputs ``(..., dim)``. The labels
    ``(...)`` are, for a softmax layer with cross-entropy, the class whose bias gradient is negative. A
    gradient averaged over several records gives a weighted mix of them; a zero gradient carries nothing and
    gives NaN.
    """
    weights, bias = np.asarray(weight_gradient, dtype=np.float64), np.asarray(bias_gradient, np.float64)
    if weights.ndim < 2 or weights.shape[:-1] != bias.shape:
        raise InvalidInput(
            "a weight gradient of shape (..., classes, dim) needs a bias gradient of shape (..., classes), "
            f"got {weights.shape} and {bias.shape}."
        )
    strongest = np.argmax(np.abs(bias), axis=-1)[..., None]
    numerator = np.take_along_axis(weights, strongest[..., None], axis=-2)[..., 0, :]
    denominator = np.take_along_axis(bias, strongest, axis=-1)
    inputs = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=inputs, where=denominator != 0)
    return LinearInversion(inputs, np.argmin(bias, axis=-1))


def psnr(estimate: np.ndarray, truth: np.ndarray, data_range: float = 1.0) -> np.ndarray:
    """Return the peak signal-to-noise ratio in decibels of every image; NaN scores minus infinity."""
    a, b = np.asarray(estimate, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if a.shape != b.shape or a.ndim < 1:
        raise InvalidInput(f"estimate and truth must have the same shape, got {a.shape} and {b.shape}.")
    error = np.mean(((a - b) ** 2).reshape(len(a), -1), axis=1)
    with np.errstate(divide="ignore"):
        score = 10 * np.log10(_validate.positive(data_range, "data_range") ** 2 / error)
    return np.where(np.isnan(error), -np.inf, score)


def invert_gradients(
    model: nn.Module,
    gradients: np.ndarray,
    shape: tuple[int, ...],
    *,
    rng: np.random.Generator,
    labels: np.ndarray | None = None,
    iterations: int = 4800,
    learning_rate: float = 0.1,
    tv: float = 1e-2,
    box: tuple[float, float] = (0.0, 1.0),
) -> tuple[np.ndarray, np.ndarray]:
    """Search images whose cross-entropy gradients point along the given ones (Geiping et al.).

    Returned are the images ``(n, *shape)`` and the cosine distances ``(n,)`` reached.

    Parameters
    ----------
    model : a torch module mapping ``(batch, *shape)`` to logits; its parameters are where the gradients
        were taken.
    gradients : ``(n, parameters)`` in the order of ``model.parameters()``.
    labels : one class per gradient; by default read off the last bias (the negative entry).
    iterations, learning_rate : of Adam, with the rate divided by ten at 3/8, 5/8 and 7/8 of the run.
    tv, box : weight of the total variation, and bounds of the pixels.
    """
    torch = required_torch()
    targets = torch.as_tensor(np.atleast_2d(gradients), dtype=torch.float32)
    total = sum(p.numel() for p in model.parameters())
    if targets.shape[1] != total:
        raise InvalidInput(f"gradients must have {total} columns, one per parameter, got {targets.shape[1]}.")
    if labels is None:
        labels = labels_from_gradients(model, gradients)
    classes = torch.as_tensor(np.asarray(labels), dtype=torch.long)
    targets = targets / targets.norm(dim=1, keepdim=True).clamp_min(1e-30)
    distance = _cosine_distance(model, targets, classes)
    milestones = [iterations * k // 8 for k in (3, 5, 7)]

    start = rng.uniform(*box, size=(len(targets), *shape)).astype(np.float32)
    images = torch.as_tensor(start).requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(iterations):
        objective = distance(images) + tv * _variation(images)
        (images.grad,) = torch.autograd.grad(objective.sum(), images)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(*box)
    with torch.no_grad():
        return images.numpy(), distance(images).numpy()


def labels_from_gradients(model: nn.Module, gradients: np.ndarray) -> np.ndarray:
    """Return the class of each record: the negative entry of the last bias gradient."""
    parameters = list(model.named_parameters())
    name, last = parameters[-1]
    if not name.endswith("bias"):
        raise InvalidInput(
            f"the label is read off the gradient of the last bias, but the last parameter is {name!r}; "
            "give labels=."
        )
    return np.argmin(np.atleast_2d(gradients)[:, -last.numel() :], axis=1)


def _cosine_distance(model: nn.Module, targets: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function from images to the cosine distances of their gradients from the targets."""
    torch = required_torch()
    from torch.func import functional_call, grad, vmap

    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, params, (image[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    per_image = vmap(grad(loss), in_dims=(None, 0, 0))

    def distance(images: Tensor) -> Tensor:
        parts = per_image(parameters, images, labels)
        flat = torch.cat([p.reshape(len(images), -1) for p in parts.values()], dim=1)
        return 1 - (flat * targets).sum(1) / flat.norm(dim=1).clamp_min(1e-30)

    return distance


def _variation(x: Tensor) -> Tensor:
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    return across + down


def required_torch() -> ModuleType:
    """Return torch, or say what to install."""
    try:
        import torch
    except ImportError:
        raise MissingDependency(
            "searching images by their gradients needs torch; install sottovoce[deep]."
        ) from None
    return torch
