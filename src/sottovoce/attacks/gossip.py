"""Reconstruction of averaging: which values a set of curious nodes computes from what it received.

Everything a node receives in a linear protocol is a known combination of the starting values,
:math:`K X = Y`. Node ``u`` is determined exactly when :math:`e_u` lies in the row space of the knowledge
matrix :math:`K`, that is, when the reduced row echelon form of :math:`K` has the row :math:`e_u`; the
other rows of that form are combinations of several values that the attackers know. On a noisy run the
same attack returns value plus noise, exactly where the accountant says ``h = 1``.

Which nodes are determined is decided in exact arithmetic (`modular_linalg`) where the weights are known and
the graph is small enough, and from the orthonormal basis of the protocol's `GaussianView` elsewhere.

References: [1] El Mrini, Cyffers, Bellet 2024, "Privacy attacks in decentralized learning"; Bellet, talk
"Privacy in decentralized machine learning", 2024, slides "Attack on gossip averaging".
Departures from [1]: any linear protocol, exact arithmetic modulo primes instead of floating row reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.leakage import modular_linalg
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols import Gossip, LinearProtocol, Protocol, as_linear

_EXACT_WORK = 4e9  # residue operations allowed before the floating basis takes over
_ZERO = 1e-8  # a singular value, a coefficient or a distance from 1 that counts as none


@takes_network
def reconstruct_gossip(network: Network, attackers: int | Iterable[int], rounds: int) -> set[int]:
    """Return the nodes whose value the attackers compute after ``rounds`` rounds of gossip.

    ``attackers`` is one node or several that share what they see; they are not in the answer.

    Examples
    --------
    >>> import sottovoce as sv
    >>> sorted(reconstruct_gossip(sv.graphs.path(5), attackers=0, rounds=3))
    [1, 2, 3]
    """
    return set(gossip_attack(Gossip(network, _validate.count(rounds, "rounds")), attackers).nodes)


@dataclass(frozen=True)
class Combination:
    """One linear combination of several values that the attackers know."""

    coefficients: dict[int, float]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes whose values are mixed."""
        return tuple(self.coefficients)

    def __str__(self) -> str:
        return self.named({node: f"x{node}" for node in self.coefficients})

    def named(self, names: Mapping[int, str] | Sequence[str]) -> str:
        """Return the combination in words, with these names of the nodes."""
        terms = []
        for node, c in self.coefficients.items():
            fraction = Fraction(abs(c)).limit_denominator(999)
            size = str(fraction) if abs(fraction - abs(c)) < _ZERO else f"{abs(c):.6g}"
            terms.append(f"{'-' if c < 0 else '+'} {'' if size == '1' else size + ' '}{names[node]}")
        return " ".join(terms).removeprefix("+ ")


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What a set of attackers learns from a protocol: the determined nodes, sorted, attackers excluded.

    They know ``rank`` independent combinations of other nodes' values; ``exact`` says whether exact
    arithmetic decided or the floating basis of the view.
    """

    protocol: Protocol = field(repr=False)
    attackers: tuple[int, ...]
    nodes: tuple[int, ...]
    rank: int
    exact: bool

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """Independent combinations of several undetermined values that the attackers know, reduced."""
        from scipy.linalg import qr

        n, view = self.protocol.n, self.protocol.view(self.attackers)
        # rows of fresh noise, of a walk's contributions or rounded up tell of more than the values
        if view.rounded_up or not np.array_equal(view.owners, np.arange(n)):
            return ()
        rows = view.span.basis.T.copy()
        rows[:, [*self.attackers, *self.nodes]] = 0.0
        if not rows.size:
            return ()
        _, triangle, order = qr(rows, mode="economic", pivoting=True)
        rank = int(np.sum(np.abs(np.diag(triangle)) > _ZERO))
        reduced = np.zeros((rank, n))
        reduced[:, order] = np.linalg.solve(triangle[:rank, :rank], triangle[:rank])
        reduced[np.abs(reduced) < _ZERO] = 0.0
        return tuple(Combination({int(j): float(row[j]) for j in np.flatnonzero(row)}) for row in reduced)

    def values(self, observations: ArrayLike) -> dict[int, np.ndarray]:
        """Return the determined rows, from observations in the order of `GaussianView.messages`.

        On a noisy run these are value plus noise.
        """
        estimate = self.protocol.view(self.attackers).reconstruct(observations)
        return {u: estimate[u] for u in self.nodes}


def gossip_attack(
    protocol: Protocol, attackers: int | Iterable[int], exact: bool | None = None
) -> Reconstruction:
    """Return what ``attackers``, one node or several that share what they see, learn from a protocol.

    ``exact`` decides by exact arithmetic (True), by the floating basis (False), or exactly if that is
    affordable (None). Exact arithmetic reads a stored 0.333... as a third.
    """
    return _attack(protocol, attackers, exact, None)


def reconstructed_by_each(protocol: Protocol, exact: bool | None = None) -> list[tuple[int, ...]]:
    """Return, for every node as the only attacker, the nodes it determines."""
    solver = _Solver(as_linear(protocol)) if _in_clear(protocol) and exact is not False else None
    return [_attack(protocol, v, exact, solver).nodes for v in range(protocol.n)]


def attacking_nodes(protocol: Protocol, attackers: int | Iterable[int]) -> tuple[int, ...]:
    """Return the attackers sorted, refused if nobody is left to attack or nothing is sent."""
    chosen = _validate.nodes(attackers, protocol.n, "attackers")
    if len(chosen) == protocol.n:
        raise InvalidInput(f"attackers names all {protocol.n} nodes, so there is nobody left to attack.")
    if protocol.rounds < 1:
        raise InvalidInput("an attack needs at least 1 round, got a protocol of 0 rounds.")
    return chosen


def _in_clear(protocol: Protocol) -> bool:
    """Whether the matrices say what the rows received tell of the values; masked rows tell only sums."""
    return protocol.linear and not protocol.masked


def _attack(
    protocol: Protocol, attackers: int | Iterable[int], exact: bool | None, solver: _Solver | None
) -> Reconstruction:
    chosen = attacking_nodes(protocol, attackers)
    possible = _in_clear(protocol) and protocol.fresh_std == 0
    if exact and not possible:
        raise InvalidInput(
            f"exact arithmetic needs a linear protocol without fresh noise, got {protocol.name!r}; "
            "use exact=False."
        )
    if possible and exact is not False:
        solver = solver or _Solver(as_linear(protocol))
        if exact or solver.work(chosen) <= _EXACT_WORK:
            return _decide_exactly(solver, chosen)
    view = protocol.view(chosen)
    determined = tuple(u for u in _certain(view).tolist() if u not in chosen)
    return Reconstruction(protocol, chosen, determined, view.rank, exact=False)


def _certain(view: GaussianView) -> np.ndarray:
    """Return the users whose value the view holds; a leakage that was rounded up proves nothing."""
    return np.flatnonzero(view.leakage() > 1 - _ZERO) if not view.rounded_up else np.empty(0, dtype=int)


def _decide_exactly(solver: _Solver, attackers: tuple[int, ...]) -> Reconstruction:
    """Ask two primes; on the rare disagreement go on until two primes agree on the larger rank."""
    spaces: list[modular_linalg.RowSpace] = []
    for prime in modular_linalg.PRIMES:
        spaces.append(solver.row_space(attackers, prime))
        best = max(space.rank for space in spaces)
        answers = [tuple(space.determined()) for space in spaces if space.rank == best]
        for answer in answers:
            if answers.count(answer) >= 2:
                nodes = tuple(u for u in answer if u not in attackers)
                return Reconstruction(solver.protocol, attackers, nodes, best - len(attackers), exact=True)
    raise InvalidInput("the weights defeat exact arithmetic modulo ten primes; use exact=False.")


class _Solver:
    """The matrices of a protocol as residues, converted once and used for any set of attackers."""

    def __init__(self, protocol: LinearProtocol) -> None:
        self.protocol = protocol
        self._plain = protocol.same_messages
        first = self._plain.matrix(0)
        self._fixed = all(self._plain.matrix(t) is first for t in range(1, self._plain.rounds))
        self._entries: dict[int, tuple[sparse.csr_array, list[Fraction]]] = {}
        self._residues: dict[tuple[int, int], np.ndarray] = {}

    def work(self, attackers: tuple[int, ...]) -> float:
        """Estimate the residue operations of one prime."""
        n, rounds = self.protocol.n, self._plain.rounds
        seen = sum(len(self._plain.senders(t, attackers)) for t in range(1 if self._fixed else rounds))
        rank = min(n, len(attackers) + seen * (rounds if self._fixed else 1))
        changing = 0 if self._fixed else sum(self._plain.matrix(t).nnz * n for t in range(rounds))
        return float(n) * rank * rank + changing

    def row_space(self, attackers: tuple[int, ...], prime: int) -> modular_linalg.RowSpace:
        """Return the span of everything the attackers know, over one prime field."""
        space = modular_linalg.RowSpace(self.protocol.n, prime)
        space.add(np.eye(self.protocol.n, dtype=np.uint64)[list(attackers)])
        (self._krylov if self._fixed else self._forward)(space, attackers, prime)
        return space

    def _krylov(self, space: modular_linalg.RowSpace, attackers: tuple[int, ...], prime: int) -> None:
        senders = list(self._plain.senders(0, attackers))
        new = len(space.add(np.eye(self.protocol.n, dtype=np.uint64)[senders]))
        transposed = self._matrix(0, prime, transposed=True)
        for _ in range(1, self._plain.rounds):
            if not new or space.full:
                return
            block = np.ascontiguousarray(space.newest(new).T)
            new = len(space.add(modular_linalg.sparse_times(*transposed, block, prime).T))

    def _forward(self, space: modular_linalg.RowSpace, attackers: tuple[int, ...], prime: int) -> None:
        state = np.eye(self.protocol.n, dtype=np.uint64)
        for t in range(self._plain.rounds):
            senders = list(self._plain.senders(t, attackers))
            if senders:
                space.add(state[senders])
            if space.full:
                return
            if t + 1 < self._plain.rounds:
                state = modular_linalg.sparse_times(*self._matrix(t, prime), state, prime)

    def _matrix(self, t: int, prime: int, transposed: bool = False) -> modular_linalg.Residues:
        if t not in self._entries:  # weights are read as rationals with the whole row at hand
            places = self._plain.matrix(t).copy()
            entries = modular_linalg.rational_entries(places)
            places.data = np.arange(float(places.nnz))
            places = places.T.tocsr() if transposed else places
            self._entries[t] = places, [entries[int(place)] for place in places.data]
        places, entries = self._entries[t]
        if (t, prime) not in self._residues:
            self._residues[t, prime] = modular_linalg.residues(entries, prime)
        return places.indptr, places.indices, self._residues[t, prime]
