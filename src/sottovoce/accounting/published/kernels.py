"""Compiled loop of :mod:`sottovoce.accounting.published.formulas`; it releases the interpreter lock."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def accumulate(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, nodes: np.ndarray, rounds: int, out: np.ndarray
) -> None:
    """Add to ``out`` (n, block) the squares of M^t e_w, normalized, for t < rounds; M in CSR form."""
    n, block = out.shape
    x = np.zeros((n, block))
    y = np.empty((n, block))
    norm = np.empty(block)
    for j in range(block):
        x[nodes[j], j] = 1.0
        norm[j] = 1.0
    for t in range(rounds):
        for j in range(block):
            norm[j] = 1.0 / norm[j]
        for i in range(n):
            for j in range(block):
                out[i, j] += x[i, j] * x[i, j] * norm[j]
        if t == rounds - 1:
            break
        norm[:] = 0.0
        for i in range(n):
            row = y[i]
            row[:] = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                weight = data[k]
                other = x[indices[k]]
                for j in range(block):
                    row[j] += weight * other[j]
            for j in range(block):
                norm[j] += row[j] * row[j]
        x, y = y, x
