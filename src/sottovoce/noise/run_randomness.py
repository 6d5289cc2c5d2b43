"""What is random in a run, in one value: noise, lots, dropout, the start, and the numbers that key them."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.noise.samplers import NoiseSource, as_noise

__all__ = ["RunRandomness"]


@dataclass(frozen=True)
class RunRandomness:
    """The randomness of one run.

    Parameters
    ----------
    noise : the noise source.
    lots : key of the lots (and dropout): a whole number in simulations, secret bytes where noise protects.
    start : public seed of the starting point.
    numbers : what keys noise and lots of the hosted agents, one each; None: the agents' own numbers. (An
        audit trains many copies of one agent, each with randomness of its own.)

    Examples
    --------
    >>> one, same = (RunRandomness.of(np.random.default_rng(1)) for _ in range(2))
    >>> one.lots == same.lots, one.protective
    (True, False)
    """

    noise: NoiseSource
    batches: int | bytes
    start: int
    numbers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, rng: Any) -> RunRandomness:
        """Return the randomness of a run from a numpy Generator (a simulation) or a noise source."""
        if isinstance(rng, RunRandomness):
            return rng
        if isinstance(rng, np.random.Generator):
            start, batches, noise = (int(value) for value in rng.integers(2**62, size=3))
            return cls(as_noise(noise), batches, start)
        noise_source = as_noise(rng)
        start = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 2
        if noise_source.protective:
            return cls(noise_source, os.urandom(32), start)
        # a recorded or simulated source that came without a generator: its lots follow from its own draws,
        # so that the same source gives the same run
        drawn = noise_source.perturb(np.zeros((1, 4)), agents=[0], step=0, std=1.0, stream=_KEYS)
        words = [int(word) >> 2 for word in drawn.view(np.uint64).ravel()]
        return cls(noise_source, words[0], words[1])

    @property
    def protective(self) -> bool:
        """Whether the noise protects people."""
        return self.noise.protective

    @property
    def words(self) -> str:
        """What a record says about this noise."""
        return "protective" if self.protective else "simulation: reproducible, not protective"

    @property
    def seeds(self) -> list[int] | None:
        """What brings the same lots and start back after an interruption; None where it must stay secret."""
        return None if isinstance(self.batches, bytes) else [self.batches, self.start]

    def hosting(self, agents: Sequence[int]) -> Sequence[int]:
        """Return the numbers that key noise and lots of the hosted ``agents``."""
        return list(agents) if self.numbers is None else list(self.numbers)

    def again(self, seeds: Sequence[int]) -> RunRandomness:
        """Return this randomness with the lots and start of an interrupted run."""
        return replace(self, batches=int(seeds[0]), start=int(seeds[1]))

    def draws(self, *key: int) -> np.random.Generator:
        """Return the generator of one block of hidden choices (a walk's path, a coordinate).

        It is a function of ``key`` and of the key of the lots, which is secret where noise protects: a step
        that is done again makes the same choices.
        """
        if isinstance(self.batches, bytes):
            label = b"draws" + b"".join(int(part).to_bytes(16, "little", signed=True) for part in key)
            words = np.frombuffer(hmac.digest(self.batches, label, "sha256")[:16], np.uint64)
            return np.random.Generator(np.random.Philox(key=words))
        return np.random.default_rng([self.batches, 0xB10C, *key])


_KEYS = 0x5A  # the noise stream that serves as key; releases use the lowest numbers
