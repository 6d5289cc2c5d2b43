"""Pairwise exchange along the dimensions of a hypercube: exact consensus in log2(n) rounds."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.protocols.base import Nodes
from sottovoce.protocols.linear import ExactConsensus


class HypercubeExchange(ExactConsensus):
    """Hypercube exchange for n = 2^m: in round l node v swaps with ``v xor 2^l`` and both keep the mean.

    Each node sends m rows. The message of round l is the mean of a block of 2^l nodes, and the blocks are
    disjoint, so a node learns ``2^-l`` of the local-privacy loss of each member: log2(n) in all.
    """

    name = "exchange"

    def __init__(self, n: int) -> None:
        self.n = _validate.count(n, "n")
        self.rounds = self.n.bit_length() - 1
        if self.n != 1 << self.rounds:
            raise InvalidInput(
                f"Exchange needs a power of two nodes, got {n}; the tree protocol takes any number."
            )
        nodes = np.arange(self.n)
        self._matrices = [self._pairing(nodes, nodes ^ (1 << level)) for level in range(self.rounds)]

    def _pairing(self, nodes: np.ndarray, partner: np.ndarray) -> sparse.csr_array:
        columns = np.sort(np.stack([nodes, partner], axis=1), axis=1).ravel()
        halves, starts = np.full(2 * self.n, 0.5), np.arange(0, 2 * self.n + 1, 2)
        return sparse.csr_array((halves, columns, starts), shape=(self.n, self.n))

    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return, per round, the block of 2^round nodes whose mean the partner of node ``v`` sends."""
        (v,) = _validate.nodes(v, self.n, "node")
        nodes = np.arange(self.n)
        return [np.flatnonzero(nodes >> level == (v >> level) ^ 1) for level in range(self.rounds)]
