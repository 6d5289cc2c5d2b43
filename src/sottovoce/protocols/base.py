"""Protocols: who sends which linear combination of rows to whom, round by round.

A protocol is a public object with four readers: the runner executes it (`Protocol.apply`), a peer follows it
(`Protocol.node_state`; not a `Walk`, which averages in one process only), the accountant computes what is
observed (`Protocol.view`), and the attacker solves for the rest (`GaussianView.reconstruct`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sottovoce._hooks import NotebookDisplay
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, Translations
from sottovoce.leakage.view import GaussianView
from sottovoce.noise.samplers import NoiseSource

if TYPE_CHECKING:
    from sottovoce.protocols.linear import NodeState
    from sottovoce.protocols.trees import Tree

Nodes = int | Iterable[int]
Noise = NoiseSource | None  # the source of fresh noise, for protocols that add any


class Protocol(NotebookDisplay, ABC):
    """Which combination of rows every node sends to whom; runner, peer, accountant and attacker read it.

    ``n`` nodes exchange rows in so many ``rounds``; ``name`` is the word of commands and records.

    Examples
    --------
    >>> import sottovoce as sv
    >>> protocol = sv.protocols.Gossip(sv.graphs.ring(4), rounds=2)
    >>> protocol.n, protocol.rounds, protocol.message_count
    (4, 2, 16)
    """

    n: int
    rounds: int
    name: str

    @abstractmethod
    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        """Run the protocol on one row per node and return the rows it ends with.

        ``noise`` is a noise source, needed only by protocols that add fresh noise in a round; ``step``
        numbers the averaging within a longer run so that no noise is drawn twice.
        """

    @abstractmethod
    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees of the noise and the values."""

    @abstractmethod
    def output_view(self, nodes: Nodes) -> GaussianView:
        """Return what an observer learns that sees only the final rows of ``nodes``."""

    @abstractmethod
    def observe(
        self, rows: ArrayLike, observers: Nodes, own_noise: bool = True, noise: Noise = None, step: int = 0
    ) -> np.ndarray:
        """Run the protocol and return what the observers see, in the order of `GaussianView.messages`.

        ``noise`` and ``step`` are those of `apply`: the same two give the messages of the same run.
        """

    @abstractmethod
    def node_state(self, node: int) -> NodeState:
        """Return one node's part in the protocol, for a peer."""

    @property
    @abstractmethod
    def message_count(self) -> int:
        """Number of rows sent in all, over all nodes and rounds."""

    # ---- capabilities: callers read these and never test for a class or a name ------------------------

    # What the class can do; `registry.names_with` selects names by them.
    mixes: bool = True  # the rows come together at a weighted mean; False: another linear combination
    averages: bool = True  # this is the mean itself; an object over weights that do not keep it says False
    reaches_consensus: bool = False  # all nodes end with the exact mean; `blocks`, `shares` are defined
    linear: bool = False  # given by its matrices (`as_linear` narrows the type)
    masked: bool = False  # rows travel under masks; observers see only sums over `blocks`
    token: bool = False  # one token goes from node to node
    fresh_noise: bool = False  # nodes may add fresh noise between the rounds (how much: `fresh_std`)
    gossip_matrix_only: bool = False  # a round multiplies by the gossip matrix of `network`, no more
    neighbor_sum: bool = False  # one round in which each node adds up its neighbors' rows
    tolerates_dropout: bool = False  # two nodes may both skip an exchange, and the others still average
    sends_clear_rows: bool = False  # in the first round every sender sends its row as it is
    knows_coalitions: bool = False  # `blocks` also takes several nodes that pool what they see

    # What this object does.
    adds_noise: bool = False  # whether the protocol itself draws the noise of every contribution (a walk)
    fresh_std: float = 0.0  # std of noise added at every node after each round but the last, over sigma
    memory: int = 1  # rows of state per node: 2 if a node also keeps a private row
    ends_at: int | None = None  # the one node that holds the result; None: every row is one
    tolerate: int | None = None  # how many colluders are certified to see nothing but sums; None: not stated
    network: Network | None = None  # the graph, where it was built on one
    sum_tree: Tree | None = None  # the tree along which rows are added in the clear

    @property
    def matrices_suffice(self) -> bool:
        """Whether the matrices say everything: a linear protocol without memory or fresh noise."""
        return self.linear and self.memory == 1 and not self.fresh_std

    symmetry: Translations | None = None  # moves of the nodes that leave the protocol as it is

    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return the disjoint node sets whose sums or means ``v`` sees, if consensus is reached."""
        raise InvalidInput(
            f"Every step must end in exact consensus, got {self!r}; take a tree, an exchange or a masked sum."
        )

    def shares(self, v: Nodes, noise_std: ArrayLike | None = None) -> np.ndarray:
        """Return (n,) what ``v`` learns of everybody, `view(v).leakage()` in closed form, under consensus.

        Within a block of which only the sum is seen, a user is hidden by the noise of the whole block:
        ``h = s_u^2 / sum of s^2``, with equal noise one over the block's size.
        """
        std = np.ones(self.n) if noise_std is None else np.asarray(noise_std, float).ravel()
        if std.shape != (self.n,) or not (np.isfinite(std) & (std > 0)).all():
            raise InvalidInput(
                "a share is relative to a user's own noise: noise_std must be "
                f"{self.n} positive finite numbers, one per user, got {noise_std!r}."
            )
        variances = np.square(std)
        return np.asarray(variances / block_variances(self.blocks(v), variances))

    def noise_variance(self, variances: np.ndarray) -> np.ndarray:
        """Return (n,) the noise variance of each final row from that of each first row, fresh noise added."""
        return np.asarray((self.apply(np.eye(self.n)) ** 2) @ variances)

    def on_grid(self, spacing: float) -> Protocol:
        """Return the protocol with another grid spacing; itself unless it is `masked`."""
        return self

    def reaching(self, nodes: np.ndarray) -> np.ndarray:
        """Return (n,) bool: whose first rows may be part of what ``nodes`` (a mask) see or end with."""
        return np.ones(self.n, dtype=bool)

    def hides_from(self, size: int) -> bool:
        """Return whether masks leave no ``size`` members anything but the sum of all others."""
        return False

    convex: bool = False  # whether every row that travels is a mean of rows, with no weight below zero

    def assumptions(self, v: Nodes = ()) -> tuple[str, ...]:
        """Return what guarantees about these observers rest on, besides what every averaging rests on."""
        return ()

    def scaled(self, noise_std: float) -> Protocol:
        """Return the protocol with noise of its own in proportion to the rows' noise; itself without any."""
        return self

    def contributions(self, node: int) -> int:
        """Return how often a node's row enters with fresh noise: once, unless a walk comes by more often."""
        return 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, rounds={self.rounds})"


def block_variances(blocks: Iterable[np.ndarray], variances: np.ndarray) -> np.ndarray:
    """Return (n,) the noise variance of the sum each node is part of; infinite for nodes in no block."""
    totals = np.full(len(variances), np.inf)
    for block in blocks:
        totals[block] = math.fsum(variances[block])
    return totals
