"""Masked exact consensus: every member learns the sum of all rows and nothing else.

Rows are integers on a common grid. Every pair of *partners* shares a key, from which both derive the same
mask for a step; the one with the lower number adds it, the other subtracts it, modulo :math:`M = 2^{64}`.
The masked rows go up a spanning tree and are added on the way; the masks cancel, and the sum comes down:

.. math:: Y_u = X_u + \\sum_{w \\in H(u)} \\mathrm{sign}(w - u)\\, \\mathrm{PRG}_{uw} \\bmod M, \\qquad
          \\sum_u Y_u = \\sum_u X_u \\bmod M.

A coalition, even one that taps every link and does not follow the protocol, removes the masks it holds keys
of. What is left of the rows of the others is uniform, subject to their sums over the connected components of
the partner graph without the coalition. So those sums are its view, and `Masked.blocks` lists them.

Addition of integers modulo M is exact: every tree, order and runner gives the same bytes. The one
division comes after the sum, in float64. Masks cancel bit for bit, so a simulation may leave them out;
`sottovoce.secure_sum` makes them where rows go to other machines.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import Network, as_network
from sottovoce.graphs.network import adjacency_matrix, canonical_edges
from sottovoce.graphs.parsing import NetworkLike
from sottovoce.leakage.span import Span
from sottovoce.leakage.view import GaussianView
from sottovoce.noise.grid import from_grid, power_of_two, sum_of_rows, to_grid
from sottovoce.protocols.base import Nodes, Noise
from sottovoce.protocols.linear import ExactConsensus, NodeState, block_basis
from sottovoce.protocols.trees import Tree

COMPLETE_UP_TO = 64  # up to so many members, all are partners of all by default
PARTNERS = 16  # of each member beyond that; more cost time, fewer leave less room above `tolerate`
_MAX_CERTIFIED = 10_000_000  # members times keys up to which `hides_from` is computed without `tolerate`
FINE = 2.0**-32  # grid spacing of simulations: sums up to 2^30 in steps of 2e-10


class Masked(ExactConsensus):
    """Sums of masked rows go up a spanning tree, the sum of all comes down: the tree's messages, no more.

    Parameters
    ----------
    tree : a `Tree`, or a network, of which a shallow tree is taken.
    partners : who shares keys with whom; a public graph that need not be the communication graph. None:
        everybody with everybody up to 64 members, beyond that each with the 16 next on a circle, or with
        as many as ``tolerate`` needs. A whole number, rounded up to an even one: with so many next on a
        circle. Or a network, or pairs of nodes.
    tolerate : the number c of members that may collude while all others stay in one component, certified by
        the vertex connectivity of the partner graph. None certifies nothing: views of named coalitions are
        computed from their own components.
    grid_spacing : the power of two on whose multiples float rows are placed before they are added.

    Guarantees
    ----------
    If every honest member masks at most one row under one label, and X25519, AES-256 and HMAC hold, the view
    of any coalition that also taps every link is a function of its own rows and of the sums
    over `blocks`, also when it deviates. With equal noise ``h(u)`` is one over the size of the component
    of ``u``: at most ``1 / (n - c)`` for every coalition of at most ``tolerate`` members. Invalid numbers
    spoil the sum and uncover no row. A member that leaves out its noise takes it from the sum that hides the
    others, as a member of the coalition does.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> masked = sv.protocols.Masked(sv.graphs.grid(4, 4))
    >>> masked.apply(np.arange(16.0))[0].tolist(), masked.message_count
    ([7.5], 30)
    >>> (1 / masked.view(0).leakage()[1:]).round(9).tolist() == [15.0] * 15
    True
    >>> round(1 / float(masked.view([0, 3, 5]).leakage()[1]), 9)
    13.0
    """

    name = "masked"
    masked = True
    network: Network

    def __init__(
        self,
        tree: Tree | NetworkLike,
        partners: int | NetworkLike | ArrayLike | None = None,
        tolerate: int | None = 1,
        *,
        grid_spacing: float = FINE,
    ) -> None:
        self.tree = tree if isinstance(tree, Tree) else Tree(as_network(tree))
        self.network, self.root = self.tree.network, self.tree.root
        self.n, self.rounds = self.tree.n, self.tree.rounds
        self.grid_spacing = power_of_two(grid_spacing)
        self.tolerate = None if tolerate is None else _validate.count(tolerate, "tolerate", minimum=0)
        _refuse_few(self.n, self.tolerate)
        self.partner_edges, connectivity = _partner_edges(partners, self.n, self.tolerate or 0)
        if connectivity is not None:
            self._connectivity = connectivity
        self.partner_edges.setflags(write=False)
        self._partner_matrix = adjacency_matrix(self.partner_edges, self.n)
        if self.tolerate is not None and self.tolerate >= self._connectivity:
            raise GraphError(
                f"{self.tolerate} colluding members could part the others in the partner graph (its vertex "
                f"connectivity is {self._connectivity}), and would learn the sum of one part; add partners, "
                "lower tolerate, or leave partners out."
            )
        # The tree's schedule on the masked rows: sums only; the division comes after the sum is complete.
        self._matrices = [matrix.sign() for matrix in self.tree._matrices]

    # ---- who sends what --------------------------------------------------------------------------

    @property
    def message_count(self) -> int:
        return self.tree.message_count

    def partners(self, node: int) -> tuple[int, ...]:
        """Return the members that share a key with ``node``, sorted."""
        v = _validate.node(node, self.n)
        start, stop = self._partner_matrix.indptr[v : v + 2]
        return tuple(int(w) for w in self._partner_matrix.indices[start:stop])

    def hides_from(self, size: int) -> bool:
        """Return whether no ``size`` members can part the others in the partner graph, which hides them."""
        if self.tolerate is None and len(self.partner_edges) * self.n > _MAX_CERTIFIED:
            return False
        return size < self._connectivity

    @cached_property
    def _senders_to(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    @cached_property
    def _connectivity(self) -> int:
        """The least number of members without whom the partner graph falls apart; n - 1 if none do."""
        import networkx as nx

        graph = nx.Graph(self.partner_edges.tolist())
        graph.add_nodes_from(range(self.n))
        return int(nx.node_connectivity(graph))

    # ---- the runner ------------------------------------------------------------------------------

    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        """Return the mean of float rows, or the sum of integer rows, at every node.

        Float rows are placed on the grid, added as int64 and divided once. Rows of int64 or int32 are on
        somebody's grid already, masked or not: their sum modulo 2^64 or 2^32 comes back, lifted around 0.
        """
        integers, floating = self._integers(rows)
        final = self._finish(sum_of_rows(integers), floating)
        return np.repeat(final[None], self.n, axis=0)

    def entering(self, rows: np.ndarray) -> np.ndarray:
        """Return the hosted rows as integers on the grid: what ranks add up."""
        return to_grid(rows, self.grid_spacing, self.n)

    def leaving(self, rows: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        return self._finish(rows, np.dtype(dtype))

    def on_grid(self, spacing: float) -> Masked:
        if spacing == self.grid_spacing:
            return self
        other = copy.copy(self)
        other.grid_spacing = power_of_two(spacing)
        return other

    def node_state(self, node: int) -> NodeState:
        """Return the state machine of one node; start it with a float row or with a masked integer row."""
        return MaskedState(self, _validate.node(node, self.n))

    def _integers(self, rows: ArrayLike) -> tuple[np.ndarray, np.dtype | None]:
        """Return rows as integers, and the type in which the mean is wanted (None: integers came)."""
        array = np.asarray(rows)
        if array.dtype in (np.int64, np.int32):
            array = array[:, None] if array.ndim == 1 else array
            if array.ndim != 2 or array.shape[0] != self.n:
                raise InvalidInput(f"values must have one row per node ({self.n}), got shape {array.shape}.")
            return array, None
        array = _validate.rows(rows, self.n)
        return to_grid(array, self.grid_spacing, self.n), array.dtype

    def _finish(self, total: np.ndarray, floating: np.dtype | None) -> np.ndarray:
        if floating is None:
            return total
        return from_grid(total, self.grid_spacing, self.n).astype(floating)

    # ---- the accountant and the attacker ---------------------------------------------------------

    def blocks(self, v: Nodes = ()) -> list[np.ndarray]:
        """Return the sets whose sums the coalition ``v`` learns (components of their partner graph)."""
        others = np.setdiff1d(np.arange(self.n), self._coalition(v))
        if not len(others):
            return []
        remaining = self._partner_matrix[others][:, others]
        count, labels = sparse.csgraph.connected_components(remaining, directed=False)
        return [others[labels == k] for k in range(count)]

    def view(self, observers: Nodes = (), own_noise: bool = True) -> GaussianView:
        """Return what a coalition sees that also taps every link; the empty one is the outsider.

        Its `messages` name, in this order, the coalition's own rows as (0, member), if it knows its noise,
        and one sum per block as (0, the block's lowest member).
        """
        chosen = self._coalition(observers)
        blocks = self._seen_blocks(chosen, own_noise)
        own = list(chosen if own_noise else ())

        def decode(seen: np.ndarray) -> np.ndarray:
            estimate = np.zeros((self.n, seen.shape[1]))
            estimate[own] = seen[: len(own)]
            for block, total in zip(blocks, seen[len(own) :], strict=True):
                estimate[block] = total / len(block)
            return estimate

        span, owners = Span(block_basis(blocks, self.n)), np.arange(self.n)
        messages = tuple((0, int(v)) for v in [*own, *(block[0] for block in blocks)])
        assumptions = self.assumptions(chosen)
        return GaussianView(self.n, chosen, span, owners, messages, own_noise, decode, assumptions)

    def output_view(self, nodes: Nodes) -> GaussianView:
        _validate.nodes(nodes, self.n, "nodes")
        everybody = Span(block_basis([np.arange(self.n)], self.n))
        return GaussianView(self.n, (), everybody, np.arange(self.n), own_noise=False)

    def observe(
        self,
        rows: ArrayLike,
        observers: Nodes = (),
        own_noise: bool = True,
        noise: Noise = None,
        step: int = 0,
    ) -> np.ndarray:
        """Return what the coalition is left with of a run, in the order of `GaussianView.messages`.

        Of the masked rows it tapped only the sums over blocks are not uniform. Integer rows give integers, as
        float64.
        """
        integers, floating = self._integers(rows)
        chosen = self._coalition(observers)
        sums = [sum_of_rows(integers[block]) for block in self._seen_blocks(chosen, own_noise)]
        known = integers[list(chosen if own_noise else ())]
        seen = np.concatenate([known, np.array(sums, integers.dtype).reshape(-1, integers.shape[1])])
        return from_grid(seen, 1.0 if floating is None else self.grid_spacing)

    def assumptions(self, v: Nodes = ()) -> tuple[str, ...]:
        chosen = self._coalition(v)
        members = "nobody's key" if not chosen else f"the keys of {', '.join(map(str, chosen))}"
        return (
            "X25519, AES-256 and HMAC hold",
            "no mask is used twice (the program sees to it)",
            f"the observer taps every link and holds {members}, following the protocol or not",
        )

    def _seen_blocks(self, chosen: tuple[int, ...], own_noise: bool) -> list[np.ndarray]:
        # Not knowing its own noise, a coalition still gets its own sum, from the sum of all.
        also = [np.array(chosen)] if chosen and not own_noise else []
        return [*self.blocks(chosen), *also]

    def _coalition(self, members: Nodes) -> tuple[int, ...]:
        nodes = [members] if isinstance(members, (int, np.integer)) else list(members)
        return _validate.nodes(nodes, self.n, "the coalition") if nodes else ()


class MaskedState(NodeState):
    """The state machine of one node: adds what its children send, hands on what its parent sends."""

    protocol: Masked
    _floating: np.dtype | None = None

    def start(self, row: np.ndarray) -> None:
        state = np.array(row, copy=True)
        self._floating, self._done = None, 0
        if state.dtype not in (np.int64, np.int32):
            state = state if state.dtype in (np.float32, np.float64) else state.astype(np.float64)
            self._floating = state.dtype
            state = to_grid(state, self.protocol.grid_spacing, self.protocol.n)
        self._state = state

    def expects(self, t: int) -> tuple[int, ...]:
        # read off the matrix once: in a peer that takes as long as all masks of a row
        known, key = self.protocol._senders_to, (t, self.node)
        if key not in known:
            known[key] = super().expects(t)
        return known[key]

    def receive(self, t: int, rows: Mapping[int, np.ndarray], noise: Noise = None, step: int = 0) -> None:
        own = self.message(t)
        senders = self.expects(t)
        for w in senders:
            sent = f"{rows[w].dtype} {rows[w].shape}" if w in rows else "nothing"
            wanted = f"{own.dtype} {own.shape}"
            if sent != wanted:
                raise InvalidInput(
                    f"Node {self.node} needs a row of {wanted} in round {t}, node {w} sent {sent}."
                )
        if senders and t < self.protocol.tree.depth:  # upwards
            self._state = sum_of_rows(np.stack([own, *(rows[w] for w in senders)]))
        elif senders:
            self._state = np.array(rows[senders[0]], copy=True)
        self._done = t + 1

    def result(self) -> np.ndarray:
        return self.protocol._finish(self.message(self.rounds), self._floating)


# ---- the partner graph -----------------------------------------------------------------------------------


def _refuse_few(n: int, tolerate: int | None) -> None:
    if n < 2:
        raise InvalidInput("masks need at least two members, got one.")
    if n == 2 and tolerate:
        raise InvalidInput(
            "with two members each computes the other's row from the sum, so masks hide it only from "
            "tappers; invite a third member, or say tolerate=0."
        )
    if tolerate is not None and tolerate >= n - 1:
        raise InvalidInput(
            f"tolerate must be at most {n - 2} of {n} members, got {tolerate}; against all others there is "
            "only the own noise, which every view called local states."
        )


def _partner_edges(
    partners: int | NetworkLike | ArrayLike | None, n: int, tolerate: int
) -> tuple[np.ndarray, int | None]:
    """Return the partner graph's edges, and its vertex connectivity where it is known without looking."""
    if partners is None:
        partners = n - 1 if n <= COMPLETE_UP_TO else max(PARTNERS, tolerate + 1)
    if isinstance(partners, (int, np.integer)):
        return _circle(_validate.count(int(partners), "partners"), n)
    if isinstance(partners, (np.ndarray, list, tuple)):
        return canonical_edges(partners, n), None
    graph = as_network(partners)
    if graph.n != n:
        raise GraphError(f"the partner graph has {graph.n} nodes, the network {n}; each member is in both.")
    return graph.edges.copy(), None


def _circle(degree: int, n: int) -> tuple[np.ndarray, int]:
    """Return the circulant with offsets 1 .. degree / 2, whose connectivity is its degree (Harary 1962)."""
    half = (degree + 1) // 2
    nodes = np.arange(n)
    if 2 * half >= n - 1:
        return np.column_stack(np.triu_indices(n, 1)).astype(np.int64), n - 1
    pairs = [np.column_stack([nodes, (nodes + hop) % n]) for hop in range(1, half + 1)]
    return canonical_edges(np.concatenate(pairs), n), 2 * half
