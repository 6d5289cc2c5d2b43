"""Protective integers: discrete Gaussian and discrete Laplace numbers from AES-256-CTR.

:math:`K = K_1 + 256 K_2` with both parts of parameter 512 is a discrete Gaussian of parameter
:math:`512\\sqrt{65537}`. The parts are drawn by the alias method from one table with 114-bit probabilities.

How far from exact, per number: the table stops at 16 standard deviations (mass below 2^-180) and its
probabilities are off by less than 2^-100 in all; by Poisson summation the sum of the two parts is a discrete
Gaussian up to a relative error :math:`2 e^{-8\\pi^2} < 2^{-112}` because 512 is twice the step 256. The
total is below 2^-99.

References: Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy, 2020,
<https://arxiv.org/abs/2004.00010>.
"""

from __future__ import annotations

import functools
import math
import os
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

NARROW_WIDTH = 512  # parameter of the table's discrete Gaussian
_FACTOR = 256  # K = K1 + _FACTOR * K2
STEPS_PER_STD = NARROW_WIDTH * math.sqrt(1 + _FACTOR**2)
_SLOTS = 1 << 14
_INDEX_BITS = 14
_FIRST_BITS = 32 - _INDEX_BITS  # bits of a slot's threshold that the 32-bit word decides
_TIE_BITS = 96  # further bits, drawn only when the first ones are equal
LAPLACE_STEPS = 1 << 20  # grid steps of protective Laplace noise per scale
_CHUNK = 1 << 15  # numbers per block: tables and buffers stay in the cache
_ZEROS = memoryview(bytes(1 << 16))


def discrete_gaussian(count: int, key: bytes | None = None) -> np.ndarray:
    """Return ``count`` protective draws of the discrete Gaussian of parameter `STEPS_PER_STD`, int32.

    With 32 secret bytes as ``key`` they are a function of it, else of a key made now and forgotten.
    """
    draws = np.empty(count, np.int32)
    if count == 0:
        return draws
    bits = Bits(key)
    words = bits.words(2 * count)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        pairs = narrow_gaussian(words[2 * start : 2 * stop], bits)
        np.multiply(pairs[1::2], _FACTOR, out=draws[start:stop])
        draws[start:stop] += pairs[::2]
    return draws


def narrow_gaussian(words: np.ndarray, bits: Bits) -> np.ndarray:
    """Turn 32-bit words into discrete Gaussians of parameter 512: alias method, ties decided by more bits."""
    threshold, alias, low = _table()
    slot = words >> np.uint32(_FIRST_BITS)
    part = words & np.uint32((1 << _FIRST_BITS) - 1)
    bound = threshold.take(slot)
    keep = part < bound
    for tie in np.flatnonzero(part == bound).tolist():
        keep[tie] = int.from_bytes(bits.more(_TIE_BITS // 8), "little") < low[int(slot[tie])]
    # alias is doubled: the second half holds each slot's own value
    slot += keep.astype(np.uint32) << np.uint32(_INDEX_BITS)
    return alias.take(slot)


@functools.cache
def _table() -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return thresholds (first bits), [alias values, own values], and the thresholds' remaining bits.

    Slot i stands for the value ``i - 8192`` and holds mass 2^114; what a slot lacks is filled by its alias.
    All arithmetic is on integers, so the probabilities are exact to the last of their 114 bits.
    """
    unit = 1 << (_FIRST_BITS + _TIE_BITS)
    masses = _integer_masses(unit * _SLOTS)
    small = [i for i, mass in enumerate(masses) if mass < unit]
    large = [i for i, mass in enumerate(masses) if mass >= unit]
    alias = list(range(_SLOTS))
    while small and large:
        poor, rich = small.pop(), large[-1]
        alias[poor] = rich
        masses[rich] -= unit - masses[poor]
        if masses[rich] < unit:
            small.append(large.pop())
    # a full slot cannot be written in 114 bits; it is its own alias, so both answers agree
    own = [min(mass, unit - 1) for mass in masses]
    threshold = np.array([mass >> _TIE_BITS for mass in own], np.uint32)
    values = np.array([*alias, *range(_SLOTS)], np.int32) - _SLOTS // 2
    return threshold, values, [mass & ((1 << _TIE_BITS) - 1) for mass in own]


def _integer_masses(total: int) -> list[int]:
    """Return the masses of -8192 .. 8191 under the narrow discrete Gaussian; they sum to ``total``."""
    half = _SLOTS // 2
    with localcontext() as context:
        context.prec = 80
        ratio = (Decimal(-1) / (2 * NARROW_WIDTH**2)).exp()  # rho(k+1) / rho(k) = ratio^(2k+1)
        rho, factor = [Decimal(1)], ratio
        for _ in range(half):
            rho.append(rho[-1] * factor)
            factor *= ratio * ratio
        scale = Decimal(total) / (rho[0] + 2 * sum(rho[1:half]))
        masses = [0] + [int(rho[abs(k)] * scale) for k in range(1 - half, half)]
    masses[half] += total - sum(masses)  # what truncation lost, less than 2^14 units of 2^-128, goes to zero
    return masses


class Bits:
    """Two streams of AES-256-CTR under one key: words, and the few further bits that decide ties.

    Without a key it is one of the operating system, made now.
    """

    def __init__(self, key: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        cipher = algorithms.AES(os.urandom(32) if key is None else key)

        def stream(first: bytes) -> CipherContext:
            return Cipher(cipher, modes.CTR(first + bytes(15))).encryptor()

        self._stream, self._words = stream, stream(b"\0")

    @functools.cached_property
    def _more(self) -> CipherContext:
        return self._stream(b"\x80")  # its counters begin half way round, 2^127 blocks away

    def words(self, count: int) -> np.ndarray:
        """Return the next 32-bit words."""
        words = np.empty(count, np.uint32)
        target = words.view(np.uint8).data
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._words.update_into(_ZEROS[: len(part)], part)
        return words

    def more(self, count: int) -> bytes:
        """Return the next bytes of the second stream."""
        return self._more.update(bytes(count))


def discrete_laplace(count: int) -> np.ndarray:
    """Return ``count`` protective whole numbers with P(k) proportional to exp(-|k| / 2^20), as floats.

    A difference of two geometric numbers, each K = A + 2^20 B with A below 2^20 and B without a bound, by
    trials that succeed with probability exp(-a / 2^20) (Canonne, Kamath, Steinke 2020, Algorithms 1 and 2).
    Trials of 1/k are decided by 60 bits, so that every probability is right to a relative 2^-50.
    """
    whole = _geometric(2 * count).astype(np.float64)
    return whole[:count] - whole[count:]


def _geometric(count: int) -> np.ndarray:
    """Return whole numbers with P(k) proportional to exp(-k / 2^20), int64."""
    low = np.empty(count, np.int64)
    waiting = np.arange(count)
    while len(waiting):  # keep a uniform number a with probability exp(-a / 2^20)
        tried = (Bits().words(len(waiting)) >> np.uint32(12)).astype(np.int64)
        taken = _with_probability_exp(tried)
        low[waiting[taken]] = tried[taken]
        waiting = waiting[~taken]
    high = np.zeros(count, np.int64)
    going = np.arange(count)
    while len(going):  # one more with probability 1/e, and so on
        going = going[_with_probability_exp(np.full(len(going), LAPLACE_STEPS))]
        high[going] += 1
    return low + LAPLACE_STEPS * high


def _with_probability_exp(a: np.ndarray) -> np.ndarray:
    """Return, for every a in [0, 2^20], True with probability exp(-a / 2^20).

    The first k at which a trial of probability a / (2^20 k) fails is odd with that probability.
    """
    first = np.ones(len(a), np.int64)
    going = np.arange(len(a))
    k = 1
    while len(going):
        words = Bits().words(3 * len(going)).reshape(3, -1)
        won = (words[0] >> np.uint32(12)).astype(np.int64) < a[going]
        uniform = (words[1].astype(np.uint64) << np.uint64(28)) | (words[2] >> np.uint32(4)).astype(np.uint64)
        won &= uniform < np.uint64((1 << 60) // k)
        going = going[won]
        k += 1
        first[going] = k
    return first % 2 == 1
