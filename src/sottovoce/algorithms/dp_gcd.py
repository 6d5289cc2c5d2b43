r"""DP-GCD: greedy coordinate descent, the coordinate chosen by a noisy maximum.

.. math:: j^* = \arg\max_j \frac{|G_j + \zeta_j|}{\sqrt{M_j}},\qquad
          w_{j^*} \leftarrow \mathrm{prox}_{\gamma r}\big(w_{j^*} - \gamma_{j^*}(G_{j^*} + \eta)\big),
          \qquad \zeta_j, \eta \sim \mathrm{Lap}(r D_j),\quad D_j = 2 C_j / n

G is the gradient clipped per record and coordinate at C_j = C sqrt(M_j / tr M), so D_j / sqrt(M_j) is the
same for all j. References: Mangold, Bellet, Salmon, Tommasi 2023, Algorithm 1
<https://arxiv.org/abs/2207.01560>; Bellet's 2024 talk on private optimisation. Departures from the talk:
Laplace scales proportional to C_j (the slide prints sigma^2 L_j), scores in the M-norm (the slide shows the
case of equal M_j), and a proximal step for l1, l2 and box.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numba import njit

from sottovoce._validate import count, non_negative, positive
from sottovoce.algorithms.blocks import (
    Randomness,
    block_size,
    fingerprint,
    randomness,
    run_blocks,
)
from sottovoce.algorithms.central import CentralPlan, Evaluate, recorder, records_of
from sottovoce.algorithms.dp_cd import coordinate_clips
from sottovoce.data.base import is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.objectives.glm import record_slopes
from sottovoce.privacy import Curve
from sottovoce.runners.base import Result, provenance_now

__all__ = ["DPGCD"]

GRID = 2.0**20  # steps of protective Laplace noise per scale


@dataclass(frozen=True, repr=False)
class DPGCD(CentralPlan):
    """Differentially private greedy coordinate descent, central, at record level; dense or sparse data.

    Parameters
    ----------
    objective : a loss with a separable regulariser.
    records : the public number of records n.
    steps : T, one coordinate each.
    clip : C, dealt out over the coordinates.
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
    >>> plan = DPGCD(GLM("logistic"), records=1000, steps=4, clip=1.0, noise_ratio=20.0, smoothness=0.25)
    >>> round(plan.privacy().rdp(2.0), 4)  # at most 5 T alpha / (2 r^2) = 0.05
    0.0498
    """

    objective: GLM
    records: int
    steps: int
    clip: float
    noise_ratio: float
    smoothness: tuple[float, ...] | float = 0.25
    step_scale: float = 1.0
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"

    name: str = field(default="dp-gcd", init=False)

    def __post_init__(self) -> None:
        count(self.records, "records")
        count(self.steps, "steps")
        positive(self.step_scale, "step_scale")
        non_negative(self.noise_ratio, "noise_ratio")
        if not self.clip > 0 or (self.clip == math.inf and self.noise_ratio > 0):
            raise InvalidInput(f"clip must be positive, and finite where noise is added, got {self.clip!r}.")
        if not self.objective.regulariser.separable:
            raise InvalidInput(
                "Coordinate descent needs a separable regulariser; take a box instead of the ball."
            )
        if isinstance(self.smoothness, (int, float)):
            positive(self.smoothness, "smoothness")
        else:
            entries = tuple(positive(v, "every entry of smoothness") for v in self.smoothness)
            object.__setattr__(self, "smoothness", entries)

    def curve(self) -> Curve:
        """Return the loss: T noisy selections and T Laplace releases."""
        r = self.noise_ratio
        selections = Curve.pure(2 / r if r else math.inf, self.steps)
        return selections + Curve.laplace(1 / r if r else math.inf, self.steps)

    @classmethod
    def for_budget(cls, *, epsilon: float, delta: float, **options: Any) -> DPGCD:
        """Return the plan with the least Laplace ratio whose own `privacy` meets the budget."""
        from sottovoce.algorithms.budget import least_noise

        return least_noise(lambda r: cls(noise_ratio=r, **options), epsilon, delta)

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
        """Train on ``data`` (a Dataset or (X, y), dense or CSR) and return the released coefficients."""
        started = time.perf_counter()
        X, y = records_of(data, self.objective)
        n, p = X.shape
        if self.adjacency == "replace-one" and n != self.records:
            raise InvalidInput(f"The plan is for {self.records} records (a public number), got {n}.")
        M = np.broadcast_to(np.asarray(self.smoothness, dtype=float), (p,)).copy()
        C = coordinate_clips(M, self.clip)
        moves = 2 if self.adjacency == "replace-one" else 1
        scale = self.noise_ratio * moves * C / self.records if self.noise_ratio else np.zeros(p)
        random = randomness(rng)
        r, model = self.objective.regulariser, self.objective
        columns = sp.csc_array(X) if is_sparse(X) else np.ascontiguousarray(X.T)
        # rounding to the grid moves two neighbouring values apart by up to a step: clip that much lower
        clips = C * max(1 - self.noise_ratio / GRID, 0.0) if random.noise.protective else C

        def advance(state: dict[str, np.ndarray], block: int, size: int) -> dict[str, np.ndarray]:
            w = state["w"].copy()
            slopes = record_slopes(model.kind, model.width, np.asarray(X @ w), y)
            G = _gradient(columns, slopes, clips) / self.records
            noisy = laplace(G, scale, random, block, 0)
            j = int(np.argmax(np.abs(noisy) / np.sqrt(M)))
            step = self.step_scale / M[j]
            released = laplace(G[j : j + 1], scale[j : j + 1], random, block, 1)
            w[j] = r.prox(w[j : j + 1] - step * released, step)[0]
            return {"w": w, "chosen": np.append(state["chosen"], j)}

        state = {
            "w": np.zeros(p) if start is None else np.array(start, dtype=float),
            "chosen": np.zeros(0, int),
        }
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        identity = fingerprint(config, X.data if is_sparse(X) else X, y) if checkpoint else ""
        state = run_blocks(
            state,
            self.steps,
            1,
            advance,
            checkpoint=checkpoint,
            identity=identity,
            every=block_size(self.steps),
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": state["w"], "chosen": state["chosen"]},
            history=history,
            guarantees=[self.privacy().to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )


def laplace(values: np.ndarray, scale: np.ndarray, random: Randomness, step: int, stream: int) -> np.ndarray:
    """Return values with Laplace noise: simulated, or for people whole steps of a grid from system entropy.

    Guarantees
    ----------
    Protective: the value is rounded to a grid of scale / 2^20 and gets a two-sided geometric number of
    steps, the discrete Laplace law; rounding can move a value by half a step, 2^-21 of a scale, which adds at
    most 2^-20 to the pure loss of one release; who calls pays for it by clipping lower. Zero scale adds
    nothing.
    """
    if not scale.any():
        return values
    if not random.noise.protective:
        return values + scale * random.draws(1, stream, step).laplace(size=len(values))
    grid = scale / GRID
    whole = np.rint(values / grid) + _geometric(len(values)) - _geometric(len(values))
    return whole * grid


def _geometric(count: int) -> np.ndarray:
    """Whole numbers with P(k) proportional to exp(-k / 2^20), from 64 bits of system entropy each."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return np.floor(-np.log((bits.astype(np.float64) + 0.5) / 2.0**64) * GRID)


def _gradient(columns: Any, slopes: np.ndarray, C: np.ndarray) -> np.ndarray:
    if is_sparse(columns):
        return _gradient_sparse(columns.indptr, columns.indices, columns.data, slopes, C)
    return _gradient_dense(columns, slopes, C)


@njit(cache=True)
def _gradient_dense(columns, slopes, C):
    """Per coordinate: the sum over records of clip(slope * x, C_j); overflow counts as zero."""
    p, n = columns.shape
    out = np.zeros(p)
    for j in range(p):
        total = 0.0
        for i in range(n):
            c = slopes[i] * columns[j, i]
            c = C[j] if c > C[j] else c
            c = -C[j] if c < -C[j] else c
            total += c if c == c else 0.0
        out[j] = total
    return out


@njit(cache=True)
def _gradient_sparse(indptr, indices, values, slopes, C):
    p = len(indptr) - 1
    out = np.zeros(p)
    for j in range(p):
        total = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            c = slopes[indices[k]] * values[k]
            c = C[j] if c > C[j] else c
            c = -C[j] if c < -C[j] else c
            total += c if c == c else 0.0
        out[j] = total
    return out
