"""From a draft to a signed agreement: members are added, costs are forecast, signatures are checked."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.errors import BudgetExceeded, ConfigError, IdentityError
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement, member_entry, write_agreement
from sottovoce.peers.identity import read_certificate, verify
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.membership_changes import SettledSpending, other_model, settle


def add_members(draft: Path, members: Sequence[str], out: Path) -> Agreement:
    """Write the agreement of a draft and its members, each given as CERTIFICATE@HOST:PORT."""
    entries = []
    for text in members:
        certificate, at, address = text.rpartition("@")
        if not at or not certificate:
            raise ConfigError(f"A member is CERTIFICATE@HOST:PORT, got {text!r}.")
        entries.append(member_entry(read_certificate(certificate), address))
    try:
        content = tomllib.loads(draft.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The draft {draft} cannot be read: {error}.") from None
    for table in ("members", "signatures"):
        if table in content:
            raise ConfigError(f"The draft {draft} must not hold [{table}]; members are given with --member.")
    return write_agreement(out, content, entries)


def signed_by(agreement: Agreement) -> list[str]:
    """Return the members whose valid signature the agreement holds, in alphabetical order."""
    signed = []
    for member in agreement.members:
        try:
            signature = bytes.fromhex(agreement.signatures.get(member.name, ""))
            content = agreement.signed_content(member.name)
        except ValueError:
            continue
        if signature and verify(member.certificate.encode(), signature, content):
            signed.append(member.name)
    return sorted(signed)


def require_valid_signatures(agreement: Agreement, where: str) -> None:
    """Raise if a copy holds an invalid signature, which would replace a valid one in a merge."""
    invalid = sorted(set(agreement.signatures) - set(signed_by(agreement)))
    if invalid:
        raise IdentityError(
            f"The signature of {invalid[0]} in {where} is not for this agreement, so nothing was merged; ask "
            f"{invalid[0]} for a copy."
        )


@dataclass(frozen=True)
class Forecast:
    """The cost of an agreement for one member, together with everything that it has spent before.

    ``lifetime`` has one row per lifetime budget; ``earlier`` compares all membership versions of the run with
    the agreed budget, where there was one before.
    """

    lifetime: tuple[dict[str, Any], ...] = ()
    earlier: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()

    def require(self) -> None:
        """Raise if the agreement does not fit a lifetime budget."""
        for row in self.lifetime:
            if not row["total"] <= row["epsilon"]:
                raise BudgetExceeded(
                    f"Spent so far {row['spent']:.4g}, this adds {row['adds']:.4g}, total {row['total']:.4g} "
                    f"of a lifetime budget of {row['epsilon']:g} ({row['adjacency']}, {row['view']}), so it "
                    "is not signed; agree on more noise or fewer steps, or raise the budget with "
                    "`peer budget --raise`."
                )


def forecast(
    member_directory: MemberDirectory | None,
    agreed_run: AgreedRun,
    *,
    population: str | None = None,
    previous: Sequence[Agreement] = (),
) -> Forecast:
    """Return what the agreement costs the owner of a member directory; empty without a directory."""
    if member_directory is None:
        return Forecast()
    agreement = agreed_run.agreement
    settled = _settled(member_directory, agreement, previous)
    member_directory.pinned_certificates.require(agreement, member_directory.identity.fingerprint)
    node = agreement.index(member_directory.name)
    charge = member_directory.charge_of(agreed_run, node, population=population, continues=settled.runs)
    lifetime = member_directory.lifetime_ledger.forecast(charge, closing=settled.closings)
    earlier = _with_earlier(agreed_run, node, settled) if settled.before.parts else None
    return Forecast(tuple(lifetime), earlier, tuple(settled.remarks))


def _settled(
    member_directory: MemberDirectory, agreement: Agreement, previous: Sequence[Agreement]
) -> SettledSpending:
    """Return the cost of earlier membership versions, if this is a version that has not started yet."""
    if not agreement.continues:
        return SettledSpending()
    known = member_directory.lifetime_ledger.runs
    if agreement.run.hex() in known or (agreement.continues not in known and not previous):
        return SettledSpending()
    if not previous:
        remark = (
            f"the run {agreement.continues[:16]} that this one continues is counted in full, as planned; "
            "--previous with its agreement counts what it has released"
        )
        return SettledSpending(remarks=(remark,))
    settled = settle(previous, agreement, member_directory.name, member_directory=member_directory)
    return replace(settled, remarks=(*settled.remarks, *other_model(agreement, settled.place)))


def _with_earlier(agreed_run: AgreedRun, node: int, settled: SettledSpending) -> dict[str, Any]:
    """Return the cost of all membership versions together; raise if it exceeds the agreed budget."""
    budget = agreed_run.agreement.budget
    settled.before.require(agreed_run, node)
    guarantee = agreed_run.charged_guarantee(node)
    return {
        "spent": settled.before.spent(budget.delta),
        "adds": guarantee.epsilon(budget.delta),
        "total": settled.before.total(guarantee, budget.delta),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "parts": [{"run": part["run"], "ledger": part["ledger"]} for part in settled.before.parts],
    }
