"""Gaussian mechanism for the blocks of an operator that the user supplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Announced
from sottovoce.mechanisms.coordinate import HolderMechanism
from sottovoce.noise.run_randomness import RunRandomness


class FixedPointMechanism(HolderMechanism):
    """Blocks of R(u; data), with noise.

    Parameters
    ----------
    operator, data : ``operator(u, data)`` on an array (blocks, dim), and what it reads.
    agents, random : the hosted agent (one), and the randomness.
    sensitivity, noise_std : the stated S of one block, and sigma.
    blocks, active_blocks : how many blocks there are, and how many may move in a step.
    active, error : which blocks move, and what is added to the operator; see `FixedPoint`.
    adjacency, releases : what neighboring data sets differ in, and what the plan announced.

    Guarantees
    ----------
    At most ``active_blocks`` blocks leave in a step. The operator cannot be clipped from outside, so the
    sensitivity is stated by the caller; the rounding of a protective source is paid for with more noise.
    """

    def __init__(
        self,
        operator: Callable[[np.ndarray, Any], np.ndarray],
        data: object,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        sensitivity: float,
        noise_std: float,
        blocks: int,
        active_blocks: int,
        active: Callable[[int, np.random.Generator], Any] | None = None,
        error: Callable[..., np.ndarray] | None = None,
        adjacency: str = "replace-one",
        releases: Announced | None = None,
    ) -> None:
        super().__init__(agents, random, adjacency, releases)
        self.operator, self.data = operator, data
        self.moves, self.scale = float(sensitivity), float(noise_std)
        self.noisy = self.scale > 0
        self.blocks, self.active_blocks = blocks, active_blocks
        self.active, self.error = active, error

    def released(self, u: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks that move in a step, and their noisy values: exactly what is released."""
        draws = self.random.draws(0xF1, step)
        target = self.operator(u, self.data)
        if self.error is not None:
            target = target + self.error(u, self.data, step, draws)
        rows = np.arange(len(u)) if self.active is None else np.asarray(self.active(step, draws))
        if len(rows) > self.active_blocks:
            raise InvalidInput(
                f"Step {step} moves {len(rows)} blocks, but {self.active_blocks} are accounted per step."
            )
        if len(rows) == 0:
            return rows, target[rows]
        self.announce(step, sensitivity=self.moves, noise_std=self.scale, count=len(rows))
        std = self._std(u.shape[1])
        if std == 0:
            return rows, target[rows]
        return rows, self.random.noise.perturb(target[rows], agents=rows, step=step, std=std)

    def _std(self, dim: int) -> float:
        """Return the noise to draw: as announced, and what rounding costs on top."""
        if self.scale == 0 or self.moves == 0:
            return self.scale
        mu = self.moves / self.scale
        left = mu - 2 * self.random.noise.slack(dim, 1.0)  # the slack is in proportion to the noise
        if left <= 0:
            raise InvalidInput("The rounding of the noise exceeds the sensitivity; add less noise.")
        return self.moves / left if left < mu else self.scale
