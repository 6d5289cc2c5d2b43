"""Learning algorithms as three functions over any gradient, for one hosted agent or for all of them.

``gradient(theta, k)`` maps one row of parameters per hosted agent to one row of clipped gradients; it is
where the data is. Each factory returns the `Algorithm` that a peer runs with one agent and the stacked
runner with all; noise is added where the paper adds it and nowhere else.

References: [1] Cyffers et al., Muffliato, 2022, Algorithm 3. [2] Bayrooti, Gao, Prorok, 2023, Algorithms 1-3
(DP-DSGD, DP-DSGT, DP-DiNNO). [3] Cyffers, Bellet, Upadhyay, 2024 (random walk).
Departures: DSGT starts from y = 0 and a zero gradient (not given in [2]); DiNNO descends (line 15 of [2]'s
Algorithm 3 prints a plus) and sums over the neighbours without the node itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import LinearProtocol
from sottovoce.runners.base import Algorithm

__all__ = ["Handover", "dp_dinno", "dp_dsgd", "dp_dsgt", "exact_consensus_sgd", "muffliato_sgd", "walk_sgd"]

Gradient = Callable[[np.ndarray, int], np.ndarray]


class NoisyGradient(Protocol):
    """What the algorithms need of a gradient: noisy rows at given parameters, in a given step."""

    @property
    def agents(self) -> Sequence[int]: ...

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0, /) -> np.ndarray: ...

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray: ...


class Noisy(NamedTuple):
    """A gradient with its noise: what may leave."""

    gradient: Gradient
    noise: NoiseSource
    agents: Sequence[int]
    std: float

    def __call__(self, theta: np.ndarray, k: int, stream: int = 0) -> np.ndarray:
        """Return the clipped gradient at ``theta`` plus Gaussian noise."""
        clean = self.gradient(theta, k)
        return self.noise.perturb(clean, agents=self.agents, step=k, std=self.std, stream=stream)

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        """Return the noisy gradients of the hosted agents at ``places``, whose rows ``theta`` holds."""
        agents = [self.agents[place] for place in places]
        whole = np.zeros((len(self.agents), theta.shape[1]), theta.dtype)
        whole[list(places)] = theta
        clean = self.gradient(whole, step)[list(places)]
        return self.noise.perturb(clean, agents=agents, step=step, std=self.std, stream=stream)


def exact_consensus_sgd(noisy: NoisyGradient, start: np.ndarray, rate: float) -> Algorithm:
    """Average the noisy gradients exactly, then all take the same step.

    >>> import numpy as np
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> noisy = Noisy(lambda theta, k: theta - 1.0, SimulatedNoise(0), [0], 0.1)
    >>> text = exact_consensus_sgd(noisy, np.zeros((1, 2)), rate=0.5)
    >>> text.update(text.init(), np.array([[1.0, -1.0]]), 0).tolist()
    [[-0.5, 0.5]]
    """
    return Algorithm(
        init=lambda: start,
        message=lambda theta, k: noisy(theta, k),
        update=lambda theta, mean, k: theta - theta.dtype.type(rate) * mean,
        output=lambda theta: theta,
    )


def muffliato_sgd(noisy: NoisyGradient, start: np.ndarray, rate: float) -> Algorithm:
    """Step with the noisy gradient, then gossip the parameters [1]."""
    return Algorithm(
        init=lambda: start,
        message=lambda theta, k: theta - theta.dtype.type(rate) * noisy(theta, k),
        update=lambda theta, mixed, k: mixed,
        output=lambda theta: theta,
    )


def dp_dsgd(noisy: NoisyGradient, start: np.ndarray, rate: float) -> Algorithm:
    """Mix the parameters of one snapshot, then step with the noisy gradient taken at that snapshot [2]."""
    return Algorithm(
        init=lambda: start,
        message=lambda theta, k: theta,
        update=lambda theta, mixed, k: mixed - theta.dtype.type(rate) * noisy(theta, k),
        output=lambda theta: theta,
    )


class Tracking(NamedTuple):
    """Parameters, tracked gradient and the stored noisy gradient of gradient tracking."""

    theta: np.ndarray
    y: np.ndarray
    stored: np.ndarray


def dp_dsgt(noisy: NoisyGradient, start: np.ndarray, rate: float) -> Algorithm:
    """Gradient tracking [2]: a row on the wire is (theta - rate * y, y)."""
    dim = start.shape[1]

    def message(state: Tracking, k: int) -> np.ndarray:
        return np.concatenate([state.theta - start.dtype.type(rate) * state.y, state.y], axis=1)

    def update(state: Tracking, mixed: np.ndarray, k: int) -> Tracking:
        theta, y = mixed[:, :dim], mixed[:, dim:]
        fresh = noisy(theta, k)
        return Tracking(theta, y + fresh - state.stored, fresh)

    zero = np.zeros_like(start)
    return Algorithm(lambda: Tracking(start, zero, zero), message, update, lambda state: state.theta)


class Dual(NamedTuple):
    """Parameters and dual variable of DiNNO."""

    theta: np.ndarray
    y: np.ndarray


def dp_dinno(
    noisy: NoisyGradient,
    start: np.ndarray,
    rate: float,
    *,
    penalty: float,
    inner_steps: int,
    degrees: np.ndarray,
) -> Algorithm:
    """DiNNO [2]: what comes in is the sum of the neighbours' parameters (protocol `NeighbourSum`)."""
    number = start.dtype.type
    degree = degrees.astype(start.dtype)[:, None]
    rho, eta = number(penalty), number(rate)

    def update(state: Dual, total: np.ndarray, k: int) -> Dual:
        theta = state.theta
        y = state.y + rho * (degree * theta - total)
        middle = (degree * theta + total) / number(2)
        psi = theta
        for inner in range(inner_steps):
            slope = noisy(psi, k, inner) + y + number(2) * rho * (degree * psi - middle)
            psi = psi - eta * slope
        return Dual(psi, y)

    zero = np.zeros_like(start)
    return Algorithm(
        lambda: Dual(start, zero), lambda state, k: state.theta, update, lambda state: state.theta
    )


def walk_sgd(noisy: NoisyGradient, start: np.ndarray, rate: float, path: Sequence[int]) -> Algorithm:
    """Random-walk SGD [3]: in step k the holder ``path[k]`` steps and hands over; then all get the result.

    ``noisy.agents`` are the hosted agents; only the holder computes, so only the holder pays.
    """
    place = {agent: row for row, agent in enumerate(noisy.agents)}

    def message(theta: np.ndarray, k: int) -> np.ndarray:
        if k >= len(path) or path[k] not in place:
            return theta
        row = place[path[k]]
        step = noisy.rows(theta[[row]], k, 0, [row])
        moved = theta.copy()
        moved[row] -= theta.dtype.type(rate) * step[0]
        return moved

    return Algorithm(lambda: start, message, lambda theta, got, k: got, lambda theta: theta)


class Handover(LinearProtocol):
    """One round in which ``source`` hands its row to some nodes, who take it over; the others keep theirs.

    >>> import numpy as np
    >>> Handover(3, source=0, to=[2]).apply(np.array([[1.0], [2.0], [3.0]])).ravel().tolist()
    [1.0, 2.0, 1.0]
    """

    name = "handover"

    def __init__(self, n: int, source: int, to: Sequence[int]) -> None:
        self.n, self.rounds = n, 1
        columns = np.arange(n)
        columns[list(to)] = source
        self._matrix = sparse.csr_array((np.ones(n), columns, np.arange(n + 1)), shape=(n, n))

    def matrix(self, t: int) -> Any:
        """Return the identity with the receivers' rows replaced."""
        return self._matrix
