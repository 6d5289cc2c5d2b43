r"""DP-SGD for generalised linear models: Poisson lots, clipped records, a fixed divisor.

.. math:: w^{t+1} = \mathrm{prox}_{\eta r}\Big(w^t - \frac{\eta}{B}\Big(\sum_{i \in \mathrm{lot}}
          \mathrm{clip}_C(\nabla f(w^t; d_i)) + z C\,\xi^t\Big)\Big)

References: Abadi et al. 2016, Algorithm 1 <https://arxiv.org/abs/1607.00133>; Bassily et al. 2014.
Departures: lots are drawn record by record with probability q and the divisor is always the expected
lot size B, also for an empty lot, because dividing by the realised size reveals it; the regulariser is
data independent, so its proximal map follows the step without cost.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numba import njit

from sottovoce._validate import count, non_negative, positive
from sottovoce.algorithms.blocks import (
    block_size,
    fingerprint,
    on_grid,
    randomness,
    run_blocks,
)
from sottovoce.algorithms.central import CentralPlan, Evaluate, recorder, records_of
from sottovoce.data.base import is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.objectives.glm import add_clipped
from sottovoce.privacy import Curve
from sottovoce.runners.base import Result, provenance_now

__all__ = ["DPSGD"]


@dataclass(frozen=True, repr=False)
class DPSGD(CentralPlan):
    """Differentially private stochastic gradient descent, central, at record level.

    Parameters
    ----------
    objective : what is minimised.
    records : public number n that fixes the sampling rate, q = lot / records.
    steps, lot, learning_rate : T, the expected lot size B, the rate eta.
    clip : length C to which every record's gradient is clipped.
    noise_multiplier : z; the noise on the sum has standard deviation z C.
    output : "last" iterate or the "mean" of all.

    Guarantees
    ----------
    add/remove of one record, against anyone who sees every iterate: T sampled Gaussian steps SGM(q, z). A
    record that is not finite contributes nothing; an empty lot releases noise. Zero noise costs infinity.

    Examples
    --------
    >>> plan = DPSGD(GLM("logistic"), records=100, steps=50, lot=20, learning_rate=0.5, clip=1.0,
    ...              noise_multiplier=2.0)
    >>> plan.privacy().adjacency, plan.privacy().label
    ('add-remove', 'exact')
    """

    objective: GLM
    records: int
    steps: int
    lot: float
    learning_rate: float
    clip: float
    noise_multiplier: float
    output: Literal["last", "mean"] = "last"

    name: str = field(default="dp-sgd", init=False)

    def __post_init__(self) -> None:
        count(self.records, "records")
        count(self.steps, "steps")
        positive(self.lot, "lot")
        positive(self.learning_rate, "learning_rate")
        non_negative(self.noise_multiplier, "noise_multiplier")
        if not self.clip > 0 or (self.clip == math.inf and self.noise_multiplier > 0):
            raise InvalidInput(f"clip must be positive, and finite where noise is added, got {self.clip!r}.")
        if self.lot > self.records:
            raise InvalidInput(f"lot must be at most records ({self.records}), got {self.lot:g}.")

    @property
    def sample_rate(self) -> float:
        """q, the probability that a record is in a lot."""
        return self.lot / self.records

    def curve(self) -> Curve:
        """Return the loss: T sampled Gaussian steps."""
        return Curve.sampled_gaussian(self.sample_rate, self.noise_multiplier, self.steps)

    @classmethod
    def for_budget(cls, *, epsilon: float, delta: float, **options: Any) -> DPSGD:
        """Return the plan with the least noise multiplier whose own `privacy` meets the budget."""
        from sottovoce.algorithms.budget import least_noise

        return least_noise(lambda z: cls(noise_multiplier=z, **options), epsilon, delta)

    def run(
        self,
        data: Any,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
        start: np.ndarray | None = None,
    ) -> Result:
        """Train on ``data`` (a Dataset or (X, y)) and return the released coefficients.

        ``evaluate(w)`` adds rows to the history; what it reads from private records is not charged.
        """
        started = time.perf_counter()
        X, y = records_of(data, self.objective)
        if is_sparse(X):
            raise InvalidInput("DP-SGD works on dense features; take DP-GCD for sparse data.")
        random, p = randomness(rng), X.shape[1]
        r = self.objective.regulariser
        std = self.noise_multiplier * self.clip if self.noise_multiplier > 0 else 0.0
        clip = max(self.clip - 2 * random.slack(p, std), 0.0)  # both of two neighbouring sums are rounded

        def advance(state: dict[str, np.ndarray], block: int, size: int) -> dict[str, np.ndarray]:
            noise = random.gaussian(size, p, block=block, std=std)
            w, total = state["w"].copy(), state["total"].copy()
            _block(
                self.objective.kind, self.objective.width, X, y, w, total, noise, random.grid(std),
                random.draws(0, block), self.sample_rate, float(self.lot), clip, self.learning_rate,
                r.l1, r.l2, r.box or math.inf, r.ball or math.inf,
            )  # fmt: skip
            return {"w": w, "total": total}

        state = {"w": np.zeros(p) if start is None else np.array(start, dtype=float), "total": np.zeros(p)}
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            block_size(self.steps),
            advance,
            checkpoint=checkpoint,
            identity=fingerprint(config, X, y) if checkpoint else "",
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        w = state["w"] if self.output == "last" else state["total"] / self.steps
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": w, "last": state["w"], "mean": state["total"] / self.steps},
            history=history,
            guarantees=[self.privacy().to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )


@njit(cache=True)
def _block(kind, width, X, y, w, total, noise, grid, rng, q, lot, clip, eta, l1, l2, box, ball):
    n, p = X.shape
    scale = 1.0 / math.log1p(-q) if q < 1.0 else 0.0
    g = np.empty(p)
    for k in range(len(noise)):
        g[:] = 0.0
        position = -1
        while True:
            # gaps between the members of a Poisson sample are geometric
            gap = math.log(1.0 - rng.random()) * scale if q < 1.0 else 0.0
            if gap >= n:
                break
            position += 1 + int(gap)
            if position >= n:
                break
            add_clipped(kind, width, w, X[position], y[position], clip, g)
        for j in range(p):
            w[j] -= eta * on_grid(g[j], noise[k, j], grid) / lot
        prox_in_place(w, eta, l1, l2, box, ball)
        for j in range(p):
            total[j] += w[j]


@njit(cache=True)
def prox_in_place(w, step, l1, l2, box, ball):
    """The map of `Regulariser.prox` with infinite bounds for none."""
    squares = 0.0
    for j in range(len(w)):
        v = math.copysign(max(abs(w[j]) - step * l1, 0.0), w[j]) / (1.0 + step * l2)
        w[j] = min(max(v, -box), box)
        squares += w[j] * w[j]
    if squares > ball * ball:
        scale = ball / math.sqrt(squares)
        for j in range(len(w)):
            w[j] *= scale
