"""Spanning trees with few leaves: on such a tree few members must add the noise of local privacy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sottovoce import _validate
from sottovoce.graphs import Network

__all__ = ["few_leaf_tree"]


def few_leaf_tree(network: Network, rng: np.random.Generator, tries: int = 30) -> np.ndarray:
    """Return the parents of a spanning tree with few leaves, -1 at its middle.

    Depth-first walks towards neighbours with few ways on, then exchanges: a leaf joins a neighbour, and the
    circle so closed is opened at an edge that leaves no more leaves than before. Finding the least number is
    hard (two leaves are a Hamiltonian path); the best of ``tries`` walks is returned. Deep trees cost
    latency: a tree of depth k takes 2k rounds.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> parents = few_leaf_tree(sv.graphs.grid(4, 4), np.random.default_rng(0))
    >>> int(np.sum(~np.isin(np.arange(16), parents)))  # two ends, neither of them the root
    2
    """
    around = [set(network.neighbours(v).tolist()) for v in range(network.n)]
    best: list[set[int]] | None = None
    for _ in range(_validate.count(tries, "tries")):
        links = _depth_first(around, rng)
        _exchange_leaves(links, around, rng)
        if best is None or _leaves(links) < _leaves(best):
            best = links
        if _leaves(best) <= 2:
            break
    assert best is not None
    return _from_the_middle(best)


def _leaves(links: list[set[int]]) -> int:
    return sum(len(joined) <= 1 for joined in links)


def _depth_first(around: list[set[int]], rng: np.random.Generator) -> list[set[int]]:
    """A depth-first tree: on to the neighbour with the fewest unvisited neighbours, ties at random."""
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
