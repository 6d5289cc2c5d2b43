"""Is the public sum of a masked step one that members, clip and noise allow?

A masked row looks like random numbers, so nobody can check a single row. All members see the sum, though, and
its norm is bounded by what the plan makes public. A sum beyond that shows that some member sent something
else than a clipped row with its noise; it does not show which member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FALSE_ALARM = 1e-9  # of a whole run of honest members
_JUMP = 8.0  # times the largest sum of earlier steps
_WARNINGS = 16  # of one run; each is a permanent row of the ledger


@dataclass
class SumCheck:
    """Judges the mean of all rows after every masked step.

    ``row_norm`` is the largest L2 norm of one member's clean row on the grid, ``noise_std`` the standard
    deviation of one coordinate of the noise in the sum of all rows, ``largest_mean`` the agreed limit of the
    mean's L2 norm, None for what clip and noise allow.

    Guarantees
    ----------
    If all members are honest, the norm of the mean is beyond `allowed` in some step of the run with
    probability at most 1e-9: clean rows add up to at most ``members * row_norm``, and the norm of ``dim``
    sub-Gaussian numbers exceeds ``noise_std * sqrt(dim + 2 sqrt(dim t) + 2 t)`` with probability at most
    exp(-t) (Hsu, Kakade and Zhang 2012), here with t = ln(steps / 1e-9). A jump against earlier steps is a
    hint without such a bound: training that diverges jumps, too.
    """

    members: int
    dim: int
    steps: int
    row_norm: float
    noise_std: float
    largest_mean: float | None = None
    largest: float = 0.0  # norm of a mean that was not beyond the limit
    warned: int = 0

    @property
    def _noise_norm(self) -> float:
        """The largest L2 norm of the noise in the mean."""
        t = math.log(max(1, self.steps) / FALSE_ALARM)
        return self.noise_std * math.sqrt(self.dim + 2 * math.sqrt(self.dim * t) + 2 * t) / self.members

    @property
    def allowed(self) -> float:
        """The largest norm of the mean that clip and noise allow."""
        return self.row_norm + self._noise_norm

    @property
    def limit(self) -> float:
        """The norm of the mean beyond which the run stops."""
        return self.allowed if self.largest_mean is None else min(self.allowed, self.largest_mean)

    def judge(self, mean: np.ndarray, step: int) -> str:
        """Return what is wrong with the mean of a step, or nothing."""
        norm = float(np.linalg.norm(mean))
        if self.stops(mean):
            if norm > self.allowed:
                return f"the sum of step {step} is beyond what clip and noise allow"
            return f"the mean of step {step} is beyond the agreed largest_mean"
        jumped = self.largest > 0 and norm > _JUMP * self.largest + self._noise_norm
        self.largest = max(self.largest, norm)
        self.warned += jumped
        if not jumped or self.warned > _WARNINGS:
            return ""
        return f"the sum of step {step} is more than {_JUMP:g} times as large as all before"

    def stops(self, mean: np.ndarray) -> bool:
        """Return whether a mean is beyond the limit."""
        return not float(np.linalg.norm(mean)) <= self.limit
