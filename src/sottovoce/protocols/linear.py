"""Linear protocols: a public sequence of sparse matrices.

The state of all nodes moves by ``state[t + 1] = matrix(t) @ state[t]``, and node ``v`` receives the state row
of ``w`` in round ``t`` for every non-zero entry ``(v, w)`` of ``matrix(t)`` off the diagonal. A protocol may
also remember a second row per node (`memory`, `recursion`) and add fresh noise in a round (`advance`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.leakage.span import Span, decode, observed_span, output_span, repeated_matrix_span
from sottovoce.leakage.trace import (
    FAINT_WEIGHT,
    AddNoise,
    ApplyMatrix,
    Event,
    ExecutionTrace,
    FillMemory,
    Observe,
)
from sottovoce.leakage.view import GaussianView
from sottovoce.noise.samplers import Agents, Rows
from sottovoce.protocols.base import Nodes, Noise, Protocol

if TYPE_CHECKING:
    from sottovoce.leakage.modular_linalg import ExactMatrix

_MatrixRow: TypeAlias = tuple[sparse.csr_array, list[int], sparse.csr_array]
Recursion: TypeAlias = tuple[tuple[float, float], tuple[float, float, float]]


LONG = 1 << 12  # numbers in a row from which on rows are mixed and moved in threads


class LinearProtocol(Protocol):
    """A protocol given by its matrices; subclasses say which matrix is used in which round.

    Subclasses list their matrices, or define `matrix`. One that does more to its rows than mix them declares
    it: a second row per node by `memory` and `recursion`, fresh noise by ``fresh_std`` and `advance`. Runner,
    peer, cluster, observer and accountant use the same functions.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> class Once(sv.protocols.LinearProtocol):
    ...     name, n, rounds = "once", 3, 1
    ...
    ...     def matrix(self, t):
    ...         return sv.graphs.complete(3).W
    >>> Once().apply(np.array([0.0, 3.0, 6.0])).ravel().tolist(), Once().message_count
    ([3.0, 3.0, 3.0], 6)
    """

    linear = True
    _matrices: Sequence[sparse.csr_array]  # one per round

    @property
    def same_messages(self) -> LinearProtocol:
        """A protocol whose messages to every node span the same space, without memory where there is one."""
        return self

    def matrix(self, t: int) -> sparse.csr_array:
        """Return the (n, n) matrix of round ``t``; its off-diagonal non-zeros are the messages."""
        return self._matrices[t]

    def recursion(self, t: int, real: Callable[[float], float] = float) -> Recursion:
        """Return ((a, b), (c, d, e)) of round ``t``, as numbers of the type of the rows.

        The next rows are ``a * mixed + b * previous``. The next ``previous``, which nobody else sees, is ``c
        * mixed + e * previous``, or with d = 1 the rows of this round.
        """
        return (1.0, 0.0), (0.0, 1.0, 0.0)

    first_memory: float = 1.0  # before the first round this multiple of the first rows is remembered

    @cached_property
    def convex(self) -> bool:  # type: ignore[override]
        matrices = {id(matrix): matrix for matrix in map(self.matrix, range(self.rounds))}
        return self.matrices_suffice and all(
            matrix.data.min(initial=0.0) >= 0 and np.allclose(matrix.sum(axis=1), 1.0, rtol=0, atol=1e-9)
            for matrix in matrices.values()
        )

    # ---- the runner ------------------------------------------------------------------------------

    def apply(self, rows: ArrayLike, noise: Noise = None, step: int = 0) -> np.ndarray:
        return deque(self._states(_validate.rows(rows, self.n), noise, step), maxlen=1).pop()

    def _states(self, state: np.ndarray, noise: Noise = None, step: int = 0) -> Iterator[np.ndarray]:
        """Yield the rows that are sent in each round, then those it ends with.

        The next one may overwrite the last: keep copies.
        """
        previous = self._remembered(state)
        yield state
        for t in range(self.rounds):
            mixed = self._mix(t, state)
            after = self.advance(t, mixed, previous, agents=range(self.n), noise=noise, step=step)
            # without memory nothing is kept: rows may be large
            previous = self.remember(t, mixed, state, previous) if self.memory > 1 else after
            state = after
            yield state

    def _remembered(self, rows: np.ndarray) -> np.ndarray:
        """Return what is remembered before the first round."""
        return rows if self.first_memory == 1.0 else rows.dtype.type(self.first_memory) * rows

    def _mix(self, t: int, state: np.ndarray) -> np.ndarray:
        """Return ``matrix(t) @ state``, in the rows' own precision."""
        matrix, dim = self._cast(t, state.dtype), state.shape[1]
        if dim < LONG or matrix.dtype.kind != "f":
            return np.asarray(matrix @ state)
        from sottovoce.protocols.long_rows import write_mixed

        mixed = np.empty_like(state, order="C")
        write_mixed(matrix.indptr, matrix.indices, matrix.data, np.ascontiguousarray(state), mixed)
        return mixed

    def advance(
        self, t: int, mixed: Rows, previous: Rows, *, agents: Agents, noise: Noise, step: int
    ) -> Rows:
        """Return the rows of ``agents`` after round ``t``, from their part of ``matrix(t) @ state``.

        ``previous`` is what the same agents `remember`. Overriding functions may add noise and nothing else.
        """
        (a, b), _ = self.recursion(t, mixed.dtype.type)
        return np.asarray(a * mixed + b * previous) if b else mixed

    def remember(self, t: int, mixed: Rows, present: Rows, previous: Rows) -> Rows:
        """Return what is given to the next `advance` as ``previous``."""
        _, (c, d, e) = self.recursion(t, mixed.dtype.type)
        return present if d == 1 else np.asarray(c * mixed + e * previous)

    def entering(self, rows: np.ndarray) -> np.ndarray:
        """Return the hosted rows in the numbers in which ranks mix them: as they are, unless masked."""
        return rows

    def leaving(self, rows: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """Return mixed rows in the numbers of the algorithm, ``dtype``."""
        return rows

    @property
    def message_count(self) -> int:
        return sum(len(_off_diagonal(self.matrix(t))[0]) for t in range(self.rounds))

    def _cast(self, t: int, dtype: DTypeLike) -> sparse.csr_array:
        """Return the matrix of round ``t`` in the rows' own precision."""
        matrix = self.matrix(t)
        if matrix.dtype == dtype:
            return matrix
        original, cast = self._casts.get(id(matrix), (None, matrix))
        if original is not matrix or cast.dtype != dtype:
            cast = matrix.astype(dtype)
            self._casts[id(matrix)] = (matrix, cast)
        return cast

    @cached_property
    def _casts(self) -> dict[int, tuple[sparse.csr_array, sparse.csr_array]]:
        return {}

    def _row_at(self, t: int, node: int, dtype: DTypeLike) -> _MatrixRow:
        """Return the matrix of round ``t``, whose rows one node takes, and their weights.

        A peer needs it in every round, mostly of the same matrix; slicing takes longer than the product.
        """
        matrix = self._cast(t, dtype)
        known = self._rows_at.get(node)
        if known is None or known[0] is not matrix:
            weights = matrix[[node]]
            count = len(weights.indices)
            compact = sparse.csr_array((weights.data, np.arange(count), weights.indptr), shape=(1, count))
            known = self._rows_at[node] = (matrix, [int(w) for w in weights.indices], compact)
        return known

    @cached_property
    def _rows_at(self) -> dict[int, _MatrixRow]:
        return {}

    # ---- the accountant and the attacker ---------------------------------------------------------

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        """Return the nodes whose message of round ``t`` reaches an observer, sorted."""
        chosen = _validate.nodes(observers, self.n)
        matrix = self.matrix(t)[list(chosen)]
        rows = np.repeat(np.asarray(chosen), np.diff(matrix.indptr))
        heard = matrix.indices[(matrix.indices != rows) & (matrix.data != 0)]
        return tuple(int(w) for w in np.unique(heard))

    def reaching(self, nodes: np.ndarray) -> np.ndarray:
        reached = np.array(nodes, dtype=bool)
        for t in reversed(range(self.rounds)):
            reached[self.matrix(t)[np.flatnonzero(reached)].indices] = True
        return reached

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        chosen = _validate.nodes(observers, self.n)
        seen = enumerate(self._seen(chosen, own_noise))
        messages = tuple((t, w) for t, nodes in seen for w in nodes)

        def decoded(values: np.ndarray) -> np.ndarray:
            return decode(self.trace(chosen, own_noise), values)

        return self._view_of(self._span(chosen, own_noise), chosen, messages, own_noise, decoded)

    repeats_matrix: bool = False  # whether what is seen is spanned by powers of ``matrix(0)``

    def _span(self, observers: tuple[int, ...], own_noise: bool) -> Span:
        """Return the span of all that is seen: by the Krylov recursion for one matrix, else backwards."""
        if not self.repeats_matrix:
            return observed_span(self.trace(observers, own_noise))
        return repeated_matrix_span(replace(self.same_messages.trace(observers, own_noise), fixed=True))

    def _view_of(
        self,
        span: Span,
        observers: tuple[int, ...] = (),
        messages: tuple[tuple[int, int], ...] = (),
        own_noise: bool = False,
        decoded: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> GaussianView:
        owners = np.full(span.basis.shape[0], -1)  # fresh noise belongs to nobody
        owners[: self.n] = np.arange(self.n)
        return GaussianView(self.n, observers, span, owners, messages, own_noise, decoded)

    def output_view(self, nodes: Nodes) -> GaussianView:
        return self._view_of(output_span(self.trace((), final=_validate.nodes(nodes, self.n, "nodes"))))

    def trace(
        self, observers: tuple[int, ...], own_noise: bool = True, final: tuple[int, ...] = ()
    ) -> ExecutionTrace:
        """Return the run as functionals of its noises, with what the observers see.

        ``final`` are nodes whose rows are seen after the last round.
        """
        n = self.n
        events: list[Event] = [AddNoise(0, n, 1.0)]
        if self.memory > 1:
            events.append(FillMemory(self.first_memory))
        coordinates = n
        seen = self._seen(observers, own_noise) if observers else [()] * self.rounds
        for t, nodes in enumerate(seen):
            events += [Observe(nodes), *self._events(t)]
            if self.fresh_std and t < self.rounds - 1:
                events.append(AddNoise(coordinates, n, self.fresh_std))
                coordinates += n
        if final:
            events.append(Observe(final))
        own = observers if own_noise else ()
        known = tuple(start + v for start in range(0, coordinates, n) for v in own)
        size, matrices = self.memory * n, self._exact_matrices
        return ExecutionTrace(size, coordinates, tuple(events), known, False, self.faint, matrices)

    def _events(self, t: int) -> tuple[Event, ...]:
        return (ApplyMatrix(self.matrix(t), self.recursion(t) if self.memory > 1 else None),)

    @cached_property
    def _exact_matrices(self) -> dict[int, ExactMatrix]:
        return {}

    @cached_property
    def faint(self) -> bool:
        """Whether some weight is so small (below 2^-12) that its contribution may look like rounding."""
        least = (np.abs(m.data[m.data != 0]).min(initial=1.0) for m in map(self.matrix, range(self.rounds)))
        return bool(min(least, default=1.0) < FAINT_WEIGHT)

    def observe(
        self, rows: ArrayLike, observers: Nodes, own_noise: bool = True, noise: Noise = None, step: int = 0
    ) -> np.ndarray:
        state = _validate.rows(rows, self.n)
        seen = self._seen(_validate.nodes(observers, self.n), own_noise)
        states = self._states(state, noise, step)
        return np.concatenate([state[:0], *(next(states)[list(nodes)] for nodes in seen)])

    def _seen(self, observers: tuple[int, ...], own_noise: bool) -> list[tuple[int, ...]]:
        """Return, per round, the nodes whose rows the observers know: senders to them, and themselves."""
        return [self._seen_in(t, observers, own_noise) for t in range(self.rounds)]

    def _seen_in(self, t: int, observers: tuple[int, ...], own_noise: bool) -> tuple[int, ...]:
        own = set(observers) if own_noise else set()
        return tuple(sorted(own | set(self.senders(t, observers))))

    # ---- the peer --------------------------------------------------------------------------------

    def node_state(self, node: int) -> NodeState:
        (v,) = _validate.nodes(node, self.n, "node")
        return NodeState(self, v)

    def receivers(self, t: int, node: int) -> tuple[int, ...]:
        """Return the nodes that receive the message of ``node`` in round ``t``, sorted."""
        to, source = _off_diagonal(self.matrix(t))
        return tuple(int(v) for v in np.unique(to[source == node]))


class ExactConsensus(LinearProtocol):
    """A protocol that ends with the same mean at every node, and whose messages to a node are disjoint sums.

    Subclasses give `blocks`. For one observer whose noise is known the basis of the view is then written
    down directly; any other case goes through the general recursion (a test compares the two).
    """

    reaches_consensus = True

    @abstractmethod
    def blocks(self, v: Nodes) -> list[np.ndarray]:
        """Return the disjoint node sets whose sums or means node ``v`` sees."""

    def _span(self, observers: tuple[int, ...], own_noise: bool) -> Span:
        if not own_noise or (len(observers) > 1 and not self.knows_coalitions):
            return super()._span(observers, own_noise)
        return Span(block_basis(self.blocks(observers), self.n))


def block_basis(blocks: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return (n, blocks) orthonormal columns, one per disjoint set of nodes whose sum is seen."""
    basis = np.zeros((n, len(blocks)))
    for j, block in enumerate(blocks):
        basis[block, j] = 1 / np.sqrt(len(block))
    return basis


def as_linear(protocol: Protocol, refusal: str | None = None) -> LinearProtocol:
    """Return the protocol as a linear one, or refuse it; ``refusal`` replaces the default message."""
    if not isinstance(protocol, LinearProtocol):
        raise InvalidInput(refusal or f"Expected a linear protocol, given by its matrices, got {protocol!r}.")
    return protocol


_STRETCH = 1 << 14  # numbers of each row that are mixed at a time


class NodeState:
    """One node's part in a `LinearProtocol`: what to send in a round, and what to do with the rows received.

    A peer calls `start` with its row, then for every round sends `message` to `sends` and gives the rows
    from `expects` to `receive`. The result is the row that `Protocol.apply` gives this node, bit for bit.
    """

    def __init__(self, protocol: LinearProtocol, node: int) -> None:
        self.protocol, self.node, self.rounds = protocol, node, protocol.rounds
        self._state: np.ndarray | None = None
        self._done = 0

    def start(self, row: np.ndarray) -> None:
        """Begin with this node's (already noised) row."""
        self._state = np.array(row, copy=True)
        if self.protocol.memory > 1:  # else not kept: a peer writes its machine down in every round
            self._previous = self.protocol._remembered(self._state)
        self._done = 0

    def sends(self, t: int) -> tuple[int, ...]:
        """Return the nodes that get this node's message in round ``t``, sorted."""
        return self.protocol.receivers(t, self.node)

    def expects(self, t: int) -> tuple[int, ...]:
        """Return the nodes whose messages this node needs in round ``t``, sorted."""
        return self.protocol.senders(t, self.node)

    def message(self, t: int) -> np.ndarray:
        """Return the row to send in round ``t``; the same bytes go to every destination."""
        self._expect_round(t)
        return self._present

    def receive(self, t: int, rows: Mapping[int, np.ndarray], noise: Noise = None, step: int = 0) -> None:
        """Take the rows of round ``t`` and move on to the next."""
        self._expect_round(t)
        present = self._present
        _, sources, weights = self.protocol._row_at(t, self.node, present.dtype)
        missing = set(sources) - {self.node, *rows}
        if missing:
            raise InvalidInput(f"Node {self.node} needs the row of node {min(missing)} in round {t}.")
        parts = [np.reshape(present if w == self.node else rows[w], -1) for w in sources]
        mixed = np.empty((1, present.size), present.dtype)
        for begin in range(0, present.size, _STRETCH):  # the rows of a stretch stay in the processor's cache
            stretch = slice(begin, begin + _STRETCH)
            gathered = np.array([part[stretch] for part in parts], dtype=present.dtype)
            mixed[:, stretch] = weights @ gathered  # summed as the stacked product is
        previous = (self._previous if self.protocol.memory > 1 else present).reshape(1, -1)
        (self._state,) = self.protocol.advance(t, mixed, previous, agents=[self.node], noise=noise, step=step)
        if self.protocol.memory > 1:
            (self._previous,) = self.protocol.remember(t, mixed, present.reshape(1, -1), previous)
        self._done = t + 1

    def result(self) -> np.ndarray:
        """Return this node's row after the last round."""
        if self._done != self.rounds:
            raise InvalidInput(f"Round {self._done} of {self.rounds} is still to come at node {self.node}.")
        return self._present

    @property
    def _present(self) -> np.ndarray:
        if self._state is None:
            raise InvalidInput(f"Node {self.node} has no row yet; call start(row) first.")
        return self._state

    def _expect_round(self, t: int) -> None:
        if t != self._done:
            raise InvalidInput(f"Node {self.node} is in round {self._done}, got a call for round {t}.")


def _off_diagonal(matrix: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return (receiver, sender) of every off-diagonal non-zero."""
    entries = matrix.tocoo()
    off = (entries.row != entries.col) & (entries.data != 0)
    return entries.row[off], entries.col[off]


def row_copies(sources: np.ndarray) -> sparse.csr_array:
    """Return the matrix by which every node takes over the row of its source."""
    n = len(sources)
    return sparse.csr_array((np.ones(n), sources, np.arange(n + 1)), shape=(n, n))


def sorted_csr(matrix: sparse.sparray) -> sparse.csr_array:
    """Return a csr copy without stored zeros, its indices sorted: the order in which rows are summed."""
    csr = sparse.csr_array(matrix)
    csr.eliminate_zeros()
    csr.sort_indices()
    return csr
