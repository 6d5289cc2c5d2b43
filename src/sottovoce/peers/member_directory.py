"""A member directory: one folder per organization, with everything that outlives a run.

::

    member.json     format, name, where the second copy lies
    identity/       the key and the certificate
    addresses/      pinned certificates of the others
    lifetime.ledger  every release ever started, per population
    key             for the digest of records, never leaves
    runs/HASH/      ledger, model and statement of one run

Outside it, in another place of the machine, lie a second copy of the lifetime ledger and the newest head of
every ledger (the ``copy`` folder): a member directory, run or lifetime ledger restored from a backup is older
than these, and nothing is sent.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, IdentityError, LedgerError
from sottovoce.ledger.balance import Charge, LifetimeBudget, RunClosure, charge_to_row
from sottovoce.ledger.lifetime import MEMBER_FILE, MemberFile, usual_member_folder
from sottovoce.ledger.run_ledger import (
    LEDGER,
    RunLedger,
    at_rest,
    compact_ledger,
    erase_state_key,
    read_charge,
    read_ledger,
    verify_ledger,
)
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.identity import Identity, PinnedCertificates, make_identity, read_identity
from sottovoce.peers.member_data import Records

KEY = "key"
ASSUMPTIONS = (
    "the member directory and its second copy were never restored from a backup together (a snapshot of the "
    "whole machine restores both)",
    "the populations of this member directory have no person in common",
)


class MemberDirectory:
    """An organization's folder.

    `MemberDirectory.create` makes one, `MemberDirectory(folder)` opens it, `find_member_directory` looks for
    this machine's.

    Guarantees
    ----------
    A run is started once in its life, whatever folder is named: it is charged to the lifetime ledger before
    its ledger exists, and a run that is known goes on in its own folder or is refused. A ledger that is
    missing, or older than its head in the copy, is refused.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        member = MemberFile.read(self.folder)
        self.name, self.copy = member
        self.lifetime_ledger = member.ledger(self.folder)
        self.pinned_certificates = PinnedCertificates(
            self.folder / "addresses", self.lifetime_ledger, self.name
        )

    @classmethod
    def create(
        cls,
        folder: str | Path,
        name: str,
        *,
        population: str,
        budgets: Iterable[LifetimeBudget],
        copy: str | Path | None = None,
        why: str = "the member directory was made",
        days: float = 730.0,
    ) -> MemberDirectory:
        """Make a member directory with an identity, an empty lifetime ledger and its first population.

        ``copy`` is a folder outside the member directory, best on another disk; by default in this user's
        state folder. ``days`` is how long the certificate is valid.
        """
        folder, budgets = Path(folder).expanduser().absolute(), tuple(budgets)
        if (folder / MEMBER_FILE).exists():
            raise ConfigError(f"{folder} is a member directory already; keep it.")
        place = Path(copy).expanduser().absolute() if copy is not None else _default_copy(name)
        if place == folder or folder in place.parents:
            raise ConfigError(f"The second copy must lie outside the member directory, got {place}.")
        try:
            for each in (folder, place):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.chmod(each, 0o700)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be made ({error.strerror}).") from None
        make_identity(folder / "identity", name, days=days)
        atomic_write(folder / KEY, secrets.token_bytes(32), mode=0o600)
        member = MemberFile(name, place)
        lifetime_ledger = member.ledger(folder)
        lifetime_ledger.create(name)
        lifetime_ledger.open_population(population, budgets, why)
        member.write(folder)  # last: from now on it is a member directory
        return cls(folder)

    @property
    def identity_folder(self) -> Path:
        """Where the key lies."""
        return self.folder / "identity"

    @property
    def identity(self) -> Identity:
        """The organization's key and certificate."""
        return read_identity(self.identity_folder)

    def head_file(self, run_id: bytes) -> Path:
        """Return the file, outside the member directory, that holds the newest head of a run's ledger."""
        return self.copy / "heads" / run_id.hex()

    def digest(self, records: Records) -> str:
        """Return the keyed digest of records: equal for equal records in equal order, useless to others."""
        path = self.folder / KEY
        try:
            mode, key = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
        except OSError as error:
            raise IdentityError(f"The key {path} cannot be read ({error.strerror}); restore it.") from None
        if mode & 0o077 or len(key) != 32:
            raise IdentityError(f"The key {path} must have 32 bytes that only its owner can read.")
        total = hmac.new(key, b"sottovoce records 1\n", hashlib.sha256)
        for part in records:
            total.update(f"{part.dtype.str} {part.shape}\n".encode())
            total.update(part.tobytes())
        return total.hexdigest()

    def charge_of(
        self,
        agreed_run: AgreedRun,
        node: int,
        *,
        population: str | None = None,
        continues: Iterable[str] = (),
    ) -> Charge:
        """Return what an agreed run would cost; after a membership change it ``continues`` earlier runs."""
        agreement, ledger = agreed_run.agreement, self.lifetime_ledger
        earlier = [run_id for run_id in (agreement.continues, *continues) if run_id]
        return Charge(
            population or "",
            agreement.title,
            tuple(agreed_run.plan.releases(node)),
            agreed_run.lifetime_guarantees(node, ledger.views(population)),
            node=node,
            run_id=agreement.run_id.hex(),
            continues=tuple(dict.fromkeys(earlier)),
        )

    def open_run(
        self,
        new: Charge,
        records: Records,
        *,
        node: int,
        session: bytes | None = None,
        about: Mapping[str, object] | None = None,
        state: str | Path | None = None,
        closing: Iterable[RunClosure] = (),
    ) -> RunLedger:
        """Charge a run, or find it, and return its ledger; only then may it send.

        ``session`` names the ledger where the run's hash alone does not (masked sums name their keys too).
        ``state`` is where a new run keeps its ledger, by default ``runs/HASH``; a known run stays.
        The runs in ``closing``, which a membership change continues, are closed in the same write.

        Guarantees
        ----------
        Whatever stops in between, the lifetime ledger holds the run before its ledger can hold a row, and
        holds that the ledger exists before that row can leave.
        """
        known_runs = self.lifetime_ledger.runs
        for folder in self._run_folders():
            if folder.name not in known_runs:
                raise LedgerError(
                    f"The lifetime ledger does not know the run in {folder}, so it is older than its runs; "
                    "`peer budget --restore` charges for it."
                )
        usual = self.folder / "runs" / new.run_id
        place = usual if state is None else Path(state).expanduser().absolute()
        inside = self.folder in place.parents
        named = str(place.relative_to(self.folder)) if inside else str(place)
        charge = replace(new, records=self.digest(records), state=named)
        known = self.lifetime_ledger.charge_run(charge, closing=closing)
        self._erase_keys_of_closed_runs()
        place, run_id = self.folder / known.state, bytes.fromhex(known.run_id)
        if known.status != "charged" and not (place / LEDGER).exists():
            raise LedgerError(
                f"The run {new.run_id[:16]} began on {known.since[:10]} and its ledger in {place} is "
                "missing; a run is never repeated: find the folder, or give the run up with `peer budget "
                "--close`."
            )
        ledger = RunLedger(
            place,
            session=session or run_id,
            node=node,
            about={**(about or {}), "charge": charge_to_row(known)},
            head_file=self.head_file(run_id),
            used=known.status != "charged",
        )
        try:
            self.lifetime_ledger.start(known.run_id)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self, run_id: str, why: str) -> Charge:
        """Give a run up for good; it costs what its ledger lists, or everything planned if that is lost."""
        known = self.lifetime_ledger.run(run_id)
        place = self.folder / known.state
        with at_rest(place):  # a running peer would release more than is counted here
            left: list[Release] | None = None
            head_file = self.head_file(bytes.fromhex(run_id))
            with suppress(LedgerError):
                # nothing may be sent before the lifetime ledger says that the ledger exists
                charged = known.status == "charged"
                left = [] if charged else read_ledger(place, head_file=head_file)["saved"].releases
            self.lifetime_ledger.close(run_id, left, why)
            self._erase_keys_of_closed_runs()
        return self.lifetime_ledger.run(run_id)

    def verify(self) -> list[dict[str, Any]]:
        """Return, for each ledger, its name, its rows and what is wrong with it (empty if it is whole).

        Both copies of the lifetime ledger are read, and the ledger of every run with both of its heads.
        Nothing is changed, and a running peer is not disturbed.
        """
        try:
            lifetime, runs = len(self.lifetime_ledger.rows()), self.lifetime_ledger.runs
        except LedgerError as error:
            return [{"ledger": "lifetime", "rows": None, "problem": str(error)}]
        findings: list[dict[str, Any]] = [{"ledger": "lifetime", "rows": lifetime, "problem": ""}]
        for run_id, charge in runs.items():
            place, rows, problem = self.folder / charge.state, None, ""
            # a run that was only charged has no ledger yet, and one that is closed needs none
            if charge.status not in ("started", "ended") and not (place / LEDGER).exists():
                continue
            try:
                rows = verify_ledger(place, self.head_file(bytes.fromhex(run_id)))
            except LedgerError as error:
                problem = str(error)
            findings.append({"ledger": str(place), "rows": rows, "problem": problem})
        return findings

    def compact(self, state: Path | None = None) -> list[str]:
        """Compact the ledgers of all ended runs, or that in one state folder; return the folders."""
        charges = {self.folder / charge.state: charge for charge in self.lifetime_ledger.runs.values()}
        places = [place for place, charge in charges.items() if charge.status == "ended"]
        if state is not None:
            wanted = Path(state).expanduser().absolute()
            if wanted not in places:
                known = f"is {charges[wanted].status}" if wanted in charges else "is not known"
                raise ConfigError(
                    f"The run in {state} {known} in the lifetime ledger; only an ended run is compacted."
                )
            places = [wanted]
        for place in places:
            compact_ledger(place, self.head_file(bytes.fromhex(charges[place].run_id)))
        return list(map(str, places))

    def restore(self, why: str) -> str:
        """Take the longer copy of the ledger; charge runs it does not know; see `LifetimeLedger.restore`."""
        charges = map(read_charge, self._run_folders())
        return self.lifetime_ledger.restore(why, [charge for charge in charges if charge is not None])

    def _erase_keys_of_closed_runs(self) -> None:
        """Erase the keys in the saved states of runs that will never continue."""
        for charge in self.lifetime_ledger.runs.values():
            if charge.status == "closed":
                erase_state_key(self.folder / charge.state)

    def _run_folders(self) -> list[Path]:
        return sorted(ledger.parent for ledger in self.folder.glob(f"runs/*/{LEDGER}"))


def find_member_directory(
    folder: str | Path | None = None, *, identity: str | Path | None = None
) -> MemberDirectory | None:
    """Return the member directory that is meant, or None if this machine has none.

    The folder named; else the one around an identity; else the variable ``SOTTOVOCE_HOME``; else
    ``~/.sottovoce``. Whoever uses the identity of a member directory is charged to its lifetime ledger, named
    or not.
    """
    around = Path(identity).expanduser().resolve().parent if identity is not None else None
    if around is not None and (around / MEMBER_FILE).exists():
        if folder is not None and Path(folder).expanduser().resolve() != around:
            raise ConfigError(
                f"The identity {identity} belongs to the member directory {around}, not to {folder}."
            )
        folder = around
    folder = usual_member_folder() if folder is None else folder
    return None if folder is None else MemberDirectory(folder)


def _default_copy(name: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sottovoce" / f"{name}-{secrets.token_hex(4)}"
