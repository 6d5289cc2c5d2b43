r"""Matrices of noise that is correlated over the steps of a run (MAFALDA, Bellet et al.).

`mafalda` finds the lower triangular matrix C for a network; `TimeCorrelation` holds it with its sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network

Participation = Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class TimeCorrelation:
    """A lower triangular C (steps, steps) with its sensitivity and the error it gives.

    ``inverse @ xi`` is the noise of all steps; ``error`` is sens^2 tr(M X^-1).
    """

    C: np.ndarray
    sens: float
    error: float

    @property
    def X(self) -> np.ndarray:
        """C^T C."""
        return self.C.T @ self.C

    @property
    def inverse(self) -> np.ndarray:
        """C^-1, lower triangular: row t mixes the fresh noises of steps 0..t."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.C, np.eye(len(self.C)), lower=True))


@takes_network
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


@takes_network
def mafalda(
    network: Network | None,
    steps: int,
    participation: Participation | None = None,
    *,
    tolerance: float = 1e-10,
) -> TimeCorrelation:
    """Return the noise correlation over ``steps`` with the least error on this network.

    ``participation`` lists the sets of steps in which one user may take part (disjoint sets); None means
    each user takes part once.

    Guarantees
    ----------
    The sensitivity belongs to the returned C for the given participation, whatever the search found: a poor
    search costs accuracy, never privacy.

    >>> best = mafalda(None, steps=2)  # prefix sums of two steps: the square of the golden ratio
    >>> round(best.error, 6), round(best.sens, 9)
    (2.618034, 1.0)
    """
    M = mafalda_gram(network, steps)
    if participation is None:
        X = _single_participation(M, tolerance)
    else:
        X = _several_participations(M, _checked(participation, len(M)), tolerance)
    return time_correlation(_reverse_cholesky(X), M, participation)


def time_correlation(
    C: np.ndarray, M: np.ndarray, participation: Participation | None = None
) -> TimeCorrelation:
    """Return sensitivity and error of any lower triangular C, for comparison."""
    C = np.array(C, dtype=np.float64)
    if C.ndim != 2 or C.shape[0] != C.shape[1] or np.any(np.triu(C, 1)) or not np.all(np.diagonal(C)):
        raise InvalidInput("C must be square, lower triangular and have no zero on its diagonal.")
    X = C.T @ C
    sets = (
        [[t] for t in range(len(C))]
        if participation is None
        else _checked(participation, len(C), disjoint=False)
    )
    squared = max(float(np.abs(X[np.ix_(s, s)]).sum()) for s in sets)
    C.setflags(write=False)
    return TimeCorrelation(C, math.sqrt(squared), squared * float(np.trace(np.linalg.solve(X, M))))


def _single_participation(M: np.ndarray, tolerance: float) -> np.ndarray:
    """Minimize tr(M X^-1) with diag X = 1: v <- diag((D M D)^(1/2)), D = diag(v)^(1/2)."""
    v = np.sqrt(np.diagonal(M))
    for _ in range(10_000):
        root = _root(np.sqrt(v)[:, None] * M * np.sqrt(v))
        updated = np.diagonal(root).copy()
        done = np.max(np.abs(updated - v)) <= tolerance * np.max(v)
        v = updated
        if done:
            break
    scale = 1 / np.sqrt(v)
    X = scale[:, None] * _root(np.sqrt(v)[:, None] * M * np.sqrt(v)) * scale
    return X / np.sqrt(np.outer(np.diagonal(X), np.diagonal(X)))


def _several_participations(M: np.ndarray, sets: list[list[int]], tolerance: float) -> np.ndarray:
    """Minimize tr(M X^-1) with sum over each set of |X_st| at most 1, by projected gradient."""
    T = len(M)
    X = np.zeros((T, T))
    for members in sets:
        X[members, members] = 1 / len(members)
    inside = np.diagonal(X) > 0
    X[~inside, ~inside] = 1.0  # a step without participants is free
    value = float(np.trace(np.linalg.solve(X, M)))
    step = (
        1e-3
        * float(np.max(np.diagonal(X)))
        / float(np.abs(np.linalg.solve(X, np.linalg.solve(X, M).T)).max())
    )
    for _ in range(20_000):
        inverse = np.linalg.inv(X)
        gradient = inverse @ M @ inverse
        while True:
            moved = _project(X + step * gradient, sets)
            try:
                np.linalg.cholesky(moved)
            except np.linalg.LinAlgError:
                step /= 2
                continue
            reached = float(np.trace(np.linalg.solve(moved, M)))
            if reached <= value:
                break
            step /= 2
            if step < 1e-300:
                return X
        gain = value - reached
        X, value = moved, reached
        step *= 1.5
        if gain <= tolerance * value:
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


def _checked(participation: Participation, steps: int, *, disjoint: bool = True) -> list[list[int]]:
    sets = [list(_validate.nodes(s, steps, "participation")) for s in participation]
    if not sets or (disjoint and sum(map(len, sets)) != len(set().union(*sets))):
        raise InvalidInput("participation must list disjoint sets of steps, for example [[0, 4], [1, 5]].")
    return sets


def _root(A: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(A)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def _reverse_cholesky(X: np.ndarray) -> np.ndarray:
    """Return the lower triangular C with X = C^T C: Cholesky of the flipped matrix, flipped back."""
    return np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1].copy()
