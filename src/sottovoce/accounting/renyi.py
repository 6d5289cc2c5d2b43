"""Conversion of Rényi losses to epsilon and delta; `loss_parts` computes the losses themselves.

The Rényi divergence of each mechanism is its `sottovoce.accounting.loss_parts.LossPart.rdp`, that of the
sampled Gaussian `SampledGaussian.rdp`; `sottovoce.accounting.curve.Curve.rdp` adds them up.

Every order gives a valid bound, so the smallest over any set of orders is valid. The conversion is
Proposition 12 of Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", 2020. It is an
upper bound, not exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sottovoce import _validate

RenyiLoss = Callable[[float], float] | tuple[Sequence[float], Sequence[float]]  # of alpha; orders, values

# dense where losses of practical size have their optimum, geometric beyond
ORDERS: tuple[float, ...] = (
    *(1 + k / 100 for k in (1, 2, 3, 5, 7)),
    *(1 + k / 10 for k in range(1, 100)),
    *(float(k) for k in range(11, 65)),
    *(float(k) for k in (72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)),
    *(1024.0 * 2**k for k in range(1, 11)),
)


def rdp_epsilon(loss: RenyiLoss, delta: float) -> float:
    """Convert a Rényi loss into epsilon at ``delta``; an infinite loss at every order gives infinity."""
    log_delta = math.log(_validate.delta(delta))

    def epsilon(alpha: float, value: float) -> float:
        return value + math.log1p(-1 / alpha) - (log_delta + math.log(alpha)) / (alpha - 1)

    return max(0.0, _least(loss, epsilon))


def rdp_delta(loss: RenyiLoss, epsilon: float) -> float:
    """Convert a Rényi loss into delta at ``epsilon``, at most 1."""
    epsilon = _validate.non_negative(epsilon, "epsilon")

    def log_delta(alpha: float, value: float) -> float:
        return (alpha - 1) * (value - epsilon + math.log1p(-1 / alpha)) - math.log(alpha)

    return math.exp(min(0.0, _least(loss, log_delta)))


def _least(loss: RenyiLoss, bound: Callable[[float, float], float]) -> float:
    """Minimize ``bound(alpha, loss(alpha))`` over the table, or over the grid with one refinement."""

    def bound_at(alpha: float, value: float) -> float:
        result = bound(alpha, value)
        return math.inf if math.isnan(result) else result  # no order may help by being undefined

    if not callable(loss):
        finite = ((a, v) for a, v in zip(*loss, strict=True) if 1 < a < math.inf)
        return min((bound_at(a, v) for a, v in finite), default=math.inf)
    bounds = [bound_at(alpha, loss(alpha)) for alpha in ORDERS]
    best = int(np.argmin(bounds))
    least = bounds[best]
    if not math.isfinite(least):
        return least
    low, high = ORDERS[max(best - 1, 0)], ORDERS[min(best + 1, len(ORDERS) - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(24):  # golden section; every order visited is valid, so the least counts
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = bound_at(left, loss(left)), bound_at(right, loss(right))
        least = min(least, at_left, at_right)
        low, high = (low, right) if at_left < at_right else (left, high)
    return least
