"""A linear softmax model under the noise of the sum: the 20 lines that the plans' runs are compared with.

Many settings and seeds share the rows of one data set, so their models are columns of one matrix: a step of
all of them is two products. This is how the settings of `secure_sum` were chosen, on a part of the training
records, and an independent check of what its plans run: neither gate, protocol, grid nor runner is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sottovoce_papers.feature_rows import Rows


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
