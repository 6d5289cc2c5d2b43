"""Finite-time exact consensus: after finitely many rounds every node holds the same mean, bit for bit.

When a gradient step ends so, the model is common knowledge, the views of successive steps compose, and the
pairwise guarantee holds for any loss. Two schedules: pairwise exchange along the dimensions of a hypercube,
and sums up and the mean down a spanning tree of any connected graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.leakage.span import Span
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import LinearProtocol, Nodes
from sottovoce.protocols.spanning_trees import few_leaf_tree

__all__ = ["ExactConsensus", "HypercubeExchange", "Tree", "spanning_tree"]

TreeKind = Literal["bfs", "capped", "uniform", "few-leaves"]


class ExactConsensus(LinearProtocol):
    """A protocol that ends with the same mean at every node, and whose messages to a node are disjoint sums.

    Subclasses give `blocks`. For one observer whose noise is known the basis of the view is then written
    down directly; any other case goes through the general recursion (a test compares the two).

    Examples
    --------
    >>> import sottovoce as sv
    >>> tree = sv.protocols.Tree(sv.graphs.path(4), root=0)
    >>> tree.exact
    True
    >>> [block.tolist() for block in tree.blocks(1)]
    [[2, 3], [0]]
    """

    exact = True

    @abstractmethod
    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return the disjoint node sets whose sums or means node ``v`` sees."""

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees."""
        chosen = _validate.nodes(observers, self.n)
        if not own_noise or (len(chosen) > 1 and not self.knows_coalitions):
            return super().view(chosen, own_noise)
        blocks = self.blocks(chosen[0] if len(chosen) == 1 else chosen)
        basis = np.zeros((self.n, len(blocks)))
        for j, block in enumerate(blocks):
            basis[block, j] = 1 / np.sqrt(len(block))
        return self._as_view(chosen, own_noise, Span(basis))


class HypercubeExchange(ExactConsensus):
    """Hypercube exchange for n = 2^m: in round l node v swaps with ``v xor 2^l`` and both keep the mean.

    Each node sends m rows. The message of round l is the mean of a block of 2^l nodes, and the blocks are
    disjoint, so a node learns ``2^-l`` of the local-privacy loss of each member: log2(n) in all.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> exchange = sv.protocols.HypercubeExchange(8)
    >>> exchange.apply(np.arange(8.0)).ravel().tolist()
    [3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5]
    >>> exchange.view(0).leakage().round(9).tolist()
    [0.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    """

    name = "exchange"

    def __init__(self, n: int) -> None:
        self.n = _validate.count(n, "n")
        self.rounds = self.n.bit_length() - 1
        if self.n != 1 << self.rounds:
            raise InvalidInput(
                f"Exchange needs a power of two nodes, got {n}; the tree protocol takes any number."
            )
        nodes = np.arange(self.n)
        self._matrices = [self._pairing(nodes, nodes ^ (1 << level)) for level in range(self.rounds)]

    def _pairing(self, nodes: np.ndarray, partner: np.ndarray) -> sparse.csr_array:
        columns = np.sort(np.stack([nodes, partner], axis=1), axis=1).ravel()
        return sparse.csr_array(
            (np.full(2 * self.n, 0.5), columns, np.arange(0, 2 * self.n + 1, 2)), shape=(self.n, self.n)
        )

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the pairing of round ``t``."""
        return self._matrices[t]

    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return, per round, the block of 2^round nodes whose mean the partner of node ``v`` sends."""
        (v,) = _validate.nodes(v, self.n, "node")
        nodes = np.arange(self.n)
        return [np.flatnonzero(nodes >> level == (v >> level) ^ 1) for level in range(self.rounds)]

    @property
    def messages(self) -> int:
        """One row per node and round."""
        return self.n * self.rounds


class Tree(ExactConsensus):
    """Sums go up a rooted spanning tree, the root divides, the mean comes down: 2(n - 1) rows in all.

    A node sees one sum per child and, unless it is the root, the sum of all that lies outside its
    subtree; their supports are disjoint. So it learns ``1 / |subtree(c)|`` of the local-privacy loss
    of each user below its child ``c`` and ``1 / (n - |subtree(v)|)`` of each user outside, its tree degree in
    all.

    Parameters
    ----------
    network : the graph the tree must span (only its edges are used).
    root : the node that divides; it is not trusted with anything more.
    kind : ``"bfs"`` (shallow), ``"capped"`` (breadth first with few children per node, ``max_children``),
        ``"uniform"`` (Wilson's uniformly random spanning tree) or ``"few-leaves"`` (deep; its root is its
        middle, see `few_leaf_tree`); all but the first need ``rng``.
    parents : instead of ``kind``: the parent of every node, -1 for the root.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> tree = sv.protocols.Tree(sv.graphs.path(4), root=0)
    >>> tree.apply(np.array([1.0, 2.0, 3.0, 6.0])).ravel().tolist()
    [3.0, 3.0, 3.0, 3.0]
    >>> tree.view(1).leakage().round(6).tolist(), tree.messages
    ([1.0, 0.0, 0.5, 0.5], 6)
    """

    name = "tree"
    knows_coalitions = True
    network: Network

    @takes_network
    def __init__(
        self,
        network: Network,
        *,
        root: int | None = None,
        kind: TreeKind = "bfs",
        rng: np.random.Generator | None = None,
        max_children: int = 2,
        parents: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        self.network = network
        self.n = network.n
        if parents is None:
            parents = spanning_tree(network, root=root, kind=kind, rng=rng, max_children=max_children)
        self.parents, self.depths = _rooted(np.array(parents, dtype=np.int64), network)
        self.parents.setflags(write=False)
        self.root = int(np.flatnonzero(self.parents < 0)[0])
        self.depth = int(self.depths.max())
        self.rounds = 2 * self.depth
        self._matrices = [self._up(level) for level in range(self.depth, 0, -1)]
        self._matrices += [self._down(level) for level in range(1, self.depth + 1)]

    @property
    def sum_tree(self) -> Tree:  # type: ignore[override]
        """The tree itself."""
        return self

    def _up(self, level: int) -> sparse.csr_array:
        """Nodes at ``level`` hand their sums to their parents; in the last such round the root divides."""
        children = np.flatnonzero(self.depths == level)
        rows = np.concatenate([np.arange(self.n), self.parents[children]])
        columns = np.concatenate([np.arange(self.n), children])
        weights = np.where((rows == self.root) & (level == 1), 1.0 / self.n, 1.0)
        return _csr(weights, rows, columns, self.n)

    def _down(self, level: int) -> sparse.csr_array:
        """Nodes at ``level`` take over their parent's row."""
        columns = np.where(self.depths == level, self.parents, np.arange(self.n))
        return _csr(np.ones(self.n), np.arange(self.n), columns, self.n)

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the matrix of round ``t``: first the levels up, then the levels down."""
        return self._matrices[t]

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        """Return whose message of round ``t`` reaches an observer: children on the way up, parents down.

        >>> import sottovoce as sv
        >>> tree = sv.protocols.Tree(sv.graphs.path(3), root=0)
        >>> [tree.senders(t, 1) for t in range(4)]
        [(2,), (), (0,), ()]
        """
        who = _validate.nodes(observers, self.n)
        if t < self.depth:
            level = self.depth - t
            heard = [c for v in who for c in self._children[v] if self.depths[c] == level]
        else:
            level = t - self.depth + 1
            heard = [int(self.parents[v]) for v in who if self.depths[v] == level]
        return tuple(sorted(set(heard)))

    @cached_property
    def _children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in range(self.n)]
        for u, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                below[parent].append(u)
        return below

    @property
    def messages(self) -> int:
        """Each tree edge carries one row up and one down."""
        return 2 * (self.n - 1)

    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return the node sets whose sums ``v`` sees: the subtree of each child, and all outside its own.

        Several nodes together see one sum per component of the tree without them.

        >>> import sottovoce as sv
        >>> tree = sv.protocols.Tree(sv.graphs.path(6), root=0)
        >>> [block.tolist() for block in tree.blocks([1, 4])]
        [[0], [2, 3], [5]]
        """
        if not isinstance(v, (int, np.integer)):
            return self._components(set(_validate.nodes(v, self.n, "the coalition")))
        belongs = self._branch(v)
        blocks = [np.flatnonzero(belongs == c) for c in np.flatnonzero(self.parents == v)]
        outside = np.flatnonzero(belongs == -1)
        return [*blocks, outside] if len(outside) else blocks

    def _components(self, gone: set[int]) -> list[np.ndarray]:
        top = np.full(self.n, -1)
        parents = self.parents.tolist()
        for u in np.argsort(self.depths, kind="stable").tolist():
            if u not in gone:
                top[u] = u if parents[u] < 0 or parents[u] in gone else top[parents[u]]
        return [np.flatnonzero(top == u) for u in range(self.n) if top[u] == u]

    def _branch(self, v: int) -> np.ndarray:
        """Return, per node, the child of ``v`` it hangs below, ``v`` itself, or -1 outside the subtree."""
        belongs = np.full(self.n, -1)
        belongs[v] = v
        for u in np.argsort(self.depths, kind="stable"):
            parent = self.parents[u]
            if parent == v:
                belongs[u] = u
            elif parent >= 0 and u != v:
                belongs[u] = belongs[parent]
        return belongs


@takes_network
def spanning_tree(
    network: Network,
    *,
    root: int | None = None,
    kind: TreeKind = "bfs",
    rng: np.random.Generator | None = None,
    max_children: int = 2,
) -> np.ndarray:
    """Return the parents of a spanning tree, -1 at the root.

    ``"bfs"`` takes the root with the least depth where the graph is small, node 0 else; ``"capped"`` shuffles
    and grows with at most ``max_children`` children while it can; ``"uniform"`` is Wilson's algorithm;
    ``"few-leaves"`` is `few_leaf_tree`.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> sv.protocols.spanning_tree(sv.graphs.path(3), root=0).tolist()
    [-1, 0, 1]
    >>> rng = np.random.default_rng(0)
    >>> (sv.protocols.spanning_tree(sv.graphs.ring(5), kind="uniform", rng=rng) == -1).sum()
    np.int64(1)
    """
    if kind != "bfs" and rng is None:
        raise InvalidInput(f"A {kind} tree is drawn at random; pass rng=....")
    if kind == "few-leaves":
        assert rng is not None
        if root is not None:
            raise InvalidInput("The root of a tree with few leaves is its middle; leave root out.")
        return few_leaf_tree(network, rng)
    if root is None:
        root = _center(network) if rng is None else int(rng.integers(network.n))
    (root,) = _validate.nodes(root, network.n, "root")
    if kind == "bfs":
        return _bfs(network, root)
    assert rng is not None
    if kind == "capped":
        return _capped(network, root, rng, _validate.count(max_children, "max_children"))
    if kind == "uniform":
        return _wilson(network, root, rng)
    raise InvalidInput(f"kind must be bfs, capped, uniform or few-leaves, got {kind!r}.")


def _center(network: Network) -> int:
    """Return a node of least eccentricity (node 0 on graphs too large to look)."""
    if network.n > 500:
        return 0
    return int(np.argmin([network.distances_from(v).max() for v in range(network.n)]))


def _bfs(network: Network, root: int) -> np.ndarray:
    _, found = sparse.csgraph.breadth_first_order(network.adjacency, root, directed=False)
    parents = np.array(found, dtype=np.int64)
    parents[root] = -1
    return parents


def _capped(network: Network, root: int, rng: np.random.Generator, most: int) -> np.ndarray:
    """Breadth first over shuffled neighbors, at most ``most`` children each; leftovers join late."""
    parents = np.full(network.n, -2)
    parents[root] = -1
    children = np.zeros(network.n, dtype=int)
    layer = [root]
    while layer:
        following = []
        for u in layer:
            for w in rng.permutation(network.neighbors(u)):
                if parents[w] == -2 and children[u] < most:
                    parents[w] = u
                    children[u] += 1
                    following.append(int(w))
        if not following:  # the cap left somebody out: attach one, to the least burdened reached neighbor
            following = _attach_one(network, parents, children)
        layer = following
    return parents


def _attach_one(network: Network, parents: np.ndarray, children: np.ndarray) -> list[int]:
    best: tuple[int, int, int] | None = None
    for w in np.flatnonzero(parents == -2):
        for u in network.neighbors(int(w)):
            if parents[u] != -2 and (best is None or children[u] < best[0]):
                best = (int(children[u]), int(u), int(w))
    if best is None:
        return []
    _, joined, newcomer = best
    parents[newcomer] = joined
    children[joined] += 1
    return [newcomer]


def _wilson(network: Network, root: int, rng: np.random.Generator) -> np.ndarray:
    """Loop-erased random walks: every spanning tree is equally likely (Wilson 1996)."""
    indptr, indices = network.adjacency.indptr, network.adjacency.indices
    parents = np.full(network.n, -2)
    parents[root] = -1
    for start in range(network.n):
        following: dict[int, int] = {}
        u = start
        while parents[u] == -2:
            following[u] = int(indices[rng.integers(indptr[u], indptr[u + 1])])
            u = following[u]
        u = start
        while parents[u] == -2:
            parents[u] = following[u]
            u = following[u]
    return parents


def _rooted(parents: np.ndarray, network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Check that ``parents`` is a spanning tree of the graph, and return it with the depths."""
    n = network.n
    if parents.shape != (n,) or (parents >= n).any() or (parents < 0).sum() != 1:
        raise GraphError(
            f"parents must hold {n} node numbers and one -1 at the root, got {parents.tolist()}."
        )
    depths = np.where(parents < 0, 0, -1)
    for _ in range(n):
        reached = (depths < 0) & (depths[parents] >= 0) & (parents >= 0)
        if not reached.any():
            break
        depths[reached] = depths[parents[reached]] + 1
    if (depths < 0).any():
        lost = int(np.flatnonzero(depths < 0)[0])
        raise GraphError(f"parents is not a tree: node {lost} never reaches the root.")
    edges = set(map(tuple, network.edges.tolist()))
    for u, p in enumerate(parents.tolist()):
        if p >= 0 and (min(u, p), max(u, p)) not in edges:
            raise GraphError(f"The tree uses ({u}, {p}), which is not an edge of {network.name}.")
    return parents, depths


def _csr(data: Any, rows: Any, columns: Any, n: int) -> sparse.csr_array:
    matrix = sparse.csr_array((data, (rows, columns)), shape=(n, n))
    matrix.sort_indices()
    return matrix
