"""Features of images that need no data: oriented filters, centred and whitened on random pen strokes.

A linear model on fixed features is what works best under strong noise: few parameters, bounded gradients, a
convex loss (Tramèr and Boneh 2021, "Differentially Private Learning Needs Better Features"). Nothing here
looks at any record but the one it transforms: filters are formulas, and the mean and covariance that centre
and whiten the features are those of drawings made by a pseudo-random pen. So the features cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce import _validate

__all__ = ["OrientedFeatures", "Scattering", "StrokeWhitening", "pen_strokes"]


def pen_strokes(count: int, rng: np.random.Generator, side: int = 28) -> np.ndarray:
    """Return drawings of one to three random smooth strokes, (count, side, side) float32 in [0, 1].

    The pen knows nothing of digits: Bézier curves through random points, scaled to a box and centred by
    mass, which is how handwriting is usually normalised.

    Examples
    --------
    >>> pen_strokes(3, np.random.default_rng(0)).shape
    (3, 28, 28)
    """
    along = np.linspace(0, 1, 24)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).astype(np.float32)  # x, y
    drawings = np.zeros((_validate.count(count, "count"), side, side), np.float32)
    for drawing in drawings:
        curves = []
        for _ in range(rng.integers(1, 4)):
            points = rng.uniform(size=(rng.integers(3, 6), 2))
            degree = len(points) - 1
            basis = [math.comb(degree, j) * along**j * (1 - along) ** (degree - j) for j in range(degree + 1)]
            curves.append(np.stack(basis, axis=1) @ points)
        path = np.concatenate(curves)
        path -= path.min(axis=0)
        path[:, 0] *= rng.uniform(0.4, 1.0)
        path *= rng.uniform(0.57, 0.68) * side / max(path.max(), 1e-6)
        path += side / 2 - (path.max(axis=0) + path.min(axis=0)) / 2
        squared = np.square(grid[None] - path[:, None, None].astype(np.float32)).sum(-1).min(axis=0)
        ink = np.clip(1.6 * np.exp(-squared / (2 * rng.uniform(0.8, 1.5) ** 2)), 0, 1)
        centre = np.tensordot(ink, grid, 2) / ink.sum()
        shift = np.round((side - 1) / 2 - centre).astype(int)
        drawing[:] = np.roll(ink, (shift[1], shift[0]), axis=(0, 1))
    return drawings


@dataclass(frozen=True)
class OrientedFeatures:
    """Strength of edges by direction and place, normalised in small blocks: gradients of a blurred image,
    split over ``directions``, averaged in Gaussian windows ``stride`` apart.

    Parameters
    ----------
    directions : number of edge directions over the full circle.
    blur, window : standard deviations of the derivative and of the averaging window, in pixels.
    stride : distance between windows.

    References: Dalal and Triggs 2005, "Histograms of Oriented Gradients for Human Detection".

    Examples
    --------
    >>> OrientedFeatures()(np.zeros((2, 28, 28), np.float32)).shape
    (2, 392)
    """

    directions: int = 8
    blur: float = 0.8
    window: float = 2.0
    stride: int = 4

    def __call__(self, images: Any) -> np.ndarray:
        """Return (count, features) float32 of grey images (count, side, side) in [0, 1]."""
        return _in_blocks(self._block, images)

    def _block(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        smooth, slope = _gaussian(self.blur)
        across, down = _separable(x, slope, smooth), _separable(x, smooth, slope)
        strength = torch.hypot(across, down) + 1e-8
        angle = torch.arange(self.directions).view(1, -1, 1, 1) * (2 * math.pi / self.directions)
        cosine = (across * torch.cos(angle) + down * torch.sin(angle)) / strength
        energy = _separable(strength * torch.relu(cosine).square(), *(_gaussian(self.window)[0],) * 2)
        first = (side - 1 - self.stride * ((side - 1) // self.stride)) // 2
        cells = energy[:, :, first :: self.stride, first :: self.stride]
        block = F.avg_pool2d(cells.square().sum(1, keepdim=True), 3, 1, 1)
        return (cells / (block + 1e-2).sqrt()).flatten(1).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Scattering:
    """Averages of moduli of Morlet wavelet responses, first and (if wanted) second order.

    References: Bruna and Mallat 2013, "Invariant Scattering Convolution Networks".

    Examples
    --------
    >>> Scattering(second=False)(np.zeros((2, 28, 28), np.float32)).shape
    (2, 1088)
    """

    scales: int = 2
    directions: int = 8
    stride: int = 4
    second: bool = True

    def __call__(self, images: Any) -> np.ndarray:
        """Return (count, features) float32 of grey images (count, side, side) in [0, 1]."""
        return _in_blocks(self._block, images)

    def _block(self, x: Tensor) -> Tensor:
        x = F.pad(x[:, 0], (2, 2, 2, 2))
        wavelets, low = _morlets(x.shape[-1], self.scales, self.directions)
        pick = slice(self.stride // 2, None, self.stride)

        def averaged(spectrum: Tensor) -> Tensor:
            return torch.fft.ifft2(spectrum * low).real[:, pick, pick]

        spectrum = torch.fft.fft2(x)
        found = [averaged(spectrum)]
        for scale, wavelet in wavelets:
            inner = torch.fft.fft2(torch.fft.ifft2(spectrum * wavelet).abs())
            found.append(averaged(inner))
            if self.second:
                later = [other for finer, other in wavelets if finer > scale]
                found += [averaged(torch.fft.fft2(torch.fft.ifft2(inner * other).abs())) for other in later]
        return torch.stack(found, 1).clamp(min=0).flatten(1).sqrt()


class StrokeWhitening:
    """Features centred and whitened by the statistics of random pen strokes, then scaled to unit length.

    Parameters
    ----------
    features : maps grey images in [0, 1] to rows.
    ridge : added to the covariance, as a share of its mean eigenvalue.
    seed, drawings : of the pen; public.

    Guarantees
    ----------
    Data-independent: the map is fixed before any record is seen, and a record's row depends on that record
    alone. A record with NaN gives a NaN row, whose gradient counts zero.

    Examples
    --------
    >>> whiten = StrokeWhitening(OrientedFeatures(4), drawings=300)
    >>> rows = whiten(pen_strokes(5, np.random.default_rng(1)))
    >>> np.round(np.linalg.norm(rows, axis=1), 4).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, features: Any, *, ridge: float = 0.1, seed: int = 0, drawings: int = 8000) -> None:
        self.features = features
        self.ridge = _validate.positive(ridge, "ridge")
        self.seed, self.drawings = seed, _validate.count(drawings, "drawings")

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self.features(pen_strokes(self.drawings, np.random.default_rng(self.seed)))
        mean = rows.mean(axis=0)
        covariance = np.cov(rows - mean, rowvar=False)
        values, vectors = np.linalg.eigh(covariance)
        scale = 1 / np.sqrt(np.maximum(values, 0) + self.ridge * values.mean())
        return mean, ((vectors * scale) @ vectors.T).astype(np.float32)

    def __call__(self, images: Any) -> np.ndarray:
        """Return (count, features) float32 rows of unit length."""
        mean, root = self._statistics
        rows = (self.features(images) - mean) @ root
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _in_blocks(block: Any, images: Any, size: int = 1000) -> np.ndarray:
    values = np.asarray(images)
    grey = torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)
    with torch.no_grad():
        return torch.cat([block(part[:, None]) for part in torch.split(grey, size)]).numpy()


def _gaussian(sigma: float) -> tuple[Tensor, Tensor]:
    """A Gaussian window and its derivative."""
    reach = int(3 * sigma + 0.5)
    at = torch.arange(-reach, reach + 1, dtype=torch.float32)
    window = torch.exp(-(at**2) / (2 * sigma**2))
    window = window / window.sum()
    return window, -at / sigma**2 * window


def _separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Filter every channel with an outer product, borders filled with zeros."""
    channels = x.shape[1]
    down = column.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
    across = row.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    x = F.conv2d(x, down, padding=(len(column) // 2, 0), groups=channels)
    return F.conv2d(x, across, padding=(0, len(row) // 2), groups=channels)


def _morlets(side: int, scales: int, directions: int) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """Fourier transforms of Morlet wavelets (zero mean) by scale, and of the averaging window."""
    frequency = torch.fft.fftfreq(side) * 2 * math.pi
    turns = [(a * 2 * math.pi, b * 2 * math.pi) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    down, across = torch.meshgrid(frequency, frequency, indexing="ij")

    def bump(centre: float, width: float, angle: float, slant: float) -> Tensor:
        total = torch.zeros(side, side)
        for a, b in turns:  # periodised, as the discrete transform is
            along = (across + b) * math.cos(angle) + (down + a) * math.sin(angle)
            beside = -(across + b) * math.sin(angle) + (down + a) * math.cos(angle)
            total += torch.exp(-(width**2) * ((along - centre) ** 2 + (beside / slant) ** 2) / 2)
        return total

    wavelets = []
    for scale in range(scales):
        centre, width = 0.75 * math.pi / 2**scale, 0.8 * 2**scale
        for k in range(directions):
            angle, slant = math.pi * k / directions, 4 / directions
            wave, base = bump(centre, width, angle, slant), bump(0.0, width, angle, slant)
            wavelets.append((scale, wave - base * (wave[0, 0] / base[0, 0])))
    low = bump(0.0, 0.8 * 2 ** (scales - 1), 0.0, 1.0)
    return wavelets, low / low[0, 0]
