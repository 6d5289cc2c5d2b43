"""Pictures that nodes hold when gradient descent is attacked."""

from __future__ import annotations

import numpy as np

from sottovoce.errors import InvalidInput

__all__ = ["draw_pictures"]


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
