"""Gaussian mechanism for averaging: each agent's row, clipped to a public ball, with noise, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Announced, Mechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.clipping import clip_around


class ValueMechanism(Mechanism):
    """Rows in a public ball, with noise.

    Parameters
    ----------
    rows : (agents, dim) one row per hosted agent.
    radius, center : the public ball, one radius for all or one per hosted agent; the sensitivity is twice it.
    noise_std : standard deviation of the noise, per coordinate; one for all, or one per hosted agent.
    noise_later : leave the noise to the protocol, which draws it at every contribution (a walk).

    Guarantees
    ----------
    Replacing one agent's row moves what is released by at most twice the radius. The rounding of a protective
    source is paid for by a slightly smaller ball. Rows that are not finite count as the center.
    """

    records_noiseless = False

    def __init__(
        self,
        rows: np.ndarray,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        radius: float | Sequence[float],
        noise_std: float | Sequence[float],
        center: float | np.ndarray = 0.0,
        noise_later: bool = False,
        releases: Announced | None = None,
    ) -> None:
        super().__init__(agents, random, "user", releases)
        self.std = self.noise_std = np.broadcast_to(np.asarray(noise_std, float), (len(self.agents),))
        self.noisy = bool(self.std.any()) and not noise_later
        radii = np.broadcast_to(np.asarray(radius, float), (len(self.agents),))
        self.sensitivity = 2 * radii
        self.center = np.asarray(center, dtype=rows.dtype)
        self.rows = np.empty_like(rows)
        # the grid of a protective source follows the noise, and so does its slack
        for std, ball in sorted(set(zip(self.std.tolist(), radii.tolist(), strict=True))):
            inner = ball - (random.noise.slack(rows.shape[1], std) if std else 0.0)
            if inner <= 0:
                raise InvalidInput(
                    f"The rounding slack exceeds the radius {ball:g}; a larger radius or less noise is "
                    "needed."
                )
            alike = (self.std == std) & (radii == ball)
            self.rows[alike] = clip_around(rows[alike], center, inner)

    def released(self, step: int) -> np.ndarray:
        """Return the rows that leave."""
        places = range(len(self.agents))
        if not self.noisy:
            return self.release(self.rows, places, step)
        # Noise is added about the center, so that the grid of a protective source is the center's.
        noisy: np.ndarray = self.center + self.release(self.rows - self.center, places, step)
        return noisy
