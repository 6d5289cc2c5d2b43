"""The sheet a member reads before it signs: who, where, which connections, what is computed, on what."""

from __future__ import annotations

from typing import Any

from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.pinned_certificates import proquint

__all__ = ["checks", "connections", "remembered", "signing_summary"]

UNPACED = (
    "neighbors may learn how many records a member has, by the time of its answers: [timing] pace hides it"
)


def connections(agreed_run: AgreedRun) -> list[tuple[int, int]]:
    """Return every pair of members whose peers connect in some round: the list for the firewalls.

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> connections(AgreedRun(read_agreement(example_agreement()[0])))
    [(0, 1)]
    """
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

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> page = signing_summary(AgreedRun(read_agreement(example_agreement()[0])))
    >>> page["connections"], page["algorithm"]["clip_norm"]
    ([['ada', 'bo']], 1.0)
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
    """Return, in one sentence, which rows of others a member can check.

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> checks(AgreedRun(read_agreement(example_agreement()[0])))
    'rows with a number beyond 31.52 are refused: clip and noise allow them with a chance below 2^-40'
    """
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
    """Return what a run rests on that was set back by a backup or goes on from a membership version: who
    counts.

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> len(remembered(AgreedRun(read_agreement(example_agreement()[0]))))
    2
    """
    every = agreed_run.agreement.witness
    some = "one other member is honest and was not set back with it"
    lines = [f"a folder set back by a backup is noticed if {some}; if all were, rows leave uncharged"]
    if every > 1:
        lines.append(
            f"of the newest {2 * every - 1} rows that member must be one who got them (with witness = 1 in "
            "[timing] all members are asked before every row)"
        )
    if agreed_run.tolerate and agreed_run.agreement.continues:
        # who left keeps the keys of its membership versions: with one more who stays, those membership
        # versions are seen by two
        who = (
            f"the {agreed_run.tolerate} members who may collude"
            if agreed_run.tolerate > 1
            else "the one curious member"
        )
        lines.append(
            f"{who}: counted over all membership versions of this run together, those who have left included"
        )
    return lines
