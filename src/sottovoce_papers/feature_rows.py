"""Image sets as rows of fixed features, and a linear softmax model under the noise of the sum.

Rows are computed once and kept in the per-user cache. `accuracies` are the 20 lines that the plans' runs are
compared with: many settings and seeds share the rows of one data set, so their models are columns of one
matrix, and a step of all of them is two products. This is how the settings of `secure_sum` were chosen, on a
part of the training records, and an independent check of what its plans run: neither mechanism, protocol,
grid nor runner is used here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.data.images import load_images, named_features

CACHE_VERSION = 1  # raise when `sottovoce_papers.image_features` computes other numbers
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
    fixed: Any = named_features(features)
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


class Job(NamedTuple):
    """One run: steps, learning rate, noise (standard deviation) on the sum of clipped gradients, seed."""

    steps: int
    learning_rate: float
    noise_std: float
    seed: int
    momentum: float = 0.9
    clip_norm: float = 1.0


def accuracies(rows: Rows, jobs: Sequence[Job], classes: int = 10, block: int = 10_000) -> list[float]:
    """Return the accuracy in percent, on the test rows, of every job's model after its last step.

    Rows have unit length or less, so the norm of a record's gradient is that of its residual times that of
    its row, and is clipped without being formed.
    """
    n, width = rows.x.shape
    lengths = np.linalg.norm(rows.x, axis=1)
    theta = np.zeros((len(jobs), classes, width), np.float32)
    velocity = np.zeros_like(theta)
    draws = [np.random.default_rng([77, job.seed]) for job in jobs]
    reached = [0.0] * len(jobs)
    for k in range(max(job.steps for job in jobs)):
        alive = [i for i, job in enumerate(jobs) if k < job.steps]
        total = np.zeros((len(alive) * classes, width), np.float32)
        for first in range(0, n, block):
            x, y = rows.x[first : first + block], rows.y[first : first + block]
            scores = (x @ theta[alive].reshape(-1, width).T).reshape(len(x), len(alive), classes)
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            scores[np.arange(len(x)), :, y] -= 1
            norms = np.linalg.norm(scores, axis=2) * lengths[first : first + block, None]
            clips = np.array([jobs[i].clip_norm for i in alive], np.float32)
            scores *= np.minimum(1, clips / np.maximum(norms, 1e-12))[:, :, None]
            total += scores.reshape(len(x), -1).T @ x
        for place, i in enumerate(alive):
            job = jobs[i]
            noise = job.noise_std * draws[i].standard_normal((classes, width), dtype=np.float32)
            velocity[i] = job.momentum * velocity[i] + (
                total[place * classes : (place + 1) * classes] + noise
            ) / np.float32(n)
            theta[i] -= np.float32(job.learning_rate) * velocity[i]
            if k + 1 == job.steps:
                guess = (rows.x_test @ theta[i].T).argmax(axis=1)
                reached[i] = round(100 * float((guess == rows.y_test).mean()), 2)
    return reached
