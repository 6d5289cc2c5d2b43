r"""Private ADMM at a trusted curator, and what the three variants of private ADMM share.

For min (1/n) sum_i f_i(w) + r(w) with step gamma and relaxation lambda, every client keeps u_i and does

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big),\qquad
          u_i \mathrel{+}= 2\lambda\Delta_i,\qquad \hat z \mathrel{+}= \frac1n\sum_i(\ldots),\qquad
          z = \mathrm{prox}_{\gamma r}(\hat z)

References: [1] Cyffers, Bellet, Basu 2023, Algorithm 2 <https://arxiv.org/abs/2302.12559>;
Bellet's 2024 talk.
Departures from [1], each needed for the guarantee or the result to be right:

- the noise goes onto the released mean and not into u_i. With noise in u_i (independent, as printed, or one
  common vector) u_i depends on more than record i and the released z: given the same z, replacing record 1
  moves every u_i, and the printed loss is not an upper bound. That form is kept as ``noise_in="state"`` with
  the label "published";
- the server adds to its running mean z^ (printed: to z), else the fixed point is wrong when r is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.observation import Curator, ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.algorithms.central_plan import CentralPlan
from sottovoce.algorithms.gradient_plan import n_params
from sottovoce.algorithms.options import require_dense, require_linear
from sottovoce.algorithms.plan import Plan
from sottovoce.data.base import Shards, as_agent_records
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.admm import RecordProxMechanism
from sottovoce.mechanisms.base import Announced
from sottovoce.objectives.glm import GLM
from sottovoce.runners import Algorithm, State, in_blocks


class ADMMPlan(Plan):
    """What the three variants of private ADMM share."""

    objective: GLM
    gamma: float
    relaxation: float
    clip_norm: float
    noise_std: float

    noise_field = "noise_std"
    query_kind = "proximal-step"

    def __post_init__(self) -> None:
        require_linear(self.objective, self.name)

    @property
    def width(self) -> int:
        return n_params(self.objective)

    def _sensitivity(self, clips: float) -> float:
        """Return the length of so many clips; without a clip norm nothing is claimed."""
        return clips * (self.clip_norm if math.isfinite(self.clip_norm) else 1.0)

    def _announced(self, agents: Sequence[int]) -> Announced | None:
        return super()._announced(agents) if math.isfinite(self.clip_norm) else None

    def _regularized(self, zh: np.ndarray) -> np.ndarray:
        """Return z from z^ by the regularizer's proximal map."""
        return self.objective.regularizer.prox(zh, self.gamma)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        """Return z and z^, and not who took part."""
        return {"coef": rows[0], "mean": state.common[0][0]}


class UsersADMM(ADMMPlan):
    """What the two variants without a curator share: as many shards as users."""

    users: int

    adjacencies = ("user",)

    @property
    def n(self) -> int:
        return self.users

    def prepared(self, data: object) -> Shards:
        records = as_agent_records(data)
        if records.n != self.users:
            raise InvalidInput(f"The plan is for {self.users} users, the data have {records.n}.")
        require_dense(records, self.name)
        return self.objective.prepared(records)  # type: ignore[arg-type]  # which refuses others


@dataclass(frozen=True, repr=False)
class CentralADMM(ADMMPlan, CentralPlan):
    """Private ADMM at a trusted curator, at record level.

    Parameters
    ----------
    objective : loss and regularizer.
    records : the public number of records n.
    steps : K.
    gamma, relaxation : the proximal step, and lambda in (0, 1].
    clip_norm : C, the length to which each record's share is clipped (gamma L is enough for an L-Lipschitz
        loss: at the solution u_i - z = -gamma grad f_i).
    noise_std : sigma.
    noise_in : where the noise goes.
        "mean" (default): z^ = z + mean of clip_C(u_i - z) + noise, afresh in every step, so that past noise
        does not pile up; "increment": z^ grows by the noisy mean of the clipped moves, noise piles up;
        "state": as published, one common vector into every u_i.

    Guarantees
    ----------
    replace-one. "mean": the released mean moves by at most 2 C / n, u_i being a function of record i and
    the released z, so K steps cost mu^2 = K (2 C / (n sigma))^2. "increment": K (4 C / (n sigma))^2. "state"
    has no guarantee: its statement is the printed 8 alpha K C^2 / (n sigma)^2, labeled "published".

    Examples
    --------
    >>> plan = CentralADMM(GLM("squared"), records=100, steps=25, gamma=1.0, clip_norm=1.0, noise_std=0.1)
    >>> round(plan.privacy().mu, 6), plan.privacy().label
    (1.0, 'exact')
    """

    objective: GLM
    records: int
    steps: int
    gamma: float
    clip_norm: float
    noise_std: float
    relaxation: float = 0.5
    noise_in: Literal["mean", "increment", "state"] = "mean"
    adjacency: Adjacency = "replace-one"

    name = "admm"
    mechanism_class = RecordProxMechanism
    adjacencies = ("replace-one",)

    @property
    def observation(self) -> ObservationModel:
        """A trusted curator; noise inside the state, as printed, has no guarantee."""
        if self.noise_in == "state":
            return Curator("formula of Cyffers, Bellet, Basu 2023 with one common noise vector")
        return Curator()

    def releases(self, agent: int) -> Sequence[Release]:
        moved = self._sensitivity(2.0 if self.noise_in == "mean" else 4.0) / self.records
        return (Release(agent, 0, moved, self.noise_std, self.adjacency, steps=self.steps),)

    def algorithm(self, mechanism: RecordProxMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 2 of [1] with the noise on the released mean."""
        prox, lam, fresh = self._regularized, self.relaxation, self.noise_in == "mean"

        def block(state: State, k: int, count: int) -> State:
            (zh,), (duals,) = state
            for step in range(k, k + count):
                z = prox(zh[0])
                duals, mean = mechanism.step(duals, z, step)
                zh = z + mean if fresh else zh + lam * mean
            return State((zh,), (duals,))

        init = State((start,), (np.repeat(start, self.records, axis=0),))
        return in_blocks(lambda: init, lambda state: prox(state.common[0]), block)
