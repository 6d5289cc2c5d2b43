"""Formulas as printed in the papers, for reproduction: every number here carries the label ``published``.

Losses are in the unit of local privacy, alpha Delta^2 / (2 sigma^2), so that 1 means "as much as without any
network". The central one is the pairwise loss of gossip averaging [1, equation (6)],

.. math:: f(u, v) = \\sum_{t<T} \\sum_{w \\in N_t(v)} \\frac{(W_{0:t})_{w,u}^2}{\\|(W_{0:t})_{w,:}\\|^2}.

It adds up the losses of messages as if their noises were independent. They are not: the same n Gaussian
numbers are in all of them, and the true loss (`exact_loss`) may be far larger. On a path of three nodes and
two rounds the formula says 1/3 where the truth is 1. Nothing here is checked against a budget.

Departures from [1]: the row index of equation (6) is (w, u), the message of w (the paper prints (u, w), the
same for one symmetric matrix); rounds are t = 0..T-1, the raw first message included (the authors' code sums
1..T).

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: peer-to-peer privacy amplification for
decentralized optimization and averaging", NeurIPS 2022; [2] Cyffers, Bellet, Upadhyay, "Differentially
private decentralized learning with random walks", ICML 2024, as stated in Bellet's 2024 talk.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import scipy.sparse as sp

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.protocols import Protocol, as_linear

_BLOCK = 32  # columns per block: (n, 32) doubles of a few thousand nodes stay in the cache


@takes_network
def published_loss(network_or_protocol: Network | Protocol, rounds: int | None = None) -> np.ndarray:
    """Return the published pairwise loss, equation (6), as an (n, n) array ``[u, v]``, v the observer.

    Parameters
    ----------
    network_or_protocol : gossip of ``rounds`` rounds on a network, or a protocol without memory.
    rounds : number of gossip rounds, with a network.

    Guarantees
    ----------
    None: label ``published``. The sum over u, u = v included, is the number of messages v receives.

    >>> import sottovoce as sv
    >>> float(sv.privacy.published_loss(sv.graphs.path(3), rounds=2)[0, 2].round(6))
    0.333333
    """
    if isinstance(network_or_protocol, Protocol):
        return _time_varying(network_or_protocol, rounds)
    return _fixed(network_or_protocol, _rounds(rounds))


@takes_network
def corollary_loss(network: Network, rounds: int) -> np.ndarray:
    """Return Corollary 1 of [1], (n, n) ``[u, v]``: n max_w W_vw^-2 sum_{t=1..T} (W^t)_uv^2."""
    n = network.n
    squares, power = np.zeros((n, n)), np.eye(n)
    for _ in range(_rounds(rounds)):
        power = network.W @ power
        squares += power * power
    entries = network.W.tocoo()
    off = entries.row != entries.col
    worst = np.zeros(n)
    np.maximum.at(worst, entries.row[off], entries.data[off] ** -2.0)
    return n * squares * worst[None, :]


@takes_network
def published_sgd_loss(network: Network, steps: int, rounds: int) -> np.ndarray:
    """Return equation (9) of [1], (n, n) ``[u, v]``: ``steps`` times equation (6) of one averaging.

    It ignores that a step keeps leaking during later steps; with one round per step it claims that nodes
    further than one edge apart learn nothing, which an attack refutes.
    """
    return _validate.count(steps, "steps") * published_loss(network, rounds)


@takes_network
def published_mean_loss(network: Network, rounds: int) -> np.ndarray:
    """Return equation (7) of [1], (n,): T_v / n, with T_v the number of messages v receives.

    The mean over all u, v itself included. As a bound on the mean it holds for the exact loss too, whose
    sum over u is the rank of what v sees.
    """
    return np.asarray(network.degrees, dtype=np.float64) * _rounds(rounds) / network.n


def mean_loss(loss: np.ndarray) -> np.ndarray:
    """Return (n,): for each observer v, (1/n) times the sum of ``loss[u, v]`` over u other than v."""
    values = np.asarray(loss, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise InvalidInput(f"loss must be an (n, n) array over pairs [u, v], got shape {values.shape}.")
    return (values.sum(axis=0) - np.diagonal(values)) / values.shape[0]


def erdos_renyi_published_loss(n: int, degree: int, rounds: int) -> float:
    """Return Theorem 4 of [1] for u not next to v on a random graph, in units: 2 T d_v / (n - d_v).

    The theorem asks for sigma^2 >= Delta^2 alpha (alpha - 1) / 2 and an observer that knows no edges but its
    own, and gives 1 with the probability q that u and v are neighbors.
    """
    return 2 * _rounds(rounds) * degree / (n - degree)


@takes_network
def published_walk_loss(network: Network, steps: int) -> np.ndarray:
    """Return the published loss of a token's walk [2], (n, n) ``[u, v]``, in units of alpha / (2 sigma^2).

    It is 2 T ln T / n^2 - (2 T / n) L_uv with :math:`L = \\ln(I - W + J)`, as the talk and the authors' code
    have it, and ``sigma`` the noise over the sensitivity. Needs convex smooth losses, a step of at most
    2 / beta, sigma^2 >= alpha (alpha - 1) / 2, a cap of T / n contributions per node, and senders that stay
    hidden.
    """
    T, n = _validate.count(steps, "steps"), network.n
    return 2 * T * math.log(T) / n**2 - 2 * T / n * _log_gap(network)


def _log_gap(network: Network) -> np.ndarray:
    """The matrix logarithm ln(I - W + J) of a symmetric W with gap; rows sum to 0."""
    values, vectors = np.linalg.eigh(network.W.toarray())
    values, vectors = values[:-1], vectors[:, :-1]  # the last is the eigenvalue 1, where I - W + J is 1
    return (vectors * np.log1p(-values)) @ vectors.T


@takes_network
def published_error(network: Network, noise_std: float, *, randomized: bool = False) -> float:
    """Return the bound of [1] on half the mean squared error of a node: 3 sigma^2 / n, Theorem 2.

    It is about accelerated gossip of at least T_stop rounds, which is `sottovoce.protocols.rounds_for`; below
    that nothing is claimed. ``randomized`` is Theorem 3, 2 sigma^2 / n, for randomized gossip; `rounds_for`
    counts its ticks by the gap of the mean matrix, half the lambda(p) that [1] prints: twice as many.
    """
    return (2 if randomized else 3) * _validate.positive(noise_std, "noise_std") ** 2 / network.n


@takes_network
def published_utility(
    network: Network,
    epsilon: float,
    *,
    alpha: float = 2.0,
    sensitivity: float = 1.0,
    row: Literal["arbitrary", "expander", "torus", "complete", "ring", "ldp", "curator"] = "arbitrary",
    randomized: bool = False,
    accelerated: bool = False,
) -> float:
    """Return Table 1 of [1]: the squared error at mean loss ``epsilon``, without constants and logarithms.

    ``row`` chooses the column of the table; ``"arbitrary"`` reads degree and spectral gap off the network,
    ``"torus"`` is the 2-torus. ``"ldp"`` and ``"curator"`` are the two baselines beside the table. With
    ``accelerated`` randomized gossip has momentum: by Remark 1 sqrt(gap / degree) stands for the gap.
    """
    if accelerated and not randomized:
        raise InvalidInput("accelerated=True is about randomized gossip; synchronous gossip always is.")
    n = network.n
    curator = alpha * sensitivity**2 / (n**2 * epsilon)  # also the error on an expander
    if row == "arbitrary":
        gap, degree = network.spectral_gap, int(network.degrees.max())
        if accelerated:
            return curator * math.sqrt(degree / gap)
        return curator / gap if randomized else curator * degree / math.sqrt(gap)
    factors = {
        "expander": 1.0,
        "curator": 1.0,
        "ldp": float(n),
        "ring": float(n),
        "complete": math.sqrt(n) if accelerated else 1.0 if randomized else float(n),
        "torus": math.sqrt(n) if accelerated else float(n) if randomized else 2 * math.sqrt(n),
    }
    return curator * factors[row]


# ---- kernels of equation (6) ---------------------------------------------------------------------------


def _rounds(rounds: int | None) -> int:
    if rounds is None:
        raise InvalidInput("a network needs rounds=..., got none.")
    return _validate.count(rounds, "rounds", minimum=0)


def _fixed(network: Network, rounds: int) -> np.ndarray:
    """Equation (6) for one matrix: rows of powers, squared and normalized, then one adjacency product."""
    from sottovoce.accounting.published import kernels  # imports numba

    n, back = network.n, network.W.T.tocsr()

    def row_shares(nodes: np.ndarray) -> np.ndarray:
        """Return (n, nodes): sum over t < rounds of (row w of W^t)^2 / its squared norm, a column per w."""
        shares = np.zeros((n, len(nodes)))  # row w of W^t is the column (W^T)^t e_w
        kernels.accumulate(back.indptr, back.indices, back.data, np.asarray(nodes), rounds, shares)
        return shares

    if network.translations is not None:  # one observer stands for all
        return network.translations.spread(row_shares(network.neighbors(0)).sum(axis=1))
    shares = np.empty((n, n))  # [w, u]

    def fill(start: int) -> None:
        stop = min(start + _BLOCK, n)
        shares[start:stop] = row_shares(np.arange(start, stop)).T

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(fill, range(0, n, _BLOCK)))
    return np.asarray(network.adjacency @ shares).T


def _time_varying(protocol: Protocol, rounds: int | None) -> np.ndarray:
    """Equation (6) with the rows of W_{0:t} = W_{t-1} ... W_0 and the senders of each round."""
    if rounds is not None and rounds != protocol.rounds:
        raise InvalidInput(f"the protocol has {protocol.rounds} rounds, got rounds={rounds}; leave it out.")
    refusal = f"equation (6) is about gossip with one noise per node, got {protocol!r}."
    if protocol.fresh_std:
        raise InvalidInput(refusal)
    protocol = as_linear(protocol, refusal)
    n = protocol.n
    rows, loss = np.eye(n), np.zeros((n, n))  # loss is [v, u]
    for t in range(protocol.rounds):
        matrix = protocol.matrix(t).tocsr()
        entries = matrix.tocoo()
        off = (entries.row != entries.col) & (entries.data != 0)
        to, source = entries.row[off], entries.col[off]
        heard, place = np.unique(source, return_inverse=True)
        norms = np.einsum("ij,ij->i", rows[heard], rows[heard])
        pick = sp.csr_array((np.ones(len(to)), (to, place)), shape=(n, len(heard)))
        receivers = np.unique(to)
        loss[receivers] += pick[receivers] @ (rows[heard] ** 2 / norms[:, None])
        moved = np.unique(np.concatenate([to, entries.row[entries.data != 1]]))
        rows[moved] = matrix[moved] @ rows
    return loss.T
