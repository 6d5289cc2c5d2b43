"""Gossip with a fixed matrix: plain, Chebyshev-accelerated, refreshed, and one round of neighbor sums.

.. math:: x^{k+1} = W x^k, \\qquad x^{k+1} = \\gamma W x^k + (1-\\gamma) x^{k-1}

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 1 and equation (1).
Departures from [1]: the accelerated recursion starts with x^1 = W x^0 (the printed start leaves x^{-1}
undefined, and zero there multiplies the mean); refreshed gossip, fresh noise in every round, is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import LinearProtocol, Nodes

__all__ = ["Chebyshev", "FreshNoiseGossip", "Gossip", "NeighborSum", "rounds_for"]


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
    plain_gossip = tolerates_dropout = sends_clear_rows = True
    network: Network

    @takes_network
    def __init__(self, network: Network, rounds: int) -> None:
        self.network = network
        self.n = network.n
        self.rounds = _validate.count(rounds, "rounds", minimum=0)

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the gossip matrix, the same in every round."""
        return self.network.W

    @property
    def messages(self) -> int:
        """Two rows per edge and round."""
        return 2 * len(self.network.edges) * self.rounds

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        """Return the neighbors of the observers, sorted."""
        return self._heard(_validate.nodes(observers, self.n))

    @property
    def symmetry(self) -> Callable[[int], np.ndarray] | None:
        """The symmetry that the network claims."""
        return self.network.symmetry

    def _heard(self, observers: tuple[int, ...]) -> tuple[int, ...]:
        return super().senders(0, observers) if self.rounds else ()

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees, by the block Krylov recursion."""
        return self._view_of_one_matrix(_validate.nodes(observers, self.n), own_noise)

    def _seen(self, observers: tuple[int, ...], own_noise: bool) -> tuple[tuple[int, int], ...]:
        own = set(observers) if own_noise else set()
        everyone = sorted(own | set(self._heard(observers)))
        return tuple((t, w) for t in range(self.rounds) for w in everyone)


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
    plain_gossip = tolerates_dropout = False

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
        return 1.0 if self.n == 1 or gap > 1 - 1e-12 else chebyshev_gamma(gap)

    def advance(
        self,
        t: int,
        mixed: np.ndarray,
        previous: np.ndarray,
        *,
        agents: Any,
        noise: Any = None,
        step: int = 0,
    ) -> np.ndarray:
        """Return the next rows from ``W x[t]`` and ``x[t - 1]``; the first round is a plain one."""
        if t == 0 or self.gamma == 1.0:
            return mixed
        gamma = mixed.dtype.type(self.gamma)
        return np.asarray(gamma * mixed + (1 - gamma) * previous)

    @property
    def same_messages(self) -> LinearProtocol:
        """Plain gossip: the accelerated messages are an invertible triangular recombination of its own."""
        return Gossip(self.network, self.rounds)


class FreshNoiseGossip(Gossip):
    """Gossip with a little fresh noise at every node in every round, which restores pairwise decay.

    .. math:: y^0 = x + \\mathcal N(0, \\sigma^2), \\qquad y^{t+1} = W y^t + \\mathcal N(0, \\tau^2)

    No noise is added after the last round, where it would protect nothing.

    Parameters
    ----------
    network, rounds : as in `Gossip`.
    tau : standard deviation of the fresh noise.
    sigma : standard deviation of the first noise, which is added before the protocol begins.

    Examples
    --------
    One per cent of fresh variance on a path of eight: distance now protects.

    >>> import sottovoce as sv
    >>> view = sv.protocols.FreshNoiseGossip(sv.graphs.path(8), rounds=10, tau=0.1).view(0)
    >>> view.leakage().round(3).tolist()
    [0.0, 1.0, 0.921, 0.616, 0.256, 0.086, 0.022, 0.006]
    """

    name = "refreshed"
    fresh_noise, plain_gossip = True, False

    @takes_network
    def __init__(self, network: Network, rounds: int, tau: float, sigma: float = 1.0) -> None:
        super().__init__(network, rounds)
        self.tau = _validate.non_negative(tau, "tau")
        self.sigma = _validate.positive(sigma, "sigma")
        self.fresh_std = self.tau / self.sigma

    def scaled(self, noise_std: float) -> FreshNoiseGossip:
        """Return refreshed gossip with its fresh noise in proportion to the first noise."""
        if self.sigma == noise_std:
            return self
        return FreshNoiseGossip(self.network, self.rounds, tau=self.fresh_std * noise_std, sigma=noise_std)

    def advance(
        self,
        t: int,
        mixed: np.ndarray,
        previous: np.ndarray,
        *,
        agents: Any,
        noise: Any = None,
        step: int = 0,
    ) -> np.ndarray:
        """Return the rows after round ``t``, with their fresh noise except after the last round."""
        if not self.tau or t == self.rounds - 1:
            return mixed
        if noise is None:
            raise InvalidInput(
                "Refreshed gossip draws fresh noise; pass noise=..., for example as_noise(rng)."
            )
        return np.asarray(noise.perturb(mixed, agents=agents, step=step, std=self.tau, stream=1 + t))

    def noise_variance(self, variances: np.ndarray) -> np.ndarray:
        """Return the noise variance of each final row: the first noise mixed, and the fresh noise."""
        variance = Gossip(self.network, self.rounds).noise_variance(variances)
        power = np.eye(self.n)
        for _ in range(self.rounds - 1):  # fresh noise passes through one to rounds - 1 more rounds
            power = self.network.W @ power
            variance = variance + self.tau**2 * (power**2).sum(axis=1)
        return variance

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees; coordinates are (round, node) noises."""
        if not self.tau:
            return super().view(observers, own_noise)
        return LinearProtocol.view(self, observers, own_noise)


class NeighborSum(Gossip):
    """One round in which each node receives its neighbors' rows and adds them up (no own row).

    It is not an averaging protocol; algorithms that penalize disagreement edge by edge (DiNNO) use it.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> sv.protocols.NeighborSum(sv.graphs.path(3)).apply(np.array([1.0, 2.0, 4.0])).ravel().tolist()
    [2.0, 5.0, 2.0]
    """

    name = "neighbor-sum"
    neighbor_sum = True
    averages = plain_gossip = tolerates_dropout = False

    @takes_network
    def __init__(self, network: Network) -> None:
        super().__init__(network, rounds=1)

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the adjacency matrix."""
        return self.network.adjacency


def chebyshev_gamma(gap: float) -> float:
    """Return Muffliato's momentum for a spectral gap in (0, 1]."""
    _validate.probability(gap, "spectral gap", zero=False)
    return 2 / (1 + math.sqrt(gap * (1 - gap / 4)))


@takes_network
def rounds_for(
    network: Network,
    *,
    noise_std: float = 1.0,
    variance: float = 0.25,
    kind: str = "synchronous",
    dim: int = 1,
) -> int:
    """Return the theoretical number of rounds after which gossip noise, not disagreement, dominates.

    Parameters
    ----------
    network : the graph and its weights.
    noise_std : sigma, in the unit of the values.
    variance : a public bound on the mean squared distance of the values from their mean (never computed
        from private data); 1/4 suits values in [0, 1].
    kind : ``"synchronous"`` (accelerated; Muffliato Theorem 2), ``"randomized"`` (Theorem 3, ticks),
        ``"accelerated-randomized"`` (Remark 1, ticks), or ``"descent"`` (Theorem 5, rounds within a gradient
        step; ``variance`` is then the gradients').
    dim : dimension of the rows (used by ``"descent"``).

    Examples
    --------
    >>> import sottovoce as sv
    >>> sv.protocols.rounds_for(sv.graphs.hypercube(11)), sv.protocols.rounds_for(sv.graphs.path(8))
    (19, 10)
    """
    sigma2 = _validate.positive(noise_std, "noise_std") ** 2
    spread = _validate.non_negative(variance, "variance")
    if network.n == 1:
        return 0
    gap = network.spectral_gap
    wanted = math.log(network.n / sigma2 * max(sigma2, spread))
    if kind == "synchronous":
        length = wanted / math.sqrt(gap)
    elif kind == "randomized":
        length = wanted * network.n / (1 - network.second_eigenvalue)
    elif kind == "accelerated-randomized":
        from sottovoce.protocols.time_varying import edge_intensities, momentum

        length = wanted / momentum(network, edge_intensities(network))[0]
    elif kind == "descent":
        length = math.log(max(network.n, spread / (dim * sigma2))) / math.sqrt(gap)
    else:
        raise InvalidInput(
            f"kind must be synchronous, randomized, accelerated-randomized or descent, got {kind!r}."
        )
    return max(1, math.ceil(length - 1e-9))
