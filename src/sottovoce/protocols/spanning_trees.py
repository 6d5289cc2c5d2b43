"""Spanning trees: shallow, capped, uniformly random, and with few leaves.

On a tree with few leaves few members must add the noise of local privacy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network

TreeKind = Literal["bfs", "capped", "uniform", "few-leaves"]
_Links: TypeAlias = list[set[int]]  # the neighbors of every node in a tree


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
    """
    if kind not in ("bfs", "capped", "uniform", "few-leaves"):
        raise InvalidInput(f"kind must be bfs, capped, uniform or few-leaves, got {kind!r}.")
    if kind != "bfs" and rng is None:
        raise InvalidInput(f"A {kind} tree is drawn at random; pass rng=....")
    if rng is not None and kind == "few-leaves":
        if root is not None:
            raise InvalidInput("The root of a tree with few leaves is its middle; leave root out.")
        return few_leaf_tree(network, rng)
    if root is None and rng is not None:
        root = int(rng.integers(network.n))
    elif root is None:  # a node of least eccentricity, unless the graph is too large to look for one
        small = network.n <= 500
        root = int(np.argmin([network.distances_from(v).max() for v in range(network.n)])) if small else 0
    root = _validate.node(root, network.n)
    if rng is None or kind == "bfs":
        _, predecessors = sparse.csgraph.breadth_first_order(network.adjacency, root, directed=False)
        parents = np.array(predecessors, dtype=np.int64)
        parents[root] = -1
        return parents
    if kind == "capped":
        return _capped(network, root, rng, _validate.count(max_children, "max_children"))
    return _wilson(network, root, rng)


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
        if not following:  # the cap left nodes out: one joins the reached neighbor with fewest children
            left = np.flatnonzero(parents == -2).tolist()
            pairs = [(u, w) for w in left for u in network.neighbors(w).tolist() if parents[u] != -2]
            for u, w in sorted(pairs, key=lambda pair: children[pair[0]])[:1]:
                parents[w] = u
                children[u] += 1
                following.append(w)
        layer = following
    return parents


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


@takes_network
def few_leaf_tree(network: Network, rng: np.random.Generator, tries: int = 30) -> np.ndarray:
    """Return the parents of a spanning tree with few leaves, -1 at its middle.

    Depth-first walks towards neighbors with few ways on, then exchanges: a leaf joins a neighbor, and the
    circle so closed is opened at an edge that leaves no more leaves than before. Finding the least number is
    hard (two leaves are a Hamiltonian path); the best of ``tries`` walks is returned, of equals the
    shallowest. Deep trees cost latency: a tree of depth k takes 2k rounds.
    """
    n = network.n
    if 2 * len(network.edges) == n * (n - 1):  # anyone can reach anyone: a path from its middle
        return np.concatenate([np.arange(1, n // 2 + 1), [-1], np.arange(n // 2, n - 1)])
    around = [set(network.neighbors(v).tolist()) for v in range(n)]
    trees: list[tuple[int, int, np.ndarray]] = []
    for _ in range(_validate.count(tries, "tries")):
        links = _depth_first(around, rng)
        _exchange_leaves(links, around, rng)
        trees.append((sum(len(joined) <= 1 for joined in links), *_from_the_middle(links)))
        if trees[-1][0] <= 2:  # no tree has fewer
            break
    return min(trees, key=lambda tree: tree[:2])[2]


def _join(links: _Links, u: int, w: int) -> None:
    links[u].add(w)
    links[w].add(u)


def _cut(links: _Links, u: int, w: int) -> None:
    links[u].discard(w)
    links[w].discard(u)


def _depth_first(around: _Links, rng: np.random.Generator) -> _Links:
    """A depth-first tree: on to the neighbor with the fewest unvisited neighbors, ties at random."""
    n = len(around)
    links: _Links = [set() for _ in range(n)]
    start = int(rng.integers(n))
    seen, path = {start}, [start]
    while path:
        u = path[-1]
        ahead = sorted(around[u] - seen)
        if not ahead:
            path.pop()
            continue
        lottery = rng.random(len(ahead))
        w = min(zip(ahead, lottery, strict=True), key=lambda pair: (len(around[pair[0]] - seen), pair[1]))[0]
        _join(links, u, w)
        seen.add(w)
        path.append(w)
    return links


def _exchange_leaves(links: _Links, around: _Links, rng: np.random.Generator) -> None:
    """Exchange edges at leaves while it helps, and sideways for a while when it does not."""
    idle = 0
    while idle < 4 * len(links):
        ends = [u for u, joined in enumerate(links) if len(joined) == 1]
        if len(ends) <= 2:
            return
        leaf = ends[int(rng.integers(len(ends)))]
        fresh = sorted(around[leaf] - links[leaf])
        if not fresh:
            idle += 1
            continue
        w = fresh[int(rng.integers(len(fresh)))]
        cuts = list(pairwise(_way(links, leaf, w)))
        _join(links, leaf, w)
        cost = [(len(links[x]) == 2) + (len(links[y]) == 2) for x, y in cuts]
        cheapest = [k for k, value in enumerate(cost) if value == min(cost)]
        _cut(links, *cuts[cheapest[int(rng.integers(len(cheapest)))]])
        leaves = sum(len(joined) <= 1 for joined in links)
        idle = 0 if leaves < len(ends) else idle + 1


def _parents_from(links: _Links, root: int, end: int | None = None) -> dict[int, int]:
    """The parent of every node in breadth-first order, until ``end`` is reached; the root is its own."""
    parents = {root: root}
    queue = [root]
    for u in queue:
        if u == end:
            break
        for w in sorted(links[u]):
            if w not in parents:
                parents[w] = u
                queue.append(w)
    return parents


def _way(links: _Links, start: int, end: int) -> list[int]:
    """The path between two nodes of the tree."""
    parents = _parents_from(links, end, start)
    way = [start]
    while way[-1] != end:
        way.append(parents[way[-1]])
    return way


def _from_the_middle(links: _Links) -> tuple[int, np.ndarray]:
    """Root a tree in the middle of a longest path, where its depth is least; return depth and parents."""
    far = [*_parents_from(links, 0)][-1]
    longest = _way(links, far, [*_parents_from(links, far)][-1])
    middle = longest[len(longest) // 2]
    parents = _parents_from(links, middle) | {middle: -1}
    return len(longest) // 2, np.array([parents[u] for u in range(len(links))])
