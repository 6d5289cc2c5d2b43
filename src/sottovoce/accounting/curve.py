"""Loss curves: the privacy loss of a sequence of mechanisms, in the form that composes without loss.

A :class:`Curve` is a bag of mechanisms with counts. Nothing is converted before epsilon or delta is computed:
Gaussian parts add in mu^2, everything else stays as it is, and the count of a mechanism is applied in one
place only, :meth:`Curve.renyi` and the composition of privacy loss distributions.

How epsilon is computed, best first:

- only Gaussian parts: the exact formula of :mod:`sottovoce.accounting.gaussian`;
- parts with a known privacy loss distribution (Gaussian, sampled Gaussian, Laplace, pure): numerical
  composition by dp-accounting, every rounding upwards (:mod:`sottovoce.accounting.pld`);
- otherwise, or with ``method="rdp"``: Rényi losses added and converted once at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from sottovoce import _validate
from sottovoce.accounting.gaussian import gaussian_delta, gaussian_epsilon
from sottovoce.accounting.loss_parts import Gaussian, Laplace, Part, Pure, RenyiTable, SampledGaussian
from sottovoce.accounting.pld import composed, rare_delta, rare_epsilon
from sottovoce.accounting.renyi import ORDERS, Conversion, rdp_delta, rdp_epsilon
from sottovoce.errors import CannotCompose, InvalidInput

__all__ = ["Curve"]

Method = Literal["pld", "rdp"]
_PAIRINGS = 128  # more pairings of worst curves than this are bounded by their Rényi losses


_KINDS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "sampled-gaussian": SampledGaussian,
    "pure": Pure,
    "laplace": Laplace,
    "rdp": RenyiTable,
}


@dataclass(frozen=True)
class Curve:
    """The composed privacy loss of a sequence of independent mechanisms.

    Build one with :meth:`gaussian`, :meth:`sampled_gaussian`, :meth:`pure`, :meth:`laplace`, :meth:`rdp` or
    :meth:`none`; add curves to compose them, multiply by a whole number to repeat them.

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

    parts: tuple[tuple[Part, int], ...] = ()
    method: Method = "pld"
    others: tuple[Curve, ...] = ()  # the loss is this one or one of these, whichever is larger
    bounds: tuple[Curve, ...] = ()  # each of these bounds the same loss too, so the least counts

    # -- building ---------------------------------------------------------------------------------------

    @classmethod
    def none(cls) -> Curve:
        """Return the curve of something that reveals nothing."""
        return cls()

    @classmethod
    def gaussian(cls, mu: float, count: int = 1) -> Curve:
        """Return ``count`` Gaussian mechanisms, each with sensitivity over noise equal to ``mu``.

        >>> Curve.gaussian(0.5, count=4).mu
        1.0
        """
        return cls(((Gaussian(_validate.loss(mu, "mu")), _count(count)),))._tidy()

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
        """Return ``steps`` Gaussian steps on Poisson samples.

        ``noise_multiplier`` is noise standard deviation over clip norm; under replace-one the sum moves by up
        to twice the clip norm, and that is accounted for here, not by the caller.
        """
        rate = _validate.probability(sample_rate, "sample_rate")
        noise = _validate.non_negative(noise_multiplier, "noise_multiplier")
        if adjacency not in ("add-remove", "replace-one"):
            raise InvalidInput(
                f'adjacency of a sampled step must be "add-remove" or "replace-one", got {adjacency!r}.'
            )
        if method not in ("pld", "rdp"):
            raise InvalidInput(f'method must be "pld" or "rdp", got {method!r}.')
        if rate == 1 and noise > 0:
            mu = (2 if adjacency == "replace-one" else 1) / noise
            return replace(cls.gaussian(mu, steps), method=method)
        return cls(((SampledGaussian(rate, noise, adjacency), _count(steps)),), method)._tidy()

    @classmethod
    def pure(cls, epsilon: float, count: int = 1) -> Curve:
        """Return ``count`` mechanisms that are each ``epsilon``-DP with delta 0."""
        return cls(((Pure(_validate.loss(epsilon, "epsilon")), _count(count)),))._tidy()

    @classmethod
    def laplace(cls, ratio: float, count: int = 1) -> Curve:
        """Return ``count`` Laplace mechanisms, ``ratio`` = L1 sensitivity over scale."""
        return cls(((Laplace(_validate.loss(ratio, "ratio")), _count(count)),))._tidy()

    @classmethod
    def rdp(
        cls, loss: Callable[[float], float] | tuple[Sequence[float], Sequence[float]], count: int = 1
    ) -> Curve:
        """Return a curve known by its Rényi losses: a function of alpha, or (orders, values).

        A function is tabulated once, so that the curve can be stored and compared; between two orders the
        table answers with an upper bound.
        """
        if callable(loss):
            pairs = [(a, float(loss(a))) for a in ORDERS if a <= 4096]
        else:
            pairs = sorted((float(a), float(v)) for a, v in zip(loss[0], loss[1], strict=True))
        pairs = [(a, v) for a, v in pairs if a != math.inf]  # between two orders the table needs both
        pairs = [(a, v) for a, v in pairs if v != math.inf] or pairs[:1]
        if not pairs or not all(a > 1 and v >= 0 for a, v in pairs):
            raise InvalidInput(
                "a Rényi curve needs finite orders above 1 with losses of at least 0, got none or worse."
            )
        orders, values = zip(*pairs, strict=True)
        return cls(((RenyiTable(orders, values), _count(count)),), "rdp")

    @classmethod
    def total(cls, curves: Iterable[Curve]) -> Curve:
        """Compose many curves at once, which is quicker than adding them one by one."""
        curves = list(curves)
        if any(curve.bounds for curve in curves):
            # a sum may be bounded by any choice of bounds: all first ones, or all last ones
            first = cls.total(replace(curve, bounds=()) for curve in curves)
            return cls.least(
                [first, cls.total(curve.bounds[-1] if curve.bounds else curve for curve in curves)]
            )
        if any(curve.others for curve in curves):
            return cls._every_pairing(Counter(curves))
        relations = {p.adjacency for c in curves for p, _ in c.parts if isinstance(p, SampledGaussian)}
        if len(relations) > 1:
            raise CannotCompose("sampled steps under add/remove and under replace-one cannot be composed.")
        method: Method = "rdp" if any(c.method == "rdp" for c in curves) else "pld"
        return cls(tuple(part for c in curves for part in c.parts), method)._tidy()

    @classmethod
    def _every_pairing(cls, counted: Counter[Curve]) -> Curve:
        """Compose worst curves: equal ones are the same agents again, of others any may meet any."""
        repeated = [curve * count for curve, count in counted.items()]
        if math.prod(len(curve.alternatives) for curve in repeated) > _PAIRINGS:
            repeated = [cls.rdp(curve.renyi) if curve.others else curve for curve in repeated]
            return cls.total(repeated)
        return cls.worst(map(cls.total, product(*(curve.alternatives for curve in repeated))))

    @classmethod
    def worst(cls, curves: Iterable[Curve]) -> Curve:
        """Return the loss of the largest curve, decided at every delta.

        Curves of different sample rates cross: the agent that loses most at one delta need not do so at
        another, so no single one of them speaks for all.

        >>> few, many = Curve.sampled_gaussian(0.5, 5.0, 10), Curve.sampled_gaussian(0.01, 0.6, 10)
        >>> worst = Curve.worst([few, many])
        >>> all(worst.epsilon(d) == max(few.epsilon(d), many.epsilon(d)) for d in (1e-3, 1e-9))
        True
        >>> Curve.worst([Curve.gaussian(1.0), Curve.gaussian(2.0)]) == Curve.gaussian(2.0)
        True
        """
        largest: list[Curve] = []
        for one in (one for curve in curves for one in curve.alternatives):
            if not any(_within(one, other) for other in largest):
                largest = [other for other in largest if not _within(other, one)] + [one]
        return replace(largest[0], others=tuple(largest[1:])) if largest else cls()

    @classmethod
    def least(cls, curves: Iterable[Curve]) -> Curve:
        """Return a loss that every one of ``curves`` bounds: the smallest, at every delta anew."""
        smallest: list[Curve] = []
        for one in (one for curve in curves for one in (replace(curve, bounds=()), *curve.bounds)):
            if not any(_within(other, one) for other in smallest):
                smallest = [other for other in smallest if not _within(one, other)] + [one]
        if not smallest:
            raise InvalidInput("least needs at least one curve, got none.")
        return replace(smallest[0], bounds=tuple(smallest[1:]))

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def alternatives(self) -> tuple[Curve, ...]:
        """The curves of which this one is the worst; one alone for a plain curve."""
        if self.bounds or not self.others:
            return (self,)
        return (replace(self, others=()), *self.others)

    @property
    def is_gaussian(self) -> bool:
        """Whether every part is Gaussian, so that one number mu says all."""
        return (
            not self.others and not self.bounds and all(isinstance(part, Gaussian) for part, _ in self.parts)
        )

    @property
    def mu(self) -> float:
        """The GDP parameter of a Gaussian curve; other curves have none and raise."""
        if not self.is_gaussian:
            raise InvalidInput(
                f"mu is defined for Gaussian curves only, this one is {self}; use epsilon(delta)."
            )
        return math.hypot(*(part.mu * math.sqrt(k) for part, k in self.parts if isinstance(part, Gaussian)))

    @property
    def rho(self) -> float:
        """The zCDP parameter mu^2 / 2 of a Gaussian curve."""
        return self.mu**2 / 2

    def renyi(self, alpha: float) -> float:
        """Return the Rényi loss of order ``alpha`` > 1."""
        if not alpha > 1:
            raise InvalidInput(f"alpha must be greater than 1, got {alpha!r}.")
        if self.bounds:
            return min(one.renyi(alpha) for one in self._bounded_by)
        if self.others:
            return max(one.renyi(alpha) for one in self.alternatives)
        return math.fsum(count * part.rdp(alpha) for part, count in self.parts)

    def epsilon(
        self, delta: float, *, method: Method | None = None, conversion: Conversion = "better"
    ) -> float:
        """Return epsilon at ``delta``: exact for Gaussian curves, otherwise an upper bound."""
        delta = _validate.delta(delta)
        if self.bounds:
            return min(one.epsilon(delta, method=method, conversion=conversion) for one in self._bounded_by)
        if self.others:
            return _largest(
                self.alternatives,
                lambda one: one.epsilon(delta, method=method, conversion=conversion),
                lambda one: rdp_epsilon(one._coarse(), delta, conversion),
            )
        how = method or self.method
        if not self.parts:
            return 0.0
        if self._unbounded:
            return math.inf
        if self.is_gaussian and method != "rdp":
            return gaussian_epsilon(self.mu, delta)
        bound = self._pure_epsilon
        if how == "rdp" or not self._has_distribution:
            return min(bound, rdp_epsilon(self.renyi, delta, conversion))
        distribution = composed(self.parts)
        epsilon = min(bound, distribution.epsilon(delta))
        if delta < distribution.trusted_delta:
            epsilon = min(
                epsilon, rdp_epsilon(self.renyi, delta, conversion), rare_epsilon(self.parts, delta)
            )
        return epsilon

    def delta(
        self, epsilon: float, *, method: Method | None = None, conversion: Conversion = "better"
    ) -> float:
        """Return delta at ``epsilon``: exact for Gaussian curves, otherwise an upper bound."""
        epsilon = _validate.non_negative(epsilon, "epsilon")
        if self.bounds:
            return min(one.delta(epsilon, method=method, conversion=conversion) for one in self._bounded_by)
        if self.others:
            return _largest(
                self.alternatives,
                lambda one: one.delta(epsilon, method=method, conversion=conversion),
                lambda one: rdp_delta(one._coarse(), epsilon, conversion),
            )
        how = method or self.method
        if not self.parts:
            return 0.0
        if self._unbounded:
            return 1.0
        if self.is_gaussian and method != "rdp":
            return gaussian_delta(self.mu, epsilon)
        if epsilon >= self._pure_epsilon:
            return 0.0
        if how == "rdp" or not self._has_distribution:
            return rdp_delta(self.renyi, epsilon, conversion)
        distribution = composed(self.parts)
        delta = distribution.delta(epsilon)
        if delta < distribution.trusted_delta:
            delta = min(delta, rdp_delta(self.renyi, epsilon, conversion), rare_delta(self.parts, epsilon))
        return delta

    # -- composing --------------------------------------------------------------------------------------

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

    # -- storing ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; infinities become the string "inf"."""
        names = {kind: name for name, kind in _KINDS.items()}
        parts = []
        for part, count in self.parts:
            fields = {key: _plain(value) for key, value in vars(part).items()}
            parts.append({"kind": names[type(part)], "count": count, **fields})
        record: dict[str, Any] = {"parts": parts, "method": self.method}
        for name in ("others", "bounds"):
            if getattr(self, name):
                record[name] = [one.to_dict() for one in getattr(self, name)]
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Curve:
        """Read what :meth:`to_dict` wrote, through the same checks as the builders."""
        total = cls(method=record["method"])
        if total.method not in ("pld", "rdp"):
            raise InvalidInput(f'method must be "pld" or "rdp", got {total.method!r}.')
        for entry in record["parts"]:
            fields = {key: _value(value) for key, value in entry.items() if key not in ("kind", "count")}
            kind, count = entry["kind"], entry["count"]
            if kind == "gaussian":
                one = cls.gaussian(fields["mu"], count)
            elif kind == "sampled-gaussian":
                one = cls.sampled_gaussian(
                    fields["sample_rate"], fields["noise_multiplier"], count, adjacency=fields["adjacency"]
                )
            elif kind == "pure":
                one = cls.pure(fields["epsilon"], count)
            elif kind == "laplace":
                one = cls.laplace(fields["ratio"], count)
            elif kind == "rdp":
                one = cls.rdp((fields["orders"], fields["values"]), count)
            else:
                raise InvalidInput(f"a curve part must be one of {', '.join(_KINDS)}, got {kind!r}.")
            total = total + replace(one, method=total.method)
        worst = cls.worst([total, *map(cls.from_dict, record.get("others", ()))])
        return cls.least([worst, *map(cls.from_dict, record.get("bounds", ()))])

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _bounded_by(self) -> tuple[Curve, ...]:
        return (replace(self, bounds=()), *self.bounds)

    def _coarse(self) -> tuple[Sequence[float], Sequence[float]]:
        """Rényi losses at a few whole orders, cheap and good enough to say which curve may be the worst."""
        orders = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)
        return orders, [self.renyi(alpha) for alpha in orders]

    @property
    def _unbounded(self) -> bool:
        for part, _ in self.parts:
            if isinstance(part, SampledGaussian):
                if part.noise_multiplier == 0:
                    return True
            elif isinstance(part, RenyiTable):
                if math.isinf(part.values[0]):
                    return True
            elif any(math.isinf(v) for v in vars(part).values()):
                return True
        return False

    @property
    def _has_distribution(self) -> bool:
        return not any(isinstance(part, RenyiTable) for part, _ in self.parts)

    @property
    def _pure_epsilon(self) -> float:
        """Plain addition, where every part is pure; infinity otherwise."""
        total = 0.0
        for part, count in self.parts:
            if isinstance(part, Pure):
                total += count * part.epsilon
            elif isinstance(part, Laplace):
                total += count * part.ratio
            else:
                return math.inf
        return total

    def _tidy(self) -> Curve:
        """Merge equal parts, all Gaussian parts into one, and drop what costs nothing."""
        mus: list[float] = []
        counts: dict[Part, int] = {}
        for part, count in self.parts:
            if isinstance(part, Gaussian):
                mus.append(part.mu * math.sqrt(count) if count else 0.0)
            else:
                counts[part] = counts.get(part, 0) + count
        free = {SampledGaussian: "sample_rate", Pure: "epsilon", Laplace: "ratio"}
        others = [
            (part, count)
            for part, count in counts.items()
            if count > 0 and not (type(part) in free and getattr(part, free[type(part)]) == 0)
        ]
        mu = math.hypot(*mus)
        gaussian: list[tuple[Part, int]] = [(Gaussian(mu), 1)] if mu > 0 else []
        return Curve(tuple(gaussian + sorted(others, key=repr)), self.method)


def _within(small: Curve, large: Curve) -> bool:
    """Whether ``large`` is at least ``small`` at every delta, where that is plain to see."""
    if large.bounds:
        return all(_within(small, bound) for bound in large._bounded_by)
    if small.bounds:
        return any(_within(bound, large) for bound in small._bounded_by)
    if small.others or large.others:
        return small == large
    if not small.parts:
        return True
    if small.is_gaussian and large.is_gaussian:
        return small.mu <= large.mu
    if small.method != large.method:
        return False
    few, many = _sampled_steps(small), _sampled_steps(large)
    if few is None or many is None or few[0] != many[0] or few[2] > many[1]:
        return False
    # step by step from the quietest noise: every step of the small one costs no more than one of the large
    return _covered(few[3], many[3])


def _sampled_steps(curve: Curve) -> tuple[str, float, float, list[tuple[float, int]]] | None:
    """Adjacency, least and largest rate, and (multiplier, count) from the quietest on; sampled steps only."""
    sampled = [(part, count) for part, count in curve.parts if isinstance(part, SampledGaussian)]
    if len(sampled) < len(curve.parts) or len({part.adjacency for part, _ in sampled}) != 1:
        return None
    rates = [part.sample_rate for part, _ in sampled]
    steps = sorted((part.noise_multiplier, count) for part, count in sampled)
    return sampled[0][0].adjacency, min(rates), max(rates), steps


def _covered(few: list[tuple[float, int]], many: list[tuple[float, int]]) -> bool:
    """Whether the i-th quietest step of ``few`` has at least the noise of the i-th of ``many``."""
    at, left = 0, many[0][1]
    for noise, count in few:
        while count:
            if at == len(many) or noise < many[at][0]:
                return False
            taken = min(count, left)
            count, left = count - taken, left - taken
            if not left:
                at += 1
                left = many[at][1] if at < len(many) else 0
    return True


def _largest(
    curves: Sequence[Curve], value: Callable[[Curve], float], bound: Callable[[Curve], float]
) -> float:
    """Return the largest value; the cheap bounds say where to look first and when to stop."""
    best = 0.0
    for above, one in sorted(((bound(one), one) for one in curves), key=lambda pair: -pair[0]):
        if above <= best:
            break
        best = max(best, value(one))
    return best


def _count(value: int) -> int:
    return _validate.count(value, "the number of steps", minimum=0)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    return math.inf if value == "inf" else value
