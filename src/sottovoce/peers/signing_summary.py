"""The summary a member reads before it signs: members, addresses, connections, algorithm, data."""

from __future__ import annotations

from typing import Any

from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.identity import proquint

UNPACED = (
    "neighbors may learn how many records a member has, by the time of its answers: [timing] pace hides it"
)


def connections(agreed_run: AgreedRun) -> list[tuple[int, int]]:
    """Return every pair of members whose peers connect in some round: the list for the firewalls."""
    pairs: set[tuple[int, int]] = set()
    every = len(agreed_run.agreement.network.edges)  # more there cannot be
    last = None
    for k in range(1 if agreed_run.plan.is_stationary else agreed_run.steps):
        protocol = agreed_run.plan.schedule(k)
        if protocol is last:
            continue
        last = protocol
        locals_ = [protocol.local(u) for u in range(agreed_run.n)]
        for t in range(protocol.rounds):
            for u, local in enumerate(locals_):
                pairs |= {(min(u, v), max(u, v)) for v in (*local.sends(t), *local.expects(t))}
            if len(pairs) >= every:
                return sorted(pairs)
    return sorted(pairs)


def signing_summary(agreed_run: AgreedRun) -> dict[str, Any]:
    """Return what is signed, in plain values: members with words and addresses, connections, data, algorithm.

    The prices are `AgreedRun.table`'s, the lifetime ledger's before and after `LifetimeLedger.forecast`'s.
    """
    agreement = agreed_run.agreement
    names = [member.name for member in agreement.members]
    seen = [] if agreement.timing.pace else [UNPACED]
    members = [
        {"name": each.name, "address": each.address, "words": proquint(each.fingerprint)}
        for each in agreement.members
    ]
    return {
        "run": agreement.run.hex(),
        "title": agreement.title,
        "members": members,
        "connections": [[names[u], names[v]] for u, v in connections(agreed_run)],
        "algorithm": agreement.algorithm.stated,
        "model": agreement.model.model_dump(exclude_unset=True),
        "data": agreement.data.model_dump(exclude_unset=True),
        "timing": agreement.timing.model_dump(exclude_none=True),
        "relay": agreement.relay,
        "checks": checks(agreed_run),
        "assumptions": [
            *dict.fromkeys(
                line
                for node in range(agreed_run.n)
                for line in agreed_run.charged_guarantee(node).assumptions
            ),
            *seen,
            *remembered(agreed_run),
        ],
    }


def checks(agreed_run: AgreedRun) -> str:
    """Return, in one sentence, which rows of others a member can check."""
    if agreed_run.grid is not None:
        return "masked rows cannot be checked, only their sum can, and it does not show whose fault it is"
    if agreed_run.bound is None:
        return "nothing public bounds the rows of others here; a member can spoil the model, not the privacy"
    return (
        f"rows with a number beyond {agreed_run.bound:.4g} are refused: clip and noise allow them with a "
        "chance "
        "below 2^-40"
    )


def remembered(agreed_run: AgreedRun) -> list[str]:
    """Return what a run assumes about backups and about members of earlier membership versions."""
    every = agreed_run.agreement.witness
    lines = [
        "a state folder restored from a backup is noticed if one other member is honest and was not restored "
        "with it; otherwise messages may leave without being charged"
    ]
    if every > 1:
        lines.append(
            f"a restored backup may go unnoticed for up to {2 * every - 1} messages; `witness = 1` in "
            "[timing] closes this gap and is slower"
        )
    if agreed_run.tolerate and agreed_run.agreement.continues:
        # a member that left keeps its keys: with a member that stays, two see the earlier versions
        who = (
            f"the {agreed_run.tolerate} members who may collude"
            if agreed_run.tolerate > 1
            else "the one curious member"
        )
        lines.append(
            f"{who}: counted over all membership versions of this run together, those who have left included"
        )
    return lines
