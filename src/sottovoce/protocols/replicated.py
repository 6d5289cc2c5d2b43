"""Many copies of a network at once, as audits and sweeps train them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import Nodes, NodeState, Noise, Protocol


class Replicated(Protocol):
    """The same protocol run by many copies of a network at once: rows are (copies x nodes).

    A copy that holds a row with NaN or infinity ends with NaN everywhere; the other copies go on.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> two = Replicated(sv.protocols.HypercubeExchange(2), copies=2)
    >>> two.apply(np.array([[1.0], [3.0], [10.0], [20.0]])).ravel().tolist()
    [2.0, 2.0, 15.0, 15.0]
    """

    def __init__(self, protocol: Protocol, copies: int) -> None:
        self.protocol, self.copies = protocol, _validate.count(copies, "copies")
        self.n, self.rounds = protocol.n * self.copies, protocol.rounds
        self.name = protocol.name

    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        """Run every copy."""
        stacked = np.asarray(rows).reshape(self.copies, self.protocol.n, -1)
        broken = ~np.isfinite(stacked).all(axis=(1, 2))
        if broken.any():
            stacked = np.where(broken[:, None, None], np.zeros((), stacked.dtype), stacked)
        across = stacked.transpose(1, 0, 2).reshape(self.protocol.n, -1)
        mixed = np.asarray(self.protocol.apply(np.ascontiguousarray(across), noise, step))
        out = mixed.reshape(self.protocol.n, self.copies, -1).transpose(1, 0, 2)
        if broken.any():
            out = np.where(broken[:, None, None], np.asarray(np.nan, out.dtype), out)
        return np.ascontiguousarray(out).reshape(self.n, -1)

    def observe(
        self, rows: ArrayLike, observers: Nodes, own_noise: bool = True, noise: Noise = None, step: int = 0
    ) -> np.ndarray:
        """Return what the observers of every copy see, ``(messages, copies, dim)``."""
        stacked = np.asarray(rows).reshape(self.copies, self.protocol.n, -1)
        across = stacked.transpose(1, 0, 2).reshape(self.protocol.n, -1)
        seen = self.protocol.observe(across, observers, own_noise, noise, step)
        return seen.reshape(len(seen), self.copies, -1)

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return the view of one copy."""
        return self.protocol.view(observers, own_noise)

    def output_view(self, nodes: Nodes) -> GaussianView:
        """Return what the final rows of one copy tell."""
        return self.protocol.output_view(nodes)

    def local(self, node: int) -> NodeState:
        """Return the state machine of a node of one copy."""
        return self.protocol.local(node % self.protocol.n)

    @property
    def messages(self) -> int:
        """Rows sent by all copies."""
        return self.copies * self.protocol.messages
