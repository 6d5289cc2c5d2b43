"""Audits: try to break a claim with the sharpest test the view allows.

Two hypotheses differ in one user (or one record). Many runs under each give many views; a test is chosen
on the first part of them and judged on the rest, and what it proves is put beside what was claimed.
For a Gaussian view the best test is linear and its statistic is nothing but the attackers' own estimate
of the user's value (`GaussianView.reconstruct`). Beside it a linear discriminant is fitted to the first
part of the views, which finds noise that is correlated where it should not be. Both are judged on runs
they have not seen, so an audit may be weak but never wrong beyond its level.

References: [1] Nasr et al. 2023, "Tight auditing of differentially private machine learning".
[2] Dong, Roth, Su 2022 (a mu-GDP view has power ``Phi(Phi^-1(FPR) + mu)``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce._format import Quantity, number, significant
from sottovoce.accounting.accountant import account
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adversary, Guarantee
from sottovoce.accounting.observation.averaging import SingleAveraging
from sottovoce.accounting.published.formulas import published_loss
from sottovoce.accounting.question import AccountablePlan
from sottovoce.accounting.release import Release
from sottovoce.algorithms.plan import Plan
from sottovoce.attacks.bounds import LowerBound, lower_bound
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.leakage.view import GaussianView
from sottovoce.noise.samplers import NoiseSource, as_noise
from sottovoce.protocols import Protocol

_FIT = 0.2  # share of the runs on which the discriminant is fitted
_CHOOSE = 0.1  # next share, on which test and threshold are chosen; the rest is judged
_RIDGES = (1e-9, 1e-3, 1e-1)  # the first finds noise that cancels, the others serve many features

_BLOCK = 4096  # runs that pass through a protocol together: their rows stay in the processor's cache


@dataclass(frozen=True)
class Audit:
    """What an experiment of so many ``runs`` proves beside the claim about a ``view``, which is in words.

    Guarantees
    ----------
    If the claim is true, ``refuted`` is True with probability at most ``bound.level``.
    """

    view: str
    guarantee: Guarantee
    bound: LowerBound
    runs: int

    @property
    def mu_claimed(self) -> float | None:
        """The claimed mu, or None if the claim is not Gaussian."""
        return float(self.guarantee.mu) if self.guarantee.curve.is_gaussian else None

    @property
    def epsilon_claimed(self) -> float:
        """The claimed epsilon at the delta of the bound."""
        return float(self.guarantee.epsilon(self.bound.delta))

    @property
    def refuted(self) -> bool:
        """Whether the experiment contradicts the claim."""
        lower, claimed = self._numbers
        return lower > claimed or (self.mu_claimed is None and self.bound.refutes(self.guarantee))

    @property
    def tightness(self) -> float:
        """Lower bound over claim: in mu where the claim is Gaussian, else in epsilon. Above 1: broken."""
        lower, claimed = self._numbers
        if claimed == 0:
            return 0.0 if lower == 0 else float("inf")
        return lower / claimed

    @property
    def verdict(self) -> str:
        """The outcome in a sentence that names the number that decides."""
        if not self.refuted:
            return "holds: no test of the runs contradicts it."
        quantity: Quantity = "epsilon" if self.mu_claimed is None else "mu"
        lower, claimed = self._numbers
        if lower <= claimed:
            return (
                f"refuted: a point of the curve is, not epsilon at delta {number(self.bound.delta, 'delta')}."
            )
        for digits in (3, 6, 9, 17):  # a claim is rounded upwards, what was shown downwards
            most, least = significant(claimed, quantity, digits), significant(lower, "lower bound", digits)
            if float(least) > float(most):
                break
        return f"refuted: {quantity} is at least {least} where {most} is claimed."

    @property
    def _numbers(self) -> tuple[float, float]:
        """The lower bound and the claim, in the quantity that decides."""
        mu = self.mu_claimed
        return (self.bound.epsilon, self.epsilon_claimed) if mu is None else (self.bound.mu, mu)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON-ready form."""
        return {
            "view": self.view,
            "claim": self.guarantee.to_dict(),
            "label": self.guarantee.label,
            "epsilon_claimed": self.epsilon_claimed,
            "mu_claimed": self.mu_claimed,
            **self.bound.to_dict(),
            "tightness": self.tightness,
            "refuted": self.refuted,
            "runs": self.runs,
        }


def audit_view(
    member_views: np.ndarray,
    other_views: np.ndarray,
    guarantee: Guarantee,
    *,
    view: str = "the observers",
    statistics: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    delta: float = 1e-2,
    level: float = 0.05,
) -> Audit:
    """Hold views ``(runs, features)``, seen with and without a change, against a claim about just this.

    ``statistics`` are pairs of scores ``(runs,)`` of the caller, tried beside the fitted discriminant; the
    claim is read at ``delta``, and ``level`` is the error probability of the audit.
    """
    inside, outside = (_matrix(v) for v in (member_views, other_views))
    if inside.shape[1] != outside.shape[1]:
        got = f"{inside.shape[1]} and {outside.shape[1]}"
        raise InvalidInput(f"views of both hypotheses need the same width, got {got}.")
    alone = inside.shape[1] == 1  # one number has one direction: nothing to fit
    fit_in, fit_out = (0 if alone else max(2, int(_FIT * len(v))) for v in (inside, outside))
    scores = [(inside[:, 0], outside[:, 0])] if alone else _discriminants(inside, outside, fit_in, fit_out)
    candidates = [(member[fit_in:], other[fit_out:]) for member, other in [*statistics, *scores]]
    by = "mu" if guarantee.curve.is_gaussian else "epsilon"
    share = _FIT if alone else _CHOOSE / (1 - _FIT)
    first = [[scores[: int(share * len(scores))] for scores in pair] for pair in candidates]
    promises = [_promise(member, other, delta, by) for member, other in first]
    member, other = candidates[promises.index(max(promises))]
    bound = lower_bound(member, other, delta=delta, level=level, select=share, by=by)
    return Audit(view, guarantee, bound, len(inside) + len(outside))


def audit_averaging(
    protocol: Protocol,
    *,
    user: int,
    observers: int | Iterable[int],
    sensitivity: float,
    noise_std: float,
    runs: int,
    rng: np.random.Generator,
    guarantee: Guarantee | None = None,
    own_noise: bool = True,
    noise: NoiseSource | None = None,
    delta: float = 1e-2,
    level: float = 0.05,
) -> Audit:
    """Run one private averaging many times and test for a change of one user's value by ``sensitivity``.

    ``runs`` counts both hypotheses, half each; they are columns of one array. The claim is by default the
    accountant's exact one, the noise source a simulated one seeded from ``rng``.
    """
    seen = protocol.view(observers, own_noise)
    _require_outsider(user, seen, protocol.n)
    if guarantee is None:
        guarantee = claim_about(SingleAveraging(protocol, sensitivity, noise_std), user, seen.observers)
    noise = noise or as_noise(rng)
    views, estimates = [], []
    for step, rows in _noisy_runs(protocol, user, sensitivity, noise_std, runs, noise):
        observed = _observe(protocol, rows, seen, own_noise, noise, step)
        views.append(observed.T)
        estimates.append(_estimate(seen, observed, user))
    inside, outside = views
    scores = [(estimates[0], estimates[1])]
    return audit_view(
        inside, outside, guarantee, view=_words(seen, user), statistics=scores, delta=delta, level=level
    )


def audit_consensus(
    plan: Plan,
    *,
    user: int,
    observers: int | Iterable[int],
    runs: int,
    rng: np.random.Generator,
    guarantee: Guarantee | None = None,
    noise: NoiseSource | None = None,
    delta: float = 1e-2,
    level: float = 0.05,
) -> Audit:
    """Audit a plan over exact consensus: the user contributes in every step, with alternating sign.

    The run has the plan's schedule and, in every step, the noise and the sensitivity of its releases; a
    sampled record is present as often as it is drawn. The views of all steps are tested
    together. With fresh noise the loss is the composition of the steps; noise that is used twice cancels
    between a step and the next, and the discriminant finds it.

    The steps of the plan end in exact consensus, so that no later step depends on the contribution; the other
    arguments are those of `audit_averaging`.
    """
    half = _validate.count(runs, "runs", minimum=20) // 2
    protocols = [plan.schedule(k) for k in range(plan.steps)]
    seen = [p.view(observers) for p in protocols]
    _require_outsider(user, seen[0], plan.n)
    if guarantee is None:
        if not plan.observation.common_model:
            raise InvalidInput(
                f"{plan.name} does not end its steps in exact consensus, so its views are more than those of "
                "its averagings; audit its trained models (audit_membership)."
            )
        guarantee = claim_about(plan, user, seen[0].observers)
    planned = [[_planned(plan, agent, k) for agent in range(plan.n)] for k in range(plan.steps)]
    noise = noise or as_noise(rng)
    views, scores = [], []
    for hypothesis in range(2):
        features, score = [], np.zeros(half)
        for k, (protocol, view) in enumerate(zip(protocols, seen, strict=True)):
            sign, step, own = (-1) ** k, hypothesis * plan.steps + k, planned[k][user]
            rows = np.zeros((protocol.n, half))
            if hypothesis == 0 and own is not None:
                drawn = own.sample_rate >= 1 or rng.random(half) < own.sample_rate
                rows[user] = sign * own.sensitivity * drawn
            noisy = _noisy(rows, noise, step, [0.0 if r is None else r.noise_std for r in planned[k]])
            observed = _observe(protocol, noisy, view, True, noise, step)
            estimate = _estimate(view, observed, user)
            features.append(estimate)
            score = score + sign * estimate
        views.append(np.array(features).T)
        scores.append(score)
    (inside, outside), statistics = views, [(scores[0], scores[1])]
    who = f"{_words(seen[0], user)}, {plan.steps} steps"
    return audit_view(inside, outside, guarantee, view=who, statistics=statistics, delta=delta, level=level)


def views_of(protocol: Protocol, network: Network, user: int) -> dict[str, tuple[int, ...]]:
    """Return the observers to audit: a neighbor, the farthest node and two colluders.

    Over masked sums they are an outsider, one member, and as many members as are tolerated.
    """
    (u,) = _validate.nodes(user, network.n, "user")
    if protocol.masked:
        others, many = [v for v in range(protocol.n) if v != u], protocol.tolerate or 1
        views = {"tapper": (), "one member": tuple(others[:1])}
        return views if many == 1 else {**views, f"{many} colluders": tuple(others[:many])}
    if network.n < 4:
        raise InvalidInput(f"the standard views need at least 4 nodes, got {network.n}.")
    distance = network.distances_from(u)
    order = sorted(range(network.n), key=lambda v: (distance[v], v))
    two = (min(order[-2:]), max(order[-2:]))
    return {"neighbor": (order[1],), "distant node": (order[-1],), "two colluders": two}


def audit_outputs(
    protocol: Protocol,
    *,
    user: int,
    sensitivity: float,
    noise_std: float,
    runs: int,
    rng: np.random.Generator,
    delta: float = 1e-2,
    level: float = 0.05,
) -> Audit:
    """Audit what the public sees when node 0 publishes the average it ends with.

    The claim is the accountant's: the exact loss of the view that holds the final row of node 0 alone.
    """
    claim = account(SingleAveraging(protocol, sensitivity, noise_std), "central", observer=0, user=user)
    noise = as_noise(rng)
    inside, outside = (
        protocol.apply(rows, noise=noise, step=step)[0]
        for step, rows in _noisy_runs(protocol, user, sensitivity, noise_std, runs, noise)
    )
    return audit_view(inside, outside, claim, view=f"the public about node {user}", delta=delta, level=level)


def _noisy_runs(
    protocol: Protocol, user: int, sensitivity: float, noise_std: float, runs: int, noise: NoiseSource
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the noisy rows with and without the change of the user's value, one column per run."""
    half = _validate.count(runs, "runs", minimum=20) // 2
    for step, shift in enumerate((sensitivity, 0.0)):
        rows = np.zeros((protocol.n, half))
        rows[user] = shift
        yield step, _noisy(rows, noise, step, noise_std)


def _require_outsider(user: int, view: GaussianView, n: int) -> None:
    if _validate.node(user, n) in view.observers:
        raise InvalidInput(f"user {user} is one of the observers; audit what somebody else learns.")


def _words(view: GaussianView, user: int) -> str:
    who = "node " + ", ".join(map(str, view.observers)) if view.observers else "a tapper of all links"
    return f"{who} about node {user}"


def claim_about(plan: AccountablePlan, user: int, observers: tuple[int, ...]) -> Guarantee:
    """Return the plan's guarantee for the user against these observers."""
    if len(observers) == 1:
        return account(plan, "pairwise", observer=observers[0], user=user)
    return account(plan, "colluders" if observers else "outsider", colluders=observers, user=user)


def _planned(plan: Plan, agent: int, step: int) -> Release | None:
    """Return the release that a plan announced for one step of an agent; None where it has none."""
    releases = [r for r in plan.releases(agent) if r.covers(step, 0)]
    if len(releases) > 1 or any(r.count != 1 or r.mechanism != "gaussian" or r.joint for r in releases):
        raise InvalidInput(
            f"an audit of consensus takes one Gaussian release per step, agent {agent} announces others."
        )
    return releases[0] if releases else None


def _noisy(rows: np.ndarray, noise: NoiseSource, step: int, noise_std: float | Sequence[float]) -> np.ndarray:
    std = np.broadcast_to(np.asarray(noise_std, float), (len(rows),))
    for k in range(len(rows)):  # one at a time, the rows being ours: an agent's noise is its own
        rows[k : k + 1] = noise.perturb(rows[k : k + 1], agents=[k], step=step, std=std[k : k + 1])
    return rows


def _observe(
    protocol: Protocol, rows: np.ndarray, view: GaussianView, own_noise: bool, noise: NoiseSource, step: int
) -> np.ndarray:
    """Run the protocol; fresh noise, if it has any, is drawn by the same source, anew in every step."""

    def observed(columns: np.ndarray) -> np.ndarray:
        return protocol.observe(columns, view.observers, own_noise, noise=noise, step=step)

    fresh = not protocol.linear or protocol.fresh_std
    if fresh or rows.shape[1] <= _BLOCK:  # in blocks, two columns would get the same fresh noise
        return observed(rows)
    seen = np.empty((len(observed(rows[:, :1])), rows.shape[1]))
    for start in range(0, rows.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        seen[:, block] = observed(rows[:, block])
    return seen


def _estimate(view: GaussianView, observed: np.ndarray, user: int) -> np.ndarray:
    """The observers' estimate of the user's value, a weighted sum of what they see; NaN for a broken run."""
    weights = view.reconstruct(np.eye(len(observed)))[user]
    whole = np.isfinite(observed).all(axis=0)
    return np.where(whole, weights @ np.where(whole, observed, 0.0), np.nan)


def _discriminants(
    inside: np.ndarray, outside: np.ndarray, fit_in: int, fit_out: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fit Fisher's direction on the first part; rows that are not finite score NaN, which is evidence."""
    ok_in, ok_out = (np.isfinite(v).all(axis=1) for v in (inside, outside))
    a, b = inside[:fit_in][ok_in[:fit_in]], outside[:fit_out][ok_out[:fit_out]]
    directions = [np.zeros(inside.shape[1])]
    if len(a) >= 2 and len(b) >= 2:
        centered = np.vstack([a - a.mean(0), b - b.mean(0)])
        scale = np.where(centered.std(0) > 0, centered.std(0), 1.0)
        covariance = np.cov((centered / scale).T)
        size = max(float(np.trace(covariance)) / len(covariance), 1e-300)
        gap = (a.mean(0) - b.mean(0)) / scale
        unit = np.eye(len(covariance))
        directions = [np.linalg.solve(covariance + r * size * unit, gap) / scale for r in _RIDGES]
    inside, outside = np.where(ok_in[:, None], inside, 0.0), np.where(ok_out[:, None], outside, 0.0)
    return [(np.where(ok_in, inside @ d, np.nan), np.where(ok_out, outside @ d, np.nan)) for d in directions]


def _promise(member: np.ndarray, other: np.ndarray, delta: float, by: str) -> float:
    """Return how much a statistic promises on the runs it is chosen by: the bound itself, or its distance."""
    if len(member) < 2 or len(other) < 2:
        return 0.0
    trial = lower_bound(member, other, delta=delta, level=0.3, select=0.5, by=by)
    value = trial.mu if by == "mu" else trial.epsilon
    finite = np.isfinite(member).all() and np.isfinite(other).all()
    spread = float(np.sqrt((np.var(member) + np.var(other)) / 2)) if finite else 0.0
    gap = abs(float(np.mean(member) - np.mean(other))) / spread if spread > 0 else 0.0
    return value + 1e-3 * gap  # where few runs prove nothing yet, the larger gap decides


def _matrix(values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) < 10:
        raise InvalidInput(f"views must have shape (runs, features) with 10 runs or more, got {array.shape}.")
    return array


def published_claim(
    network: Network, rounds: int, user: int, observers: tuple[int, ...], multiplier: float
) -> Guarantee:
    """Return equation (6) of the Muffliato paper as a claim, added over the observers."""
    if user in observers or not 0 <= user < network.n:
        raise InvalidInput(f"user must be a node that is not an observer, got {user}.")
    share = min(1.0, float(np.sum(published_loss(network, rounds=rounds)[user, list(observers)])))
    mu = 2 * float(np.sqrt(share)) / multiplier  # a row of radius 1 moves by 2
    return Guarantee(Adversary("colluders", observers, user), "user", "published", Curve.gaussian(mu))
