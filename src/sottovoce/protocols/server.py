"""One server that gathers everybody's row and hands the mean back: the protocol of federations."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.protocols.base import Noise
from sottovoce.protocols.linear import LinearProtocol


class Server(LinearProtocol):
    """Rows go up to a server, which is no node, and their mean comes down to all.

    As a linear protocol it is treated as if the server sent every row to every client.
    What a secure sum hides is stated by the observation model of the plan.
    """

    name = "server"

    def __init__(self, n: int) -> None:
        self.n, self.rounds = _validate.count(n, "the number of clients"), 1

    @cached_property
    def _mean(self) -> sparse.csr_array:
        return sparse.csr_array(np.full((self.n, self.n), 1 / self.n))

    def matrix(self, t: int) -> sparse.csr_array:
        return self._mean

    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        """Return the mean of the rows, as often as there are clients."""
        values = _validate.rows(rows, self.n)
        mean = values.sum(axis=0, keepdims=True) / values.dtype.type(self.n)
        return np.repeat(mean, self.n, axis=0)

    @property
    def message_count(self) -> int:
        return 2 * self.n
