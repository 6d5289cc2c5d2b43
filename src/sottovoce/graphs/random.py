"""Random graphs: each takes an ``rng`` and draws again until the graph is connected.

Drawing again means: the law is that of the family, given that the graph is connected. All of them work on
arrays of edges, so that a million nodes take seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sottovoce import _validate as check
from sottovoce.errors import GraphError
from sottovoce.graphs.network import Network, component_labels, network_of

__all__ = ["erdos_renyi", "gnp_edges", "regular"]

ATTEMPTS = 200


def erdos_renyi(n: int, c: float, rng: np.random.Generator, *, weights: str = "metropolis") -> Network:
    """G(n, q) with ``q = c ln(n) / n``, drawn until connected; c above 1 is connected for large n.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce import graphs
    >>> graphs.erdos_renyi(200, 1.5, np.random.default_rng(3)).n
    200
    """
    n = check.count(n, "the number of nodes of an Erdős-Rényi graph")
    c = check.positive(c, "c of an Erdős-Rényi graph")
    q = min(1.0, c * np.log(n) / n)
    edges = _until_connected(lambda: gnp_edges(n, q, rng), n, f"G({n}, {q:.3g})", "take c above 1")
    return network_of(edges, n, f"er:{n}:{c:g}", weights)


def gnp_edges(n: int, q: float, rng: np.random.Generator) -> np.ndarray:
    """The edges of one G(n, q), connected or not: (m, 2), sorted; time and memory go with m.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce.graphs import gnp_edges
    >>> gnp_edges(4, 1.0, np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    n = check.count(n, "the number of nodes")
    q = check.probability(q, "the edge probability")
    total = n * (n - 1) // 2
    wanted = int(rng.binomial(total, q)) if total else 0
    if wanted > total // 2:
        chosen = np.sort(rng.choice(total, wanted, replace=False))
    else:
        # the first `wanted` distinct values of an endless uniform sequence are a uniform subset
        chosen = np.empty(0, dtype=np.int64)
        while len(chosen) < wanted:
            chosen = np.union1d(chosen, rng.integers(total, size=wanted - len(chosen)))
    return _pair_of(chosen, n)


def regular(n: int, d: int, rng: np.random.Generator, *, weights: str = "metropolis") -> Network:
    """A connected graph in which every node has d neighbours.

    Pairing model: ``n d`` half-edges are matched uniformly. The few loops and double edges (about
    ``(d^2 - 1) / 4`` whatever n is) are repaired by matching their ends anew with the ends of as many
    edges drawn at random, keeping the change if it does not make matters worse. For fixed d the law is
    asymptotically uniform (as for McKay-Wormald switchings); it is not exactly uniform for small n.
    Above half of n the complement is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce import graphs
    >>> graphs.regular(1000, 8, np.random.default_rng(1)).degrees.tolist() == [8] * 1000
    True
    """
    n = check.count(n, "the number of nodes of a regular graph")
    d = check.count(d, "the degree of a regular graph", minimum=0)
    if d >= n or n * d % 2 or (d < 2 and n != d + 1):
        raise GraphError(
            f"A connected {d}-regular graph on {n} nodes does not exist: the degree must be below the number "
            "of nodes, their product even, and the degree at least 2 beyond two nodes."
        )
    name = f"regular:{n}:{d}"
    if d == 2:  # the connected ones are the cycles
        node = rng.permutation(n)
        return network_of(np.column_stack([node, np.roll(node, 1)]), n, name, weights)
    edges = _until_connected(
        lambda: _regular_edges(n, d, rng),
        n,
        f"a random {d}-regular graph on {n} nodes",
        "take a larger degree",
    )
    return network_of(edges, n, name, weights)


def _regular_edges(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if 2 * d >= n:
        missing = _regular_edges(n, n - 1 - d, rng)
        there = np.ones((n, n), dtype=bool)
        there[missing[:, 0], missing[:, 1]] = False
        return np.argwhere(np.triu(there, 1))
    while True:
        ends = rng.permutation(np.repeat(np.arange(n), d)).reshape(-1, 2)
        bad = _faulty(ends, n)
        for _ in range(20 + 20 * d * d):
            if not len(bad):
                return np.sort(ends, axis=1)
            mixed = np.union1d(bad, rng.integers(len(ends), size=len(bad)))
            trial = ends.copy()
            trial[mixed] = rng.permutation(ends[mixed].ravel()).reshape(-1, 2)
            faults = _faulty(trial, n)
            if len(faults) <= len(bad):
                ends, bad = trial, faults


def _faulty(ends: np.ndarray, n: int) -> np.ndarray:
    """The rows of ``ends`` that are loops or repeat another row."""
    low, high = ends.min(axis=1), ends.max(axis=1)
    keys = low * n + high
    order = np.argsort(keys, kind="stable")
    repeats = order[1:][keys[order[1:]] == keys[order[:-1]]]
    return np.union1d(np.flatnonzero(low == high), repeats)


def _pair_of(index: np.ndarray, n: int) -> np.ndarray:
    """Pair number k of the sorted list (0,1), (0,2), ..., (n-2, n-1)."""
    # count from the end: the last k pairs make a triangle, whose side is an integer square root
    back = n * (n - 1) // 2 - 1 - np.asarray(index, dtype=np.int64)
    side = ((np.sqrt(8.0 * back + 1) - 1) / 2).astype(np.int64)
    side -= side * (side + 1) // 2 > back
    side += (side + 1) * (side + 2) // 2 <= back
    return np.column_stack([n - 2 - side, n - 1 - (back - side * (side + 1) // 2)])


def _until_connected(draw: Callable[[], np.ndarray], n: int, what: str, advice: str) -> np.ndarray:
    for _ in range(ATTEMPTS):
        edges = draw()
        if len(edges) >= n - 1 and not component_labels(edges, n).any():
            return edges
    raise GraphError(f"None of {ATTEMPTS} draws of {what} was connected; {advice}.")
