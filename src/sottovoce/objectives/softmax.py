r"""Logistic regression with several classes: the softmax of one linear score per class.

.. math:: \ell(W; x, y) = \ln \sum_c e^{w_c \cdot x} - w_y \cdot x, \qquad
          \nabla \ell = (p - e_y) x^\top, \qquad \|\nabla \ell\| = \|p - e_y\| \, \|x\|

A record's gradient has rank one, so its norm is a product of two norms and no gradient is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce._validate import count
from sottovoce.data.base import Features, Shards, is_sparse
from sottovoce.errors import DataError
from sottovoce.objectives.base import LinearObjective, LinearQuery, check_weights
from sottovoce.objectives.prox import Regularizer


@dataclass(frozen=True)
class Softmax(LinearObjective):
    """A linear model of several classes: F(W) = (1/n) sum_i loss(W x_i, y_i) + (l2/2) |W|^2.

    Labels are the numbers 0 to ``classes - 1``. A row of parameters is W laid out class by class.

    Weights of classes are public, and applied before a gradient is clipped. ``dim`` is the number of features
    if it must be known without data; with ``intercept`` the last is the constant 1, which has no penalty.

    Guarantees
    ----------
    One record moves the clipped sum of its agent by at most the clip norm (add or remove), for any features
    and label; a record whose gradient is not finite counts zero.

    Examples
    --------
    >>> model = Softmax(3)
    >>> round(model.value(np.zeros(6), np.eye(2), np.array([0, 2])), 4)
    1.0986
    """

    classes: int
    l2: float = 0.0
    dim: int | None = None
    class_weight: tuple[float, ...] | None = None
    intercept: bool = False

    loss: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        if count(self.classes, "classes") < 2:
            raise DataError(f"a classifier needs two classes or more, got {self.classes}.")
        if self.class_weight is not None:
            check_weights(self.class_weight, self.classes)
        _ = self.regularizer

    @property
    def curvature(self) -> float:
        """Largest second derivative of the loss in the scores: half of the weight."""
        return 0.5 * self.largest_weight

    def record_weights(self, y: np.ndarray) -> np.ndarray | None:
        """Return the weight of every record by its label, None where all are alike."""
        return None if self.class_weight is None else np.array(self.class_weight)[np.asarray(y, np.intp)]

    @property
    def regularizer(self) -> Regularizer:
        return Regularizer(l2=self.l2, intercepts=self.classes if self.intercept else 0)

    @property
    def n_params(self) -> int | None:
        """Numbers in a row of parameters, if `dim` is set."""
        return None if self.dim is None else self.classes * self.dim

    def prepared(self, data: Shards) -> Shards:
        """Return the agents' records checked: finite features, labels that are classes."""
        data = self.check_shards(data)
        if is_sparse(data.X):
            raise DataError("a linear model of several classes works on dense features, got sparse ones.")
        X = np.ascontiguousarray(data.X, dtype=np.float64)
        y = np.asarray(data.y, dtype=np.float64)
        if not np.isfinite(X).all():
            raise DataError("Features hold NaN or infinity; drop or mend those records before training.")
        if not np.isin(y, np.arange(self.classes)).all():
            raise DataError(f"labels must be the numbers 0 to {self.classes - 1}, one per record.")
        return Shards(X, y, data.offsets)

    def query(self, data: Shards) -> SoftmaxQuery:
        """Return the clipped gradient sums of the agents' (prepared) records."""
        return SoftmaxQuery(self, data)

    def scores(self, w: np.ndarray, X: Features) -> np.ndarray:
        """Return one score per record and class."""
        return np.asarray(X @ np.reshape(w, (self.classes, -1)).T)

    def losses(self, w: np.ndarray, X: Features, y: np.ndarray) -> np.ndarray:
        """Return the loss of every record, without weights."""
        scores = self.scores(w, X)
        top = scores.max(axis=1)
        total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        return np.asarray(total - scores[np.arange(len(scores)), np.asarray(y, np.intp)])

    def predict(self, w: np.ndarray, X: Features) -> np.ndarray:
        """Return the number of the likeliest class."""
        return self.scores(w, X).argmax(axis=1)


class SoftmaxQuery(LinearQuery):
    """Sums of clipped gradients of the hosted agents' records (see `GradientQuery`)."""

    compiled_descent = None

    def __init__(self, objective: Softmax, data: Shards) -> None:
        super().__init__(data, objective.classes * data.dim, objective.regularizer)
        self.objective = objective

    def sums(
        self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return, per place, the sum over its batch of gradients clipped to ``clip_norm``."""
        from sottovoce.objectives.clipping import clip_rows

        sums = np.zeros((len(places), self.dim))
        for total, w, batch, place in zip(sums, theta, batches, places, strict=True):
            if not len(batch):
                continue
            rows = self.data.offsets[place] + batch
            X, y = self.data.X[rows], self.data.y[rows].astype(np.intp)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                scores = self.objective.scores(w, X)
                shares = np.exp(scores - scores.max(axis=1, keepdims=True))
                shares /= shares.sum(axis=1, keepdims=True)
                shares[np.arange(len(y)), y] -= 1.0
                if (weights := self.objective.record_weights(y)) is not None:
                    shares *= weights[:, None]
                # a gradient is an outer product: of the shares, as long as the record, with its direction
                lengths = np.linalg.norm(X, axis=1, keepdims=True)
                pulls = clip_rows(shares * lengths, clip_norm)
                directions = np.where(pulls.any(axis=1, keepdims=True), X / lengths, 0.0)
            total[:] = (pulls.T @ directions).ravel()
        return sums
