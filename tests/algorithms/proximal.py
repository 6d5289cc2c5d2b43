"""Proximal maps of single records in numpy, written apart from the compiled kernels they check."""

import math

import numpy as np
from scipy.optimize import brentq


def prox_squared(v, x, y, step):
    """Return prox of (1/2)(x.w - y)^2 at ``v``."""
    return v - x * (step * (x @ v - y) / (1.0 + step * (x @ x)))


def prox_squared_batch(v, X, y, step):
    """Return prox of (1/2m)|Xw - y|^2 at ``v``: solve (I + step X'X/m) w = v + step X'y/m."""
    m = len(y)
    return np.linalg.solve(np.eye(len(v)) + (step / m) * (X.T @ X), v + (step / m) * (X.T @ y))


def prox_logistic(v, x, y, step):
    """Return prox of ln(1 + exp(-y x.w)) at ``v``; the margin m solves m = y x.v + step |x|^2 / (1 + e^m)."""
    start, reach = y * float(x @ v), step * float(x @ x)

    def pull(m):
        return 1.0 / (1.0 + math.exp(min(m, 700.0)))

    m = brentq(lambda m: m - start - reach * pull(m), start, start + reach, xtol=1e-15, rtol=1e-15)
    return v + (step * y * pull(m)) * x
