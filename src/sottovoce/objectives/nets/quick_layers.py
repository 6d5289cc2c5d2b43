"""Layers without parameters that a processor computes several times as fast as torch does.

torch chooses the largest entry of a window by branches that a processor cannot foresee; here there are none,
and the place of the entry takes one byte. Mish and its slope are computed in one pass from one exponential.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.objectives.nets.float64_sums import start_threads
from sottovoce.objectives.nets.vectors import exp, load, spread, store

_PLACES = 256  # what a byte can name
_LANES, _BLOCK = 16, 4096  # numbers in a vector, and those that one thread takes at a time


class WindowMaxima(nn.Module):
    """`nn.MaxPool2d` of windows (height, width) that lie side by side."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.window = height, width

    @classmethod
    def of(cls, layer: nn.MaxPool2d) -> WindowMaxima | None:
        """Return the same function as ``layer``, or None if its windows overlap or need further options."""
        size, stride, padding, dilation = (
            (option, option) if isinstance(option, int) else tuple(option)
            for option in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )
        plain = size == stride and padding == (0, 0) and dilation == (1, 1) and size[0] * size[1] <= _PLACES
        return cls(*size) if plain and not layer.ceil_mode and not layer.return_indices else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the largest entry of every window; NaN if one is."""
        if inputs.device.type != "cpu" or inputs.ndim != 4:
            return F.max_pool2d(inputs, self.window)
        return _Maxima.apply(inputs, *self.window)


class _Maxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, height: int, width: int) -> Tensor:
        start_threads()
        *outer, rows, columns = inputs.shape
        maxima = inputs.new_empty(*outer, rows // height, columns // width)
        ctx.shape, ctx.window = inputs.shape, (height, width)
        ctx.places = np.empty(maxima.shape, np.uint8).reshape(-1, *maxima.shape[2:])
        images = np.ascontiguousarray(inputs.detach().numpy()).reshape(-1, rows, columns)
        _choose(images, height, width, maxima.numpy().reshape(ctx.places.shape), ctx.places)
        return maxima

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (height, width), out = ctx.window, gradients[0].new_empty(ctx.shape)
        each = np.ascontiguousarray(gradients[0].numpy()).reshape(ctx.places.shape)
        _give_back(each, ctx.places, height, width, out.numpy().reshape(-1, *ctx.shape[2:]))
        return out, None, None


@njit(parallel=True, cache=True)
def _choose(images: np.ndarray, height: int, width: int, maxima: np.ndarray, places: np.ndarray) -> None:
    """The largest entry of every window and its place, the first of several; the last NaN if there is one."""
    for s in prange(images.shape[0]):
        for i in range(maxima.shape[1]):
            for j in range(maxima.shape[2]):
                largest, place = images[s, i * height, j * width], 0
                for k in range(height):
                    for m in range(width):
                        value = images[s, i * height + k, j * width + m]
                        better = (value > largest) | (value != value)
                        largest = value if better else largest
                        place = k * width + m if better else place
                maxima[s, i, j], places[s, i, j] = largest, place


@njit(parallel=True, cache=True)
def _give_back(each: np.ndarray, places: np.ndarray, height: int, width: int, out: np.ndarray) -> None:
    """The gradient of every window at the place of its largest entry, zero at the others."""
    for s in prange(each.shape[0]):
        out[s] = 0.0
        for i in range(each.shape[1]):
            for j in range(each.shape[2]):
                place = np.int64(places[s, i, j])
                out[s, i * height + place // width, j * width + place % width] = each[s, i, j]


class QuickMish(nn.Module):
    """`nn.Mish`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``x tanh(log(1 + exp(x)))`` of every number."""
        quick = inputs.device.type == "cpu" and inputs.dtype == torch.float32
        return _Mish.apply(inputs) if quick else F.mish(inputs)


class _Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        values, slopes = mish_and_slope(inputs)
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (slopes,) = ctx.saved_tensors
        return gradients[0] * slopes


def mish_and_slope(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return Mish of float32 numbers and its derivative there."""
    start_threads()
    x = inputs.detach().contiguous()
    values, slopes = torch.empty_like(x), torch.empty_like(x)
    _mish(x.view(-1).numpy(), values.view(-1).numpy(), slopes.view(-1).numpy())
    return values, slopes


@njit(parallel=True, cache=True)
def _mish(x: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> None:
    for block in prange(-(-len(x) // _BLOCK)):
        first, end = block * _BLOCK, min(block * _BLOCK + _BLOCK, len(x))
        while first + _LANES <= end:
            _mish_lanes(x, values, slopes, first)
            first += _LANES
        if first < end:
            rest = np.zeros((3, _LANES), np.float32)
            rest[0, : end - first] = x[first:end]
            _mish_lanes(rest[0], rest[1], rest[2], 0)
            values[first:end], slopes[first:end] = rest[1, : end - first], rest[2, : end - first]


@njit(inline="always", error_model="numpy")
def _mish_lanes(x: Any, values: Any, slopes: Any, at: int) -> None:
    """mish(v) = v t, t = tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), e = exp(v)."""
    v = load(x, at, _LANES)
    one, two = spread(np.float32(1), _LANES), np.float32(2)
    e = exp(v, spread(np.float32(30), _LANES))
    n = e * (e + two)
    t = n / (n + two)
    store(values, at, v * t, _LANES)
    store(slopes, at, t + v * (e / (e + one)) * (one - t * t), _LANES)
