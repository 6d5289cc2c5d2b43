"""What an observer sees of a linear protocol: the row space of its messages, and nothing is estimated.

A view is ``y = signal @ x + noise @ z``: ``x`` the users' values, ``z`` independent standard Gaussian
numbers, one per *coordinate*. In plain gossip the coordinates are the nodes, because every node adds its
noise once; in gossip with fresh noise there is one per node and round; on a walk one per contribution. All a
Gaussian view reveals about user ``u`` is decided by the orthogonal projector on the span of the messages,

.. math:: h(u) = \\lVert P e_u \\rVert^2,

the share of the local-privacy loss that the observer obtains: 0 when it learns nothing of ``u``, 1 when it
can compute ``u``'s noisy value exactly. The accountant (upper bound) and the attacker (lower bound) both
read this object.

Powers of a gossip matrix become parallel, so a projector built from explicit powers loses directions and
*understates* the loss. Here messages are never formed: a block Krylov recursion serves a fixed matrix, and a
backward (Horner) recursion any sequence of matrices; both keep an orthonormal basis at every step. Whether
what a step shrinks to the size of rounding was rounding is decided in exact arithmetic (`leakage.exact_rank`)
wherever floating point cannot tell, and where that would take too long a wider span takes its place: a real
direction is never dropped, the loss is only rounded up, and the view says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce._hooks import NotebookDisplay
from sottovoce.errors import InvalidInput
from sottovoce.leakage.span import COARSE, RESOLVED, Span

ENTRY_ERROR = 1e-14  # rounding error of a basis entry, as `GaussianView.with_noise` enlarges it

DETERMINED = 1e-8  # 1 - h below this: the noisy value is determined


@dataclass(frozen=True, eq=False)
class GaussianView(NotebookDisplay):
    """What a set of colluding observers sees, as the span of their messages over noise coordinates.

    Parameters
    ----------
    n : number of users.
    observers : the colluding nodes.
    span : the span of the messages, own knowledge removed, and how far its leakage was rounded up.
    owners : (coordinates,) the user whose value enters a coordinate, or -1 for noise without data.
    messages : (round, sender) of every row an observation must give to `reconstruct`, in order.
    own_noise : whether the observers' own noise was taken as known (it is, unless a source is reproduced).
    decode : how `reconstruct` turns the values of the messages into estimates; None without the protocol.
    assumptions : what the view rests on beyond an honest run of the public schedule (keys, for masks).

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
    span: Span = field(repr=False)
    owners: np.ndarray = field(repr=False)
    messages: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    own_noise: bool = True
    decode: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    assumptions: tuple[str, ...] = ()

    @property
    def rounded_up(self) -> bool:
        """Whether floating point could not decide what is seen, so that the leakage was rounded up."""
        return self.span.rounded_up

    @property
    def rank(self) -> int:
        """Number of independent combinations seen; the leakage of all users adds up to it in gossip."""
        return int(self.span.basis.shape[1])

    @property
    def contributions(self) -> np.ndarray:
        """(n,) how many noise coordinates carry each user's values."""
        return np.bincount(self.owners[self.owners >= 0], minlength=self.n)

    def leakage(self) -> np.ndarray:
        """Return ``h`` (n,): the share of one release's local-privacy loss that the view holds, per user.

        A user who contributes several times (a walk) may exceed 1: the unit is one contribution.
        """
        rows = self._by_user()
        h = np.einsum("ij,ij->i", rows, rows)
        if self.span.rounding_error:
            others = np.setdiff1d(np.arange(self.n), self.observers if self.own_noise else ())
            h[others] += self.span.rounding_error
        return np.minimum(h, np.maximum(self.contributions, 1) ** 2)  # rounding may exceed it by an ulp

    def with_noise(self, std: ArrayLike) -> GaussianView:
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
        error = ENTRY_ERROR * ratio  # of rounding, enlarged by the weights
        if error > COARSE:
            raise InvalidInput(
                f"the noise of some users is {ratio:.1e} times that of others, too much for the view to be "
                "computed safely; bring the noises closer together."
            )
        weights = (each / each.max())[self.owners]  # a common factor changes nothing
        # Positive weights keep the rank, so no direction is dropped, however small.
        basis = np.linalg.qr(weights[:, None] * self.span.basis)[0]
        total = self.span.rounding_error * ratio**2 + (error if error > RESOLVED else 0.0)
        return replace(self, span=Span(basis, total, rounded_up=self.rounded_up or total > 0))

    def covers(self, user: int) -> bool:
        """Whether the observers can compute the noisy value of ``user``."""
        (u,) = _validate.nodes(user, self.n, "user")
        return u not in self.observers and bool(self.leakage()[u] > 1 - DETERMINED)

    def reconstruct(self, observations: ArrayLike) -> np.ndarray:
        """Return the observers' best estimate (n, dim) of every user's noisy value.

        Rows with ``leakage() == 1`` are exact up to the rounding of the messages, that faint weights enlarge;
        others are the minimum-norm guess. `Protocol.observe` makes ``observations``, one row per message.

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
            return self.span.basis[carrying]
        rows = np.zeros((self.n, self.rank))
        np.add.at(rows, self.owners[carrying], self.span.basis[carrying])
        return rows
