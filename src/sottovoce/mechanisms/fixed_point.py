"""Gaussian mechanism for the blocks of an operator that the user supplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism


@dataclass(eq=False, kw_only=True)
class FixedPointMechanism(Mechanism):
    """Blocks of R(u; data), with noise.

    Guarantees
    ----------
    At most ``active_blocks`` blocks leave in a step. The operator cannot be clipped from outside, so the
    sensitivity is stated by the caller; the rounding of a protective source is paid for with more noise.
    """

    operator: Callable[..., np.ndarray]  # R(u, data) on an array (blocks, dim)
    data: object
    sensitivity: float  # S of one block, as stated
    noise_std: float
    active_blocks: int  # the most that may move in a step
    active: Callable[[int, np.random.Generator], ArrayLike] | None = None  # which blocks move; None: all
    error: Callable[..., np.ndarray] | None = None  # added to the operator

    def noisy_blocks(self, u: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks that move in a step, and their noisy values: exactly what is released."""
        draws = self.random.draws(0xF1, step)
        target = self.operator(u, self.data)
        if self.error is not None:
            target = target + self.error(u, self.data, step, draws)
        rows = np.arange(len(u)) if self.active is None else np.asarray(self.active(step, draws))
        if len(rows) > self.active_blocks:
            most = self.active_blocks
            raise InvalidInput(f"Step {step} moves {len(rows)} blocks, but {most} are accounted per step.")
        if len(rows) == 0:
            return rows, target[rows]
        self.check_and_record(
            Release(0, step, self.sensitivity, self.noise_std, self.adjacency, count=len(rows))
        )
        if self.noise_std == 0:
            return rows, target[rows]
        std = self._drawn_std(u.shape[1])
        return rows, self.random.noise.perturb(target[rows], agents=rows, step=step, std=std)

    def _drawn_std(self, dim: int) -> float:
        """Return the noise to draw: as announced, and what rounding costs on top."""
        if self.sensitivity == 0:
            return self.noise_std
        mu = self.sensitivity / self.noise_std
        left = mu - 2 * self.random.noise.slack(dim, 1.0)  # the slack is in proportion to the noise
        if left <= 0:
            raise InvalidInput("The rounding of the noise exceeds the sensitivity; add less noise.")
        return self.sensitivity / left if left < mu else self.noise_std
