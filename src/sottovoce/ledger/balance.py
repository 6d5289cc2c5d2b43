"""Lifetime budgets and charges, and what charges cost together.

A charge holds guarantees that `account` returned (`sottovoce.ledger.cost`), not epsilons, and beside them the
releases they are about. Totals are the sums of those guarantees, computed again every time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from sottovoce import _validate
from sottovoce._format import compared, number
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adjacency, Adversary, Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput
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
    """

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

    ``releases`` are everything that one agent may release, as planned; of a closed run, what left.
    ``guarantees`` are what `account` says of it, at most one for each adjacency and view; missing local ones
    are those of ``releases``, seen in full. ``node`` is the agent whose people the population is, None where
    all agents are on this machine. A run has the hash of its agreement as ``run_id``, a keyed digest of its
    ``records``, the folder of its ledger (``state``) and, after a membership change, the runs it
    ``continues``, newest first. Its ``status`` is ``charged`` (it has no ledger yet and may not send),
    ``started``, ``ended`` or ``closed`` (never resumed). ``training`` names a training that can continue.
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
    """
    curves = [each.guarantee(adjacency, view).curve for each in charges]
    try:
        return Curve.total(curves)
    except CannotCompose:
        # sampled users beside sampled records: their distributions have unlike pairs, their Rényi losses add
        return Curve.total(Curve.from_renyi(curve.renyi) for curve in curves)


def _kind(guarantee: Guarantee) -> tuple[str, str]:
    return guarantee.adjacency, view_name(guarantee)


def charge_to_row(new: Charge) -> Row:
    """Return a charge as the content of a row; run ledgers hold it too."""
    row: Row = {"act": "charge", "population": new.population, "what": new.what, **costs_to_row(new)}
    if new.training:
        row["training"] = new.training
    if new.run_id:
        row |= {name: getattr(new, name) for name in ("run_id", "node", "records", "state", "continues")}
    return row


def costs_to_row(new: Charge) -> Row:
    """Return the releases and guarantees of a charge as plain values."""
    guarantees = [guarantee.to_dict() for guarantee in new.guarantees]
    return {"releases": [release.to_dict() for release in new.releases], "guarantees": guarantees}


def costs_from_row(row: Mapping[str, Any]) -> Row:
    """Return the releases and guarantees that `costs_to_row` wrote, as arguments of `Charge`."""
    guarantees = tuple(map(Guarantee.from_dict, row["guarantees"]))
    return {"releases": tuple(Release(**each) for each in row["releases"]), "guarantees": guarantees}


def charge_from_row(row: Mapping[str, Any]) -> Charge:
    """Return the charge that `charge_to_row` wrote."""
    words = {name: row.get(name, "") for name in ("run_id", "records", "state", "training")}
    return Charge(
        row["population"],
        row["what"],
        node=row.get("node"),
        status="charged" if words["run_id"] else "ended",
        since=row.get("time", ""),
        continues=tuple(row["continues"]) if words["run_id"] else (),
        **costs_from_row(row),
        **words,
    )


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
