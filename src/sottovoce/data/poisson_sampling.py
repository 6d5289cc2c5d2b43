"""Poisson sampling of batches that can be drawn again.

A batch depends on (key, agent, step, stream) only, so a run in one process, a rank and a peer draw the same
one. An integer key (simulation) drives Philox. A key of bytes (a run that protects people) drives
AES-256-CTR, because the records of a batch must stay secret.
"""

from __future__ import annotations

import hmac
import math
import struct
from collections.abc import Sequence

import numpy as np

from sottovoce import _validate

# Below this rate the gaps between members are drawn instead of one number per record: the work is then
# that of the batch and not that of the records.
_SPARSE = 0.2
_MANY = 8192


class PoissonSampler:
    """Poisson batches of several agents, with so many records (``sizes``) and probabilities (``rates``).

    ``key`` is a whole number (simulation) or 32 secret bytes (protective); ``numbers`` key the batches of
    each hosted agent, by default its place.

    Guarantees
    ----------
    Each record of agent ``i`` is in a batch independently with probability ``rates[i]`` (protective: never
    above it, below it by less than 2^-63), as the accountant assumes. A rate of 1 takes every record. A batch
    may be empty.
    """

    def __init__(
        self,
        sizes: Sequence[int] | np.ndarray,
        rates: Sequence[float],
        key: int | bytes,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.sizes = [_validate.count(int(size), "an agent's number of records") for size in sizes]
        self.rates = [_validate.probability(rate, "sample_rate", zero=False) for rate in rates]
        self.numbers = list(range(len(self.sizes))) if numbers is None else [int(v) for v in numbers]
        self.key = key if isinstance(key, bytes) else _validate.count(key, "the sampling key", minimum=0)
        # full batches are made once and shared: thousands of agents draw them in every step
        self._whole: dict[int, np.ndarray] = {}
        self._last: tuple[tuple[int, ...], list[np.ndarray]] = ((), [])
        self._always = all(rate == 1 for rate in self.rates)
        if isinstance(self.key, int):
            self._words = np.random.SeedSequence([self.key, 0x107]).generate_state(2, np.uint64)

    def draw(self, places: Sequence[int], step: int, stream: int = 0) -> list[np.ndarray]:
        """Return, for the agents at some places, the rows of the batch within the agent's records.

        Drawn again at once, the same list is returned: a loop looks at the batch of the next step.
        """
        key = (0, 0, *places) if self._always else (step, stream, *places)
        if self._last[0] != key:
            self._last = (key, [self._one(int(place), step, stream) for place in places])
        return self._last[1]

    def _one(self, place: int, step: int, stream: int) -> np.ndarray:
        size, rate, number = self.sizes[place], self.rates[place], self.numbers[place]
        if rate == 1:
            return self._all(size)
        if isinstance(self.key, bytes):
            return np.flatnonzero(self._secret(size, number, step, stream) < _threshold(rate))
        if rate < _SPARSE and size >= _MANY:
            bits = np.random.Philox(key=self._words, counter=np.array([0, number, step, stream], np.uint64))
            return _by_gaps(np.random.Generator(bits), size, rate)
        from sottovoce.noise.philox import members_below

        return members_below(rate, self._words, number, step, stream, size)

    def _all(self, size: int) -> np.ndarray:
        """Return every row; agents with equally many records share one read-only array."""
        if size not in self._whole:
            self._whole[size] = np.arange(size)
            self._whole[size].flags.writeable = False
        return self._whole[size]

    def _secret(self, count: int, number: int, step: int, stream: int) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        assert isinstance(self.key, bytes)
        label = b"lot" + struct.pack("<QQQ", number, step, stream)
        once = hmac.digest(self.key, label, "sha256")
        stream_of = Cipher(algorithms.AES(once), modes.CTR(bytes(16))).encryptor()
        return np.frombuffer(stream_of.update(bytes(8 * count)), np.uint64)


def _threshold(rate: float) -> np.uint64:
    return np.uint64(min(int(rate * 2**64), 2**64 - 1))


def _by_gaps(rng: np.random.Generator, size: int, rate: float) -> np.ndarray:
    """Members of a Poisson sample by the geometric gaps between them."""
    places: list[np.ndarray] = []
    last = -1
    while last < size:
        wanted = int((size - last) * rate + 6 * math.sqrt(size * rate) + 16)
        gaps = np.cumsum(rng.geometric(rate, size=wanted)) + last
        places.append(gaps)
        last = int(gaps[-1])
    members = np.concatenate(places)
    return members[members < size]
