"""Image sets as rows of fixed features, computed once and kept in the per-user cache."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.data.images import load_images

CACHE_VERSION = 1  # raise when `sottovoce.data.image_features` computes other numbers
SIDES = {"digits": 28, "cifar10": 32}  # others as they come


class Rows(NamedTuple):
    """Training rows and labels, test rows and labels."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def held_out(self, share: float = 1 / 6, seed: int = 0, keep: int | None = None) -> Rows:
        """Return the training records alone, a part of them in the place of the test set: for choosing.

        ``keep`` leaves so many of the others to train on.
        """
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = round(share * len(order))
        away, train = np.sort(order[:cut]), np.sort(order[cut:][:keep])
        return Rows(self.x[train], self.y[train], self.x[away], self.y[away])


def cache_folder() -> Path:
    """Return where computed features are kept: beside the data sets of the per-user cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sottovoce" / "features"


@cache
def rows_of(data: str, features: str) -> Rows:
    """Return a set of images as rows of the fixed features called ``features``.

    Rows of full data sets are kept on disk.
    """
    images = load_images(data)
    place = cache_folder() / f"{data}-{features}-{CACHE_VERSION}"
    names = [place.with_name(f"{place.name}-{part}.npy") for part in ("train", "test")]
    if all(name.is_file() for name in names):
        return Rows(np.load(names[0]), images.y, np.load(names[1]), images.y_test)
    rows = _computed(images, data, features)
    if data != "digits":
        place.parent.mkdir(parents=True, exist_ok=True)
        for name, part in zip(names, rows, strict=True):
            atomic_write(name, partial(np.save, arr=part), durable=False)
    return Rows(rows[0], images.y, rows[1], images.y_test)


def _computed(images: Any, data: str, features: str) -> list[np.ndarray]:
    from sottovoce.data.image_features import named_features

    fixed = named_features(features)
    if data == "digits":  # the embedded set is for quick looks
        fixed.drawings = 300
    side = SIDES.get(data)
    rows = []
    for x in (images.x, images.x_test):
        parts = []
        for first in range(0, len(x), 8000):
            floats = images.floats(x[first : first + 8000], side=side)
            parts.append(fixed(floats[:, 0] if floats.shape[1] == 1 else floats))
        rows.append(np.concatenate(parts))
    return rows
