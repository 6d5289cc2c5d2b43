r"""Newton steps over exact consensus, for linear models: no learning rate to choose.

.. math:: \hat M = \frac1m \sum_{k < m} \Big(\overline{\mathrm{clip}_{B^2}(x x^\top)} + \xi_k\Big), \qquad
          L L^\top = \hat M + \rho I, \qquad
          \theta^{k+1} = \theta^k - \frac{1}{c}\, L^{-\top}
          \overline{\mathrm{clip}_C(\nabla \ell(L^\top \theta^k; L^{-1} x, y))}

The first fifth of the steps releases the second moments of the features, the others gradients in features
that these moments decorrelate. There the loss is c-smooth (c = 1/4 for logistic, 1/2 for softmax, else 1) and
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
from sottovoce.algorithms.gradient_plan import n_params
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.data.base import AgentRecords
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import GradientSource, Mechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.base import GradientQuery
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.moments import MomentsAndGradients, packed_size
from sottovoce.objectives.softmax import Softmax
from sottovoce.runners import Algorithm, State

_MOMENT_SHARE = 5  # one step in so many releases moments
_SHIFT = 0.5  # what is added to the moments, over their noise, beyond what makes them positive
_STEPS, _AMPLE = 40, 50.0  # steps, and mu * records / parameters, where noise is no concern
_ROUNDING = 1e-9  # the same for moments without noise, over the largest square of a record's length


@dataclass(frozen=True, repr=False)
class ConsensusNewton(ConsensusSGD):
    """Newton steps for linear models over exact consensus, at record level. Parameters as `ConsensusSGD`, and

    feature_norm : B, the length beyond which a record counts less in the second moments; no bound on
        records, whose gradients are clipped on their own.

    ``learning_rate`` is the share of a Newton step, ``clip_norm`` the bound of one record's gradient in
    decorrelated features, where a record of p features is about sqrt(p) long.

    Guarantees
    ----------
    As `ConsensusSGD` at record level. One record moves a row of moments by at most C as well: x x^T is scaled
    by C / B^2 and clipped to C. Whatever is computed from released moments costs nothing more.

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
    def _moment_scale(self) -> float:
        """What moments are multiplied by, so that gradients and moments have one clip norm."""
        C = float(self.clip_norm or 1.0)
        return (C if math.isfinite(C) else 1.0) / self.feature_norm**2

    def mechanism(
        self, data: AgentRecords | GradientQuery, agents: Sequence[int], random: RunRandomness
    ) -> Mechanism:
        """Return the mechanism that reads the hosted agents' records."""
        if isinstance(data, AgentRecords):
            data = MomentsAndGradients(self.objective, data, self._moment_scale)  # type: ignore[arg-type]
        return super().mechanism(data, agents, random)

    def algorithm(self, mechanism: GradientSource, start: np.ndarray) -> Algorithm:
        return consensus_newton(mechanism, start, self)

    def _shift(self, features: int) -> float:
        """Return the size of the noise in the released moments: about that of its largest eigenvalue."""
        stds = [self.releases(agent)[0].noise_std for agent in range(self.n)]
        std = math.sqrt(sum(s * s for s in stds) / self._moment_steps) / (self.n * self._moment_scale)
        return max(std * math.sqrt(features), _ROUNDING * self.feature_norm**2)


def newton_options(
    objective: GLM | Softmax, records: int, epsilon: float, delta: float, feature_norm: float
) -> dict[str, Any]:
    """Return steps, clip norm, feature norm and optimizer that suit a budget, from public numbers alone.

    ``feature_norm`` is the length that most records stay below. A class of weight w has gradients w times as
    long, and second moments too.

    ``mu * records / parameters`` says how far the noise lies below what the records tell. Where it is large,
    nothing is clipped and there are steps enough to converge; where it is small, a lower clip norm and fewer
    steps cost less in accuracy than the noise that they save.
    """
    share, weight, features = 1.0, objective.largest_weight, int(objective.dim or 0)
    if epsilon != math.inf:
        ample = _AMPLE * n_params(objective)
        share = min(1.0, max(0.25, gaussian_mu(epsilon, delta) * records / ample))
    return {
        "steps": round(_STEPS * share),
        "clip_norm": share * math.sqrt(features) * weight,
        "feature_norm": feature_norm * math.sqrt(weight),
        "optimizer": Optimizer("momentum", beta=0.5, nesterov=True),
    }


class NewtonModel(NamedTuple):
    """What everybody knows: the model, and the moments so far or, later, their factor."""

    consensus: ConsensusModel
    matrix: np.ndarray


def consensus_newton(release: GradientSource, start: np.ndarray, plan: ConsensusNewton) -> Algorithm:
    """Return the algorithm: moments or gradients are sent, the mean of all rows is received."""
    from sottovoce.objectives.moments import factor, newton_direction  # numba is imported with it

    assert isinstance(plan.objective, (GLM, Softmax))
    moment_steps, parameters = plan._moment_steps, start.shape[1]
    classes = plan.objective.classes if isinstance(plan.objective, Softmax) else 1
    features = parameters // classes
    size, l2 = packed_size(features), plan.objective.regularizer.decay(parameters)[:features]
    curvature = plan.objective.curvature / plan.objective.largest_weight  # weights are in the moments
    steps = consensus_sgd(release, start, plan, plan.average_from)

    def init() -> State:
        return State(NewtonModel(steps.init().common, np.zeros((len(start), size))), ())

    def message(state: State, k: int) -> np.ndarray:
        theta, matrix = state.common.consensus.theta, state.common.matrix
        return release(theta if k < moment_steps else np.hstack([theta, matrix]), k)  # a factor: no moments

    def update(state: State, received: np.ndarray, k: int) -> State:
        model: NewtonModel = state.common
        if k < moment_steps:
            matrix = model.matrix + received[:, :size] / (plan._moment_scale * moment_steps)
            if k + 1 == moment_steps:
                shift = plan._shift(features)
                matrix = np.array([factor(row, features, shift, _SHIFT, l2 / curvature) for row in matrix])
            return State(model._replace(matrix=matrix), ())
        rows = zip(model.matrix, received[:, :parameters], model.consensus.theta, strict=True)
        direction = np.array([newton_direction(row, g, w, features, l2) for row, g, w in rows]) / curvature
        moved = steps.update(State(model.consensus, ()), direction, k)
        return State(model._replace(consensus=moved.common), ())

    return Algorithm(init, message, update, lambda state: steps.output(State(state.common.consensus, ())))
