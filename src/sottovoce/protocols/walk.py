"""A token that walks along the edges and gathers a noisy contribution from every node it visits.

References: Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
2024. Here the walk carries a running sum (averaging); random-walk SGD draws its path in the same way, and
its accountant is in `sottovoce.accounting.observation.random_walk`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.leakage.span import Span
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import Nodes, Noise, Protocol
from sottovoce.protocols.linear import LinearProtocol, NodeState, row_copies


class Walk(Protocol):
    """Averaging by a random walk: the holder adds its row with fresh noise and passes the sum on.

    The next holder is drawn from the gossip matrix, ``W[holder, :]``; staying is a hop without a message.
    The path is public in the view accounted here (it does not depend on data), so the guarantee also
    holds when senders are visible. Each contribution carries fresh noise; a user visited several times
    contributes several times and pays for each.

    The path of so many ``steps`` is drawn by ``rng``, or given as the holder of every step. ``std`` is the
    standard deviation of the fresh noise of one contribution, which `apply` draws from its noise source;
    ``final_public`` broadcasts the last sum, so that every node sees it.

    Examples
    --------
    The token goes 0 - 1 - 2 - 1: node 0 sees nothing after its own contribution, node 2 sees one sum.

    >>> import numpy as np, sottovoce as sv
    >>> walk = sv.protocols.Walk(sv.graphs.path(3), 4, path=[0, 1, 2, 1])
    >>> walk.view(2).leakage().round(9).tolist(), walk.view(0).leakage().tolist()
    ([0.5, 0.5, 0.0], [0.0, 0.0, 0.0])
    """

    name = "walk"
    token = adds_noise = True
    network: Network

    @takes_network
    def __init__(
        self,
        network: Network,
        steps: int,
        rng: np.random.Generator | None = None,
        *,
        path: ArrayLike | None = None,
        std: float = 0.0,
        final_public: bool = False,
    ) -> None:
        self.network, self.n = network, network.n
        self.rounds = _validate.count(steps, "steps")
        self.averages = network.keeps_mean  # else the token is at some nodes more often than at others
        self.std = _validate.non_negative(std, "std")
        self.final_public = final_public
        if path is None:
            if rng is None:
                raise InvalidInput("A walk needs rng=... to draw its path, or path=... drawn.")
            path = draw_path(network, self.rounds, rng)
        self.path = _checked_path(np.array(path, dtype=np.int64), network, self.rounds)

    @property
    def ends_at(self) -> int:  # type: ignore[override]
        """The last holder: only its mean is one of all contributions."""
        return int(self.path[-1])

    def scaled(self, noise_std: float) -> Walk:
        """Return the same walk whose contributions carry this noise."""
        if self.std == noise_std:
            return self
        return Walk(self.network, self.rounds, path=self.path, std=noise_std, final_public=self.final_public)

    def contributions(self, node: int) -> int:
        return int(np.count_nonzero(self.path == node))

    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        """Return, per node, the running mean it held last; the final mean everywhere when it is public.

        A node the token never reached knows nothing: its row is zero, never the raw row it came with.
        """
        values = _validate.rows(rows, self.n)
        sums = self._sums(values, noise, step)
        out = np.zeros_like(values)
        for t, holder in enumerate(self.path):
            out[holder] = sums[t] / values.dtype.type(t + 1)
        if self.final_public:
            out[:] = sums[-1] / values.dtype.type(self.rounds)
        return out

    def _sums(self, values: np.ndarray, noise: Noise, step: int) -> np.ndarray:
        if not self.std:
            return np.cumsum(values[self.path], axis=0)
        if noise is None:
            carried = f"Contributions to this walk carry fresh noise of {self.std:g}"
            raise InvalidInput(f"{carried}; pass noise=..., for example as_noise(rng).")
        contributions = [
            noise.perturb(values[[v]], agents=[int(v)], step=step, std=self.std, stream=1 + t)
            for t, v in enumerate(self.path)
        ]
        return np.cumsum(np.concatenate(contributions), axis=0)

    @property
    def message_count(self) -> int:
        """Hops between different nodes, and the broadcast of a public result."""
        hops = int((self.path[1:] != self.path[:-1]).sum())
        return hops + (self.n - 1 if self.final_public else 0)

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees: the sum of the contributions between two of its visits.

        The view has one coordinate per contribution, and no contribution is in two of these sums. The
        observers always know their own noise, because a holder adds it itself.
        """
        chosen = _validate.nodes(observers, self.n)
        own = np.isin(self.path, chosen)
        ends = [t for t in range(1, self.rounds) if own[t] and not own[t - 1]]
        if self.final_public and not own[-1]:
            ends.append(self.rounds)
        basis = _stretches([0, *ends], ~own)
        messages = tuple((end, int(self.path[end - 1])) for end in ends)
        return GaussianView(self.n, chosen, Span(basis), np.where(own, -1, self.path), messages)

    def output_view(self, nodes: Nodes) -> GaussianView:
        chosen = _validate.nodes(nodes, self.n, "nodes")
        last = {int(v): t + 1 for t, v in enumerate(self.path)}
        ends = {self.rounds} if self.final_public else {last[v] for v in chosen if v in last}
        columns = _stretches([0, *sorted(ends)], np.ones(self.rounds))
        return GaussianView(self.n, (), Span(columns), self.path, own_noise=False)

    def observe(
        self, rows: ArrayLike, observers: Nodes, own_noise: bool = True, noise: Noise = None, step: int = 0
    ) -> np.ndarray:
        """Return the sums that reach the observers, in the order of `GaussianView.messages`."""
        values = _validate.rows(rows, self.n)
        sums = self._sums(values, noise, step)
        messages = self.view(observers).messages
        return np.array([sums[t - 1] for t, _ in messages]).reshape(len(messages), values.shape[1])

    def node_state(self, node: int) -> NodeState:
        """Refuse: agreements do not take an average by a walk either."""
        raise InvalidInput(
            "An average by a walk gathers fresh noise at every visit and runs in one process; peers take "
            "masked, tree or gossip."
        )


def _stretches(ends: Sequence[int], counted: np.ndarray) -> np.ndarray:
    """Return (steps, stretches) orthonormal columns: the sum of what counts from one end to the next."""
    basis = np.zeros((len(counted), len(ends) - 1))
    for j, (start, end) in enumerate(itertools.pairwise(ends)):
        basis[start:end, j] = counted[start:end]
    return basis / np.linalg.norm(basis, axis=0)


@takes_network
def draw_path(network: Network, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the holders of a walk with transition matrix ``W``; the first is uniform."""
    W = network.W
    path = np.empty(_validate.count(steps, "steps"), dtype=np.int64)
    path[0] = rng.integers(network.n)
    draws = rng.random(len(path))
    for t in range(1, len(path)):
        low, high = W.indptr[path[t - 1]], W.indptr[path[t - 1] + 1]
        place = int(np.searchsorted(np.cumsum(W.data[low:high]), draws[t], side="right"))
        path[t] = W.indices[low + min(place, high - low - 1)]
    return path


def _checked_path(path: np.ndarray, network: Network, steps: int) -> np.ndarray:
    if path.shape != (steps,) or (path < 0).any() or (path >= network.n).any():
        raise InvalidInput(f"path must hold {steps} nodes from 0 to {network.n - 1}, got shape {path.shape}.")
    hops = np.column_stack([path[:-1], path[1:]])
    network.require_edges(hops[hops[:, 0] != hops[:, 1]], "The walk uses")
    path.setflags(write=False)
    return path


class TokenPass(LinearProtocol):
    """One round in which ``source`` hands its row to some nodes, who take it over; the others keep theirs."""

    name = "handover"
    averages = mixes = False

    def __init__(self, n: int, source: int, to: Sequence[int]) -> None:
        self.n, self.rounds = n, 1
        sources = np.arange(n)
        sources[list(to)] = source
        self._matrices = [row_copies(sources)]


class Broadcast(LinearProtocol):
    """The row of ``source`` reaches everybody along edges of the network, by a tree of shortest paths."""

    name = "spread"
    averages = mixes = False

    def __init__(self, network: Network, source: int) -> None:
        self.n = network.n
        distance = network.distances_from(source)
        self.rounds = max(1, int(distance.max()))
        self._matrices = []  # the rows of each layer are replaced by their parents'
        for level in range(1, self.rounds + 1):
            sources = np.arange(self.n)
            for v in np.flatnonzero(distance == level).tolist():
                around = network.neighbors(v)
                sources[v] = around[distance[around] == level - 1].min()
            self._matrices.append(row_copies(sources))
