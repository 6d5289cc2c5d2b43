"""The protocol object: who sends which linear combination to whom, round by round.

A linear protocol is a public sequence of sparse matrices. The state of all nodes moves by
``state[t + 1] = matrix(t) @ state[t]``, and node ``v`` receives the state row of ``w`` in round ``t`` for
every non-zero entry ``(v, w)`` of ``matrix(t)`` off the diagonal. That one sentence is read four times: the
runner multiplies (`Protocol.apply`), the peer sends and receives rows (`Protocol.local`), the accountant
measures the span of what arrives (`Protocol.view`), the attacker solves for what it does not know
(`GaussianView.reconstruct`). They cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.protocols.views import Basis, GaussianView, orthonormal

__all__ = ["LinearProtocol", "Local", "Protocol"]

Nodes = int | Iterable[int]

RESOLVED = 1e-9  # rounding errors in the leakage up to this are ignored, up to COARSE they are added to it
COARSE = 0.02


class Protocol(ABC):
    """Who talks to whom and what they say: the object that every other part reads.

    Attributes
    ----------
    n : number of nodes.
    rounds : number of communication rounds.
    name : the word used on the command line and in records.

    Examples
    --------
    >>> import sottovoce as sv
    >>> protocol = sv.protocols.Gossip(sv.graphs.ring(4), rounds=2)
    >>> protocol.n, protocol.rounds, protocol.messages
    (4, 2, 16)
    """

    n: int
    rounds: int
    name: str

    @abstractmethod
    def apply(self, rows: Any, noise: Any = None, step: int = 0) -> np.ndarray:
        """Run the protocol on one row per node and return the rows it ends with.

        ``noise`` is a noise source, needed only by protocols that add fresh noise in a round; ``step``
        numbers the averaging within a longer run so that no noise is drawn twice.
        """

    @abstractmethod
    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees of the noise and the values."""

    @abstractmethod
    def output_view(self, nodes: Nodes) -> GaussianView:
        """Return what somebody learns who sees nothing but the final rows of ``nodes``."""

    @abstractmethod
    def observe(self, rows: Any, observers: Nodes, own_noise: bool = True) -> np.ndarray:
        """Run the protocol and return what the observers see, in the order of `GaussianView.messages`."""

    @abstractmethod
    def local(self, node: int) -> Local:
        """Return the state machine of one node, for a peer."""

    @property
    @abstractmethod
    def messages(self) -> int:
        """Number of rows sent in all, over all nodes and rounds."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, rounds={self.rounds})"


class Local(ABC):
    """One node's side of a protocol: what to send now, what to do with what came.

    A peer calls `start` with its row, then for every round sends `message` to `sends` and gives the rows
    from `expects` to `receive`. The result is the row that `Protocol.apply` gives this node, bit for bit.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> exchange = sv.protocols.Exchange(2)
    >>> left, right = exchange.local(0), exchange.local(1)
    >>> left.start(np.array([1.0])); right.start(np.array([3.0]))
    >>> left.sends(0), left.expects(0)
    ((1,), (1,))
    >>> left.receive(0, {1: right.message(0)})
    >>> left.result().tolist()
    [2.0]
    """

    node: int
    rounds: int

    @abstractmethod
    def start(self, row: np.ndarray) -> None:
        """Begin with this node's (already noised) row."""

    @abstractmethod
    def sends(self, t: int) -> tuple[int, ...]:
        """Return the nodes that get this node's message in round ``t``, sorted."""

    @abstractmethod
    def expects(self, t: int) -> tuple[int, ...]:
        """Return the nodes whose messages this node needs in round ``t``, sorted."""

    @abstractmethod
    def message(self, t: int) -> np.ndarray:
        """Return the row to send in round ``t``; the same bytes go to every destination."""

    @abstractmethod
    def receive(self, t: int, rows: Mapping[int, np.ndarray], noise: Any = None, step: int = 0) -> None:
        """Take the rows of round ``t`` and move on to the next."""

    @abstractmethod
    def result(self) -> np.ndarray:
        """Return this node's row after the last round."""


class LinearProtocol(Protocol):
    """A protocol given by its matrices; subclasses say which matrix is used in which round.

    Subclasses define `matrix`. One with memory (Chebyshev) or fresh noise overrides `transition` or
    ``fresh_std`` and the accountant follows, because it reads the same two.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> class Once(sv.protocols.LinearProtocol):
    ...     name, n, rounds = "once", 3, 1
    ...
    ...     def matrix(self, t):
    ...         return sv.graphs.complete(3).W
    >>> Once().apply(np.array([0.0, 3.0, 6.0])).ravel().tolist(), Once().messages
    ([3.0, 3.0, 3.0], 6)
    """

    fresh_std: float = (
        0.0  # std of noise added at every node after each round but the last, in units of sigma
    )

    @abstractmethod
    def matrix(self, t: int) -> sparse.csr_array:
        """Return the (n, n) matrix of round ``t``; its off-diagonal non-zeros are the messages."""

    def transition(self, t: int) -> sparse.csr_array:
        """Return the matrix on the whole state (present rows first, then memory); `matrix` by default."""
        return self.matrix(t)

    @property
    def memory(self) -> int:
        """How many times the state is as long as the number of nodes; 1 without memory."""
        return 1

    # ---- the runner ------------------------------------------------------------------------------

    def apply(self, rows: Any, noise: Any = None, step: int = 0) -> np.ndarray:
        """Run the protocol on one row per node (float32 or float64, kept as given)."""
        state = _validate.rows(rows, self.n)
        for t in range(self.rounds):
            state = self._cast(t, state.dtype) @ state
        return state

    def advance(
        self,
        t: int,
        mixed: np.ndarray,
        previous: np.ndarray,
        *,
        agents: Any,
        noise: Any = None,
        step: int = 0,
    ) -> np.ndarray:
        """Return the rows of ``agents`` after round ``t``, from their part of ``matrix(t) @ state``.

        ``previous`` are the same agents' rows of one round earlier (in round 0, the ones it began with).
        What a protocol does to its own rows besides mixing (memory, fresh noise) is said here, for runners
        that host some of the nodes.
        """
        return mixed

    @property
    def messages(self) -> int:
        """Number of rows sent in all, over all nodes and rounds."""
        return sum(len(_off_diagonal(self.matrix(t))[0]) for t in range(self.rounds))

    def _cast(self, t: int, dtype: Any) -> sparse.csr_array:
        """Return the matrix of round ``t`` in the rows' own precision."""
        matrix = self.matrix(t)
        if matrix.dtype == dtype:
            return matrix
        held, cast = self._casts.get(id(matrix), (None, None))
        if held is not matrix or cast is None or cast.dtype != dtype:
            cast = matrix.astype(dtype)
            self._casts[id(matrix)] = (matrix, cast)
        return cast

    @cached_property
    def _casts(self) -> dict[int, Any]:
        return {}

    # ---- the accountant and the attacker ---------------------------------------------------------

    def senders(self, t: int, observers: Nodes) -> tuple[int, ...]:
        """Return the nodes whose message of round ``t`` reaches an observer, sorted.

        Examples
        --------
        >>> import sottovoce as sv
        >>> sv.protocols.Gossip(sv.graphs.path(4), rounds=1).senders(0, 1)
        (0, 2)
        """
        chosen = _validate.nodes(observers, self.n)
        matrix = self.matrix(t)[list(chosen)]
        rows = np.repeat(np.asarray(chosen), np.diff(matrix.indptr))
        heard = matrix.indices[(matrix.indices != rows) & (matrix.data != 0)]
        return tuple(int(w) for w in np.unique(heard))

    def view(self, observers: Nodes, own_noise: bool = True) -> GaussianView:
        """Return what a set of colluding nodes sees, by the backward recursion over the rounds."""
        chosen = _validate.nodes(observers, self.n)
        known = chosen if own_noise else ()
        columns, slack = self._span(chosen, own_noise)
        owners = np.full(columns.shape[0], -1)
        owners[: self.n] = np.arange(self.n)
        own = _copies(np.asarray(known, dtype=int), len(owners), self.n)
        return replace(self._as_view(chosen, own_noise, _without(columns, own)), owners=owners, slack=slack)

    def _as_view(self, observers: tuple[int, ...], own_noise: bool, basis: np.ndarray) -> GaussianView:
        """Return the view with this basis over the nodes' noises, decodable by the backward recursion."""
        return GaussianView(
            n=self.n,
            observers=observers,
            basis=basis,
            owners=np.arange(self.n),
            messages=self._seen(observers, own_noise),
            own_noise=own_noise,
            decode=lambda seen: self._decode(observers, own_noise, seen),
        )

    def output_view(self, nodes: Nodes) -> GaussianView:
        """Return what somebody learns who sees nothing but the final rows of ``nodes``.

        Examples
        --------
        >>> import sottovoce as sv
        >>> sv.protocols.Exchange(4).output_view(0).leakage().round(9).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        chosen = _validate.nodes(nodes, self.n, "nodes")
        basis = Basis(self.memory * self.n)
        basis.add_unit(chosen)
        for t in reversed(range(self.rounds)):
            self._step_back(basis, t)
        if self.memory > 1:
            basis.columns = basis.columns[: self.n]
            basis.orthonormalise()
        owners = np.full(basis.columns.shape[0], -1)
        owners[: self.n] = np.arange(self.n)
        return GaussianView(
            n=self.n, observers=(), basis=basis.columns, owners=owners, messages=(), own_noise=False
        )

    def observe(self, rows: Any, observers: Nodes, own_noise: bool = True, noise: Any = None) -> np.ndarray:
        """Run the protocol and return what the observers see, in the order of `GaussianView.messages`."""
        state = _validate.rows(rows, self.n)
        chosen = _validate.nodes(observers, self.n)
        states = list(self._states(state, noise))
        return np.array([states[t][w] for t, w in self._seen(chosen, own_noise)])

    def _states(self, state: np.ndarray, noise: Any = None) -> Iterable[np.ndarray]:
        """Yield the rows that are sent in each round."""
        for t in range(self.rounds):
            yield state
            state = self._cast(t, state.dtype) @ state

    def _seen(self, observers: tuple[int, ...], own_noise: bool) -> tuple[tuple[int, int], ...]:
        """List (round, node) of every row the observers know: messages, and their own states."""
        own = set(observers) if own_noise else set()
        return tuple(
            (t, w) for t in range(self.rounds) for w in sorted(own | set(self.senders(t, observers)))
        )

    def _span(self, observers: tuple[int, ...], own_noise: bool) -> tuple[np.ndarray, float]:
        """Return the span of all that is seen, and what rounding may have taken from the leakage.

        A round that nearly loses a direction passes its rounding error on, enlarged; over many rounds on
        slowly mixing graphs the error reaches the leading digits, and it may be on either side. So the
        recursion runs twice, the second time with every number disturbed by 1e-14, and ten times the
        difference is added to the leakage; where that is much, a wider span takes its place.
        """
        columns = self._pull_back(observers, own_noise).columns
        if self.memory > 1 or self.rounds < 3:
            return columns, 0.0
        disturbed = self._pull_back(observers, own_noise, disturb=np.random.default_rng(0)).columns
        known = np.asarray(observers if own_noise else (), dtype=int)
        shares = [
            np.einsum("ij,ij->i", left[: self.n], left[: self.n])
            for left in (_without(c, _copies(known, c.shape[0], self.n)) for c in (columns, disturbed))
        ]
        slack = 10 * float(np.abs(shares[0] - shares[1]).max())
        if slack <= RESOLVED:
            return columns, 0.0
        wider = self._wider(observers, own_noise)
        if slack > COARSE or wider.shape[1] <= columns.shape[1]:  # it holds all that is seen, and no more
            return wider, 0.0
        return columns, slack

    def _wider(self, observers: tuple[int, ...], own_noise: bool) -> np.ndarray:
        """Return a span that contains all that is seen, without enlarging errors.

        It keeps every functional it ever had besides pulling it back, and gives the observers the fresh
        noise of the rounds. For one matrix used in every round, and no fresh noise, it is the span itself.
        """
        span = np.zeros((self.n, 0))
        own = set(observers) if own_noise else set()
        for t in reversed(range(self.rounds)):
            seen = sorted(own | set(self.senders(t, observers)))
            units = np.zeros((self.n, len(seen)))
            units[seen, np.arange(len(seen))] = 1.0
            block = np.hstack([units, self.matrix(t).T @ span])
            for _ in range(2):
                block -= span @ (span.T @ block)
            fresh = orthonormal(block)[0]
            fresh -= span @ (span.T @ fresh)
            span = np.hstack([span, np.linalg.qr(fresh)[0]])
        return span

    def _pull_back(
        self,
        observers: tuple[int, ...],
        own_noise: bool,
        seen: np.ndarray | None = None,
        disturb: np.random.Generator | None = None,
    ) -> Basis:
        """Return the span of all that is seen, as functionals of the initial state.

        Backwards in time: a functional f of state[t + 1] is the functional transition(t).T f of state[t]
        (and fresh_std * f of the fresh noise in between). Each round adds the rows seen in it, then
        the basis is made orthonormal again, so that no direction fades away over the rounds.
        """
        listed = self._seen(observers, own_noise)
        basis = Basis(self.memory * self.n, 0 if seen is None else seen.shape[1])
        known: dict[int, list[int]] = {}
        for row, (t, _) in enumerate(listed):
            known.setdefault(t, []).append(row)
        for t in reversed(range(self.rounds)):
            self._step_back(basis, t)
            if disturb is not None:
                basis.columns = basis.columns * (1 + 1e-14 * disturb.standard_normal(basis.columns.shape))
            rows = known.get(t, [])
            basis.add_unit([listed[r][1] for r in rows], None if seen is None else seen[rows])
        if self.memory > 1:  # the memory is empty before the first round
            basis.columns = basis.columns[: self.n]
            basis.orthonormalise()
        return basis

    def _step_back(self, basis: Basis, t: int) -> None:
        if not basis.columns.shape[1]:
            if self.fresh_std and t < self.rounds - 1:
                basis.columns = np.zeros((basis.columns.shape[0] + self.n, 0))
            return
        size = self.memory * self.n
        state, rest = basis.columns[:size], basis.columns[size:]
        pulled = [self.transition(t).T @ state]
        if self.fresh_std and t < self.rounds - 1:
            pulled.append(self.fresh_std * state[: self.n])
        basis.columns = np.vstack([*pulled, rest])
        basis.orthonormalise()

    def _decode(self, observers: tuple[int, ...], own_noise: bool, seen: np.ndarray) -> np.ndarray:
        basis = self._pull_back(observers, own_noise, seen)
        return np.asarray(basis.columns[: self.n] @ basis.values)

    # ---- the peer --------------------------------------------------------------------------------

    def local(self, node: int) -> Local:
        """Return the state machine of one node."""
        (v,) = _validate.nodes(node, self.n, "node")
        return LinearLocal(self, v)

    def receivers(self, t: int, node: int) -> tuple[int, ...]:
        """Return the nodes that receive the message of ``node`` in round ``t``, sorted."""
        to, source = _off_diagonal(self.matrix(t))
        return tuple(int(v) for v in np.unique(to[source == node]))


class LinearLocal(Local):
    """The state machine of one node of a `LinearProtocol`."""

    def __init__(self, protocol: LinearProtocol, node: int) -> None:
        self.protocol, self.node, self.rounds = protocol, node, protocol.rounds
        self._state: np.ndarray | None = None
        self._done = 0

    def start(self, row: np.ndarray) -> None:
        self._state = np.array(row, copy=True)
        self._done = 0

    def sends(self, t: int) -> tuple[int, ...]:
        return self.protocol.receivers(t, self.node)

    def expects(self, t: int) -> tuple[int, ...]:
        return self.protocol.senders(t, self.node)

    def message(self, t: int) -> np.ndarray:
        self._expect_round(t)
        return self._present

    def receive(self, t: int, rows: Mapping[int, np.ndarray], noise: Any = None, step: int = 0) -> None:
        self._expect_round(t)
        missing = set(self.expects(t)) - set(rows)
        if missing:
            raise InvalidInput(f"Node {self.node} needs the row of node {min(missing)} in round {t}.")
        self._state = self.mixed(t, rows)
        self._done = t + 1

    def mixed(self, t: int, rows: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return this node's row of ``matrix(t) @ state``, summed in the order the stacked product uses."""
        own = self._present
        weights = self.protocol._cast(t, own.dtype)[[self.node]]
        gathered = np.array(
            [own if w == self.node else rows[int(w)] for w in weights.indices], dtype=own.dtype
        )
        compact = sparse.csr_array(
            (weights.data, np.arange(len(weights.indices)), weights.indptr), shape=(1, len(weights.indices))
        )
        return np.asarray((compact @ gathered.reshape(len(gathered), -1))[0])

    def result(self) -> np.ndarray:
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


def _copies(nodes: np.ndarray, coordinates: int, n: int) -> np.ndarray:
    """Return the coordinates of ``nodes`` in every stretch of ``n``: one stretch per round of fresh noise."""
    return np.concatenate([nodes + k * n for k in range(coordinates // n)])


def _without(columns: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span with the known coordinates removed."""
    if not len(known):
        return columns
    left = columns.copy()
    left[known] = 0.0
    return orthonormal(left)[0] if left.shape[1] else left
