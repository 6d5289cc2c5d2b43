"""Guarantees: a privacy loss together with what it is about.

A guarantee says against whom (:class:`Adversary`), between which data sets (adjacency), how it is known
(label), how much (:class:`~sottovoce.accounting.curve.Curve`) and what was assumed.

What labels mean is the table `sottovoce.accounting.wording.LABELS`: ``ldp`` and ``exact`` are guarantees and
may be checked against a budget, ``conditional`` and ``published`` are not. Numerical errors are rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from sottovoce import _validate
from sottovoce._format import compared, number, significant
from sottovoce._hooks import NotebookDisplay
from sottovoce._io import to_jsonable
from sottovoce.accounting import wording
from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.loss_parts import SampledGaussian
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, NotAGuarantee

__all__ = ["Adjacency", "Adversary", "Guarantee", "Label", "ViewName", "sampled_gaussian"]

Adjacency = Literal["user", "replace-one", "add-remove"]
ViewName = Literal["local", "outsider", "network", "pairwise", "colluders", "central"]
Label = Literal["ldp", "exact", "conditional", "published"]

# Divisors and sampling rates are set by the number of records. Were it to change with a record, the shares of
# all others would change too, and what is released would move by up to twice the clip instead of once.
PUBLIC_RECORD_COUNT = (
    "each member's number of records is public and not hidden: a removed record leaves an empty place, and "
    "what stays hidden is whether it was there and what it said"
)
POISSON = "Poisson sampling: every record enters every batch independently"


@dataclass(frozen=True)
class Adversary:
    """Who looks, and about whom.

    ``observers`` are one or several node numbers; without them it is the worst node or, for colluders, any
    ``count`` nodes. ``user`` is the node the guarantee is about; None for the node that loses most.

    Examples
    --------
    >>> print(Adversary("pairwise", observers=(3,), user=0))
    node 3, about node 0
    >>> print(Adversary("colluders", count=2))
    any 2 nodes together
    """

    kind: ViewName
    observers: tuple[int, ...] = ()
    user: int | None = None
    count: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kind = self.kind
        _validate.choice(kind, get_args(ViewName), "the kind of an adversary")
        named = self.observers if isinstance(self.observers, Iterable) else (self.observers,)
        nodes = tuple(sorted({_validate.count(v, "an observer", minimum=0) for v in named}))
        object.__setattr__(self, "observers", nodes)
        if self.user is not None:
            object.__setattr__(self, "user", _validate.count(self.user, "user", minimum=0))
        if self.count is not None:
            object.__setattr__(self, "count", _validate.count(self.count, "the number of colluders"))
        most = {"network": 1, "pairwise": 1, "colluders": len(nodes)}.get(kind, 0)
        unnamed = kind == "colluders" and not nodes
        if len(nodes) > most or (self.count is not None) != unnamed or self.user in nodes:
            raise InvalidInput(
                "an adversary is colluders (several nodes, or a count of them), network or pairwise (at most "
                f"one node), or central, local or outsider (none), and is not its user, got {kind} with "
                f"observers {nodes}, count {self.count} and user {self.user}."
            )

    def __str__(self) -> str:
        return wording.stored_adversary(self.to_dict(), noun="node")

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        stored: dict[str, Any] = {"kind": self.kind, "observers": list(self.observers), "user": self.user}
        return stored if self.count is None else stored | {"count": self.count}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Adversary:
        """Read what :meth:`to_dict` wrote."""
        return cls(stored["kind"], tuple(stored["observers"]), stored["user"], count=stored.get("count"))


@dataclass(frozen=True)
class Guarantee(NotebookDisplay):
    """A privacy loss with adversary, adjacency, label and assumptions.

    Guarantees
    ----------
    ``valid`` is true for the labels ``ldp`` and ``exact`` only, and only those pass :meth:`require`. ``+``
    composes mechanisms with independent noise, adaptively chosen or not; it refuses another adversary,
    another adjacency, and another label, with one exception: ``ldp + exact`` about the same adversary is
    allowed, because each part is an upper bound on what that adversary learns from it, so their composition
    is one too; it is labeled ``exact`` and carries the remark that it is an upper bound.

    >>> view = Adversary("pairwise", observers=1, user=0)
    >>> one = Guarantee(view, "user", "exact", Curve.gaussian(0.5))
    >>> (one * 4).mu, round((one * 4).epsilon(1e-5), 4)
    (1.0, 4.3772)
    """

    adversary: Adversary
    adjacency: Adjacency
    label: Label
    curve: Curve
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        _validate.choice(self.adjacency, get_args(Adjacency), "adjacency")
        _validate.choice(self.label, get_args(Label), "label")
        if not (isinstance(self.adversary, Adversary) and isinstance(self.curve, Curve)):
            raise InvalidInput(
                "a guarantee needs an Adversary and a Curve, Adversary('local') and Curve.gaussian(mu) for "
                f"instance, got {self.adversary!r} and {self.curve!r}."
            )
        object.__setattr__(self, "assumptions", tuple(dict.fromkeys(map(str, self.assumptions))))
        needed = "add-remove" if self.adjacency == "add-remove" else "replace-one"
        for part, _ in (pair for one in self.curve.alternatives for pair in one.parts):
            if isinstance(part, SampledGaussian) and part.adjacency != needed:
                raise InvalidInput(
                    f"a guarantee under {self.adjacency} adjacency needs sampled steps under {needed}, "
                    f'got {part.adjacency}; build the curve with adjacency="{needed}".'
                )

    @property
    def valid(self) -> bool:
        """Whether this is a guarantee at all: only ``ldp`` and ``exact`` are."""
        return wording.is_guarantee(self.label)

    @property
    def mu(self) -> float:
        """The GDP parameter, where the curve is Gaussian."""
        return self.curve.mu

    def epsilon(self, delta: float) -> float:
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        return self.curve.delta(epsilon)

    def rdp(self, alpha: float) -> float:
        """Return the Rényi loss of order ``alpha``."""
        return self.curve.rdp(alpha)

    @property
    def best_guess(self) -> float:
        """How often the best attacker tells two neighboring worlds apart, given even odds: 0.5 to 1.

        It is (1 + TV) / 2 with the total variation TV = delta(0) of the whole curve: Phi(mu / 2) for Gaussian
        loss, an upper bound where the curve is one.
        """
        return (1 + self.curve.delta(0.0)) / 2

    def require(self, epsilon: float, delta: float) -> Guarantee:
        """Return self if it is a guarantee within (epsilon, delta); raise otherwise."""
        epsilon = _validate.non_negative(epsilon, "epsilon")
        delta = _validate.delta(delta)
        if not self.valid:
            raise NotAGuarantee(
                "only the labels ldp and exact may be checked against a budget, "
                f"got {self.label}: {wording.label(self.label)}."
            )
        spent = self.epsilon(delta)
        if not spent <= epsilon:
            got, limit = compared(spent, epsilon)
            raise BudgetExceeded(
                f"epsilon may be at most {limit} at delta {number(delta, 'delta')}, got {got}; "
                "more noise or fewer steps lower it."
            )
        return self

    def __add__(self, other: Guarantee) -> Guarantee:
        if not isinstance(other, Guarantee):
            return NotImplemented
        for one, another, what in (
            (self.adversary, other.adversary, "against different adversaries"),
            (self.adjacency, other.adjacency, "under different adjacencies"),
        ):
            if one != another:
                raise CannotCompose(f"cannot add guarantees {what} ({one}; {another}).")
        label: Label = self.label
        remark: tuple[str, ...] = ()
        if self.label != other.label:
            if not (self.valid and other.valid):
                raise CannotCompose(
                    f"cannot add a number labeled {other.label} to one labeled {self.label}; only equal "
                    "labels, or ldp with exact, compose."
                )
            label, remark = "exact", ("upper bound: one part is known by local privacy only",)
        assumptions = (*self.assumptions, *other.assumptions, *remark)
        return Guarantee(self.adversary, self.adjacency, label, self.curve + other.curve, assumptions)

    def __mul__(self, count: int) -> Guarantee:
        return replace(self, curve=self.curve * count)

    __rmul__ = __mul__

    def __str__(self) -> str:
        return f"[{self.label}] {self.adjacency}, against {self.adversary}: {self.curve}"

    def statement(self, delta: float) -> str:
        """Return one paragraph that says everything: loss, adversary, adjacency, label, assumptions."""
        return (
            f"epsilon = {significant(self.epsilon(delta), 'epsilon', 6)} at delta = "
            f"{number(delta, 'delta')}, against {self.adversary}, "
            f"when {wording.adjacency(self.adjacency, self.adversary.user)}. "
            f"Label {self.label}: {wording.label(self.label)}. "
            f"Mechanism: {self.curve}. Assumes: {'; '.join(self.assumptions) or 'nothing further'}."
        )

    def to_dict(self, delta: float | None = None) -> dict[str, Any]:
        """Return a JSON-ready description; with ``delta`` it also holds epsilon."""
        stored: dict[str, Any] = {
            "adversary": self.adversary.to_dict(),
            "adjacency": self.adjacency,
            "label": self.label,
            "valid": self.valid,
            "curve": self.curve.to_dict(),
            "assumptions": list(self.assumptions),
        }
        if self.curve.is_gaussian:
            stored["mu"] = to_jsonable(self.mu)
        if delta is not None:
            stored |= {"delta": delta, "epsilon": to_jsonable(self.epsilon(delta))}
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Guarantee:
        """Read what :meth:`to_dict` wrote; derived numbers in it are ignored, not trusted."""
        try:
            adversary = Adversary.from_dict(stored["adversary"])
            curve = Curve.from_dict(stored["curve"])
            return cls(adversary, stored["adjacency"], stored["label"], curve, tuple(stored["assumptions"]))
        except (KeyError, TypeError) as problem:
            raise InvalidInput(
                f"this is not a stored guarantee: {problem!r} is missing or malformed."
            ) from None


def sampled_gaussian(
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    method: Method = "pld",
    *,
    adjacency: Literal["add-remove", "replace-one"] = "add-remove",
) -> Guarantee:
    """Return the guarantee of ``steps`` Poisson-sampled Gaussian steps, the accounting of DP-SGD.

    Each step draws every record independently with probability ``sample_rate``, clips each contribution to
    norm C, and adds Gaussian noise of standard deviation ``noise_multiplier * C`` to the sum (Abadi et al.,
    "Deep learning with differential privacy", CCS 2016).

    ``method`` is ``"pld"`` (numerical, tight to about 1e-3) or ``"rdp"`` (Rényi, as most papers account).

    Guarantees
    ----------
    Record level, against whoever sees every noisy sum (label ``ldp``), other records known. Holds for Poisson
    sampling only: shuffled or fixed-size batches need another account. ``noise_multiplier=0`` gives infinity,
    ``sample_rate=0`` or no steps give 0. Under replace-one the sum moves by twice the clip norm, which is
    included.

    >>> loss = sampled_gaussian(0.01, 1.0, 1000)
    >>> round(loss.epsilon(1e-5), 2), round(sampled_gaussian(0.01, 1.0, 1000, "rdp").epsilon(1e-5), 2)
    (1.83, 2.1)
    """
    curve = Curve.sampled_gaussian(sample_rate, noise_multiplier, steps, adjacency=adjacency, method=method)
    return Guarantee(Adversary("local"), adjacency, "ldp", curve, (POISSON,))
