r"""The noisy fixed-point iteration, of which DP-SGD, DP-CD and private ADMM are instances.

.. math:: u_{k+1,b} = u_{k,b} + \rho_{k,b}\,\lambda_k\big(R_b(u_k) + e_{k,b} + \eta_{k+1,b} - u_{k,b}\big),
          \qquad \eta \sim \mathcal N(0, \sigma^2 I)

References: Cyffers, Bellet, Basu 2023, "From Noisy Fixed-Point Iterations to Private ADMM", Algorithm 1
<https://arxiv.org/abs/2302.12559>; Bellet's 2024 talk. Departures: relaxations lie in (0, 1] (the talk's
{0, 1} is a misprint).

Instances: gradient descent R(u) = u - (2/beta) grad f(u) with step 2 lambda / beta, the sampling error as e;
coordinate descent with one block per coordinate; Douglas-Rachford and ADMM on the stacked u_i.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sottovoce._validate import count, non_negative, probability
from sottovoce.algorithms.blocks import Randomness, randomness, run_blocks
from sottovoce.algorithms.central import CentralPlan, Evaluate, recorder
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Curve
from sottovoce.privacy.guarantees import Adjacency
from sottovoce.runners.base import Result, provenance_now

__all__ = ["FixedPoint"]

Operator = Callable[[np.ndarray, Any], np.ndarray]


@dataclass(frozen=True, repr=False)
class FixedPoint(CentralPlan):
    """Repeat a non-expansive operator with Gaussian noise, whole or block by block.

    Parameters
    ----------
    operator : ``R(u, data)`` on an array (blocks, dim), returning the same shape.
    sensitivity : S with sup over u of |R_b(u; D) - R_b(u; D')| <= S for every block and neighbouring D, D'.
    noise_std : sigma, absolute.
    steps : number of iterations K.
    relaxation : lambda in (0, 1].
    active : ``active(k, rng)`` gives the blocks that move at step k; None moves all.
    error : ``error(u, data, k, rng)``, an inexactness e_k (sampling, for instance); its effect on the
        sensitivity is the caller's to include.
    active_blocks : how many blocks move in a step; the loss counts each of them.
    adjacency : what "neighbouring" means in the sensitivity.

    Guarantees
    ----------
    Every active block of every step is one Gaussian release with mu = S / sigma (lambda cancels), provided
    all the next update reads is a function of released values and the data. An operator that hides noisy
    state breaks that, and the statement with it.

    Examples
    --------
    >>> half = FixedPoint(lambda u, data: 0.5 * u + data, sensitivity=1.0, noise_std=2.0, steps=4)
    >>> half.privacy().mu
    1.0
    """

    operator: Operator
    sensitivity: float
    noise_std: float
    steps: int
    relaxation: float = 1.0
    active: Callable[[int, np.random.Generator], np.ndarray] | None = None
    error: Callable[..., np.ndarray] | None = None
    active_blocks: int = 1
    adjacency: Adjacency = "replace-one"
    name: str = field(default="fixed-point", init=False)

    def __post_init__(self) -> None:
        count(self.steps, "steps")
        count(self.active_blocks, "active_blocks")
        non_negative(self.sensitivity, "sensitivity")
        non_negative(self.noise_std, "noise_std")
        probability(self.relaxation, "relaxation", zero=False)

    def curve(self) -> Curve:
        """Return the loss: one Gaussian release per active block and step."""
        mu = self.sensitivity / self.noise_std if self.noise_std else math.inf
        return Curve.gaussian(mu, self.steps * self.active_blocks)

    def describe(self) -> dict[str, Any]:
        """Return the plan's numbers; the operator is code."""
        names = ("sensitivity", "noise_std", "steps", "relaxation", "active_blocks", "adjacency")
        return {"algorithm": self.name, **{name: getattr(self, name) for name in names}}

    def _std(self, dim: int, random: Randomness) -> float:
        """The noise to draw: the operator cannot clip lower, so what rounding adds is paid in noise."""
        if self.noise_std == 0 or self.sensitivity == 0:
            return self.noise_std
        mu = self.sensitivity / self.noise_std
        left = mu - 2 * random.slack(dim, 1.0)  # the slack is in proportion to the noise
        if left <= 0:
            raise InvalidInput("The rounding of the noise exceeds the sensitivity; add less noise.")
        return self.sensitivity / left if left < mu else self.noise_std

    def run(
        self,
        data: Any,
        rng: Any,
        *,
        progress: bool = False,
        start: np.ndarray | None = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Iterate from ``start``, an array (blocks, dim) that does not depend on the data."""
        started = time.perf_counter()
        if start is None:
            raise InvalidInput(
                "A fixed-point iteration needs start=, an array (blocks, dim) free of the data."
            )
        random = randomness(rng)
        lam = self.relaxation
        std = self._std(np.asarray(start).shape[-1], random)

        def advance(state: dict[str, np.ndarray], k: int, size: int) -> dict[str, np.ndarray]:
            u = state["w"]
            draws = random.draws(0, k)
            target = self.operator(u, data)
            if self.error is not None:
                target = target + self.error(u, data, k, draws)
            rows = np.arange(len(u)) if self.active is None else np.asarray(self.active(k, draws))
            if len(rows) > self.active_blocks:
                raise InvalidInput(
                    f"Step {k} moves {len(rows)} blocks, but {self.active_blocks} are accounted per step."
                )
            released = target[rows]
            if std > 0:
                released = random.noise.perturb(released, agents=rows, step=k, std=std)
            moved = u.copy()
            moved[rows] = u[rows] + lam * (released - u[rows])
            return {"w": moved}

        history: list[dict[str, Any]] = []
        first = {"w": np.array(start, dtype=float)}
        after = recorder(history, evaluate, progress, self.name, self.steps)
        state = run_blocks(first, self.steps, 1, advance, after_block=after)
        return Result(
            name=self.name,
            config=self.describe(),
            outputs={"rows": state["w"]},
            history=history,
            guarantees=[self.privacy().to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )
