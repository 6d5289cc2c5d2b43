"""Who can talk to whom: graph families, gossip weights, spectra and graph files, all as `Network`."""

from sottovoce.graphs.families import (
    complete,
    exponential,
    florentine,
    from_networkx,
    grid,
    hypercube,
    karate,
    path,
    ring,
    star,
    torus,
)
from sottovoce.graphs.files import from_edges
from sottovoce.graphs.network import Network, Translations, from_matrix, metropolis, network_of
from sottovoce.graphs.parsing import as_network, parse, takes_network
from sottovoce.graphs.random import erdos_renyi, geometric, random_connected, regular

__all__ = [
    "Network", "Translations", "as_network", "complete", "erdos_renyi", "exponential", "florentine",
    "from_edges", "from_matrix", "from_networkx", "geometric", "grid", "hypercube", "karate", "metropolis",
    "network_of", "parse", "path", "random_connected", "regular", "ring", "star",
    "takes_network", "torus",
]  # fmt: skip
