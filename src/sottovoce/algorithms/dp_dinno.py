r"""DP-DiNNO: consensus ADMM for networks with noisy primal steps.

.. math:: y_i^{k+1} = y_i^k + \rho_k \sum_{j \in N(i)} (\theta_i^k - \theta_j^k), \qquad
          \psi \leftarrow \psi - \mathrm{opt}\Big(\tilde G_i(\psi) + y_i^{k+1}
          + 2\rho_k \sum_{j \in N(i)} \big(\psi - \tfrac{\theta_i^k + \theta_j^k}{2}\big)\Big)

the second T times from :math:`\psi = \theta_i^k`, then :math:`\theta_i^{k+1} = \psi`.

References: [1] Bayrooti, Gao, Prorok 2023, Algorithm 3; [2] Yu, Vincent, Schwager 2022 (DiNNO).
Departures from [1]: line 15 prints psi + G, a descent step is meant; N(i) is without i (with it only
2 rho (psi - theta_i) is added); K*T releases are accounted, their code accounts K. As in their code and in
[2], Adam starts anew at every communication, so that with T = 1 its step is the sign of the gradient;
``fresh_moments=False`` keeps the moments, which oscillates against the moving dual variable.

With plain steps and T = 1 disagreement along an eigenvector of the graph's Laplacian with value l obeys
mu^2 - 2(1 - a) mu + (1 - a) = 0, a = rate * rho * l: it dies out if and only if rate * rho * l < 4/3 for the
largest l, which is at most twice the largest degree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sottovoce.accounting.observation import LocalOnly
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.optimizers import Optimizer, OptimizerState
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class DPDiNNO(GradientPlan):
    """Consensus ADMM; ``primal_steps`` noisy gradients per step, each a release.

    Parameters are those of `GradientPlan`, and these:

    Parameters
    ----------
    rho, rho_growth : penalty of the first step, and its factor per step; with SGD keep rate * rho below 2/3
        over the largest degree, or disagreement grows.
    primal_steps : T, optimizer steps on the penalized loss per communication.
    fresh_moments : forget the optimizer's moments at every communication.

    Guarantees
    ----------
    Against anyone who sees all messages, ``steps * primal_steps`` releases per agent.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = DPDiNNO(sv.objectives.GLM(), sv.graphs.ring(4), steps=10, sizes=[500] * 4, batch_size=50,
    ...                clip_norm=1.0, noise_multiplier=2.0, primal_steps=2)
    >>> sum(release.draws for release in plan.releases(0))
    20
    """

    optimizer: Optimizer = field(default_factory=lambda: Optimizer("adam"))
    rho: float = 0.5
    rho_growth: float = 1.0003
    primal_steps: int = 1
    fresh_moments: bool = True

    name = "dp-dinno"
    observation = LocalOnly(delay=1)  # what is drawn in a step is sent from the next one on
    needs = ("neighbor_sum",)
    default_protocol = "neighbor-sum"

    def _draws_per_step(self) -> int:
        return self.primal_steps

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 3 of [1]; the received rows are sums over neighbors."""
        network, optimizer = self.schedule(0).network, self.optimizer
        assert network is not None
        d = np.asarray(network.degrees, start.dtype)[list(mechanism.agents)][:, None]

        def update(state: State, received: np.ndarray, k: int) -> State:
            own: DiNNOVariables = state.own
            rho = own.theta.dtype.type(self.rho * self.rho_growth**k)
            y = own.y + rho * (d * own.theta - received)
            middle = (d * own.theta + received) / 2
            moments = optimizer.init(start) if self.fresh_moments else own.moments
            psi = own.theta
            for t in range(self.primal_steps):
                h = mechanism.gradient_with_l2(psi, k, t) + y + 2 * rho * (d * psi - middle)
                step, moments = optimizer.step(moments, h, self.rate(k), psi)
                psi = psi - step
            return State((), DiNNOVariables(psi, y, moments))

        return Algorithm(
            init=lambda: State((), DiNNOVariables(start, np.zeros_like(start), optimizer.init(start))),
            message=lambda state, k: state.own.theta,
            update=update,
            output=lambda state: state.own.theta,
        )


class DiNNOVariables(NamedTuple):
    """Primal and dual variables and optimizer moments, one row per agent."""

    theta: np.ndarray
    y: np.ndarray
    moments: OptimizerState
