"""The randomness of a run: noise, batches, dropout, the starting point, and which agent draws which."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.noise.samplers import NoiseSource, as_noise

SIMULATION = "simulation: reproducible, not protective"  # the kind of noise, in the provenance of results
_KEY_STREAM = 0x5A  # the noise stream that serves as key; releases use the lowest numbers


@dataclass(frozen=True)
class RunRandomness:
    """The randomness of one run.

    ``batches`` is the key of batches and dropout: a whole number in simulations, secret bytes where noise
    protects. The seed of the starting point is public. ``noise_ids`` are the numbers under which the hosted
    agents draw noise and batches; None: their own. (An audit trains many copies of one agent.)
    """

    noise: NoiseSource
    batches: int | bytes
    start_seed: int
    noise_ids: tuple[int, ...] | None = None

    @classmethod
    def from_rng(cls, rng: RandomSource) -> RunRandomness:
        """Return the randomness of a run from a numpy Generator (a simulation) or a noise source."""
        if isinstance(rng, RunRandomness):
            return rng
        if isinstance(rng, np.random.Generator):
            start_seed, batches, noise = (int(value) for value in rng.integers(2**62, size=3))
            return cls(as_noise(noise), batches, start_seed)
        noise_source = as_noise(rng)
        start_seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 2
        if noise_source.protective:
            return cls(noise_source, os.urandom(32), start_seed)
        # A recorded or simulated source comes without a generator: its batches follow from its own draws,
        # so that the same source gives the same run.
        drawn = noise_source.perturb(np.zeros((1, 4)), agents=[0], step=0, std=1.0, stream=_KEY_STREAM)
        words = [int(word) >> 2 for word in drawn.view(np.uint64).ravel()]
        return cls(noise_source, words[0], words[1])

    @property
    def protective(self) -> bool:
        """Whether the noise protects people."""
        return self.noise.protective

    @property
    def description(self) -> str:
        """The kind of noise in words, for results."""
        return "protective" if self.protective else SIMULATION

    @property
    def seeds(self) -> list[int] | None:
        """Seeds of batches and start, which name a simulation; None where they must stay secret."""
        return None if isinstance(self.batches, bytes) else [self.batches, self.start_seed]

    def noise_ids_of(self, agents: Sequence[int]) -> Sequence[int]:
        """Return the numbers under which the hosted ``agents`` draw noise and batches."""
        return list(agents) if self.noise_ids is None else list(self.noise_ids)

    def draws(self, *key: int) -> np.random.Generator:
        """Return the generator of one block of hidden choices (a walk's path, a coordinate).

        It depends on ``key`` and on the key of the batches, which is secret where noise protects: a repeated
        step makes the same choices.
        """
        if isinstance(self.batches, bytes):
            label = b"draws" + b"".join(int(part).to_bytes(16, "little", signed=True) for part in key)
            words = np.frombuffer(hmac.digest(self.batches, label, "sha256")[:16], np.uint64)
            return np.random.Generator(np.random.Philox(key=words))
        return np.random.default_rng([self.batches, 0xB10C, *key])


RandomSource = RunRandomness | NoiseSource | np.random.Generator | int
