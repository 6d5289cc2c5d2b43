r"""Correlated noise behind the one noise interface: over time at one node, and between neighbors.

.. math:: \text{MAFALDA: } \mathrm{sens} \sum_{s \le t} (C^{-1})_{ts}\, \xi_u^s, \qquad
          \text{DECOR: } \bar z_u + \sum_{v \sim u} z_{uv}, \quad z_{uv} = -z_{vu}

Both wrap a simulated source. What they add in a step is a function of the source's key, the nodes and the
step, so an algorithm's state holds no past noise, and an interrupted run continues with the same bytes.
Neither is protective: a protective source forgets past draws and gives each end of an edge its own.
`mafalda` finds the matrix C for a network (Bellet et al.).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.noise.samplers import Agents, NoiseSource, Rows, SimulationSource, Std

Participation = Sequence[Sequence[int]]
_TOLERANCE = 1e-10  # relative gain below which the search for a correlation ends


def _simulated(source: NoiseSource, why: str) -> NoiseSource:
    if source.protective:
        raise InvalidInput(f"{why}: simulate it with a numpy Generator.")
    return source


class TimeCorrelatedNoise(SimulationSource):
    """Noise of every node correlated over the steps, so that later steps cancel errors of earlier ones.

    Guarantees
    ----------
    With ``std`` = z times the clip in every step, all steps together are one Gaussian mechanism of standard
    deviation ``std``, if all fresh draws stay secret, past ones too.
    """

    def __init__(self, source: NoiseSource, correlation: TimeCorrelation) -> None:
        self.source = _simulated(source, "Noise correlated over time needs the draws of past steps")
        self.sens, self.inverse = correlation.sens, correlation.inverse
        # fresh draws are kept only because drawing them again in every later step takes time
        self._fresh: dict[tuple[int, int, tuple[int, ...], int], np.ndarray] = {}

    def __repr__(self) -> str:
        return f"TimeCorrelatedNoise({self.source!r}, steps={len(self.inverse)})"

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return ``values`` plus std * sens * (row ``step`` of C^-1 on the fresh draws so far)."""
        if not 0 <= step < len(self.inverse):
            raise InvalidInput(f"the noise is correlated over {len(self.inverse)} steps, got step {step}.")
        numbers = tuple(int(a) for a in agents)
        scale = np.broadcast_to(np.asarray(std, float) * self.sens, (len(numbers),))[:, None]
        zeros = np.zeros(np.shape(values))
        mixed = zeros.copy()
        for s, weight in enumerate(self.inverse[step, : step + 1]):
            key = (s, stream, numbers, values.shape[1])
            if key not in self._fresh:
                self._fresh[key] = self.source.perturb(zeros, agents=numbers, step=s, std=1.0, stream=stream)
            mixed += weight * self._fresh[key]
        return np.asarray(values + (scale * mixed).astype(values.dtype))


class PairSharedNoise(SimulationSource):
    """Each node's own noise, and for every edge one draw that one end adds and the other subtracts.

    In a simulation one source knows all seeds; between machines each pair's seed comes from a key agreement,
    and both ends call the same function. ``nodes`` maps the numbers that key noise to nodes; None: they are
    the nodes.
    """

    def __init__(
        self, source: NoiseSource, network: Network, pair_std: float, nodes: Mapping[int, int] | None = None
    ) -> None:
        self.source = _simulated(source, "Shared noise must be the same at both ends of an edge")
        self.network, self.pair_std, self.nodes = network, pair_std, nodes

    def __repr__(self) -> str:
        return f"PairSharedNoise({self.source!r}, {self.network.name}, pair_std={self.pair_std:g})"

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return ``values`` with each node's own noise of ``std``, and what it shares along its edges."""
        numbers = [int(a) for a in agents]
        own = self.source.perturb(values, agents=numbers, step=step, std=std, stream=2 * stream)
        here = [number if self.nodes is None else self.nodes[number] for number in numbers]
        return np.asarray(own + self._shared(here, values.shape[1], step, 2 * stream + 1).astype(own.dtype))

    def _shared(self, here: list[int], dim: int, step: int, stream: int) -> np.ndarray:
        total = np.zeros((len(here), dim))
        rows = np.full(self.network.n, -1)
        rows[here] = np.arange(len(here))
        ends = rows[self.network.edges]
        mine = np.flatnonzero((ends >= 0).any(axis=1))
        if not self.pair_std or not len(mine):
            return total
        zeros = np.zeros((len(mine), dim))
        drawn = self.source.perturb(zeros, agents=mine, step=step, std=self.pair_std, stream=stream)
        for side, sign in ((0, 1.0), (1, -1.0)):
            at = ends[mine, side]
            np.add.at(total, at[at >= 0], sign * drawn[at >= 0])
        return total


# ---- the matrix of noise correlated over time ------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TimeCorrelation:
    """A lower triangular C (steps, steps) with its sensitivity and the error it gives.

    ``inverse @ xi`` is the noise of all steps; ``error`` is sens^2 tr(M X^-1) with X = C^T C.
    """

    C: np.ndarray
    sens: float
    error: float

    @property
    def inverse(self) -> np.ndarray:
        """C^-1, lower triangular: row t mixes the fresh noises of steps 0..t."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.C, np.eye(len(self.C)), lower=True))


def mafalda(
    network: Network | None, steps: int, participation: Participation | None = None
) -> TimeCorrelation:
    """Return the noise correlation over ``steps`` with the least error; None is a single node.

    ``participation`` lists the disjoint sets of steps in which one user may take part; None: in one step.

    Guarantees
    ----------
    The sensitivity belongs to the returned C for the given participation, whatever the search finds: a poor
    search costs accuracy, never privacy.
    """
    M = mafalda_gram(network, steps)
    if participation is None:
        X = _single_participation(M)
    else:
        X = _several_participations(M, _checked(participation, len(M)))
    # lower triangular C with X = C^T C: Cholesky of the flipped matrix, flipped back
    return time_correlation(np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1].copy(), M, participation)


def mafalda_gram(network: Network | None, steps: int) -> np.ndarray:
    """Return M (steps, steps), how the noise of two steps adds up in the error; None is a single node."""
    T = _validate.count(steps, "steps")
    values = np.ones(1) if network is None else np.linalg.eigvalsh(network.W.toarray())
    powers = np.array([float(np.sum(values**k)) for k in range(2 * T + 1)])  # tr W^k
    M = np.empty((T, T))
    for s in range(T):
        for r in range(s, T):
            t = np.arange(r, T)
            M[s, r] = M[r, s] = powers[2 * t - s - r + 2].sum()
    return M


def time_correlation(
    C: np.ndarray, M: np.ndarray, participation: Participation | None = None
) -> TimeCorrelation:
    """Return sensitivity and error of any lower triangular C."""
    C = np.array(C, dtype=np.float64)
    if C.ndim != 2 or C.shape[0] != C.shape[1] or np.any(np.triu(C, 1)) or not np.all(np.diagonal(C)):
        raise InvalidInput("C must be square, lower triangular and have no zero on its diagonal.")
    X = C.T @ C
    sets = [[t] for t in range(len(C))] if participation is None else participation
    squared = max(float(np.abs(X[np.ix_(s, s)]).sum()) for s in sets)
    C.setflags(write=False)
    return TimeCorrelation(C, math.sqrt(squared), squared * float(np.trace(np.linalg.solve(X, M))))


def _single_participation(M: np.ndarray) -> np.ndarray:
    """Minimize tr(M X^-1) with diag X = 1: v <- diag((D M D)^(1/2)), D = diag(v)^(1/2)."""
    v = np.sqrt(np.diagonal(M))
    for _ in range(10_000):
        updated = np.diagonal(_root(np.sqrt(v)[:, None] * M * np.sqrt(v))).copy()
        done = np.max(np.abs(updated - v)) <= _TOLERANCE * np.max(v)
        v = updated
        if done:
            break
    scale = 1 / np.sqrt(v)
    X = scale[:, None] * _root(np.sqrt(v)[:, None] * M * np.sqrt(v)) * scale
    return X / np.sqrt(np.outer(np.diagonal(X), np.diagonal(X)))


def _several_participations(M: np.ndarray, sets: list[list[int]]) -> np.ndarray:
    """Minimize tr(M X^-1) with sum over each set of |X_st| at most 1, by projected gradient."""
    X = np.zeros(M.shape)
    for members in sets:
        X[members, members] = 1 / len(members)
    absent = np.diagonal(X) == 0
    X[absent, absent] = 1.0  # a step without participants is free
    value = float(np.trace(np.linalg.solve(X, M)))
    steepest = float(np.abs(np.linalg.solve(X, np.linalg.solve(X, M).T)).max())
    step = 1e-3 * float(np.max(np.diagonal(X))) / steepest
    for _ in range(20_000):
        inverse = np.linalg.inv(X)
        gradient = inverse @ M @ inverse
        while True:
            moved = _project(X + step * gradient, sets)
            definite = np.linalg.eigvalsh(moved)[0] > 0
            reached = float(np.trace(np.linalg.solve(moved, M))) if definite else math.inf
            if reached <= value:
                break
            step /= 2
            if step < 1e-300:
                return X
        gain = value - reached
        X, value = moved, reached
        step *= 1.5
        if gain <= _TOLERANCE * value:
            break
    return X


def _project(X: np.ndarray, sets: list[list[int]]) -> np.ndarray:
    """Project the entries of each set's block on the l1 ball of radius 1."""
    X = (X + X.T) / 2
    for members in sets:
        block = X[np.ix_(members, members)]
        size = np.abs(block).ravel()
        if size.sum() > 1:
            ordered = np.sort(size)[::-1]
            excess = (np.cumsum(ordered) - 1) / np.arange(1, size.size + 1)
            threshold = excess[np.flatnonzero(ordered > excess)[-1]]
            block = np.sign(block) * np.maximum(np.abs(block) - threshold, 0)
        X[np.ix_(members, members)] = block
    return X


def _checked(participation: Participation, steps: int) -> list[list[int]]:
    sets = [list(_validate.nodes(s, steps, "participation")) for s in participation]
    if not sets or sum(map(len, sets)) != len(set().union(*sets)):
        raise InvalidInput("participation must list disjoint sets of steps, for example [[0, 4], [1, 5]].")
    return sets


def _root(A: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(A)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
