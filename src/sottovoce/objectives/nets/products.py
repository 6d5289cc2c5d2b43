"""Float32 products of matrices in vectors of 512 bits, and as a part of compiled loops.

The library that torch calls takes 256 bits on some processors that have 512, which costs half the speed.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features
from numba import njit, prange
from torch import Tensor

from sottovoce.objectives.nets.float64_sums import start_threads
from sottovoce.objectives.nets.vectors import load, spread, store

_WIDE = get_host_cpu_features().get("avx512f", False)
TILE = 32 if _WIDE else 8  # columns: eight rows of them, a row of factors and one number fill the registers
_ROWS = 64  # that a thread takes at a time


def products(left: Tensor, right: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return ``left @ right + bias`` of several matrices; rows of ``right`` should be contiguous.

    The arguments are (batch, rows, depth), (batch, depth, columns), (batch, 1, columns) and the result's.
    """
    small = right.shape[2] < TILE or not left.numel()
    if small or not _WIDE or left.device.type != "cpu" or left.dtype != torch.float32:
        return torch.bmm(left, right, out=out) if bias is None else torch.baddbmm(bias, left, right)
    right = right if right.stride(2) == 1 else right.contiguous()
    out = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
    start_threads()
    shape, depth = tuple(out.shape), left.shape[2]
    _products(_flat(out), shape, _flat(left), left.stride(), _flat(right), right.stride(), depth)
    return out if bias is None else out.add_(bias)


def _flat(tensor: Tensor) -> np.ndarray:
    """The memory from the first to the last number."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    numbers: np.ndarray = tensor.detach().as_strided((last + 1,), (1,)).numpy()
    return numbers


@njit(parallel=True, cache=True)
def _products(out: Any, shape: Any, left: Any, steps: Any, right: Any, across: Any, depth: int) -> None:
    batch, rows, columns = shape
    blocks = -(-rows // _ROWS)
    for job in prange(batch * blocks):
        n, first = job // blocks, job % blocks * _ROWS
        a = left[n * steps[0] + first * steps[1] :]
        sizes = min(_ROWS, rows - first), depth, columns
        multiply(out[(n * rows + first) * columns :], a, steps[1:], right[n * across[0] :], across[1], sizes)


@njit(cache=True, error_model="numpy")
def multiply(out: Any, left: Any, steps: Any, right: Any, across: int, sizes: Any) -> None:
    """Write the product of two matrices, of ``sizes`` rows, depth and columns, that begin flat arrays.

    Rows of the left one are ``steps[0]`` apart, its columns ``steps[1]``, rows of the right one ``across``.
    There are at least `TILE` columns: the last ones are computed again, as are the last rows.
    """
    (rows, depth, columns), (down, along) = sizes, steps
    last = rows - 1
    for tile in range(0, columns, TILE):
        j = min(tile, columns - TILE)
        for r0 in range(0, rows, 8):
            r1, r2, r3, r4 = min(r0 + 1, last), min(r0 + 2, last), min(r0 + 3, last), min(r0 + 4, last)
            r5, r6, r7 = min(r0 + 5, last), min(r0 + 6, last), min(r0 + 7, last)
            p0, p1, p2, p3 = r0 * down, r1 * down, r2 * down, r3 * down
            p4, p5, p6, p7 = r4 * down, r5 * down, r6 * down, r7 * down
            c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = spread(np.float32(0), TILE)
            for k in range(depth):
                v, m = load(right, k * across + j, TILE), k * along
                c0, c1 = c0 + v * left[p0 + m], c1 + v * left[p1 + m]
                c2, c3 = c2 + v * left[p2 + m], c3 + v * left[p3 + m]
                c4, c5 = c4 + v * left[p4 + m], c5 + v * left[p5 + m]
                c6, c7 = c6 + v * left[p6 + m], c7 + v * left[p7 + m]
            store(out, r0 * columns + j, c0, TILE)
            store(out, r1 * columns + j, c1, TILE)
            store(out, r2 * columns + j, c2, TILE)
            store(out, r3 * columns + j, c3, TILE)
            store(out, r4 * columns + j, c4, TILE)
            store(out, r5 * columns + j, c5, TILE)
            store(out, r6 * columns + j, c6, TILE)
            store(out, r7 * columns + j, c7, TILE)
