"""Compiled steps of a token that walks over the records of generalized linear models."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy import ndarray as Array

from sottovoce.objectives.kernels import clip_in_place, on_grid, slope


@njit(cache=True)
def holder_moves(
    kind: int, width: float, theta: Array, X: Array, y: Array, clip_norm: float, noise: Array, grid: float,
    nu: float, l2: Array, g: Array,
) -> None:  # fmt: skip
    """theta -= nu (clip_C(mean gradient + l2 theta) + noise), in place."""
    m, p = X.shape
    if m == 1:
        a = 0.0
        for j in range(p):
            a += X[0, j] * theta[j]
        s = slope(kind, width, a, y[0])
        for j in range(p):
            g[j] = s * X[0, j] + l2[j] * theta[j]
    else:
        for j in range(p):
            g[j] = l2[j] * theta[j]
        for i in range(m):
            a = 0.0
            for j in range(p):
                a += X[i, j] * theta[j]
            s = slope(kind, width, a, y[i]) / m
            if math.isfinite(s):
                for j in range(p):
                    g[j] += s * X[i, j]
    clip_in_place(g, clip_norm)
    if grid == 0.0:
        for j in range(p):
            theta[j] -= nu * (g[j] + noise[j])
    else:
        for j in range(p):
            theta[j] -= nu * on_grid(g[j], noise[j], grid)


@njit(cache=True)
def walk(
    kind: int, width: float, theta: Array, X: Array, y: Array, offsets: Array,
    indptr: Array, indices: Array, cumulative: Array, uniform: bool, holders: Array, counts: Array, cap: int,
    noise: Array, draws: Array, grid: float, C: float, rates: Array, l2: Array,
) -> None:  # fmt: skip
    """Steps of all tokens along their paths; theta, holders and counts move in place."""
    n, p = len(offsets) - 1, theta.shape[1]
    g = np.empty(p)
    for k in range(len(rates)):
        for token in range(len(holders)):
            holder = holders[token]
            a, b = offsets[holder], offsets[holder + 1]
            limit = C if counts[holder] < cap else 0.0
            counts[holder] += 1
            here, xi = theta[token], noise[token, k]
            holder_moves(kind, width, here, X[a:b], y[a:b], limit, xi, grid, rates[k], l2, g)
            r = draws[token, k]
            if uniform:
                holders[token] = int(r * n)
            else:
                low, high = indptr[holder], indptr[holder + 1] - 1
                while low < high:
                    middle = (low + high) // 2
                    if cumulative[middle] > r:
                        high = middle
                    else:
                        low = middle + 1
                holders[token] = indices[low]
