"""Randomized gossip: in every tick one edge is drawn and its two ends average, plain or with momentum.

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato", NeurIPS 2022, Algorithm 2 (randomized) and
Remark 1 (accelerated). [2] Even, Berthier, Bach, Flammarion, Gaillard, Hendrikx, Massoulié, Taylor,
"Continuized accelerations of deterministic and stochastic gradient descents, and of gossip algorithms",
NeurIPS 2021. Departures from [1]: an edge tick that is not an edge (the missing mass of the edge
probabilities) is an idle tick, not a redraw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.leakage.trace import AveragePair, Event
from sottovoce.protocols.base import Nodes, Noise
from sottovoce.protocols.linear import LinearProtocol, Recursion, sorted_csr


class Randomized(LinearProtocol):
    """Randomized gossip: in every tick one edge is drawn and its two ends keep their mean.

    Edges are drawn with probability ``2 W_uv / n``, the rest of the mass being an idle tick, or with
    ``intensities="uniform"`` every edge alike. The drawn edges are public, and part of the protocol: what is
    accounted is what runs. Give ``rng`` to draw them, or ``edges``, (ticks, 2) with (-1, -1) for idle ticks.
    """

    name = "randomized"
    network: Network

    @takes_network
    def __init__(
        self,
        network: Network,
        ticks: int,
        rng: np.random.Generator | None = None,
        *,
        edges: ArrayLike | None = None,
        intensities: str = "weights",
    ) -> None:
        self.network = network
        self.n = network.n
        self.rounds = _validate.count(ticks, "ticks", minimum=0)
        self.intensities = edge_intensities(network, intensities)
        if edges is None:
            if rng is None:
                raise InvalidInput("Randomized gossip needs rng=... to draw its edges, or edges=... drawn.")
            picked = np.searchsorted(np.cumsum(self.intensities), rng.random(self.rounds), side="right")
            choices = np.vstack([network.edges, [[-1, -1]]])
            edges = choices[np.minimum(picked, len(network.edges))]
        self.edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
        if len(self.edges) != self.rounds:
            raise InvalidInput(f"edges must hold one row per tick ({self.rounds}), got {len(self.edges)}.")
        network.require_edges(self.edges[self.edges[:, 0] >= 0], "Randomized gossip uses")
        self.edges.setflags(write=False)

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the pair average of tick ``t``, or the identity when idle."""
        u, v = self.edges[t].tolist()
        identity = sparse.eye_array(self.n, format="csr")
        if u < 0:
            return sparse.csr_array(identity)
        places = ([u, u, v, v], [u, v, u, v])
        pair = sparse.csr_array(([-0.5, 0.5, 0.5, -0.5], places), shape=(self.n, self.n))
        return sorted_csr(identity + pair)

    @property
    def message_count(self) -> int:
        return 2 * int((self.edges[:, 0] >= 0).sum())

    def _states(self, state: np.ndarray, noise: Noise = None, step: int = 0) -> Iterator[np.ndarray]:
        return super()._states(state.copy() if self.memory == 1 else state, noise, step)

    def _mix(self, t: int, state: np.ndarray) -> np.ndarray:
        """Average one pair, in place: a tick costs two rows, however many nodes there are."""
        state = state if self.memory == 1 else state.copy()  # the present rows are needed as well
        u, v = self.edges[t]
        if u >= 0:
            half = state.dtype.type(0.5)
            state[u] = state[v] = half * state[u] + half * state[v]
        return state

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        """Return the ends of this tick's edge whose partner observes."""
        chosen = set(_validate.nodes(observers, self.n))
        u, v = self.edges[t].tolist()
        return tuple(sorted(w for w, partner in ((u, v), (v, u)) if partner in chosen)) if u >= 0 else ()

    def _seen_in(self, t: int, observers: tuple[int, ...], own_noise: bool) -> tuple[int, ...]:
        # own rows are needed at the start only; later ones follow from them and the messages
        return super()._seen_in(t, observers, own_noise and t == 0)

    faint = False

    def _events(self, t: int) -> tuple[Event, ...]:
        if self.memory > 1:
            return super()._events(t)
        u, v = self.edges[t].tolist()
        return (AveragePair(u, v),) if u >= 0 else ()


class AcceleratedRandomized(Randomized):
    r"""Randomized gossip with momentum: errors that fall like exp(-theta t), not like exp(-lambda t).

    Besides its row x every node keeps a second one, z, which is never sent. Between two ticks, for a
    time with an exponential distribution, both move towards each other; in a tick the two ends of the drawn
    edge exchange x and

    .. math:: x_u \leftarrow \tfrac12 (x_u + x_v), \qquad z_u \leftarrow z_u - \tfrac g2 (x_u - x_v)

    With L the Laplacian of the intensities, R the largest effective resistance of an edge in it and lambda
    its smallest positive eigenvalue, theta = sqrt(lambda / 2 R) and g = sqrt(2 / lambda R) ([2], with the
    condition numbers 2 / lambda and R); plain randomized gossip has lambda / 2 in place of theta. Ticks,
    edges and times are public, and part of the protocol.

    The ``waits`` before each tick are drawn by ``rng`` by default.
    """

    name = "accelerated-randomized"
    memory = 2  # the rows, and at each node ``z - g x``, which a tick changes by mixed rows alone

    @takes_network
    def __init__(
        self,
        network: Network,
        ticks: int,
        rng: np.random.Generator | None = None,
        *,
        edges: ArrayLike | None = None,
        waits: ArrayLike | None = None,
        intensities: str = "weights",
    ) -> None:
        super().__init__(network, ticks, rng, edges=edges, intensities=intensities)
        if waits is None:
            if rng is None:
                raise InvalidInput("Accelerated gossip needs rng=... to draw its times, or waits=... drawn.")
            waits = rng.exponential(size=self.rounds)
        self.waits = np.array(waits, dtype=np.float64).reshape(-1)
        if len(self.waits) != self.rounds or not (np.isfinite(self.waits).all() and (self.waits >= 0).all()):
            raise InvalidInput(f"waits must hold one time of at least 0 per tick ({self.rounds}).")
        self.waits.setflags(write=False)

    @cached_property
    def momentum(self) -> tuple[float, float]:
        """The pair (theta, g): how fast x and z attract each other, and by how much more z moves than x."""
        return momentum(self.network, self.intensities)

    @property
    def first_memory(self) -> float:  # type: ignore[override]
        """At the start z = x."""
        return 1 - self.momentum[1]

    def _met(self, t: int) -> float:
        """Return the share of the way x and z go to each other before tick ``t + 1``: none at the end."""
        if t + 1 >= self.rounds:
            return 0.0
        return -math.expm1(-2 * self.momentum[0] * self.waits[t + 1]) / 2

    def recursion(self, t: int, real: Callable[[float], float] = float) -> Recursion:
        """Return how x goes on, after this tick and some way towards z, and how ``z - g x`` does."""
        share, g = self._met(t), self.momentum[1]
        of_mixed = (1 - share) * g + share - g * (1 - share + share * g)
        return (
            (real(1 - share + share * g), real(share)),
            (real(of_mixed), 0.0, real(1 - share - g * share)),
        )

    faint = True  # the shares of a short wait: exact arithmetic decides drops


def momentum(network: Network, intensities: np.ndarray) -> tuple[float, float]:
    """Return (theta, g) of accelerated randomized gossip for the intensities of the edges."""
    low, high = network.edges.T
    laplacian = np.zeros((network.n, network.n))
    laplacian[low, high] = laplacian[high, low] = -intensities
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    values, vectors = np.linalg.eigh(laplacian)
    # over an edge, the squared difference of every eigenvector divided by its value
    resistance = ((vectors[low, 1:] - vectors[high, 1:]) ** 2 / values[1:]).sum(axis=1).max()
    return math.sqrt(values[1] / (2 * resistance)), math.sqrt(2 / (values[1] * resistance))


def edge_intensities(network: Network, intensities: str = "weights") -> np.ndarray:
    """Return the probability of every edge in a tick, by its weight or uniform."""
    if _validate.choice(intensities, ("weights", "uniform"), "intensities") == "weights":
        weights = np.asarray(network.W[network.edges[:, 0], network.edges[:, 1]]).ravel()
        return weights * (2 / network.n)
    return np.full(len(network.edges), 1 / max(len(network.edges), 1))
