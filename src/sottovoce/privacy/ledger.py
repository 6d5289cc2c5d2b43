"""What was published, and what it has cost: releases, budgets and the ledger that refuses to overspend.

A `Release` holds everything an accountant needs about one noisy publication and nothing else. A ledger is
append-only: a release is charged before its message leaves, and a release that would pass the budget is
refused and leaves no trace. Simulations keep a `MemoryLedger`; a peer keeps the same thing on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sottovoce import _validate
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, LedgerError

__all__ = ["Budget", "Ledger", "MemoryLedger", "Release", "Spending"]

ADJACENCIES = ("user", "replace-one", "add-remove")


@dataclass(frozen=True)
class Release:
    """One noisy publication: who published what kind of number, when, and under which noise.

    Parameters
    ----------
    sender : number of the agent whose data it is about.
    step : step of the algorithm.
    sensitivity : how far one user or record can move the value, in L2.
    noise_std : standard deviation of the Gaussian noise, per coordinate.
    adjacency : ``"user"``, ``"replace-one"`` or ``"add-remove"``.
    sample_rate : probability with which each record was in the lot (Poisson); 1 without sampling.
    count : how many such noisy values one message carries (the inner steps of DiNNO).
    mechanism : ``"gaussian"``; an accountant refuses what it does not know.

    Examples
    --------
    >>> release = Release(sender=2, step=0, sensitivity=2.0, noise_std=4.0)
    >>> release.noise_multiplier
    2.0
    >>> Release.from_bytes(release.to_bytes()) == release
    True
    """

    sender: int
    step: int
    sensitivity: float
    noise_std: float
    adjacency: str = "user"
    sample_rate: float = 1.0
    count: int = 1
    mechanism: str = "gaussian"

    def __post_init__(self) -> None:
        _validate.count(self.sender, "the sender", minimum=0)
        _validate.count(self.step, "the step", minimum=0)
        _validate.count(self.count, "the count")
        for name, check in (("sensitivity", _validate.non_negative), ("noise_std", _validate.positive)):
            object.__setattr__(self, name, check(getattr(self, name), name))
        rate = _validate.probability(self.sample_rate, "sample_rate", zero=False)
        object.__setattr__(self, "sample_rate", rate)
        if self.adjacency not in ADJACENCIES:
            raise InvalidInput(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {self.adjacency!r}.")
        if self.mechanism != "gaussian":
            raise InvalidInput(f"mechanism must be 'gaussian', got {self.mechanism!r}.")

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over sensitivity."""
        return self.noise_std / self.sensitivity if self.sensitivity else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return asdict(self)

    def to_bytes(self) -> bytes:
        """Return the canonical form: JSON, sorted keys, no spaces, shortest floats that read back exactly."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Release:
        """Read the canonical form back; anything else is refused."""
        try:
            found = json.loads(raw)
            release = cls(**found) if isinstance(found, dict) else None
        except (ValueError, TypeError) as error:
            raise LedgerError(f"A release cannot be read: {error}.") from None
        if release is None or release.to_bytes() != raw:
            raise LedgerError("A release is not in its canonical form; the ledger was changed by hand.")
        return release

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: epsilon at delta, under one adjacency.

    Examples
    --------
    >>> Budget(epsilon=2.0, delta=1e-5).adjacency
    'user'
    """

    epsilon: float
    delta: float
    adjacency: str = "user"

    def __post_init__(self) -> None:
        _validate.positive(self.epsilon, "epsilon")
        _validate.delta(self.delta)
        if self.adjacency not in ADJACENCIES:
            raise InvalidInput(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {self.adjacency!r}.")


class Kind(NamedTuple):
    """Releases of one kind cost the same: adjacency, noise over sensitivity, sampling rate."""

    adjacency: str
    noise_multiplier: float
    sample_rate: float


Price = Callable[[Mapping[Kind, int], float], float]


def epsilon_of(counts: Mapping[Kind, int], delta: float) -> float:
    """Return epsilon at ``delta`` of all ``counts`` together, under the local view (everything is seen).

    Unsampled Gaussian releases compose exactly in mu; sampled ones by their privacy-loss distribution.
    """
    if len({kind.adjacency for kind in counts}) > 1:
        raise CannotCompose("Releases under unlike adjacencies cannot be added; keep one ledger for each.")
    plain = {kind: count for kind, count in counts.items() if kind.sample_rate == 1.0}
    sampled = {kind: count for kind, count in counts.items() if kind.sample_rate < 1.0}
    mu = sum(count / kind.noise_multiplier**2 for kind, count in plain.items()) ** 0.5
    if not sampled:
        from sottovoce.privacy.gaussian import gaussian_epsilon

        return float(gaussian_epsilon(mu, delta)) if mu else 0.0
    from sottovoce.privacy.curves import Curve

    curve = Curve.gaussian(mu)
    for kind, count in sampled.items():
        if kind.adjacency == "add-remove":
            step = Curve.sampled_gaussian(kind.sample_rate, kind.noise_multiplier, count)
        else:  # a record replaced moves the sum by twice the clip norm, and curves count in clip norms
            clip_multiplier = 2 * kind.noise_multiplier
            step = Curve.sampled_gaussian(kind.sample_rate, clip_multiplier, count, adjacency="replace-one")
        curve = curve + step
    return curve.epsilon(delta)


class Spending:
    """Counts of releases against a budget; knows whether one more fits.

    Counts that once fitted are remembered, and fewer of each kind then fit without a new computation: a
    plan priced before the run costs nothing per step.

    Examples
    --------
    >>> spending = Spending(Budget(1.0, 1e-5), price=lambda counts, delta: 0.4 * sum(counts.values()))
    >>> release = Release(sender=0, step=0, sensitivity=1.0, noise_std=3.0)
    >>> spending.add(release); spending.add(release); spending.fits(release)
    False
    """

    def __init__(self, budget: Budget | None = None, *, price: Price = epsilon_of) -> None:
        self.budget = budget
        self.counts: Counter[Kind] = Counter()
        self._price = price
        self._fitted: list[Counter[Kind]] = []

    def epsilon(self, delta: float | None = None) -> float:
        """Return what has been spent."""
        if delta is None:
            if self.budget is None:
                raise InvalidInput("Without a budget the spend needs a delta; pass one, 1e-5 for instance.")
            delta = self.budget.delta
        return self._price(self.counts, delta) if self.counts else 0.0

    def fits(self, *releases: Release) -> bool:
        """Return whether ``releases`` can be charged on top of what was."""
        if self.budget is None:
            return True
        total = self.counts + _kinds(releases)
        if any(kind.adjacency != self.budget.adjacency for kind in total):
            raise CannotCompose(
                f"The budget is for adjacency {self.budget.adjacency!r}; a release under another cannot be "
                "charged to it."
            )
        if any(all(total[kind] <= known[kind] for kind in total) for known in self._fitted):
            return True
        if not self._price(total, self.budget.delta) <= self.budget.epsilon:
            return False
        self._fitted.append(total)
        return True

    def require(self, *releases: Release) -> None:
        """Raise `BudgetExceeded` if ``releases`` do not fit."""
        if not self.fits(*releases):
            assert self.budget is not None
            raise BudgetExceeded(
                f"The budget of epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g} allows no "
                "further release, so nothing was sent; agree on a larger budget or on fewer steps."
            )

    def add(self, release: Release) -> None:
        """Count ``release`` without asking whether it fits."""
        self.counts += _kinds([release])


@runtime_checkable
class Ledger(Protocol):
    """Append-only record of releases that refuses past its budget.

    Examples
    --------
    >>> isinstance(MemoryLedger(), Ledger)
    True
    """

    @property
    def releases(self) -> tuple[Release, ...]: ...

    def charge(self, release: Release) -> None: ...

    def epsilon(self, delta: float | None = None) -> float: ...


class MemoryLedger:
    """A ledger that lives as long as the process: for simulations.

    Guarantees
    ----------
    `charge` either records the release or raises and records nothing; the recorded releases together never
    cost more than the budget. Without a budget everything is recorded.

    Examples
    --------
    >>> ledger = MemoryLedger()
    >>> ledger.charge(Release(sender=0, step=0, sensitivity=1.0, noise_std=3.0))
    >>> len(ledger.releases)
    1
    """

    def __init__(self, budget: Budget | None = None, *, price: Price = epsilon_of) -> None:
        self._spending = Spending(budget, price=price)
        self._releases: list[Release] = []

    @property
    def releases(self) -> tuple[Release, ...]:
        """Everything charged so far, in order."""
        return tuple(self._releases)

    def charge(self, release: Release) -> None:
        """Record ``release``, or raise `BudgetExceeded` and record nothing."""
        self._spending.require(release)
        self._spending.add(release)
        self._releases.append(release)

    def epsilon(self, delta: float | None = None) -> float:
        """Return what has been spent, at ``delta`` or at the budget's."""
        return self._spending.epsilon(delta)


def _kinds(releases: Iterable[Release]) -> Counter[Kind]:
    found: Counter[Kind] = Counter()
    for release in releases:
        if release.sensitivity:
            found[Kind(release.adjacency, release.noise_multiplier, release.sample_rate)] += release.count
    return found
