"""Loss curves: the privacy loss of a sequence of mechanisms, in the form that composes without loss.

A :class:`Curve` is a multiset of mechanisms. Nothing is converted before epsilon or delta is computed:
Gaussian parts add in mu^2, everything else stays as it is.

How epsilon is computed, best first:

- only Gaussian parts: the exact formula of :mod:`sottovoce.accounting.gaussian`;
- parts with a known privacy loss distribution (Gaussian, sampled, mixed, Laplace, pure): numerical
  composition by dp-accounting, every rounding upwards (:mod:`sottovoce.accounting.pld`);
- otherwise, or with ``method="rdp"``: Rényi losses added and converted once at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations_with_replacement, product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sottovoce import _validate
from sottovoce._io import to_jsonable
from sottovoce.accounting.gaussian import gaussian_delta, gaussian_epsilon
from sottovoce.accounting.loss_parts import (
    Gaussian,
    GaussianMixture,
    Laplace,
    LossPart,
    Pure,
    RenyiTable,
    SampledGaussian,
)
from sottovoce.accounting.pld import Composed, Parts, composed, rare_delta, rare_epsilon
from sottovoce.accounting.renyi import ORDERS, RenyiLoss, rdp_delta, rdp_epsilon
from sottovoce.errors import CannotCompose, InvalidInput

__all__ = ["Curve"]

Method = Literal["pld", "rdp"]
_NARROWEST, _WIDEST = 1e-100, 1e4  # spread of the loss of one mechanism beyond which no grid holds it
_PAIRINGS = 128  # more pairings of worst curves than this are bounded by their Rényi losses
_COARSE_ORDERS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)


class _Quantity(NamedTuple):
    """Epsilon at a delta, or delta at an epsilon: how each method computes it."""

    without_noise: float
    gaussian: Callable[[float, float], float]
    rdp: Callable[[RenyiLoss, float], float]
    mixture: Callable[[GaussianMixture, float], float]
    composed: Callable[[Composed, float], float]
    rare: Callable[[Parts, float], float]


_EPSILON = _Quantity(
    math.inf, gaussian_epsilon, rdp_epsilon, GaussianMixture.epsilon, Composed.epsilon, rare_epsilon
)
_DELTA = _Quantity(1.0, gaussian_delta, rdp_delta, GaussianMixture.delta, Composed.delta, rare_delta)


@dataclass(frozen=True)
class Curve:
    """The composed privacy loss of a sequence of independent mechanisms.

    Add curves to compose them, multiply by a whole number to repeat them.

    Guarantees
    ----------
    ``epsilon`` and ``delta`` are upper bounds for the composition, adaptive composition included (each
    mechanism may depend on the outputs of those before it). They are exact for Gaussian parts alone. A
    mechanism without noise costs infinity, not an error.

    >>> curve = Curve.gaussian(0.6) + Curve.gaussian(0.8)
    >>> curve.mu, round(curve.epsilon(1e-5), 4)
    (1.0, 4.3772)
    >>> (Curve.pure(0.1) * 10).epsilon(1e-300) <= 1.0
    True
    """

    parts: Parts = ()
    method: Method = "pld"
    others: tuple[Curve, ...] = ()  # the loss is this one or one of these, whichever is larger
    bounds: tuple[Curve, ...] = ()  # each of these bounds the same loss too, so the least counts

    @classmethod
    def none(cls) -> Curve:
        """Return the curve of something that reveals nothing."""
        return cls()

    @classmethod
    def gaussian(cls, mu: float, count: int = 1) -> Curve:
        """Return ``count`` Gaussian mechanisms, each with sensitivity over noise equal to ``mu``."""
        return cls._repeated(Gaussian(_validate.loss(mu, "mu")), count)

    @classmethod
    def sampled_gaussian(
        cls,
        sample_rate: float,
        noise_multiplier: float,
        steps: int = 1,
        *,
        adjacency: Literal["add-remove", "replace-one"] = "add-remove",
        method: Method = "pld",
    ) -> Curve:
        """Return ``steps`` Gaussian steps on Poisson samples; ``noise_multiplier`` is noise over clip norm.

        Under replace-one the sum moves by up to twice the clip norm, which is accounted for here.
        """
        rate = _validate.probability(sample_rate, "sample_rate")
        noise = _validate.non_negative(noise_multiplier, "noise_multiplier")
        _validate.choice(adjacency, ("add-remove", "replace-one"), "adjacency of a sampled step")
        _validate.choice(method, get_args(Method), "method")
        if rate == 1 and noise > 0:
            mu = (2 if adjacency == "replace-one" else 1) / noise
            return replace(cls.gaussian(mu, steps), method=method)
        return cls._repeated(SampledGaussian(rate, noise, adjacency), steps, method)

    @classmethod
    def gaussian_mixture(cls, mus: Sequence[float], weights: Sequence[float], count: int = 1) -> Curve:
        """Return ``count`` Gaussian mechanisms, each with a mu that is drawn without data and then shown.

        ``weights`` are the probabilities of ``mus``.
        """
        probable = sorted(
            (_validate.loss(m, "mu"), float(w)) for m, w in zip(mus, weights, strict=True) if w > 0
        )
        missing = 1.0 - math.fsum(weight for _, weight in probable)
        if not probable or abs(missing) > 1e-9:
            raise InvalidInput(f"the weights of a mixture must add up to 1, they miss it by {missing:g}.")
        shifts, shares = zip(*probable, strict=True)
        if len(shifts) == 1:
            return cls.gaussian(shifts[0], count)
        largest = shares[-1] + max(missing, 0.0)  # what rounding took goes to the largest loss
        return cls._repeated(GaussianMixture(shifts, (*shares[:-1], largest)), count)

    @classmethod
    def pure(cls, epsilon: float, count: int = 1) -> Curve:
        """Return ``count`` mechanisms that are each ``epsilon``-DP with delta 0."""
        return cls._repeated(Pure(_validate.loss(epsilon, "epsilon")), count)

    @classmethod
    def laplace(cls, ratio: float, count: int = 1) -> Curve:
        """Return ``count`` Laplace mechanisms, ``ratio`` = L1 sensitivity over scale."""
        return cls._repeated(Laplace(_validate.loss(ratio, "ratio")), count)

    @classmethod
    def from_rdp(cls, orders: Sequence[float], values: Sequence[float], count: int = 1) -> Curve:
        """Return a curve known by its Rényi losses at some orders, with an upper bound between two."""
        pairs = sorted((float(a), float(v)) for a, v in zip(orders, values, strict=True))
        pairs = [(a, v) for a, v in pairs if a != math.inf]  # between two orders the table needs both
        pairs = [(a, v) for a, v in pairs if v != math.inf] or pairs[:1]
        if not pairs or not all(a > 1 and v >= 0 for a, v in pairs):
            raise InvalidInput(
                "a Rényi curve needs finite orders above 1 with losses of at least 0, got none or worse."
            )
        orders, values = zip(*pairs, strict=True)
        return cls._repeated(RenyiTable(orders, values), count, "rdp")

    @classmethod
    def _repeated(cls, part: LossPart, count: int, method: Method = "pld") -> Curve:
        return cls(((part, _validate.count(count, "the number of steps", minimum=0)),), method)._tidy()

    @classmethod
    def total(cls, curves: Iterable[Curve]) -> Curve:
        """Compose many curves at once, which is quicker than adding them one by one."""
        curves = list(curves)
        if any(curve.bounds for curve in curves):
            return cls._with_bounds(cls.total, curves)
        if any(curve.others for curve in curves):
            return cls._every_pairing(Counter(curves))
        relations = {p.adjacency for c in curves for p, _ in c.parts if isinstance(p, SampledGaussian)}
        if len(relations) > 1:
            raise CannotCompose("sampled steps under add/remove and under replace-one cannot be composed.")
        method: Method = "rdp" if any(c.method == "rdp" for c in curves) else "pld"
        return cls(tuple(part for c in curves for part in c.parts), method)._tidy()

    @classmethod
    def _with_bounds(cls, combine: Callable[[Iterable[Curve]], Curve], curves: list[Curve]) -> Curve:
        """Combine curves of which some have several bounds; any choice of bounds will do, two are tried."""
        return cls.least(combine([curve._bounded_by[at] for curve in curves]) for at in (0, -1))

    @classmethod
    def _every_pairing(cls, counted: Counter[Curve]) -> Curve:
        """Compose worst curves: whoever loses most in one may lose least in another, equal ones included."""
        choices = [(curve.alternatives, count) for curve, count in counted.items()]
        if math.prod(math.comb(len(some) + k - 1, k) for some, k in choices) > _PAIRINGS:
            return cls.total(
                (curve.tabulated() if curve.others else curve) * count for curve, count in counted.items()
            )
        pairings = product(*(combinations_with_replacement(some, k) for some, k in choices))
        return cls.worst(cls.total(chain.from_iterable(pairing)) for pairing in pairings)

    @classmethod
    def worst(cls, curves: Iterable[Curve]) -> Curve:
        """Return the loss of the largest curve, decided at every delta: curves of unlike rates cross."""
        curves = list(curves)
        if any(curve.bounds for curve in curves):
            return cls._with_bounds(cls.worst, curves)
        first, *others = _extremes((one for curve in curves for one in curve.alternatives), _within) or [
            cls()
        ]
        return replace(first, others=tuple(others))

    @classmethod
    def least(cls, curves: Iterable[Curve]) -> Curve:
        """Return a loss that every one of ``curves`` bounds: the smallest, at every delta anew."""
        every = (one for curve in curves for one in curve._bounded_by)
        first, *others = _extremes(every, lambda one, other: _within(other, one))
        return replace(first, bounds=tuple(others))

    @property
    def alternatives(self) -> tuple[Curve, ...]:
        """The curves of which this one is the worst; one alone for a plain curve."""
        if self.bounds or not self.others:
            return (self,)
        return (replace(self, others=()), *self.others)

    @property
    def is_gaussian(self) -> bool:
        """Whether every part is Gaussian, so that one number mu says all."""
        plain = not self.others and not self.bounds
        return plain and all(isinstance(part, Gaussian) for part, _ in self.parts)

    @property
    def mu(self) -> float:
        """The GDP parameter of a Gaussian curve; other curves have none and raise."""
        if not self.is_gaussian:
            raise InvalidInput(
                f"mu is defined for Gaussian curves only, this one is {self}; use epsilon(delta)."
            )
        return math.hypot(*(part.mu * math.sqrt(k) for part, k in self.parts if isinstance(part, Gaussian)))

    def rdp(self, alpha: float) -> float:
        """Return the Rényi loss of order ``alpha`` > 1."""
        if not alpha > 1:
            raise InvalidInput(f"alpha must be greater than 1, got {alpha!r}.")
        if self.bounds:
            return min(one.rdp(alpha) for one in self._bounded_by)
        if self.others:
            return max(one.rdp(alpha) for one in self.alternatives)
        return math.fsum(count * part.rdp(alpha) for part, count in self.parts)

    def tabulated(self) -> Curve:
        """Return the curve by its Rényi losses alone: one part, whatever it was composed of."""
        orders = [alpha for alpha in ORDERS if alpha <= 4096]
        return Curve.from_rdp(orders, [self.rdp(alpha) for alpha in orders])

    def epsilon(self, delta: float) -> float:
        """Return epsilon at ``delta``: exact for Gaussian curves, otherwise an upper bound."""
        return self._evaluate(_EPSILON, _validate.delta(delta))

    def delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon``: exact for Gaussian curves, otherwise an upper bound."""
        return self._evaluate(_DELTA, _validate.non_negative(epsilon, "epsilon"))

    def _evaluate(self, quantity: _Quantity, at: float) -> float:
        """Return epsilon at a delta, or delta at an epsilon: the least of the upper bounds that are known."""
        if self.bounds:
            return min(one._evaluate(quantity, at) for one in self._bounded_by)
        if self.others:
            return self._largest_alternative(quantity, at)
        if not self.parts:
            return 0.0
        if any(math.isinf(part.size) for part, _ in self.parts):
            return quantity.without_noise
        if self.is_gaussian:
            return quantity.gaussian(self.mu, at)
        (part, count), *more = self.parts
        if isinstance(part, GaussianMixture) and count == 1 and not more:
            return quantity.mixture(part, at)
        # basic composition: pure mechanisms add up to a pure one
        pure = all(part.is_pure for part, _ in self.parts)
        pure_epsilon = sum(count * part.size for part, count in self.parts) if pure else math.inf
        if quantity is _DELTA and at >= pure_epsilon:
            return 0.0
        bound = pure_epsilon if quantity is _EPSILON else 1.0
        if self.method == "rdp" or not all(part.has_distribution for part, _ in self.parts):
            return min(bound, quantity.rdp(self.rdp, at))
        if any(part.spread[0] < _NARROWEST or part.spread[1] > _WIDEST for part, _ in self.parts):
            return min(bound, self._without_sampling(quantity, at))
        distribution = composed(self.parts)
        value = min(bound, quantity.composed(distribution, at))
        if (at if quantity is _EPSILON else value) < distribution.trusted_delta:
            value = min(value, quantity.rdp(self.rdp, at), quantity.rare(self.parts, at))
        return value

    def _without_sampling(self, quantity: _Quantity, at: float) -> float:
        """Return a bound for losses that no grid holds: every step is seen, and pure parts add."""
        mu = math.hypot(*(part.shift * math.sqrt(count) for part, count in self.parts))
        pure = math.fsum(count * part.size for part, count in self.parts if part.is_pure)
        if quantity is _EPSILON:
            return pure + gaussian_epsilon(mu, at)
        return gaussian_delta(mu, at - pure) if at > pure else 1.0

    def _largest_alternative(self, quantity: _Quantity, at: float) -> float:
        """Return the largest value; cheap Rényi bounds say where to look first and when to stop."""
        bounds = [
            quantity.rdp((_COARSE_ORDERS, [one.rdp(alpha) for alpha in _COARSE_ORDERS]), at)
            for one in self.alternatives
        ]
        largest = 0.0
        for bound, one in sorted(zip(bounds, self.alternatives, strict=True), key=lambda pair: -pair[0]):
            if bound <= largest:
                break
            largest = max(largest, one._evaluate(quantity, at))
        return largest

    def __add__(self, other: Curve) -> Curve:
        if not isinstance(other, Curve):
            return NotImplemented
        return Curve.total((self, other))

    def __mul__(self, count: int) -> Curve:
        count = _validate.count(count, "the number of repetitions", minimum=0)
        if self.bounds:
            return Curve.least(one * count for one in self._bounded_by)
        if self.others:
            return Curve.worst(one * count for one in self.alternatives)
        return replace(self, parts=tuple((part, k * count) for part, k in self.parts))._tidy()

    __rmul__ = __mul__

    def __str__(self) -> str:
        if self.bounds:
            return f"the least of {len(self.bounds) + 1} ({' | '.join(map(str, self._bounded_by))})"
        if self.others:
            more = " | ..." if len(self.others) > 1 else ""
            return f"the worst of {len(self.others) + 1} ({self.alternatives[0]} | {self.others[0]}{more})"
        if not self.parts:
            return "no loss"
        return "; ".join(f"{count} x {part}" if count > 1 else str(part) for part, count in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; infinities become the string "inf"."""
        parts = []
        for part, count in self.parts:
            fields = {key: to_jsonable(value) for key, value in vars(part).items()}
            parts.append({"kind": part.kind, "count": count, **fields})
        stored: dict[str, Any] = {"parts": parts, "method": self.method}
        for name, curves in (("others", self.others), ("bounds", self.bounds)):
            if curves:
                stored[name] = [one.to_dict() for one in curves]
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Curve:
        """Read what :meth:`to_dict` wrote, through the same checks as the builders."""
        total = cls(method=_validate.choice(stored["method"], get_args(Method), "method"))
        for entry in stored["parts"]:
            build = _BUILDERS[_validate.choice(entry["kind"], _BUILDERS, "a curve part")]
            fields = {key: _from_json(value) for key, value in entry.items() if key != "kind"}
            total = total + replace(build(**fields), method=total.method)
        worst = cls.worst([total, *map(cls.from_dict, stored.get("others", ()))])
        return cls.least([worst, *map(cls.from_dict, stored.get("bounds", ()))])

    @property
    def _bounded_by(self) -> tuple[Curve, ...]:
        return (replace(self, bounds=()), *self.bounds)

    def _tidy(self) -> Curve:
        """Merge equal parts, all Gaussian parts into one, and drop what costs nothing."""
        mus: list[float] = []
        counts: Counter[LossPart] = Counter()
        for part, count in self.parts:
            if isinstance(part, Gaussian):
                mus.append(part.mu * math.sqrt(count) if count else 0.0)
            elif part.size:
                counts[part] += count
        mu = math.hypot(*mus)
        gaussian: list[tuple[LossPart, int]] = [(Gaussian(mu), 1)] if mu > 0 else []
        others = sorted(((part, count) for part, count in counts.items() if count), key=repr)
        return Curve((*gaussian, *others), self.method)


_BUILDERS: dict[str, Callable[..., Curve]] = {
    "gaussian": Curve.gaussian,
    "sampled-gaussian": lambda sample_rate, noise_multiplier, adjacency, count: Curve.sampled_gaussian(
        sample_rate, noise_multiplier, count, adjacency=adjacency
    ),
    "gaussian-mixture": Curve.gaussian_mixture,
    "pure": Curve.pure,
    "laplace": Curve.laplace,
    "rdp": Curve.from_rdp,
}


def _extremes(curves: Iterable[Curve], within: Callable[[Curve, Curve], bool]) -> list[Curve]:
    """Return the curves that are not within another one."""
    extremes: list[Curve] = []
    for one in curves:
        if not any(within(one, other) for other in extremes):
            extremes = [other for other in extremes if not within(other, one)] + [one]
    return extremes


def _within(small: Curve, large: Curve) -> bool:
    """Whether ``large`` is at least ``small`` at every delta, where that is plain to see."""
    if large.bounds:
        return all(_within(small, bound) for bound in large._bounded_by)
    if small.bounds:
        return any(_within(bound, large) for bound in small._bounded_by)
    if small == large or not (small.parts or small.others):
        return True
    if small.is_gaussian and large.is_gaussian:
        return small.mu <= large.mu
    if small.others or large.others or small.method != large.method:
        return False
    few, many = _sampled_steps(small), _sampled_steps(large)
    if few is None or many is None or few[0] != many[0]:
        return False
    (noises, rates, counts), (their_noises, their_rates, their_counts) = few[1], many[1]
    if rates.max() > their_rates.min():
        return False
    # A step costs less with more noise and a smaller rate. So the small curve costs no more if its i-th
    # quietest step has at least the noise of the i-th quietest of the large one: if up to every noise level
    # it has no more steps.
    up_to = np.concatenate([[0], np.cumsum(their_counts)])[np.searchsorted(their_noises, noises, "right")]
    return bool((np.cumsum(counts) <= up_to).all())


def _sampled_steps(curve: Curve) -> tuple[str, np.ndarray] | None:
    """Return adjacency and (multiplier, rate, count) of a curve of sampled steps alone, quietest last."""
    parts = [(part, count) for part, count in curve.parts if isinstance(part, SampledGaussian)]
    adjacencies = {part.adjacency for part, _ in parts}
    if len(parts) < len(curve.parts) or len(adjacencies) != 1:
        return None
    steps = sorted((part.noise_multiplier, part.sample_rate, count) for part, count in parts)
    return adjacencies.pop(), np.array(steps).T


def _from_json(value: object) -> object:
    if isinstance(value, list):
        return tuple(_from_json(v) for v in value)
    return math.inf if value == "inf" else value
