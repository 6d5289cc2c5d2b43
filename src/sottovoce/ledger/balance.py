"""What a member's acts add up to: populations, their lifetime budgets, charges and totals.

A charge holds guarantees that `account` returned (`sottovoce.ledger.cost`), not epsilons, and beside them the
releases they are about. Totals are the sums of those guarantees, computed again every time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast, get_args

from sottovoce import _validate
from sottovoce._format import compared, number
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adjacency, Adversary, Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, CannotCompose, ConfigError, InvalidInput, LedgerError
from sottovoce.ledger.cost import (
    LIFETIME_VIEWS,
    colluders_of,
    guarantees_of_releases,
    is_lifetime_view,
    require_lifetime_guarantee,
    view_name,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class LifetimeBudget:
    """The most that one population may ever spend: epsilon at delta, under one adjacency, against one view.

    ``view`` is ``"local"`` (whatever all others do), ``"outsider"``, ``"network"`` (one member in every run)
    or ``"colluders:c"`` (any c members in every run). A weaker adversary than one member accepts no budget.

    Examples
    --------
    >>> LifetimeBudget(5.0, 1e-5, "replace-one").view
    'network'
    >>> LifetimeBudget(5.0, 1e-5, "replace-one", "central")
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: a lifetime budget is against local, outsider, network or colluders:c, got 'central'.
    """  # noqa: E501

    epsilon: float
    delta: float
    adjacency: str
    view: str = "network"

    def __post_init__(self) -> None:
        _validate.positive(self.epsilon, "epsilon")
        _validate.delta(self.delta)
        if self.adjacency not in (known := get_args(Adjacency)):
            raise InvalidInput(f"adjacency must be one of {', '.join(known)}, got {self.adjacency!r}.")
        if not is_lifetime_view(self.view):
            raise InvalidInput(f"a lifetime budget is against {LIFETIME_VIEWS}, got {self.view!r}.")

    @property
    def kind(self) -> tuple[str, str]:
        """Adjacency and view; a population has one budget for each pair."""
        return self.adjacency, self.view

    def __str__(self) -> str:
        epsilon, delta = number(self.epsilon, "limit"), number(self.delta, "delta")
        return f"epsilon {epsilon} at delta {delta} ({self.adjacency}, {self.view})"


@dataclass(frozen=True)
class Charge:
    """What one agreed run, or one training on this machine, costs its population.

    Parameters
    ----------
    population : whose records were used.
    what : one line for people.
    releases : everything that one agent may release, run-length coded, as planned; of a closed run, what
        left.
    guarantees : what `account` says of it, at most one for each adjacency and view. Missing local ones are
        those of ``releases``, seen in full.
    node : the agent whose people the population is; None where all agents are on this machine.
    run_id : hash of the agreement; empty for a training.
    records : keyed digest of the records it began with.
    state : the folder of its ledger, relative to the member directory if it lies inside.
    status : ``charged`` (it has no ledger yet and may not send), ``started``, ``ended`` or ``closed`` (never
        resumed).
    training : the name of a training that can continue after an interruption.
    continues : after a membership change, the runs it continues, newest first.
    """

    population: str
    what: str
    releases: tuple[Release, ...]
    guarantees: tuple[Guarantee, ...] = ()
    node: int | None = None
    run_id: str = ""
    records: str = ""
    state: str = ""
    status: str = "charged"
    since: str = ""
    training: str = ""
    continues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_kind: dict[tuple[str, str], Guarantee] = {}
        for guarantee in self.guarantees:
            require_lifetime_guarantee(guarantee, self.node)
            kind = _kind(guarantee)
            if kind in by_kind:
                raise InvalidInput(
                    f"A charge has one guarantee for each adjacency and view, got two for {', '.join(kind)}."
                )
            by_kind[kind] = guarantee
        if not any(view == "local" for _, view in by_kind):
            local = guarantees_of_releases(self.releases, self.node)
            object.__setattr__(self, "guarantees", (*self.guarantees, *local))

    def summary(self) -> dict[str, Any]:
        """Return the charge as plain values, with the number of releases."""
        return {
            "what": self.what,
            "run_id": self.run_id,
            "status": self.status,
            "since": self.since,
            "releases": sum(release.draws for release in self.releases),
            "adjacencies": sorted({release.adjacency for release in self.releases}),
            "state": self.state,
        }

    def guarantee(self, adjacency: str, view: str) -> Guarantee:
        """Return the guarantee that counts against a budget of this adjacency and view.

        Guarantees
        ----------
        It is the stored one of that view, else one about more colluders, else the local one, which holds
        against everybody. Under ``user`` a member's whole data may change, which covers one record too. A
        charge about records says nothing at user level, so its cost there is infinite.
        """
        by_kind = {_kind(each): each for each in self.guarantees}
        members = 1 if view == "network" else colluders_of(view)
        larger = sorted(c for _, name in by_kind if members and (c := colluders_of(name) or 0) >= members)
        for level in (adjacency, "user"):
            for name in (view, *(f"colluders:{c}" for c in larger), "local"):
                if (level, name) in by_kind:
                    return by_kind[level, name]
        revealing = any(release.sensitivity for release in self.releases)
        curve = Curve.gaussian(math.inf) if revealing else Curve.none()
        return Guarantee(Adversary("local", user=self.node), cast(Adjacency, adjacency), "ldp", curve)


@dataclass(frozen=True)
class RunClosure:
    """The end of a run that is never resumed: its ``releases`` by its ledger, or None to count all planned.

    ``guarantees`` are those against members that the interrupted run has of its own. Without them the agreed
    ones stay, which cover a part of the run.
    """

    run_id: str
    releases: tuple[Release, ...] | None
    why: str
    guarantees: tuple[Guarantee, ...] = ()


def curve_of_charges(charges: Iterable[Charge], adjacency: str, view: str = "local") -> Curve:
    """Return the privacy curve of all ``charges`` together, for one adjacency and one class of view.

    Guarantees
    ----------
    An upper bound for adaptive composition: the sum of what `Charge.guarantee` says of each. A person may be
    the one who loses most in every charge.

    Examples
    --------
    >>> release = Release(0, 0, sensitivity=1.0, noise_std=2.0, adjacency="add-remove")
    >>> one = Charge("patients", "a mean", (release,))
    >>> curve_of_charges([one] * 4, "add-remove").mu, curve_of_charges([one], "replace-one").mu
    (1.0, 1.0)
    >>> curve_of_charges([one], "user").epsilon(1e-5)
    inf
    """
    curves = [each.guarantee(adjacency, view).curve for each in charges]
    try:
        return Curve.total(curves)
    except CannotCompose:
        # sampled users beside sampled records: their distributions have unlike pairs, their Rényi losses add
        return Curve.total(Curve.from_renyi(curve.renyi) for curve in curves)


def _kind(guarantee: Guarantee) -> tuple[str, str]:
    return guarantee.adjacency, view_name(guarantee)


@dataclass
class Balance:
    """Populations with their budgets, charges and pinned certificates, after all acts so far."""

    populations: dict[str, dict[tuple[str, str], LifetimeBudget]] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    pinned: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def runs(self) -> dict[str, Charge]:
        return {each.run_id: each for each in self.charges if each.run_id}

    def run(self, run_id: str) -> Charge:
        if run_id not in self.runs:
            raise ConfigError(
                f"The lifetime ledger knows no run {run_id[:16]}; `peer budget` lists its runs."
            )
        return self.runs[run_id]

    def named(self, population: str | None) -> str:
        """Return the population that is charged: the first, unless another is named."""
        if not self.populations:
            raise ConfigError(
                "The lifetime ledger has no population yet; the officer opens one with `peer budget --open`."
            )
        if population is None:
            return next(iter(self.populations))
        if population not in self.populations:
            raise ConfigError(
                f"The lifetime ledger has no population {population!r}, only {', '.join(self.populations)}; "
                "the officer opens another with `peer budget --open`."
            )
        return population

    def parent(self, new: Charge) -> Charge | None:
        """Return the newest known run that ``new`` continues."""
        return next((self.runs[run_id] for run_id in new.continues if run_id in self.runs), None)

    def population_of(self, new: Charge) -> str:
        """Return the population that ``new`` is charged to; a membership change does not change it."""
        parent = self.parent(new)
        if parent is None:
            return self.named(new.population or None)
        if new.population not in ("", parent.population):
            raise ConfigError(
                f"The run {parent.run_id[:16]} that this one continues is charged to the population "
                f"{parent.population}, got {new.population}; a run stays with the population it began with."
            )
        return parent.population

    def apply(self, row: Row) -> None:
        """Add one act."""
        match row["act"]:
            case "created":
                pass
            case "population":
                budgets = [LifetimeBudget(**each) for each in row["budgets"]]
                self.populations[row["population"]] = {budget.kind: budget for budget in budgets}
            case "budget":
                budget = LifetimeBudget(**row["budget"])
                self.populations[row["population"]][budget.kind] = budget
            case "charge":
                self.charges.append(charge_from_row(row))
            case "start":
                self._amend(row["run_id"], status="started")
            case "end":
                self._amend(row["run_id"], status="ended")
            case "records":
                self._amend(row["run_id"], records=row["records"])
            case "close":
                changes: Row = {"status": "closed"}
                if "releases" in row:
                    changes["releases"] = tuple(Release(**each) for each in row["releases"])
                    changes["guarantees"] = _guarantees(row["guarantees"])
                self._amend(row["run_id"], **changes)
            case "trust":
                self.pinned[row["name"]] = row["fingerprint"]
            case "restored":
                if row["alone"]:
                    self.remarks.append(
                        f"On {row['time'][:10]} the lifetime ledger was restored from one copy alone: "
                        "releases made after that copy, if any, are not in these totals."
                    )
            case act:
                raise LedgerError(f"The lifetime ledger has an unknown act {act!r}; upgrade this program.")

    def forecast(self, new: Charge | None, population: str) -> list[Row]:
        """Return for each lifetime budget what is spent, what ``new`` adds, and the total."""
        before = [each for each in self.charges if each.population == population]
        added = [] if new is None else [new]
        parts = {"spent": before, "adds": added, "total": before + added}

        def cost(charges: list[Charge], limit: LifetimeBudget) -> float:
            return curve_of_charges(charges, *limit.kind).epsilon(limit.delta) if charges else 0.0

        limits = self.populations[population].values()
        return [asdict(limit) | {name: cost(parts[name], limit) for name in parts} for limit in limits]

    def _amend(self, run_id: str, **changes: Any) -> None:
        at = next(i for i, each in enumerate(self.charges) if each.run_id == run_id)
        self.charges[at] = replace(self.charges[at], **changes)


def charge_to_row(new: Charge) -> Row:
    """Return a charge as the content of a row; run ledgers hold it too."""
    row: Row = {
        "act": "charge",
        "population": new.population,
        "what": new.what,
        "releases": [release.to_dict() for release in new.releases],
        "guarantees": [guarantee.to_dict() for guarantee in new.guarantees],
    }
    if new.training:
        row["training"] = new.training
    if new.run_id:
        row |= {
            "run_id": new.run_id,
            "node": new.node,
            "records": new.records,
            "state": new.state,
            "continues": list(new.continues),
        }
    return row


def charge_from_row(row: Mapping[str, Any]) -> Charge:
    """Return the charge that `charge_to_row` wrote."""
    words = {name: row.get(name, "") for name in ("run_id", "records", "state", "training")}
    return Charge(
        row["population"],
        row["what"],
        tuple(Release(**each) for each in row["releases"]),
        _guarantees(row["guarantees"]),
        node=row.get("node"),
        status="charged" if words["run_id"] else "ended",
        since=row.get("time", ""),
        continues=tuple(row["continues"]) if words["run_id"] else (),
        **words,
    )


def _guarantees(stored: Iterable[Mapping[str, Any]]) -> tuple[Guarantee, ...]:
    return tuple(map(Guarantee.from_dict, stored))


def require_lifetime_budget(forecast: Iterable[Row], consequence: str) -> None:
    """Raise `BudgetExceeded` if a row of `LifetimeLedger.forecast` is beyond its budget."""
    for row in forecast:
        if not row["total"] <= row["epsilon"]:
            limit = LifetimeBudget(*(row[name] for name in ("epsilon", "delta", "adjacency", "view")))
            together, _ = compared(row["total"], limit.epsilon, "spent")
            spent, adds = (number(row[name], "spent") for name in ("spent", "adds"))
            raise BudgetExceeded(
                f"Spent so far {spent}, this adds {adds}, together {together} "
                f"of a lifetime budget of {limit}, so {consequence}; take more noise or fewer steps, or "
                "raise the budget with `peer budget --raise`."
            )


def covers(known: Charge, new: Charge) -> bool:
    """Return whether ``known`` was charged for what ``new`` would release and show."""
    if _draws_by_cost(known.releases) != _draws_by_cost(new.releases):
        return False
    # as they are read back; a budget that was added since asks for a view more, which counts as local
    now = {_kind(each): Guarantee.from_dict(each.to_dict()) for each in new.guarantees}
    return all(now.get(_kind(each), each) == each for each in known.guarantees)


def _draws_by_cost(releases: Iterable[Release]) -> Counter[bytes]:
    """Count draws by what they cost, however they are run-length coded."""
    draws: Counter[bytes] = Counter()
    for release in releases:
        draws[replace(release, sender=0, step=0, steps=1, count=1, stream=0).to_bytes()] += release.draws
    return draws
