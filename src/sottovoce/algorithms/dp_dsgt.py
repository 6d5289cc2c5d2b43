r"""DP-DSGT: decentralized gradient tracking with noisy gradients.

.. math:: \theta_i^{k+1} = \sum_j W_{ij}(\theta_j^k - \eta_k y_j^k), \qquad
          y_i^{k+1} = \sum_j W_{ij} y_j^k + \tilde G_i^{k+1} - \tilde G_i^k

References: [1] Bayrooti, Gao, Prorok 2023, Algorithm 2.
Departures from [1]: y starts at 0 (Algorithm 2 does not say), so that the first step moves nothing, and the
gradient of the last step is paid for but moves nothing either; the subtracted gradient is the stored noisy
one, never recomputed; mixing is synchronous. A doubly stochastic W keeps sum y = sum G; with a row-stochastic
one they drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.accounting.observation import LocalOnly
from sottovoce.algorithms.gradient_plan import GradientPlan, n_params
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class DPDSGT(GradientPlan):
    """Gradient tracking: messages hold parameters and tracked gradients, twice as long as DP-DSGD's.

    Parameters are those of `GradientPlan`.

    Guarantees
    ----------
    As DP-DSGD: ``steps`` releases per agent. Using a stored noisy gradient twice is post-processing. Releases
    that cannot reach named observers before the end are left out against these, and the label is then
    ``exact``.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = DPDSGT(sv.objectives.GLM(dim=6), sv.graphs.ring(4), steps=10, sizes=[500] * 4, batch_size=50,
    ...               clip_norm=1.0, noise_multiplier=2.0)
    >>> plan.width
    12
    """

    name = "dp-dsgt"
    one_batch_per_step = True
    observation = LocalOnly(delay=1)  # what is drawn in a step is sent from the next one on
    needs = ("linear", "mixes")
    excludes = ("masked", "fresh_noise")
    uses_optimizer = False

    @property
    def width(self) -> int:
        return 2 * n_params(self.objective)

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 2 of [1]."""
        dim = start.shape[1]

        def update(state: State, received: np.ndarray, k: int) -> State:
            mixed, tracked = received[:, :dim], received[:, dim:]
            moved = mixed.dtype.type(self.rate(k)) * tracked
            np.subtract(mixed, moved, out=moved)  # rows are large: no second copy
            g = mechanism.gradient_with_l2(moved, k)
            y = tracked + g
            y -= state.own.g
            return State((), DSGTVariables(moved, y, g))

        return Algorithm(
            init=lambda: State((), DSGTVariables(start, np.zeros_like(start), np.zeros_like(start))),
            message=lambda state, k: np.concatenate([state.own.theta, state.own.y], axis=1),
            update=update,
            output=lambda state: state.own.theta,
        )


class DSGTVariables(NamedTuple):
    """Parameters, tracked gradient, last noisy gradient; one row per agent."""

    theta: np.ndarray
    y: np.ndarray
    g: np.ndarray
