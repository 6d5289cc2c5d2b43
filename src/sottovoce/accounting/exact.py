"""Exact pairwise loss: what a node, or a colluding set, learns about each user from a protocol.

For averaging the loss is not a bound but the divergence itself: user ``u`` loses ``h(u)`` times the
local-privacy loss to the observers, with ``h`` the squared length of ``e_u`` projected on the span of their
messages. `learning_view` is the same for many gradient steps as if the gradients were fixed numbers; the
observation model `LinearGossip` gives its number the label ``conditional``.

References: the projector formula repairs equation (6) of Cyffers, Even, Bellet, Massoulié, "Muffliato",
NeurIPS 2022, which adds the losses of messages whose noises are not independent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, from_matrix, takes_network
from sottovoce.graphs.network import Matrix
from sottovoce.leakage.span import Span, certain_span, pull_back, without_known
from sottovoce.leakage.trace import AddNoise, Event, ExecutionTrace
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols import Gossip, LinearProtocol, Protocol, TimeVarying

__all__ = ["LearningView", "exact_loss", "learning_view"]


@takes_network
def exact_loss(
    network_or_protocol: Network | Protocol | Matrix | Sequence[Network | Matrix],
    rounds: int | None = None,
    observer: int | None = None,
    colluders: Iterable[int] = (),
    own_noise: bool = True,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return the exact share ``h`` of the squared local-privacy loss that observers obtain about every user.

    The unit is ``alpha * Delta**2 / (2 * sigma**2)`` at Rényi order alpha; equivalently the pair is exactly
    ``mu``-GDP with ``mu = (Delta / sigma) * sqrt(h)``. So h is a share of mu squared, and epsilon falls about
    like its root: h = 0.25 is half of mu and about half of epsilon.

    Returns (n,) ``h[u]`` for one observer, else (n, n) ``h[u, v]``, ``v`` the observer; 0 for observers about
    themselves when their noise is known. Where floating point could not decide, shares are rounded up
    (`GaussianView.rounded_up`).

    Parameters
    ----------
    network_or_protocol : gossip on a network (acceleration changes nothing), a protocol, a gossip matrix of
        one's own, or a list with the matrix or network of every round.
    rounds : number of gossip rounds, with a network or one matrix.
    observer : the curious node; None computes every node in turn.
    colluders : further nodes that share all they see, and know, with the observer.
    own_noise : whether observers know the noise they drew themselves (they do).
    progress : called with the number of observers finished.

    Examples
    --------
    The published formula says 1/3 for the far end of a path of three; the truth is everything.

    >>> import sottovoce as sv
    >>> sv.privacy.exact_loss(sv.graphs.path(3), rounds=2, observer=2).round(6).tolist()
    [1.0, 1.0, 0.0]
    >>> W = np.array([[0.5, 0.5], [0.5, 0.5]])
    >>> exact_loss([W, np.eye(2), W], observer=1).round(6).tolist()
    [1.0, 0.0]
    """
    protocol = _as_protocol(network_or_protocol, rounds)
    n, also = protocol.n, tuple(colluders)
    also = _validate.nodes(also, n, "colluders") if also else ()
    if observer is not None:
        return protocol.view({*also, *_validate.nodes(observer, n, "observer")}, own_noise).leakage()
    if not also and protocol.symmetry is not None:
        return protocol.symmetry.spread(protocol.view(0, own_noise).leakage())
    from threadpoolctl import threadpool_limits

    loss = np.empty((n, n))
    # The matrices of one observer are small: BLAS threads would spend their time waiting for each other
    # (measured: twenty times slower on a busy machine), so each observer gets one.
    with threadpool_limits(limits=1), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        columns = pool.map(lambda v: protocol.view({v, *also}, own_noise).leakage(), range(n))
        for v, losses in enumerate(columns):
            loss[:, v] = losses
            if progress is not None:
                progress(v + 1)
    return loss


def _as_protocol(
    network_or_protocol: Network | Protocol | Matrix | Sequence[Network | Matrix], rounds: int | None
) -> Protocol:
    if isinstance(network_or_protocol, (list, tuple)) and np.ndim(network_or_protocol[:1]) != 2:
        network_or_protocol = TimeVarying(network_or_protocol)
    if isinstance(network_or_protocol, Protocol):
        if rounds is not None and rounds != network_or_protocol.rounds:
            raise InvalidInput(
                f"The protocol has {network_or_protocol.rounds} rounds, got rounds={rounds}; leave it out."
            )
        return network_or_protocol
    if rounds is None:
        raise InvalidInput(
            "A network needs rounds=...; protocols.rounds_for(network) gives the theoretical number."
        )
    if not isinstance(network_or_protocol, Network):
        network_or_protocol = from_matrix(network_or_protocol)
    return Gossip(network_or_protocol, _validate.count(rounds, "rounds"))


# ---- learning over gossip: the linear formula ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LearningView(GaussianView):
    """What observers see of many gradient steps, were the gradients fixed numbers.

    Coordinates are (step, node). `leakage` is the loss of a change that is the same in every step;
    `worst_case` bounds any change of at most one unit per step.
    """

    steps: int = 1

    def block(self, user: int) -> np.ndarray:
        """Return the (steps, steps) matrix H of one user: the projector restricted to its coordinates."""
        (u,) = _validate.nodes(user, self.n, "user")
        rows = self.span.basis[np.flatnonzero(self.owners == u)]
        return rows @ rows.T

    def worst_case(self) -> np.ndarray:
        """Return (n,) upper bounds on the loss of any change of at most one unit in each step, per user.

        They bound max sum H[s, t] <d_s, d_t> over unit vectors d, and are exact where H has no negative
        entry. No bound exceeds the number of steps, which is the loss under local privacy.
        """
        bounds = np.zeros(self.n)
        for u in range(self.n):
            if u not in self.observers or not self.own_noise:
                H = self.block(u)
                largest = self.steps * max(np.linalg.eigvalsh(H)[-1], 0.0)
                bounds[u] = min(min(np.abs(H).sum(), largest) + self.span.rounding_error, self.steps)
        return bounds


def learning_view(
    protocol: LinearProtocol | Sequence[LinearProtocol],
    steps: int,
    observers: int | Iterable[int],
    own_noise: bool = True,
) -> LearningView:
    """Return the linear view of ``steps`` gradient steps, each followed by the rounds of a protocol.

    ``protocol`` is the averaging of every step, or one per step; the others are as for `Protocol.view`.

    Examples
    --------
    A path of five seen from its end, five steps, one round each: distance protects.

    >>> import sottovoce as sv
    >>> view = sv.privacy.learning_view(sv.protocols.Gossip(sv.graphs.path(5), rounds=1), 5, observers=0)
    >>> view.worst_case().round(3).tolist()
    [0.0, 4.866, 0.713, 0.087, 0.007]
    """
    steps = _validate.count(steps, "steps")
    each = list(protocol) if isinstance(protocol, Sequence) else [protocol] * steps
    if len(each) != steps:
        raise InvalidInput(f"protocol must be one, or one per step ({steps}), got {len(each)}.")
    n = each[0].n
    for unlike in (p for p in each if p.masked or not p.matrices_suffice):
        raise InvalidInput(
            f"The linear formula takes protocols without masks, memory or fresh noise, got {unlike!r}; plain "
            "gossip has the same span as Chebyshev, and masked sums are exact as consensus."
        )
    chosen = _validate.nodes(observers, n)
    trace = _learning_trace(each, chosen, own_noise)
    basis = pull_back(trace)
    columns = without_known(basis.columns, trace.known, basis.monitor)
    span = certain_span(trace, columns, basis.monitor)
    if span is None:  # all of the local-privacy loss, as rounding error
        span = Span(columns, rounding_error=float(steps) ** 2, rounded_up=True)
    owners = np.tile(np.arange(n), steps)
    return LearningView(n, chosen, span, owners, own_noise=own_noise, steps=steps)


def _learning_trace(
    each: Sequence[LinearProtocol], observers: tuple[int, ...], own_noise: bool
) -> ExecutionTrace:
    """Return the steps forwards: each node adds a noisy gradient, then the rounds of the step's protocol."""
    n = each[0].n
    events: list[Event] = []
    for step, protocol in enumerate(each):
        rounds = protocol.trace(observers, own_noise).events[1:]
        events += [AddNoise(step * n, n, 1.0), *rounds]
    known = tuple(step * n + v for step in range(len(each)) for v in observers) if own_noise else ()
    return ExecutionTrace(n, n * len(each), tuple(events), known, faint=any(p.faint for p in each))
