"""The lifetime ledger: everything ever released about the populations of one member, over all runs.

A run ledger knows one run; people live longer than runs. The lifetime ledger is a file of chained rows
(`sottovoce.ledger.chain`), one act each: a population is opened with its lifetime budgets, a run is charged
in full before its first noise is drawn, a budget is changed, a run is closed. There are two copies, one in
the member directory and one outside it, so that a directory restored from a backup is noticed. Any doubt is
an error, and then nothing is charged or sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce._io import atomic_write
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, InvalidInput, LedgerError
from sottovoce.ledger.balance import (
    FORMAT,
    Acts,
    Charge,
    LifetimeBudget,
    Row,
    RunClosure,
    canonical_json,
    charge_to_row,
    covers,
    one_line,
    read_acts,
)
from sottovoce.ledger.chain import exclusive, explained, written

MEMBER_FILE, LEDGER_FILE = "member.json", "lifetime.ledger"
VARIABLE = "SOTTOVOCE_HOME"
_PATIENCE = 10.0  # seconds to wait for another writer: an act takes milliseconds


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

    ``path`` is the ledger in the member directory, ``copy`` its second copy outside it; the one writer holds
    the file ``lock``.

    Guarantees
    ----------
    An act returns only when its row is on the disk in both copies; if anything fails, `LedgerError` is raised
    and the caller may not send. Reading raises if the ledger is missing, damaged, or shorter than its copy.
    Acts of several processes are serialized.
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
            acts = Acts()
            acts.add({"act": "created", "format": FORMAT, "name": name})
            self._write(acts)

    def open_population(self, name: str, budgets: Iterable[LifetimeBudget], why: str) -> None:
        """Name a population and its lifetime budgets; nothing checks who belongs to it."""
        name, budgets = one_line(name, "a population's name"), tuple(budgets)
        if not budgets or len({budget.kind for budget in budgets}) < len(budgets):
            raise InvalidInput(f"{name} needs one lifetime budget per adjacency and view, got {budgets}.")
        with self._changing() as acts:
            if name in acts.populations:
                raise ConfigError(f"The population {name} is open already; raise its budget instead.")
            stored = [asdict(each) for each in budgets]
            acts.add({"act": "population", "population": name, "budgets": stored}, why)

    def set_budget(self, population: str | None, budget: LifetimeBudget, why: str) -> None:
        """Raise, lower or add a lifetime budget: an act with a reason, kept for good."""
        with self._changing() as acts:
            name = acts.named(population)
            acts.add({"act": "budget", "population": name, "budget": asdict(budget)}, why)

    def charge(
        self,
        population: str | None,
        releases: Iterable[Release],
        what: str,
        guarantees: Iterable[Guarantee] = (),
        *,
        training: str = "",
    ) -> dict[str, Any]:
        """Charge releases that belong to no run, before their noise is drawn; return population and budgets.

        A training that is named continues after an interruption without a second charge, and may release only
        what it was charged for. Beyond a budget `BudgetExceeded` is raised and nothing is charged.
        """
        with self._changing() as acts:
            name, line = acts.named(population), one_line(what, "what")
            new = Charge(name, line, tuple(releases), tuple(guarantees), training=training)
            known = next((each for each in acts.charges if training and each.training == training), None)
            if known is None:
                return {"population": name, "budgets": acts.charge(new)}
            if known.population != name or not covers(known, new):
                raise ConfigError(
                    f"This training was charged to {known.population} for other releases than it would make "
                    "now; start it in another checkpoint folder, which is charged."
                )
            return {"population": name, "budgets": acts.forecast(None, name)}

    def charge_run(self, new: Charge, *, closing: Iterable[RunClosure] = ()) -> Charge:
        """Charge a run in full, or return the charge of a known run.

        A run keeps its records. After a membership change it is charged to the population of the run that it
        continues, with the same records; ``closing`` ends earlier runs in the same write, or not at all if
        this run is refused.
        """
        with self._changing() as acts:
            return acts.charge_run(new, closing)

    def start(self, run_id: str) -> None:
        """Record that the ledger of a run exists: from now on it may send, and a missing ledger is an error.

        A run that was closed meanwhile may not send: closing counted what its ledger held.
        """
        with self._changing() as acts:
            if acts.require_open(run_id).status == "charged":
                acts.add({"act": "start", "run_id": run_id})

    def end(self, run_id: str, *, draws: int, head: str) -> None:
        """Record that a run finished, with the head of its ledger."""
        with self._changing() as acts:
            if acts.known_run(run_id).status in ("charged", "started"):
                acts.add({"act": "end", "run_id": run_id, "draws": draws, "head": head})

    def close(self, run_id: str, releases: Iterable[Release] | None, why: str) -> None:
        """End a run for good: it costs ``releases``, those of its whole ledger, or with None all planned."""
        left = None if releases is None else tuple(releases)
        with self._changing() as acts:
            acts.close(RunClosure(run_id, left, why))

    def trust(self, name: str, fingerprint: str, why: str) -> None:
        """Record which certificate a member was pinned with."""
        with self._changing() as acts:
            acts.add({"act": "trust", "name": name, "fingerprint": fingerprint}, why)

    def restore(self, why: str, missing: Iterable[Charge] = ()) -> str:
        """Continue with the longer of two whole copies after the other was lost, damaged or found older.

        ``missing`` are runs whose folders exist although the lifetime ledger does not know them: they are
        charged. The act is recorded, and if only one copy was left, every later total says so.
        """
        with self._locked():
            whole = {}
            for file in (self.path, self.copy):
                with suppress(LedgerError):
                    whole[file] = read_acts(file)
            if not whole:
                raise LedgerError(
                    f"Neither {self.path} nor its copy {self.copy} is whole; put an intact copy there."
                )
            longest = max(whole, key=lambda file: len(whole[file].rows))
            acts = whole[longest]
            if any(each.rows != acts.rows[: len(each.rows)] for each in whole.values()):
                raise self._contradiction()
            source = "ledger" if longest == self.path else "copy"
            act = {"act": "restored", "source": source, "rows": len(acts.rows), "alone": len(whole) == 1}
            acts.add(act, why)
            for each in missing:
                # what may have left is charged, within budget or not
                if each.run_id not in acts.runs:
                    acts.add(charge_to_row(each))
                    acts.add({"act": "start", "run_id": each.run_id})
            self._write(acts)
            return source

    # ---- reading ---------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return every act, after both copies were checked."""
        return self._acts().rows

    @property
    def populations(self) -> dict[str, list[LifetimeBudget]]:
        """The lifetime budgets of each population, the first population first."""
        populations = self._acts().populations
        return {name: list(budgets.values()) for name, budgets in populations.items()}

    def views(self, population: str | None) -> list[str]:
        """Return the views of a population's lifetime budgets; None for the first population."""
        acts = self._acts()
        return list(dict.fromkeys(view for _, view in acts.populations[acts.named(population)]))

    @property
    def charges(self) -> list[Charge]:
        """Everything ever charged, oldest first."""
        return self._acts().charges

    @property
    def runs(self) -> dict[str, Charge]:
        """The charges that are runs, by hash."""
        return self._acts().runs

    def run(self, run_id: str) -> Charge:
        """Return the charge of a known run, or raise."""
        return self._acts().known_run(run_id)

    @property
    def pinned(self) -> dict[str, str]:
        """Fingerprints by member name, as last trusted."""
        return self._acts().pinned

    def forecast(self, new: Charge, *, closing: Iterable[RunClosure] = ()) -> list[Row]:
        """Return for each lifetime budget what is spent, what ``new`` adds and the total; changes nothing.

        A known run adds nothing. Runs in ``closing`` count as they would be closed by the charge of ``new``;
        other runs count as planned.
        """
        acts = self._acts()
        if new.run_id in acts.runs:
            return acts.forecast(None, acts.runs[new.run_id].population)
        name = acts.population_of(new)
        for each in closing:
            acts.close(each)
        return acts.forecast(new, name)

    def summary(self) -> list[Row]:
        """Return one entry per population: its charges, and spent, left and limit for each budget."""
        acts = self._acts()
        return [
            {
                "population": name,
                "budgets": acts.forecast(None, name),
                "charges": [each.summary() for each in acts.charges if each.population == name],
                "remarks": list(acts.remarks),
            }
            for name in acts.populations
        ]

    # ---- files -----------------------------------------------------------------------------------

    def _acts(self) -> Acts:
        with self._locked():
            return self._verified()

    def _verified(self) -> Acts:
        """Return the acts, after both copies were compared."""
        acts = read_acts(self.path)
        if not self.copy.exists() and len(acts.rows) == 1:
            self._write(acts)  # a crash while the member directory was created: nothing is charged yet
        rows, copied = acts.rows, read_acts(self.copy).rows
        if len(copied) > len(rows) and copied[: len(rows)] == rows:
            raise LedgerError(
                f"The lifetime ledger {self.path} is older than its copy {self.copy} ({len(rows)} rows, not "
                f"{len(copied)}): it comes from a backup; `peer budget --restore` takes the newer one."
            )
        if copied != rows[: len(copied)]:
            raise self._contradiction()
        if len(copied) < len(rows):
            # a crash between the two writes: nothing may be sent for that row before both copies hold it
            self._write(acts)
        return acts

    def _contradiction(self) -> LedgerError:
        return LedgerError(
            f"The lifetime ledger {self.path} and its copy {self.copy} contradict each other, so nothing can "
            "be added to either; ask who wrote the second one."
        )

    def _write(self, acts: Acts) -> None:
        """Write both copies; the ledger first, so that a crash in between counts at most too much."""
        # the acts of one change must be there together, so the file is replaced; there are few
        content = written(map(canonical_json, acts.rows))
        with explained(f"The lifetime ledger {self.path}", ""):
            atomic_write(self.path, content, mode=0o600)
            atomic_write(self.copy, content, mode=0o600)

    @contextmanager
    def _changing(self) -> Iterator[Acts]:
        """Yield the acts; write them if some were added and nothing was raised."""
        with self._locked():
            acts = self._verified()
            before = len(acts.rows)
            yield acts
            if len(acts.rows) > before:
                self._write(acts)

    def _locked(self) -> AbstractContextManager[None]:
        return exclusive(self._lock, _PATIENCE, f"The lifetime ledger {self.path}")
