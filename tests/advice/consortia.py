"""Random consortia for the tests of advice."""

import networkx as nx
import numpy as np


def consortium(seed):
    """A random consortium: members, links, records, colluders."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 13))
    graph = nx.random_labeled_tree(n, seed=seed)
    if rng.random() < 0.6:
        graph.add_edges_from(nx.gnp_random_graph(n, 0.4, seed=seed).edges)
    c = int(rng.integers(1, min(3, n - 2) + 1))
    sizes = rng.integers(5, 400, size=n).tolist()
    return graph, sizes, c, ("record", "member")[int(rng.integers(2))]
