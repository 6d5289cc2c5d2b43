"""Compiled loops over the records of generalized linear models; plain-numpy twins live in the tests.

The gradient of record i is ``slope_i * x_i``: its length is |slope_i| |x_i| and its clipped form a rescaled
slope, so per-record gradients are never formed.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

Array = np.ndarray


@njit(cache=True)
def clip_in_place(row: np.ndarray, clip_norm: float) -> None:
    """Scale ``row`` down to length at most ``clip_norm``; one that is not finite becomes zero."""
    squares = 0.0
    for j in range(len(row)):
        squares += row[j] * row[j]
    if squares < 1e300:  # false for NaN too
        if squares > clip_norm * clip_norm:
            scale = clip_norm / math.sqrt(squares)
            for j in range(len(row)):
                row[j] *= scale
        return
    largest = 0.0
    for j in range(len(row)):
        if not math.isfinite(row[j]):
            row[:] = 0.0
            return
        largest = max(largest, abs(row[j]))
    squares = 0.0
    for j in range(len(row)):
        squares += (row[j] / largest) ** 2
    length = math.sqrt(squares)
    if largest * length > clip_norm:
        for j in range(len(row)):
            row[j] = row[j] / largest * (clip_norm / length)


@njit(cache=True, inline="always")
def clip_scalar(value: float, bound: float) -> float:
    """Return the value clipped to +-``bound``, 0 if it is NaN."""
    value = bound if value > bound else value
    value = -bound if value < -bound else value
    return value if value == value else 0.0


@njit(cache=True, inline="always")
def slope(kind: int, width: float, m: float, y: float) -> float:
    """Derivative of one record's loss in the prediction; labels of kinds 3 and 4 are signs times weights."""
    if kind == 0:
        return -y / (1.0 + math.exp(min(y * m, 700.0)))
    if kind == 3:
        return -y / (1.0 + math.exp(min(math.copysign(m, m * y), 700.0)))
    if kind == 4:
        return y * max(min(math.copysign(m, m * y) - 1.0, 0.0), -width)
    r = m - y
    if kind == 2:
        return min(max(r, -width), width)
    return r


@njit(cache=True)
def record_slopes(kind: int, width: float, m: Array, y: Array) -> Array:
    """Slopes of all records."""
    out = np.empty(len(m))
    for i in range(len(m)):
        out[i] = slope(kind, width, m[i], y[i])
    return out


@njit(cache=True, inline="always")
def record_loss(kind: int, width: float, m: float, y: float) -> float:
    """Loss of one record at the prediction m."""
    if kind == 0:
        t = y * m
        return math.log1p(math.exp(-t)) if t > 0 else -t + math.log1p(math.exp(t))
    r = abs(m - y) if kind != 4 else max(1.0 - y * m, 0.0)
    return 0.5 * r * r if kind == 1 or r <= width else width * (r - 0.5 * width)


@njit(cache=True)
def record_losses(kind: int, width: float, m: Array, y: Array) -> Array:
    """Losses of all records."""
    out = np.empty(len(m))
    for i in range(len(m)):
        out[i] = record_loss(kind, width, m[i], y[i])
    return out


@njit(cache=True)
def add_clipped(kind: int, width: float, w: Array, x: Array, y: float, clip_norm: float, out: Array) -> None:
    """Add clip_C(slope * x) of one record to ``out``; a record that is not finite adds nothing.

    The length is |slope| |x|; where squares could overflow, x is first divided by its largest entry.
    """
    p = len(w)
    m = 0.0
    squares = 0.0
    for j in range(p):
        m += x[j] * w[j]
        squares += x[j] * x[j]
    s = slope(kind, width, m, y)
    if 1e-200 < squares < 1e200 and math.isfinite(s):  # false for NaN
        length = math.sqrt(squares)
        factor = s if abs(s) * length <= clip_norm else math.copysign(clip_norm / length, s)
        for j in range(p):
            out[j] += factor * x[j]
        return
    largest = 0.0
    for j in range(p):
        largest = max(largest, abs(x[j]))
    if not (math.isfinite(s) and math.isfinite(largest)) or largest == 0.0 or s == 0.0:
        return
    squares = 0.0
    for j in range(p):
        r = x[j] / largest
        squares += r * r
    # a NaN entry leaves `largest` as it was and shows in the sum
    if not math.isfinite(squares):
        return
    norm = abs(s) * largest * math.sqrt(squares)
    if norm <= clip_norm:
        for j in range(p):
            out[j] += s * x[j]
    else:
        scale = math.copysign(clip_norm / math.sqrt(squares), s)
        for j in range(p):
            out[j] += scale * (x[j] / largest)


@njit(cache=True)
def batch_sums(
    kind: int,
    width: float,
    theta: Array,
    X: Array,
    y: Array,
    starts: Array,
    rows: Array,
    ends: Array,
    clip_norm: float,
) -> Array:
    """Per agent: the sum over its batch of clip_C(gradient of the record at the agent's own row of theta).

    ``rows[ends[a - 1]:ends[a]]`` is the batch of agent a, within its records, which begin at ``starts[a]``.
    """
    n, p = theta.shape
    out = np.zeros((n, p))
    first = 0
    for a in range(n):
        for k in range(first, ends[a]):
            i = starts[a] + rows[k]
            add_clipped(kind, width, theta[a], X[i], y[i], clip_norm, out[a])
        first = ends[a]
    return out


@njit(cache=True)
def logistic_margin(start: float, weight: float) -> float:
    """Solve m - start - weight * sigmoid(-m) = 0 for m; the root lies in [start, start + weight]."""
    low, high = start, start + weight
    m = start + 0.5 * weight
    for _ in range(100):
        s = 1.0 / (1.0 + math.exp(min(m, 700.0)))
        residual = m - start - weight * s
        if residual > 0:
            high = m
        else:
            low = m
        step = residual / (1.0 + weight * s * (1.0 - s))
        new = m - step
        if not (low < new < high):
            new = 0.5 * (low + high)
        if abs(new - m) <= 1e-15 * (1.0 + abs(m)):
            return new
        m = new
    return m


@njit(cache=True, inline="always")
def on_grid(value: float, noise: float, grid: float) -> float:
    """Return value + noise; on a grid, the sum of two whole numbers of grid steps, so no low bits leak."""
    if grid == 0.0:
        return value + noise
    return (np.rint(value / grid) + np.rint(noise / grid)) * grid


@njit(cache=True, inline="always")
def prox_scalar(v: float, step: float, l1: float, l2: float, box: float) -> float:
    """The map of `Regularizer.prox` on one coordinate, an infinite box for none."""
    v = math.copysign(max(abs(v) - step * l1, 0.0), v) / (1.0 + step * l2)
    return min(max(v, -box), box)


@njit(cache=True)
def prox_in_place(w: Array, step: float, l1: float, l2: float, box: float, ball: float) -> None:
    """The map of `Regularizer.prox`, with infinite bounds for none."""
    squares = 0.0
    for j in range(len(w)):
        w[j] = prox_scalar(w[j], step, l1, l2, box)
        squares += w[j] * w[j]
    if squares > ball * ball:
        scale = ball / math.sqrt(squares)
        for j in range(len(w)):
            w[j] *= scale


@njit(cache=True)
def descend_batches(
    kind: int,
    width: float,
    X: Array,
    y: Array,
    w: Array,
    total: Array,
    rows: Array,
    ends: Array,
    noise: Array,
    grid: float,
    clip_norm: float,
    divisor: float,
    rates: Array,
    l1: float,
    l2: float,
    box: float,
    ball: float,
    intercepts: int,
) -> None:
    """Take steps of DP-SGD from ``w`` in place; ``total``, unless empty, sums the iterates."""
    p = len(w)
    g = np.empty(p)
    first = 0
    for k in range(len(ends)):
        g[:] = 0.0
        for i in rows[first : ends[k]]:
            add_clipped(kind, width, w, X[i], y[i], clip_norm, g)
        first = ends[k]
        for j in range(p):
            w[j] -= rates[k] * (on_grid(g[j], noise[k, j], grid) / divisor)
        prox_in_place(w[: p - intercepts], rates[k], l1, l2, box, ball)
        if len(total):
            total += w


# Sums may be reordered and divisions need no check for zero, so that loops become vector instructions;
# NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_logistic(u: Array, delta: float, before: Array, column: Array, C: float) -> float:
    """Move the margins by the last step and sum the clipped coordinate gradients of the next, in one pass.

    exp(v) is 2^n exp(r) with |r| <= ln(2)/2 and Taylor's polynomial of degree 11 for exp(r), to 1e-14; the
    exponent n enters through the bits of the number. All of it becomes vector instructions.
    """
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        x = v if v < 700.0 else 700.0
        x = x if x > -700.0 else -700.0
        n = np.rint(x * 1.4426950408889634)
        r = x - n * 0.6931471805599453
        e = r * (1 / 39916800) + 1 / 3628800
        e = e * r + 1 / 362880
        e = e * r + 1 / 40320
        e = e * r + 1 / 5040
        e = e * r + 1 / 720
        e = e * r + 1 / 120
        e = e * r + 1 / 24
        e = e * r + 1 / 6
        e = e * r + 1 / 2
        e = (e * r + 1.0) * r + 1.0
        bits = np.float64(n + 6755399441055744.0).view(np.int64)  # 1.5 2^52: n stands in the low bits
        e = e * np.int64((bits + 1023) << 52).view(np.float64)
        G += clip_scalar(-column[i] / (1.0 + e), C)
    return G


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_squared(u: Array, delta: float, before: Array, column: Array, C: float) -> float:
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        G += clip_scalar(v * column[i], C)
    return G


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_clipped(
    u: Array, delta: float, before: Array, column: Array, C: float, low: float, high: float
) -> float:
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        v = high if v > high else v
        v = low if v < low else v
        G += clip_scalar(v * column[i], C)
    return G


@njit(cache=True)
def coordinate_sum(
    kind: int, width: float, u: Array, delta: float, before: Array, column: Array, C: float
) -> float:
    """Move the margins ``u`` by ``delta * before``, in place, and return the sum of clip(derivative, +-C).

    Margins are y x.w (less 1 for the hinge) and columns y x for classes, residuals x.w - y and columns x for
    amounts.
    """
    if kind == 0:
        return _pass_logistic(u, delta, before, column, C)
    if kind == 1:
        return _pass_squared(u, delta, before, column, C)
    return _pass_clipped(u, delta, before, column, C, -width, 0.0 if kind == 4 else width)


@njit(cache=True, fastmath=_FAST)
def moved_margins(u: Array, delta: float, column: Array) -> None:
    """Move the margins by ``delta * column``, in place, rounded as in `coordinate_sum`."""
    for i in range(len(u)):
        u[i] = u[i] + delta * column[i]


@njit(cache=True)
def descend_coordinates(
    kind: int,
    width: float,
    Z: Array,
    u: Array,
    w: Array,
    total: Array,
    chosen: Array,
    noise: Array,
    noisy: bool,
    grid: float,
    unit: Array,
    gamma: Array,
    C: Array,
    inverse: float,
    l1: float,
    l2: float,
    box: float,
    intercepts: int,
) -> None:
    """Steps of DP-CD on given coordinates and noise (in units of a coordinate's clip over n), in place."""
    delta = 0.0
    before = 0
    for k in range(len(chosen)):
        j = chosen[k]
        G = coordinate_sum(kind, width, u, delta, Z[before], Z[j], C[j]) * inverse
        if noisy:  # also where the noise happens to be zero: what is not on the grid tells the sum itself
            G = on_grid(G / unit[j], noise[k], grid) * unit[j]
        v = w[j] - gamma[j] * G
        if j < len(w) - intercepts:
            v = prox_scalar(v, gamma[j], l1, l2, box)
        delta = v - w[j]
        before = j
        w[j] = v
        total += w
    moved_margins(u, delta, Z[before])


@njit(cache=True)
def coordinate_sums_dense(columns: Array, slopes: Array, C: Array) -> Array:
    """Per coordinate: the sum over records of clip(slope * x, +-C_j); overflow to NaN counts as zero."""
    p, n = columns.shape
    out = np.zeros(p)
    for j in range(p):
        total = 0.0
        for i in range(n):
            total += clip_scalar(slopes[i] * columns[j, i], C[j])
        out[j] = total
    return out


@njit(cache=True)
def coordinate_sums_sparse(indptr: Array, indices: Array, values: Array, slopes: Array, C: Array) -> Array:
    """The same on compressed columns."""
    p = len(indptr) - 1
    out = np.zeros(p)
    for j in range(p):
        total = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            total += clip_scalar(slopes[indices[k]] * values[k], C[j])
        out[j] = total
    return out


@njit(cache=True)
def cholesky(matrix: Array, lower: Array) -> bool:
    """Write the Cholesky factor of the lower half of ``matrix``; return whether the matrix is positive."""
    p = len(matrix)
    lower[:] = 0.0
    for j in range(p):
        for i in range(j, p):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i > j:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:  # false for NaN too
                lower[j, j] = math.sqrt(total)
            else:
                return False
    return True


@njit(cache=True)
def product(left: Array, right: Array) -> Array:
    """Return the product of two square matrices, summed in the order of their columns."""
    p = len(left)
    out = np.zeros((p, p))
    for i in range(p):
        for k in range(p):
            for j in range(p):
                out[i, j] += left[i, k] * right[k, j]
    return out


@njit(cache=True)
def solve_lower(lower: Array, values: Array) -> Array:
    """Return L^-1 v."""
    out = values.copy()
    for i in range(len(out)):
        for k in range(i):
            out[i] -= lower[i, k] * out[k]
        out[i] /= lower[i, i]
    return out


@njit(cache=True)
def solve_upper(lower: Array, values: Array) -> Array:
    """Return L^-T v."""
    out = values.copy()
    for i in range(len(out) - 1, -1, -1):
        for k in range(i + 1, len(out)):
            out[i] -= lower[k, i] * out[k]
        out[i] /= lower[i, i]
    return out
