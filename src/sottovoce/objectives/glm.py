"""Generalised linear models: one record's loss depends on w through the prediction x.w only.

So the gradient of record i is ``slope_i * x_i``: its length is |slope_i| |x_i| and its clipped form a
rescaled slope. Per-record gradients are never formed. Kernels are compiled; plain-numpy twins live in
the tests.

    logistic   ln(1 + exp(-y m))          slope  -y sigmoid(-y m)
    squared    (m - y)^2 / 2              slope  m - y
    Huber      squared within ``width``,  slope  clip(m - y, +-width)
               linear outside
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from sottovoce._validate import positive
from sottovoce.data.base import is_sparse, signed_labels
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.prox import Regulariser

__all__ = ["GLM"]

LOSSES = {"logistic": 0, "squared": 1, "huber": 2}


@dataclass(frozen=True)
class GLM:
    """A loss and a regulariser: F(w) = (1/n) sum_i loss(x_i.w, y_i) + r(w).

    Parameters
    ----------
    loss : "logistic", "squared" or "huber".
    l1, l2, box, ball : the regulariser, see `Regulariser`.
    width : where the Huber loss turns linear.

    Examples
    --------
    >>> model = GLM("logistic", l2=0.1)
    >>> round(model.value(np.zeros(2), np.eye(2), np.array([1.0, -1.0])), 4)
    0.6931
    """

    loss: Literal["logistic", "squared", "huber"] = "logistic"
    l1: float = 0.0
    l2: float = 0.0
    box: float | None = None
    ball: float | None = None
    width: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}.")
        positive(self.width, "width")
        _ = self.regulariser

    @property
    def regulariser(self) -> Regulariser:
        """The data-independent part."""
        return Regulariser(self.l1, self.l2, self.box, self.ball)

    @property
    def kind(self) -> int:
        """The loss as the kernels name it."""
        return LOSSES[self.loss]

    @property
    def curvature(self) -> float:
        """Largest second derivative of the loss in the prediction: 1/4 for logistic, else 1."""
        return 0.25 if self.loss == "logistic" else 1.0

    @property
    def slope_bound(self) -> float:
        """Largest absolute slope: 1 for logistic, the width for Huber, infinite for squared."""
        return {"logistic": 1.0, "squared": math.inf, "huber": self.width}[self.loss]

    def check(
        self, X: Any, y: Any, *, invalid: Literal["refuse", "zero"] = "refuse"
    ) -> tuple[Any, np.ndarray]:
        """Return features (float64, or CSR) and labels fit for the kernels, or raise one sentence.

        Records with NaN or infinite features are refused, or set to zero so that they contribute nothing.
        """
        if is_sparse(X):
            X = _one_entry_each(X)
        else:
            X = np.ascontiguousarray(X, dtype=np.float64)
        y = np.asarray(y)
        if X.ndim != 2 or y.ndim != 1 or X.shape[0] != len(y) or len(y) == 0:
            raise DataError(
                f"Expected features (n, p) and n >= 1 labels, got shapes {X.shape} and {y.shape}."
            )
        if not np.isfinite(X.data if is_sparse(X) else X).all():
            if invalid == "refuse" or is_sparse(X):
                raise DataError("Features hold NaN or infinity; drop or mend those records before training.")
            X = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, 0.0)
        if self.loss == "logistic":
            return X, signed_labels(y)
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise DataError("Targets hold NaN or infinity; drop or mend those records before training.")
        return X, y

    def losses(self, w: np.ndarray, X: Any, y: np.ndarray) -> np.ndarray:
        """Return the loss of every record."""
        return record_losses(self.kind, self.width, X @ w, np.asarray(y, dtype=np.float64))

    def value(self, w: np.ndarray, X: Any, y: np.ndarray) -> float:
        """Return the objective F(w)."""
        return float(self.losses(w, X, y).mean() + self.regulariser.value(np.asarray(w)))

    def gradient(self, w: np.ndarray, X: Any, y: np.ndarray) -> np.ndarray:
        """Return the gradient of the data part, unclipped: (1/n) sum_i slope_i x_i."""
        return X.T @ record_slopes(self.kind, self.width, X @ w, np.asarray(y, dtype=np.float64)) / len(y)

    def smoothness(self, row_norm_bound: float) -> float:
        """Return the smoothness of one record's loss when |x| <= ``row_norm_bound``."""
        return self.curvature * row_norm_bound**2

    def coordinate_smoothness(self, X: Any) -> np.ndarray:
        """Return M_j = curvature * mean of x_ij^2 (not private; `private_smoothness` is)."""
        squares = X.multiply(X).mean(axis=0) if is_sparse(X) else (X**2).mean(axis=0)
        return self.curvature * np.asarray(squares).ravel()

    def predict(self, w: np.ndarray, X: Any) -> np.ndarray:
        """Return predictions: signs for logistic, x.w otherwise."""
        scores = np.asarray(X @ w)
        return np.where(scores >= 0, 1.0, -1.0) if self.loss == "logistic" else scores

    def minimise(self, X: Any, y: np.ndarray, *, tol: float = 1e-10, iterations: int = 100_000) -> np.ndarray:
        """Return the minimiser without privacy, as the yardstick (L-BFGS when smooth, else FISTA).

        Examples
        --------
        >>> w = GLM("squared").minimise(np.eye(2), np.array([1.0, 2.0]))
        >>> bool(np.allclose(w, [1.0, 2.0], atol=1e-6))
        True
        """
        r = self.regulariser
        if r.l1 == 0 and r.box is None and r.ball is None:
            import scipy.optimize

            minimize: Any = scipy.optimize.minimize
            found = minimize(
                lambda w: (self.value(w, X, y), self.gradient(w, X, y) + r.l2 * w),
                np.zeros(X.shape[1]),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": iterations, "ftol": 1e-15, "gtol": tol, "maxfun": 10 * iterations},
            )
            return np.asarray(found.x)
        return self._fista(X, y, tol, iterations)

    def _fista(self, X: Any, y: np.ndarray, tol: float, iterations: int) -> np.ndarray:
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
            new = self.regulariser.prox(z - step * self.gradient(z, X, y), step)
            if (z - new) @ (new - w) > 0:
                t = 1.0
            t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
            z = new + ((t - 1) / t_new) * (new - w)
            moved = float(np.abs(new - w).max())
            w, t = new, t_new
            if moved <= tol * max(1.0, float(np.abs(w).max())) and t > 2:
                break
        return w


def _one_entry_each(X: Any) -> Any:
    """Return CSR with one stored entry per place: entries are clipped one by one, a record's are not many."""
    import scipy.sparse as sp

    rows = sp.csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


# --- kernels ----------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def slope(kind, width, m, y):
    """Derivative of one record's loss in the prediction."""
    if kind == 0:
        return -y / (1.0 + math.exp(min(y * m, 700.0)))
    r = m - y
    if kind == 2:
        return min(max(r, -width), width)
    return r


@njit(cache=True)
def record_slopes(kind, width, m, y):
    """Slopes of all records."""
    out = np.empty(len(m))
    for i in range(len(m)):
        out[i] = slope(kind, width, m[i], y[i])
    return out


@njit(cache=True)
def record_losses(kind, width, m, y):
    """Losses of all records."""
    out = np.empty(len(m))
    for i in range(len(m)):
        if kind == 0:
            t = y[i] * m[i]
            out[i] = math.log1p(math.exp(-t)) if t > 0 else -t + math.log1p(math.exp(t))
        else:
            r = abs(m[i] - y[i])
            out[i] = 0.5 * r * r if kind == 1 or r <= width else width * (r - 0.5 * width)
    return out


@njit(cache=True)
def add_clipped(kind, width, w, x, y, clip, out):
    """Add clip_C(slope * x) of one record to ``out``; a record that is not finite adds nothing.

    The length is |slope| |x|; x is first divided by its largest entry so that squares cannot overflow.
    """
    p = len(w)
    m = 0.0
    largest = 0.0
    for j in range(p):
        m += x[j] * w[j]
        largest = max(largest, abs(x[j]))
    s = slope(kind, width, m, y)
    if not (math.isfinite(s) and math.isfinite(largest)) or largest == 0.0 or s == 0.0:
        return
    squares = 0.0
    for j in range(p):
        r = x[j] / largest
        squares += r * r
    # a NaN entry leaves `largest` as it was and shows in the sum
    if not math.isfinite(squares):
        return
    norm = abs(s) * largest * math.sqrt(squares)
    if norm <= clip:
        for j in range(p):
            out[j] += s * x[j]
    else:
        scale = math.copysign(clip / math.sqrt(squares), s)
        for j in range(p):
            out[j] += scale * (x[j] / largest)


@njit(cache=True)
def clipped_sum(kind, width, w, X, y, rows, clip):
    """Sum over ``rows`` of clip_C(gradient of the record at w)."""
    out = np.zeros(len(w))
    for k in range(len(rows)):
        add_clipped(kind, width, w, X[rows[k]], y[rows[k]], clip, out)
    return out


@njit(cache=True)
def user_gradients(kind, width, theta, X, y, offsets, include, divisor, clip):
    """Per user u: (1 / divisor_u) * sum over its included records of clip_C(gradient at theta_u)."""
    n, p = theta.shape
    out = np.zeros((n, p))
    for u in range(n):
        for i in range(offsets[u], offsets[u + 1]):
            if include[i]:
                add_clipped(kind, width, theta[u], X[i], y[i], clip, out[u])
        for j in range(p):
            out[u, j] /= divisor[u]
    return out


@njit(cache=True)
def poisson_rows(n, q, uniforms):
    """Rows of a Poisson sample (each in with probability q, independently), by geometric gaps.

    ``uniforms`` are numbers in (0, 1]; enough of them is the caller's business: returns -1 as the last
    entry when they ran out.
    """
    rows = np.empty(len(uniforms) + 1, np.int64)
    if q >= 1.0:
        return np.arange(n)
    scale = 1.0 / math.log1p(-q)
    position = -1
    used = 0
    for k in range(len(uniforms)):
        position += 1 + int(min(math.log(uniforms[k]) * scale, 9e15))
        if position >= n:
            return rows[:used]
        rows[used] = position
        used += 1
    rows[used] = -1
    return rows[: used + 1]
