"""Releases: announced noisy publications, their composition, and spending against a budget.

A plan lists the releases of every agent before anything runs. The accountant computes their privacy cost, the
mechanism checks every draw against the list, and a peer's ledger stores what was drawn. A release holds
everything an accountant needs about one noisy publication, or a run of equal ones, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np

from sottovoce import _validate
from sottovoce._format import number
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.guarantee import Adjacency
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, LedgerError

__all__ = ["MOVES", "Release", "ReleaseKind", "ShareCurves", "Spending", "compose"]

MECHANISMS = ("gaussian", "laplace", "noisy-max")
MOVES = {"add-remove": 1.0, "replace-one": 2.0, "user": 2.0}  # how many clips one change moves a release
PRELIMINARY = 1  # the stream of a release before the first step; the steps themselves use stream 0


@dataclass(frozen=True)
class Release:
    """One noisy publication, or a run of equal ones: who publishes what, when, and under which noise.

    Parameters
    ----------
    sender : number of the agent whose data it is about.
    step : the first step in which it happens.
    sensitivity : how far one user or record can move the value, in the norm of the mechanism (L2 for Gaussian
        noise, the largest entry for noisy-max, L1 for Laplace). 0 is noise without data,
        which is drawn and checked and costs nothing.
    noise_std : standard deviation of the Gaussian noise per coordinate; the scale of Laplace noise.
    adjacency : ``"user"``, ``"replace-one"`` or ``"add-remove"``.
    sample_rate : probability with which each *record* is in the batch (Poisson); 1 without sampling. It
        amplifies at record level only.
    user_rate : probability with which the *agent* takes part (Poisson, whatever its data). At user level it
        amplifies where who took part stays hidden; otherwise only the number of participations is random.
    mechanism : ``"gaussian"``, ``"laplace"`` or ``"noisy-max"``; an accountant refuses what it does not know.
    steps : how many steps in a row it happens in.
    count : how many such noisy values a step holds (the inner steps of DiNNO), streams 0, 1, ...
    joint : the steps are one mechanism (noise correlated over time): all draws together cost one release.
    stream : number of its first stream, where a step holds releases of several kinds (a choice and a value).

    Examples
    --------
    >>> release = Release(sender=2, step=0, sensitivity=2.0, noise_std=4.0, steps=10)
    >>> release.noise_to_sensitivity, release.draws
    (2.0, 10)
    >>> Release.from_bytes(release.to_bytes()) == release
    True
    """

    sender: int
    step: int
    sensitivity: float
    noise_std: float
    adjacency: str = "user"
    sample_rate: float = 1.0
    user_rate: float = 1.0
    mechanism: str = "gaussian"
    steps: int = 1
    count: int = 1
    joint: bool = False
    stream: int = 0

    def __post_init__(self) -> None:
        for name, least in (("sender", 0), ("step", 0), ("steps", 1), ("count", 1), ("stream", 0)):
            _validate.count(getattr(self, name), name, minimum=least)
        for name in ("sensitivity", "noise_std"):
            object.__setattr__(self, name, _validate.non_negative(getattr(self, name), name))
        for name in ("sample_rate", "user_rate"):
            rate = _validate.probability(getattr(self, name), name, zero=False)
            object.__setattr__(self, name, rate)
        _validate.choice(self.adjacency, get_args(Adjacency), "adjacency")
        _validate.choice(self.mechanism, MECHANISMS, "mechanism")
        if self.mechanism != "gaussian" and (self.sample_rate < 1 or self.user_rate < 1 or self.joint):
            raise InvalidInput(f"sampling is accounted for Gaussian noise only, got {self.mechanism}.")

    @property
    def noise_to_sensitivity(self) -> float:
        """Noise over sensitivity, infinite without data. (A plan's noise multiplier is over the clip.)"""
        return self.noise_std / self.sensitivity if self.sensitivity else math.inf

    @property
    def draws(self) -> int:
        """How many noisy values it stands for."""
        return self.steps * self.count

    def covers(self, step: int, stream: int = 0) -> bool:
        """Whether the draw of this step and stream belongs to it."""
        return self.step <= step < self.step + self.steps and self.stream <= stream < self.stream + self.count

    def at(self, step: int, count: int = 1) -> Release:
        """Return the part of it that happens in one step: what a ledger charges when that step is drawn."""
        return replace(self, step=step, steps=1, count=count)

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
            fields = json.loads(raw)
            release = cls(**fields) if isinstance(fields, dict) else None
        except (ValueError, TypeError) as error:
            raise LedgerError(f"A release cannot be read: {error}.") from None
        if release is None or release.to_bytes() != raw:
            raise LedgerError("A release is not in its canonical form; the ledger was changed by hand.")
        return release


class ReleaseKind(NamedTuple):
    """Releases of one kind cost the same: mechanism, adjacency, noise over sensitivity, sampling."""

    mechanism: str
    adjacency: str
    noise_to_sensitivity: float
    sample_rate: float
    user_rate: float
    hidden: bool = False  # whether the adversary cannot see in which rounds the agent took part

    @classmethod
    def from_release(cls, release: Release) -> ReleaseKind:
        """Return the kind of a release, with participation in sight."""
        return cls(*(getattr(release, name) for name in cls._fields if name != "hidden"))

    def curve(self, count: int, share: float = 1.0, method: Method = "pld") -> Curve:
        """Return the loss of ``count`` such releases of which an observer learns the share h = ``share``.

        Sampling of records amplifies nothing at user level, and sampling of users nothing at record level.
        """
        if share <= 0 or count == 0 or self.noise_to_sensitivity == math.inf:
            return Curve.none()
        noise = self.noise_to_sensitivity / share**0.5
        signal = 1 / noise if noise else math.inf
        if self.mechanism == "laplace":
            return Curve.laplace(signal, count)
        if self.mechanism == "noisy-max":
            # the two tails of the noise inside the absolute value shift by at most one sensitivity each
            return Curve.pure(2 / noise if noise else math.inf, count)
        rate = self.user_rate if self.adjacency == "user" else self.sample_rate
        if rate == 1.0 or noise == 0:
            return replace(Curve.gaussian(signal, count), method=method)
        if self.adjacency == "user" and not self.hidden:
            # each round costs all or nothing, and everybody sees which
            return replace(Curve.gaussian_mixture([0.0, signal], [1 - rate, rate], count), method=method)
        if self.adjacency == "add-remove":
            return Curve.sampled_gaussian(rate, noise, count, method=method)
        # a record (or user) replaced moves the sum by twice the clip, and sampled curves count in clips
        return Curve.sampled_gaussian(rate, 2 * noise, count, adjacency="replace-one", method=method)


def count_by_kind(releases: Iterable[Release]) -> Counter[ReleaseKind]:
    """Return how many releases of each kind hold data; a joint one counts once."""
    counted: Counter[ReleaseKind] = Counter()
    for release in releases:
        if release.sensitivity:
            counted[ReleaseKind.from_release(release)] += 1 if release.joint else release.draws
    return counted


def compose(releases: Iterable[Release] | Mapping[ReleaseKind, int], *, method: Method = "pld") -> Curve:
    """Return the loss of all ``releases`` together, each seen in full.

    Guarantees
    ----------
    An upper bound for adaptive composition, exact for Gaussian releases. Unlike adjacencies are refused.
    """
    counts = releases if isinstance(releases, Mapping) else count_by_kind(releases)
    if len({kind.adjacency for kind in counts}) > 1:
        raise CannotCompose("Releases under unlike adjacencies cannot be added; keep one account for each.")
    return Curve.total(kind.curve(count, method=method) for kind, count in counts.items())


class ShareCurves:
    """The curves of users of whose releases a share is observed; equal curves are built once."""

    def __init__(self, method: Method = "pld") -> None:
        self._method = method
        self._curves: dict[Hashable, Curve] = {}

    def add(self, counts: Mapping[ReleaseKind, int], share: float = 1.0, contributions: int = 1) -> Curve:
        """Return the curve of a user with releases ``counts`` of which the share h is observed.

        A walk visits a user several times (``contributions``): h is then in units of one of its releases.
        """
        share = float(round_up(share))
        if share <= 0:
            return Curve.none()
        tally = {}
        for kind, count in counts.items():
            if kind.mechanism == "gaussian" and kind.noise_to_sensitivity > 0:
                # h is that of all contributions to one averaging, so averagings are counted, not visits
                tally[kind, share] = -(-count // max(contributions, 1))
            else:
                tally[kind, 1.0] = count  # only Gaussian noise hides in the sum of others
        return self.add_tally(tally)

    def add_tally(self, tally: Mapping[tuple[ReleaseKind, float], int]) -> Curve:
        """Return the curve of releases that are counted by their kind and by the share that is observed."""
        counted = frozenset(tally.items())
        if counted not in self._curves:
            self._curves[counted] = Curve.total(
                kind.curve(count, share, self._method) for (kind, share), count in tally.items()
            )
        return self._curves[counted]

    @property
    def worst(self) -> Curve:
        """The largest of all curves, at every delta."""
        return Curve.worst(self._curves.values())


def round_up(share: float | np.ndarray) -> np.ndarray:
    """Round shares up in the twelfth place, so that equal shares compare equal and none is understated."""
    return np.ceil(np.asarray(share, dtype=float) * 1e12) / 1e12


class Spending:
    """Counts of releases against a budget; knows whether one more fits.

    ``planned`` are releases that the caller knows to fit together, as a masked run whose cost `account` has
    computed. Counts that once fitted are remembered: fewer of each kind then fit without a new computation.

    Guarantees
    ----------
    A release that would exceed the budget is refused by `require`, and nothing is counted then.
    """

    def __init__(self, budget: Budget | None = None, planned: Iterable[Release] = ()) -> None:
        self.budget = budget
        self.counts: Counter[ReleaseKind] = Counter()
        self._fitted = [count_by_kind(planned)]

    def cost(self, counts: Mapping[ReleaseKind, int], delta: float) -> float:
        """Return epsilon at ``delta`` of all ``counts`` together."""
        return compose(counts).epsilon(delta)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon spent at ``delta``, by default that of the budget."""
        if delta is None:
            if self.budget is None:
                raise InvalidInput("Without a budget the spend needs a delta; pass one, 1e-5 for instance.")
            delta = self.budget.delta
        return self.cost(self.counts, delta) if self.counts else 0.0

    def fits(self, *releases: Release) -> bool:
        """Return whether ``releases`` can be charged on top of the earlier ones."""
        if self.budget is None:
            return True
        total = self.counts + count_by_kind(releases)
        if any(kind.adjacency != self.budget.adjacency for kind in total):
            raise CannotCompose(
                f"The budget is for adjacency {self.budget.adjacency!r}; a release under another cannot be "
                "charged to it."
            )
        if any(total <= fitted for fitted in self._fitted):
            return True
        if not self.cost(total, self.budget.delta) <= self.budget.epsilon:
            return False
        self._fitted.append(total)
        return True

    def require(self, *releases: Release) -> None:
        """Raise `BudgetExceeded` if ``releases`` do not fit."""
        if not self.fits(*releases):
            assert self.budget is not None
            delta = number(self.budget.delta, "delta")
            raise BudgetExceeded(
                f"The budget of epsilon {number(self.budget.epsilon, 'limit')} at delta {delta} allows no "
                "further release, so nothing was sent; agree on a larger budget or on fewer steps."
            )

    def add(self, *releases: Release) -> None:
        """Count ``releases``, whether they fit or not."""
        self.counts += count_by_kind(releases)
