"""Gossip whose matrix changes from round to round: lists of matrices, fresh graphs, and dropout.

References: Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import Network, erdos_renyi, takes_network
from sottovoce.graphs.network import checked_weights
from sottovoce.protocols.linear import LinearProtocol, sorted_csr


class TimeVarying(LinearProtocol):
    """Gossip with one public matrix per round, given as networks or as symmetric stochastic matrices.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> ring, star = sv.graphs.ring(4), sv.graphs.star(4)
    >>> protocol = sv.protocols.TimeVarying([ring, star, ring])
    >>> protocol.rounds, float(protocol.apply(np.arange(4.0)).mean())
    (3, 1.5)
    """

    name = "time-varying"

    def __init__(self, matrices: Sequence[Network | sparse.csr_array]) -> None:
        if not len(matrices):
            raise InvalidInput("A time-varying protocol needs at least one matrix, got none.")
        self._matrices = [m.W if isinstance(m, Network) else _checked(m, t) for t, m in enumerate(matrices)]
        self.n = int(self._matrices[0].shape[0])
        self.rounds = len(self._matrices)
        self.averages = all(m.keeps_mean for m in matrices if isinstance(m, Network))  # others are symmetric
        for t, matrix in enumerate(self._matrices):
            if matrix.shape[0] != self.n:
                raise GraphError(f"Round {t} has {matrix.shape[0]} nodes, expected {self.n} as in round 0.")

    @cached_property
    def repeats_matrix(self) -> bool:  # type: ignore[override]
        first = self._matrices[0]
        return all(m is first or (m != first).nnz == 0 for m in self._matrices)


def fresh_erdos_renyi(n: int, rounds: int, rng: np.random.Generator, c: float = 1.5) -> TimeVarying:
    """Return gossip over a fresh connected Erdős-Rényi graph in every round, edge probability c ln(n)/n."""
    return TimeVarying([erdos_renyi(n, c, rng) for _ in range(_validate.count(rounds, "rounds"))])


class Dropout(TimeVarying):
    """Gossip in which some edges and nodes are silent in some rounds, at both ends.

    The weight of a silent edge moves to the diagonal of both its ends, so every round's matrix stays
    symmetric and stochastic and the mean is kept. A silent node keeps its row. ``nodes`` and ``edges`` map a
    round to the nodes and the edges (u, v) that are silent in it.
    """

    name = "dropout"

    @takes_network
    def __init__(
        self,
        network: Network,
        rounds: int,
        *,
        nodes: Mapping[int, Iterable[int]] | None = None,
        edges: Mapping[int, Iterable[tuple[int, int]]] | None = None,
    ) -> None:
        self.network = network
        nodes, edges = nodes or {}, edges or {}
        matrices: list[Network | sparse.csr_array] = [network] * _validate.count(rounds, "rounds")
        for t in sorted({*nodes, *edges}):
            if not 0 <= t < rounds:
                raise InvalidInput(f"Dropout names round {t}, but the rounds are 0 to {rounds - 1}.")
            matrices[t] = silenced(network, nodes.get(t, ()), edges.get(t, ()))
        super().__init__(matrices)

    @classmethod
    def random(
        cls,
        network: Network,
        rounds: int,
        rng: np.random.Generator,
        *,
        node_rate: float = 0.0,
        edge_rate: float = 0.0,
    ) -> Dropout:
        """Draw faults independently: each node, and each edge, silent in each round with its rate."""
        node_rate = _validate.probability(node_rate, "node_rate")
        edge_rate = _validate.probability(edge_rate, "edge_rate")
        nodes, edges = {}, {}
        for t in range(rounds):
            nodes[t] = np.flatnonzero(rng.random(network.n) < node_rate).tolist()
            lost = network.edges[rng.random(len(network.edges)) < edge_rate]
            edges[t] = [(int(u), int(v)) for u, v in lost]
        return cls(network, rounds, nodes=nodes, edges=edges)


def silenced(network: Network, nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> sparse.csr_array:
    """Return the gossip matrix with some nodes and edges silent, their weight moved to the diagonal."""
    quiet = np.zeros(network.n, dtype=bool)
    silent = list(nodes)
    quiet[list(_validate.nodes(silent, network.n, "dropped nodes") if silent else ())] = True
    entries = network.W.tocoo()
    off = entries.row != entries.col
    lost = off & (quiet[entries.row] | quiet[entries.col])
    pairs = np.sort(np.array(list(edges), dtype=np.int64).reshape(-1, 2), axis=1)
    network.require_edges(pairs, "Dropout names")
    low, high = np.minimum(entries.row, entries.col), np.maximum(entries.row, entries.col)
    lost |= off & np.isin(low * network.n + high, pairs[:, 0] * network.n + pairs[:, 1])
    active = off & ~lost
    places = (entries.row[active], entries.col[active])
    matrix = sparse.csr_array((entries.data[active], places), shape=network.W.shape)
    diagonal = 1.0 - np.asarray(matrix.sum(axis=1)).ravel()
    return sorted_csr(matrix + sparse.diags_array(diagonal))


def _checked(matrix: sparse.sparray | np.ndarray, t: int) -> sparse.csr_array:
    """Return a symmetric, non-negative, stochastic csr matrix, or say what is wrong with it."""
    try:
        return checked_weights(matrix, sum_tolerance=1e-9)
    except GraphError as error:
        raise GraphError(f"The matrix of round {t} cannot average. {error}") from None
