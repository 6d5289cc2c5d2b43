"""Clipped sums for the paper's MNIST network, written out by hand.

Conv 1->3 5x5, Mish, max-pool 2, linear 588->64, Mish, linear 64->10 on 32x32 images: 38,424 parameters.
The same numbers as `NetObjective` on `models.bayrooti_mnist`, several times faster: convolution, Mish and
pooling of a sample are one pass in the cache (numba), the linear layers are batched products over agents, and
only the 78 convolution gradients of a sample are ever formed.

Three facts carry the kernels. An image row is 32 wide, a convolution row 28; a map kept at the width of the
image lets a tap be one shift of the flat image, so the inner loops run over contiguous memory. Split by the
parity of rows and columns, the four entries of a pooling window stand at one place of four such maps, so
pooling runs over contiguous memory too. And Mish falls, then rises, so its maximum over a window is that of
its values at the window's largest and smallest entry: two evaluations instead of four.

The loops are short and read few arrays, loads before choices: so written, the compiler turns them into vector
instructions; with more arrays or a load behind a choice it gives up, and they take three times as long.
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

SIDE, WIDTH, POOLED, MAPS = 32, 28, 14, 3
FLAT = WIDTH * SIDE - 4  # length of a convolution map kept at the width of the image
HALF, QUARTER = 16, 256  # width and size of an image of every second row and column
WINDOWS = POOLED * HALF  # pooling windows, kept at that width
HIDDEN, FEATURES = 64, MAPS * POOLED * POOLED
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
        a, slope1 = _mish(h)
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
                hidden = _mish(torch.addmm(b1[0], torch.from_numpy(features), w1[0].mT))[0]
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


def _mish(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mish and its slope."""
    tanh = torch.tanh(torch.nn.functional.softplus(h))
    return h * tanh, tanh + h * torch.sigmoid(h) * (1 - tanh * tanh)


_FAST = {"contract", "nsz", "arcp", "reassoc"}
_BUFFERS = [np.empty((0, FEATURES), dtype) for dtype in (np.float32, np.float32, np.int32)]


def _buffers(samples: int) -> list[np.ndarray]:
    """Features, slopes and arg-max places of a batch; reused, since fresh pages cost more than arithmetic."""
    if len(_BUFFERS[0]) < samples:
        _BUFFERS[:] = [np.empty((samples, FEATURES), buffer.dtype) for buffer in _BUFFERS]
    return [buffer[:samples] for buffer in _BUFFERS]


@njit(inline="always")
def _exp(x: Any) -> Any:
    """exp in float32, clamped to |x| <= 30, to 2e-7 relative: 2^n times a polynomial, no table, no branch."""
    x = min(max(x, np.float32(-30.0)), np.float32(30.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.int32((np.int32(n) + 127) << 23).view(np.float32)


@njit(error_model="numpy", fastmath=_FAST)
def _quarters(image: Any, parts: Any) -> None:
    """The image split by the parity of row and column: (0, 0), (0, 1), (1, 0), (1, 1), 256 entries each."""
    for i in range(HALF):
        at = 2 * SIDE * i
        for j in range(HALF):
            parts[HALF * i + j] = image[at + 2 * j]
            parts[HALF * i + j + QUARTER] = image[at + 2 * j + 1]
            parts[HALF * i + j + 2 * QUARTER] = image[at + SIDE + 2 * j]
            parts[HALF * i + j + 3 * QUARTER] = image[at + SIDE + 2 * j + 1]


@njit(error_model="numpy", fastmath=_FAST)
def _convolved(parts: Any, kernel: Any, bias: Any, maps: Any) -> None:
    """One map, split the same way: `maps[WINDOWS * q + m]` is entry q of window m."""
    length = WINDOWS - 2  # the last two places are no window, and their taps would leave the image
    for a in range(2):
        for b in range(2):
            o = WINDOWS * (2 * a + b)
            maps[o : o + length] = bias
            for row in range(5):
                w = kernel[5 * row : 5 * row + 5]
                w0, w1, w2, w3, w4 = w[0], w[1], w[2], w[3], w[4]
                line = 2 * QUARTER * ((a + row) % 2) + HALF * ((a + row) // 2)
                even, odd = line + QUARTER * b, line + QUARTER * (1 - b) + b
                for k in range(length):
                    left = w0 * parts[even + k] + w1 * parts[odd + k] + w2 * parts[even + k + 1]
                    maps[o + k] += left + w3 * parts[odd + k + 1] + w4 * parts[even + k + 2]


@njit(error_model="numpy", fastmath=_FAST)
def _ends(maps: Any, ends: Any, at: Any) -> None:
    """Largest (first half) and smallest entry of every window, and where they stand in the window."""
    n = WINDOWS
    for m in range(n):
        v0, v1, v2, v3 = maps[m], maps[m + n], maps[m + 2 * n], maps[m + 3 * n]
        top = v1 if v1 > v0 else v0
        end = v3 if v3 > v2 else v2
        ends[m] = end if end > top else top
    for m in range(n):
        v0, v1, v2, v3 = maps[m], maps[m + n], maps[m + 2 * n], maps[m + 3 * n]
        top = v0 if v1 > v0 else v1
        end = v2 if v3 > v2 else v3
        ends[m + n] = end if end < top else top
    for m in range(n):
        v0, v1, v2, high = maps[m], maps[m + n], maps[m + 2 * n], ends[m]
        place = np.int32(SIDE) if v2 == high else np.int32(SIDE + 1)
        place = np.int32(1) if v1 == high else place
        at[m] = np.int32(0) if v0 == high else place
    for m in range(n):
        v0, v1, v3, low = maps[m], maps[m + n], maps[m + 3 * n], ends[m + n]
        place = np.int32(SIDE + 1) if v3 == low else np.int32(SIDE)
        place = np.int32(0) if v0 == low else place
        at[m + n] = np.int32(1) if v1 == low else place
    for half in range(0, 2 * n, n):
        for m in range(n):
            v0, v1, v2, v3, end = maps[m], maps[m + n], maps[m + 2 * n], maps[m + 3 * n], ends[half + m]
            total = v0 + v1 + v2 + v3  # a NaN must not lose every comparison
            ends[half + m] = end if total < np.float32(np.inf) else total


@njit(error_model="numpy", fastmath=_FAST)
def _mish_of_ends(ends: Any, at: Any) -> None:
    """The larger Mish of both ends into the fourth part of `ends`, its slope into the third, its place."""
    n = WINDOWS
    for m in range(2 * n):
        ends[m + 2 * n] = _exp(ends[m])
    for m in range(n):
        # mish(v) = v t, t = tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), e = exp(v)
        v1, v2, e1, e2 = ends[m], ends[m + n], ends[m + 2 * n], ends[m + 3 * n]
        n1, n2 = e1 * (e1 + np.float32(2)), e2 * (e2 + np.float32(2))
        t1, t2 = n1 / (n1 + np.float32(2)), n2 / (n2 + np.float32(2))
        mish1, mish2 = v1 * t1, v2 * t2
        first = mish1 >= mish2
        v = v1 if first else v2
        t = t1 if first else t2
        e = e1 if first else e2
        ends[m], ends[m + n] = mish1, mish2
        ends[m + 2 * n] = t + v * (e / (e + np.float32(1))) * (np.float32(1) - t * t)
        ends[m + 3 * n] = mish1 if first else mish2
    for m in range(n):
        high_at, low_at, mish1, mish2 = at[m], at[m + n], ends[m], ends[m + n]
        at[m] = high_at if mish1 >= mish2 else low_at


@njit(parallel=True, cache=True, error_model="numpy", fastmath=_FAST)
def _conv_mish_pool(
    images: Any, weights: Any, biases: Any, batch_size: int, features: Any, slopes: Any, places: Any
) -> None:
    """Features (samples, 588), the slope of Mish there, and the place of the winner in the 32-wide map."""
    for s in prange(images.shape[0]):
        agent = s // batch_size
        parts, maps = np.empty(4 * QUARTER, np.float32), np.zeros(4 * WINDOWS, np.float32)
        ends, at = np.empty(4 * WINDOWS, np.float32), np.empty(2 * WINDOWS, np.int32)
        _quarters(images[s], parts)
        for c in range(MAPS):
            _convolved(parts, weights[agent, c], biases[agent, c], maps)
            _ends(maps, ends, at)
            _mish_of_ends(ends, at)
            for i in range(POOLED):
                to, of = POOLED * (POOLED * c + i), HALF * i
                for j in range(POOLED):
                    features[s, to + j] = ends[of + j + 3 * WINDOWS]
                for j in range(POOLED):
                    slopes[s, to + j] = ends[of + j + 2 * WINDOWS]
                for j in range(POOLED):
                    places[s, to + j] = at[of + j] + np.int32(2 * SIDE * i) + np.int32(2) * np.int32(j)


@njit(parallel=True, cache=True, error_model="numpy", fastmath=_FAST)
def _conv_gradients(images: Any, upstream: Any, slopes: Any, places: Any, each: Any) -> None:
    """Per-sample gradients (samples, 78) of kernel and bias: winners on the map, then 25 shifted dots."""
    for s in prange(images.shape[0]):
        x = images[s]
        d = np.empty(WIDTH * SIDE, np.float32)
        for c in range(MAPS):
            d[:] = np.float32(0)
            total = np.float32(0)
            for m in range(196 * c, 196 * c + 196):
                g = upstream[s, m] * slopes[s, m]
                d[places[s, m]] = g
                total += g
            for row in range(5):
                o = SIDE * row
                a0 = a1 = a2 = a3 = a4 = np.float32(0)
                for k in range(FLAT):
                    a0 += d[k] * x[o + k]
                    a1 += d[k] * x[o + k + 1]
                    a2 += d[k] * x[o + k + 2]
                    a3 += d[k] * x[o + k + 3]
                    a4 += d[k] * x[o + k + 4]
                at = 25 * c + 5 * row
                each[s, at], each[s, at + 1], each[s, at + 2] = a0, a1, a2
                each[s, at + 3], each[s, at + 4] = a3, a4
            each[s, 75 + c] = total
