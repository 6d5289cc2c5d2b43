"""Clipped sums for the paper's MNIST network, written out by hand.

Conv 1->3 5x5, Mish, max-pool 2, linear 588->64, Mish, linear 64->10 on 32x32 images: 38,424 parameters.
The same numbers as `NetObjective` on `models.bayrooti_mnist`, several times faster: convolution, Mish and
pooling of a sample are one pass in the cache (numba), the linear layers are batched products over agents, and
only the 78 convolution gradients of a sample are ever formed.

Three facts carry the kernels. Split by the parity of rows and columns, an image holds what one tap of the
kernel needs for a row of 14 pooling windows side by side: one vector (`vectors`). Mish falls, then rises, so
its maximum over a window is that of its values at the window's largest and smallest entry: two evaluations
instead of four. And only the largest entry of a window has a gradient: a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from sottovoce.objectives.clipping import clip_weights
from sottovoce.objectives.nets.float64_sums import add_weighted_products, add_weighted_rows, row_squares
from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.objectives.nets.quick_layers import mish_and_slope
from sottovoce.objectives.nets.vectors import choose, even, exp, larger, load, odd, smaller, spread, store

SIDE, POOLED, MAPS = 32, 14, 3
LANES, QUARTER = 16, 256  # width and size of an image of every second row and column
HIDDEN, FEATURES = 64, MAPS * POOLED * POOLED
_CORNERS = np.arange(0, SIDE, 2, dtype=np.int32)  # where the windows of a row begin
_CUTS = np.cumsum([0, 75, 3, HIDDEN * FEATURES, HIDDEN, 10 * HIDDEN, 10])


class BayrootiObjective(NetObjective):
    """`NetObjective` for the network of `models.bayrooti_mnist`, with hand-written sums."""

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        physical_batch: int | None = None,
        initial: Literal["keep", "reset"] = "keep",
    ) -> None:
        from sottovoce.objectives.nets.zoo import bayrooti_mnist

        super().__init__(
            bayrooti_mnist(), clip_norm=clip_norm, physical_batch=physical_batch, initial=initial
        )

    def _add_stacked_sums(
        self, steps: Any, theta: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, sums: Tensor
    ) -> None:
        agents, batch_size = present.shape
        conv, conv_bias, w1, b1, w2, b2 = _split(theta)
        images = inputs.reshape(agents * batch_size, SIDE * SIDE).contiguous().numpy()
        features, slope, place = _buffers(agents * batch_size)
        _conv_mish_pool(images, conv.numpy(), conv_bias.numpy(), batch_size, features, slope, place)

        p = torch.from_numpy(features).view(agents, batch_size, FEATURES)
        h = torch.baddbmm(b1[:, None], p, w1.mT)
        a, slope1 = mish_and_slope(h)
        out = torch.baddbmm(b2[:, None], a, w2.mT)

        g2 = torch.softmax(out, -1)
        g2.view(-1, 10)[torch.arange(agents * batch_size), targets.reshape(-1)] -= 1
        g1 = torch.bmm(g2, w2) * slope1
        gp = torch.bmm(g1, w1).view(agents * batch_size, FEATURES)
        each = np.empty((agents * batch_size, 78), np.float32)
        _conv_gradients(images, gp.numpy(), slope, place, each)
        conv_each = torch.from_numpy(each).view(agents, batch_size, 78)

        squared = (_squares(a) + 1) * _squares(g2) + (_squares(p) + 1) * _squares(g1) + _squares(conv_each)
        weights = torch.where(present, clip_weights(squared, self.clip_norm), 0.0)
        bad = ~torch.isfinite(squared)[..., None]
        if bad.any():
            g2, g1, a, p, conv_each = (torch.where(bad, 0.0, t) for t in (g2, g1, a, p, conv_each))
        starts = [int(cut) for cut in _CUTS]
        for start, rows in ((0, conv_each), (starts[3], g1), (starts[5], g2)):
            add_weighted_rows(sums, start, weights, rows)
        for start, left, right in ((starts[2], g1, p), (starts[4], g2, a)):
            add_weighted_products(sums, start, weights, left, right)

    @torch.no_grad()
    def outputs(self, theta: Any, inputs: Tensor, chunk: int = 2000) -> Iterator[Any]:
        """Yield what each agent's network gives for all inputs, by the kernel of the sums."""
        inputs = inputs.to(torch.float32)
        for row in torch.split(torch.as_tensor(theta, dtype=torch.float32), 1):
            conv, bias, w1, b1, w2, b2 = _split(row)
            parts = []
            for part in torch.split(inputs, chunk):
                images = part.reshape(len(part), SIDE * SIDE).contiguous().numpy()
                features, slope, place = _buffers(len(part))
                _conv_mish_pool(images, conv.numpy(), bias.numpy(), len(part), features, slope, place)
                hidden = mish_and_slope(torch.addmm(b1[0], torch.from_numpy(features), w1[0].mT))[0]
                parts.append(torch.addmm(b2[0], hidden, w2[0].mT))
            yield torch.cat(parts)


def _split(theta: Tensor) -> tuple[Tensor, ...]:
    """Rows of parameters as (agents, ...) weights, in the order of the module."""
    shapes = ((MAPS, 25), (MAPS,), (HIDDEN, FEATURES), (HIDDEN,), (10, HIDDEN), (10,))
    return tuple(
        theta[:, int(i) : int(j)].reshape(-1, *shape)
        for i, j, shape in zip(_CUTS[:-1], _CUTS[1:], shapes, strict=True)
    )


def _squares(tensor: Tensor) -> Any:
    return row_squares(tensor.flatten(0, 1)).view(tensor.shape[:2])


_FAST = {"contract", "nsz", "arcp", "reassoc"}
_BUFFERS = [np.empty((0, FEATURES), dtype) for dtype in (np.float32, np.float32, np.int32)]


def _buffers(samples: int) -> list[np.ndarray]:
    """Features, slopes and arg-max places of a batch; reused, since fresh pages cost more than arithmetic."""
    if len(_BUFFERS[0]) < samples:
        _BUFFERS[:] = [np.empty((samples, FEATURES), buffer.dtype) for buffer in _BUFFERS]
    return [buffer[:samples] for buffer in _BUFFERS]


@njit(inline="always", error_model="numpy", fastmath=_FAST)
def _split_by_parity(image: Any, parts: Any) -> None:
    """The image split by the parity of row and column: (0, 0), (0, 1), (1, 0), (1, 1), 256 entries each."""
    for row in range(SIDE):
        left, right = load(image, SIDE * row, LANES), load(image, SIDE * row + LANES, LANES)
        to = 2 * QUARTER * (row % 2) + LANES * (row // 2)
        store(parts, to, even(left, right), LANES)
        store(parts, to + QUARTER, odd(left, right), LANES)


@njit(inline="always", error_model="numpy", fastmath=_FAST)
def _columns(parts: Any, i: int, row: int) -> Any:
    """Of image row 2i + row: what stands in the first, second .. sixth column of the 14 windows."""
    a = 2 * QUARTER * (row % 2) + LANES * (i + row // 2)
    b = a + QUARTER
    x0, x1, x2 = load(parts, a, LANES), load(parts, b, LANES), load(parts, a + 1, LANES)
    x3, x4, x5 = load(parts, b + 1, LANES), load(parts, a + 2, LANES), load(parts, b + 2, LANES)
    return x0, x1, x2, x3, x4, x5


@njit(inline="always", error_model="numpy", fastmath=_FAST)
def _add_row(pair: Any, kernel: Any, row: int, x: Any) -> Any:
    """Two neighboring entries of the 14 windows, with one row of the kernel added."""
    left, right = pair
    at = 5 * row
    w0, w1, w2, w3, w4 = kernel[at], kernel[at + 1], kernel[at + 2], kernel[at + 3], kernel[at + 4]
    left = left + x[0] * w0 + x[1] * w1 + x[2] * w2 + x[3] * w3 + x[4] * w4
    right = right + x[1] * w0 + x[2] * w1 + x[3] * w2 + x[4] * w3 + x[5] * w4
    return left, right


@njit(inline="always", error_model="numpy", fastmath=_FAST)
def _pool(upper: Any, lower: Any, i: int, c: int, features: Any, slopes: Any, places: Any) -> None:
    """Write the largest Mish of each window of row i of map c, the slope of Mish there, and the place."""
    (v0, v1), (v2, v3) = upper, lower
    high, low = larger(larger(v0, v1), larger(v2, v3)), smaller(smaller(v0, v1), smaller(v2, v3))
    p0, p1 = spread(np.int32(0), LANES), spread(np.int32(1), LANES)
    p2, p3 = spread(np.int32(SIDE), LANES), spread(np.int32(SIDE + 1), LANES)
    high_at = choose(v0 == high, p0, choose(v1 == high, p1, choose(v2 == high, p2, p3)))
    low_at = choose(v1 == low, p1, choose(v0 == low, p0, choose(v3 == low, p3, p2)))
    total = v0 + v1 + (v2 + v3)  # a NaN must not lose every comparison
    finite = total < np.float32(np.inf)
    high, low = choose(finite, high, total), choose(finite, low, total)

    # mish(v) = v t, t = tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), e = exp(v)
    bound, one, two = spread(np.float32(30), LANES), np.float32(1), np.float32(2)
    e1, e2 = exp(high, bound), exp(low, bound)
    n1, n2 = e1 * (e1 + two), e2 * (e2 + two)
    t1, t2 = n1 / (n1 + two), n2 / (n2 + two)
    mish1, mish2 = high * t1, low * t2
    first = mish1 >= mish2
    v, t, e = choose(first, high, low), choose(first, t1, t2), choose(first, e1, e2)
    to, corners = POOLED * (POOLED * c + i), load(_CORNERS, 0, LANES) + np.int32(2 * SIDE * i)
    store(features, to, choose(first, mish1, mish2), POOLED)
    store(slopes, to, t + v * (e / (e + one)) * (spread(one, LANES) - t * t), POOLED)
    store(places, to, choose(first, high_at, low_at) + corners, POOLED)


@njit(error_model="numpy", fastmath=_FAST)
def _windows(image: Any, kernels: Any, biases: Any, features: Any, slopes: Any, places: Any) -> None:
    """Features of one sample, row by row of windows; the sums of all three maps stay in registers."""
    parts = np.zeros(4 * QUARTER + LANES, np.float32)  # loads to the right of the last row leave the image
    _split_by_parity(image, parts)
    k0, k1, k2 = kernels[0], kernels[1], kernels[2]
    b0, b1, b2 = spread(biases[0], LANES), spread(biases[1], LANES), spread(biases[2], LANES)
    for i in range(POOLED):
        x = _columns(parts, i, 0)
        upper0, lower0 = _add_row((b0, b0), k0, 0, x), (b0, b0)
        upper1, lower1 = _add_row((b1, b1), k1, 0, x), (b1, b1)
        upper2, lower2 = _add_row((b2, b2), k2, 0, x), (b2, b2)
        for row in range(1, 5):
            x = _columns(parts, i, row)
            upper0, lower0 = _add_row(upper0, k0, row, x), _add_row(lower0, k0, row - 1, x)
            upper1, lower1 = _add_row(upper1, k1, row, x), _add_row(lower1, k1, row - 1, x)
            upper2, lower2 = _add_row(upper2, k2, row, x), _add_row(lower2, k2, row - 1, x)
        x = _columns(parts, i, 5)
        _pool(upper0, _add_row(lower0, k0, 4, x), i, 0, features, slopes, places)
        _pool(upper1, _add_row(lower1, k1, 4, x), i, 1, features, slopes, places)
        _pool(upper2, _add_row(lower2, k2, 4, x), i, 2, features, slopes, places)


@njit(parallel=True, cache=True, error_model="numpy", fastmath=_FAST)
def _conv_mish_pool(
    images: Any, kernels: Any, biases: Any, batch_size: int, features: Any, slopes: Any, places: Any
) -> None:
    """Features (samples, 588), the slope of Mish there, and the place of the winner in the image."""
    for s in prange(images.shape[0]):
        a = s // batch_size
        _windows(images[s], kernels[a], biases[a], features[s], slopes[s], places[s])


@njit(error_model="numpy", fastmath=_FAST)
def _gradient(image: Any, upstream: Any, slopes: Any, places: Any, each: Any) -> None:
    """The gradient of kernels and biases from one sample: of every winner, its gradient times its patch."""
    x = np.zeros(SIDE * SIDE + 8, np.float32)  # a row of a patch is read as eight numbers, three too many
    for at in range(0, SIDE * SIDE, LANES):
        store(x, at, load(image, at, LANES), LANES)
    for c in range(MAPS):
        a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = spread(np.float32(0), 8)
        total = np.float32(0)
        for m in range(196 * c, 196 * c + 196, 2):  # two at a time, since a sum waits for its last addition
            g, h = upstream[m] * slopes[m], upstream[m + 1] * slopes[m + 1]
            total += g + h
            v, at = spread(g, 8), places[m]
            a0, a1 = a0 + v * load(x, at, 8), a1 + v * load(x, at + SIDE, 8)
            a2, a3 = a2 + v * load(x, at + 2 * SIDE, 8), a3 + v * load(x, at + 3 * SIDE, 8)
            a4 = a4 + v * load(x, at + 4 * SIDE, 8)
            v, at = spread(h, 8), places[m + 1]
            b0, b1 = b0 + v * load(x, at, 8), b1 + v * load(x, at + SIDE, 8)
            b2, b3 = b2 + v * load(x, at + 2 * SIDE, 8), b3 + v * load(x, at + 3 * SIDE, 8)
            b4 = b4 + v * load(x, at + 4 * SIDE, 8)
        to = 25 * c
        store(each, to, a0 + b0, 5)
        store(each, to + 5, a1 + b1, 5)
        store(each, to + 10, a2 + b2, 5)
        store(each, to + 15, a3 + b3, 5)
        store(each, to + 20, a4 + b4, 5)
        each[75 + c] = total


@njit(parallel=True, cache=True, error_model="numpy", fastmath=_FAST)
def _conv_gradients(images: Any, upstream: Any, slopes: Any, places: Any, each: Any) -> None:
    """Per-sample gradients (samples, 78) of kernels and biases."""
    for s in prange(images.shape[0]):
        _gradient(images[s], upstream[s], slopes[s], places[s], each[s])
