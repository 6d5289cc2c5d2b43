"""A network: who can talk to whom, and with which weights they average.

Everything downstream (protocols, accountants, attacks, peers) trusts a `Network`, so it is checked once,
when it is made, and cannot be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from sottovoce import _validate as check
from sottovoce._hooks import NotebookDisplay
from sottovoce.errors import GraphError
from sottovoce.graphs import spectra
from sottovoce.graphs.weights import metropolis_weights, weighted

TOLERANCE = 1e-12  # symmetry and row sums
FAINTEST = 1e-8  # below it, what a message reveals of its sender cannot be told from rounding
_PARTS = ("indptr", "indices", "data")
_TRY = "metropolis(graph) builds valid weights"
Matrix: TypeAlias = "sp.sparray | ArrayLike"


@dataclass(frozen=True)
class Translations:
    """The translations of the group Z_a x Z_b x ..., acting on nodes numbered in row-major order.

    Translation ``v`` carries node 0 to node v. On a vertex-transitive family every translation leaves
    the gossip matrix as it is, so what holds for one observer holds, moved along, for all of them.
    """

    shape: tuple[int, ...]

    def __call__(self, v: int) -> np.ndarray:
        """The permutation p with ``p[0] = v`` and ``W[p][:, p] == W``."""
        size = int(np.prod(self.shape))
        v = check.node(v, size)
        if all(side == 2 for side in self.shape):
            return np.arange(size) ^ v
        nodes = np.unravel_index(np.arange(size), self.shape)
        shift = np.unravel_index(v, self.shape)
        moved = [(x + s) % side for x, s, side in zip(nodes, shift, self.shape, strict=True)]
        return np.asarray(np.ravel_multi_index(moved, self.shape))

    @property
    def generators(self) -> list[int]:
        """One unit step per factor: what these leave unchanged, every translation leaves unchanged."""
        return [int(np.prod(self.shape[k + 1 :])) for k in range(len(self.shape)) if self.shape[k] > 1]

    def spread(self, first: np.ndarray) -> np.ndarray:
        """Return [u, v] = first[u - v], the difference taken in the group: node 0's values, moved to all."""
        index = np.zeros((1, 1), dtype=np.int32)  # [v, u], one factor after the other
        for side in self.shape:
            steps = np.arange(side, dtype=np.int32)
            factor = (steps[None, :] - steps[:, None]) % side
            pairs = index[:, None, :, None] * np.int32(side) + factor[None, :, None, :]
            index = pairs.reshape(len(index) * side, len(index) * side)
        return first[index].T


@dataclass(frozen=True, eq=False, repr=False)
class Network(NotebookDisplay):
    """A connected graph and its gossip matrix, checked when it is made and immutable.

    Parameters
    ----------
    edges : (m, 2) node pairs, in any order and direction; kept sorted, each once, smaller node first.
    W : (n, n) gossip matrix, dense or sparse: symmetric to 1e-12, non-negative, rows summing to 1,
        no weight outside the edges and the diagonal, connected, and able to converge (a bipartite
        graph with an empty diagonal swaps its two halves forever).
    symmetry : the translations of a vertex-transitive family; checked when they are used (`translations`).
    averaging : False admits a matrix that is not symmetric, whose rounds need not keep the mean.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> pair = graphs.Network([(0, 1)], [[0.5, 0.5], [0.5, 0.5]], name="pair")
    >>> pair
    Network('pair', n=2, edges=1)
    >>> pair.spectral_gap
    1.0
    >>> graphs.Network([(0, 1)], [[0.5, 0.5], [0.5, 0.44]])
    Traceback (most recent call last):
    sottovoce.errors.GraphError: Row 1 of the gossip matrix sums to 0.94, expected 1; \
metropolis(graph) builds valid weights.
    """

    edges: np.ndarray
    W: sp.csr_array
    name: str = "network"
    node_names: tuple[Hashable, ...] | None = None
    symmetry: Translations | None = None
    averaging: bool = True

    def __post_init__(self) -> None:
        W = _as_csr(self.W)
        edges = canonical_edges(self.edges, W.shape[0])
        _check_values(W, TOLERANCE)
        if self.averaging:
            _check_symmetric(W)
        _check_support(W, edges)
        _check_connected(W)
        node_names = None if self.node_names is None else tuple(self.node_names)
        if node_names is not None and len(set(node_names)) != W.shape[0]:
            raise GraphError(f"Expected {W.shape[0]} distinct names of nodes, got {len(set(node_names))}.")
        _freeze(edges, W.data, W.indices, W.indptr)
        object.__setattr__(self, "W", W)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "node_names", node_names)

    def __repr__(self) -> str:
        return f"Network({self.name!r}, n={self.n}, edges={len(self.edges)})"

    def __reduce__(self) -> tuple[type[Network], tuple[object, ...]]:
        # through the constructor: a copy is checked and frozen like its original
        return Network, (self.edges, self.W, self.name, self.node_names, self.symmetry, self.averaging)

    @cached_property
    def keeps_mean(self) -> bool:
        """Whether a round of gossip keeps the mean: columns sum to 1, as those of symmetric weights do."""
        return self.averaging or bool(np.allclose(self.W.sum(axis=0), 1.0, rtol=0, atol=TOLERANCE))

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.W.shape[0])

    @cached_property
    def adjacency(self) -> sp.csr_array:
        """(n, n) matrix of ones on the edges, no diagonal."""
        matrix = adjacency_matrix(self.edges, self.n)
        _freeze(matrix.data, matrix.indices, matrix.indptr)
        return matrix

    @cached_property
    def degrees(self) -> np.ndarray:
        """(n,) numbers of neighbors."""
        degrees = np.bincount(self.edges.ravel(), minlength=self.n)
        _freeze(degrees)
        return degrees

    def neighbors(self, v: int) -> np.ndarray:
        """The nodes next to ``v``, sorted, without ``v``."""
        v = check.node(v, self.n)
        row = slice(self.adjacency.indptr[v], self.adjacency.indptr[v + 1])
        return self.adjacency.indices[row].astype(np.int64)

    def require_edges(self, pairs: np.ndarray, who_uses: str) -> None:
        """Refuse pairs (m, 2) of nodes, in any order, that are not edges; ``who_uses`` begins the error."""
        low, high = pairs.min(axis=1, initial=self.n), pairs.max(axis=1, initial=-1)
        known = np.isin(low * self.n + high, self.edges[:, 0] * self.n + self.edges[:, 1])
        for u, v in pairs[~(known & (low >= 0) & (high < self.n))][:1]:
            raise GraphError(f"{who_uses} ({u}, {v}), which is not an edge of {self.name}.")

    def node_name(self, v: int) -> Hashable:
        """The name of node ``v``, or its number where nodes have no names."""
        v = check.node(v, self.n)
        return v if self.node_names is None else self.node_names[v]

    def node(self, name: Hashable) -> int:
        """The number of the node called ``name``; the inverse of `node_name`."""
        if self.node_names is None:
            return check.node(name, self.n)  # type: ignore[arg-type]
        if name not in self.node_names:
            near = check.did_you_mean(str(name), [str(known) for known in self.node_names])
            raise GraphError(f"No node of {self.name} is called {name!r}{near}.")
        return self.node_names.index(name)

    @cached_property
    def spectral_gap(self) -> float:
        """``1 - max |lambda|`` over every eigenvalue of W but one 1; both ends of the spectrum count."""
        self._require_averaging("spectral gap")
        return 1.0 - spectra.largest_modulus(self.W, self._group)

    @cached_property
    def second_eigenvalue(self) -> float:
        """The second largest eigenvalue of W (with its sign; the other end is not looked at)."""
        self._require_averaging("second eigenvalue")
        return spectra.second_eigenvalue(self.W, self._group)

    @cached_property
    def fiedler_normalized(self) -> float:
        """``lambda_2(L) / n`` of the unweighted graph Laplacian: 1 on the complete graph, near 0 on paths."""
        if self.n == 1:
            return 1.0
        return spectra.fiedler_value(self.adjacency, self._group) / self.n

    def distances_from(self, v: int) -> np.ndarray:
        """(n,) numbers of edges on a shortest path from ``v``."""
        v = check.node(v, self.n)
        return dijkstra(self.adjacency, indices=v, unweighted=True).astype(np.int64)

    def leaves_unchanged(self, permutation: np.ndarray) -> bool:
        """Whether ``W[p][:, p] == W``, to the last bit: whether p is a symmetry of this network."""
        p = np.asarray(permutation)
        if p.shape != (self.n,) or not np.array_equal(np.sort(p), np.arange(self.n)):
            return False
        moved = self.W[p][:, p]
        moved.sort_indices()
        return all(np.array_equal(getattr(moved, part), getattr(self.W, part)) for part in _PARTS)

    def reweighted(self, weights: str | sp.csr_array | np.ndarray) -> Network:
        """The same graph under other weights: a rule by name, or a matrix."""
        if isinstance(weights, str):
            averaging = weights != "row_stochastic"
            return replace(self, W=weighted(self.adjacency, weights), averaging=averaging)
        # a matrix from the caller need not share the family's symmetry
        return replace(self, W=_as_csr(weights), symmetry=None, averaging=True)

    def renamed(self, name: str) -> Network:
        """The same network under another name; nothing is copied or checked again."""
        other = object.__new__(Network)
        other.__dict__.update(self.__dict__, name=name)
        return other

    @cached_property
    def translations(self) -> Translations | None:
        """The translations in `symmetry`, once their generators are seen to leave W unchanged."""
        moves = self.symmetry
        if moves is None or int(np.prod(moves.shape)) != self.n:
            return None
        return moves if all(self.leaves_unchanged(moves(g)) for g in moves.generators) else None

    @property
    def _group(self) -> tuple[int, ...] | None:
        """The shape of the translation group."""
        return None if self.translations is None else self.translations.shape

    def _require_averaging(self, what: str) -> None:
        if not self.averaging:
            raise GraphError(
                f"The {what} needs symmetric weights, and those of {self.name} are row-stochastic only; "
                'take network.reweighted("metropolis").'
            )


def from_matrix(W: Matrix, name: str = "matrix", node_names: Sequence[Hashable] | None = None) -> Network:
    """A network from a gossip matrix; its edges are where the matrix has weight.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.from_matrix([[0.75, 0.25], [0.25, 0.75]]).edges
    array([[0, 1]])
    """
    W = _as_csr(W)
    rows, columns = W.nonzero()
    off = rows != columns
    pairs = np.column_stack([rows[off], columns[off]])
    return Network(pairs, W, name=name, node_names=None if node_names is None else tuple(node_names))


def metropolis(graph: Network | Matrix) -> sp.csr_array:
    """Weights ``1 / (1 + max(d_u, d_v))`` on the edges, the rest on the diagonal.

    ``graph`` is a network or a symmetric (n, n) adjacency matrix, sparse or dense; it may be disconnected,
    as one round of a changing network often is.
    """
    if isinstance(graph, Network):
        return metropolis_weights(graph.adjacency)
    matrix = sp.coo_array(graph)
    there = (matrix.row != matrix.col) & (matrix.data != 0)
    ends = matrix.row[there], matrix.col[there]
    pattern = sp.csr_array((np.ones(len(ends[0])), ends), shape=matrix.shape)
    pattern.sum_duplicates()
    pattern.data[:] = 1.0
    if pattern.shape[0] != pattern.shape[1] or (pattern != pattern.T).nnz:
        raise GraphError(f"An adjacency matrix must be square and symmetric, got {matrix.shape} entries.")
    return metropolis_weights(pattern)


def network_of(
    edges: np.ndarray,
    n: int,
    name: str,
    weights: str = "metropolis",
    node_names: Sequence[Hashable] | None = None,
    symmetry: Translations | None = None,
) -> Network:
    """The network of ``n`` nodes with these edges and weights by rule; what every family calls last."""
    edges = canonical_edges(edges, n)
    W = weighted(adjacency_matrix(edges, n), weights)
    names = None if node_names is None else tuple(node_names)
    return Network(edges, W, name, names, symmetry, averaging=weights != "row_stochastic")


def canonical_edges(edges: ArrayLike, n: int) -> np.ndarray:
    """(m, 2) int64 pairs, smaller node first, sorted, each once; loops and unknown nodes are errors."""
    pairs = np.asarray(edges)
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise GraphError(f"Edges must be an (m, 2) array of node numbers, got {pairs.dtype} {pairs.shape}.")
    low, high = pairs.min(axis=1).astype(np.int64), pairs.max(axis=1).astype(np.int64)
    for k in np.flatnonzero((low < 0) | (high >= n) | (low == high))[:1]:
        raise GraphError(
            f"Edge {k} is {tuple(pairs[k].tolist())}, expected two different nodes of 0 to {n - 1}; a node's "
            "own weight is on the diagonal of W."
        )
    keys = low * n + high
    if (keys[1:] <= keys[:-1]).any():
        keys.sort()  # several times faster than np.unique on millions of keys
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    return np.column_stack(np.divmod(keys, n))


def adjacency_matrix(edges: np.ndarray, n: int) -> sp.csr_array:
    """Ones on canonical edges, both directions, indices sorted."""
    u, v = edges[:, 0].astype(np.int32), edges[:, 1].astype(np.int32)
    # Edges are sorted, so one stable conversion of (v, u) below and (u, v) above leaves rows sorted.
    ones = np.ones(2 * len(edges))
    matrix = sp.coo_array((ones, (np.concatenate([v, u]), np.concatenate([u, v]))), shape=(n, n)).tocsr()
    matrix.sort_indices()
    return matrix


def component_labels(edges: np.ndarray, n: int) -> np.ndarray:
    """(n,) number of the connected component each node lies in."""
    u, v = edges[:, 0], edges[:, 1]
    half = sp.csr_array((np.ones(len(edges)), (u, v)), shape=(n, n))
    return connected_components(half, directed=False)[1].astype(np.int64)


def _freeze(*arrays: np.ndarray) -> None:
    for array in arrays:
        array.setflags(write=False)


def _as_csr(matrix: Matrix) -> sp.csr_array:
    """An own, canonical float64 copy."""
    try:
        W = sp.csr_array(matrix, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"A gossip matrix must be a square array of numbers, got {type(matrix).__name__} ({error})."
        ) from None
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise GraphError(f"A gossip matrix must be square with at least one row, got shape {W.shape}.")
    W.sum_duplicates()
    W.eliminate_zeros()
    return W


def checked_weights(matrix: Matrix, sum_tolerance: float) -> sp.csr_array:
    """Return a csr copy of weights that average, connected or not, or say what is wrong with them."""
    W = _as_csr(matrix)
    _check_values(W, sum_tolerance)
    _check_symmetric(W)
    return W


def _check_values(W: sp.csr_array, sum_tolerance: float) -> None:
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    # what a fainter weight reveals cannot be told from rounding; a faint diagonal reveals nothing
    faint = (W.data > 0) & (W.data < FAINTEST) & (rows != W.indices)
    for k in np.flatnonzero(~np.isfinite(W.data) | (W.data < 0) | faint)[:1]:
        raise GraphError(
            f"W[{rows[k]}, {W.indices[k]}] is {W.data[k]:g}, expected a finite number that is 0 or at least "
            f"{FAINTEST:g}; {_TRY}."
        )
    sums = W.sum(axis=1)
    for u in np.flatnonzero(np.abs(sums - 1.0) > sum_tolerance)[:1]:
        raise GraphError(f"Row {u} of the gossip matrix sums to {sums[u]:.12g}, expected 1; {_TRY}.")


def _check_symmetric(W: sp.csr_array) -> None:
    apart = abs(W - W.T).tocoo()
    if apart.data.max(initial=0.0) > TOLERANCE:
        k = int(np.argmax(apart.data))
        u, v = int(apart.row[k]), int(apart.col[k])
        raise GraphError(
            f"The gossip matrix is not symmetric: W[{u}, {v}] is {W[u, v]:.12g} and W[{v}, {u}] is "
            f"{W[v, u]:.12g}; {_TRY}."
        )


def _check_support(W: sp.csr_array, edges: np.ndarray) -> None:
    n = W.shape[0]
    rows = np.repeat(np.arange(n, dtype=np.int64), np.diff(W.indptr))
    low, high = np.minimum(rows, W.indices), np.maximum(rows, W.indices)
    keys, allowed = low * n + high, np.append(edges[:, 0] * n + edges[:, 1], n * n)
    for k in np.flatnonzero((low != high) & (allowed[np.searchsorted(allowed, keys)] != keys))[:1]:
        u, v = int(rows[k]), int(W.indices[k])
        raise GraphError(
            f"W[{u}, {v}] is {W[u, v]:.12g}, but {u} and {v} are not joined by an edge; "
            "add the edge or move the weight to the diagonal."
        )


def _check_connected(W: sp.csr_array) -> None:
    if len(breadth_first_order(W, 0, return_predecessors=False)) < W.shape[0]:
        count, part = connected_components(W, directed=False)
        away = int(np.flatnonzero(part != part[0])[0])
        raise GraphError(
            f"The network must be connected, but it falls into {count} parts (no path from node 0 to node "
            f"{away}); add edges, or keep the largest part with largest_component=True."
        )
    # With weight on the diagonal anywhere, or an odd cycle, -1 is not an eigenvalue (Perron-Frobenius).
    if W.shape[0] == 1 or W.diagonal().any():
        return
    cover = sp.block_array([[None, W], [W, None]], format="csr")
    if connected_components(cover, directed=False)[0] == 2:  # the two-fold cover of a bipartite graph
        raise GraphError(
            "The gossip matrix never converges: the graph is bipartite and the diagonal is zero "
            "(eigenvalue -1); take lazy weights."
        )
