"""Formulas as printed in the papers, for reproduction: every number here carries the label ``published``.

Losses are in the unit of local privacy, alpha Delta^2 / (2 sigma^2), so that 1 means "as much as without any
network". The central one is the pairwise loss of gossip averaging [1, equation (6)],

.. math:: f(u, v) = \\sum_{t<T} \\sum_{w \\in N_t(v)} \\frac{(W_{0:t})_{w,u}^2}{\\|(W_{0:t})_{w,:}\\|^2}.

It adds up the losses of messages as if their noises were independent. They are not: the same n Gaussian
numbers are in all of them, and the true loss (`exact_loss`) may be far larger. On a path of three nodes and
two rounds the formula says 1/3 where the truth is 1. Nothing here may accept a budget.

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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, Translations, takes_network
from sottovoce.protocols import Protocol, as_linear

_BLOCK = 32  # columns per block: (n, 32) doubles of a few thousand nodes stay in the cache


# ---- equation (6) and its variants ------------------------------------------------------------------


@takes_network
def published_loss(
    source: Network | Protocol,
    rounds: int | None = None,
    *,
    colluders: Iterable[int] = (),
    group: Iterable[int] = (),
) -> np.ndarray:
    """Return the published pairwise loss, equation (6), as an (n, n) array ``[u, v]``, v the observer.

    Parameters
    ----------
    source : a network (gossip of ``rounds`` rounds on it) or a protocol without memory.
    rounds : number of gossip rounds, with a network.
    colluders : nodes that pool what they see with each observer: their columns are added, as published.
    group : users whose values change together; the result is then (n,), over the observers v.

    Guarantees
    ----------
    None: label ``published``. The sum over u, u = v included, is the number of messages v receives.

    >>> import sottovoce as sv
    >>> float(sv.privacy.published_loss(sv.graphs.path(3), rounds=2)[0, 2].round(6))
    0.333333
    """
    if isinstance(source, Protocol):
        loss = _time_varying(source, rounds, tuple(group))
    else:
        T = _rounds(rounds)
        members = _validate.nodes(group, source.n, "group") if list(group) else ()
        loss = _fixed(source, T, members)
    also = list(colluders)
    if also:
        also = list(_validate.nodes(also, loss.shape[-1], "colluders"))
        pooled = loss[..., also].sum(axis=-1, keepdims=True)
        total = loss + pooled
        total[..., also] = pooled
        return total
    return loss


@takes_network
def corollary_loss(network: Network, rounds: int) -> np.ndarray:
    """Return Corollary 1 of [1], (n, n) ``[u, v]``: n max_w W_vw^-2 sum_{t=1..T} (W^t)_uv^2."""
    T = _rounds(rounds)
    n = network.n
    squares = np.zeros((n, n))
    power = np.eye(n)
    for _ in range(T):
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


# ---- Erdős-Rényi graphs that the observer does not know -----------------------------------------------


def erdos_renyi_published_loss(n: int, degree: int, rounds: int) -> float:
    """Return Theorem 4 of [1] for u not next to v, in units: 2 T d_v / (n - d_v).

    The theorem asks for sigma^2 >= Delta^2 alpha (alpha - 1) / 2, and gives 1 with the probability q that
    u and v are neighbors.
    """
    n, degree = _validate.count(n, "n", minimum=2), _validate.count(degree, "degree", minimum=0)
    if degree >= n:
        raise InvalidInput(f"degree must be below n = {n}, got {degree}.")
    return 2 * _rounds(rounds) * degree / (n - degree)


def erdos_renyi_loss(n: int, degree: int, rounds: int, alpha: float, unit: float) -> float:
    """Bound the Rényi loss of order ``alpha`` to a node not next to u, when the rest of the graph is hidden.

    .. math:: \\frac{1}{\\alpha-1}\\ln\\Bigl(1 + \\frac{T_v - d_v}{n-1-d_v}(e^{(\\alpha-1)\\,unit} - 1)\\Bigr)

    ``unit`` is alpha Delta^2 / (2 sigma^2). From the exact loss, not from equation (6): given v's own edges
    the positions of the others are exchangeable, and their exact losses add up to at most T_v - d_v. No
    condition on the noise.

    Guarantees
    ----------
    Holds only if v does not learn the graph beyond its neighbors, from anyone, and if every redraw is
    fresh. The package cannot check that, so it is not offered as a guarantee.
    """
    n, degree = _validate.count(n, "n", minimum=2), _validate.count(degree, "degree", minimum=0)
    unit = _validate.non_negative(unit, "unit")
    others = n - 1 - degree
    if others <= 0 or not alpha > 1:
        raise InvalidInput(
            f"degree must be below n - 1 = {n - 1} and alpha above 1, got {degree} and {alpha!r}."
        )
    share = min(1.0, degree * (_rounds(rounds) - 1) / others)
    if (alpha - 1) * unit > 700:
        return min(unit, unit + math.log(share) / (alpha - 1) if share else 0.0)
    return math.log1p(share * math.expm1((alpha - 1) * unit)) / (alpha - 1)


# ---- random walks ---------------------------------------------------------------------------------


@takes_network
def published_walk_loss(
    network: Network,
    steps: int,
    form: Literal["printed", "bound", "sum"] = "printed",
) -> np.ndarray:
    """Return the published loss of a token's walk [2], (n, n) ``[u, v]``, in units of alpha / (2 sigma^2).

    ``sigma`` is the noise over the sensitivity. With :math:`L = \\ln(I - W + J)`, per unit:

    - ``"sum"``: (2 T / n) sum_{t=1..T} (W^t)_uv / t;
    - ``"bound"``: 2 T (ln T + 1) / n^2 - (2 T / n) L_uv, an upper bound on the sum in the limit;
    - ``"printed"``: the same with ln T, as the talk and the authors' code have it.

    Needs convex smooth losses, a step of at most 2 / beta, sigma^2 >= alpha (alpha - 1) / 2, a cap of T / n
    contributions per node, and senders that stay hidden.
    """
    T, n = _validate.count(steps, "steps"), network.n
    if form == "sum":
        total, power = np.zeros((n, n)), np.eye(n)
        for t in range(1, T + 1):
            power = network.W @ power
            total += power / t
        return 2 * T / n * total
    if form not in ("printed", "bound"):
        raise InvalidInput(f'form must be "printed", "bound" or "sum", got {form!r}.')
    flat = math.log(T) + (1 if form == "bound" else 0)
    return 2 * T * flat / n**2 - 2 * T / n * _log_gap(network)


def _log_gap(network: Network) -> np.ndarray:
    """The matrix logarithm ln(I - W + J) of a symmetric W with gap; rows sum to 0."""
    values, vectors = np.linalg.eigh(network.W.toarray())
    values, vectors = values[:-1], vectors[:, :-1]  # the last is the eigenvalue 1, where I - W + J is 1
    return (vectors * np.log1p(-values)) @ vectors.T


# ---- utility: Table 1 -------------------------------------------------------------------------------


@takes_network
def published_utility(
    network: Network | None,
    epsilon: float,
    *,
    alpha: float = 2.0,
    sensitivity: float = 1.0,
    row: Literal["arbitrary", "expander", "torus", "complete", "ring", "ldp", "curator"] = "arbitrary",
    randomized: bool = False,
    accelerated: bool = False,
    dimension: int = 2,
    n: int | None = None,
) -> float:
    """Return Table 1 of [1]: the squared error at mean loss ``epsilon``, without constants and logarithms.

    ``row`` chooses the column of the table; ``"arbitrary"`` reads degree and spectral gap off the network.
    ``"ldp"`` and ``"curator"`` are the two baselines beside the table; ``dimension`` is C of the C-torus.
    With ``accelerated`` randomized gossip has momentum: by Remark 1 sqrt(gap / degree) stands for the gap.
    """
    epsilon = _validate.positive(epsilon, "epsilon")
    sensitivity = _validate.positive(sensitivity, "sensitivity")
    size = network.n if network is not None else _validate.count(n if n is not None else 0, "n")
    if accelerated and not randomized:
        raise InvalidInput("accelerated=True is about randomized gossip; synchronous gossip always is.")
    best = alpha * sensitivity**2 / (size**2 * epsilon)  # a trusted curator, and an expander
    if row == "arbitrary":
        if network is None:
            raise InvalidInput(
                'the row "arbitrary" reads degree and gap off a network, got None; give a network.'
            )
        gap = network.spectral_gap
        degree = int(network.degrees.max())
        if accelerated:
            return best * math.sqrt(degree / gap)
        return best / gap if randomized else best * degree / math.sqrt(gap)
    power = 2 / dimension if randomized and not accelerated else 1 / dimension
    factors = {
        "expander": 1.0,
        "curator": 1.0,
        "ldp": float(size),
        "ring": float(size),
        "complete": math.sqrt(size) if accelerated else 1.0 if randomized else float(size),
        "torus": (1.0 if randomized else dimension) * size**power,
    }
    if row not in factors:
        raise InvalidInput(f"row must be arbitrary or one of {', '.join(factors)}, got {row!r}.")
    return best * factors[row]


# ---- kernels ----------------------------------------------------------------------------------------


def _rounds(rounds: int | None) -> int:
    if rounds is None:
        raise InvalidInput("a network needs rounds=..., got none.")
    return _validate.count(rounds, "rounds", minimum=0)


def _fixed(network: Network, rounds: int, group: tuple[int, ...]) -> np.ndarray:
    """Equation (6) for one matrix: rows of powers, squared and normalized, then one adjacency product."""
    if group:
        return _fixed_group(network, rounds, group)
    shape = _verified_shape(network)
    if shape is not None:
        near = network.neighbors(0)
        return _translated(shape, _row_shares(network.W, near, rounds).sum(axis=1))
    n = network.n
    shares = np.empty((n, n))  # [w, u]

    def fill(start: int) -> None:
        nodes = np.arange(start, min(start + _BLOCK, n))
        shares[nodes[0] : nodes[-1] + 1] = _row_shares(network.W, nodes, rounds).T

    loss = np.empty((n, n))  # [v, u]

    def add_up(start: int) -> None:
        adjacency = network.adjacency
        _kernels().sum_rows(adjacency.indptr, adjacency.indices, shares, loss, start, min(start + 256, n))

    _kernels()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(fill, range(0, n, _BLOCK)))
        list(pool.map(add_up, range(0, n, 256)))
    return loss.T


def _row_shares(W: sp.csr_array, nodes: np.ndarray, rounds: int) -> np.ndarray:
    """Return (n, nodes): sum over t < rounds of (row w of W^t)^2 / its squared norm, one column per w."""
    back = W.T.tocsr()  # row w of W^t is the column (W^T)^t e_w
    out = np.zeros((W.shape[0], len(nodes)))
    _kernels().accumulate(back.indptr, back.indices, back.data, np.asarray(nodes), rounds, out)
    return out


def _kernels() -> Any:
    from sottovoce.accounting.published import kernels  # imports numba

    return kernels


def _fixed_group(network: Network, rounds: int, group: tuple[int, ...]) -> np.ndarray:
    rows = np.eye(network.n)
    total = np.zeros(network.n)
    for _ in range(rounds):
        total += rows[:, list(group)].sum(axis=1) ** 2 / np.einsum("ij,ij->i", rows, rows)
        rows = network.W @ rows
    return network.adjacency @ total


def _verified_shape(network: Network) -> tuple[int, ...] | None:
    """The translation group, once every generator is seen to leave W as it is; None otherwise."""
    moves = network.symmetry
    if not isinstance(moves, Translations) or int(np.prod(moves.shape)) != network.n:
        return None
    return moves.shape if all(network.leaves_unchanged(moves(g)) for g in moves.generators) else None


def _translated(shape: tuple[int, ...], first: np.ndarray) -> np.ndarray:
    """Return [u, v] = first[u - v], the difference taken in the group Z_a x Z_b x ..."""
    index = np.zeros((1, 1), dtype=np.int32)  # [v, u], one factor after the other
    for side in shape:
        steps = np.arange(side, dtype=np.int32)
        factor = (steps[None, :] - steps[:, None]) % side
        size = index.shape[0]
        index = (index[:, None, :, None] * np.int32(side) + factor[None, :, None, :]).reshape(
            size * side, size * side
        )
    return first[index].T


def _time_varying(protocol: Protocol, rounds: int | None, group: tuple[int, ...]) -> np.ndarray:
    """Equation (6) with the rows of W_{0:t} = W_{t-1} ... W_0 and the senders of each round."""
    if rounds is not None and rounds != protocol.rounds:
        raise InvalidInput(f"the protocol has {protocol.rounds} rounds, got rounds={rounds}; leave it out.")
    refusal = f"equation (6) is about gossip with one noise per node, got {protocol!r}."
    if protocol.fresh_std:
        raise InvalidInput(refusal)
    protocol = as_linear(protocol, refusal)
    n = protocol.n
    members = list(_validate.nodes(group, n, "group")) if group else []
    rows = np.eye(n)
    loss = np.zeros(n) if members else np.zeros((n, n))  # [v, u]
    for t in range(protocol.rounds):
        matrix = protocol.matrix(t).tocsr()
        entries = matrix.tocoo()
        off = (entries.row != entries.col) & (entries.data != 0)
        to, source = entries.row[off], entries.col[off]
        heard = np.unique(source)
        norms = np.einsum("ij,ij->i", rows[heard], rows[heard])
        place = np.searchsorted(heard, source)
        if members:
            shares = rows[heard][:, members].sum(axis=1) ** 2 / norms
            np.add.at(loss, to, shares[place])
        else:
            pick = sp.csr_array((np.ones(len(to)), (to, place)), shape=(n, len(heard)))
            receivers = np.unique(to)
            loss[receivers] += pick[receivers] @ (rows[heard] ** 2 / norms[:, None])
        moved = np.unique(np.concatenate([to, entries.row[entries.data != 1]]))
        rows[moved] = matrix[moved] @ rows
    return loss if members else loss.T
