"""Least noise on a spanning tree without cryptography: who must add how much, and which tree to take.

Links are encrypted, members may add different noise. A coalition C of at most c members sees the sum over
every component K of the tree without C, so "nobody in a coalition of c learns more than mu of anyone" is
linear in the variances:

.. math:: \\min \\sum_u s_u^2 \\quad\\text{subject to}\\quad \\sum_{u \\in K} s_u^2 \\ge \\tau
          \\text{ for every such } K, \\qquad \\tau = (\\Delta / \\mu)^2.

In closed form the members of tree degree at most c take :math:`\\tau`, as under local privacy, and the others
nothing: a single node of degree at most c is a component; and a component of two or more nodes has two leaves
of its own and at most c edges to the coalition, so one of the two has tree degree at most :math:`1 + c/2`, or
1 if c = 1. With a floor below which nobody goes, the others take the floor. So against single observers trees
with few leaves are best: a Hamiltonian path needs :math:`2\\tau`, twice a curator's noise.

Unequal requirements (uneven records, budgets per pair) have no closed form; they are the linear program
itself. Masked sums (`sottovoce.protocols.Masked`) need :math:`n/(n - c)\\,\\tau` on any tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.graphs import Network
from sottovoce.protocols import Tree

__all__ = ["few_leaf_tree", "least_tree_noise", "tree_blocks", "tree_noise_program", "worst_tree_share"]

_MOST_COALITIONS = 200_000


def tree_blocks(tree: Tree, coalition: int | Iterable[int]) -> list[np.ndarray]:
    """Return the components of the tree without the coalition: the sets whose sums it sees.

    Examples
    --------
    >>> import sottovoce as sv
    >>> tree = sv.protocols.Tree(sv.graphs.path(5), root=0)
    >>> [block.tolist() for block in tree_blocks(tree, [1, 4])]
    [[0], [2, 3]]
    """
    return tree.blocks(_validate.nodes(coalition, tree.n, "the coalition"))


def least_tree_noise(tree: Tree, tolerate: int = 1, *, floor: float) -> np.ndarray:
    """Return (n,) the variances of least total, in units of what local privacy takes per member.

    Parameters
    ----------
    tree : the tree, the same in every step.
    tolerate : the size c of the coalitions against which the guarantee holds.
    floor : the variance everybody takes at least, in [0, 1]. A member with none has no guarantee of its own
        once more than c collude; `worst_tree_share` says what c + 1 learn.

    Guarantees
    ----------
    With these variances times ``(Delta / mu)**2``, changing a member's row by at most ``Delta`` is ``mu``-GDP
    for every coalition of at most c other members that sees nothing but its own links.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.protocols.Tree(sv.graphs.path(10))
    >>> least_tree_noise(path, 1, floor=0.0).sum(), round(least_tree_noise(path, 1, floor=0.05).sum(), 9)
    (np.float64(2.0), np.float64(2.4))
    """
    c, least = _checked(tree, tolerate, floor)
    return np.where(_degrees(tree) <= c, 1.0, least)


def tree_noise_program(
    tree: Tree, tolerate: int = 1, *, required: Any = 1.0, floor: float = 0.0
) -> np.ndarray:
    """Return (n,) the variances of least total by the linear program, for equal or unequal requirements.

    Parameters
    ----------
    tree, tolerate : as for `least_tree_noise`.
    required : the variance that must hide a member, ``(Delta_u / mu_u)**2``: one number, one per member, or
        ``[u, v]``, what must hide u from coalitions with v in them.
    floor : the variance everybody takes at least.

    Guarantees
    ----------
    Every component seen by a coalition of at most ``tolerate`` members holds at least what each of its
    members requires; the solver's rounding is made up for by scaling upwards.

    Examples
    --------
    The end of a path that needs four times as much as the others can lend it to its neighbours.

    >>> import sottovoce as sv
    >>> path = sv.protocols.Tree(sv.graphs.path(4))
    >>> tree_noise_program(path, 1, required=[4.0, 1.0, 1.0, 1.0]).round(6).tolist()
    [4.0, 0.0, 0.0, 1.0]
    """
    from scipy import sparse
    from scipy.optimize import linprog

    c, least = _checked(tree, tolerate, floor)
    pairs = _requirements(required, tree.n)
    needs: dict[bytes, tuple[np.ndarray, float]] = {}
    for coalition in _coalitions(tree.n, c):
        strictest = pairs[:, list(coalition)].max(axis=1)
        for block in tree_blocks(tree, coalition):
            need = float(strictest[block].max())
            held = needs.get(block.tobytes())
            needs[block.tobytes()] = (block, need if held is None else max(need, held[1]))
    blocks, amounts = zip(*needs.values(), strict=True)
    rows = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    matrix = sparse.csr_array(
        (np.ones(len(rows)), (rows, np.concatenate(blocks))), shape=(len(blocks), tree.n)
    )
    lowest = least * max(amounts)
    found = linprog(
        np.ones(tree.n), A_ub=-matrix, b_ub=-np.array(amounts), bounds=(lowest, None), method="highs"
    )
    if not found.success:
        raise BudgetInfeasible(f"the least noise on this tree was not found: {found.message}")
    variances = np.maximum(found.x, lowest)
    short = float((np.array(amounts) / np.maximum(matrix @ variances, 1e-300)).max())
    if short > 1 + 1e-6:
        raise BudgetInfeasible(f"the solver's noise misses a requirement by a factor {short:g}.")
    return variances * max(short, 1.0)


def worst_tree_share(tree: Tree, variances: Any, colluders: int = 1) -> float:
    """Return the largest ``(mu / mu_local)**2`` over coalitions of ``colluders`` and everybody else.

    ``variances`` are in units of what local privacy takes; infinity says that somebody's row is in clear.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.protocols.Tree(sv.graphs.path(10))
    >>> noise = least_tree_noise(path, 1, floor=0.125)
    >>> worst_tree_share(path, noise, 1), worst_tree_share(path, noise, 2)
    (1.0, 8.0)
    """
    each = np.asarray(variances, float).ravel()
    if each.shape != (tree.n,) or not (np.isfinite(each).all() and (each >= 0).all()):
        raise InvalidInput(f"variances must be {tree.n} finite numbers of at least 0, got {variances!r}.")
    c = _validate.count(colluders, "colluders")
    if c >= tree.n:
        raise InvalidInput(f"colluders must leave somebody of {tree.n} members, got {c}.")
    least = min(
        math.fsum(each[block])
        for coalition in _coalitions(tree.n, c)
        for block in tree_blocks(tree, coalition)
    )
    return 1 / least if least > 0 else math.inf


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
    >>> tree = sv.protocols.Tree(sv.graphs.grid(4, 4), parents=parents)
    >>> least_tree_noise(tree, 1, floor=0.0).sum()
    np.float64(2.0)
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


# ---- coalitions ----------------------------------------------------------------------------------------


def _checked(tree: Tree, tolerate: int, floor: float) -> tuple[int, float]:
    c = _validate.count(tolerate, "tolerate")
    if c >= tree.n:
        raise InvalidInput(f"tolerate must be below the {tree.n} members of the tree, got {c}.")
    return c, _validate.probability(floor, "floor")


def _degrees(tree: Tree) -> np.ndarray:
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=tree.n)
    return children + (tree.parents >= 0)


def _coalitions(n: int, most: int) -> Iterator[tuple[int, ...]]:
    count = sum(math.comb(n, k) for k in range(1, most + 1))
    if count > _MOST_COALITIONS:
        raise InvalidInput(
            f"{n} members have {count} coalitions of up to {most}, too many to go through; least_tree_noise "
            "has the closed form for equal requirements."
        )
    for size in range(1, most + 1):
        yield from combinations(range(n), size)


def _requirements(required: Any, n: int) -> np.ndarray:
    given = np.asarray(required, float)
    if given.ndim <= 1 and given.shape in ((), (n,)):
        given = np.broadcast_to(given.reshape(-1, 1), (n, n))
    if given.shape != (n, n) or not (np.isfinite(given).all() and (given >= 0).all() and given.any()):
        raise InvalidInput(
            f"required must be positive: one number, one per member ({n}) or one per pair ({n}, {n}), got "
            f"shape {given.shape}."
        )
    return given


# ---- trees with few leaves -----------------------------------------------------------------------------


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
