"""Gossip with a fixed matrix: plain, with fresh noise in every round, and one round of neighbor sums.

.. math:: x^{k+1} = W x^k

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 1.
Gossip with fresh noise in every round is added here.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, Translations, takes_network
from sottovoce.noise.samplers import Agents, Rows
from sottovoce.protocols.base import Nodes, Noise
from sottovoce.protocols.linear import LinearProtocol


class Gossip(LinearProtocol):
    """Plain gossip: in every round each node replaces its row by the weighted mean of its neighborhood.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> gossip = sv.protocols.Gossip(sv.graphs.complete(4), rounds=1)
    >>> gossip.apply(np.array([0.0, 0.0, 0.0, 8.0])).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    name = "gossip"
    gossip_matrix_only = tolerates_dropout = sends_clear_rows = True
    network: Network

    @takes_network
    def __init__(self, network: Network, rounds: int) -> None:
        self.network = network
        self.n = network.n
        self.rounds = _validate.count(rounds, "rounds", minimum=0)
        self.averages = self.averages and network.keeps_mean

    def matrix(self, t: int) -> sparse.csr_array:
        return self.network.W

    @property
    def message_count(self) -> int:
        return 2 * len(self.network.edges) * self.rounds

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        return super().senders(0, observers) if self.rounds else ()

    @property
    def symmetry(self) -> Translations | None:  # type: ignore[override]
        # a protocol derived from this one may mix by another matrix
        return self.network.translations if self.matrix(0) is self.network.W else None

    @property
    def repeats_matrix(self) -> bool:  # type: ignore[override]
        return not self.fresh_std

    def _seen(self, observers: tuple[int, ...], own_noise: bool) -> list[tuple[int, ...]]:
        return [self._seen_in(0, observers, own_noise)] * self.rounds


class FreshNoiseGossip(Gossip):
    """Gossip with a little fresh noise at every node in every round but the last: distance protects again.

    .. math:: y^0 = x + \\mathcal N(0, \\sigma^2), \\qquad y^{t+1} = W y^t + \\mathcal N(0, \\tau^2)

    No noise is added after the last round, where it would protect nothing. ``noise_std`` is the standard
    deviation of the first noise, which is added before the protocol begins.

    Examples
    --------
    One per cent of fresh variance on a path of eight: distance now protects.

    >>> import sottovoce as sv
    >>> view = sv.protocols.FreshNoiseGossip(sv.graphs.path(8), rounds=10, fresh_noise_std=0.1).view(0)
    >>> view.leakage().round(3).tolist()
    [0.0, 1.0, 0.921, 0.616, 0.256, 0.086, 0.022, 0.006]
    """

    name = "fresh-noise"
    fresh_noise, gossip_matrix_only = True, False

    @takes_network
    def __init__(self, network: Network, rounds: int, fresh_noise_std: float, noise_std: float = 1.0) -> None:
        super().__init__(network, rounds)
        self.fresh_noise_std = _validate.non_negative(fresh_noise_std, "fresh_noise_std")
        self.noise_std = _validate.positive(noise_std, "noise_std")
        self.fresh_std = self.fresh_noise_std / self.noise_std

    def scaled(self, noise_std: float) -> FreshNoiseGossip:
        if self.noise_std == noise_std:
            return self
        return FreshNoiseGossip(self.network, self.rounds, self.fresh_std * noise_std, noise_std)

    def advance(
        self, t: int, mixed: Rows, previous: Rows, *, agents: Agents, noise: Noise, step: int
    ) -> Rows:
        """Return the rows after round ``t``, with their fresh noise except after the last round."""
        if not self.fresh_noise_std or t == self.rounds - 1:
            return mixed
        if noise is None:
            raise InvalidInput("This gossip draws fresh noise; pass noise=..., as as_noise(rng).")
        std = self.fresh_noise_std
        return np.asarray(noise.perturb(mixed, agents=agents, step=step, std=std, stream=1 + t))

    def noise_variance(self, variances: np.ndarray) -> np.ndarray:
        """Return the noise variance of each final row: the first noise mixed, and the fresh noise."""
        variance = Gossip(self.network, self.rounds).noise_variance(variances)
        power = np.eye(self.n)
        for _ in range(self.rounds - 1):  # fresh noise passes through one to rounds - 1 more rounds
            power = self.network.W @ power
            variance = variance + self.fresh_noise_std**2 * (power**2).sum(axis=1)
        return variance


class NeighborSum(Gossip):
    """One round in which each node receives its neighbors' rows and adds them up (no own row).

    It is not an averaging protocol; algorithms that penalize disagreement edge by edge (DiNNO) use it.
    """

    name = "neighbor-sum"
    neighbor_sum = True
    averages = mixes = gossip_matrix_only = tolerates_dropout = False

    @takes_network
    def __init__(self, network: Network) -> None:
        super().__init__(network, rounds=1)

    def matrix(self, t: int) -> sparse.csr_array:
        return self.network.adjacency
