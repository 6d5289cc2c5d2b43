"""Spanning trees: shallow, capped, uniformly random, and with few leaves.

On a tree with few leaves few members must add the noise of local privacy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network

TreeKind = Literal["bfs", "capped", "uniform", "few-leaves"]


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
    _, predecessors = sparse.csgraph.breadth_first_order(network.adjacency, root, directed=False)
    parents = np.array(predecessors, dtype=np.int64)
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
        if not following:  # the cap left a node out: attach one to the reached neighbor with fewest children
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


@takes_network
def few_leaf_tree(
    network: Network, rng: np.random.Generator, tries: int = 30, *, tolerate: int = 1
) -> np.ndarray:
    """Return the parents of a spanning tree with few leaves, -1 at its middle.

    Depth-first walks towards neighbors with few ways on, then exchanges: a leaf joins a neighbor, and the
    circle so closed is opened at an edge that leaves no more leaves than before. Finding the least number is
    hard (two leaves are a Hamiltonian path); the best of ``tries`` walks is returned, of equals the
    shallowest. Deep trees cost latency: a tree of depth k takes 2k rounds.

    Against ``tolerate`` = c > 1 colluders it is not leaves that cost noise but members of degree at most c:
    then the walks begin breadth first, with c children each, and exchanges lower that number.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> parents = few_leaf_tree(sv.graphs.grid(4, 4), np.random.default_rng(0))
    >>> int(np.sum(~np.isin(np.arange(16), parents)))  # two ends, neither of them the root
    2
    >>> pairs = few_leaf_tree("complete:8", np.random.default_rng(0), tolerate=2)
    >>> degrees = np.bincount(pairs[pairs >= 0], minlength=8) + (pairs >= 0)
    >>> int((degrees <= 2).sum())  # no tree has fewer than n - floor((n - 2) / c)
    5
    """
    c = _validate.count(tolerate, "tolerate")
    if 2 * len(network.edges) == network.n * (network.n - 1):  # anyone can reach anyone: nothing to search
        return _of_all(network.n, c)
    around = [set(network.neighbors(v).tolist()) for v in range(network.n)]
    best: tuple[int, int, np.ndarray] | None = None
    least = 2 if c == 1 else network.n - (network.n - 2) // c
    for _ in range(_validate.count(tries, "tries")):
        if c == 1:
            links = _depth_first(around, rng)
            _exchange_leaves(links, around, rng)
        else:
            links = _breadth_first(around, rng, c)
            _exchange_edges(links, around, rng, c)
        parents = _from_the_middle(links)
        candidate = (sum(len(joined) <= c for joined in links), _depth(parents), parents)
        if best is None or candidate[:2] < best[:2]:
            best = candidate
        if best[0] <= least:
            break
    assert best is not None
    return best[2]


def _of_all(n: int, c: int) -> np.ndarray:
    """The best tree where all links are there: a path from its middle, or inner nodes of degree c + 1."""
    parents = np.full(n, -1)
    if c == 1:
        middle = n // 2
        parents[:middle], parents[middle + 1 :] = np.arange(1, middle + 1), np.arange(middle, n - 1)
        return parents
    places, parent = c + 1, 0
    for u in range(1, n):
        if places == 0:
            parent, places = parent + 1, c
        parents[u] = parent
        places -= 1
    return parents


def _depth(parents: np.ndarray) -> int:
    depth, layer = 0, np.flatnonzero(parents < 0)
    while len(layer := np.flatnonzero(np.isin(parents, layer))):
        depth += 1
    return depth


def _breadth_first(around: list[set[int]], rng: np.random.Generator, c: int) -> list[set[int]]:
    """A breadth-first tree whose nodes have degree c + 1 while they can; who is left over joins late."""
    n = len(around)
    links: list[set[int]] = [set() for _ in range(n)]
    start = max(range(n), key=lambda v: (len(around[v]), rng.random()))
    seen, queue = {start}, [start]
    for full in (c + 1, n):  # first as many as are needed to be quiet, then the rest
        for u in [*queue] if full == n else queue:
            ahead = sorted(around[u] - seen, key=lambda w: (-len(around[w] - seen), rng.random()))
            for w in ahead[: max(full - len(links[u]), 0)]:
                links[u].add(w)
                links[w].add(u)
                seen.add(w)
                queue.append(w)
    while len(seen) < n:  # those reached late bring others
        u = next(u for u in seen if around[u] - seen)
        w = min(around[u] - seen)
        links[u].add(w)
        links[w].add(u)
        seen.add(w)
    return links


def _exchange_edges(links: list[set[int]], around: list[set[int]], rng: np.random.Generator, c: int) -> None:
    """Exchange any edge while it leaves fewer nodes of degree at most c, and sideways for a while."""
    n, idle = len(links), 0
    fresh = [(u, w) for u in range(n) for w in sorted(around[u]) if u < w]
    if len(fresh) < n:
        return
    while idle < 4 * n:
        u, w = fresh[int(rng.integers(len(fresh)))]
        idle += 1
        if w in links[u]:
            continue
        gained = sum(len(links[v]) == c for v in (u, w))
        circle = _way(links, u, w)
        links[u].add(w)
        links[w].add(u)
        cuts = list(pairwise(circle))
        cost = [sum(len(links[v]) == c + 1 for v in cut) for cut in cuts]
        x, y = cuts[cost.index(min(cost))]
        if min(cost) > gained:  # worse than before: take it back
            x, y = u, w
        elif min(cost) < gained:
            idle = 0
        links[x].discard(y)
        links[y].discard(x)


def _leaves(links: list[set[int]]) -> int:
    return sum(len(joined) <= 1 for joined in links)


def _depth_first(around: list[set[int]], rng: np.random.Generator) -> list[set[int]]:
    """A depth-first tree: on to the neighbor with the fewest unvisited neighbors, ties at random."""
    n = len(around)
    links: list[set[int]] = [set() for _ in range(n)]
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
        links[u].add(w)
        links[w].add(u)
        seen.add(w)
        path.append(w)
    return links


def _exchange_leaves(links: list[set[int]], around: list[set[int]], rng: np.random.Generator) -> None:
    """Exchange edges at leaves while it helps, and sideways for a while when it does not."""
    idle, patience = 0, 4 * len(links)
    while idle < patience:
        ends = [u for u, joined in enumerate(links) if len(joined) == 1]
        if len(ends) <= 2:
            return
        before = len(ends)
        leaf = ends[int(rng.integers(before))]
        fresh = sorted(around[leaf] - links[leaf])
        if not fresh:
            idle += 1
            continue
        w = fresh[int(rng.integers(len(fresh)))]
        circle = _way(links, leaf, w)
        links[leaf].add(w)
        links[w].add(leaf)
        cuts = list(pairwise(circle))
        cost = [(len(links[x]) == 2) + (len(links[y]) == 2) for x, y in cuts]
        cheapest = [k for k, value in enumerate(cost) if value == min(cost)]
        x, y = cuts[cheapest[int(rng.integers(len(cheapest)))]]
        links[x].discard(y)
        links[y].discard(x)
        idle = 0 if _leaves(links) < before else idle + 1


def _way(links: list[set[int]], start: int, end: int) -> list[int]:
    """The path between two nodes of the tree."""
    before = {start: start}
    queue = [start]
    for u in queue:
        if u == end:
            break
        for w in links[u]:
            if w not in before:
                before[w] = u
                queue.append(w)
    way = [end]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


def _from_the_middle(links: list[set[int]]) -> np.ndarray:
    """Root a tree in the middle of a longest path, where its depth is least."""
    far = _way(links, 0, _farthest(links, 0))[-1]
    longest = _way(links, far, _farthest(links, far))
    parents = np.full(len(links), -1)
    queue = [longest[len(longest) // 2]]
    seen = set(queue)
    for u in queue:
        for w in sorted(links[u] - seen):
            parents[w] = u
            seen.add(w)
            queue.append(w)
    return parents


def _farthest(links: list[set[int]], start: int) -> int:
    queue, seen = [start], {start}
    for u in queue:
        fresh = sorted(links[u] - seen)
        seen.update(fresh)
        queue += fresh
    return queue[-1]
