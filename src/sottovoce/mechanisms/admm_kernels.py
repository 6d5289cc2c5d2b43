"""Compiled proximal moves of private ADMM on generalized linear models; numpy twins live in the tests."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy import ndarray as Array

from sottovoce.objectives.kernels import (
    clip_in_place,
    logistic_margin,
    on_grid,
    prox_in_place,
    record_loss,
    slope,
)


@njit(cache=True)
def client_moves(
    kind: int, width: float, X: Array, y: Array, offsets: Array, u: Array, z: Array, gamma: float,
    clip_norm: float, chosen: Array,
) -> Array:  # fmt: skip
    """clip_C(prox_{gamma f_i}(2z - u_i) - z) for every holder i of records that is chosen, else zero."""
    n, p = u.shape
    out = np.zeros((n, p))
    for i in range(n):
        if chosen[i]:
            a, b = offsets[i], offsets[i + 1]
            out[i] = client_move(kind, width, X[a:b], y[a:b], u[i], z, gamma, clip_norm)
    return out


@njit(cache=True)
def client_move(
    kind: int, width: float, X: Array, y: Array, u: Array, z: Array, gamma: float, clip_norm: float
) -> Array:
    """clip_C(prox_{gamma f}(2z - u) - z), f the mean loss of the rows; not finite counts as zero."""
    move = prox_rows(kind, width, X, y, 2.0 * z - u, gamma) - z
    clip_in_place(move, clip_norm)
    return move


@njit(cache=True)
def prox_rows(kind: int, width: float, X: Array, y: Array, v: Array, gamma: float) -> Array:
    """prox_{gamma f}(v): a scalar equation for one row, damped Newton for several."""
    m, p = X.shape
    if m == 1:
        x = X[0]
        a = 0.0
        b = 0.0
        for j in range(p):
            a += x[j] * v[j]
            b += x[j] * x[j]
        weight = gamma * b
        if kind == 0:
            margin = logistic_margin(y[0] * a, weight) * y[0]
        elif kind == 4 and a * y[0] >= 1.0:
            margin = a
        else:
            margin = (a + weight * y[0]) / (1.0 + weight)
            if kind >= 2 and abs(margin - y[0]) > width:
                margin = a - weight * math.copysign(width, a - y[0])
        return v - gamma * slope(kind, width, margin, y[0]) * x
    w = v.copy()
    H = np.empty((p, p))
    for _ in range(50):
        g = w - v
        H[:] = 0.0
        for j in range(p):
            H[j, j] = 1.0
        for i in range(m):
            a = 0.0
            for j in range(p):
                a += X[i, j] * w[j]
            s = slope(kind, width, a, y[i]) * gamma / m
            c = gamma / m
            if kind == 0:
                q = abs(slope(kind, width, a, y[i]))
                c *= q * (1.0 - q)
            elif (kind >= 2 and abs(a - y[i]) > width) or (kind == 4 and a * y[i] >= 1.0):
                c = 0.0
            for j in range(p):
                g[j] += s * X[i, j]
                for l in range(p):
                    H[j, l] += c * X[i, j] * X[i, l]
        if not math.isfinite(H.sum() + g.sum()):
            return np.full(p, np.nan)  # a record overflows; the caller counts it as no move
        step = np.linalg.solve(H, g)
        largest = 0.0
        for j in range(p):
            largest = max(largest, abs(step[j]))
        before = _envelope(kind, width, X, y, v, gamma, w)
        most = before + 1e-15 * abs(before)
        scale = 1.0
        trial = w - step
        while scale > 1e-10 and not _envelope(kind, width, X, y, v, gamma, trial) <= most:
            scale *= 0.5
            trial = w - scale * step
        w = trial
        if not largest > 1e-13 * (1.0 + np.abs(w).max()):
            break
    return w


@njit(cache=True)
def _envelope(kind: int, width: float, X: Array, y: Array, v: Array, gamma: float, w: Array) -> float:
    """gamma * mean loss + |w - v|^2 / 2, what the prox minimizes."""
    m, p = X.shape
    total = 0.0
    for i in range(m):
        a = 0.0
        for j in range(p):
            a += X[i, j] * w[j]
        total += record_loss(kind, width, a, y[i])
    value = gamma * total / m
    for j in range(p):
        value += 0.5 * (w[j] - v[j]) ** 2
    return value


@njit(cache=True)
def token_hops(
    kind: int, width: float, X: Array, y: Array, offsets: Array, u: Array, zh: Array, counts: Array, cap: int,
    holders: Array, noise: Array, grid: float, gamma: float, lam: float, C: float,
    l1: float, l2: float, box: float, ball: float, intercepts: int,
) -> None:  # fmt: skip
    """Hops of token ADMM along given holders with given noise; u, zh and counts move in place."""
    n = len(offsets) - 1
    for k in range(len(holders)):
        i = holders[k]
        a, b = offsets[i], offsets[i + 1]
        z = zh.copy()
        prox_in_place(z[: len(z) - intercepts], gamma, l1, l2, box, ball)
        limit = C if counts[i] < cap else 0.0
        counts[i] += 1
        move = client_move(kind, width, X[a:b], y[a:b], u[i], z, gamma, limit)
        for j in range(len(zh)):
            released = lam * on_grid(2.0 * move[j], noise[k, j], grid)
            u[i, j] += released
            zh[j] += released / n
