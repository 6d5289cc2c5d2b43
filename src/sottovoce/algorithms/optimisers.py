"""Learning rates over a run, and local optimisers as pure functions on one row per agent.

Everything here is post-processing of noisy gradients and costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput

__all__ = ["Optimiser", "OptimiserState", "Rate"]

Shape = Literal["constant", "geometric", "linear", "cosine"]


@dataclass(frozen=True)
class Rate:
    """A learning rate that moves from ``start`` to ``end`` over the run.

    Examples
    --------
    >>> [round(Rate(0.1, 0.001)(k, 3), 4) for k in range(3)]
    [0.1, 0.01, 0.001]
    >>> Rate(0.5)(7, 10)
    0.5
    """

    start: float
    end: float | None = None
    shape: Shape = "geometric"

    def __post_init__(self) -> None:
        _validate.positive(self.start, "the first learning rate")
        if self.end is not None:
            _validate.positive(self.end, "the last learning rate")
        if self.shape not in ("constant", "geometric", "linear", "cosine"):
            raise InvalidInput(f"shape must be constant, geometric, linear or cosine, got {self.shape!r}.")

    def __call__(self, k: int, steps: int) -> float:
        """Return the rate of step ``k`` of ``steps``."""
        if self.end is None or self.shape == "constant":
            return self.start
        share = k / max(steps - 1, 1)
        if self.shape == "geometric":
            return self.start * (self.end / self.start) ** share
        if self.shape == "linear":
            return self.start + (self.end - self.start) * share
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * share)) / 2

    @classmethod
    def of(cls, value: Any) -> Rate:
        """Return a rate from a number, a pair (start, end), a mapping or a rate."""
        if isinstance(value, Rate):
            return value
        if isinstance(value, dict):
            return cls(**value)
        if isinstance(value, (tuple, list)):
            return cls(*value)
        return cls(_validate.positive(value, "learning_rate"))


class OptimiserState(NamedTuple):
    """First and second moments (empty arrays where unused) and the number of steps taken.

    Examples
    --------
    >>> Optimiser("adam").init(np.zeros((2, 3), np.float32)).second.shape
    (2, 3)
    """

    first: np.ndarray
    second: np.ndarray
    taken: np.ndarray


@dataclass(frozen=True)
class Optimiser:
    """SGD, momentum or Adam on rows; the step is returned, not applied.

    Examples
    --------
    >>> sgd = Optimiser("sgd")
    >>> step, _ = sgd.step(sgd.init(np.zeros((1, 2))), np.array([[1.0, -2.0]]), rate=0.1)
    >>> step.tolist()
    [[0.1, -0.2]]
    """

    kind: Literal["sgd", "momentum", "adam"] = "sgd"
    beta: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "momentum", "adam"):
            raise InvalidInput(f"optimiser must be sgd, momentum or adam, got {self.kind!r}.")
        _validate.probability(self.beta, "beta", one=False)
        _validate.probability(self.beta2, "beta2", one=False)

    @classmethod
    def of(cls, value: Any) -> Optimiser:
        """Return an optimiser from a name, a mapping or an optimiser."""
        if isinstance(value, Optimiser):
            return value
        return cls(**value) if isinstance(value, dict) else cls(str(value))  # type: ignore[arg-type]

    def init(self, theta: np.ndarray) -> OptimiserState:
        """Return zero moments for rows shaped like ``theta``."""
        none = np.zeros((0,), theta.dtype)
        first = none if self.kind == "sgd" else np.zeros_like(theta)
        second = np.zeros_like(theta) if self.kind == "adam" else none
        return OptimiserState(first, second, np.zeros((), np.int64))

    def step(
        self, state: OptimiserState, gradient: np.ndarray, rate: float
    ) -> tuple[np.ndarray, OptimiserState]:
        """Return what to subtract from the parameters, and the next state."""
        count = state.taken + 1
        scale = gradient.dtype.type
        if self.kind == "sgd":
            return scale(rate) * gradient, state._replace(taken=count)
        if self.kind == "momentum":
            first = scale(self.beta) * state.first + gradient
            return scale(rate) * first, OptimiserState(first, state.second, count)
        first = scale(self.beta) * state.first + scale(1 - self.beta) * gradient
        second = scale(self.beta2) * state.second + scale(1 - self.beta2) * gradient * gradient
        m = first / scale(1 - self.beta ** int(count))
        v = second / scale(1 - self.beta2 ** int(count))
        return scale(rate) * m / (np.sqrt(v) + scale(self.epsilon)), OptimiserState(first, second, count)
