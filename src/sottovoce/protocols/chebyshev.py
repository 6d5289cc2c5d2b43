"""Gossip with Chebyshev acceleration.

.. math:: x^{k+1} = \\gamma W x^k + (1-\\gamma) x^{k-1}

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 1 and equation (1).
Departures from [1]: the recursion starts with x^1 = W x^0 (the printed start leaves x^{-1} undefined, and
zero there multiplies the mean).
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from sottovoce.graphs import Network, takes_network
from sottovoce.noise.samplers import Agents, Rows
from sottovoce.protocols.base import Noise
from sottovoce.protocols.gossip import Gossip
from sottovoce.protocols.linear import LinearProtocol


class Chebyshev(Gossip):
    """Accelerated gossip: the same messages in number, errors that fall like exp(-k sqrt(gap)).

    What an observer learns is identical to plain gossip of the same number of rounds: its messages are an
    invertible recombination of the plain ones.

    Parameters
    ----------
    network : the graph and its weights.
    rounds : number of rounds.
    gamma : the momentum; by default that of Muffliato, 2 / (1 + sqrt(gap (1 - gap / 4))).

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> fast = sv.protocols.Chebyshev(sv.graphs.florentine(), rounds=40)
    >>> values = np.arange(15.0)
    >>> bool(abs(fast.apply(values) - 7).max() < 1e-3)
    True
    """

    name = "chebyshev"
    memory = 2  # present and previous rows
    gossip_matrix_only = tolerates_dropout = False

    @takes_network
    def __init__(self, network: Network, rounds: int, gamma: float | None = None) -> None:
        super().__init__(network, rounds)
        self._gamma = gamma

    @cached_property
    def gamma(self) -> float:  # type: ignore[override]
        """Momentum of the recursion; 1 (plain gossip) where one plain round already averages."""
        if self._gamma is not None:
            return float(self._gamma)
        gap = self.network.spectral_gap
        if self.n == 1 or gap > 1 - 1e-12:
            return 1.0
        return 2 / (1 + math.sqrt(gap * (1 - gap / 4)))

    def advance(
        self, t: int, mixed: Rows, previous: Rows, *, agents: Agents, noise: Noise, step: int
    ) -> Rows:
        """Return the next rows from ``W x[t]`` and ``x[t - 1]``; the first round is a plain one."""
        if t == 0 or self.gamma == 1.0:
            return mixed
        gamma = mixed.dtype.type(self.gamma)
        return np.asarray(gamma * mixed + (1 - gamma) * previous)

    @property
    def same_messages(self) -> LinearProtocol:
        """Plain gossip: the accelerated messages are an invertible triangular recombination of its own."""
        return Gossip(self.network, self.rounds)
