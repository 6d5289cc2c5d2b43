"""Generalized linear models: one record's loss depends on w through the prediction x.w only.

So the gradient of record i is ``slope_i * x_i`` and per-record gradients are never formed (`kernels`).

    logistic   ln(1 + exp(-y m))          slope  -y sigmoid(-y m)
    squared    (m - y)^2 / 2              slope  m - y
    Huber      squared within ``width``,  slope  clip(m - y, +-width)
               linear outside
    hinge      the Huber loss of what      0 if y m >= 1, else that of Huber
               y m lacks to 1

With width 1 this is the smooth hinge of Rennie and Srebro ("Loss functions for preference levels", IJCAI
multidisciplinary workshop on advances in preference handling, 2005). The hinge of support vector machines has
no second derivative at its kink; methods whose steps follow from a bound on the curvature need this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sottovoce._validate import positive
from sottovoce.data.base import Features, Shards, is_sparse, signed_labels
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.base import LinearObjective, LinearQuery, check_weights
from sottovoce.objectives.prox import Regularizer

LOSSES = {"logistic": 0, "squared": 1, "huber": 2, "hinge": 4}  # 3: logistic with weights in its labels
REGRESSIONS = ("squared", "huber")  # their labels are amounts, the others' -1 and 1


@dataclass(frozen=True)
class GLM(LinearObjective):
    """A loss and a regularizer: F(w) = (1/n) sum_i loss(x_i.w, y_i) + r(w).

    Parameters
    ----------
    loss : "logistic", "squared", "huber" or "hinge".
    l1, l2, box, ball : the regularizer, see `Regularizer`.
    width : where the Huber loss and the hinge turn linear.
    dim : number of features if it must be known without data (wire formats, costs); None: read from the data.
    class_weight : public weights of the labels -1 and 1. A record's weighted gradient is clipped like any
        other, so that weights change no guarantee.
    intercept : whether the last feature is the constant 1, whose coefficient the regularizer leaves alone.

    Examples
    --------
    >>> model = GLM("logistic", l2=0.1)
    >>> round(model.value(np.zeros(2), np.eye(2), np.array([1.0, -1.0])), 4)
    0.6931
    """

    loss: Literal["logistic", "squared", "huber", "hinge"] = "logistic"
    l1: float = 0.0
    l2: float = 0.0
    box: float | None = None
    ball: float | None = None
    width: float = 1.0
    dim: int | None = None
    class_weight: tuple[float, float] | None = None
    intercept: bool = False

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}.")
        if self.class_weight is not None:
            if self.loss in REGRESSIONS:
                raise InvalidInput(f"class_weight is for losses of classes, got {self.loss}.")
            check_weights(self.class_weight, 2)
        positive(self.width, "width")
        _ = self.regularizer

    @property
    def regularizer(self) -> Regularizer:
        return Regularizer(self.l1, self.l2, self.box, self.ball, int(self.intercept))

    @property
    def kind(self) -> int:
        """The number of the loss in the kernels."""
        return 3 if self.loss == "logistic" and self.class_weight is not None else LOSSES[self.loss]

    @property
    def curvature(self) -> float:
        """Largest second derivative of the loss in the prediction: a quarter for logistic, else 1, times the
        weight."""
        return (0.25 if self.loss == "logistic" else 1.0) * self.largest_weight

    @property
    def slope_bound(self) -> float:
        """Largest absolute slope: 1 for logistic, infinite for squared, else the width, times the weight."""
        return {"logistic": 1.0, "squared": math.inf}.get(self.loss, self.width) * self.largest_weight

    def record_weights(self, y: np.ndarray) -> np.ndarray | None:
        """Return the weight of every record by its label, None where all are alike."""
        return (
            None if self.class_weight is None else np.where(y > 0, self.class_weight[1], self.class_weight[0])
        )

    def check(self, X: ArrayLike | sp.csr_array, y: ArrayLike) -> tuple[Any, np.ndarray]:
        """Return features (float64, or CSR) and labels fit for the kernels, or raise one sentence."""
        X = _one_entry_each(X) if is_sparse(X) else np.ascontiguousarray(X, dtype=np.float64)
        y = np.asarray(y)
        if X.ndim != 2 or y.ndim != 1 or X.shape[0] != len(y) or len(y) == 0:
            raise DataError(
                f"Expected features (n, p) and n >= 1 labels, got shapes {X.shape} and {y.shape}."
            )
        if not np.isfinite(X.data if is_sparse(X) else X).all():
            raise DataError("Features hold NaN or infinity; drop or mend those records before training.")
        if self.class_weight is not None and np.isin(y, (-self.class_weight[0], self.class_weight[1])).all():
            return X, np.asarray(y, np.float64)  # weighted already
        if self.loss not in REGRESSIONS:
            return X, self._weighted(signed_labels(y))
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise DataError("Targets hold NaN or infinity; drop or mend those records before training.")
        return X, y

    def _weighted(self, y: np.ndarray) -> np.ndarray:
        """Return labels as the kernels take them: signs times weights where there are weights."""
        weights = self.record_weights(y)
        return np.asarray(y, np.float64) if weights is None else np.sign(y) * weights

    @property
    def n_params(self) -> int | None:
        """Numbers in a row of parameters, if `dim` is set."""
        return self.dim

    def prepared(self, data: Shards) -> Shards:
        """Return the agents' records, checked and in the form the kernels take."""
        data = self.check_shards(data)
        X, y = self.check(data.X, data.y)
        return Shards(X, y, data.offsets)

    def query(self, data: Shards) -> GLMQuery:
        """Return the clipped gradient sums of the agents' (prepared) records."""
        return GLMQuery(self, data)

    def losses(self, w: np.ndarray, X: Features, y: np.ndarray) -> np.ndarray:
        """Return the loss of every record, without weights."""
        from sottovoce.objectives.kernels import record_losses

        labels = np.sign(y) if self.class_weight is not None else y
        return record_losses(LOSSES[self.loss], self.width, X @ w, np.asarray(labels, dtype=np.float64))

    def gradient(self, w: np.ndarray, X: Features, y: np.ndarray) -> np.ndarray:
        """Return the gradient of the data part, unclipped: (1/n) sum_i slope_i x_i."""
        from sottovoce.objectives.kernels import record_slopes

        return X.T @ record_slopes(self.kind, self.width, X @ w, self._weighted(y)) / len(y)

    def smoothness(self, row_norm_bound: float) -> float:
        """Return the smoothness of one record's loss when |x| <= ``row_norm_bound``."""
        return self.curvature * row_norm_bound**2

    def coordinate_smoothness(self, X: Features) -> np.ndarray:
        """Return M_j = curvature * mean of x_ij^2 (it reads the records: not private)."""
        squares = X.multiply(X).mean(axis=0) if is_sparse(X) else (X**2).mean(axis=0)
        return self.curvature * np.asarray(squares).ravel()

    def predict(self, w: np.ndarray, X: Features) -> np.ndarray:
        """Return predictions: x.w of an amount, the sign of it for classes."""
        scores = np.asarray(X @ w)
        return scores if self.loss in REGRESSIONS else np.where(scores >= 0, 1.0, -1.0)

    def minimize(
        self, X: Features, y: np.ndarray, *, tol: float = 1e-10, iterations: int = 100_000
    ) -> np.ndarray:
        """Return the minimizer without privacy, for comparison (L-BFGS if smooth, else FISTA)."""
        r = self.regularizer
        if r.l1 or r.box is not None or r.ball is not None:
            return self._fista(X, y, tol, iterations)
        import scipy.optimize

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            return self.value(w, X, y), self.gradient(w, X, y) + r.decay(len(w)) * w

        limits = {"maxiter": iterations, "ftol": 1e-15, "gtol": tol, "maxfun": 10 * iterations}
        start, minimize = np.zeros(X.shape[1]), scipy.optimize.minimize
        return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", options=limits).x)

    def _fista(self, X: Features, y: np.ndarray, tol: float, iterations: int) -> np.ndarray:
        """Accelerated proximal gradient with restarts; step from the largest singular value."""
        n, p = X.shape
        v = np.ones(p) / math.sqrt(p)
        top = 1.0
        for _ in range(60):
            v = X.T @ (X @ v)
            top = float(np.linalg.norm(v))
            v = v / max(top, 1e-300)
        step = 1.0 / (self.curvature * 1.02 * max(top, 1e-300) / n)
        w = z = np.zeros(p)
        t = 1.0
        for _ in range(iterations):
            new = self.regularizer.prox(z - step * self.gradient(z, X, y), step)
            if (z - new) @ (new - w) > 0:
                t = 1.0
            t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
            z = new + ((t - 1) / t_new) * (new - w)
            moved = float(np.abs(new - w).max())
            w, t = new, t_new
            if moved <= tol * max(1.0, float(np.abs(w).max())) and t > 2:
                break
        return w


def _one_entry_each(X: ArrayLike | sp.csr_array) -> sp.csr_array:
    """Return CSR without duplicate entries, since the kernels clip each entry on its own."""
    rows = sp.csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


class GLMQuery(LinearQuery):
    """Sums of clipped gradients of the hosted agents' records (see `GradientQuery`)."""

    def __init__(self, objective: GLM, data: Shards) -> None:
        super().__init__(data, data.dim, objective.regularizer)
        self.objective = objective
        self._joined: tuple[Any, Any, Any] = (None, None, None)

    def sums(
        self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return, per place, the sum over its batch of gradients clipped to ``clip_norm``."""
        from sottovoce.objectives.kernels import batch_sums

        model, data = self.objective, self.data
        starts = data.offsets[np.asarray(places, np.intp)]
        if self._joined[0] is not batches:  # whole batches are one list in every step
            rows = np.concatenate(batches) if len(batches) else np.zeros(0, np.int64)
            self._joined = (batches, rows, np.cumsum([len(batch) for batch in batches]))
        _, rows, ends = self._joined
        return np.asarray(
            batch_sums(model.kind, model.width, theta, data.X, data.y, starts, rows, ends, clip_norm)
        )

    def compiled_descent(
        self,
        w: np.ndarray,
        total: np.ndarray,
        batches: Sequence[np.ndarray],
        noise: np.ndarray,
        grid: float,
        clip_norm: float,
        divisor: float,
        rates: np.ndarray,
    ) -> None:
        """Take a proximal step per batch from ``w``, in place; ``total``, unless empty, sums the iterates."""
        from sottovoce.objectives.kernels import descend_batches

        model, data, r = self.objective, self.data, self.objective.regularizer
        rows, ends = np.concatenate(batches), np.cumsum([len(batch) for batch in batches])
        steps = (rows, ends, noise, grid, clip_norm, divisor, rates)
        prox = (r.l1, r.l2, r.box or math.inf, r.ball or math.inf, r.intercepts)
        descend_batches(model.kind, model.width, data.X, data.y, w, total, *steps, *prox)
