"""Correlated noise: over time at one node (MAFALDA-SGD) and between neighbours (DECOR).

**Over time.** Node u uses at step t the noise :math:`\\sum_{s \\le t} (C^{-1})_{ts} \\xi_s` with independent
:math:`\\xi_s` of standard deviation sigma * sens * Delta, so that errors of later steps cancel those of
earlier ones. With :math:`X = C^T C` the loss under the local view is that of one Gaussian mechanism with mu
= 1 / sigma, where

.. math:: sens^2 = \\max_{\\pi} \\sum_{s,t \\in \\pi} |X_{st}|

over the sets of steps a user may take part in, and the error is sens^2 tr(M X^-1) with the Gram matrix
:math:`M_{ss'} = \\sum_{t \\ge \\max(s,s')} tr\\,W^{2t-s-s'+2}`. With one participation per user the
constraint is diag X = 1 and X solves a fixed-point equation; otherwise a projected gradient method finds it.

**Between neighbours.** Each pair of neighbours draws a common noise that one adds and the other subtracts; it
hides both from everyone else and vanishes from the mean. One step reveals a Gaussian with covariance
:math:`s_d^2 I + s_c^2 L`, L the Laplacian of the graph of honest nodes.

References: [1] Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified privacy guarantees for
decentralized learning via matrix factorization", arXiv 2510.17480; [2] Allouah, Koloskova, El Firdoussi,
Jaggi, Guerraoui, "The privacy power of correlated noise in decentralized learning", ICML 2024, Algorithm 2;
[3] Denisov, McMahan, Rush, Smith, Thakurta, "Improved differential privacy for SGD via optimal private
linear operators on adaptive streams", NeurIPS 2022, Theorem 3.2 (the fixed point).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.privacy.curves import Curve
from sottovoce.privacy.guarantees import Adversary, Guarantee

__all__ = [
    "TimeCorrelation",
    "decor_bound",
    "decor_guarantee",
    "decor_variances",
    "mafalda",
    "mafalda_gram",
    "time_correlation",
]

Participation = Sequence[Sequence[int]]


# ---- over time: MAFALDA -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TimeCorrelation:
    """A lower triangular C (steps, steps) with its sensitivity and the error it gives.

    ``inverse @ xi`` is the noise of all steps; ``error`` is sens^2 tr(M X^-1).

    Examples
    --------
    >>> import numpy as np
    >>> plain = TimeCorrelation(C=np.eye(2), sens=1.0, error=3.0)
    >>> plain.X.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
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

    def guarantee(self, noise_multiplier: float) -> Guarantee:
        """Return the local user-level guarantee; ``noise_multiplier`` is in units of sens * Delta.

        >>> import sottovoce as sv
        >>> mafalda(sv.graphs.ring(4), steps=4).guarantee(2.0).mu
        0.5
        """
        sigma = _validate.positive(noise_multiplier, "noise_multiplier")
        return Guarantee(
            Adversary("local"), "user", "ldp", Curve.gaussian(1 / sigma),
            ("a user takes part in one of the listed sets of steps", "fresh noises are independent per node"),
        )  # fmt: skip


@takes_network
def mafalda_gram(network: Network | None, steps: int) -> np.ndarray:
    """Return M (steps, steps), how the noise of two steps adds up in the error; None is a single node.

    >>> mafalda_gram(None, 2).tolist()
    [[2.0, 1.0], [1.0, 1.0]]
    """
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
    """Return sensitivity and error of any lower triangular C, for comparison.

    >>> import numpy as np
    >>> time_correlation(np.eye(2), mafalda_gram(None, 2)).error  # independent noise
    3.0
    """
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
    """Minimise tr(M X^-1) with diag X = 1: v <- diag((D M D)^(1/2)), D = diag(v)^(1/2)."""
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
    """Minimise tr(M X^-1) with sum over each set of |X_st| at most 1, by projected gradient."""
    T = len(M)
    X = np.zeros((T, T))
    for members in sets:
        X[members, members] = 1 / len(members)
    inside = np.diagonal(X) > 0
    X[~inside, ~inside] = 1.0  # a step nobody may take part in is free
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


# ---- between neighbours: DECOR ------------------------------------------------------------------------


@takes_network
def decor_variances(
    network: Network, private_std: float, shared_std: float, colluders: Iterable[int] = ()
) -> np.ndarray:
    """Return (n,): diagonal of (s_d^2 I + s_c^2 L_H)^-1 over honest nodes H; infinite for colluders.

    One step costs node i, per unit of squared shift, exactly this much mu^2.

    >>> import sottovoce as sv
    >>> float(decor_variances(sv.graphs.ring(16), 0.5, 3.0)[0].round(5))
    0.38196
    """
    private, shared = (
        _validate.positive(private_std, "private_std"),
        _validate.non_negative(shared_std, "shared_std"),
    )
    honest = _honest(network, colluders)
    L = _laplacian(network, honest)
    out = np.full(network.n, math.inf)
    out[honest] = np.diagonal(np.linalg.inv(private**2 * np.eye(len(honest)) + shared**2 * L.toarray()))
    return out


@takes_network
def decor_bound(
    network: Network, private_std: float, shared_std: float, colluders: Iterable[int] = ()
) -> float:
    """Return the bound of [2] on the largest entry, from the connectivity of the honest graph alone.

    >>> import sottovoce as sv
    >>> round(decor_bound(sv.graphs.ring(16), 0.5, 3.0), 4)
    0.8286
    """
    private, shared = (
        _validate.positive(private_std, "private_std"),
        _validate.non_negative(shared_std, "shared_std"),
    )
    honest = _honest(network, colluders)
    m = len(honest)
    second = float(np.linalg.eigvalsh(_laplacian(network, honest).toarray())[1]) if m > 1 else 0.0
    if m > 1 and second < 1e-12:
        raise InvalidInput("the bound needs a connected graph of honest nodes, got a disconnected one.")
    return 1 / (m * private**2) + (1 - 1 / m) / (private**2 + second * shared**2)


@takes_network
def decor_guarantee(
    network: Network,
    steps: int,
    *,
    clip: float,
    private_std: float,
    shared_std: float,
    colluders: Iterable[int] = (),
    user: int | None = None,
) -> Guarantee:
    """Return the user-level guarantee of DECOR against an outsider, or against colluders with their seeds.

    An outsider sees every message and no seed: a weaker adversary than any one neighbour.

    Guarantees
    ----------
    Exact for the view stated: all messages of all steps, and everything the colluders know, their shared
    seeds included. Honest neighbours' seeds must stay secret between the two of them. ``user=None`` is the
    worst honest node.

    >>> import sottovoce as sv
    >>> one = decor_guarantee(sv.graphs.ring(16), 1, clip=1.0, private_std=0.5, shared_std=3.0)
    >>> round(one.rdp(2.0), 4)
    1.5278
    """
    against = tuple(colluders)
    variances = decor_variances(network, private_std, shared_std, against)
    honest = _honest(network, against)
    if user is not None and user not in honest:
        raise InvalidInput(f"user must be an honest node, got {user}.")
    worst = float(variances[honest].max()) if user is None else float(variances[user])
    mu = 2 * _validate.positive(clip, "clip") * math.sqrt(worst)
    adversary = Adversary("colluders", against, user) if against else Adversary("outsider", user=user)
    return Guarantee(
        adversary, "user", "exact", Curve.gaussian(mu, _validate.count(steps, "steps")),
        ("every message is seen", "seeds shared by two honest neighbours are known to them only"),
    )  # fmt: skip


def _honest(network: Network, colluders: Iterable[int]) -> np.ndarray:
    listed = list(colluders)
    gone = _validate.nodes(listed, network.n, "colluders") if listed else ()
    honest = np.setdiff1d(np.arange(network.n), np.asarray(gone, dtype=np.int64))
    if not len(honest):
        raise InvalidInput("colluders must leave at least one honest node, got all of them.")
    return honest


def _laplacian(network: Network, honest: np.ndarray) -> sp.csr_array:
    inside = network.adjacency[honest][:, honest]
    return sp.csr_array(sp.diags_array(np.asarray(inside.sum(axis=1)).ravel()) - inside)
