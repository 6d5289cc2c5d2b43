"""The lifetime ledger: everything ever released about the populations of one member, over all runs.

A run ledger knows one run; people live longer than runs. The lifetime ledger is a file of chained rows, one
act each: a population is opened with its lifetime budgets, a run is charged in full before its first message
is drawn, a budget is changed, a run is closed. There are two copies, one in the member
directory and one outside it, so that a directory restored from a backup is noticed. Any doubt is an error,
and then nothing is charged or sent.

Rows hold guarantees that `account` returned (`sottovoce.ledger.cost`), not epsilons, and beside them the
releases they are about. Totals are the sums of those guarantees, computed again every time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from sottovoce import _validate
from sottovoce._format import compared, number
from sottovoce._io import atomic_write, locked
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
    SottovoceError,
)
from sottovoce.ledger.cost import (
    LIFETIME_VIEWS,
    colluders_of,
    guarantees_of_releases,
    is_lifetime_view,
    require_lifetime_guarantee,
    view_name,
)

FORMAT = 1
MEMBER_FILE, LEDGER_FILE = "member.json", "lifetime.jsonl"
VARIABLE = "SOTTOVOCE_HOME"
_GENESIS = "0" * 64
_PATIENCE = 10.0  # seconds to wait for another writer: an act takes milliseconds
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
        return Curve.total(Curve.rdp(curve.renyi) for curve in curves)


def _kind(guarantee: Guarantee) -> tuple[str, str]:
    return guarantee.adjacency, view_name(guarantee)


class MemberFile(NamedTuple):
    """The file that makes a folder a member directory: name of the member, folder of the second copy."""

    name: str
    copy: Path

    @classmethod
    def read(cls, folder: Path) -> MemberFile:
        """Read the file in ``folder``, or raise with the remedy."""
        try:
            content = json.loads((folder / MEMBER_FILE).read_text())
            version, member = content["format"], cls(str(content["name"]), Path(content["copy"]))
        except OSError:
            raise ConfigError(
                f"{folder} is not a member directory; `sottovoce peer init` makes one."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"The file {folder / MEMBER_FILE} is damaged; restore it.") from None
        if version != FORMAT:
            raise ConfigError(f"{folder} has format {version!r}, not {FORMAT}; upgrade this program.")
        if folder.stat().st_mode & 0o077:
            raise LedgerError(f"The member directory {folder} is open to others; run chmod 700 on it.")
        return member

    def write(self, folder: Path) -> None:
        """Make ``folder`` a member directory."""
        content = {"format": FORMAT, "name": self.name, "copy": str(self.copy)}
        atomic_write(folder / MEMBER_FILE, json.dumps(content, indent=1) + "\n", mode=0o600)

    def ledger(self, folder: Path) -> LifetimeLedger:
        """Return the lifetime ledger of the member directory ``folder``."""
        return LifetimeLedger(folder / LEDGER_FILE, self.copy / LEDGER_FILE, folder / "lock")


def usual_member_folder() -> Path | None:
    """Return the member directory of this machine: ``SOTTOVOCE_HOME``, or ``~/.sottovoce`` if it exists."""
    folder = os.environ.get(VARIABLE)
    if folder:
        return Path(folder).expanduser().absolute()
    usual = Path.home() / ".sottovoce"
    return usual if (usual / MEMBER_FILE).exists() else None


def find_lifetime_ledger() -> LifetimeLedger | None:
    """Return the lifetime ledger of this machine, or None if it has no member directory."""
    folder = usual_member_folder()
    return None if folder is None else MemberFile.read(folder).ledger(folder)


class LifetimeLedger:
    """The file of acts, and their totals.

    Parameters
    ----------
    path : the ledger in the member directory.
    copy : its second copy, outside the member directory.
    lock : a file that the one writer holds.

    Guarantees
    ----------
    An act returns only when its row is on the disk in both copies; if anything fails, `LedgerError` is raised
    and the caller may not send. Reading raises if the ledger is missing, damaged, or shorter than its copy.
    Acts of several processes are serialized.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> ledger = LifetimeLedger(folder / "lifetime.jsonl", folder / "copy.jsonl", folder / "lock")
    >>> ledger.create("north")
    >>> ledger.open_population("patients", [LifetimeBudget(5.0, 1e-5, "user", "local")], "ethics vote 12")
    >>> ledger.populations["patients"][0].epsilon
    5.0
    """

    def __init__(self, path: str | Path, copy: str | Path, lock: str | Path) -> None:
        self.path, self.copy, self._lock = Path(path), Path(copy), Path(lock)

    # ---- acts ------------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        """Begin an empty lifetime ledger."""
        with self._locked():
            for file in (self.path, self.copy):
                if file.exists():
                    raise LedgerError(f"{file} exists already; keep it, a member has one lifetime ledger.")
            self._write(_chain([], {"act": "created", "format": FORMAT, "name": name}))

    def open_population(self, name: str, budgets: Iterable[LifetimeBudget], why: str) -> None:
        """Name a population and its lifetime budgets; the officer answers for who belongs to it."""
        name, budgets = _line(name, "a population's name"), tuple(budgets)
        if not budgets:
            raise InvalidInput(f"The population {name} needs a lifetime budget; give epsilon and delta.")
        if len({budget.kind for budget in budgets}) < len(budgets):
            raise InvalidInput("There is one lifetime budget for each adjacency and view; leave one out.")
        with self._verified_rows() as rows:
            if name in _state(rows).populations:
                raise ConfigError(f"The population {name} is open already; raise its budget instead.")
            act = {"act": "population", "population": name, "budgets": [asdict(b) for b in budgets]}
            self._write(_chain(rows, act, why=why))

    def set_budget(self, population: str | None, budget: LifetimeBudget, why: str) -> None:
        """Raise, lower or add a lifetime budget: an act with a reason, kept for good."""
        with self._verified_rows() as rows:
            name = _state(rows).named(population)
            act = {"act": "budget", "population": name, "budget": asdict(budget)}
            self._write(_chain(rows, act, why=why))

    def charge(
        self,
        population: str | None,
        releases: Iterable[Release],
        what: str,
        guarantees: Iterable[Guarantee] = (),
        *,
        training: str = "",
    ) -> dict[str, Any]:
        """Charge releases that belong to no run, before their noise is drawn.

        The arguments are the fields of `Charge`. A training that is named continues after an interruption
        without a second charge, and may release only what it was charged for. Returns the population, and
        for each lifetime budget ``spent`` before, what this ``adds``, and the ``total``. Beyond a budget
        `BudgetExceeded` is raised and nothing is charged.
        """
        with self._verified_rows() as rows:
            state = _state(rows)
            name, line = state.named(population), _line(what, "what")
            new = Charge(name, line, tuple(releases), tuple(guarantees), training=training)
            known = next((each for each in state.charges if training and each.training == training), None)
            if known is None:
                return self._charge(rows, new)
            if known.population != name or not _covers(known, new):
                raise ConfigError(
                    f"This training was charged to {known.population} for other releases than it would make "
                    "now; start it in another checkpoint folder, which is charged."
                )
            return {"population": name, "budgets": _forecast(state, None, name)}

    def charge_run(self, new: Charge, *, new_records: str = "", closing: Iterable[RunClosure] = ()) -> Charge:
        """Charge a run in full, or return the charge of a known run.

        A run is never charged twice. Records that differ from those it began with are
        refused unless ``new_records`` gives the reason; the change is recorded and opens no new budget. After
        a membership change the run is charged to the population of the run that it continues, with the same
        records; ``closing`` ends earlier runs in the same write, or not at all if this run is refused.
        """
        with self._verified_rows() as rows:
            state = _state(rows)
            known = state.runs.get(new.run_id)
            if known is not None:
                return self._resume(rows, known, new, new_records)
            parent = state.parent(new)
            new = replace(new, population=state.population_of(new))
            if parent is not None and new.records != parent.records:
                rows = _records_changed(rows, parent.run_id, new.records, new_records)
            for each in closing:
                rows = _closed(rows, each)
            self._charge(rows, new)
            return new

    def start(self, run_id: str) -> None:
        """Record that the ledger of a run exists: from now on it may send, and a missing ledger is an error.

        A run that was closed meanwhile may not send: closing counted what its ledger held.
        """
        with self._verified_rows() as rows:
            status = _state(rows).run(run_id).status
            if status == "closed":
                raise _run_closed(run_id)
            if status == "charged":
                self._write(_chain(rows, {"act": "start", "run_id": run_id}))

    def end(self, run_id: str, *, draws: int, head: str) -> None:
        """Record that a run finished, with the head of its ledger."""
        with self._verified_rows() as rows:
            if _state(rows).run(run_id).status in ("charged", "started"):
                self._write(_chain(rows, {"act": "end", "run_id": run_id, "draws": draws, "head": head}))

    def close(self, run_id: str, releases: Iterable[Release] | None, why: str) -> None:
        """End a run for good: it costs ``releases``, those of its whole ledger, or with None all planned."""
        left = None if releases is None else tuple(releases)
        with self._verified_rows() as rows:
            self._write(_closed(rows, RunClosure(run_id, left, why)))

    def trust(self, name: str, fingerprint: str, why: str) -> None:
        """Record which certificate a member was pinned with."""
        act = {"act": "trust", "name": name, "fingerprint": fingerprint}
        with self._verified_rows() as rows:
            self._write(_chain(rows, act, why=why))

    def restore(self, why: str, missing: Iterable[Charge] = ()) -> str:
        """Continue with the longer of two whole copies after the other was lost, damaged or found older.

        ``missing`` are runs whose folders exist although the lifetime ledger does not know them: they are
        charged. The act is recorded, and if only one copy was left, every later total says so.
        """
        with self._locked():
            whole = {}
            for file in (self.path, self.copy):
                with suppress(LedgerError):
                    whole[file] = _read(file)
            if not whole:
                raise LedgerError(
                    f"Neither {self.path} nor its copy {self.copy} is whole; put an intact copy there."
                )
            longest = max(whole, key=lambda file: len(whole[file]))
            if any(rows != whole[longest][: len(rows)] for rows in whole.values()):
                raise self._contradiction()
            rows, source = whole[longest], "ledger" if longest == self.path else "copy"
            act = {"act": "restored", "source": source, "rows": len(rows), "alone": len(whole) == 1}
            rows = _chain(rows, act, why=why)
            for each in missing:
                if (
                    each.run_id not in _state(rows).runs
                ):  # what may have left is charged, within budget or not
                    rows = _chain(rows, charge_to_row(each))
                    rows = _chain(rows, {"act": "start", "run_id": each.run_id})
            self._write(rows)
            return source

    # ---- reading ---------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return every act, after both copies were checked."""
        with self._verified_rows() as rows:
            return rows

    @property
    def populations(self) -> dict[str, list[LifetimeBudget]]:
        """The lifetime budgets of each population, the first population first."""
        return {name: list(budgets.values()) for name, budgets in _state(self.rows()).populations.items()}

    def views(self, population: str | None) -> list[str]:
        """Return the views of a population's lifetime budgets; None for the first population."""
        state = _state(self.rows())
        return list(dict.fromkeys(view for _, view in state.populations[state.named(population)]))

    @property
    def charges(self) -> list[Charge]:
        """Everything ever charged, oldest first."""
        return _state(self.rows()).charges

    @property
    def runs(self) -> dict[str, Charge]:
        """The charges that are runs, by hash."""
        return _state(self.rows()).runs

    def run(self, run_id: str) -> Charge:
        """Return the charge of a known run, or raise."""
        return _state(self.rows()).run(run_id)

    @property
    def pinned(self) -> dict[str, str]:
        """Fingerprints by member name, as last trusted."""
        return _state(self.rows()).pinned

    def forecast(self, new: Charge, *, closing: Iterable[RunClosure] = ()) -> list[Row]:
        """Return for each lifetime budget what is spent, what ``new`` adds and the total; changes nothing.

        A known run adds nothing. Runs in ``closing`` count as they would be closed by the charge of ``new``;
        other runs count as planned.
        """
        rows = self.rows()
        state = _state(rows)
        if new.run_id in state.runs:
            return _forecast(state, None, state.runs[new.run_id].population)
        name = state.population_of(new)
        for each in closing:
            rows = _closed(rows, each)
        return _forecast(_state(rows), replace(new, population=name), name)

    def summary(self) -> list[Row]:
        """Return one entry per population: its charges, and spent, left and limit for each budget."""
        state = _state(self.rows())
        return [
            {
                "population": name,
                "budgets": _forecast(state, None, name),
                "charges": [each.summary() for each in state.charges if each.population == name],
                "remarks": list(state.remarks),
            }
            for name in state.populations
        ]

    # ---- inside ----------------------------------------------------------------------------------

    def _charge(self, rows: list[Row], new: Charge) -> dict[str, Any]:
        budgets = _forecast(_state(rows), new, new.population)
        require_lifetime_budget(budgets, f"nothing was charged to {new.population} or sent")
        self._write(_chain(rows, charge_to_row(new)))
        return {"population": new.population, "budgets": budgets}

    def _resume(self, rows: list[Row], known: Charge, new: Charge, new_records: str) -> Charge:
        short = new.run_id[:16]
        if known.status == "closed":
            raise _run_closed(new.run_id)
        if new.population not in ("", known.population):
            raise ConfigError(
                f"The run {short} is charged to the population {known.population}, got {new.population}; a "
                "run stays with the population it began with."
            )
        if not _covers(known, new):
            raise ConfigError(
                f"The run {short} was charged for other releases than it would make now; continue with the "
                "version of the program that began it."
            )
        if new.records != known.records:
            self._write(_records_changed(rows, new.run_id, new.records, new_records))
        return replace(known, records=new.records)

    def _verified(self) -> list[Row]:
        rows = _read(self.path)
        if not self.copy.exists() and len(rows) == 1:
            self._write(rows)  # a crash while the member directory was created: nothing is charged yet
        copied = _read(self.copy)
        if len(copied) > len(rows) and copied[: len(rows)] == rows:
            raise LedgerError(
                f"The lifetime ledger {self.path} is older than its copy {self.copy} ({len(rows)} rows, not "
                f"{len(copied)}): it comes from a backup; `peer budget --restore` takes the newer one."
            )
        if copied != rows[: len(copied)]:
            raise self._contradiction()
        if len(copied) < len(rows):
            # a crash between the two writes: nothing may be sent for that row before both copies hold it
            self._write(rows)
        return rows

    def _contradiction(self) -> LedgerError:
        return LedgerError(
            f"The lifetime ledger {self.path} and its copy {self.copy} contradict each other, so nothing can "
            "be added to either; ask who wrote the second one."
        )

    def _write(self, rows: Sequence[Row]) -> None:
        """Write both copies; the ledger first, so that a crash in between counts at most too much."""
        content = "".join(_canonical_json(row) + "\n" for row in rows)
        try:
            atomic_write(self.path, content, mode=0o600)
            atomic_write(self.copy, content, mode=0o600)
        except DataError as error:
            raise LedgerError(f"The lifetime ledger cannot be written, nothing was sent: {error}") from None

    @contextmanager
    def _verified_rows(self) -> Iterator[list[Row]]:
        with self._locked():
            yield self._verified()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock, _PATIENCE))
            except OSError as error:  # another process writes, or the file cannot be opened
                raise LedgerError(
                    f"The lock {self._lock} of the lifetime ledger cannot be taken ({error.strerror}), so "
                    "nothing was sent; try again."
                ) from None
            yield


# ---- rows ----------------------------------------------------------------------------------------------


@dataclass
class _State:
    """What the acts add up to."""

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

    def _amend(self, run_id: str, **changes: Any) -> None:
        at = next(i for i, each in enumerate(self.charges) if each.run_id == run_id)
        self.charges[at] = replace(self.charges[at], **changes)


def _state(rows: Iterable[Row]) -> _State:
    state = _State()
    for row in rows:
        state.apply(row)
    return state


def _run_closed(run_id: str) -> ConfigError:
    return ConfigError(
        f"The run {run_id[:16]} was closed in this member's lifetime ledger; agree on a new run."
    )


def _closed(rows: list[Row], closure: RunClosure) -> list[Row]:
    """Return the rows with one more that closes a run."""
    known = _state(rows).run(closure.run_id)
    if known.status == "closed":
        raise ConfigError(f"The run {closure.run_id[:16]} is closed already; there is nothing left to do.")
    act: Row = {"act": "close", "run_id": closure.run_id}
    if closure.releases is not None:
        agreed = () if not closure.releases else closure.guarantees or known.guarantees
        # the local cost of what left holds against everybody, so of the agreed ones only exact ones stay
        against_members = tuple(each for each in agreed if each.label == "exact")
        left = replace(known, releases=closure.releases, guarantees=against_members)
        act["releases"] = [release.to_dict() for release in left.releases]
        act["guarantees"] = [guarantee.to_dict() for guarantee in left.guarantees]
    return _chain(rows, act, why=closure.why)


def _records_changed(rows: list[Row], run_id: str, records: str, why: str) -> list[Row]:
    """Return the rows with one more about new records, which need a reason."""
    if not why:
        raise DataError(
            f"The records differ from those the run {run_id[:16]} began with; restore the file, or give the "
            "reason with --new-data, which is recorded and opens no new budget."
        )
    return _chain(rows, {"act": "records", "run_id": run_id, "records": records}, why=why)


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


def _chain(rows: Sequence[Row], act: Row, why: str | None = None) -> list[Row]:
    """Return the rows with one more, chained to the last."""
    reason = {} if why is None else {"why": _line(why, "the reason")}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    place = {"seq": len(rows), "time": now, "previous": rows[-1]["hash"] if rows else _GENESIS}
    row = json.loads(_canonical_json({**act, **reason, **place}))  # as it will be read back
    return [*rows, {**row, "hash": _hash(row)}]


def _canonical_json(row: Mapping[str, object]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(row: Mapping[str, object]) -> str:
    # the label is part of every hash in existing ledgers, so it stays as it is
    return hashlib.sha256(b"sottovoce book\n" + _canonical_json(row).encode()).hexdigest()


def _read(path: Path) -> list[Row]:
    """Return the rows of one copy, or raise if a bit of it is not as it was written."""
    remedy = "so nothing was sent; `peer budget --restore` takes the other copy"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"The lifetime ledger {path} is missing or cannot be read ({error.strerror}), {remedy}."
        ) from None
    rows: list[Row] = []
    previous = _GENESIS
    try:
        *lines, end = raw.decode().split("\n")
        if end or not lines:
            raise ValueError("the last row is cut off")
        for number, line in enumerate(lines):
            row = json.loads(line)
            content = {key: value for key, value in row.items() if key != "hash"}
            whole = _canonical_json(row) == line and row["seq"] == number and row["previous"] == previous
            if not whole or row["hash"] != _hash(content):
                raise ValueError(f"row {number} does not fit the chain")
            previous = row["hash"]
            rows.append(row)
        if rows[0]["act"] != "created":
            raise ValueError("the first row is missing")
        if rows[0]["format"] != FORMAT:
            raise LedgerError(f"{path} has format {rows[0]['format']}, not {FORMAT}; upgrade this program.")
        _state(rows)
    except LedgerError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, SottovoceError) as error:
        raise LedgerError(f"The lifetime ledger {path} is damaged ({error}), {remedy}.") from None
    return rows


# ---- totals --------------------------------------------------------------------------------------------


def _forecast(state: _State, new: Charge | None, population: str) -> list[Row]:
    before = [each for each in state.charges if each.population == population]
    added = [] if new is None else [new]
    parts = {"spent": before, "adds": added, "total": before + added}

    def cost(charges: list[Charge], limit: LifetimeBudget) -> float:
        return curve_of_charges(charges, *limit.kind).epsilon(limit.delta) if charges else 0.0

    limits = state.populations[population].values()
    return [asdict(limit) | {name: cost(parts[name], limit) for name in parts} for limit in limits]


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


def _covers(known: Charge, new: Charge) -> bool:
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


def _line(text: str, what: str) -> str:
    if not text or len(text) > 200 or not text.isprintable():
        raise InvalidInput(f"{what} must be one line of at most 200 printable characters, got {text[:40]!r}.")
    return text
