"""The acts of a lifetime ledger, and what they add up to: populations, budgets, charges and totals."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError, DataError, InvalidInput, LedgerError, NotAGuarantee
from sottovoce.ledger.balance import (
    Charge,
    LifetimeBudget,
    Row,
    RunClosure,
    charge_from_row,
    charge_to_row,
    costs_from_row,
    costs_to_row,
    covers,
    curve_of_charges,
    require_lifetime_budget,
)
from sottovoce.ledger.chain import explained, read_lines

FORMAT = 1


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

    def run(self, run_id: str) -> Charge:
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

    def parent(self, new: Charge) -> Charge | None:
        """Return the newest known run that ``new`` continues."""
        return next((self.runs[run_id] for run_id in new.continues if run_id in self.runs), None)

    def population_of(self, new: Charge) -> str:
        """Return the population that ``new`` is charged to; a membership change does not change it."""
        parent = self.parent(new)
        if parent is None:
            return self.named(new.population or None)
        require_population(parent, new)
        return parent.population

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

    def resume(self, known: Charge, new: Charge) -> None:
        """Require that a known run continues as it was charged."""
        if known.status == "closed":
            raise run_closed(new.run_id)
        require_population(known, new)
        if not covers(known, new):
            raise ConfigError(
                f"The run {new.run_id[:16]} was charged for other releases than it would make now; continue "
                "with the version of the program that began it."
            )
        require_same_records(known, new)

    def close(self, closure: RunClosure) -> None:
        """Add the end of a run."""
        known = self.run(closure.run_id)
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


def run_closed(run_id: str) -> ConfigError:
    """Return the error for a run that is over."""
    return ConfigError(
        f"The run {run_id[:16]} was closed in this member's lifetime ledger; agree on a new run."
    )


def require_population(known: Charge, new: Charge) -> None:
    """Raise if ``new`` names another population than the run that it is, or continues."""
    if new.population not in ("", known.population):
        raise ConfigError(
            f"The run {known.run_id[:16]} is charged to the population {known.population}, got "
            f"{new.population}; a run stays with the population it began with."
        )


def require_same_records(known: Charge, new: Charge) -> None:
    """Raise if the records differ from those that a run, or the one it continues, began with."""
    if new.records != known.records:
        began = f"The records differ from those the run {known.run_id[:16]} began with"
        raise DataError(f"{began}; restore the file, or agree on a new run.")


def one_line(text: str, what: str) -> str:
    """Return a text that a row can hold."""
    if not text or len(text) > 200 or not text.isprintable():
        raise InvalidInput(f"{what} must be one line of at most 200 printable characters, got {text[:40]!r}.")
    return text
