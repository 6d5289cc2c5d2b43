"""Gossip weights: from a graph to a matrix that averages.

A gossip matrix ``W`` is symmetric, non-negative, has rows that sum to 1 and no weight outside the edges
and the diagonal. With ``d`` the degrees and ``L`` the graph Laplacian:

.. math::
    \\text{metropolis: } W_{uv} = \\frac{1}{1 + \\max(d_u, d_v)}, \\qquad
    \\text{max\\_degree: } W = I - \\frac{L}{1 + d_{\\max}}, \\qquad
    \\text{lazy: } \\frac{W + I}{2}, \\qquad
    \\text{uniform: } W_{uv} = \\frac{1}{1 + d_u}.

References: Cyffers et al. 2022 (Muffliato), Table 1 and the authors' "hamilton" code, which computes the
metropolis rule.
Departures: Table 1's caption prints ``min(1/d_u, 1/d_v)``, which leaves the diagonal of a regular graph
empty; on even rings, tori and hypercubes that matrix has the eigenvalue -1 and never converges, so it is
not offered.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sottovoce.errors import GraphError


def metropolis_weights(adjacency: sp.csr_array) -> sp.csr_array:
    """The default: right on every graph, and each node needs to know only its neighbors' degrees."""
    degrees = np.diff(adjacency.indptr)
    rows = np.repeat(np.arange(adjacency.shape[0], dtype=adjacency.indices.dtype), degrees)
    own = 1.0 / (1.0 + degrees)
    off = np.minimum(own[rows], own[adjacency.indices])
    # 1 - sum(off), written as a sum of non-negative terms: exact on regular graphs, never below 0
    diagonal = own + np.bincount(rows, weights=own[rows] - off, minlength=len(own))
    return _with_diagonal(adjacency, off, diagonal)


def _max_degree(adjacency: sp.csr_array) -> sp.csr_array:
    degrees = np.diff(adjacency.indptr)
    largest = int(degrees.max(initial=0))
    weight = 1.0 / (1.0 + largest)
    return _with_diagonal(adjacency, np.full(adjacency.nnz, weight), (1.0 + largest - degrees) * weight)


def _lazy(adjacency: sp.csr_array) -> sp.csr_array:
    """Half of the metropolis weights, half staying put: no eigenvalue is negative."""
    W = metropolis_weights(adjacency)
    half = (0.5 * W + sp.diags_array(np.full(W.shape[0], 0.5))).tocsr()
    half.sort_indices()
    return half


def _uniform(adjacency: sp.csr_array) -> sp.csr_array:
    degrees = np.diff(adjacency.indptr)
    if len(degrees) and (degrees != degrees[0]).any():
        other = int(np.flatnonzero(degrees != degrees[0])[0])
        raise GraphError(
            f"Uniform weights average only on regular graphs, but node 0 has degree {degrees[0]} and node "
            f"{other} has degree {degrees[other]}; take metropolis weights."
        )
    return _row_stochastic(adjacency)


def _row_stochastic(adjacency: sp.csr_array) -> sp.csr_array:
    """The plain mean of a node and its neighbors, which on an irregular graph does not keep the average."""
    degrees = np.diff(adjacency.indptr)
    own = 1.0 / (1.0 + degrees)
    return _with_diagonal(adjacency, np.repeat(own, degrees), own)


WEIGHTS: dict[str, Callable[[sp.csr_array], sp.csr_array]] = {
    "metropolis": metropolis_weights,
    "max_degree": _max_degree,
    "lazy": _lazy,
    "uniform": _uniform,
    "row_stochastic": _row_stochastic,
}


def weighted(adjacency: sp.csr_array, weights: str) -> sp.csr_array:
    """Return the gossip matrix of an adjacency matrix by the rule of this name."""
    if weights not in WEIGHTS:
        raise GraphError(f"Unknown weights {weights!r}; the rules are {', '.join(WEIGHTS)}.")
    return WEIGHTS[weights](adjacency)


def _with_diagonal(adjacency: sp.csr_array, off: np.ndarray, diagonal: np.ndarray) -> sp.csr_array:
    """The adjacency pattern with values ``off`` and a positive diagonal put in, indices sorted."""
    weights = sp.csr_array((off, adjacency.indices, adjacency.indptr), shape=adjacency.shape)
    return sp.csr_array(weights + sp.diags_array(diagonal))
