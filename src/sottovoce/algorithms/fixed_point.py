r"""The noisy fixed-point iteration.

.. math:: u_{k+1,b} = u_{k,b} + \rho_{k,b}\,\lambda_k\big(R_b(u_k) + e_{k,b} + \eta_{k+1,b} - u_{k,b}\big),
          \qquad \eta \sim \mathcal N(0, \sigma^2 I)

References: Cyffers, Bellet, Basu 2023, "From Noisy Fixed-Point Iterations to Private ADMM", Algorithm 1
<https://arxiv.org/abs/2302.12559>; Bellet's 2024 talk. Departures: relaxations lie in (0, 1] (the talk's
{0, 1} is a misprint).

It makes the iterates of gradient descent (R(u) = u - (2/beta) grad f(u), step 2 lambda / beta), of coordinate
descent (one block per coordinate) and of ADMM (on the stacked u_i); the tests compare them. It is
accounted as a release of every active block: right for the first two without sampling, while the sampled
batches of DP-SGD and the mean that central ADMM releases cost less, and have plans of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce._validate import count, probability
from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.release import Release
from sottovoce.algorithms.central_plan import CentralPlan
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.fixed_point import FixedPointMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.runners import Algorithm, State

Operator = Callable[[np.ndarray, Any], np.ndarray]


@dataclass(frozen=True, repr=False, eq=False)
class FixedPoint(CentralPlan):
    """Repeat an operator with Gaussian noise, whole or block by block.

    Parameters
    ----------
    operator : ``R(u, data)`` on an array (blocks, dim), returning the same shape.
    sensitivity : S with sup over u of |R_b(u; D) - R_b(u; D')| <= S for every block and neighboring D, D'.
    noise_std : sigma, absolute.
    steps : number of iterations K.
    relaxation : lambda in (0, 1], a number or a function of the step.
    active : ``active(k, rng)`` gives the blocks that move at step k; None moves all.
    error : ``error(u, data, k, rng)``, an inexactness e_k (sampling, for instance); its effect on the
        sensitivity is the caller's to include.
    active_blocks : the most blocks that move in a step; the loss counts each of them. None: all of ``start``.
    adjacency : what "neighboring" means in the sensitivity.
    start : array (blocks, dim) that does not depend on the data.

    Guarantees
    ----------
    Every active block of every step is one Gaussian release with mu = S / sigma (lambda cancels), provided
    all the next update reads is a function of released values and the data. An operator that hides noisy
    state breaks that, and the statement with it. S is stated by the caller: nothing is clipped here.

    Examples
    --------
    >>> half = FixedPoint(lambda u, data: 0.5 * u + data, sensitivity=1.0, noise_std=2.0, steps=4,
    ...                   start=np.zeros((1, 1)))
    >>> half.privacy().mu
    1.0
    >>> half.run(1.0, np.random.default_rng(0)).outputs["blocks"].shape
    (1, 1)
    """

    operator: Operator
    sensitivity: float
    noise_std: float
    steps: int
    relaxation: float | Callable[[int], float] = 1.0
    active: Callable[[int, np.random.Generator], Any] | None = None
    error: Callable[..., np.ndarray] | None = None
    active_blocks: int | None = None
    adjacency: Adjacency = "replace-one"
    start: Any = None

    name = "fixed-point"
    query_kind = "fixed-point-step"
    mechanism_class = FixedPointMechanism
    adjacencies = ("add-remove", "replace-one", "user")
    noise_field = "noise_std"

    @classmethod
    def _resolved(cls, options: dict[str, Any]) -> dict[str, Any]:
        options = super()._resolved(options)
        if options["start"] is None:
            raise InvalidInput(
                "A fixed-point iteration needs start=, an array (blocks, dim) free of the data."
            )
        start = np.array(options["start"], dtype=np.float64)
        if start.ndim != 2 or start.size == 0:
            raise InvalidInput(f"start must be an array (blocks, dim), got shape {start.shape}.")
        active_blocks = count(options["active_blocks"] or len(start), "active_blocks")
        return {**options, "start": start, "active_blocks": active_blocks}

    @property
    def width(self) -> int:
        return int(self.start.size)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("the operator moves by at most the stated sensitivity", *super().assumptions)

    def releases(self, agent: int) -> Sequence[Release]:
        blocks = self.active_blocks or len(self.start)
        scale = (self.sensitivity, self.noise_std, self.adjacency)
        return (Release(agent, 0, *scale, steps=self.steps, count=blocks),)

    def algorithm(self, mechanism: FixedPointMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 1: the blocks that move are released, the others stay."""

        def message(state: State, k: int) -> np.ndarray:
            u = state.common[0].reshape(self.start.shape)
            rows, released = mechanism.noisy_blocks(u, k)
            lam = self.relaxation
            if callable(lam):
                lam = probability(lam(k), "relaxation", zero=False)
            moved = u.copy()
            moved[rows] = u[rows] + lam * (released - u[rows])
            return moved.reshape(1, -1)

        return Algorithm(
            init=lambda: State((start,), ()),
            message=message,
            update=lambda state, received, k: State((received,), ()),
            output=lambda state: state.common[0],
        )

    def prepared(self, data: object) -> Any:
        """Return the data as they are: only the operator reads them."""
        return data

    def starting(self, data: object, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        return self.start.reshape(1, -1)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"blocks": rows.reshape(self.start.shape)}
