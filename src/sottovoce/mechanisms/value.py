"""Gaussian mechanism for averaging: each agent's row, clipped to a public ball, with noise, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.objectives.clipping import clip_around


@dataclass(eq=False, kw_only=True)
class ValueMechanism(Mechanism):
    """Rows in a public ball, with noise.

    Guarantees
    ----------
    Replacing one agent's row moves what is released by at most twice the radius. The rounding of a protective
    source is paid for by a slightly smaller ball. Rows that are not finite count as the center.
    """

    rows: np.ndarray  # (agents, dim), clipped when the mechanism is made
    radius: float | Sequence[float]  # of the public ball, one for all or one per hosted agent
    noise_std: float | Sequence[float]  # per coordinate, one for all or one per hosted agent
    center: float | Sequence[float] | np.ndarray = 0.0
    noise_later: bool = False  # the protocol draws the noise, at every contribution (a walk)
    adjacency: str = "user"

    records_noiseless = False

    def __post_init__(self) -> None:
        super().__post_init__()
        radii = np.broadcast_to(np.asarray(self.radius, float), (len(self.agents),))
        self.set_scale(2 * radii, self.noise_std)
        self.noisy = self.noisy and not self.noise_later
        self.center = np.asarray(self.center, dtype=self.rows.dtype)
        clipped = np.empty_like(self.rows)
        # the grid of a protective source follows the noise, and so does its slack
        for std, ball in sorted(set(zip(self.stds.tolist(), radii.tolist(), strict=True))):
            inner = ball - (self.random.noise.slack(self.rows.shape[1], std) if std else 0.0)
            if inner <= 0:
                need = "a larger radius or less noise is needed"
                raise InvalidInput(f"The rounding slack exceeds the radius {ball:g}; {need}.")
            alike = (self.stds == std) & (radii == ball)
            clipped[alike] = clip_around(self.rows[alike], self.center, inner)
        self.rows = clipped

    def noisy_rows(self, step: int) -> np.ndarray:
        """Return the rows with noise, as they leave."""
        places = range(len(self.agents))
        if not self.noisy:
            return self.add_noise(self.rows, places, step)
        # Noise is added about the center, so that the grid of a protective source is the center's.
        return np.asarray(self.center + self.add_noise(self.rows - self.center, places, step))
