r"""DP-GCD: greedy coordinate descent, the coordinate chosen by a noisy maximum.

.. math:: j^* = \arg\max_j \frac{|G_j + \zeta_j|}{\sqrt{M_j}},\qquad
          w_{j^*} \leftarrow \mathrm{prox}_{\gamma r}\big(w_{j^*} - \gamma_{j^*}(G_{j^*} + \eta)\big),
          \qquad \zeta_j, \eta \sim \mathrm{Lap}(r D_j),\quad D_j = 2 C_j / n

G is the gradient clipped per record and coordinate at C_j = C sqrt(M_j / tr M), so D_j / sqrt(M_j) is the
same for all j (D_j = C_j / n where records are added or removed). References: Mangold, Bellet, Salmon,
Tommasi 2023, Algorithm 1 <https://arxiv.org/abs/2207.01560>; Bellet's 2024 talk on private optimization.
Departures from the talk: Laplace scales proportional to C_j (the slide prints sigma^2 L_j), scores in the
M-norm (the slide shows the case of equal M_j), and a proximal step for l1, l2 and box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.release import MOVES, Release
from sottovoce.algorithms.central_plan import CentralPlan
from sottovoce.algorithms.options import require_linear
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.noisy_max import NoisyMaxMechanism
from sottovoce.objectives import GLM
from sottovoce.runners import Algorithm, State, in_blocks


@dataclass(frozen=True, repr=False)
class DPGCD(CentralPlan):
    """Differentially private greedy coordinate descent, central, at record level; dense or sparse data.

    Parameters
    ----------
    objective : a loss with a separable regularizer.
    records : the public number of records n.
    steps : T, one coordinate each.
    clip_norm : C, dealt out over the coordinates.
    noise_ratio : r; Laplace scales are r times the sensitivity of a coordinate. 0 is no noise.
    smoothness : public M_j, one per coordinate, or one number for all.
    step_scale : c in gamma_j = c / M_j.
    adjacency : "replace-one" or "add-remove".

    Guarantees
    ----------
    Each step selects (2/r-DP: both tails of the noise inside the absolute value shift by at most one
    sensitivity) and releases one coordinate (Laplace of ratio 1/r), adaptively composed over T steps.

    Examples
    --------
    >>> plan = DPGCD(GLM("logistic"), records=1000, steps=4, clip_norm=1.0, noise_ratio=20.0, smoothness=0.25)
    >>> round(plan.privacy().rdp(2.0), 4)  # at most 5 T alpha / (2 r^2) = 0.05
    0.0498
    """

    objective: GLM
    records: int
    steps: int
    clip_norm: float
    noise_ratio: float
    smoothness: tuple[float, ...] | float = 0.25
    step_scale: float = 1.0
    adjacency: Adjacency = "replace-one"

    name = "dp-gcd"
    query_kind = "noisy-max"
    mechanism_class = NoisyMaxMechanism
    noise_field = "noise_ratio"
    takes_sparse = True
    width = 2  # the number of a coordinate, and its value

    def __post_init__(self) -> None:
        require_linear(self.objective, self.name, separable=True)

    def releases(self, agent: int) -> Sequence[Release]:
        moves = MOVES[self.adjacency]
        scale = self.noise_ratio * moves
        return tuple(
            Release(agent, 0, moves, scale, self.adjacency, mechanism=kind, steps=self.steps, stream=stream)
            for stream, kind in enumerate(("noisy-max", "laplace"))
        )

    def prepared(self, data: object) -> Shards:
        shards: Shards = super().prepared(data)
        if isinstance(self.smoothness, tuple) and len(self.smoothness) != shards.dim:
            raise InvalidInput(f"The plan knows {len(self.smoothness)} coordinates, the data {shards.dim}.")
        return shards

    def algorithm(self, mechanism: NoisyMaxMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 1: in every step one coordinate is chosen and moved by its noisy value."""
        prox, gamma = self.objective.regularizer.prox, self.step_scale / mechanism.M

        def block(state: State, k: int, count: int) -> State:
            w, chosen = state.common.w.copy(), state.common.chosen.copy()
            for step in range(k, k + count):
                j, value = mechanism.choose(w, step)
                w[:, j] -= gamma[j] * value
                w[:, j] = prox(w, gamma[j])[:, j]
                chosen[step] = j
            return State(GCDModel(w, chosen), ())

        init = State(GCDModel(start, np.full(self.steps, -1)), ())
        return in_blocks(lambda: init, lambda state: state.common.w, block)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows[0], "chosen": state.common.chosen}


class GCDModel(NamedTuple):
    """All of it is released: the model, and the coordinates chosen so far (-1 for steps to come)."""

    w: np.ndarray
    chosen: np.ndarray
