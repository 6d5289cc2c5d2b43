"""The cost of an agreement for one member, with everything it has spent before; read before signing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.ledger.balance import require_lifetime_budget
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.membership_changes import EarlierVersions, earlier_versions


@dataclass(frozen=True)
class Forecast:
    """The cost of an agreement for one member, together with everything that it has spent before.

    ``lifetime`` has one row per lifetime budget; ``earlier`` compares all membership versions of the run with
    the agreed budget, where there was one before.
    """

    lifetime: tuple[dict[str, Any], ...] = ()
    earlier: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()

    def require(self, consequence: str = "it is not signed") -> None:
        """Raise if the agreement does not fit a lifetime budget."""
        require_lifetime_budget(self.lifetime, consequence)


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
    earlier = _earlier_versions(member_directory, agreement, previous)
    member_directory.pinned_certificates.require(agreement, member_directory.identity.fingerprint)
    node = agreement.index(member_directory.name)
    charge = member_directory.charge_of(agreed_run, node, population=population, continues=earlier.runs)
    lifetime = member_directory.lifetime_ledger.forecast(charge, closing=earlier.closings)
    together = None
    if earlier.parts:
        budget, guarantee = agreement.budget, agreed_run.charged_guarantee(node)
        earlier.require(agreed_run, node)
        together = {
            "spent": earlier.spent(budget.delta),
            "adds": guarantee.epsilon(budget.delta),
            "total": earlier.total([guarantee], budget.delta),
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "parts": [{"run_id": part["run_id"], "ledger": part["ledger"]} for part in earlier.parts],
        }
    return Forecast(tuple(lifetime), together, tuple(earlier.remarks))


def _earlier_versions(
    member_directory: MemberDirectory, agreement: Agreement, previous: Sequence[Agreement]
) -> EarlierVersions:
    """Return the cost of earlier membership versions, if this is a version that has not started yet."""
    known = member_directory.lifetime_ledger.runs
    if agreement.run_id.hex() in known:
        return EarlierVersions()
    if agreement.continues in known and not previous:
        remark = (
            f"the run {agreement.continues[:16]} that this one continues is counted in full, as planned; "
            "--previous with its agreement counts what it has released"
        )
        return EarlierVersions(remarks=(remark,))
    if not previous:
        return EarlierVersions()
    return earlier_versions(previous, agreement, member_directory.name, member_directory=member_directory)
