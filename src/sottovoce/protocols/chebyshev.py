"""Gossip with Chebyshev acceleration.

.. math:: x^{k+1} = \\gamma W x^k + (1-\\gamma) x^{k-1}

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 1 and equation (1).
Departures from [1]: the recursion starts with x^1 = W x^0 (the printed start leaves x^{-1} undefined, and
zero there multiplies the mean).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

from sottovoce.graphs import Network, takes_network
from sottovoce.protocols.gossip import Gossip
from sottovoce.protocols.linear import LinearProtocol, Recursion


class Chebyshev(Gossip):
    """Accelerated gossip: the same messages in number, errors that fall like exp(-k sqrt(gap)).

    What an observer learns is identical to plain gossip of the same number of rounds: its messages are an
    invertible recombination of the plain ones. The momentum ``gamma`` is by default that of Muffliato,
    2 / (1 + sqrt(gap (1 - gap / 4))).
    """

    name = "chebyshev"
    memory = 2  # present and previous rows
    gossip_matrix_only = tolerates_dropout = False

    @takes_network
    def __init__(self, network: Network, rounds: int, gamma: float | None = None) -> None:
        super().__init__(network, rounds)
        self._gamma = gamma

    @cached_property
    def gamma(self) -> float:
        """Momentum of the recursion; 1 (plain gossip) where one plain round already averages."""
        if self._gamma is not None:
            return float(self._gamma)
        gap = self.network.spectral_gap
        if self.n == 1 or gap > 1 - 1e-12:
            return 1.0
        return 2 / (1 + math.sqrt(gap * (1 - gap / 4)))

    def recursion(self, t: int, real: Callable[[float], float] = float) -> Recursion:
        gamma = real(self.gamma if t else 1.0)  # the first round is a plain one
        return (gamma, 1 - gamma), (0.0, 1.0, 0.0)

    @cached_property
    def same_messages(self) -> LinearProtocol:
        """Plain gossip: the accelerated messages are an invertible triangular recombination of its own."""
        return Gossip(self.network, self.rounds)
