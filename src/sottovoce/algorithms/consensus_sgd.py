r"""SGD over exact consensus: every step ends with the same model everywhere.

.. math:: \bar g^k = \frac{1}{n} \sum_i \tilde G_i(\theta^k), \qquad
          \theta^{k+1} = \theta^k - \eta_k\, \mathrm{opt}(\bar g^k)

The mean is computed by a finite schedule, a public spanning tree (fresh every step), hypercube exchange or a
masked sum, after which all agents hold bit-identical numbers. The model is then common knowledge, the views
of different steps compose, and what one agent learns of another's records is known exactly, for any loss:
step k costs SGM(q, z / sqrt(h)) with h the share of the schedule used, instead of SGM(q, z).

References: finite-time averaging by trees and by hypercube exchange is folklore.
Departures: none; not one of the published algorithms. Iterate averaging is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation import Consensus
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.optimizers import OptimizerState
from sottovoce.algorithms.options import NoiseAllocation
from sottovoce.algorithms.tree_noise import optimal_noise
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.protocols import Protocol
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class ConsensusSGD(GradientPlan):
    """Exact-consensus SGD, for generalized linear models and neural nets, at record and user level.

    Parameters are those of `GradientPlan`; the protocol is a tree, an exchange or a masked sum, by default a
    fresh uniform spanning tree of the network per step. Beside them:

    Parameters
    ----------
    average_from : share of the run after which iterates are averaged for the output; 1 gives the last one.
    noise_allocation : ``"equal"``, or over trees ``"optimal"``: the least total noise that hides everybody
        from any ``tolerate`` members, with ``noise_multiplier`` the largest of all (what local privacy takes)
        and at least the share ``floor`` of its variance for everybody, which is what remains once more
        collude.
    weighting : ``"records"``: one divisor for all, so that the mean of the rows is the mean over all records;
        ``"sites"``: each agent divides by its own, the mean of the sites' means.

    Guarantees
    ----------
    ``local`` as for every plan; ``pairwise``, ``network``, ``colluders``, ``central`` are exact where the
    coalitions can be tried, otherwise the local guarantee: no message tells more than the sums the schedule
    moves, and no condition on the loss is needed. Records that are not
    finite contribute nothing. With optimal noise a coalition of more than ``tolerate`` members is left with
    the noise of the members around its target, and ``local`` with the floor's: ask for their numbers.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = ConsensusSGD(sv.objectives.GLM(), sv.graphs.ring(8), steps=10, clip_norm=1.0,
    ...                     noise_multiplier=8.0, sizes=[500] * 8)
    >>> pair = plan.privacy("pairwise", observer=0, user=4)
    >>> pair.label, pair.epsilon(1e-5) < plan.epsilon(1e-5, "local")
    ('exact', True)
    """

    average_from: float = 1.0
    weighting: Literal["records", "sites"] = "records"
    noise_allocation: NoiseAllocation = "equal"
    floor: float = 0.1
    tolerate: int = 1

    name = "consensus-sgd"
    one_batch_per_step = True
    needs = ("reaches_consensus",)
    default_protocol = "tree:kind=uniform"
    maskable = True
    observation = Consensus()  # the views of different steps compose

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_allocation == "optimal":
            if isinstance(self.noise_multiplier, tuple):
                raise InvalidInput(
                    'noise_allocation = "optimal" shares one noise_multiplier out itself, got one per agent; '
                    'give one number, or noise_allocation = "equal".'
                )
            _ = self._shape  # what is no tree is refused now

    def _divisors(self, sizes: Sequence[int]) -> list[float]:
        """Return one divisor for all, or each agent's own."""
        if self.weighting == "sites" or self.adjacency == "user":
            return super()._divisors(sizes)
        rate = 1.0 if self.sample_rate is None else self.sample_rate
        total = rate * sum(sizes) if self.batch_size is None else self.batch_size * len(sizes)
        return [total / len(sizes)] * len(sizes)

    @property
    def _noise_multipliers(self) -> tuple[float, ...]:
        if self.noise_allocation == "equal":
            return super()._noise_multipliers
        assert isinstance(self.noise_multiplier, float)
        return tuple(self.noise_multiplier * share for share in self._shape)

    @cached_property
    def _shape(self) -> tuple[float, ...]:
        """Everybody's share of the largest noise; over the clip, so large divisors need more of it."""
        divisors = np.array(self._public_divisors)
        drawn = isinstance(self.protocol, Protocol)  # one for all steps
        schedule = [self.schedule.ungridded(k) for k in range(1 if drawn else self.steps)]
        moves = divisors.min() / divisors
        stds = optimal_noise(schedule, self.tolerate, floor=self.floor, required=moves**2)
        return tuple((np.array(stds) / moves).tolist())

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values; equal noise has no floor and tolerates nobody in particular."""
        uneven = () if self.noise_allocation == "optimal" else ("noise_allocation", "floor", "tolerate")
        return {key: value for key, value in super().describe().items() if key not in uneven}

    def guarantees(self) -> list[Guarantee]:
        if self.n == 1:
            return [self.privacy("local")]
        stated = [self.privacy("local"), self.privacy("central")]
        return [*stated, self.privacy("network")] if self.n**2 * self.steps <= 8192 else stated

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        return consensus_sgd(mechanism, start, self, self.average_from, decay=mechanism.decay)


def exact_protocol(n: int, colluders: int = 1) -> str:
    """Return the protocol of exact sums with the least noise: masks, where they hide two members."""
    if max(1, colluders) > n - 2:
        return ConsensusSGD.default_protocol
    return "masked" if colluders <= 1 else f"masked:tolerate={colluders}"


def estimand(plan: ConsensusSGD) -> str:
    """Return which of the two means of unequal sites is learned, in words."""
    if plan.adjacency == "user":
        return "the mean of the members' clipped contributions: every member counts alike"
    if plan.sizes is not None and len(set(plan.sizes)) == 1:
        return "the mean over all records, which is that of the sites' means: all are of one size"
    if plan.weighting == "records":
        return "the mean over all records: a site with more records counts for more"
    return "the mean of the sites' means: a site with few records counts as much as one with many"


class ConsensusModel(NamedTuple):
    """What everybody knows: the model, the optimizer's moments, the sum of the iterates to be averaged."""

    theta: np.ndarray
    moments: OptimizerState
    total: np.ndarray
    taken: np.ndarray


def consensus_sgd(
    release: Callable[[np.ndarray, int], np.ndarray],
    start: np.ndarray,
    plan: GradientPlan,
    average_from: float,
    *,
    decay: np.ndarray | float = 0.0,
    prox: Callable[[np.ndarray, float], np.ndarray] | None = None,
) -> Algorithm:
    """Return the algorithm: ``release(theta, k)`` is sent, the mean of all rows is received.

    ``decay`` is the weight of the l2 term, which depends on no record and is added after the mean; ``prox``
    follows a step. Iterates after the share ``average_from`` of the run are averaged.
    """
    optimizer, first_averaged = plan.optimizer, round(average_from * plan.steps)

    def init() -> State:
        moments = optimizer.init(start)
        return State(ConsensusModel(start, moments, np.zeros_like(start), np.zeros((), np.int64)), ())

    def update(state: State, received: np.ndarray, k: int) -> State:
        model: ConsensusModel = state.common
        received = received.astype(model.theta.dtype, copy=False)  # means of integer sums are float64
        if np.any(decay):
            received = received + np.asarray(decay, received.dtype) * model.theta
        step, moments = optimizer.step(model.moments, received, plan.rate(k), model.theta)
        theta = model.theta - step
        if prox is not None:
            theta = prox(theta, plan.rate(k))
        if k < first_averaged:
            return State(model._replace(theta=theta, moments=moments), ())
        return State(ConsensusModel(theta, moments, model.total + theta, model.taken + 1), ())

    def output(state: State) -> np.ndarray:
        model: ConsensusModel = state.common
        return model.theta if model.taken == 0 else model.total / model.theta.dtype.type(model.taken)

    return Algorithm(init, lambda state, k: release(state.common.theta, k), update, output)
