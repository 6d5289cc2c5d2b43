"""Proximal maps."""

import numpy as np
import pytest

from sottovoce.objectives import Regularizer


@pytest.mark.parametrize(
    "regularizer",
    [Regularizer(l1=0.3), Regularizer(l2=0.5), Regularizer(0.2, 0.4), Regularizer(0.2, 0.4, box=0.5),
     Regularizer(0.2, 0.4, ball=0.7), Regularizer(0.2, 0.4, intercepts=2),
     Regularizer(0.2, 0.4, ball=0.3, intercepts=1), Regularizer(0.2, 0.4, box=0.1, intercepts=1)],
)  # fmt: skip
def test_prox_is_the_minimizer(regularizer):
    rng = np.random.default_rng(6)
    v, step = rng.normal(size=4), 0.6
    w = regularizer.prox(v, step)

    def value(z):
        return regularizer.value(z) + ((z - v) ** 2).sum() / (2 * step)

    for _ in range(500):
        z = w + rng.normal(scale=0.05, size=4)
        if regularizer.box is not None:
            z = np.clip(z, -regularizer.box, regularizer.box)
        if regularizer.ball is not None:
            z *= min(1.0, regularizer.ball / np.linalg.norm(z))
        assert value(z) >= value(w) - 1e-12
