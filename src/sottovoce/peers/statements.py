"""What a member reads: the summary of an agreement before it signs, and statements after the run."""

from __future__ import annotations

from typing import Any

from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement_plan import contacts
from sottovoce.peers.identity import proquint

VERSION = 1
UNPACED = (
    "neighbors may infer from the timing of its answers how many records a member has; pace in"
    " [timing] hides it"
)


def signing_summary(agreed_run: AgreedRun) -> dict[str, Any]:
    """Return what is signed, in plain values: members with words and addresses, connections, data, algorithm.

    Its costs are in `AgreedRun.table`, the lifetime budget before and after in `LifetimeLedger.forecast`.
    """
    agreement, names = agreed_run.agreement, agreed_run.agreement.names
    guarantees = [agreed_run.charged_guarantee(node) for node in range(agreed_run.n)]
    assumed = dict.fromkeys(line for guarantee in guarantees for line in guarantee.assumptions)
    return {
        "run_id": agreement.run_id.hex(),
        "title": agreement.title,
        "members": [
            {"name": each.name, "address": each.address, "words": proquint(each.fingerprint)}
            for each in agreement.members
        ],
        "connections": [[names[u], names[v]] for u, v in connections(agreed_run)],
        "algorithm": agreement.algorithm.stated,
        "model": agreement.model.model_dump(exclude_unset=True),
        "data": agreement.data.model_dump(exclude_unset=True),
        "timing": agreement.timing.model_dump(exclude_none=True),
        "relay": agreement.relay,
        "checks": checks(agreed_run),
        "assumptions": [
            *assumed,
            *([] if agreement.delta_warning is None else [agreement.delta_warning]),
            *([] if agreement.timing.pace else [UNPACED]),
            *backup_assumptions(agreed_run),
        ],
    }


def connections(agreed_run: AgreedRun) -> list[tuple[int, int]]:
    """Return every pair of members whose peers connect in some round: the list for the firewalls."""
    plan, edges = agreed_run.plan, len(agreed_run.agreement.network.edges)
    pairs: set[tuple[int, int]] = set()
    for k in range(1 if plan.is_stationary else plan.steps):
        protocol = plan.schedule(k)
        pairs |= contacts(protocol, plan.n, protocol.rounds, edges)
        if len(pairs) >= edges:  # more there cannot be
            break
    return sorted(pairs)


def checks(agreed_run: AgreedRun) -> str:
    """Return, in one sentence, which rows of others a member can check."""
    if agreed_run.grid is not None:
        check = agreed_run.sum_check
        assert check is not None
        return (
            "masked rows cannot be checked, only their sum: the run stops if the L2 norm of the mean exceeds "
            f"{check.limit:.4g} (clip and noise of {check.members} honest members exceed {check.allowed:.4g} "
            "with a chance below 1e-9), and a sum eight times as large as all before is reported; a member "
            "that stays below can still spoil the model unnoticed, and no check shows whose fault it is"
        )
    if agreed_run.bound is None:
        return (
            "rows of others cannot be checked here: a member can spoil the model, and one that leaves out "
            "its noise counts as one more observer"
        )
    return (
        f"rows with a number beyond {agreed_run.bound:.4g} are refused: clip and noise allow them with a "
        "chance below 2^-40"
    )


def backup_assumptions(agreed_run: AgreedRun) -> list[str]:
    """Return what a run assumes about backups and about members of earlier membership versions."""
    every, tolerated = agreed_run.agreement.witness, agreed_run.tolerate
    lines = [
        "a state folder restored from a backup is noticed if one other member is honest and was not restored "
        "from a backup, too; otherwise messages may leave without being charged"
    ]
    if every > 1:
        lines.append(
            f"a restored backup may go unnoticed for up to {2 * every - 1} messages; `witness = 1` in "
            "[timing] closes this gap and is slower"
        )
    if tolerated and agreed_run.agreement.continues:
        # a member that left keeps its keys: with a member that stays, two see the earlier versions
        who = f"{tolerated} members collude" if tolerated > 1 else "one member is curious"
        lines.append(f"at most {who} over all membership versions together, those who have left included")
    return lines
