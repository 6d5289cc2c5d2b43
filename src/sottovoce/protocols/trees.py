"""Exact consensus on a spanning tree: sums go up, the mean comes down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import GraphError
from sottovoce.graphs import Network, takes_network
from sottovoce.protocols.base import Nodes
from sottovoce.protocols.linear import ExactConsensus, row_copies, sorted_csr
from sottovoce.protocols.spanning_trees import TreeKind, spanning_tree


class Tree(ExactConsensus):
    """Sums go up a rooted spanning tree, the root divides, the mean comes down: 2(n - 1) rows in all.

    A node sees one sum per child and, unless it is the root, the sum of all that lies outside its
    subtree; their supports are disjoint. So it learns ``1 / |subtree(c)|`` of the local-privacy loss
    of each user below its child ``c`` and ``1 / (n - |subtree(v)|)`` of each user outside, its tree degree in
    all.

    The root divides; it is not trusted with anything more. ``kind`` is that of `spanning_tree`; instead of it
    ``parents`` may name the parent of every node, -1 for the root.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> tree = sv.protocols.Tree(sv.graphs.path(4), root=0)
    >>> tree.apply(np.array([1.0, 2.0, 3.0, 6.0])).ravel().tolist()
    [3.0, 3.0, 3.0, 3.0]
    >>> tree.view(1).leakage().round(6).tolist(), tree.message_count
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
        return self

    def _up(self, level: int) -> sparse.csr_array:
        """Nodes at ``level`` hand their sums to their parents; in the last such round the root divides."""
        children = np.flatnonzero(self.depths == level)
        rows = np.concatenate([np.arange(self.n), self.parents[children]])
        columns = np.concatenate([np.arange(self.n), children])
        weights = np.where((rows == self.root) & (level == 1), 1.0 / self.n, 1.0)
        return sorted_csr(sparse.csr_array((weights, (rows, columns)), shape=(self.n, self.n)))

    def _down(self, level: int) -> sparse.csr_array:
        """Nodes at ``level`` take over their parent's row."""
        columns = np.where(self.depths == level, self.parents, np.arange(self.n))
        return row_copies(columns)

    @property
    def message_count(self) -> int:
        return 2 * (self.n - 1)

    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return the node sets whose sums ``v`` sees: the components of the tree without ``v``.

        For one node these are the subtree of each child and, last, all outside its own.
        """
        gone = set(_validate.nodes(v, self.n, "the coalition"))
        top = np.full(self.n, -1)  # the uppermost node of each node's component
        parents = self.parents.tolist()
        for u in np.argsort(self.depths, kind="stable").tolist():
            if u not in gone:
                top[u] = u if parents[u] < 0 or parents[u] in gone else top[parents[u]]
        tops = [u for u in range(self.n) if top[u] == u]
        return [np.flatnonzero(top == u) for u in sorted(tops, key=lambda u: u == self.root)]


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
    links = np.column_stack([np.arange(n), parents])
    network.require_edges(links[parents >= 0], "The tree uses")
    return parents, depths
