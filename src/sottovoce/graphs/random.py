"""Random graphs: each takes an ``rng`` and draws again until the graph is connected.

The distribution is that of the family, conditional on a connected graph. All families work on arrays of
edges, so that a million nodes take seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sottovoce import _validate as check
from sottovoce.errors import GraphError
from sottovoce.graphs.network import Network, adjacency_matrix, canonical_edges, component_labels, network_of
from sottovoce.graphs.spectra import fiedler_value

ATTEMPTS = 200


def erdos_renyi(n: int, c: float, rng: np.random.Generator, *, weights: str = "metropolis") -> Network:
    """G(n, q) with ``q = c ln(n) / n``, drawn until connected; c above 1 is connected for large n."""
    n = check.count(n, "the number of nodes of an Erdős-Rényi graph")
    c = check.positive(c, "c of an Erdős-Rényi graph")
    q = min(1.0, c * np.log(n) / n)
    edges = _until_connected(lambda: gnp_edges(n, q, rng), n, f"G({n}, {q:.3g})", "take c above 1")
    return network_of(edges, n, f"er:{n}:{c:g}", weights)


def gnp_edges(n: int, q: float, rng: np.random.Generator) -> np.ndarray:
    """The edges of one G(n, q), connected or not: (m, 2), sorted; time and memory go with m."""
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
            more = np.sort(np.append(chosen, rng.integers(total, size=wanted - len(chosen))))
            chosen = more[np.append(True, more[1:] != more[:-1])]
    return _pair_of(chosen, n)


def regular(n: int, d: int, rng: np.random.Generator, *, weights: str = "metropolis") -> Network:
    """A connected graph in which every node has d neighbors.

    Pairing model: ``n d`` half-edges are matched uniformly; above half of n the complement is drawn. Up to
    degree 4 and 100,000 nodes a matching with loops or double edges is thrown away, so that the distribution
    is uniform. Beyond, most matchings have some, and their ends are matched anew with the ends of as many
    edges drawn at random: a small dense graph is near to uniform, not uniform.
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
    what = f"a random {d}-regular graph on {n} nodes"
    edges = _until_connected(lambda: _regular_edges(n, d, rng), n, what, "take a larger degree")
    return network_of(edges, n, name, weights)


def geometric(n: int, radius: float, rng: np.random.Generator, *, weights: str = "metropolis") -> Network:
    """n points drawn uniformly in the unit square, joined where they lie within ``radius``."""
    from scipy.spatial import cKDTree

    n = check.count(n, "the number of nodes of a geometric graph")
    radius = check.positive(radius, "the radius of a geometric graph")

    def draw() -> np.ndarray:
        return np.asarray(cKDTree(rng.random((n, 2))).query_pairs(radius, output_type="ndarray"))

    what = f"a geometric graph with {n} nodes and radius {radius:g}"
    advice = f"take a radius above {np.sqrt(2 * np.log(max(n, 2)) / (np.pi * n)):.2g}"
    edges = _until_connected(draw, n, what, advice)
    return network_of(edges, n, f"geometric:{n}:{radius:g}", weights)


def random_connected(
    n: int, fiedler: float, rng: np.random.Generator, *, tolerance: float = 0.05, weights: str = "metropolis"
) -> Network:
    """A random connected graph whose normalized Fiedler value lies within ``tolerance`` of ``fiedler``.

    A random tree (from path-like to bushy) receives edges in random order; the Fiedler value can only
    grow on the way, so the best stopping point is found by bisection. Trees are drawn anew until one
    passes within the tolerance. The default is the spread that Bayrooti et al. 2023 state for their graphs.
    Not every value exists: ten nodes have nothing between 0.8 and 1.
    """
    n = check.count(n, "the number of nodes of a random connected graph", minimum=2)
    fiedler = check.probability(fiedler, "fiedler", zero=False)
    tolerance = check.positive(tolerance, "tolerance")
    nearest = np.inf
    for _ in range(ATTEMPTS):
        tree = _random_tree(n, rng)
        value, edges = _grown_to(fiedler, tree, n, rng)
        if abs(value - fiedler) <= tolerance:
            return network_of(edges, n, f"random:{n}:{fiedler:g}", weights)
        nearest = min(nearest, value, key=lambda value: abs(value - fiedler))
    raise GraphError(
        f"None of {ATTEMPTS} random graphs on {n} nodes came within {tolerance:g} of the normalized Fiedler "
        f"value {fiedler:g} (nearest: {nearest:.3g}); take another value or a larger tolerance."
    )


def _random_tree(n: int, rng: np.random.Generator) -> np.ndarray:
    """Each node is attached to one of the few before it; how few is drawn too: 1 gives a path."""
    reach = int(np.exp(rng.uniform(0.0, np.log(n))))
    child = np.arange(1, n)
    parent = child - 1 - rng.integers(np.minimum(child, reach))
    return canonical_edges(rng.permutation(n)[np.column_stack([child, parent])], n)


def _grown_to(fiedler: float, tree: np.ndarray, n: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Add random edges to a tree until its normalized Fiedler value is nearest to the wanted one."""
    pairs = np.column_stack(np.triu_indices(n, 1))
    others = pairs[~np.isin(pairs[:, 0] * n + pairs[:, 1], tree[:, 0] * n + tree[:, 1])]
    others = rng.permutation(others)

    def grown(count: int) -> tuple[float, np.ndarray]:
        edges = canonical_edges(np.concatenate([tree, others[:count]]), n)
        return fiedler_value(adjacency_matrix(edges, n)) / n, edges

    low, high = 0, len(others)
    while low < high:  # the first count that reaches the wanted value
        middle = (low + high) // 2
        low, high = (low, middle) if grown(middle)[0] >= fiedler else (middle + 1, high)
    return min((grown(c) for c in {max(low - 1, 0), low}), key=lambda candidate: abs(candidate[0] - fiedler))


def _regular_edges(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if 2 * d >= n:
        u, v = _regular_edges(n, n - 1 - d, rng).T
        there = np.ones((n, n), dtype=bool)
        there[u, v] = there[v, u] = False
        return np.argwhere(np.triu(there, 1))
    repairs = 0 if d <= 4 and n <= 100_000 else 20 * d * d
    while True:
        ends = rng.permutation(np.repeat(np.arange(n), d)).reshape(-1, 2)
        bad = _faulty(ends, n)
        for _ in range(repairs):
            if not len(bad):
                break
            mixed = np.union1d(bad, rng.integers(len(ends), size=len(bad)))
            trial = ends.copy()
            trial[mixed] = rng.permutation(ends[mixed].ravel()).reshape(-1, 2)
            faults = _faulty(trial, n)
            if len(faults) <= len(bad):
                ends, bad = trial, faults
        if not len(bad):
            return ends


def _faulty(ends: np.ndarray, n: int) -> np.ndarray:
    """The rows of ``ends`` that are loops or equal another row."""
    low, high = np.minimum(ends[:, 0], ends[:, 1]), np.maximum(ends[:, 0], ends[:, 1])
    keys = low * n + high
    ordered = np.sort(keys)
    double = ordered[1:][ordered[1:] == ordered[:-1]]
    faulty = low == high
    if len(double):
        near = np.minimum(np.searchsorted(double, keys), len(double) - 1)
        faulty |= double[near] == keys
    return np.flatnonzero(faulty)


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
