"""Graphs with a fixed shape: nodes are numbered 0 to n - 1, weights are metropolis by default.

Families whose nodes all look alike (ring, torus, complete, hypercube, exponential) carry their
translations in `Network.symmetry`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sottovoce import _validate as check
from sottovoce.errors import GraphError
from sottovoce.graphs.network import Network, Translations, component_labels, network_of

if TYPE_CHECKING:
    import networkx


def path(n: int, *, weights: str = "metropolis") -> Network:
    """Nodes in a line: 0 - 1 - ... - (n-1)."""
    n = check.count(n, "the number of nodes of a path")
    u = np.arange(n - 1)
    return network_of(np.column_stack([u, u + 1]), n, f"path:{n}", weights)


def ring(n: int, *, weights: str = "metropolis") -> Network:
    """A cycle of at least three nodes."""
    n = check.count(n, "the number of nodes of a ring", minimum=3)
    return _circulant(n, [1], f"ring:{n}", weights)


def grid(a: int, b: int, *, weights: str = "metropolis") -> Network:
    """A rectangle of a rows and b columns, node ``i * b + j`` in row i and column j.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.grid(2, 3).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [1, 4], [2, 5], [3, 4], [4, 5]]
    """
    a, b = check.count(a, "the rows of a grid"), check.count(b, "the columns of a grid")
    node = np.arange(a * b).reshape(a, b)
    across, down = _pairs(node[:, :-1], node[:, 1:]), _pairs(node[:-1], node[1:])
    return network_of(np.concatenate([across, down]), a * b, f"grid:{a}:{b}", weights)


def torus(a: int, b: int, *, weights: str = "metropolis") -> Network:
    """A grid whose opposite sides are joined; both sides are at least 3."""
    a = check.count(a, "the rows of a torus", minimum=3)
    b = check.count(b, "the columns of a torus", minimum=3)
    node = np.arange(a * b).reshape(a, b)
    edges = np.concatenate([_pairs(node, np.roll(node, -1, axis=axis)) for axis in (0, 1)])
    return network_of(edges, a * b, f"torus:{a}:{b}", weights, symmetry=Translations((a, b)))


def complete(n: int, *, weights: str = "metropolis") -> Network:
    """Everyone joined to everyone; one round averages exactly.

    >>> from sottovoce import graphs
    >>> round(graphs.complete(32).spectral_gap, 12)
    1.0
    """
    n = check.count(n, "the number of nodes of a complete graph")
    edges = np.column_stack(np.triu_indices(n, 1))
    return network_of(edges, n, f"complete:{n}", weights, symmetry=Translations((n,)))


def star(n: int, *, weights: str = "metropolis") -> Network:
    """Node 0 in the middle, joined to the n - 1 others."""
    n = check.count(n, "the number of nodes of a star", minimum=2)
    leaves = np.arange(1, n)
    return network_of(np.column_stack([np.zeros_like(leaves), leaves]), n, f"star:{n}", weights)


def hypercube(d: int, *, weights: str = "metropolis") -> Network:
    """2^d nodes, joined where their numbers differ in one bit.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.hypercube(3).neighbors(0)
    array([1, 2, 4])
    """
    d = check.count(d, "the dimension of a hypercube", minimum=0)
    node = np.arange(2**d)
    bits = [node[(node >> k) & 1 == 0] for k in range(d)]
    edges = [np.column_stack([low, low | (1 << k)]) for k, low in enumerate(bits)]
    pairs = np.concatenate(edges) if edges else np.empty((0, 2), dtype=np.int64)
    return network_of(pairs, 2**d, f"hypercube:{d}", weights, symmetry=Translations((2,) * d or (1,)))


def exponential(n: int, *, weights: str = "metropolis") -> Network:
    """Node i joined to i ± 1, i ± 2, i ± 4, ... modulo n: a sparse graph that mixes quickly.

    The undirected form of the static exponential graph (Ying et al. 2021), so that weights are symmetric.
    """
    n = check.count(n, "the number of nodes of an exponential graph", minimum=2)
    hops = [2**k for k in range((n - 1).bit_length())]
    return _circulant(n, hops, f"exponential:{n}", weights)


def florentine(*, weights: str = "metropolis") -> Network:
    """Marriages between fifteen families of Renaissance Florence (Padgett), in networkx's node order.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> florentine = graphs.florentine()
    >>> florentine.n, florentine.node_name(1), round(florentine.spectral_gap, 10)
    (15, 'Medici', 0.0574413008)
    """
    import networkx

    return from_networkx(networkx.florentine_families_graph(), name="florentine", weights=weights)


def karate(*, weights: str = "metropolis") -> Network:
    """Friendships in a karate club of 34 members (Zachary 1977)."""
    import networkx

    friends = networkx.karate_club_graph()
    for _, _, attributes in friends.edges(data=True):
        attributes.clear()  # how often they met
    return from_networkx(friends, name="karate", weights=weights)


def from_networkx(
    G: networkx.Graph, *, name: str = "", weights: str = "metropolis", largest_component: bool = False
) -> Network:
    """The network of a networkx graph, in its node order.

    The graph says who can talk, the rule says with which weights: directed graphs and edge weights that
    differ are refused, parallel edges and self-loops are dropped. Nodes not called 0 to n - 1 keep their
    names in ``node_names``.

    Examples
    --------
    >>> import networkx
    >>> from sottovoce import graphs
    >>> trio = graphs.from_networkx(networkx.Graph([("ada", "bo"), ("bo", "cy")]))
    >>> trio.node_names, trio.edges.tolist()
    (('ada', 'bo', 'cy'), [[0, 1], [1, 2]])
    """
    if G.is_directed():
        raise GraphError(
            "The graph is directed, but gossip uses every edge both ways; give G.to_undirected() if it may."
        )
    if len({weight for _, _, weight in G.edges(data="weight", default=1)}) > 1:
        raise GraphError(
            "The graph has edge weights, which a rule of gossip weights does not use; delete the attribute "
            "'weight', or give a gossip matrix of your own to from_matrix."
        )
    nodes = list(G)
    number = {node: k for k, node in enumerate(nodes)}
    pairs = np.array([(number[u], number[v]) for u, v in G.edges() if u != v], dtype=np.int64).reshape(-1, 2)
    return relabeled(pairs, nodes, name or G.name or "networkx", weights, largest_component)


def relabeled(
    pairs: np.ndarray, node_names: Sequence[Hashable], name: str, weights: str, largest_component: bool
) -> Network:
    """A network of named nodes, restricted to its largest component if wanted."""
    n = check.count(len(node_names), "the number of nodes")
    if largest_component:
        part = component_labels(pairs, n)
        members = np.flatnonzero(part == np.argmax(np.bincount(part)))
        place = np.full(n, -1)
        place[members] = np.arange(len(members))
        pairs, n = place[pairs], len(members)
        pairs = pairs[(pairs >= 0).all(axis=1)]
        node_names = [node_names[k] for k in members.tolist()]
    plain = list(node_names) == list(range(n))
    return network_of(pairs, n, name, weights, node_names=None if plain else node_names)


def _circulant(n: int, hops: list[int], name: str, weights: str) -> Network:
    node = np.arange(n)
    edges = np.concatenate([_pairs(node, (node + hop) % n) for hop in hops])
    return network_of(edges, n, name, weights, symmetry=Translations((n,)))


def _pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.column_stack([left.ravel(), right.ravel()])
