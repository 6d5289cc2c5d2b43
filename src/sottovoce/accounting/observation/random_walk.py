"""Private random walks: what node v learns about node u when a token walks on the graph and learns.

At time s = 0..T-1 the token is at node v_s, which takes a noisy gradient step (noise standard deviation
sigma times the sensitivity) and passes the model on along W. Node v sees the model when it holds the token.

The accountant lets v know the whole path, which does not depend on data. The mean over paths is exact, the
loss given a path an upper bound,

.. math:: D_\\alpha = \\frac{1}{\\alpha-1} \\ln E_{path}\\, e^{(\\alpha-1)\\,\\varepsilon(path)},
    \\qquad \\varepsilon(path) \\le \\sum_i c\\, \\frac{\\nu_{s_i}^2}{\\sum_{j=s_i}^{s_i+t_i-1} \\nu_j^2},
    \\quad c = \\frac{\\alpha}{2\\sigma^2},

where the i-th contribution of u is at time s_i, t_i is the number of noisy steps until the token is next at u
or at v, and nu_j is the learning rate of step j (privacy amplification by iteration; c / t_i for equal
rates). The term is 0 if the token is at neither before the end. The expectation is a dynamic program over
first-passage probabilities. It needs no condition on sigma, and holds whether senders are visible or not.

Without amplification every contribution that is seen costs in full, so the number of such contributions
decides: a mixture of Gaussian mechanisms, whose privacy loss distribution is exact. Both are upper bounds,
and the smaller one counts.

References: [1] Cyffers, Bellet, "Privacy amplification by decentralization", AISTATS 2022; [2] Feldman,
Mironov, Talwar, Thakurta, "Privacy amplification by iteration", FOCS 2018, Theorem 22; [3] Bok, Su,
Altschuler, "Shifted interpolation for differential privacy", ICML 2024, for unequal steps. Departures: [1]
and later work bound a fixed number of visits with weak convexity, under a condition on sigma; here visits are
random, as they are, and the mixture over paths is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.question import PrivacyQuestion
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network

# enough for epsilons from a tenth to a hundred; each order costs O(T^2)
WALK_ORDERS: tuple[float, ...] = (
    1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0,
    9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0,
)  # fmt: skip
_MAX_WORK = 4e9  # elementary steps spent on one question


@dataclass(frozen=True)
class TokenWalk(ObservationModel):
    """A token visits agents along a path that is drawn during the run; an observer may know all of it."""

    network: Network
    steps: int  # hops of each token
    tokens: int = 1
    cap: int | None = None  # after this many contributions an agent adds noise only
    contractive: bool = False  # whether amplification by iteration may be counted on
    final_public: bool = True  # whether the final model is broadcast
    rates: tuple[float, ...] | None = None  # the learning rate of every step, where they differ

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return an upper bound for single members, labeled exact; else the local-DP guarantee."""
        local = question.local_guarantee()
        pairs = self._pairs(question)
        if pairs is None:
            return local
        curves: list[Curve] = []
        for done, (observer, user) in enumerate(pairs, 1):
            (key,) = question.counts(user)
            curves.append(self.curve(user, observer, key.noise_to_sensitivity))
            question.report_progress(done)
        assumptions = ["the path does not depend on data", "the observer is honest but curious"]
        if self.contractive:
            assumptions.append(
                "local updates are non-expansive: convex, beta-smooth losses, step at most 2 / beta"
            )
        if not self.final_public:
            assumptions.append("the final model stays hidden")
        return question.answer("exact", Curve.least([Curve.worst(curves), local.curve]), assumptions)

    def curve(self, user: int, observer: int, noise_to_sensitivity: float) -> Curve:
        """Return the loss of ``user`` to ``observer``; independent tokens add up."""
        passage = first_passage(self.network, self.steps, user, observer)
        values = walk_loss(
            passage,
            WALK_ORDERS,
            noise_to_sensitivity,
            cap=self.cap,
            final_public=self.final_public,
            contractive=self.contractive,
            rates=self.rates,
        )
        bounds = [Curve.from_rdp(WALK_ORDERS, values.tolist(), self.tokens)]
        seen = contributions_seen(passage, cap=self.cap, final_public=self.final_public)
        mus = np.sqrt(np.arange(len(seen))) / noise_to_sensitivity
        bounds.append(Curve.gaussian_mixture(mus.tolist(), seen.tolist(), self.tokens))
        return Curve.least(bounds)

    def _pairs(self, question: PrivacyQuestion) -> list[tuple[int, int]] | None:
        """Return the (observer, user) pairs whose worst is the answer; None where only local is known.

        A coalition, or an outsider who taps every link, sees more than one node does, and the distribution of
        the path does not cover sampled batches.
        """
        n = question.plan.n
        if question.view not in ("network", "pairwise") or n < 2:
            return None
        observers = question.observers or tuple(range(n))
        pairs = [(v, u) for v in observers for u in question.users([v]) if u != v]
        keys = {u: set(question.counts(u)) for u in {u for _, u in pairs}}
        for own in keys.values():
            if len(own) != 1:
                return None
            (key,) = own
            sampled = key.sample_rate < 1 and key.adjacency != "user"
            if key.mechanism != "gaussian" or not key.noise_to_sensitivity > 0 or sampled:
                return None
        W = self.network.W
        if W.nnz == n * n and np.ptp(W.data) < 1e-12 and len(set(map(frozenset, keys.values()))) == 1:
            pairs = pairs[:1]  # on the complete graph every pair is like every other
        levels = 1 if self.cap is None or self.cap >= self.steps else self.cap
        if len(pairs) > 1 and len(pairs) * levels * self.steps**2 * len(WALK_ORDERS) > _MAX_WORK:
            return None
        return pairs


@dataclass(frozen=True, eq=False)
class FirstPassage:
    """First-passage probabilities of a walk between a user u and an observer v, times 0..T-1.

    ``back[t]`` and ``over[t]``: from u, the first visit to {u, v} after it is at time t and to u, or to v.
    ``home[t]``: from v, the first visit to u is at time t. ``first[s]``: the walk's first visit to u is at s.
    """

    back: np.ndarray
    over: np.ndarray
    home: np.ndarray
    first: np.ndarray


@takes_network
def first_passage(network: Network, steps: int, user: int, observer: int) -> FirstPassage:
    """Return the first-passage probabilities on any graph, in O(edges * steps); the start is uniform."""
    T, n = _validate.count(steps, "steps"), network.n
    (u,), (v,) = _validate.nodes(user, n, "user"), _validate.nodes(observer, n, "observer")
    if u == v:
        raise InvalidInput(f"user and observer must differ, got node {u} for both.")
    onward = network.W.T.tocsr()  # distribution at t + 1 = W^T distribution at t

    def passages(distribution: np.ndarray, stops: list[int], first_time: int) -> np.ndarray:
        probabilities = np.zeros((len(stops), T))
        for t in range(first_time, T):
            if t > 0:
                distribution = onward @ distribution
            probabilities[:, t] = distribution[stops]
            distribution[stops] = 0.0
        return probabilities

    at_u, at_v = np.eye(1, n, u)[0], np.eye(1, n, v)[0]
    back, over = passages(at_u, [u, v], 1)
    (home,), (first,) = passages(at_v, [u], 1), passages(np.full(n, 1 / n), [u], 0)
    return FirstPassage(back, over, home, first)


def contributions_seen(
    passage: FirstPassage, *, cap: int | None = None, final_public: bool = False
) -> np.ndarray:
    """Return the probabilities that 0, 1, 2, ... contributions of u are seen by v, who knows the path.

    A contribution is seen if the token is at u or at v after it, or if the final model is published.
    """
    T = len(passage.first)
    again = passage.back + np.convolve(passage.over, passage.home)[:T]  # from u to its next visit
    met = np.cumsum(passage.back + passage.over)[::-1]  # met[s]: at u or v after time s, before the end
    weight = np.ones(T) if final_public else met
    at_least = [1.0]  # so many contributions are seen
    visit = passage.first  # when the k-th contribution is
    while len(at_least) <= (T if cap is None else min(cap, T)) and at_least[-1] > 0:
        at_least.append(min(at_least[-1], float(visit @ weight)))
        visit = np.convolve(visit, again)[:T]
    return -np.diff([*at_least, 0.0])


def walk_loss(
    passage: FirstPassage,
    alpha: float | Sequence[float],
    noise_to_sensitivity: float,
    *,
    cap: int | None = None,
    final_public: bool = False,
    contractive: bool = True,
    rates: Sequence[float] | None = None,
) -> np.ndarray:
    """Return the Rényi loss from u to v of one token's walk, one value per order in ``alpha``.

    The others are facts of a `TokenWalk`. Where updates are not ``contractive`` (non-expansive: convex,
    beta-smooth loss, step at most 2 / beta) nothing is amplified by iteration: every contribution that is
    seen later costs in full. Small steps after a large one add little noise to what it released.

    Guarantees
    ----------
    An upper bound for any graph, noise and order; with ``contractive=False`` for any loss. An order at which
    the expectation exceeds double precision costs infinity.
    """
    orders = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    sigma = noise_to_sensitivity
    cost = _waiting_costs((orders - 1) * orders / (2 * sigma**2), len(passage.first), contractive, rates)
    with np.errstate(over="ignore", invalid="ignore"):
        expectation = _expectation(passage, cost, cap, final_public)
        loss = np.log(expectation) / (orders - 1)
    loss = np.where(np.isnan(loss), math.inf, np.maximum(loss, 0.0))
    if cap is not None:  # never more than every contribution in full
        loss = np.minimum(loss, cap * orders / (2 * sigma**2))
    return loss


def _waiting_costs(
    factors: np.ndarray, steps: int, contractive: bool, rates: Sequence[float] | None
) -> Callable[[int], np.ndarray]:
    """Return ``cost(s)[:, t - 1]``, per order the factor of a contribution at s, seen t steps later."""
    lengths = np.ones(steps) if rates is None else np.asarray(rates, dtype=np.float64)
    if len(lengths) != steps or not (np.isfinite(lengths) & (lengths >= 0)).all():
        raise InvalidInput(f"rates must be {steps} numbers of at least 0, one per step, got {rates!r}.")

    def costs(relative: np.ndarray) -> np.ndarray:
        noise = np.cumsum(np.square(relative)) if contractive else np.ones(len(relative))
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(factors[:, None] / noise))

    if not contractive or len(set(lengths.tolist())) <= 1:
        common = costs(np.ones(steps))
        return lambda s: common[:, : steps - s]

    def cost(s: int) -> np.ndarray:
        if not lengths[s]:
            return np.ones((len(factors), steps - s))  # a step of length 0 moves nothing
        # in units of the step's own rate, whose square alone may be too small or too large for a float
        return costs(lengths[s:] / lengths[s])

    return cost


def _expectation(
    passage: FirstPassage, cost: Callable[[int], np.ndarray], cap: int | None, final_public: bool
) -> np.ndarray:
    """E_path prod F(s_i, t_i), one value per order; backwards over time, and over contributions left."""
    T = len(passage.first)
    size = len(cost(0))
    back, over, home = passage.back[1:], passage.over[1:], passage.home[1:]  # index 0 is t = 1
    seen = np.concatenate([[0.0], np.cumsum(back + over)])  # seen[m]: stopped within m steps
    homed = np.concatenate([[0.0], np.cumsum(home)])
    levels = 1 if cap is None or cap >= T else cap
    unlimited = cap is None or cap >= T
    later_u = later_v = np.ones((size, T))  # no contribution left: nothing more to pay
    for _ in range(levels):
        at_u, at_v = np.empty((size, T)), np.empty((size, T))
        next_u, next_v = (at_u, at_v) if unlimited else (later_u, later_v)
        for s in range(T - 1, -1, -1):
            m, factor = T - 1 - s, cost(s)
            never = max(0.0, 1.0 - seen[m])
            after = back[:m] * next_u[:, s + 1 :] + over[:m] * next_v[:, s + 1 :]
            at_u[:, s] = np.einsum("ij,ij->i", factor[:, :m], after)
            at_u[:, s] += never * (factor[:, m] if final_public else 1.0)
            at_v[:, s] = at_u[:, s + 1 :] @ home[:m] + max(0.0, 1.0 - homed[m])
        later_u, later_v = at_u, at_v
    never = max(0.0, 1.0 - float(passage.first.sum()))
    return np.asarray(later_u @ passage.first + never)
