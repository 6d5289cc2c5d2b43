"""Networks: two of Bayrooti et al. 2023, and a small zoo that trains well under noise.

Bounded activations and group norms work well with per-sample clipping (Papernot et al. 2021, "Tempered
Sigmoid Activations"). No network has a layer that mixes samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sottovoce.errors import InvalidInput


def bayrooti_mnist() -> nn.Module:
    """Return the MNIST network of Bayrooti et al. 2023, for 32x32 inputs.

    conv 1->3, linear 588->64, linear 64->10, Mish.
    """
    return nn.Sequential(
        nn.Conv2d(1, 3, 5), nn.Mish(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(588, 64), nn.Mish(), nn.Linear(64, 10),
    )  # fmt: skip


class _Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return x + self.body(x)


def resnet9(classes: int = 100, channels: int = 3) -> nn.Module:
    """Return the ResNet-9 of Bayrooti et al. 2023, batch norms replaced by GroupNorm(16); 32x32 inputs."""

    def block(c_in: int, c_out: int, pool: bool = False) -> nn.Module:
        first = [nn.Conv2d(c_in, c_out, 3, padding=1), *([nn.MaxPool2d(2)] if pool else [])]
        return nn.Sequential(*first, nn.GroupNorm(16, c_out), nn.LeakyReLU(0.1))

    def residual(c: int) -> nn.Module:
        return _Residual(nn.Sequential(block(c, c), block(c, c)))

    return nn.Sequential(
        block(channels, 64),
        block(64, 128, pool=True), residual(128),
        block(128, 256, pool=True), residual(256),
        block(256, 512, pool=True), residual(512),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def tanh_cnn(classes: int = 10, channels: int = 1, side: int = 28) -> nn.Module:
    """Return the small convolutional network with tanh of Papernot et al. 2021."""
    after = ((side + 6 - 8) // 2 + 1) - 1
    after = ((after - 4) // 2 + 1) - 1
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * after * after, 32), nn.Tanh(), nn.Linear(32, classes),
    )  # fmt: skip


def mlp(inputs: int = 784, hidden: int = 64, classes: int = 10) -> nn.Module:
    """Return a network with one hidden tanh layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def linear(inputs: int, classes: int = 10) -> nn.Module:
    """Return a linear classifier, for features that need no learning."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "bayrooti_mnist": bayrooti_mnist, "resnet9": resnet9, "tanh_cnn": tanh_cnn, "mlp": mlp, "linear": linear,
}  # fmt: skip


def build(name: str, **options: int) -> nn.Module:
    """Return a model of the zoo by name."""
    if name not in MODELS:
        raise InvalidInput(f"model must be one of {', '.join(MODELS)}, got {name!r}.")
    return MODELS[name](**options)
