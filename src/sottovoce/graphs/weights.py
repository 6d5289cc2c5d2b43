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
from typing import Any

import numpy as np
import scipy.sparse as sp

from sottovoce.errors import GraphError


def metropolis(graph: Any) -> sp.csr_array:
    """Weights ``1 / (1 + max(d_u, d_v))`` on the edges, the rest on the diagonal.

    The default: right on every graph, and each node needs to know only its neighbors' degrees.

    Parameters
    ----------
    graph : a `Network`, or a symmetric (n, n) adjacency matrix, sparse or dense. The graph may be
        disconnected, as one round of a changing network often is.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.metropolis(graphs.path(3)).toarray().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    adjacency = adjacency_of(graph)
    degrees = np.diff(adjacency.indptr)
    rows = np.repeat(np.arange(adjacency.shape[0], dtype=adjacency.indices.dtype), degrees)
    own = 1.0 / (1.0 + degrees)
    off = np.minimum(own[rows], own[adjacency.indices])
    # 1 - sum(off), written as a sum of non-negative terms: exact on regular graphs, never below 0
    diagonal = own + np.bincount(rows, weights=own[rows] - off, minlength=len(own))
    return _with_diagonal(adjacency, off, diagonal)


def max_degree(graph: Any) -> sp.csr_array:
    """The same weight ``1 / (1 + d_max)`` on every edge, the rest on the diagonal.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.max_degree(graphs.star(4)).toarray()[0]
    array([0.25, 0.25, 0.25, 0.25])
    >>> graphs.max_degree(graphs.star(4)).toarray()[1]
    array([0.25, 0.75, 0.  , 0.  ])
    """
    adjacency = adjacency_of(graph)
    degrees = np.diff(adjacency.indptr)
    largest = int(degrees.max(initial=0))
    weight = 1.0 / (1.0 + largest)
    return _with_diagonal(adjacency, np.full(adjacency.nnz, weight), (1.0 + largest - degrees) * weight)


def lazy(graph: Any, weights: str = "metropolis") -> sp.csr_array:
    """Half of another rule, half staying put: ``(W + I) / 2``, with no negative eigenvalue.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.lazy(graphs.path(3)).toarray()[0].round(3)
    array([0.833, 0.167, 0.   ])
    """
    W = rule(weights)(graph)
    half = (0.5 * W + sp.diags_array(np.full(W.shape[0], 0.5))).tocsr()
    half.sort_indices()
    return half


def uniform(graph: Any, row_stochastic: bool = False) -> sp.csr_array:
    """The plain mean of a node and its neighbors: ``1 / (1 + d_u)`` in row u.

    On an irregular graph this matrix is not symmetric: repeated, it converges to a mean weighted by
    degree, not to the average. It is therefore refused there, unless ``row_stochastic=True`` asks for
    it by name (as some published code does); a `Network` of such weights has ``averaging = False``.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.uniform(graphs.complete(4)).toarray()[0]
    array([0.25, 0.25, 0.25, 0.25])
    >>> graphs.uniform(graphs.star(4))
    Traceback (most recent call last):
    sottovoce.errors.GraphError: Uniform weights average only on regular graphs, but node 0 has degree 3 \
and node 1 has degree 1; take metropolis weights.
    """
    adjacency = adjacency_of(graph)
    degrees = np.diff(adjacency.indptr)
    if not row_stochastic and len(degrees) and (degrees != degrees[0]).any():
        other = int(np.flatnonzero(degrees != degrees[0])[0])
        raise GraphError(
            f"Uniform weights average only on regular graphs, but node 0 has degree {degrees[0]} and node "
            f"{other} has degree {degrees[other]}; take metropolis weights."
        )
    own = 1.0 / (1.0 + degrees)
    return _with_diagonal(adjacency, np.repeat(own, degrees), own)


WEIGHTS: dict[str, Callable[[Any], sp.csr_array]] = {
    "metropolis": metropolis,
    "max_degree": max_degree,
    "lazy": lazy,
    "uniform": uniform,
    "row_stochastic": lambda graph: uniform(graph, row_stochastic=True),
}


def adjacency_of(graph: Any) -> sp.csr_array:
    """The 0/1 adjacency matrix of a `Network` or of any symmetric matrix, diagonal left out."""
    known: sp.csr_array | None = getattr(graph, "adjacency", None)
    if known is not None:
        return known
    matrix = sp.coo_array(graph)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphError(f"An adjacency matrix must be square, got shape {matrix.shape}.")
    there = (matrix.row != matrix.col) & (matrix.data != 0)
    pattern = sp.csr_array(
        (np.ones(int(there.sum())), (matrix.row[there], matrix.col[there])), shape=matrix.shape
    )
    pattern.sum_duplicates()
    pattern.data[:] = 1.0
    apart = (pattern - pattern.T).tocoo()
    apart.eliminate_zeros()
    if apart.nnz:
        u, v = int(apart.row[0]), int(apart.col[0])
        raise GraphError(
            f"An adjacency matrix must be symmetric, but entries ({u}, {v}) and ({v}, {u}) differ."
        )
    return pattern


def rule(weights: str) -> Callable[[Any], sp.csr_array]:
    """The weight rule of this name."""
    if weights not in WEIGHTS:
        raise GraphError(f"Unknown weights {weights!r}; the rules are {', '.join(WEIGHTS)}.")
    return WEIGHTS[weights]


def _with_diagonal(adjacency: sp.csr_array, off: np.ndarray, diagonal: np.ndarray) -> sp.csr_array:
    """The adjacency pattern with values ``off`` and a diagonal put in, indices sorted."""
    n = adjacency.shape[0]
    degrees = np.diff(adjacency.indptr)
    rows = np.repeat(np.arange(n, dtype=adjacency.indices.dtype), degrees)
    # an entry right of the diagonal moves one place further than one left of it
    place = np.arange(adjacency.nnz) + rows + (adjacency.indices > rows)
    indptr = adjacency.indptr + np.arange(n + 1, dtype=adjacency.indptr.dtype)
    below = np.bincount(rows, weights=adjacency.indices < rows, minlength=n).astype(np.int64)
    middle = indptr[:-1] + below
    indices = np.empty(adjacency.nnz + n, dtype=adjacency.indices.dtype)
    data = np.empty(adjacency.nnz + n)
    indices[place], data[place] = adjacency.indices, off
    indices[middle], data[middle] = np.arange(n), diagonal
    return sp.csr_array((data, indices, indptr), shape=(n, n))
