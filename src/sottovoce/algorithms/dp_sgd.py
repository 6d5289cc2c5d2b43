r"""DP-SGD: Poisson batches, clipped records, a fixed divisor; one trusted holder of all records.

.. math:: \theta^{k+1} = \mathrm{prox}_{\eta_k r}\Big(\theta^k - \eta_k\, \mathrm{opt}\Big(\frac{1}{L}\Big(
          \sum_{d \in B} \mathrm{clip}_C(\nabla \ell(\theta^k; d)) + z C\,\xi^k\Big)\Big)\Big)

References: Abadi et al. 2016, Algorithm 1 <https://arxiv.org/abs/1607.00133>; Bassily et al. 2014.
Departures: batches are drawn record by record with probability q and the divisor is always the expected
batch size L, also for an empty batch, because dividing by the realized size reveals it; the regularizer of a
linear model is data independent, so its proximal map follows the step without cost; the loss is
accounted by privacy loss distributions instead of moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sottovoce.accounting.observation import Curator
from sottovoce.algorithms.central_plan import ALONE, as_one_part
from sottovoce.algorithms.consensus_sgd import ConsensusModel, consensus_sgd
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class DPSGD(GradientPlan):
    """Differentially private stochastic gradient descent, central, for linear models and networks.

    The regularizer of a linear model (l1, l2, box, ball) acts by its proximal map after every step.
    Parameters are those of `GradientPlan` without protocol, network and seed, and these:

    Parameters
    ----------
    records : public number n of records, which fixes the sampling rate, q = batch_size / records
        (``sizes=(n,)`` is the same). It may be left out where both batch_size and sample_rate are given.
    output : "last" iterate, or the "mean" of all.

    Guarantees
    ----------
    One record added, removed or replaced, against anyone who sees every iterate: T sampled Gaussian steps
    SGM(q, z). A record that is not finite contributes nothing; an empty batch releases noise. Without noise
    epsilon is infinite.

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

    name = "dp-sgd"
    one_batch_per_step = True
    central = True
    adjacencies = ("add-remove", "replace-one")
    proximal = True
    n = 1
    observation = Curator()

    @classmethod
    def _with_protocol(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with records and sizes that agree; there is no protocol."""
        if options["protocol"] is not None or options["network"] is not None:
            raise InvalidInput("dp-sgd has one holder of all records; leave out protocol and network.")
        records, sizes = options["records"], options["sizes"]
        if records is not None and sizes is not None and sizes != (records,):
            raise InvalidInput(f"records is {records}, but sizes says {sizes}; give one.")
        if sizes is not None and len(sizes) != 1:
            raise InvalidInput(f"dp-sgd has one agent that holds all records, got {len(sizes)} agents.")
        sizes = sizes if records is None else (records,)
        return {**options, "sizes": sizes, "records": None if sizes is None else sizes[0]}

    @cached_property
    def schedule(self) -> Schedule:
        return self._schedule(ALONE)

    def prepared(self, data: object) -> Any:
        return super().prepared(as_one_part(data, self.name))

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 1; plain steps of a linear model are one compiled loop."""
        averaging = self.output == "mean"
        prox, nothing = self.objective.regularizer.prox, np.zeros((0,), start.dtype)
        algorithm = consensus_sgd(mechanism, start, self, 0.0 if averaging else 1.0, prox=prox)
        if not (mechanism.descends and self.optimizer.is_plain_sgd):
            return algorithm

        def block(state: State, k: int, count: int) -> State:
            model: ConsensusModel = state.common
            rates = np.array([self.rate(t) for t in range(k, k + count)])
            total = model.total if averaging else nothing
            theta, total = mechanism.descend(model.theta, total, k, rates)
            moments = model.moments._replace(taken=model.moments.taken + count)
            if not averaging:
                return State(model._replace(theta=theta, moments=moments), ())
            return State(ConsensusModel(theta, moments, total, model.taken + count), ())

        return algorithm._replace(block=block)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows[0], "last": state.common.theta[0]}

    def describe(self) -> Mapping[str, Any]:
        absent = ("protocol", "network", "seed")
        return {key: value for key, value in super().describe().items() if key not in absent}
