"""The acts of a lifetime ledger, and what they add up to: budgets, charges and totals.

A charge holds guarantees that `account` returned (`sottovoce.ledger.cost`), not epsilons, and beside them the
releases they are about. Totals are the sums of those guarantees, computed again every time.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from sottovoce import _validate
from sottovoce._format import compared, number
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adjacency, Adversary, Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import (
    BudgetExceeded,
    CannotCompose,
    ConfigError,
    DataError,
    InvalidInput,
    LedgerError,
    NotAGuarantee,
)
from sottovoce.ledger.chain import explained, read_lines
from sottovoce.ledger.cost import (
    LIFETIME_VIEWS,
    colluders_of,
    guarantees_of_releases,
    is_lifetime_view,
    require_lifetime_guarantee,
    view_name,
)

FORMAT = 1
Row = dict[str, Any]
# what a row holds of a charge as it is; its costs follow, and later acts change its status
_CHARGED = ("population", "what", "node", "run_id", "records", "state", "training", "continues")


@dataclass(frozen=True)
class LifetimeBudget:
    """The most that one population may ever spend: epsilon at delta, under one adjacency, against one view.

    ``view`` is ``"local"`` (whatever all others do), ``"outsider"``, ``"network"`` (one member in every run)
    or ``"colluders:c"`` (any c members in every run). No budget can be set against named members
    or against somebody who sees results only.
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
        return Curve.total(curve.tabulated() for curve in curves)


def _kind(guarantee: Guarantee) -> tuple[str, str]:
    return guarantee.adjacency, view_name(guarantee)


def charge_to_row(new: Charge) -> Row:
    """Return a charge as the content of a row; run ledgers hold it too."""
    return {"act": "charge", **{name: getattr(new, name) for name in _CHARGED}, **costs_to_row(new)}


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
    values = {name: row[name] for name in _CHARGED} | {"continues": tuple(row["continues"])}
    status = "charged" if row["run_id"] else "ended"
    return Charge(**values, **costs_from_row(row), status=status, since=row.get("time", ""))


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


# ---- acts ----------------------------------------------------------------------------------------------


class Acts:
    """The rows of a lifetime ledger; populations with their budgets, charges and pinned certificates."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = []
        self.populations: dict[str, dict[tuple[str, str], LifetimeBudget]] = {}
        self.charges: list[Charge] = []
        self.pinned: dict[str, str] = {}
        self.remarks: list[str] = []
        for row in rows:
            self._apply(row)

    # ---- what they add up to ---------------------------------------------------------------------

    @property
    def runs(self) -> dict[str, Charge]:
        """The charges that are runs, by hash."""
        return {each.run_id: each for each in self.charges if each.run_id}

    def known_run(self, run_id: str) -> Charge:
        """Return the charge of a known run."""
        if run_id not in self.runs:
            raise ConfigError(
                f"The lifetime ledger knows no run {run_id[:16]}; `peer budget` lists its runs."
            )
        return self.runs[run_id]

    def named(self, population: str | None) -> str:
        """Return the population that is charged: the first, unless another is named."""
        name = next(iter(self.populations), None) if population is None else population
        if name is None or name not in self.populations:
            known = ", ".join(self.populations) or "none"
            raise ConfigError(
                f"There is no population {population or 'yet'} in the lifetime ledger (it has {known}); the "
                "officer opens one with `peer budget --open`."
            )
        return name

    def begun(self, new: Charge) -> Charge | None:
        """Return the known run that ``new`` is, or else the newest that it continues."""
        runs = self.runs
        known = next((runs[run_id] for run_id in (new.run_id, *new.continues) if run_id in runs), None)
        if known is not None and new.population not in ("", known.population):
            raise ConfigError(
                f"The run {known.run_id[:16]} is charged to the population {known.population}, got "
                f"{new.population}; a run stays with the population it began with."
            )
        return known

    def population_of(self, new: Charge) -> str:
        """Return the population that ``new`` is charged to; a membership change does not change it."""
        known = self.begun(new)
        return self.named(new.population or None) if known is None else known.population

    def forecast(self, new: Charge | None, population: str) -> list[Row]:
        """Return for each lifetime budget what is spent, what ``new`` adds, and the total."""
        before = [each for each in self.charges if each.population == population]
        added = [] if new is None else [new]
        parts = {"spent": before, "adds": added, "total": before + added}

        def cost(charges: list[Charge], limit: LifetimeBudget) -> float:
            return curve_of_charges(charges, *limit.kind).epsilon(limit.delta) if charges else 0.0

        limits = self.populations[population].values()
        return [asdict(limit) | {name: cost(parts[name], limit) for name in parts} for limit in limits]

    # ---- adding ----------------------------------------------------------------------------------

    def add(self, act: Row, why: str | None = None) -> None:
        """Add one act, as it will be read back."""
        reason = {} if why is None else {"why": one_line(why, "the reason")}
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._apply(json.loads(canonical_json({**act, **reason, "time": now})))

    def charge(self, new: Charge) -> list[Row]:
        """Add a charge that is within the lifetime budgets; return the forecast."""
        budgets = self.forecast(new, new.population)
        require_lifetime_budget(budgets, f"nothing was charged to {new.population} or sent")
        self.add(charge_to_row(new))
        return budgets

    def charge_run(self, new: Charge, closing: Iterable[RunClosure]) -> Charge:
        """Add the charge of a run and the ends of those it continues, or return the charge of a known run."""
        known = self.runs.get(new.run_id)
        if known is not None:
            self.require_open(new.run_id)
        new = replace(new, population=self.population_of(new))
        if known is not None and not covers(known, new):
            raise ConfigError(
                f"The run {new.run_id[:16]} was charged for other releases than it would make now; continue "
                "with the version of the program that began it."
            )
        begun = self.begun(new)
        if begun is not None and new.records != begun.records:
            raise DataError(
                f"The records differ from those the run {begun.run_id[:16]} began with; restore the file, or "
                "agree on a new run."
            )
        if known is not None:
            return known
        for each in closing:
            self.close(each)
        self.charge(new)
        return new

    def require_open(self, run_id: str) -> Charge:
        """Return the charge of a known run that may still send."""
        known = self.known_run(run_id)
        if known.status == "closed":
            raise ConfigError(
                f"The run {run_id[:16]} was closed in this member's lifetime ledger; agree on a new run."
            )
        return known

    def close(self, closure: RunClosure) -> None:
        """Add the end of a run."""
        known = self.known_run(closure.run_id)
        if known.status == "closed":
            raise ConfigError(
                f"The run {closure.run_id[:16]} is closed already; there is nothing left to do."
            )
        act: Row = {"act": "close", "run_id": closure.run_id}
        if closure.releases is not None:
            agreed = () if not closure.releases else closure.guarantees or known.guarantees
            # the local cost of what left holds against everybody, so of the agreed ones only exact ones stay
            against_members = tuple(each for each in agreed if each.label == "exact")
            act |= costs_to_row(replace(known, releases=closure.releases, guarantees=against_members))
        self.add(act, closure.why)

    def _apply(self, row: Row) -> None:
        self.rows.append(row)
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
            case "close":
                costs = costs_from_row(row) if "releases" in row else {}
                self._amend(row["run_id"], status="closed", **costs)
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

    def _amend(self, run_id: str, **changes: Any) -> None:
        at = next(i for i, each in enumerate(self.charges) if each.run_id == run_id)
        self.charges[at] = replace(self.charges[at], **changes)


def read_acts(path: Path) -> Acts:
    """Return the acts of one copy, or raise if a bit of it is not as it was written."""
    remedy = "`peer budget --restore` takes the other copy"
    if not path.exists():
        raise LedgerError(f"The lifetime ledger {path} is missing, so nothing was sent; {remedy}.")
    with explained(f"The lifetime ledger {path}", remedy):
        lines = list(read_lines(path))
        if not lines or lines[-1].end != path.stat().st_size:
            raise ValueError("the last row is cut off")
        rows = [json.loads(line.content) for line in lines]
        if rows[0]["act"] != "created":
            raise ValueError("the first row is missing")
        if rows[0]["format"] != FORMAT:
            raise LedgerError(f"{path} has format {rows[0]['format']}, not {FORMAT}; upgrade this program.")
        try:
            return Acts(rows)
        except (InvalidInput, NotAGuarantee) as error:
            raise ValueError(str(error)) from None


def canonical_json(row: Mapping[str, object]) -> bytes:
    """Return a row as it is written."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def one_line(text: str, what: str) -> str:
    """Return a text that a row can hold."""
    if not text or len(text) > 200 or not text.isprintable():
        raise InvalidInput(f"{what} must be one line of at most 200 printable characters, got {text[:40]!r}.")
    return text
