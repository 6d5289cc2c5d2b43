r"""DP-SGD: Poisson lots, clipped records, a fixed divisor; one trusted holder of all records.

.. math:: \theta^{k+1} = \mathrm{prox}_{\eta_k r}\Big(\theta^k - \eta_k\, \mathrm{opt}\Big(\frac{1}{L}\Big(
          \sum_{d \in \mathrm{lot}} \mathrm{clip}_C(\nabla \ell(\theta^k; d)) + z C\,\xi^k\Big)\Big)\Big)

References: Abadi et al. 2016, Algorithm 1 <https://arxiv.org/abs/1607.00133>; Bassily et al. 2014.
Departures: lots are drawn record by record with probability q and the divisor is always the expected
lot size L, also for an empty lot, because dividing by the realized size reveals it; the regularizer of a
linear model is data independent, so its proximal map follows the step without cost; the loss is
accounted by privacy loss distributions instead of moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.optimizers import Optimizer, OptimizerState
from sottovoce.algorithms.plan import CentralPlan, GradientPlan
from sottovoce.data.base import is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.runners import Algorithm, State

__all__ = ["DPSGD", "dp_sgd"]

Prox = Callable[[np.ndarray, float], np.ndarray]


@dataclass(frozen=True, repr=False)
class DPSGD(CentralPlan, GradientPlan):
    """Differentially private stochastic gradient descent, central, for linear models and networks.

    The regularizer of a linear model (l1, l2, box, ball) acts by its proximal map after every step.
    Parameters are those of `GradientPlan` without protocol, network and seed, and these:

    Parameters
    ----------
    records : public number n of records, which fixes the sampling rate, q = lot / records (``sizes=(n,)`` is
        the same). It may be left out where both lot and sample_rate are given.
    output : "last" iterate, or the "mean" of all.

    Guarantees
    ----------
    One record added, removed or replaced, against anyone who sees every iterate: T sampled Gaussian steps
    SGM(q, z). A record that is not finite contributes nothing; an empty lot releases noise. Zero noise costs
    infinity.

    Examples
    --------
    >>> from sottovoce.objectives import GLM
    >>> plan = DPSGD(GLM("logistic"), records=100, steps=50, batch_size=20, learning_rate=0.5, clip_norm=1.0,
    ...              noise_multiplier=2.0)
    >>> plan.privacy().adjacency, plan.privacy().label
    ('add-remove', 'exact')
    """

    records: int | None = None
    output: Literal["last", "mean"] = "last"

    name: ClassVar[str] = "dp-sgd"
    proximal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.protocol is not None or self.network is not None:
            raise InvalidInput("dp-sgd has one holder of all records; leave out protocol and network.")
        if self.records is not None:
            records = (_validate.count(self.records, "records"),)
            if self.sizes is not None and tuple(self.sizes) != records:
                raise InvalidInput(f"records is {records[0]}, but sizes says {tuple(self.sizes)}; give one.")
            object.__setattr__(self, "sizes", records)
        if self.sizes is not None and len(self.sizes) != 1:
            raise InvalidInput(f"dp-sgd has one agent that holds all records, got {len(self.sizes)} agents.")
        if self.output not in ("last", "mean"):
            raise InvalidInput(f'output must be "last" or "mean", got {self.output!r}.')
        super().__post_init__()
        object.__setattr__(self, "records", None if self.sizes is None else self.sizes[0])

    def _agreed(self, k: int) -> Any:
        return self.schedule(k)

    def _settle_protocol(self, put: Callable[[str, Any], None]) -> None:
        """There is none to settle."""

    def prepared(self, data: Any) -> Any:
        """Return the holder's records, checked; features must be dense."""
        if is_sparse(getattr(data, "X", data[0] if isinstance(data, tuple) else None)):
            raise InvalidInput("DP-SGD works on dense features; take DP-GCD for sparse data.")
        return super().prepared(data)

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting row of the objective."""
        return GradientPlan.starting(self, data, random, agents)

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text for the agent that ``source`` hosts."""
        regularizer = getattr(self.objective, "regularizer", None)
        return dp_sgd(
            source, start, self.rate, self.optimizer,
            prox=None if regularizer is None else regularizer.prox, averaging=self.output == "mean",
        )  # fmt: skip

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the coefficients, and the last iterate."""
        return {"coef": rows[0], "last": state.common.theta[0]}

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        plain = dict(super().describe())
        for key in ("protocol", "network", "seed"):
            del plain[key]
        return plain


class Model(NamedTuple):
    """All of it is released: parameters, moments of the optimizer, the sum of the iterates (or nothing)."""

    theta: np.ndarray
    moments: OptimizerState
    total: np.ndarray


def dp_sgd(
    source: Any,
    start: np.ndarray,
    rate: Callable[[int], float],
    optimizer: Optimizer,
    *,
    prox: Prox | None = None,
    averaging: bool = False,
) -> Algorithm:
    """Return the text; a source that can `descend` gets plain steps as one compiled block.

    Examples
    --------
    >>> text = dp_sgd(lambda theta, k: theta, np.ones((1, 2)), lambda k: 0.5, Optimizer())
    >>> text.output(text.update(text.init(), np.ones((1, 2)), 0)).tolist()
    [[0.5, 0.5]]
    """

    def init() -> State:
        total = np.zeros_like(start) if averaging else np.zeros((0,), start.dtype)
        return State(Model(start, optimizer.init(start), total), ())

    def message(state: State, k: int) -> np.ndarray:
        released: np.ndarray = source(state.common.theta, k)
        return released

    def update(state: State, received: np.ndarray, k: int) -> State:
        model: Model = state.common
        step, moments = optimizer.step(model.moments, received, rate(k), model.theta)
        theta = model.theta - step
        if prox is not None:
            theta = prox(theta, rate(k))
        return State(Model(theta, moments, model.total + theta if averaging else model.total), ())

    def block(state: State, k: int, count: int) -> State:
        model: Model = state.common
        rates = np.array([rate(t) for t in range(k, k + count)])
        theta, total = source.descend(model.theta, model.total, k, rates)
        return State(Model(theta, model.moments._replace(taken=model.moments.taken + count), total), ())

    def output(state: State) -> np.ndarray:
        model: Model = state.common
        if not averaging or not model.moments.taken:
            return model.theta
        return model.total / model.theta.dtype.type(model.moments.taken)

    compiled = optimizer.plain and getattr(source, "descends", False)
    return Algorithm(init, message, update, output, block if compiled else None)
