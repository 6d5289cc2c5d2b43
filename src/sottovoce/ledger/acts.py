"""The acts of a lifetime ledger: rows that are added, chained and read back with their balance."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import ConfigError, DataError, InvalidInput, LedgerError, NotAGuarantee
from sottovoce.ledger.balance import (
    Balance,
    Charge,
    Row,
    RunClosure,
    charge_to_row,
    covers,
    require_lifetime_budget,
)
from sottovoce.ledger.chain import explained, read_lines

FORMAT = 1


class Acts:
    """The acts of a lifetime ledger, and the balance after them."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows, self.balance = list(rows), Balance()
        for row in self.rows:
            self.balance.apply(row)

    def add(self, act: Row, why: str | None = None) -> None:
        """Add one act."""
        reason = {} if why is None else {"why": one_line(why, "the reason")}
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        row = json.loads(canonical_json({**act, **reason, "time": now}))  # as it will be read back
        self.rows.append(row)
        self.balance.apply(row)

    def charge(self, new: Charge) -> list[Row]:
        """Add a charge that is within the lifetime budgets; return the forecast."""
        budgets = self.balance.forecast(new, new.population)
        require_lifetime_budget(budgets, f"nothing was charged to {new.population} or sent")
        self.add(charge_to_row(new))
        return budgets

    def resume(self, known: Charge, new: Charge, new_records: str) -> None:
        """Require that a known run continues as it was charged."""
        short = new.run_id[:16]
        if known.status == "closed":
            raise run_closed(new.run_id)
        if new.population not in ("", known.population):
            raise ConfigError(
                f"The run {short} is charged to the population {known.population}, got {new.population}; a "
                "run stays with the population it began with."
            )
        if not covers(known, new):
            raise ConfigError(
                f"The run {short} was charged for other releases than it would make now; continue with the "
                "version of the program that began it."
            )
        if new.records != known.records:
            self.change_records(new.run_id, new.records, new_records)

    def change_records(self, run_id: str, records: str, why: str) -> None:
        """Add that a run continues with other records, which needs a reason."""
        if not why:
            raise DataError(
                f"The records differ from those the run {run_id[:16]} began with; restore the file, or give "
                "the reason with --new-data, which is recorded and opens no new budget."
            )
        self.add({"act": "records", "run_id": run_id, "records": records}, why)

    def close(self, closure: RunClosure) -> None:
        """Add the end of a run."""
        known = self.balance.run(closure.run_id)
        if known.status == "closed":
            raise ConfigError(
                f"The run {closure.run_id[:16]} is closed already; there is nothing left to do."
            )
        act: Row = {"act": "close", "run_id": closure.run_id}
        if closure.releases is not None:
            agreed = () if not closure.releases else closure.guarantees or known.guarantees
            # the local cost of what left holds against everybody, so of the agreed ones only exact ones stay
            against_members = tuple(each for each in agreed if each.label == "exact")
            left = replace(known, releases=closure.releases, guarantees=against_members)
            act["releases"] = [release.to_dict() for release in left.releases]
            act["guarantees"] = [guarantee.to_dict() for guarantee in left.guarantees]
        self.add(act, closure.why)


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


def one_line(text: str, what: str) -> str:
    """Return a text that a row can hold."""
    if not text or len(text) > 200 or not text.isprintable():
        raise InvalidInput(f"{what} must be one line of at most 200 printable characters, got {text[:40]!r}.")
    return text
