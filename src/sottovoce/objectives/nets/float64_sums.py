r"""Sums over a batch in float64, of factors that are float32.

.. math:: \sum_r w_r\, g_r x_r^\top

One record more in a batch moves every later one to another place, and with it every rounding of a float32
sum: 50,000 records, one of them taken away, moved the sum by 1.002 C. Products of two float32 numbers are
exact in float64 and a sum of N of them is off by less than :math:`N 2^{-53}` of the sum of their sizes, so
that all roundings together stay below :math:`N^2 2^{-53} C`, a millionth of C for 100,000 records.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

_OUT, _IN = 16, 256  # a tile of sums, 32 kB of float64, stays in the first cache
_ALONG = 1024  # sums of whole rows: so many at a time
_NARROW = 32  # outputs up to which the tiled loop is faster than the library's float64 product
_PIECE = 1 << 17  # numbers that are widened at a time for it
_LARGE, _MANY = 1 << 18, 256


def add_weighted_products(sums: Tensor, start: int, weights: Tensor, g: Tensor, x: Tensor) -> None:
    """Add ``sum_r weights_r g_r x_r^T`` to the columns of ``sums`` (agents, ..) from column ``start`` on.

    The weights are (agents, rows), g (agents, rows, p) and x (agents, rows, d).
    """
    weights = weights.double()
    agents, rows = weights.shape
    outputs, inputs = g.shape[-1], x.shape[-1]
    if outputs <= _NARROW and x.device.type == "cpu":
        w, left, right = (np.ascontiguousarray(t.detach().numpy()) for t in (weights, g, x))
        start_threads()
        _tiles(w, left, right, sums.numpy(), start)
        return
    # sums that fill the cache are to be read and written for many rows at a time
    step = max(1, _PIECE // (outputs + inputs), _MANY if outputs * inputs > _LARGE else 1)
    for a in range(agents):
        total = sums[a, start : start + outputs * inputs].view(outputs, inputs)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            total.addmm_((g[a, part].double() * weights[a, part, None]).mT, x[a, part].double())


def add_weighted_rows(sums: Tensor, start: int, weights: Tensor, rows: Tensor) -> None:
    """Add ``sum_r weights_r rows_r``, of rows (agents, rows, d), to the columns from column ``start`` on."""
    weights = weights.double()
    if rows.device.type != "cpu":
        sums[:, start : start + rows.shape[-1]] += torch.bmm(weights[:, None], rows.double())[:, 0]
        return
    shares, values = (np.ascontiguousarray(t.detach().numpy()) for t in (weights, rows))
    start_threads()
    _weighted(shares, values, sums.numpy(), start)


def row_squares(rows: Tensor) -> Tensor:
    """Return the squared length of every row, everything after the first axis being the row, in float64."""
    flat = rows.reshape(rows.shape[0], -1)
    if rows.device.type != "cpu":
        return flat.double().square().sum(1)
    start_threads()
    return torch.from_numpy(_squares(np.ascontiguousarray(flat.detach().numpy())))


def token_squares(tokens: Tensor, g: Tensor) -> Tensor:
    """Return ``sum_v |sum_{t: token_t = v} g_t|^2`` of every sample.

    The tokens are (samples, positions), g (samples, positions, d).
    """
    samples, positions = tokens.shape
    if g.device.type == "cpu":
        start_threads()
        return torch.from_numpy(_repeated(*(np.ascontiguousarray(t.detach().numpy()) for t in (tokens, g))))
    first = (tokens[:, :, None] == tokens[:, None]).byte().argmax(2)  # where a token occurs first
    place = first + positions * torch.arange(samples, device=g.device)[:, None]
    sums = torch.zeros(samples * positions, g.shape[2], dtype=torch.float64, device=g.device)
    return row_squares(sums.index_add_(0, place.flatten(), g.double().flatten(0, 1)).view(samples, -1))


@cache
def start_threads() -> None:
    """Start numba's threads, which sets the number of OpenMP threads of the process; torch's stays."""
    threads = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(threads)


@njit(parallel=True, cache=True, fastmath={"contract"})
def _tiles(weights: np.ndarray, g: np.ndarray, x: np.ndarray, sums: np.ndarray, start: int) -> None:
    agents, rows, outputs = g.shape
    inputs = x.shape[2]
    down, across = -(-outputs // _OUT), -(-inputs // _IN)
    for job in prange(agents * down * across):
        a, p0, d0 = job // (down * across), job // across % down * _OUT, job % across * _IN
        height, width = min(_OUT, outputs - p0), min(_IN, inputs - d0)
        total = np.zeros((_OUT, _IN))
        x0, x1, x2, x3 = np.zeros(_IN), np.zeros(_IN), np.zeros(_IN), np.zeros(_IN)
        for r in range(0, rows, 4):  # four at a time, so that a sum is read and written once for four
            w0 = weights[a, r]
            w1 = weights[a, r + 1] if r + 1 < rows else 0.0
            w2 = weights[a, r + 2] if r + 2 < rows else 0.0
            w3 = weights[a, r + 3] if r + 3 < rows else 0.0
            r1, r2, r3 = min(r + 1, rows - 1), min(r + 2, rows - 1), min(r + 3, rows - 1)
            for d in range(width):
                x0[d], x1[d] = x[a, r, d0 + d], x[a, r1, d0 + d]
                x2[d], x3[d] = x[a, r2, d0 + d], x[a, r3, d0 + d]
            for p in range(height):
                c0, c1 = w0 * g[a, r, p0 + p], w1 * g[a, r1, p0 + p]
                c2, c3 = w2 * g[a, r2, p0 + p], w3 * g[a, r3, p0 + p]
                row = total[p]
                for d in range(width):
                    row[d] += (c0 * x0[d] + c1 * x1[d]) + (c2 * x2[d] + c3 * x3[d])
        for p in range(height):
            column = start + (p0 + p) * inputs + d0
            for d in range(width):
                sums[a, column + d] += total[p, d]


@njit(parallel=True, cache=True, fastmath={"contract"})
def _weighted(weights: np.ndarray, rows: np.ndarray, sums: np.ndarray, start: int) -> None:
    agents, count, width = rows.shape
    across = -(-width // _ALONG)
    for job in prange(agents * across):
        a, first = job // across, job % across * _ALONG
        last = min(first + _ALONG, width)
        total = np.zeros(_ALONG)
        for r in range(0, count, 4):  # as in `_tiles`, and in the same order
            w0 = weights[a, r]
            w1 = weights[a, r + 1] if r + 1 < count else 0.0
            w2 = weights[a, r + 2] if r + 2 < count else 0.0
            w3 = weights[a, r + 3] if r + 3 < count else 0.0
            x0, x1 = rows[a, r, first:last], rows[a, min(r + 1, count - 1), first:last]
            x2, x3 = rows[a, min(r + 2, count - 1), first:last], rows[a, min(r + 3, count - 1), first:last]
            for d in range(last - first):
                total[d] += (w0 * x0[d] + w1 * x1[d]) + (w2 * x2[d] + w3 * x3[d])
        for d in range(last - first):
            sums[a, start + first + d] += total[d]


@njit(parallel=True, cache=True, fastmath={"contract", "reassoc"})
def _squares(rows: np.ndarray) -> np.ndarray:
    squares = np.empty(rows.shape[0])
    for r in prange(rows.shape[0]):
        total = 0.0
        for d in range(rows.shape[1]):
            value = np.float64(rows[r, d])
            total += value * value
        squares[r] = total
    return squares


@njit(parallel=True, cache=True, fastmath={"contract", "reassoc"})
def _repeated(tokens: np.ndarray, g: np.ndarray) -> np.ndarray:
    squares = np.empty(len(tokens))
    for s in prange(len(tokens)):
        sums = np.zeros(g.shape[1:])
        for t in range(g.shape[1]):
            first = 0
            while tokens[s, first] != tokens[s, t]:
                first += 1
            for d in range(g.shape[2]):
                sums[first, d] += g[s, t, d]
        total = 0.0
        for t in range(g.shape[1]):
            for d in range(g.shape[2]):
                total += sums[t, d] * sums[t, d]
        squares[s] = total
    return squares
