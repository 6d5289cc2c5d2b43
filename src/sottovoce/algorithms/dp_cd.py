r"""DP-CD: coordinate descent with noise and steps fitted to each coordinate.

.. math:: w_j \leftarrow \mathrm{prox}_{\gamma_j r_j}\Big(w_j - \gamma_j\Big(\frac1n\sum_i
          \mathrm{clip}(\partial_j f(w; d_i), C_j) + s_j\,\xi\Big)\Big),
          \qquad \gamma_j = c / M_j,\quad C_j = C\sqrt{M_j / \mathrm{tr} M},\quad s_j = z\,\frac{C_j}{n}

with j uniform. References: Mangold, Bellet, Salmon, Tommasi 2022, Algorithm 1
<https://arxiv.org/abs/2110.11688>; Bellet's 2024 talk on private optimization.
Departures from the talk: the noise is N(0, s_j^2) with s_j proportional to C_j / n (the slide's power of L_j
is a misprint), the clip rule is read as above (the slide is garbled), the answer is the mean of the
iterates, and the noise comes from the exact Gaussian composition, sqrt(T) m / z in GDP with m = 2 where a
record is replaced and m = 1 where it is added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sottovoce._validate import several
from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.release import MOVES, PRELIMINARY, Release
from sottovoce.algorithms.central_plan import CentralPlan
from sottovoce.algorithms.options import require_linear
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.coordinate import CoordinateMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.runners import Algorithm, State, in_blocks


@dataclass(frozen=True, repr=False)
class DPCD(CentralPlan):
    """Differentially private coordinate descent, central, at record level.

    Parameters
    ----------
    objective : a loss with a separable regularizer.
    records : the public number of records n, the divisor of every mean.
    steps : T, one coordinate each.
    clip_norm : C, dealt out over the coordinates by C_j = C sqrt(M_j / tr M).
    noise_multiplier : z, noise over the clip: coordinate j gets noise of standard deviation z C_j / n.
    smoothness : M_j when public; otherwise None, and they are released privately from ``bounds``.
    bounds : public B_j with |x_ij| <= B_j (values beyond are clipped in the estimate of M_j).
    smoothness_share : share of the squared GDP loss that goes to releasing M_j.
    smoothness_mu : GDP loss of releasing M_j, in place of the share.
    step_scale : c in gamma_j = c / M_j.
    period : restart from the running average every so many steps; None averages once at the end.
    adjacency : "replace-one" (n public, sensitivity 2 C_j / n) or "add-remove" (C_j / n).
    output : "mean" of the iterates (of the last period), or the "last" one.

    Guarantees
    ----------
    T Gaussian releases of mu = m / z each (m = 2 for replace-one, 1 for add-remove) and, if M_j is
    private, one of smoothness_mu: together GDP with mu^2 = T (m / z)^2 + smoothness_mu^2, tight for the worst
    case. Releases are listed in units of C_j / n, the same sensitivity for every coordinate. Which coordinate
    is released is public and drawn without looking at the data. Records that are not finite are refused.

    Examples
    --------
    >>> plan = DPCD(GLM("logistic"), records=1000, steps=100, clip_norm=1.0, noise_multiplier=20.0,
    ...             smoothness=(0.25, 0.25))
    >>> plan.privacy().mu
    1.0
    >>> plan = DPCD.for_budget(epsilon=1.0, delta=1e-6, steps=50, objective=GLM(), records=1000,
    ...                        clip_norm=1.0, bounds=(1.0, 1.0))
    >>> 0.999 < plan.privacy().epsilon(1e-6) <= 1.0
    True
    """

    objective: GLM
    records: int
    steps: int
    clip_norm: float
    noise_multiplier: float
    smoothness: tuple[float, ...] | None = None
    bounds: tuple[float, ...] | None = None
    smoothness_share: float = 0.1
    smoothness_mu: float | None = None
    step_scale: float = 1.0
    period: int | None = None
    adjacency: Adjacency = "replace-one"
    output: Literal["mean", "last"] = "mean"

    name = "dp-cd"
    query_kind = "coordinate"
    width = 1  # one released coordinate

    def __post_init__(self) -> None:
        require_linear(self.objective, self.name, separable=True)
        for name, values in (("smoothness", self.smoothness), ("bounds", self.bounds)):
            if values is not None:
                several(values, name)  # one number would not tell how many coordinates there are
        if (self.smoothness is None) == (self.bounds is None):
            raise InvalidInput("Give either public smoothness constants or public feature bounds, not both.")
        if self.smoothness_mu is not None and self.bounds is None:
            raise InvalidInput("smoothness_mu is for private smoothness; leave it out or give bounds.")

    @property
    def _dim(self) -> int:
        """Number of coordinates p."""
        return len(self.smoothness or self.bounds or ())

    @property
    def _preliminary_mu(self) -> float:
        """GDP loss of releasing M_j: as stated, or its share of the whole."""
        if self.smoothness_mu is not None:
            return self.smoothness_mu
        if not self.noise_multiplier:
            return math.inf
        odds = self.smoothness_share / (1 - self.smoothness_share)
        return math.sqrt(odds * self.steps) * MOVES[self.adjacency] / self.noise_multiplier

    def releases(self, agent: int) -> Sequence[Release]:
        """Return the coordinates, in units of C_j / n, and before them the smoothness if it is private."""
        z, adjacency = self.noise_multiplier, self.adjacency
        coordinates = Release(agent, 0, MOVES[adjacency], z, adjacency, steps=self.steps)
        if self.bounds is None:
            return (coordinates,)
        sensitivity = math.sqrt(self._dim) / self.records
        std = sensitivity / self._preliminary_mu
        return (Release(agent, 0, sensitivity, std, adjacency, stream=PRELIMINARY), coordinates)

    def prepared(self, data: object) -> Shards:
        shards: Shards = super().prepared(data)
        if shards.dim != self._dim:
            raise InvalidInput(f"The plan knows {self._dim} coordinates, the data have {shards.dim}.")
        return shards

    def mechanism(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> CoordinateMechanism:
        mu = self._preliminary_mu
        return self._mechanism(CoordinateMechanism, agents, random, data=data, smoothness_mu=mu)

    def algorithm(self, mechanism: CoordinateMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 1; the holder's own state is the margins of its records."""
        steps, length = self.steps, self.period or self.steps

        def init() -> State:
            M = mechanism.noisy_smoothness()
            model = CDModel(start, np.zeros_like(start), np.zeros((), np.int64), M)
            return State(model, mechanism.margins(start))

        def restarted(model: CDModel, margins: np.ndarray, k: int) -> State:
            """Begin a new period at the average of the last; the run's last period is left for the output."""
            if k % length or k >= steps:
                return State(model, margins)
            w = model.total / length
            fresh = CDModel(w, np.zeros_like(w), np.zeros((), np.int64), model.M)
            return State(fresh, mechanism.margins(w))

        def block(state: State, k: int, count: int) -> State:
            while count:
                model: CDModel = state.common
                part, gamma = min(count, length - k % length), self.step_scale / model.M
                w, total, margins = mechanism.descend(
                    model.M, model.w, model.total, state.own, k, part, gamma
                )
                k, count = k + part, count - part
                state = restarted(CDModel(w, total, model.taken + part, model.M), margins, k)
            return state

        def output(state: State) -> np.ndarray:
            model: CDModel = state.common
            return model.total / int(model.taken) if self.output == "mean" and model.taken else model.w

        return in_blocks(init, output, block)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        model: CDModel = state.common
        return {"coef": rows[0], "last": model.w[0], "smoothness": model.M}

    @property
    def _gaussian_noise(self) -> float | None:
        return None if self.smoothness_mu is not None else 1.0


class CDModel(NamedTuple):
    """All of it is released: the model, the sum of the iterates since a restart and their number, M_j."""

    w: np.ndarray
    total: np.ndarray
    taken: np.ndarray
    M: np.ndarray
