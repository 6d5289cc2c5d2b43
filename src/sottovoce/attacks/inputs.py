"""From models on the wire to pictures: descent, gradients of everybody, inputs of everybody.

Each node holds one record. The attackers watch decentralized gradient descent, solve for the gradients
(`descent`), and turn every gradient back into the record it came from (`inversion`): in closed form for
softmax regression, by search for networks.

References: Bellet, talk "Privacy in decentralized machine learning", 2024, figures 4 and 5 (El Mrini,
Cyffers, Bellet 2024).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce import _validate
from sottovoce.attacks import inversion
from sottovoce.attacks.descent import GradientAttack, GradientFunction, gradient_attack, run_descent
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.protocols import LinearProtocol

if TYPE_CHECKING:
    from torch import Tensor, nn

SUCCESS = 10.0  # decibels: the threshold of the talk
ABOVE_GREY = 3.0  # decibels above the best picture of one grey, which alone often reaches that threshold


@dataclass(frozen=True, eq=False)
class InputAttack:
    """Records recovered from a descent: of every target, identifiable or not.

    The gradient of a node that is not identifiable is estimated as a mixture. Softmax regression has one row
    per class, so a mixture of gradients of different classes still gives the pictures away.

    ``inputs`` are NaN, ``labels`` -1 and ``psnr`` minus infinity for attackers and nodes that no message
    depends on; ``grey`` scores the best constant picture: what knowing nothing but its mean gives.
    """

    attack: GradientAttack
    inputs: np.ndarray
    labels: np.ndarray
    psnr: np.ndarray
    grey: np.ndarray

    @property
    def recovered(self) -> tuple[int, ...]:
        """Nodes whose record came back with a PSNR of at least ten."""
        return tuple(np.flatnonzero(self.psnr >= SUCCESS).tolist())

    @property
    def success_rate(self) -> float:
        """Share of the targets recovered."""
        return len(self.recovered) / len(self.attack.targets)

    @property
    def above_grey(self) -> tuple[int, ...]:
        """Nodes whose record came back at least three decibels better than the best picture of one grey."""
        return tuple(np.flatnonzero(self.psnr >= self.grey + ABOVE_GREY).tolist())

    def to_dict(self) -> dict[str, object]:
        """Return the JSON-ready form, without the pictures."""
        return {
            "attackers": list(self.attack.attackers),
            "steps": self.attack.steps,
            "identifiable": list(self.attack.identifiable),
            "recovered": list(self.recovered),
            "above_grey": list(self.above_grey),
            "count": len(self.recovered),
            "success_rate": self.success_rate,
            "psnr": [float(p) if np.isfinite(p) else None for p in self.psnr],
            "psnr_of_grey": self.grey.tolist(),
            "labels": self.labels.tolist(),
        }


def attack_softmax(
    averaging: Network | LinearProtocol,
    attackers: int | Iterable[int],
    images: np.ndarray,
    labels: np.ndarray,
    *,
    steps: int,
    learning_rate: float,
    rng: np.random.Generator | None = None,
    noise_std: float = 0.0,
    classes: int | None = None,
) -> InputAttack:
    """Attack softmax regression with bias, one picture per node, pixels in [0, 1].

    Small learning rates keep the gradients constant; Gaussian noise on every gradient lets the attack fail.
    """
    attack = gradient_attack(averaging, attackers, steps)
    pixels, wanted = _records(images, labels, attack.protocol.n)
    flat = pixels.reshape(len(pixels), -1)
    count = int(wanted.max()) + 1 if classes is None else _validate.count(classes, "classes")

    def invert(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = gradients.reshape(len(gradients), count, -1)
        inverted = inversion.invert_linear(rows[..., :-1], rows[..., -1])
        return np.clip(inverted.inputs, 0.0, 1.0).reshape(-1, *pixels.shape[1:]), inverted.labels

    start = np.zeros(count * (flat.shape[1] + 1))
    gradients = softmax_gradients(flat, wanted, count)
    return _attacked(attack, gradients, start, learning_rate, rng, noise_std, pixels, invert)


def attack_network(
    averaging: Network | LinearProtocol,
    attackers: int | Iterable[int],
    images: np.ndarray,
    labels: np.ndarray,
    model: nn.Module,
    *,
    steps: int,
    learning_rate: float,
    rng: np.random.Generator,
    noise_std: float = 0.0,
    **search: object,
) -> InputAttack:
    """Attack a torch network, one picture per node; the pictures are searched by their gradients.

    ``images`` are ``(n, channels, height, width)`` in [0, 1]; ``model`` carries the common first
    parameters; ``search`` goes to `invert_gradients`.
    """
    attack = gradient_attack(averaging, attackers, steps)
    pixels, wanted = _records(images, labels, attack.protocol.n)
    gradients, start = module_gradients(model, pixels, wanted)

    def invert(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        classes = inversion.labels_from_gradients(model, gradients)
        options: dict[str, Any] = {"rng": rng, "labels": classes, **search}
        return inversion.invert_gradients(model, gradients, pixels.shape[1:], **options)[0], classes

    return _attacked(attack, gradients, start, learning_rate, rng, noise_std, pixels, invert)


def draw_pictures(data: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return ``n`` different pictures, channels first, with values in [0, 1], and their labels."""
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = digits.images[:, None] / 16.0, digits.target
    elif data in ("mnist", "cifar10"):
        from sottovoce.data.images import load_images

        loaded = load_images(data)
        images, labels = loaded.x, loaded.y
    else:
        raise InvalidInput(f"pictures come from digits, mnist or cifar10, got {data!r}.")
    chosen = rng.choice(len(images), n, replace=False)
    picked = images[chosen].astype(np.float64)
    return picked / 255.0 if images.dtype == np.uint8 else picked, labels[chosen].astype(np.int64)


def softmax_gradients(images: np.ndarray, labels: np.ndarray, classes: int) -> GradientFunction:
    """Return the gradient function of softmax regression with bias, one record per node."""
    n, dim = images.shape
    target = np.eye(classes)[labels]

    def gradients(theta: np.ndarray, step: int) -> np.ndarray:
        weights = theta.reshape(n, classes, dim + 1)
        logits = (weights[:, :, :-1] @ images[:, :, None])[:, :, 0] + weights[:, :, -1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True) - target
        out = np.empty_like(weights)
        np.multiply(error[:, :, None], images[:, None], out=out[:, :, :-1])
        out[:, :, -1] = error
        return out.reshape(n, -1)

    return gradients


def module_gradients(
    model: nn.Module, images: np.ndarray, labels: np.ndarray
) -> tuple[GradientFunction, np.ndarray]:
    """Return the gradient function of a torch module in double precision, and its present parameters."""
    torch = inversion.required_torch()
    from torch.func import functional_call, grad, vmap

    double = copy.deepcopy(model).double()
    layout = [(name, p.shape, p.numel()) for name, p in double.named_parameters()]
    x, y = torch.as_tensor(images, dtype=torch.float64), torch.as_tensor(labels, dtype=torch.long)

    def loss(row: Tensor, image: Tensor, label: Tensor) -> Tensor:
        parts = torch.split(row, [size for _, _, size in layout])
        named = {name: part.view(shape) for (name, shape, _), part in zip(layout, parts, strict=True)}
        logits = functional_call(double, named, (image[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    each = vmap(grad(loss))

    def gradients(theta: np.ndarray, step: int) -> np.ndarray:
        return each(torch.as_tensor(theta), x, y).numpy()

    start = torch.cat([p.detach().flatten() for p in double.parameters()]).numpy()
    return gradients, start


def _records(images: np.ndarray, labels: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    pixels, wanted = np.asarray(images, dtype=np.float64), np.asarray(labels)
    if len(pixels) != n or wanted.shape != (n,) or pixels.ndim < 2:
        got = f"{pixels.shape} and {wanted.shape}"
        raise InvalidInput(f"the attack needs one picture and one label per node ({n}), got {got}.")
    return pixels, wanted.astype(np.int64)


def _attacked(
    attack: GradientAttack,
    gradients: GradientFunction,
    start: np.ndarray,
    learning_rate: float,
    rng: np.random.Generator | None,
    noise_std: float,
    truth: np.ndarray,
    invert: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> InputAttack:
    """Watch a descent, solve for the gradients of the nodes that are reached, and invert them."""
    models = np.tile(start, (len(truth), 1))
    seen = run_descent(attack, gradients, models, learning_rate, rng, noise_std)
    solved = list(attack.reached)
    estimates, labels = np.full(truth.shape, np.nan), np.full(len(truth), -1)
    estimates[solved], labels[solved] = invert(attack.gradients(seen, start, learning_rate)[solved])
    mean = truth.reshape(len(truth), -1).mean(axis=1)
    grey = np.broadcast_to(mean.reshape(-1, *[1] * (truth.ndim - 1)), truth.shape)
    scores = inversion.psnr(estimates, truth)
    return InputAttack(attack, estimates, labels, scores, inversion.psnr(grey, truth))
