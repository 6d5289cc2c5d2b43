"""Learning rates over a run, and local optimizers as pure functions on one row per agent.

Everything here is post-processing of noisy gradients and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.protocols.linear import LONG

Shape = Literal["constant", "geometric", "linear", "cosine"]


@dataclass(frozen=True)
class Rate:
    """A learning rate that moves from ``start`` to ``end`` over the run, after an optional warm-up.

    Parameters
    ----------
    start, end : first and last rate; without ``end`` it stays.
    shape : how it moves between them.
    warmup : share of the run over which the rate first rises linearly from nothing to ``start``.

    Examples
    --------
    >>> [round(Rate(0.1, 0.001)(k, 3), 4) for k in range(3)]
    [0.1, 0.01, 0.001]
    >>> Rate(0.5)(7, 10)
    0.5
    >>> [Rate(1.0, warmup=0.4)(k, 10) for k in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    start: float
    end: float | None = None
    shape: Shape = "geometric"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        _validate.positive(self.start, "the first learning rate")
        if self.end is not None:
            _validate.positive(self.end, "the last learning rate")
        if self.shape not in ("constant", "geometric", "linear", "cosine"):
            raise InvalidInput(f"shape must be constant, geometric, linear or cosine, got {self.shape!r}.")
        _validate.probability(self.warmup, "warmup", one=False)

    def __call__(self, k: int, steps: int) -> float:
        """Return the rate of step ``k`` of ``steps``."""
        rising = round(self.warmup * steps)
        if k < rising:
            return self.start * (k + 1) / rising
        k, steps = k - rising, steps - rising
        if self.end is None or self.shape == "constant":
            return self.start
        share = k / max(steps - 1, 1)
        if self.shape == "geometric":
            return self.start * (self.end / self.start) ** share
        if self.shape == "linear":
            return self.start + (self.end - self.start) * share
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * share)) / 2

    @classmethod
    def from_value(cls, value: float | tuple[float, ...] | list[float] | dict[str, Any] | Rate) -> Rate:
        """Return a rate from a number, a pair (start, end), a mapping or a rate."""
        if isinstance(value, Rate):
            return value
        if isinstance(value, dict):
            return cls(**value)
        if isinstance(value, (tuple, list)):
            return cls(*value)
        return cls(_validate.positive(value, "learning_rate"))


@dataclass
class RateTable:
    """The learning rate of every step, one by one; the last one stays."""

    values: list[float]

    def __call__(self, k: int, steps: int) -> float:
        """Return the rate of step ``k`` of ``steps``."""
        return self.values[min(k, len(self.values) - 1)]


class OptimizerState(NamedTuple):
    """First and second moments (empty arrays where unused) and the number of steps taken."""

    first: np.ndarray
    second: np.ndarray
    taken: np.ndarray


@dataclass(frozen=True)
class Optimizer:
    """SGD, momentum, Adam or AdamW on rows; the step is returned, not applied.

    Parameters
    ----------
    kind : ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``.
    beta, beta2, epsilon : momentum (Adam's first beta), Adam's second beta and its small number.
    weight_decay : pull towards zero; part of the gradient as in torch's SGD and Adam, beside it for AdamW.
    nesterov : look ahead, with momentum.
    groups : stretches of a row with a rate and a decay of their own, as (start, stop, factor of the rate,
        weight decay).

    Examples
    --------
    >>> sgd = Optimizer("sgd")
    >>> step, _ = sgd.step(sgd.init(np.zeros((1, 2))), np.array([[1.0, -2.0]]), rate=0.1)
    >>> step.tolist()
    [[0.1, -0.2]]
    >>> Optimizer.from_value({"name": "SGD", "momentum": 0.9, "weight_decay": 0.01}).kind
    'momentum'
    """

    kind: Literal["sgd", "momentum", "adam", "adamw"] = "sgd"
    beta: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    nesterov: bool = False
    groups: tuple[tuple[int, int, float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidInput(f"optimizer must be sgd, momentum, adam or adamw, got {self.kind!r}.")
        _validate.probability(self.beta, "beta", one=False)
        _validate.probability(self.beta2, "beta2", one=False)
        _validate.non_negative(self.weight_decay, "weight_decay")
        if self.nesterov and self.kind != "momentum":
            raise InvalidInput(f"nesterov goes with momentum, not with {self.kind}.")

    @property
    def is_plain_sgd(self) -> bool:
        """Whether the step is the rate times the gradient and nothing else."""
        return self.kind == "sgd" and not self.weight_decay and not self.groups

    @classmethod
    def from_value(cls, value: str | Mapping[str, Any] | Optimizer) -> Optimizer:
        """Return an optimizer from a name, a mapping (our words or torch's) or an optimizer.

        A mapping with ``name`` speaks torch: momentum, nesterov, betas, eps, weight_decay.
        """
        if isinstance(value, Optimizer):
            return value
        if isinstance(value, str):
            return cls(value.lower())  # type: ignore[arg-type]
        if not isinstance(value, dict):
            got = _validate.shown(value)
            raise InvalidInput(f"optimizer must be an Optimizer, its name or a table, got {got}.")
        if "name" not in value:
            unknown = value.keys() - {item.name for item in fields(cls)}
            if unknown:
                raise InvalidInput(f"the optimizer option {min(unknown)!r} is not known; name the optimizer.")
            return cls(**value)
        options = dict(value)
        kind = str(options.pop("name")).lower()
        if kind not in _KINDS:
            raise InvalidInput(f"optimizer must be sgd, momentum, adam or adamw, got {kind!r}.")
        words: dict[str, Any] = {k: options.pop(k) for k in ("weight_decay", "nesterov") if k in options}
        if kind in ("sgd", "momentum"):
            takes = "momentum, nesterov"
            beta = options.pop("momentum", 0.0 if kind == "sgd" else 0.9)
            kind, words = ("momentum", words | {"beta": beta}) if beta else ("sgd", words)
        else:
            takes = "betas, eps"
            words["beta"], words["beta2"] = options.pop("betas", (0.9, 0.999))
            words["epsilon"] = options.pop("eps", 1e-8)
        if options:
            raise InvalidInput(
                f"the optimizer option {next(iter(options))!r} is not known; {kind} takes {takes} and "
                "weight_decay."
            )
        return cls(kind, **words)  # type: ignore[arg-type]

    def init(self, theta: np.ndarray) -> OptimizerState:
        """Return zero moments for rows shaped like ``theta``."""
        none = np.zeros((0,), theta.dtype)
        first = none if self.kind == "sgd" else np.zeros_like(theta)
        second = np.zeros_like(theta) if self.kind in ("adam", "adamw") else none
        return OptimizerState(first, second, np.zeros((), np.int64))

    def step(
        self, state: OptimizerState, gradient: np.ndarray, rate: float, theta: np.ndarray | None = None
    ) -> tuple[np.ndarray, OptimizerState]:
        """Return what to subtract from the parameters ``theta`` (needed for decay), and the next state."""
        if not (self.weight_decay or self.groups):
            return self._step(state, gradient, rate)
        assert theta is not None, "weight decay needs the parameters"
        factor = np.ones(gradient.shape[-1], gradient.dtype)
        decay = np.full(gradient.shape[-1], self.weight_decay, gradient.dtype)
        for start, stop, times, own in self.groups:
            factor[start:stop], decay[start:stop] = times, own
        pull = decay * theta
        if self.kind != "adamw":
            step, after = self._step(state, gradient + pull, rate)
        else:
            step, after = self._step(state, gradient, rate)
            step = step + gradient.dtype.type(rate) * pull
        return step * factor, after

    def descend(
        self, state: OptimizerState, gradient: np.ndarray, rate: float, theta: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, OptimizerState]:
        """Return ``rows`` less the step that is taken at ``theta``, and the next state."""
        if not self.is_plain_sgd or rows.dtype != gradient.dtype or rows.shape[1] < LONG:
            step, after = self.step(state, gradient, rate, theta)
            return rows - step, after
        from sottovoce.protocols.long_rows import write_moved

        moved = np.empty_like(rows)
        write_moved(rows, rows.dtype.type(rate), gradient, moved)
        return moved, state._replace(taken=state.taken + 1)

    def _step(
        self, state: OptimizerState, gradient: np.ndarray, rate: float
    ) -> tuple[np.ndarray, OptimizerState]:
        count = state.taken + 1
        scale = gradient.dtype.type
        if self.kind == "sgd":
            return scale(rate) * gradient, state._replace(taken=count)
        if self.kind == "momentum":
            first = scale(self.beta) * state.first + gradient
            ahead = gradient + scale(self.beta) * first if self.nesterov else first
            return scale(rate) * ahead, OptimizerState(first, state.second, count)
        first = scale(self.beta) * state.first + scale(1 - self.beta) * gradient
        second = scale(self.beta2) * state.second + scale(1 - self.beta2) * gradient * gradient
        m = first / scale(1 - self.beta ** int(count))
        v = second / scale(1 - self.beta2 ** int(count))
        return scale(rate) * m / (np.sqrt(v) + scale(self.epsilon)), OptimizerState(first, second, count)


_KINDS = ("sgd", "momentum", "adam", "adamw")
