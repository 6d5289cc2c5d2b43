r"""Newton steps over exact consensus, for linear models: no learning rate to choose.

.. math:: \hat M = \frac1m \sum_{k < m} \Big(\overline{\mathrm{clip}(z z^\top)} + \xi_k\Big), \quad
          z = L^{-1} x, \qquad
          L \leftarrow L \cdot \mathrm{chol}(\hat M + \rho I), \qquad
          \theta^{k+1} = \theta^k - \frac{1}{c}\, L^{-\top}
          \overline{\mathrm{clip}_C(\nabla \ell(L^\top \theta^k; z, y))}

The first fifth of the steps releases the second moments of the features, the others gradients in features
that these moments decorrelate. Moments may be released in stages, each in the features that the stage before
decorrelated: a feature that noise hides at first, because its public bounds are wide, is large beside it
later. In decorrelated features the loss is c-smooth (c = 1/4 for logistic, 1/2 for softmax, else 1) and
its curvature at most c in every direction, so that a step of 1 / c suits all data, however columns are scaled
and correlated; class weights multiply losses and moments alike. Every step releases one row of the same
length under the same clip norm and noise, so that the cost is that of as many steps of `ConsensusSGD`.

References: Boehning and Lindsay, "Monotonicity of quadratic-approximation algorithms", Ann. Inst. Statist.
Math. 40 (1988), the bound on the curvature; private second moments as in Dwork, Talwar, Thakurta and Zhang,
"Analyze Gauss", STOC 2014.
Departures: moments and gradients share one clip norm and one noise; the moments are shifted by the noise that
is in them, not projected; the answer is the mean of the last iterates. Factorization and solves are loops in
a fixed order, so that members with different processors stay bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sottovoce.accounting.gaussian import gaussian_mu
from sottovoce.accounting.guarantee import Adjacency
from sottovoce.algorithms.consensus_sgd import ConsensusModel, ConsensusSGD, consensus_sgd
from sottovoce.algorithms.gradient_plan import GradientData, n_params
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.data.base import AgentRecords
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.moments import MomentsAndGradients, first_factor, packed_size
from sottovoce.objectives.softmax import Softmax
from sottovoce.runners import Algorithm, State

_MOMENT_SHARE = 5  # one step in so many releases moments
_REACH = 3.0  # squared length of a decorrelated record, over its mean, beyond which it counts less
_STAGES, _CLEAR = 4, 4.0  # stages of moments, from so many times ample records on
_SHIFT = 0.5  # what is added to the moments, over their noise, beyond what makes them positive
_STEPS, _AMPLE = 40, 50.0  # steps, and mu * records / parameters, where noise is no concern
_ROUNDING = 1e-9  # the same for moments without noise, over the largest square of a decorrelated record


@dataclass(frozen=True, repr=False)
class ConsensusNewton(ConsensusSGD):
    """Newton steps for linear models over exact consensus, at record level. Parameters as `ConsensusSGD`, and

    feature_norm : the length beyond which a record counts less in the first second moments; no bound on
        records, whose gradients are clipped on their own.
    stages : in how many stages moments are released; several are better where records are many and the
        bounds of features wide.

    ``learning_rate`` is the share of a Newton step, ``clip_norm`` the bound of one record's gradient in
    decorrelated features, where a record of p features is about sqrt(p) long.

    Guarantees
    ----------
    As `ConsensusSGD` at record level. One record moves a row of moments by at most C as well: z z^T is scaled
    and clipped to C. Whatever is computed from released moments, such as L, costs nothing more.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = ConsensusNewton(sv.objectives.GLM(dim=3), "masked", network=sv.graphs.complete(4), steps=20,
    ...                        clip_norm=1.7, feature_norm=1.5, noise_multiplier=20.0, sizes=[500] * 4)
    >>> round(plan.epsilon(1e-5), 2)
    0.45
    """

    learning_rate: Any = 1.0
    adjacency: Adjacency = "add-remove"
    average_from: float = 0.6
    feature_norm: float = 1.0
    stages: int = 1

    name = "consensus-newton"
    adjacencies = ("add-remove", "replace-one")
    query_kind = "newton"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.objective, (GLM, Softmax)):
            got = type(self.objective).__name__
            raise InvalidInput(f"{self.name} is for linear models, got {got}; take consensus-sgd.")
        if self.steps < 2:
            raise InvalidInput(f"{self.name} needs 2 steps or more, the first for moments, got {self.steps}.")

    @property
    def _moment_steps(self) -> int:
        """How many of the first steps release second moments."""
        return max(1, self.steps // _MOMENT_SHARE)

    @property
    def width(self) -> int:
        """Numbers in one row that travels: moments, or a gradient and zeros."""
        parameters = n_params(self.objective)
        return max(parameters, packed_size(int(self.objective.dim or 0)))  # type: ignore[attr-defined]

    @property
    def _stage_ends(self) -> list[int]:
        """The numbers of moment steps after which the factor is refined."""
        stages = min(self.stages, self._moment_steps)
        return [self._moment_steps * (stage + 1) // stages for stage in range(stages)]

    def _square(self, features: int) -> float:
        """Return the squared length of a decorrelated record beyond which it counts less in the moments."""
        weight: float = self.objective.largest_weight  # type: ignore[attr-defined]
        return (_REACH if self.stages > 1 else 1.0) * features * weight

    def _moment_scale(self, features: int) -> float:
        """Return what moments are multiplied by, so that gradients and moments have one clip norm."""
        C = float(self.clip_norm or 1.0)
        return (C if math.isfinite(C) else 1.0) / self._square(features)

    def mechanism(self, data: GradientData, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism that reads the hosted agents' records."""
        if isinstance(data, AgentRecords):
            scale = self._moment_scale(data.dim)  # type: ignore[attr-defined]
            data = MomentsAndGradients(self.objective, data, scale)  # type: ignore[arg-type]
        return super().mechanism(data, agents, random)

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        return consensus_newton(mechanism, start, self)

    def _shift(self, features: int, steps: int) -> float:
        """Return the size of the noise in moments of so many steps: about that of its largest eigenvalue."""
        stds = [self.releases(agent)[0].noise_std for agent in range(self.n)]
        std = math.sqrt(sum(s * s for s in stds) / steps) / (self.n * self._moment_scale(features))
        return max(std * math.sqrt(features), _ROUNDING * self._square(features))


def newton_options(
    objective: GLM | Softmax, records: int, epsilon: float, delta: float, feature_norm: float
) -> dict[str, Any]:
    """Return steps, clip norm, feature norm and optimizer that suit a budget, from public numbers alone.

    ``feature_norm`` is the length that most records stay below. A class of weight w has gradients w times as
    long, and second moments too.

    ``mu * records / parameters`` says how far the noise lies below what the records tell. Where it is large,
    few records are clipped and there are steps enough to converge; where it is small, a lower clip norm and
    fewer steps cost less in accuracy than the noise that they save.
    """
    weight, features, clear = objective.largest_weight, int(objective.dim or 0), math.inf
    if epsilon != math.inf:
        clear = gaussian_mu(epsilon, delta) * records / n_params(objective)
    share = min(1.0, max(0.25, clear / _AMPLE))
    return {
        "steps": round(_STEPS * share),
        "clip_norm": share * math.sqrt(features) * weight,
        "feature_norm": feature_norm * math.sqrt(weight),
        "stages": _STAGES if clear >= _CLEAR * _AMPLE else 1,
        "optimizer": Optimizer("momentum", beta=0.5, nesterov=True),
    }


class NewtonModel(NamedTuple):
    """What everybody knows: the model, the factor of the moments, and the sum of moments of this stage."""

    consensus: ConsensusModel
    factor: np.ndarray
    moments: np.ndarray


def consensus_newton(release: GradientMechanism, start: np.ndarray, plan: ConsensusNewton) -> Algorithm:
    """Return the algorithm: moments or gradients are sent, the mean of all rows is received."""
    from sottovoce.objectives.moments import newton_direction, refined  # numba is imported with it

    assert isinstance(plan.objective, (GLM, Softmax))
    moment_steps, parameters = plan._moment_steps, start.shape[1]
    classes = plan.objective.classes if isinstance(plan.objective, Softmax) else 1
    features = parameters // classes
    size, l2 = packed_size(features), plan.objective.regularizer.decay(parameters)[:features]
    curvature = plan.objective.curvature / plan.objective.largest_weight  # weights are in the moments
    steps, stages = consensus_sgd(release, start, plan, plan.average_from), [0, *plan._stage_ends]

    def init() -> State:
        factor = np.tile(
            first_factor(features, plan.feature_norm / math.sqrt(plan._square(features))), (len(start), 1)
        )
        return State(NewtonModel(steps.init().common, factor, np.zeros_like(factor)), ())

    def message(state: State, k: int) -> np.ndarray:
        factor = state.common.factor
        return release(factor if k < moment_steps else np.hstack([state.common.consensus.theta, factor]), k)

    def update(state: State, received: np.ndarray, k: int) -> State:
        model: NewtonModel = state.common
        if k < moment_steps:
            moments, factor = model.moments + received[:, :size], model.factor
            if k + 1 in stages:
                count = k + 1 - stages[stages.index(k + 1) - 1]
                ridge = l2 / curvature if k + 1 == moment_steps else np.zeros(features)
                pairs, shift = zip(factor, moments, strict=True), plan._shift(features, count)
                mean = plan._moment_scale(features) * count
                factor = np.array([refined(L, M / mean, features, shift, _SHIFT, ridge) for L, M in pairs])
                moments = np.zeros_like(moments)
            return State(model._replace(factor=factor, moments=moments), ())
        rows = zip(model.factor, received[:, :parameters], model.consensus.theta, strict=True)
        direction = np.array([newton_direction(row, g, w, features, l2) for row, g, w in rows]) / curvature
        moved = steps.update(State(model.consensus, ()), direction, k)
        return State(model._replace(consensus=moved.common), ())

    return Algorithm(init, message, update, lambda state: steps.output(State(state.common.consensus, ())))
