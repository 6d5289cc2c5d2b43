"""Clipped sums for the MNIST network of B23, written out by hand.

Conv 1->3 5x5, Mish, max-pool 2, linear 588->64, Mish, linear 64->10 on 32x32 images: 38,424 parameters.
The same numbers as `NetObjective` on `models.b23_mnist`, several times faster: convolution, Mish and pooling
of a sample are one pass in the cache (numba), the linear layers are batched products over agents, and only
the 78 convolution gradients of a sample are ever formed.

Two facts carry the kernels. An image row is 32 wide and a convolution row 28; a map kept 32 wide lets a
tap be one shift of the flat image, so the inner loops run over contiguous memory. And Mish falls, then rises,
so its maximum over a window is that of its values at the window's largest and smallest entry: two
evaluations instead of four.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from sottovoce.objectives.clipping import clip_weights
from sottovoce.objectives.nets import NetObjective
from sottovoce.objectives.wide_sums import row_squares, weighted_products, weighted_rows

__all__ = ["B23Objective"]

SIDE, WIDTH, POOLED, MAPS = 32, 28, 14, 3
FLAT = WIDTH * SIDE - 4  # length of a convolution map kept at the width of the image
HIDDEN, FEATURES = 64, MAPS * POOLED * POOLED
_CUTS = np.cumsum([0, 75, 3, HIDDEN * FEATURES, HIDDEN, 10 * HIDDEN, 10])


class B23Objective(NetObjective):
    """`NetObjective` for the network of `models.b23_mnist`, with hand-written sums.

    Examples
    --------
    >>> objective = B23Objective(clip=1.0)
    >>> objective.n_params
    38424
    >>> theta = objective.initial(np.random.default_rng(0), agents=2)
    >>> x, y = torch.randn(2, 3, 1, 32, 32), torch.zeros(2, 3, dtype=torch.long)
    >>> objective.clipped_sums(theta, x, y).shape
    torch.Size([2, 38424])
    """

    def __init__(
        self,
        *,
        clip: float = 1.0,
        physical_batch: int | None = None,
        initial: Literal["keep", "reset"] = "keep",
    ) -> None:
        from sottovoce.objectives.models import b23_mnist

        super().__init__(b23_mnist(), clip=clip, physical_batch=physical_batch, initial=initial)

    def _stacked_sums(
        self, steps: Any, theta: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, sums: Tensor
    ) -> None:
        agents, lot = present.shape
        conv, conv_bias, w1, b1, w2, b2 = _split(theta)
        images = inputs.reshape(agents * lot, SIDE * SIDE).contiguous().numpy()
        features, slope, place = _buffers(agents * lot)
        _conv_mish_pool(images, conv.numpy(), conv_bias.numpy(), lot, features, slope, place)

        p = torch.from_numpy(features).view(agents, lot, FEATURES)
        h = torch.baddbmm(b1[:, None], p, w1.mT)
        a, slope1 = _mish(h)
        out = torch.baddbmm(b2[:, None], a, w2.mT)

        g2 = torch.softmax(out, -1)
        g2.view(-1, 10)[torch.arange(agents * lot), targets.reshape(-1)] -= 1
        g1 = torch.bmm(g2, w2) * slope1
        gp = torch.bmm(g1, w1).view(agents * lot, FEATURES)
        each = np.empty((agents * lot, 78), np.float32)
        _conv_gradients(images, gp.numpy(), slope, place, each)
        conv_each = torch.from_numpy(each).view(agents, lot, 78)

        squared = (_squares(a) + 1) * _squares(g2) + (_squares(p) + 1) * _squares(g1) + _squares(conv_each)
        weights = torch.where(present, clip_weights(squared, self.clip), 0.0)
        bad = ~torch.isfinite(squared)[..., None]
        if bad.any():
            g2, g1, a, p, conv_each = (torch.where(bad, 0.0, t) for t in (g2, g1, a, p, conv_each))
        pieces = (
            weighted_rows(weights, conv_each), weighted_products(weights, g1, p), weighted_rows(weights, g1),
            weighted_products(weights, g2, a), weighted_rows(weights, g2),
        )  # fmt: skip
        sums += torch.cat([piece.reshape(agents, -1) for piece in pieces], 1)

    def _outputs(self, theta: Any, inputs: Tensor, chunk: int = 2000) -> Any:
        inputs = inputs.to(torch.float32)
        for row in torch.split(torch.as_tensor(theta, dtype=torch.float32), 1):
            conv, bias, w1, b1, w2, b2 = _split(row)
            found = []
            for part in torch.split(inputs, chunk):
                images = part.reshape(len(part), SIDE * SIDE).contiguous().numpy()
                features, slope, place = _buffers(len(part))
                _conv_mish_pool(images, conv.numpy(), bias.numpy(), len(part), features, slope, place)
                hidden = _mish(torch.addmm(b1[0], torch.from_numpy(features), w1[0].mT))[0]
                found.append(torch.addmm(b2[0], hidden, w2[0].mT))
            yield torch.cat(found)


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


_kept: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}


def _buffers(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, slopes and arg-max places of a lot; kept, since fresh pages cost more than the arithmetic."""
    if samples not in _kept:
        if len(_kept) > 4:
            _kept.clear()
        shape = (samples, FEATURES)
        _kept[samples] = (np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.int32))
    return _kept[samples]


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


@njit(parallel=True, cache=True, error_model="numpy", fastmath={"contract", "nsz", "arcp", "reassoc"})
def _conv_mish_pool(
    images: Any, weights: Any, biases: Any, lot: int, features: Any, slopes: Any, places: Any
) -> None:
    """Features (samples, 588), the slope of Mish there, and the place of the winner in the 32-wide map."""
    for s in prange(images.shape[0]):
        x, agent = images[s], s // lot
        z = np.empty(WIDTH * SIDE, np.float32)
        high, low = np.empty(196, np.float32), np.empty(196, np.float32)
        high_at, low_at = np.empty(196, np.int32), np.empty(196, np.int32)
        for c in range(MAPS):
            z[:] = biases[agent, c]
            for row in range(5):
                w = weights[agent, c, 5 * row : 5 * row + 5]
                w0, w1, w2, w3, w4 = w[0], w[1], w[2], w[3], w[4]
                o = SIDE * row
                for k in range(FLAT):
                    left = w0 * x[o + k] + w1 * x[o + k + 1] + w2 * x[o + k + 2]
                    z[k] += left + w3 * x[o + k + 3] + w4 * x[o + k + 4]
            for i in range(POOLED):
                for j in range(POOLED):
                    at = 2 * SIDE * i + 2 * j
                    v0, v1, v2, v3 = z[at], z[at + 1], z[at + SIDE], z[at + SIDE + 1]
                    top, top_at = (v1, 1) if v1 > v0 else (v0, 0)
                    end, end_at = (v3, SIDE + 1) if v3 > v2 else (v2, SIDE)
                    m = POOLED * i + j
                    high[m] = end if end > top else top
                    high_at[m] = at + (end_at if end > top else top_at)
                    top, top_at = (v0, 0) if v1 > v0 else (v1, 1)
                    end, end_at = (v2, SIDE) if v3 > v2 else (v3, SIDE + 1)
                    low[m] = end if end < top else top
                    low_at[m] = at + (end_at if end < top else top_at)
                    if not (v0 + v1 + v2 + v3 < np.inf):  # a NaN must not lose every comparison
                        high[m] = low[m] = v0 + v1 + v2 + v3
            out = features[s, 196 * c : 196 * c + 196]
            slope = slopes[s, 196 * c : 196 * c + 196]
            place = places[s, 196 * c : 196 * c + 196]
            for m in range(196):
                # mish(v) = v t, t = tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), e = exp(v)
                e1, e2 = _exp(high[m]), _exp(low[m])
                n1, n2 = e1 * (e1 + np.float32(2)), e2 * (e2 + np.float32(2))
                t1, t2 = n1 / (n1 + np.float32(2)), n2 / (n2 + np.float32(2))
                first = high[m] * t1 >= low[m] * t2
                v = high[m] if first else low[m]
                t = t1 if first else t2
                e = e1 if first else e2
                out[m] = v * t
                slope[m] = t + v * (e / (e + np.float32(1))) * (np.float32(1) - t * t)
                place[m] = high_at[m] if first else low_at[m]


@njit(parallel=True, cache=True, error_model="numpy", fastmath={"contract", "nsz", "arcp", "reassoc"})
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
