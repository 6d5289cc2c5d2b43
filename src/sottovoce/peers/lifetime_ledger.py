"""The lifetime ledger of a member directory: every release ever started here, for one population of people,
over all runs.

A ledger knows one run in one folder; people live longer than runs. The lifetime ledger is a file of chained
rows, one act each: a population is opened with its lifetime budgets, a run is started (and charged in full,
before its first row is drawn), a budget is raised, a run is closed. Two copies are kept, one in the member
directory and one outside it, so that a member directory restored from a backup is noticed. Anything doubtful
is an error, and nothing is charged or sent then.

What a row costs is never written as a finished number: the releases are, and the totals are composed anew by
`sottovoce.accounting.release` whenever they are asked for.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce import _validate
from sottovoce._io import atomic_write, locked
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import ADJACENCIES, Release, compose
from sottovoce.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    InvalidInput,
    LedgerError,
    NotAGuarantee,
    SottovoceError,
)

if TYPE_CHECKING:
    from sottovoce.peers.member_directory import MemberDirectory

__all__ = ["LifetimeBudget", "LifetimeLedger", "RunCharge", "RunClosure", "charge", "composed", "view_name"]

FORMAT = 1
_GENESIS = "0" * 64
_PATIENCE = 10.0  # seconds to wait for another writer: an act takes milliseconds


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
        if self.adjacency not in ADJACENCIES:
            raise InvalidInput(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {self.adjacency!r}.")
        if self.view not in ("local", "outsider", "network") and _colluders(self.view) is None:
            raise InvalidInput(
                f"a lifetime budget is against local, outsider, network or colluders:c, got {self.view!r}."
            )

    @property
    def kind(self) -> tuple[str, str]:
        """What it is about: one budget stands for each adjacency and view."""
        return self.adjacency, self.view

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} ({self.adjacency}, {self.view})"


@dataclass(frozen=True)
class RunCharge:
    """What one run, or one training on this machine, costs its population.

    Parameters
    ----------
    population : whose records they were.
    what : one line for people.
    releases : everything that may leave, run-length coded, as planned; of a closed run, what left.
    views : valid guarantees against weaker adversaries than "whatever all others do", by `view_name`.
    run : hash of the agreement; empty for a training.
    records : keyed digest of the records it began with.
    state : the folder of its ledger, relative to the member directory where it lies inside.
    training : what names a training that can go on after an interruption.
    status : ``started``, ``begun`` (a ledger exists), ``ended`` or ``closed`` (never to be resumed).
    continues : of a membership version, the runs it goes on from, newest first.
    """

    population: str
    what: str
    releases: tuple[Release, ...]
    views: Mapping[str, Guarantee] = field(default_factory=dict)
    run: str = ""
    records: str = ""
    state: str = ""
    status: str = "started"
    since: str = ""
    training: str = ""
    continues: tuple[str, ...] = ()

    def against(self, view: str) -> Guarantee | None:
        """Return the guarantee that covers ``view``: its own, or one about more colluders; None for local."""
        wanted = 1 if view == "network" else _colluders(view)
        if view in self.views:
            return self.views[view]
        if wanted is None:
            return None
        larger = [(c, g) for name, g in self.views.items() if (c := _colluders(name) or 0) >= wanted]
        return min(larger, key=lambda pair: pair[0])[1] if larger else None


@dataclass(frozen=True)
class RunClosure:
    """A run that is given up for good: what left by its ledger, or None where everything planned counts.

    ``views`` replace the agreed price against members where what left has a price of its own.

    Examples
    --------
    >>> RunClosure("3f54", None, "the disk is lost").releases is None
    True
    """

    run: str
    releases: tuple[Release, ...] | None
    why: str
    views: Mapping[str, Guarantee] = field(default_factory=dict)

    @property
    def act(self) -> dict[str, Any]:
        """The row of the lifetime ledger that says so."""
        act: dict[str, Any] = {"act": "close", "run": self.run, "why": _line(self.why, "the reason")}
        if self.releases is not None:
            act["releases"] = [release.to_dict() for release in self.releases]
            if self.views:
                act["views"] = {name: priced.to_dict() for name, priced in sorted(self.views.items())}
        return act


def composed(charges: Iterable[RunCharge], adjacency: str, view: str = "local") -> Curve:
    """Return the loss of all ``charges`` together, under one adjacency, against one class of view.

    Guarantees
    ----------
    An upper bound for adaptive composition. A charge without a price for ``view`` counts with its local one,
    which holds against everybody. Releases under another adjacency are restated, never left out: one member's
    whole data may change under ``user``, so its price covers one record too; a record replaced is one removed
    and one added; a record-level release has no price at user level, and the total is infinite then.

    Examples
    --------
    >>> release = Release(0, 0, sensitivity=1.0, noise_std=2.0, adjacency="add-remove")
    >>> one = RunCharge("patients", "a mean", (release,))
    >>> composed([one] * 4, "add-remove").mu, composed([one], "replace-one").mu
    (1.0, 1.0)
    >>> composed([one], "user").epsilon(1e-5)
    inf
    """
    curves: list[Curve] = []
    local: list[Release] = []
    for each in charges:
        priced = each.against(view) if view != "local" else None
        if priced is not None and priced.adjacency in (adjacency, "user"):
            curves.append(priced.curve)
        else:
            local += each.releases
    curves.append(compose(release for release in local if release.adjacency == "user"))
    records = [release for release in local if release.adjacency != "user" and release.sensitivity]
    if adjacency == "user":
        curves += [Curve.gaussian(math.inf)] * bool(records)
    else:
        curves.append(compose(_restated(release, adjacency) for release in records))
    return Curve.total(curves)


def view_name(guarantee: Guarantee) -> str:
    """Return the class of view a guarantee is about, as the lifetime ledger names it.

    >>> from sottovoce.privacy import Adversary
    >>> view_name(Guarantee(Adversary("colluders", count=2), "user", "exact", Curve.gaussian(1.0)))
    'colluders:2'
    """
    who = guarantee.adversary
    if who.kind == "colluders":
        return f"colluders:{who.count}" if who.count is not None else "coalition"
    return "observer" if who.observers else who.kind


def charge(
    member_directory: MemberDirectory,
    population: str | None,
    releases: Iterable[Release],
    what: str,
    **views: Guarantee,
) -> dict[str, Any]:
    """Charge a training on this machine to the member's lifetime ledger, before its noise is drawn.

    Parameters
    ----------
    member directory : from `sottovoce.peers.member_directory.find_member_directory`; it says whether this
        machine has one.
    population : whose records they are; None for the member directory's first.
    releases : everything that will be published about these records. Where simulated agents hold disjoint
        records, those of the agent that loses most.
    what : one line for the officer.
    views : valid guarantees against weaker adversaries, where known (``network=``, ``central=``).

    Returns
    -------
    population, and for each lifetime budget what was spent before, what this adds and the total after.

    Guarantees
    ----------
    Returns only when the charge is durable in both copies of the lifetime ledger. Beyond a lifetime budget
    `BudgetExceeded` is raised and nothing is charged.

    Examples
    --------
    >>> import tempfile
    >>> from sottovoce.peers.member_directory import MemberDirectory
    >>> folder = tempfile.mkdtemp()
    >>> directory = MemberDirectory.create(
    ...     folder + "/north", "north", population="patients", copy=folder + "/copy",
    ...     budgets=[LifetimeBudget(3.0, 1e-5, "replace-one")])
    >>> release = Release(0, 0, sensitivity=1.0, noise_std=2.0, adjacency="replace-one")
    >>> said = charge(directory, None, [release], "a mean")
    >>> [round(row["total"], 3) for row in said["budgets"]]
    [1.993]
    >>> charge(directory, None, [release] * 4, "four more")
    Traceback (most recent call last):
    sottovoce.errors.BudgetExceeded: patients: spent so far 1.993, this adds 4.377, together 4.983 of epsilon 3 at delta 1e-05 (replace-one, network), so nothing was charged or sent; take more noise or fewer steps, or raise the budget with `peer budget --raise`.
    """  # noqa: E501
    return member_directory.lifetime_ledger.charge(population, releases, what, views)


class LifetimeLedger:
    """The file of acts, and what they add up to.

    Parameters
    ----------
    path : the lifetime ledger in the member directory.
    copy : its second copy, outside the member directory.
    lock : a file that the one writer holds.

    Guarantees
    ----------
    An act returns only when its row is on the disk in both copies; if anything fails `LedgerError` is raised
    and whoever asked may not send. Reading raises if the lifetime ledger is missing, damaged anywhere, or
    shorter than its copy. Acts of several processes come one after the other.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> ledger = LifetimeLedger(folder / "book.jsonl", folder / "copy.jsonl", folder / "lock")
    >>> ledger.create("north")
    >>> ledger.open_population("patients", [LifetimeBudget(5.0, 1e-5, "user", "local")], "ethics vote 12/26")
    >>> ledger.populations["patients"][0].epsilon
    5.0
    """

    def __init__(self, path: str | Path, copy: str | Path, lock: str | Path) -> None:
        self.path, self.copy, self._lock = Path(path), Path(copy), Path(lock)

    # ---- acts ------------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        """Begin an empty lifetime ledger."""
        with self._writing():
            for file in (self.path, self.copy):
                if file.exists():
                    raise LedgerError(
                        f"{file} exists already; a member directory has one lifetime ledger, keep it."
                    )
            self._write([_row([], {"act": "created", "format": FORMAT, "name": name})])

    def open_population(self, name: str, budgets: Iterable[LifetimeBudget], why: str) -> None:
        """Name a population and its lifetime budgets; the officer answers for whom it holds."""
        name, budgets = _line(name, "a population's name"), tuple(budgets)
        if not budgets:
            raise InvalidInput(f"The population {name} needs a lifetime budget; give epsilon and delta.")
        if len({budget.kind for budget in budgets}) < len(budgets):
            raise InvalidInput("There is one lifetime budget for each adjacency and view; leave one out.")
        with self._writing():
            rows = self._verified()
            if name in _state(rows).populations:
                raise ConfigError(f"The population {name} is open already; raise its budget instead.")
            act = {"act": "population", "population": name, "budgets": [asdict(b) for b in budgets]}
            self._write([*rows, _row(rows, {**act, "why": _line(why, "the reason")})])

    def set_budget(self, population: str | None, budget: LifetimeBudget, why: str) -> None:
        """Raise, lower or add a lifetime budget: an act with a reason, kept for good."""
        with self._writing():
            rows = self._verified()
            name = _state(rows).named(population)
            act = {"act": "budget", "population": name, "budget": asdict(budget)}
            self._write([*rows, _row(rows, {**act, "why": _line(why, "the reason")})])

    def charge(
        self,
        population: str | None,
        releases: Iterable[Release],
        what: str,
        views: Mapping[str, Guarantee] | None = None,
        *,
        training: str = "",
    ) -> dict[str, Any]:
        """Charge releases that belong to no run; see `charge`.

        A ``training`` that the lifetime ledger knows by this name is going on: it is not charged again, and
        may release nothing else than it was charged for.
        """
        with self._writing():
            rows = self._verified()
            state = _state(rows)
            new = RunCharge(
                state.named(population),
                _line(what, "what"),
                tuple(releases),
                dict(views or {}),
                training=training,
            )
            known = next((each for each in state.charges if training and each.training == training), None)
            if known is None:
                return self._charged(rows, state, new, "charge")
            if known.population != new.population or _counted(known.releases) != _counted(new.releases):
                raise ConfigError(
                    f"This training was charged to {known.population} for other releases than it would make "
                    "now; begin it anew in another checkpoint folder, which is charged."
                )
            return {"population": new.population, "budgets": _forecast(state, None, new.population)}

    def start(
        self, new: RunCharge, *, new_records: str = "", closing: Iterable[RunClosure] = ()
    ) -> RunCharge:
        """Charge a run in full, or find it in the lifetime ledger and return what is known of it.

        A known run is never charged twice and never begun a second time. Other records than those it began
        with are refused, unless ``new_records`` gives the reason; then the change is a row of its own, and
        opens no new budget. A membership version is charged to the population of the run that it continues,
        and asks for the same records; ``closing`` ends earlier runs in the same writing, or not at all if
        this is refused.
        """
        with self._writing():
            rows = self._verified()
            state = _state(rows)
            known = state.runs.get(new.run)
            if known is not None:
                return self._resumed(rows, known, new, new_records)
            parent = state.parent(new)
            new = replace(new, population=state.population_of(new))
            if parent is not None and new.records != parent.records:
                _require_reason(parent.run[:16], new_records)
                changed = {"act": "records", "run": parent.run, "records": new.records}
                rows = [*rows, _row(rows, {**changed, "why": _line(new_records, "the reason")})]
            for each in closing:
                rows = _closed(rows, each)
            self._charged(rows, _state(rows), new, "start")
            return new

    def begun(self, run: str) -> None:
        """Note that the ledger of a run exists: it may send now, and a missing ledger is an error.

        A run that was closed since it was found may not: whoever closed it counted what its ledger held.
        """
        with self._writing():
            rows = self._verified()
            status = _state(rows).run(run).status
            if status == "closed":
                raise ConfigError(
                    f"The run {run[:16]} was closed in this member's lifetime ledger; agree on a new run."
                )
            if status == "started":
                self._write([*rows, _row(rows, {"act": "begun", "run": run})])

    def end(self, run: str, *, draws: int, head: str) -> None:
        """Note that a run reached its end, with the head of its ledger."""
        with self._writing():
            rows = self._verified()
            if _state(rows).run(run).status in ("started", "begun"):
                self._write([*rows, _row(rows, {"act": "end", "run": run, "draws": draws, "head": head})])

    def close(
        self,
        run: str,
        releases: Iterable[Release] | None,
        why: str,
        views: Mapping[str, Guarantee] | None = None,
    ) -> None:
        """Give a run up for good; with the releases of its whole ledger it costs those, else all planned.

        Against members the agreed price stands, a broken step is paid in full; ``views`` may replace it where
        half a run has a price of its own (masked sums).
        """
        left = None if releases is None else tuple(releases)
        with self._writing():
            self._write(_closed(self._verified(), RunClosure(run, left, why, dict(views or {}))))

    def trust(self, name: str, fingerprint: str, why: str) -> None:
        """Note which certificate a member was pinned with."""
        with self._writing():
            rows = self._verified()
            act = {"act": "trust", "name": name, "fingerprint": fingerprint}
            self._write([*rows, _row(rows, {**act, "why": _line(why, "the reason")})])

    def restore(self, why: str, missing: Iterable[RunCharge] = ()) -> str:
        """Go on with the longer of two whole copies after the other was lost, damaged or found older.

        ``missing`` are runs whose folders exist although the lifetime ledger does not know them: they are
        charged. What was done is a row, and where only one copy was left every later total says so.
        """
        why = _line(why, "the reason")
        with self._writing():
            whole = {}
            for file in (self.path, self.copy):
                try:
                    whole[file] = _read(file)
                except LedgerError:
                    continue
            if not whole:
                raise LedgerError(
                    f"Neither {self.path} nor its copy {self.copy} is a whole lifetime ledger; find a copy "
                    "that is, on "
                    "another disk or backup, and put it there."
                )
            kept = max(whole, key=lambda file: len(whole[file]))
            if any(rows != whole[kept][: len(rows)] for rows in whole.values()):
                raise LedgerError(
                    f"{self.path} and its copy {self.copy} tell different stories; nothing can be added to "
                    "either, ask whoever wrote the second one."
                )
            rows = whole[kept]
            act = {"act": "restored", "kept": "ledger" if kept == self.path else "copy", "rows": len(rows)}
            rows = [*rows, _row(rows, {**act, "alone": len(whole) == 1, "why": why})]
            for each in missing:
                if each.run not in _state(rows).runs:  # what may have left is charged, budget or no budget
                    rows = [*rows, _row(rows, charge_to_row(each, "start"))]
                    rows = [*rows, _row(rows, {"act": "begun", "run": each.run})]
            self._write(rows)
            return str(act["kept"])

    # ---- reading ---------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Return every act, after both copies were checked."""
        with self._writing():
            return self._verified()

    @property
    def populations(self) -> dict[str, list[LifetimeBudget]]:
        """The lifetime budgets of each population, the first population first."""
        return {name: list(budgets.values()) for name, budgets in _state(self.rows()).populations.items()}

    @property
    def charges(self) -> list[RunCharge]:
        """Everything ever charged, oldest first."""
        return _state(self.rows()).charges

    @property
    def runs(self) -> dict[str, RunCharge]:
        """The charges that are runs, by hash."""
        return _state(self.rows()).runs

    @property
    def pinned(self) -> dict[str, str]:
        """Fingerprints by member name, as last trusted."""
        return _state(self.rows()).pinned

    def forecast(self, new: RunCharge, *, closing: Iterable[RunClosure] = ()) -> list[dict[str, Any]]:
        """Return for each lifetime budget what is spent, what ``new`` adds and the total; changes nothing.

        A run that the lifetime ledger knows adds nothing. With ``closing`` what is spent counts those runs as
        they would be closed by the start of ``new``; without it, as planned.
        """
        rows = self.rows()
        state = _state(rows)
        if new.run in state.runs:
            return _forecast(state, None, state.runs[new.run].population)
        name = state.population_of(new)
        for each in closing:
            rows = _closed(rows, each)
        state = _state(rows)
        return _forecast(state, replace(new, population=name), name)

    def summary(self) -> list[dict[str, Any]]:
        """Return one entry per population: its charges, and spent, left and limit for each budget."""
        state = _state(self.rows())
        return [
            {
                "population": name,
                "budgets": _forecast(state, None, name),
                "charges": [_listed(each) for each in state.charges if each.population == name],
                "remarks": list(state.remarks),
            }
            for name in state.populations
        ]

    # ---- inside ----------------------------------------------------------------------------------

    def _charged(self, rows: list[dict[str, Any]], state: _State, new: RunCharge, act: str) -> dict[str, Any]:
        for name, guarantee in new.views.items():
            if not guarantee.valid:
                raise NotAGuarantee(
                    f"The lifetime ledger takes labels ldp and exact, got {guarantee.label} for {name}."
                )
        budgets = _forecast(state, new, new.population)
        for row in budgets:
            if not row["total"] <= row["epsilon"]:
                limit = state.populations[new.population][row["adjacency"], row["view"]]
                raise BudgetExceeded(
                    f"{new.population}: spent so far {row['spent']:.4g}, this adds {row['adds']:.4g}, "
                    f"together {row['total']:.4g} of {limit}, so nothing was charged or sent; take more "
                    "noise or fewer steps, or raise the budget with `peer budget --raise`."
                )
        self._write([*rows, _row(rows, charge_to_row(new, act))])
        return {"population": new.population, "budgets": budgets}

    def _resumed(
        self, rows: list[dict[str, Any]], known: RunCharge, new: RunCharge, new_records: str
    ) -> RunCharge:
        short = new.run[:16]
        if known.status == "closed":
            raise ConfigError(
                f"The run {short} was closed in this member's lifetime ledger; agree on a new run."
            )
        if new.population and new.population != known.population:
            raise ConfigError(
                f"The run {short} is charged to the population {known.population}, got {new.population}; a "
                "run stays with the population it began with."
            )
        if _counted(new.releases) != _counted(known.releases):
            raise ConfigError(
                f"The run {short} was charged for other releases than it would make now; go on with the "
                "version of the program that began it."
            )
        if new.records != known.records:
            _require_reason(short, new_records)
            act = {"act": "records", "run": new.run, "records": new.records}
            self._write([*rows, _row(rows, {**act, "why": _line(new_records, "the reason")})])
            known = replace(known, records=new.records)
        return known

    def _verified(self) -> list[dict[str, Any]]:
        rows = _read(self.path)
        if not self.copy.exists() and len(rows) == 1:
            self._write(rows)  # a crash while the member directory was made: nothing is charged yet
        copied = _read(self.copy)
        if len(copied) > len(rows) and copied[: len(rows)] == rows:
            raise LedgerError(
                f"The lifetime ledger {self.path} is older than its copy {self.copy} ({len(rows)} rows "
                "against "
                f"{len(copied)}): it comes from a backup; `peer budget --restore` takes the newer one."
            )
        if copied != rows[: len(copied)]:
            raise LedgerError(
                f"The lifetime ledger {self.path} and its copy {self.copy} tell different stories; nothing "
                "can be added "
                "to either, ask whoever wrote the second one."
            )
        if len(copied) < len(rows):
            # a crash between the two: nothing left on that row yet, and nothing may before both hold it
            self._write(rows)
        return rows

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Put both copies on the disk; the lifetime ledger first, so that a crash in between over-counts
        at most.
        """
        text = "".join(_canonical(row) + "\n" for row in rows)
        try:
            atomic_write(self.path, text, mode=0o600)
            atomic_write(self.copy, text, mode=0o600)
        except DataError as error:
            raise LedgerError(
                f"The lifetime ledger cannot be written, so nothing was sent: {error}"
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock, _PATIENCE))
            except BlockingIOError:
                raise LedgerError(
                    f"The lifetime ledger {self.path} is being written by another process; try again."
                ) from None
            except OSError as error:
                raise LedgerError(
                    f"The lifetime ledger's lock {self._lock} cannot be taken ({error.strerror}), so "
                    "nothing was sent."
                ) from None
            yield


# ---- rows ----------------------------------------------------------------------------------------------


@dataclass
class _State:
    """What the acts add up to."""

    populations: dict[str, dict[tuple[str, str], LifetimeBudget]] = field(default_factory=dict)
    charges: list[RunCharge] = field(default_factory=list)
    pinned: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def runs(self) -> dict[str, RunCharge]:
        return {each.run: each for each in self.charges if each.run}

    def run(self, run: str) -> RunCharge:
        if run not in self.runs:
            raise ConfigError(
                f"The lifetime ledger knows no run {run[:16]}; `peer budget` lists those it knows."
            )
        return self.runs[run]

    def named(self, population: str | None) -> str:
        """Return the population meant; every file is charged to the first unless another is named."""
        if not self.populations:
            raise ConfigError(
                "The lifetime ledger has no population yet; the officer opens one with `peer budget --open`."
            )
        if population is None:
            return next(iter(self.populations))
        if population not in self.populations:
            raise ConfigError(
                f"The lifetime ledger has no population {population!r}, only {', '.join(self.populations)}; "
                "opening "
                "another is a recorded act of the officer, `peer budget --open`."
            )
        return population

    def parent(self, new: RunCharge) -> RunCharge | None:
        """Return the newest run known here that ``new`` goes on from."""
        return next((self.runs[run] for run in new.continues if run in self.runs), None)

    def population_of(self, new: RunCharge) -> str:
        """Return whom ``new`` is charged to: the people stay the same from membership version to
        membership version.
        """
        parent = self.parent(new)
        if parent is None:
            return self.named(new.population or None)
        if new.population not in ("", parent.population):
            raise ConfigError(
                f"The run {parent.run[:16]} that this membership version continues is charged to the "
                "population "
                f"{parent.population}, got {new.population}; a run stays with the population it began with."
            )
        return parent.population

    def amend(self, run: str, **changes: Any) -> None:
        at = next(i for i, each in enumerate(self.charges) if each.run == run)
        self.charges[at] = replace(self.charges[at], **changes)


def _state(rows: Iterable[dict[str, Any]]) -> _State:
    state = _State()
    for row in rows:
        act = row["act"]
        if act == "population":
            budgets = [LifetimeBudget(**each) for each in row["budgets"]]
            state.populations[row["population"]] = {budget.kind: budget for budget in budgets}
        elif act == "budget":
            budget = LifetimeBudget(**row["budget"])
            state.populations[row["population"]][budget.kind] = budget
        elif act in ("charge", "start"):
            state.charges.append(charge_from_row(row))
        elif act == "begun":
            state.amend(row["run"], status="begun")
        elif act == "end":
            state.amend(row["run"], status="ended")
        elif act == "records":
            state.amend(row["run"], records=row["records"])
        elif act == "close":
            left: dict[str, Any] = {"releases": _releases(row["releases"])} if "releases" in row else {}
            if "views" in row:
                left["views"] = {name: Guarantee.from_dict(each) for name, each in row["views"].items()}
            state.amend(row["run"], status="closed", **left)
        elif act == "trust":
            state.pinned[row["name"]] = row["fingerprint"]
        elif act == "restored":
            if row["alone"]:
                state.remarks.append(
                    f"on {row['time'][:10]} the lifetime ledger was continued from one copy alone: releases "
                    "between "
                    "that copy and then, if any, are not in these totals"
                )
        elif act != "created":
            raise LedgerError(
                f"The lifetime ledger holds an act {act!r} that this program does not know; upgrade it."
            )
    return state


def _closed(rows: list[dict[str, Any]], closing: RunClosure) -> list[dict[str, Any]]:
    """Return the rows with one more that closes a run."""
    if _state(rows).run(closing.run).status == "closed":
        raise ConfigError(f"The run {closing.run[:16]} was closed before; there is nothing left to do.")
    return [*rows, _row(rows, closing.act)]


def _require_reason(run: str, why: str) -> None:
    if not why:
        raise DataError(
            f"The records differ from those the run {run} began with; restore the file, or say why "
            "they changed with --new-data, which is recorded and opens no new budget."
        )


def charge_to_row(new: RunCharge, act: str) -> dict[str, Any]:
    """Return a charge as the act that a row of the lifetime ledger holds; a ledger keeps it too."""
    row: dict[str, Any] = {
        "act": act,
        "population": new.population,
        "what": new.what,
        "releases": [release.to_dict() for release in new.releases],
        "views": {name: guarantee.to_dict() for name, guarantee in sorted(new.views.items())},
    }
    if new.training:
        row["training"] = new.training
    if act == "start":
        row |= {"run": new.run, "records": new.records, "state": new.state, "continues": list(new.continues)}
    return row


def charge_from_row(row: Mapping[str, Any]) -> RunCharge:
    """Return what `charge_to_row` wrote."""
    views = {name: Guarantee.from_dict(each) for name, each in row["views"].items()}
    run, records, state = row.get("run", ""), row.get("records", ""), row.get("state", "")
    status = "started" if run else "ended"
    continues = tuple(row["continues"]) if run else ()
    return RunCharge(
        row["population"],
        row["what"],
        _releases(row["releases"]),
        views,
        run,
        records,
        state,
        status,
        row.get("time", ""),
        row.get("training", ""),
        continues,
    )


def _releases(listed: Iterable[Mapping[str, Any]]) -> tuple[Release, ...]:
    return tuple(Release(**each) for each in listed)


def _row(rows: Sequence[dict[str, Any]], act: dict[str, Any]) -> dict[str, Any]:
    """Chain an act to the rows before it."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    row = {**act, "seq": len(rows), "time": now, "previous": rows[-1]["hash"] if rows else _GENESIS}
    row = json.loads(_canonical(row))  # as it will be read back
    return {**row, "hash": _hash(row)}


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of one copy, or raise if a bit of it is not as it was written."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(
            f"The lifetime ledger {path} is missing although the member directory was used; `peer budget "
            "--restore` takes the other "
            "copy."
        ) from None
    except OSError as error:
        raise LedgerError(
            f"The lifetime ledger {path} cannot be read ({error.strerror}), so nothing was sent."
        ) from None
    rows: list[dict[str, Any]] = []
    previous = _GENESIS
    try:
        lines = text.decode().split("\n")
        if lines.pop() != "" or not lines:
            raise ValueError("the last row is cut off")
        for number, line in enumerate(lines):
            row = json.loads(line)
            content = {key: value for key, value in row.items() if key != "hash"}
            whole = _canonical(row) == line and row["seq"] == number and row["previous"] == previous
            if not whole or row["hash"] != _hash(content):
                raise ValueError(f"row {number} does not fit the chain")
            previous = row["hash"]
            rows.append(row)
        if rows[0]["act"] != "created":
            raise ValueError("the first row is missing")
        if rows[0]["format"] != FORMAT:
            raise LedgerError(
                f"The lifetime ledger {path} has format {rows[0]['format']}, this program reads {FORMAT}; "
                "upgrade it."
            )
        _state(rows)
    except LedgerError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, SottovoceError) as error:
        raise LedgerError(
            f"The lifetime ledger {path} is damaged ({error}), so nothing was sent; `peer budget --restore` "
            "takes the "
            "other copy."
        ) from None
    return rows


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(b"sottovoce book\n" + _canonical(row).encode()).hexdigest()


# ---- totals --------------------------------------------------------------------------------------------


def _forecast(state: _State, new: RunCharge | None, population: str) -> list[dict[str, Any]]:
    before = [each for each in state.charges if each.population == population]
    after = before if new is None else [*before, new]
    rows = []
    for limit in state.populations[population].values():
        spent, total = (composed(each, *limit.kind).epsilon(limit.delta) for each in (before, after))
        adds = 0.0 if new is None else composed([new], *limit.kind).epsilon(limit.delta)
        rows.append({**asdict(limit), "spent": spent, "adds": adds, "total": total})
    return rows


def _listed(each: RunCharge) -> dict[str, Any]:
    return {
        "what": each.what,
        "run": each.run,
        "status": each.status,
        "since": each.since,
        "releases": sum(release.draws for release in each.releases),
        "adjacencies": sorted({release.adjacency for release in each.releases}),
        "state": each.state,
    }


def _restated(release: Release, adjacency: str) -> Release:
    """Return a record-level release under the other record-level adjacency."""
    if release.adjacency == adjacency:
        return release
    if adjacency == "replace-one":  # one removed and one added: it moves at most twice as far
        return replace(release, adjacency=adjacency, sensitivity=2 * release.sensitivity)
    # a record removed moves a release no further than one replaced; where lots are sampled the price under
    # replace-one already reads the sensitivity as two clips, so one clip is what a removal moves it
    share = 0.5 if release.sample_rate < 1 else 1.0
    return replace(release, adjacency=adjacency, sensitivity=share * release.sensitivity)


def _counted(releases: Iterable[Release]) -> dict[bytes, int]:
    """Count releases by what they cost, however they are run-length coded."""
    counted: dict[bytes, int] = {}
    for release in releases:
        key = replace(release, sender=0, step=0, steps=1, count=1, stream=0).to_bytes()
        counted[key] = counted.get(key, 0) + release.draws
    return counted


def _colluders(view: str) -> int | None:
    name, _, count = view.partition(":")
    return int(count) if name == "colluders" and count.isdigit() and int(count) >= 1 else None


def _line(text: str, what: str) -> str:
    if not text or len(text) > 200 or not text.isprintable():
        raise InvalidInput(f"{what} must be one line of at most 200 printable characters, got {text[:40]!r}.")
    return text
