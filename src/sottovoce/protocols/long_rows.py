"""Mixing and moving long rows in one pass, in threads; every bit is that of scipy's or numpy's."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

_STRETCH = 1 << 11  # numbers of each row that are mixed at a time, in the processor's cache


@njit(parallel=True, cache=True)
def write_mixed(starts: Any, sources: Any, weights: Any, rows: Any, mixed: Any) -> None:
    """Write the product of a sparse matrix (csr) with dense rows, every sum in the order of its entries."""
    dim = rows.shape[1]
    for stretch in prange(-(-dim // _STRETCH)):
        part = slice(stretch * _STRETCH, min(dim, (stretch + 1) * _STRETCH))
        for v in range(len(mixed)):
            total = mixed[v, part]
            total[:] = 0
            for entry in range(starts[v], starts[v + 1]):
                weight, row = weights[entry], rows[sources[entry], part]
                for d in range(len(total)):
                    total[d] += weight * row[d]


@njit(parallel=True, cache=True)
def write_moved(rows: Any, rate: Any, directions: Any, moved: Any) -> None:
    """Write the rows less ``rate`` times the directions."""
    for a in prange(len(moved)):
        theta, direction, to = rows[a], directions[a], moved[a]
        for d in range(len(to)):
            to[d] = theta[d] - rate * direction[d]
