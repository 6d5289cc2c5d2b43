"""What an observer sees of a linear protocol: the row space of its messages, and nothing is estimated.

A view is ``y = signal @ x + noise @ z``: ``x`` the users' values, ``z`` independent standard Gaussian
numbers, one per *coordinate*. In plain gossip the coordinates are the nodes, because every node adds its
noise once; in refreshed gossip there is one per node and round; on a walk one per contribution. All a
Gaussian view reveals about user ``u`` is decided by the orthogonal projector on the span of the messages,

.. math:: h(u) = \\lVert P e_u \\rVert^2,

the share of the local-privacy loss that the observer obtains: 0 when it learns nothing of ``u``, 1 when it
can compute ``u``'s noisy value exactly. The accountant (upper bound) and the attacker (lower bound) both
read this object.

How the span is computed matters. Powers of a gossip matrix become parallel, so a projector built from
explicit powers loses directions and *understates* the loss. Here messages are never formed: a block Krylov
recursion serves a fixed matrix, and a backward (Horner) recursion any sequence of matrices; both keep
an orthonormal basis at every step. What a step shrinks to the size of rounding is dropped; whether it was
rounding is decided in exact arithmetic (`leakage.exact_rank`) wherever floating point cannot tell, and where
that would take too long a wider span takes its place: a real direction is never dropped, the loss is only
rounded up, and the view says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from sottovoce import _validate
from sottovoce._hooks import NotebookDisplay
from sottovoce.errors import InvalidInput

__all__ = ["TOLERANCE", "GaussianView"]

# One step of a recursion maps a unit vector to a vector of norm about one; what is left of it after
# orthogonalization is information or rounding. Keeping a rounding vector overstates the loss, dropping
# information understates it. On graphs with metropolis weights nothing was ever found between 2e-13 and
# 5e-3; what lies between ROUNDING and CLEAR is doubtful and goes to exact arithmetic (see `RankMonitor`).
TOLERANCE = 1e-10
ROUNDING = 1e-12
CLEAR = 1e-5
SHORT = 0.01
LOSABLE = 1e-6  # the product of all SHORT steps: an error of 1e-16 becomes 1e-10

RESOLVED = 1e-9  # rounding errors in the leakage up to this are ignored, up to COARSE they are added to it
COARSE = 0.02
WEIGHED = 1e-14  # rounding error of a basis entry, as `GaussianView.with_noise` enlarges it

DETERMINED = 1e-8  # 1 - h below this: the noisy value is determined


@dataclass(frozen=True, eq=False)
class GaussianView(NotebookDisplay):
    """What a set of colluding observers sees, as an orthonormal basis over noise coordinates.

    Parameters
    ----------
    n : number of users.
    observers : the colluding nodes.
    basis : (coordinates, rank) orthonormal columns; the span of the messages, own knowledge removed.
    owners : (coordinates,) the user whose value enters a coordinate, or -1 for noise without data.
    messages : (round, sender) of every row an observation must give to `reconstruct`, in order.
    own_noise : whether the observers' own noise was taken as known (it is, unless a source is reproduced).
    slack : what rounding may have taken from the leakage of a user; `leakage` adds it.
    assumptions : what the view rests on beyond an honest run of the public schedule (keys, for masks).
    rounded_up : whether floating point could not decide what is seen, so that the leakage was rounded up.

    Guarantees
    ----------
    For independent Gaussian noise of standard deviation ``s`` in every coordinate, changing the value of
    user ``u`` by at most ``d`` (in L2 norm) makes the view exactly ``mu``-GDP with
    ``mu = (d / s) * sqrt(h(u))``, for every protocol whose schedule does not depend on the data. The
    observers are honest but curious; their own values and, by default, their own noise are known to them.

    Examples
    --------
    Three nodes on a path, two rounds: the end node computes the other end's noisy value.

    >>> import sottovoce as sv
    >>> view = sv.protocols.Gossip(sv.graphs.path(3), rounds=2).view(0)
    >>> view.leakage().round(6).tolist()
    [0.0, 1.0, 1.0]
    >>> sv.protocols.Gossip(sv.graphs.path(3), rounds=2).view(0, own_noise=False).leakage().round(6).tolist()
    [0.5, 1.0, 0.5]
    """

    n: int
    observers: tuple[int, ...]
    basis: np.ndarray = field(repr=False)
    owners: np.ndarray = field(repr=False)
    messages: tuple[tuple[int, int], ...] = field(repr=False)
    own_noise: bool = True
    decode: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    slack: float = 0.0
    assumptions: tuple[str, ...] = ()
    rounded_up: bool = False

    @property
    def rank(self) -> int:
        """Number of independent combinations seen; the leakage of all users adds up to it in gossip."""
        return int(self.basis.shape[1])

    def leakage(self) -> np.ndarray:
        """Return ``h`` (n,): the share of one release's local-privacy loss that the view holds, per user.

        A user who contributes several times (a walk) may exceed 1: the unit is one contribution.
        """
        rows = self._by_user()
        h = np.einsum("ij,ij->i", rows, rows)
        if self.slack:
            others = np.setdiff1d(np.arange(self.n), self.observers if self.own_noise else ())
            h[others] += self.slack
        contributions = np.bincount(self.owners[self.owners >= 0], minlength=self.n)
        return np.minimum(h, np.maximum(contributions, 1) ** 2)  # rounding may exceed it by an ulp

    def with_noise(self, std: Any) -> GaussianView:
        """Return the same view where user ``u`` draws its noise with standard deviation ``std[u]``.

        The observer's best combination now leans on the quiet users, so neither ``h`` nor the noise of one
        user alone tells its loss. In the returned view ``h(u)`` is in the user's own unit: a change of
        ``d`` costs ``mu = (d / std[u]) * sqrt(h(u))``.

        Examples
        --------
        Node 0 sees the mean of the others; the noise of user 1 is all that hides user 2 in it.

        >>> import sottovoce as sv
        >>> view = sv.protocols.Tree(sv.graphs.star(3), root=0).output_view(0)
        >>> view.leakage().round(3).tolist(), view.with_noise([1.0, 1.0, 2.0]).leakage().round(3).tolist()
        ([0.333, 0.333, 0.333], [0.167, 0.167, 0.667])
        """
        each = np.array([_validate.positive(value, "std") for value in np.asarray(std, float).ravel()])
        if len(each) != self.n or (self.owners < 0).any():
            raise InvalidInput(
                f"with_noise needs one standard deviation per user ({self.n}), got {len(each)}, and a "
                "protocol in which all noise is drawn at the start."
            )
        ratio = float(each.max() / each.min())
        error = WEIGHED * ratio  # of rounding, enlarged by the weights
        if error > COARSE:
            raise InvalidInput(
                f"the noise of some users is {ratio:.1e} times that of others, too much for the view to be "
                "computed safely; bring the noises closer together."
            )
        weights = (each / each.max())[self.owners]  # a common factor changes nothing
        # Positive weights keep the rank, so no direction is dropped, however small.
        basis = np.linalg.qr(weights[:, None] * self.basis)[0]
        slack = self.slack * ratio**2 + (error if error > RESOLVED else 0.0)
        return replace(self, basis=basis, slack=slack, rounded_up=self.rounded_up or slack > 0)

    def covers(self, user: int) -> bool:
        """Whether the observers can compute the noisy value of ``user``."""
        (u,) = _validate.nodes(user, self.n, "user")
        return u not in self.observers and bool(self.leakage()[u] > 1 - DETERMINED)

    def group_leakage(self, users: Iterable[int]) -> float:
        """Return an upper bound on ``h`` when all ``users`` change together, each by at most one unit.

        It is the lesser of two bounds on ``max sum P[u, u'] <d_u, d_u'>`` over unit balls: the sum of
        absolute values, and group size times the largest eigenvalue. It is exact for one user, and for
        groups whose block has no negative entry.

        Examples
        --------
        >>> import sottovoce as sv
        >>> view = sv.protocols.Tree(sv.graphs.star(5), root=0).view(1)
        >>> round(view.group_leakage([2, 3]), 6), round(float(view.leakage()[2]), 6)
        (1.0, 0.25)
        """
        members = _validate.nodes(users, self.n, "users")
        block = self._by_user()[list(members)]
        gram = block @ block.T
        bound = float(min(np.abs(gram).sum(), len(members) * np.linalg.eigvalsh(gram)[-1]))
        return bound + len(members) ** 2 * self.slack

    def reconstruct(self, observations: Any) -> np.ndarray:
        """Return the observers' best estimate (n, dim) of every user's noisy value.

        Rows with ``leakage() == 1`` are exact up to the rounding of the messages, which faint weights enlarge
        (double precision may not carry a value through them, a longer one does); the others are the
        minimum-norm guess. ``observations`` holds one row per entry of `messages`; `Protocol.observe` makes
        them from a run.

        Examples
        --------
        >>> import numpy as np, sottovoce as sv
        >>> gossip = sv.protocols.Gossip(sv.graphs.path(3), rounds=2)
        >>> seen = gossip.observe(np.array([5.0, 7.0, 11.0]), observers=0)
        >>> gossip.view(0).reconstruct(seen).round(9).ravel().tolist()
        [5.0, 7.0, 11.0]
        """
        if self.decode is None:
            raise InvalidInput("This view was built without its protocol; use protocol.view(...) to decode.")
        rows = _validate.rows(observations, len(self.messages), "observations")
        return self.decode(rows.astype(np.float64))

    def _by_user(self) -> np.ndarray:
        """Return (n, rank): the sum of basis rows over each user's coordinates."""
        carrying = np.flatnonzero(self.owners >= 0)
        if len(carrying) == self.n and np.array_equal(self.owners[carrying], np.arange(self.n)):
            return self.basis[carrying]
        chosen = sparse.csr_array(
            (np.ones(len(carrying)), (self.owners[carrying], carrying)), shape=(self.n, len(self.owners))
        )
        return np.asarray(chosen @ self.basis)


class RankMonitor:
    """What the steps of a recursion kept and dropped, and whether floating point could tell.

    Examples
    --------
    >>> watch = RankMonitor()
    >>> watch.note(np.array([1.0, 0.3, 2e-16])); watch.dropped, watch.doubtful
    (True, False)
    >>> watch.note(np.array([1.0, 3e-9])); watch.doubtful
    True
    """

    def __init__(self) -> None:
        self.dropped = self._between = False
        self._product = 1.0

    def note(self, sizes: np.ndarray) -> None:
        """Take the lengths that one step left of unit vectors."""
        kept = sizes[sizes > TOLERANCE]
        self.dropped |= len(kept) < len(sizes)
        self._between |= bool(((sizes > ROUNDING) & (sizes < CLEAR)).any())
        least = float(kept.min(initial=1.0))
        if least < SHORT:
            self._product *= least

    @property
    def doubtful(self) -> bool:
        """Whether a length was neither clearly there nor clearly rounding, or too many were short."""
        return self._between or self._product < LOSABLE

    @property
    def settled(self) -> bool:
        """Whether nothing was dropped and nothing is doubtful."""
        return not self.dropped and not self.doubtful


class Basis:
    """Orthonormal functionals of the present state, with the numbers the observer knows them to be.

    ``columns`` is (coordinates, rank); ``values`` is (rank, dim), or (rank, 0) when only the span is wanted;
    ``watch`` remembers what the steps did.
    """

    def __init__(self, coordinates: int, dim: int = 0) -> None:
        self.columns = np.zeros((coordinates, 0))
        self.values = np.zeros((0, dim))
        self.watch = RankMonitor()

    def add_unit(self, coordinates: Sequence[int], values: np.ndarray | None = None) -> None:
        """Add unit vectors: the observer sees these coordinates themselves."""
        index = np.asarray(coordinates, dtype=np.intp)
        if not len(index):
            return
        seen = np.zeros((len(index), self.values.shape[1])) if values is None else values
        if self.columns.shape[1]:
            self.values = self.values - self.columns[index].T @ seen
            self.columns = self.columns.copy()
            self.columns[index] = 0.0
            self.orthonormalize()
        units = np.zeros((self.columns.shape[0], len(index)))
        units[index, np.arange(len(index))] = 1.0
        self.columns = np.hstack([units, self.columns])
        self.values = np.vstack([seen, self.values])

    def orthonormalize(self) -> None:
        """Restore orthonormal columns after a step; directions below `TOLERANCE` are dropped, and watched."""
        if not self.columns.shape[1]:
            return
        self.columns, back = orthonormal(self.columns, self.watch)
        self.values = back.T @ self.values


def orthonormal(columns: np.ndarray, watch: RankMonitor | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthonormal basis of the span and the matrix that makes it, ``columns @ back``."""
    if columns.shape[0] > columns.shape[1]:
        outer, triangle = np.linalg.qr(columns)
        inner, size, right = np.linalg.svd(triangle)
        left = outer @ inner
    else:
        left, size, right = np.linalg.svd(columns, full_matrices=False)
    if watch is not None:
        watch.note(size)
    keep = size > TOLERANCE
    return left[:, : len(size)][:, keep], right[: len(size)][keep].T / size[keep]


def krylov_basis(
    W: sparse.csr_array,
    senders: Sequence[int],
    rounds: int,
    known: Sequence[int],
    watch: RankMonitor | None = None,
) -> np.ndarray:
    """Return an orthonormal basis of span{W^k e_w : w in senders, k < rounds}, with ``known`` removed.

    Block Lanczos with full re-orthogonalization, twice. With the observers' own coordinates in the basis
    from the start, applying ``W`` to the newest block alone is enough, because ``W e_v`` lies in the span
    of ``v`` and its neighbors.
    """
    n = W.shape[0]
    known = sorted(set(known))
    fresh = [w for w in senders if w not in set(known)]
    newest = _units(n, fresh)
    # One preallocated array, Fortran order: blocks are appended as columns, without copies.
    limit = min(n, len(known) + len(fresh) * rounds)
    basis = np.empty((n, limit), order="F")
    basis[:, : len(known)] = _units(n, known)
    basis[:, len(known) : len(known) + len(fresh)] = newest
    used = len(known) + len(fresh)
    for _ in range(1, rounds):
        if not newest.shape[1] or used == n:
            break
        block = W @ newest
        for _ in range(2):
            block -= basis[:, :used] @ (basis[:, :used].T @ block)
        newest, _back = orthonormal(block, watch)
        # what survives may have been tiny: it is orthogonal to the basis only after it is normalized
        newest -= basis[:, :used] @ (basis[:, :used].T @ newest)
        newest = newest[:, : limit - used]
        basis[:, used : used + newest.shape[1]] = newest
        used += newest.shape[1]
    return basis[:, len(known) : used]


def _units(n: int, index: Sequence[int]) -> np.ndarray:
    columns = np.zeros((n, len(index)), order="F")
    columns[list(index), np.arange(len(index))] = 1.0
    return columns
