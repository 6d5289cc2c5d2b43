"""Features of images that need no data: oriented filters and wavelets, whitened on pictures made at random.

A linear model on fixed features works best under strong noise: few parameters, bounded gradients, a convex
loss (Tramèr and Boneh 2021, "Differentially Private Learning Needs Better Features"). The features of a
record depend on that record alone: filters are formulas, and the mean and covariance that center and whiten
the features are those of random pictures (pen strokes, textured shapes, dead leaves). So the features cost no
privacy. Plan files name them by the entry points ``sottovoce.image_features``. The module needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import linalg
from torch import Tensor
from torch.nn import functional as F

from sottovoce import _validate
from sottovoce.errors import InvalidInput

Features = Callable[[ArrayLike], np.ndarray]  # images to rows, each from its own image


def pen_strokes(count: int, rng: np.random.Generator, side: int = 28) -> np.ndarray:
    """Return drawings of one to three random smooth strokes, (count, side, side) float32 in [0, 1].

    The pen knows nothing of digits: Bézier curves through random points, scaled to a box and centered by
    mass, which is how handwriting is usually normalized.
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
        center = np.tensordot(ink, grid, 2) / ink.sum()
        shift = np.round((side - 1) / 2 - center).astype(int)
        drawing[:] = np.roll(ink, (shift[1], shift[0]), axis=(0, 1))
    return drawings


@dataclass(frozen=True)
class OrientedFeatures:
    """Strength of edges by direction and place, normalized in small blocks: gradients of an image, split over
    the ``directions`` of a circle, averaged in Gaussian windows ``stride`` apart. ``blur`` and ``window`` are
    the standard deviations of the derivative and of the window, in pixels.

    References: Dalal and Triggs 2005, "Histograms of Oriented Gradients for Human Detection".
    """

    directions: int = 8
    blur: float = 0.8
    window: float = 2.0
    stride: int = 4

    def __call__(self, images: ArrayLike) -> np.ndarray:
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
    """Averages of moduli of Morlet wavelet responses of first order.

    References: Bruna and Mallat 2013, "Invariant Scattering Convolution Networks".
    """

    scales: int = 2
    directions: int = 8
    stride: int = 4

    def __call__(self, images: ArrayLike) -> np.ndarray:
        """Return (count, features) float32 of grey images (count, side, side) in [0, 1]."""
        return _in_blocks(self._block, images)

    def _block(self, x: Tensor) -> Tensor:
        x = F.pad(x[:, 0], (2, 2, 2, 2))
        wavelets, low = _morlets(x.shape[-1], self.scales, self.directions)
        window = low[self.stride // 2 :: self.stride]

        def averaged(modulus: Tensor) -> Tensor:
            return window @ modulus @ window.T  # few places of a separable window: no transform needed

        spectrum = torch.fft.fft2(x)
        moduli = (torch.fft.ifft2(spectrum * wavelet).abs() for wavelet in wavelets)
        values = torch.stack([averaged(x), *map(averaged, moduli)], 1).flatten(1)
        return values.sign() * values.abs().sqrt()  # the average of a chroma channel may be negative


def pooled_pixels(size: int = 2) -> Features:
    """Return the features that are means over squares of ``size`` pixels of grey images."""
    return lambda images: _in_blocks(lambda x: F.avg_pool2d(x, size).flatten(1), images)


def deskew(images: ArrayLike) -> np.ndarray:
    """Return grey images sheared upright and moved to the middle, each by its own moments.

    The shear makes the mixed second moment of the ink zero, as for handwriting that leans to neither side.
    An image without ink stays as it is; one with a pixel that is no number becomes NaN.
    """
    return _in_blocks(lambda x: _deskewed(x)[:, 0], images)


def _deskewed(x: Tensor) -> Tensor:
    side = x.shape[-1]
    at = torch.arange(side, dtype=torch.float32)
    ink = x[:, 0].clamp(min=0)
    mass = ink.sum((1, 2))
    bad = ~torch.isfinite(mass)
    safe = torch.where(bad | (mass <= 0), 1.0, mass)
    across = torch.where(mass > 0, (ink.sum(1) @ at) / safe, (side - 1) / 2)
    down = torch.where(mass > 0, (ink.sum(2) @ at) / safe, (side - 1) / 2)
    dx = at[None, None, :] - across[:, None, None]
    dy = at[None, :, None] - down[:, None, None]
    spread = (ink * dy.square()).sum((1, 2)) / safe
    lean = (ink * dx * dy).sum((1, 2)) / safe
    shear = torch.where(spread > 1e-6, lean / spread.clamp(min=1e-6), 0.0)
    # where each pixel of the upright image is taken from
    v = at[None, :, None] - (side - 1) / 2
    u = at[None, None, :] - (side - 1) / 2 + shear[:, None, None] * v + across[:, None, None]
    v = (v + down[:, None, None]).expand_as(u)
    places = torch.stack([u, v], -1) * (2 / (side - 1)) - 1
    moved = F.grid_sample(x, places.nan_to_num(), align_corners=True)
    return torch.where(bad[:, None, None, None], torch.nan, moved)


def joined(*parts: Features) -> Features:
    """Return several kinds of features in one row."""
    return lambda images: np.concatenate([part(images) for part in parts], axis=1)


def mirrored(features: Features) -> Features:
    """Return the mean of the features of an image and of its mirror image, so that both have the same row.

    A linear model trained on both images would come to the same: by symmetry it has no use for what differs
    between them, and noise on that part only disturbs it.
    """

    def rows(images: ArrayLike) -> np.ndarray:
        values = np.asarray(images)
        return (features(values) + features(values[..., ::-1])) / 2

    return rows


def opponent(features: Features) -> Features:
    """Return features of three opponent channels of color images, (count, 3, side, side) in [0, 1].

    The channels are the luminance, red against green, and yellow against blue.
    """

    def rows(images: ArrayLike) -> np.ndarray:
        values = np.asarray(images, np.float32)
        if values.ndim != 4 or values.shape[1] != 3:
            raise InvalidInput(
                f"opponent colors need images of shape (count, 3, side, side), got {values.shape}; grey "
                "images go to the features themselves."
            )
        red, green, blue = values[:, 0], values[:, 1], values[:, 2]
        channels = ((red + green + blue) / 3, (red - green) / 2, (red + green) / 4 - blue / 2)
        return np.concatenate([features(channel) for channel in channels], axis=1)

    return rows


def textured_shapes(count: int, rng: np.random.Generator, side: int = 28) -> np.ndarray:
    """Return pictures of one to three random shapes with plain, shaded or striped surfaces, on black."""
    at = np.linspace(-1, 1, side, dtype=np.float32)
    x, y = np.meshgrid(at, at)
    pictures = np.zeros((_validate.count(count, "count"), side, side), np.float32)
    for picture in pictures:
        for _ in range(rng.integers(1, 4)):
            center = rng.uniform(-0.35, 0.35, 2)
            u, v = x - center[0], y - center[1]
            corners = int(rng.integers(3, 9))
            angles = np.sort(rng.uniform(0, 2 * np.pi, corners))
            reach = rng.uniform(0.25, 0.95, corners)
            around = np.interp(np.arctan2(v, u) % (2 * np.pi), angles, reach, period=2 * np.pi)
            inside = 1 / (1 + np.exp(np.clip((np.hypot(u, v) - around) * side / 2, -30, 30)))
            turn = rng.uniform(0, np.pi)
            along = u * np.cos(turn) + v * np.sin(turn)
            light = rng.uniform(0.2, 1.0) + rng.uniform(0, 0.4) * along
            if rng.uniform() < 0.5:
                light = light * (1 + rng.uniform(0.1, 0.6) * np.sin(rng.uniform(4, 25) * along))
            picture[:] = picture * (1 - inside) + np.clip(light, 0, 1) * inside
        picture[:] = np.clip(picture + rng.normal(0, 0.03, picture.shape) * (picture > 0.05), 0, 1)
    return pictures


def dead_leaves(count: int, rng: np.random.Generator, side: int = 32, leaves: int = 60) -> np.ndarray:
    """Return color pictures of discs that fell over each other, (count, 3, side, side) float32 in [0, 1].

    Radii follow a power law, so that edges appear at all scales, as in photographs.

    References: Lee, Mumford, Huang 2001, "Occlusion models for natural images".
    """
    n = _validate.count(count, "count")
    at = np.arange(side, dtype=np.float32)
    pictures = np.full((n, 3, side, side), 0.5, np.float32)
    low, high = 1.5**-2.0, (0.8 * side) ** -2.0
    for _ in range(leaves):
        radius = (low + rng.uniform(size=n) * (high - low)) ** -0.5  # density falls as the cube of the radius
        center = rng.uniform(-2, side + 2, (2, n))
        squared = np.square(at[None, :, None] - center[0][:, None, None]) + np.square(
            at[None, None, :] - center[1][:, None, None]
        )
        cover = np.clip(radius[:, None, None] - np.sqrt(squared) + 0.5, 0, 1).astype(np.float32)[:, None]
        color = rng.uniform(0, 1, (n, 1)) + 0.15 * rng.standard_normal((n, 3))
        slope = rng.normal(0, 0.2 / side, (n, 2))
        shade = (at[None, :, None] - side / 2) * slope[:, :1, None]
        shade = shade + (at[None, None, :] - side / 2) * slope[:, 1:, None]
        surface = (color[:, :, None, None] + shade[:, None]).astype(np.float32)
        pictures = pictures * (1 - cover) + surface * cover
    pictures += rng.normal(0, 0.02, pictures.shape).astype(np.float32)
    return np.clip(pictures, 0, 1)


PICTURES: dict[str, Callable[[int, np.random.Generator, int], np.ndarray]] = {
    "strokes": pen_strokes,
    "shapes": textured_shapes,
    "leaves": dead_leaves,
}


class Whitened:
    """Features centered and whitened by the statistics of random ``pictures``, then scaled to unit length.

    ``ridge`` is added to the covariance, as a share of its mean eigenvalue (of those kept). ``keep`` is so
    many directions in which random pictures differ most: others carry little but noise, and cost time.

    Guarantees
    ----------
    Data-independent: the map is fixed before any record is seen, and a record's row depends on that record
    alone. A record with NaN gives a NaN row, whose gradient counts zero.
    """

    def __init__(
        self,
        features: Features,
        pictures: str,
        *,
        ridge: float = 0.1,
        seed: int = 0,
        drawings: int = 8000,
        keep: int | None = None,
    ) -> None:
        _validate.choice(pictures, PICTURES, "pictures")
        self.features, self.pictures, self.ridge = features, pictures, _validate.positive(ridge, "ridge")
        self.seed, self.drawings, self.keep = seed, _validate.count(drawings, "drawings"), keep
        self._side: int | None = None

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        side = self._side or (32 if self.pictures == "leaves" else 28)
        rows = self.features(PICTURES[self.pictures](self.drawings, np.random.default_rng(self.seed), side))
        mean = rows.mean(axis=0)
        centered = rows - mean
        if self.keep is not None:
            return mean, _principal(centered, self.keep, self.ridge)
        covariance = centered.T @ centered / np.float32(len(rows) - 1)
        ridge = self.ridge * float(np.trace(covariance, dtype=np.float64)) / len(covariance)
        covariance[np.diag_indices_from(covariance)] += ridge
        # Any root serves: two of them differ by a rotation, which changes no inner product of two rows.
        lower = linalg.cholesky(covariance.astype(np.float64), lower=True, overwrite_a=True)
        root = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True, overwrite_b=True)
        return mean, np.ascontiguousarray(root.T, np.float32)

    def __call__(self, images: ArrayLike) -> np.ndarray:
        """Return (count, features) float32 rows of unit length."""
        values = np.asarray(images)
        if self._side is None:
            self._side = values.shape[-1]
        elif values.shape[-1] != self._side:
            raise InvalidInput(
                f"these features were fitted to pictures of {self._side} pixels a side, got "
                f"{values.shape[-1]}; make another one for those."
            )
        mean, root = self._statistics
        parts = []
        for first in range(0, len(values), 4000):  # the wide rows of all images would fill the memory
            rows = (self.features(values[first : first + 4000]) - mean) @ root
            parts.append(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
        return np.concatenate(parts) if parts else np.zeros((0, root.shape[1]), np.float32)


_FIRST, _ORIENTED = Scattering(), OrientedFeatures()
_GREY = joined(_FIRST, _ORIENTED, pooled_pixels(2))
_COLOR = joined(opponent(_FIRST), opponent(_ORIENTED), opponent(pooled_pixels(4)))


def _upright(features: Features) -> Features:
    return lambda images: features(deskew(images))


def handwriting() -> Whitened:
    """Oriented filters of grey pictures, deskewed."""
    return Whitened(_upright(_ORIENTED), "strokes")


def handwriting_fine() -> Whitened:
    """Those of `handwriting` on a finer grid."""
    return Whitened(_upright(OrientedFeatures(stride=3)), "strokes")


def objects() -> Whitened:
    """Scattering, oriented filters and pooled pixels of grey pictures."""
    return Whitened(_GREY, "shapes", drawings=6000)


def objects_mirrored() -> Whitened:
    """Those of `objects`, narrower, and the same for a picture and its mirror image."""
    return Whitened(mirrored(_GREY), "shapes", drawings=6000, ridge=0.01, keep=640)


def photographs() -> Whitened:
    """Those of `objects` in opponent channels of color pictures."""
    return Whitened(_COLOR, "leaves", drawings=4000)


def photographs_mirrored() -> Whitened:
    """Those of `photographs`, narrower, and the same for a picture and its mirror image."""
    return Whitened(mirrored(_COLOR), "leaves", drawings=4000, ridge=0.01, keep=2000)


def _principal(centered: np.ndarray, keep: int, ridge: float) -> np.ndarray:
    """Return the whitening map onto the ``keep`` directions of most variance, or as many as there are."""
    count, width = centered.shape
    few = count < width  # then the rows' own products have the same eigenvalues and are fewer
    products = (centered @ centered.T if few else centered.T @ centered).astype(np.float64)
    values, vectors = linalg.eigh(products / (count - 1), overwrite_a=True)
    values, vectors = values[::-1][:keep], vectors[:, ::-1][:, :keep]
    significant = values > 1e-7 * values[0]  # float32 rows know no more
    values, vectors = values[significant], vectors[:, significant]
    if few:
        vectors = centered.T @ (vectors / np.sqrt(values * (count - 1)))
    return np.ascontiguousarray(vectors / np.sqrt(values + ridge * values.mean()), np.float32)


def _in_blocks(block: Callable[[Tensor], Tensor], images: ArrayLike, size: int = 1000) -> np.ndarray:
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


def _morlets(side: int, scales: int, directions: int) -> tuple[list[Tensor], Tensor]:
    """Fourier transforms of Morlet wavelets (zero mean); the averaging window, as the circulant matrix that
    filters along one axis."""
    frequency = torch.fft.fftfreq(side) * 2 * math.pi
    turns = [(a * 2 * math.pi, b * 2 * math.pi) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    down, across = torch.meshgrid(frequency, frequency, indexing="ij")

    def bump(center: float, width: float, angle: float, slant: float) -> Tensor:
        total = torch.zeros(side, side)
        for a, b in turns:  # periodic, as the discrete transform is
            along = (across + b) * math.cos(angle) + (down + a) * math.sin(angle)
            beside = -(across + b) * math.sin(angle) + (down + a) * math.cos(angle)
            total += torch.exp(-(width**2) * ((along - center) ** 2 + (beside / slant) ** 2) / 2)
        return total

    wavelets = []
    for scale in range(scales):
        center, width = 0.75 * math.pi / 2**scale, 0.8 * 2**scale
        for k in range(directions):
            angle, slant = math.pi * k / directions, 4 / directions
            wave, base = bump(center, width, angle, slant), bump(0.0, width, angle, slant)
            wavelets.append(wave - base * (wave[0, 0] / base[0, 0]))
    width = 0.8 * 2 ** (scales - 1)
    low = torch.stack([torch.exp(-((width * (frequency + turn)) ** 2) / 2) for turn, _ in turns[::3]]).sum(0)
    window = torch.fft.ifft(low / low[0]).real
    places = torch.arange(side)
    return wavelets, window[(places[:, None] - places) % side]
