"""Standard normals in float32, the numbers of numpy's Philox and ziggurat, three times as fast.

numpy draws one number per call of a function pointer. Here the words of many counters are computed in one
loop (Philox4x64-10 [1]) and turned into normals in another (ziggurat [2]); every bit is that of
``Generator(Philox(key=key, counter=[0, agent, step, stream])).standard_normal(dtype=np.float32)``.

References: [1] Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
[2] Marsaglia, Tsang, The Ziggurat Method for Generating Random Variables, 2000.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_WORDS = 1024  # random words at a time; they stay in the first cache
_PARALLEL = 1 << 17  # numbers above which a second thread is worth starting
_FAR = 3.6541528853610088  # where the tail begins
_ONE, _HALF = np.uint32(1), np.uint64(32)
_FACTOR0, _FACTOR1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_STEP0, _STEP1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)


def standard_normals(key: np.ndarray, agents: np.ndarray, dim: int, step: int, stream: int) -> np.ndarray:
    """Return (agents, dim) numbers, the row of an agent keyed by agent, step and stream."""
    drawn = np.empty((len(agents), dim), np.float32)
    numbers, fixed = agents.astype(np.uint64), np.array([step, stream, *key], np.uint64)
    most: int = vars(numba.config)["NUMBA_NUM_THREADS"]
    threads = min(most, len(agents)) if drawn.size > _PARALLEL else 1
    parts = np.array_split(np.arange(len(agents)), threads)
    spans = [slice(part[0], part[-1] + 1) for part in parts if len(part)]
    others = [threading.Thread(target=_fill, args=(drawn[s], numbers[s], fixed, *_TABLES)) for s in spans[1:]]
    for thread in others:
        thread.start()
    for span in spans[:1]:
        _fill(drawn[span], numbers[span], fixed, *_TABLES)
    for thread in others:
        thread.join()
    return drawn


def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, of the 256 strips of equal area: the share that is inside, the width, the height below."""

    def height(x: float) -> float:
        return math.exp(-0.5 * x * x)

    area = _FAR * height(_FAR) + math.sqrt(math.pi / 2) * math.erfc(_FAR / math.sqrt(2))
    edges = [area / height(_FAR), _FAR]  # the lowest strip, with the tail, as if it were a rectangle
    while len(edges) < 256:
        edges.append(math.sqrt(-2 * math.log(area / edges[-1] + height(edges[-1]))))
    widths = np.array([edges[0], *edges[:0:-1]])
    inner = np.array([_FAR, 0.0, *widths[1:-1]])
    heights = np.exp(-0.5 * np.array([0.0, *widths[1:]]) ** 2)
    inside = np.rint(inner / widths * 2**23).astype(np.uint32)
    return inside, (widths * 2.0**-23).astype(np.float32), heights.astype(np.float32)


_TABLES = _tables()


@intrinsic
def _high(typing_context: Any, a: Any, b: Any) -> Any:
    """The upper half of a product of two 64-bit numbers, one instruction that numba does not offer."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


@njit(nogil=True, cache=True)
def _refill(words: Any, state: Any) -> None:
    """Write the words of the next counters, the low half of each 64 bits before the high."""
    for block in range(len(words) // 8):
        x0, x1, x2, x3 = state[0] + np.uint64(block + 1), state[1], state[2], state[3]
        k0, k1 = state[4], state[5]
        for _ in range(10):
            y0, y2 = x0, x2
            x0, x1 = _high(_FACTOR1, y2) ^ x1 ^ k0, _FACTOR1 * y2  # type: ignore[call-arg]
            x2, x3 = _high(_FACTOR0, y0) ^ x3 ^ k1, _FACTOR0 * y0
            k0 += _STEP0
            k1 += _STEP1
        at = 8 * block
        words[at], words[at + 1] = np.uint32(x0), np.uint32(x0 >> _HALF)
        words[at + 2], words[at + 3] = np.uint32(x1), np.uint32(x1 >> _HALF)
        words[at + 4], words[at + 5] = np.uint32(x2), np.uint32(x2 >> _HALF)
        words[at + 6], words[at + 7] = np.uint32(x3), np.uint32(x3 >> _HALF)
    state[0] += np.uint64(len(words) // 8)


@njit(nogil=True, cache=True)
def _uniform(words: Any, state: Any, at: int) -> Any:
    """Return a number in [0, 1) and the place after it."""
    if at == len(words):
        _refill(words, state)
        at = 0
    return np.float32(words[at] >> np.uint32(8)) * np.float32(2.0**-24), at + 1


@njit(nogil=True, cache=True)
def _fill(drawn: Any, agents: Any, fixed: Any, inside: Any, widths: Any, heights: Any) -> None:
    words, state = np.empty(_WORDS, np.uint32), np.empty(6, np.uint64)
    far, inverse = np.float32(_FAR), np.float32(1 / _FAR)
    for a in range(len(agents)):
        state[0], state[1], state[2:] = 0, agents[a], fixed
        row, done, at = drawn[a], 0, _WORDS
        while done < len(row):
            if at == _WORDS:
                _refill(words, state)
                at = 0
            inner, x, strip, size = True, np.float32(0), np.uint32(0), np.uint32(0)
            for word in words[at : at + len(row) - done]:  # 99 of 100 numbers need one word and no more
                strip, size = word & np.uint32(0xFF), word >> np.uint32(9)
                x = np.float32(size) * widths[strip]
                x = -x if word & np.uint32(0x100) else x
                at += 1
                inner = size < inside[strip]
                if not inner:
                    break
                row[done] = x
                done += 1
            if inner:
                continue
            if strip == 0:
                beyond, y = np.float32(1), np.float32(0)
                while y + y <= beyond * beyond:
                    u, at = _uniform(words, state, at)
                    v, at = _uniform(words, state, at)
                    beyond, y = -inverse * np.log1p(-u), -np.log1p(-v)
                row[done] = -(far + beyond) if size >> np.uint32(8) & _ONE else far + beyond
                done += 1
            else:
                u, at = _uniform(words, state, at)
                low, high = heights[strip], heights[strip - _ONE]
                if (high - low) * u + low < np.exp(-0.5 * x * x):
                    row[done] = x
                    done += 1
