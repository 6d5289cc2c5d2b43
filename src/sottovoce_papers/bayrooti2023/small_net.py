"""A shallow convolutional network small enough to train ten thousand times.

Membership audits with many runs train thousands of models. Noise is drawn for every parameter of every
model in every step, so the network must be small: pictures of 14 x 14 pixels, one convolution (6 x 6, stride
4, three filters), tanh, one linear layer to three classes: 195 parameters. Per-sample gradients, clipping and
summing are one compiled loop over models and records; all models share the records.

Sums are in float32, unlike those of `objectives.nets`: nothing here is released. These are models that an
auditor trains by the thousand on records of its own; in a batch of a few dozen records rounding moves the
influence of one by less than a hundred-thousandth of the clip, far below what thousands of runs can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit, prange
from numpy import ndarray as Array

from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SmallNet:
    """Convolution, tanh, linear, softmax: parameters of one model are one row.

    Parameters
    ----------
    side : pixels along a picture; kernel, stride, filters : the convolution; classes : outputs.
    """

    side: int = 14
    kernel: int = 6
    stride: int = 4
    filters: int = 3
    classes: int = 3

    @property
    def places(self) -> int:
        """Positions of the kernel."""
        return ((self.side - self.kernel) // self.stride + 1) ** 2

    @property
    def n_params(self) -> int:
        """Numbers in one row."""
        hidden = self.filters * self.places
        return self.filters * (self.kernel**2 + 1) + self.classes * (hidden + 1)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return one random row, uniform within one over the square root of the fan-in, as torch does."""
        first, second = self.kernel, np.sqrt(self.filters * self.places)
        conv = rng.uniform(-1 / first, 1 / first, self.filters * (self.kernel**2 + 1))
        linear = rng.uniform(-1 / second, 1 / second, self.classes * (self.filters * self.places + 1))
        return np.concatenate([conv, linear]).astype(np.float32)

    def module(self, row: np.ndarray) -> nn.Sequential:
        """Return the same network as a torch module (for comparison)."""
        import torch

        conv = torch.nn.Conv2d(1, self.filters, self.kernel, stride=self.stride)
        linear = torch.nn.Linear(self.filters * self.places, self.classes)
        net = torch.nn.Sequential(conv, torch.nn.Tanh(), torch.nn.Flatten(), linear)
        values = torch.as_tensor(np.array(row, dtype=np.float32))
        torch.nn.utils.vector_to_parameters(values, net.parameters())
        return net

    def patches(self, images: np.ndarray) -> np.ndarray:
        """Return ``(records, places, kernel * kernel)`` float32 from pictures ``(records, side, side)``."""
        images = np.asarray(images, dtype=np.float32)
        if images.shape[-2:] != (self.side, self.side):
            raise InvalidInput(f"pictures must be {self.side} x {self.side}, got {images.shape[-2:]}.")
        windows = np.lib.stride_tricks.sliding_window_view(images, (self.kernel, self.kernel), axis=(-2, -1))
        chosen = windows[..., :: self.stride, :: self.stride, :, :]
        return np.ascontiguousarray(chosen.reshape(len(images), self.places, -1))

    def losses(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the cross-entropy ``(models, records)`` of every record under every row."""
        conv, bias, linear, shift = self._split(np.asarray(theta, dtype=np.float32))
        hidden = np.tanh(np.einsum("mfk,rpk->mrfp", conv, self.patches(images)) + bias[:, None, :, None])
        logits = np.einsum("mcj,mrj->mrc", linear, hidden.reshape(*hidden.shape[:2], -1)) + shift[:, None]
        logits = logits - logits.max(axis=2, keepdims=True)
        chosen = np.take_along_axis(logits, np.asarray(labels)[None, :, None], axis=2)[:, :, 0]
        return np.log(np.exp(logits).sum(axis=2)) - chosen

    def clipped_sums(
        self, theta: Array, owner: Array, patches: Array, labels: Array, present: Array,
        clip_norm: float, guard: bool = True,
    ) -> Array:  # fmt: skip
        """Return the sum of clipped gradients of every row over its batch, ``(rows, n_params)`` float32.

        Parameters
        ----------
        theta : ``(rows, n_params)``.
        owner : ``(rows,)``, which of the record sets a row reads.
        patches, labels : ``(sets, records, places, kernel * kernel)`` and ``(sets, records)``.
        present : ``(rows, records)``, the batches.
        guard : count a record whose gradient is not finite as zero; False plants the usual bug.
        """
        theta = np.ascontiguousarray(theta, dtype=np.float32)
        out = np.zeros_like(theta)
        clip, shape = np.float32(clip_norm), (self.filters, self.classes)
        _clipped_sums(theta, owner, patches, labels, present, clip, guard, *shape, out)
        return out

    def _split(self, theta: np.ndarray) -> tuple[np.ndarray, ...]:
        bias = self.filters * self.kernel**2
        linear = bias + self.filters
        shift = linear + self.classes * self.filters * self.places
        parts = np.split(theta, [bias, linear, shift], axis=1)
        parts[0] = parts[0].reshape(len(theta), self.filters, -1)
        parts[2] = parts[2].reshape(len(theta), self.classes, -1)
        return tuple(parts)


@njit(cache=True, inline="always", fastmath={"contract", "reassoc", "nsz"})
def _tanh(x: np.float32) -> np.float32:
    """Tanh as a rational function, right to single precision; unlike libm's it runs in vector registers."""
    x = min(max(x, np.float32(-7.905311)), np.float32(7.905311))
    y = x * x
    top = np.float32(-2.76076847742355e-16)
    top = top * y + np.float32(2.00018790482477e-13)
    top = top * y + np.float32(-8.60467152213735e-11)
    top = top * y + np.float32(5.12229709037114e-08)
    top = top * y + np.float32(1.48572235717979e-05)
    top = top * y + np.float32(6.37261928875436e-04)
    top = top * y + np.float32(4.89352455891786e-03)
    bottom = np.float32(1.19825839466702e-06)
    bottom = bottom * y + np.float32(1.18534705686654e-04)
    bottom = bottom * y + np.float32(2.26843463243900e-03)
    bottom = bottom * y + np.float32(4.89352518554385e-03)
    return x * top / bottom


@njit(cache=True, parallel=True, fastmath={"contract", "reassoc", "nsz"})
def _clipped_sums(
    theta: Array, owner: Array, patches: Array, labels: Array, present: Array,
    clip_norm: np.float32, guard: bool, filters: int, classes: int, out: Array,
) -> None:  # fmt: skip
    records, places, size = patches.shape[1], patches.shape[2], patches.shape[3]
    hidden = filters * places
    at_bias = filters * size
    at_linear = at_bias + filters
    at_shift = at_linear + classes * hidden
    total = at_shift + classes
    for row in prange(theta.shape[0]):
        w = theta[row]
        h = np.empty(hidden, np.float32)
        delta = np.empty(classes, np.float32)
        g = np.empty(total, np.float32)
        sets = patches[owner[row]]
        for r in range(records):
            if not present[row, r]:
                continue
            x = sets[r]
            for f in range(filters):
                for p in range(places):
                    a = w[at_bias + f]
                    for k in range(size):
                        a += w[f * size + k] * x[p, k]
                    h[f * places + p] = a
            for j in range(hidden):
                h[j] = _tanh(h[j])
            top = np.float32(-np.inf)
            for c in range(classes):
                a = w[at_shift + c]
                for j in range(hidden):
                    a += w[at_linear + c * hidden + j] * h[j]
                delta[c] = a
                top = max(top, a)
            norm = np.float32(0)
            for c in range(classes):
                delta[c] = np.exp(delta[c] - top)
                norm += delta[c]
            for c in range(classes):
                delta[c] /= norm
            delta[labels[owner[row], r]] -= np.float32(1)
            g[:at_linear] = 0
            for f in range(filters):
                for p in range(places):
                    j = f * places + p
                    back = np.float32(0)
                    for c in range(classes):
                        back += w[at_linear + c * hidden + j] * delta[c]
                    back *= np.float32(1) - h[j] * h[j]
                    g[at_bias + f] += back
                    for k in range(size):
                        g[f * size + k] += back * x[p, k]
            for c in range(classes):
                for j in range(hidden):
                    g[at_linear + c * hidden + j] = delta[c] * h[j]
                g[at_shift + c] = delta[c]
            squared = np.float32(0)
            for i in range(total):
                squared += g[i] * g[i]
            length = np.sqrt(squared)
            if guard and not (length < np.float32(1e30)):
                continue
            weight = np.float32(1) if length <= clip_norm else clip_norm / length
            for i in range(total):
                out[row, i] += weight * g[i]
