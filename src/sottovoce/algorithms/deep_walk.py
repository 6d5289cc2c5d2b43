"""Random-walk SGD for networks: a token with the model visits agents along the edges.

.. math:: \\theta^{k+1} = \\theta^k - \\eta_k \\tilde G_{v_k}(\\theta^k), \\quad v_{k+1} \\sim W_{v_k, \\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially Private Decentralized Learning with Random Walks",
ICML 2024.
Departures from [1]: lots are Poisson and clipped record by record; an agent pays for its own visits, whose
number is that of the public path; only the local guarantee is claimed for networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from sottovoce.algorithms.dp_dsgd import NetworkPlan
from sottovoce.objectives.lots import NoisyGradients
from sottovoce.protocols import LinearProtocol, Protocol, draw_path
from sottovoce.runners import Algorithm

__all__ = ["DeepWalk", "Hop", "deep_walk"]


@dataclass(frozen=True, repr=False)
class DeepWalk(NetworkPlan):
    """Random-walk SGD on networks; the path is drawn from a public seed.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> from sottovoce.objectives.nets import NetObjective
    >>> plan = DeepWalk(NetObjective(torch.nn.Linear(2, 2)), [500] * 4, 10, noise_multiplier=2.0,
    ...                 network=sv.graphs.ring(4))
    >>> sum(plan.releases(i) for i in range(4))
    10
    """

    path_seed: int = 0
    name: str = field(default="walk-sgd-net", init=False)
    uses_optimiser: ClassVar[bool] = False

    @cached_property
    def path(self) -> np.ndarray:
        """The holder of the token at every step."""
        return draw_path(self.network, self.steps, np.random.default_rng(self.path_seed))

    def releases(self, agent: int, steps: int | None = None) -> int:
        """Return how often the token visits this agent in the first ``steps`` steps, or in all."""
        return int((self.path[:steps] == agent).sum())

    def schedule(self) -> Callable[[int], Protocol]:
        """Return, per step, the hop of the token."""

        def hop(k: int) -> Protocol:
            after = self.path[k + 1] if k + 1 < self.steps else self.path[k]
            return Hop(self.n, int(self.path[k]), int(after))

        return hop

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions of random-walk SGD."""
        return deep_walk(gradients, theta, self.path, lambda k: self.learning_rate(k, self.steps))


class Hop(LinearProtocol):
    """One message: ``target`` takes over the row of ``source``.

    Examples
    --------
    >>> Hop(3, 0, 2).apply(np.array([[1.0], [2.0], [3.0]])).ravel().tolist()
    [1.0, 2.0, 1.0]
    """

    name = "hop"

    def __init__(self, n: int, source: int, target: int) -> None:
        self.n, self.rounds = n, 1
        columns = np.arange(n)
        columns[target] = source
        self._matrix = sparse.csr_array((np.ones(n), columns, np.arange(n + 1)), shape=(n, n))

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the hop."""
        return self._matrix


class State(NamedTuple):
    """The model each agent saw last, and where the token is."""

    theta: np.ndarray
    holder: np.ndarray


def deep_walk(
    gradients: NoisyGradients, theta: np.ndarray, path: np.ndarray, rate: Callable[[int], float]
) -> Algorithm:
    """Return the three functions; the output of every agent is the token's last model.

    Examples
    --------
    >>> text = deep_walk(None, np.ones((2, 1)), np.array([0, 1]), lambda k: 0.5)
    >>> text.init().theta.tolist()
    [[1.0], [1.0]]
    """
    places = {agent: i for i, agent in enumerate(getattr(gradients, "agents", ()))}

    def init():  # type: ignore[no-untyped-def]
        return State(theta, np.asarray(path[0]))

    def message(state, k):  # type: ignore[no-untyped-def]
        place = places.get(int(path[k]))
        if place is None:
            return state.theta
        rows = state.theta.copy()
        gradient = gradients.rows(rows[[place]], k, 0, [place])
        rows[[place]] -= rows.dtype.type(rate(k)) * gradient
        return rows

    def update(state, received, k):  # type: ignore[no-untyped-def]
        after = path[k + 1] if k + 1 < len(path) else path[k]
        return State(received, np.asarray(after))

    def output(state):  # type: ignore[no-untyped-def]
        place = places.get(int(state.holder))
        return state.theta if place is None else np.repeat(state.theta[[place]], len(state.theta), axis=0)

    return Algorithm(init, message, update, output)
