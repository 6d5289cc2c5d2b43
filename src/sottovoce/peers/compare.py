"""Did everybody get the same rows? What members' ledgers say about each other, put side by side.

A peer sends one row per round, the same bytes to every neighbor. A member that lies to one of them leaves no
trace in any single ledger; two ledgers together show it, by digests alone: no row is shown to anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.errors import ConfigError


def compare_proofs(proofs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every contradiction between what members sent and heard, from `peer ledger --json` of each.

    Each has ``round``, ``sender`` (a member's number), ``kind`` and ``members``, whose ledgers do not fit:
    ``"split"`` where two heard different rows of one sender in one round, ``"sent"`` where a member heard
    another row than the sender's own ledger lists. What only one of them knows is no contradiction.

    Guarantees
    ----------
    Honest members whose ledgers are whole never contradict each other, whatever was lost, repeated or delayed
    between them. A contradiction shows that the sender lied to one of them or one of these files was changed;
    it does not show which.

    Examples
    --------
    >>> north = {"run": "ab", "node": 0, "sent": {}, "heard": [{"round": 0, "sender": 1, "digest": "aa"}]}
    >>> east = {"run": "ab", "node": 2, "sent": {}, "heard": [{"round": 0, "sender": 1, "digest": "bb"}]}
    >>> compare_proofs([north, east])
    [{'round': 0, 'sender': 1, 'kind': 'split', 'members': [0, 2]}]
    """
    if len(proofs) < 2:
        raise ConfigError(f"Comparing needs the ledgers of two members or more, got {len(proofs)}.")
    heard: dict[tuple[int, int], dict[int, str]] = {}
    sent: dict[tuple[int, int], str] = {}
    nodes: list[int] = []
    try:
        runs = {str(proof["run"]) for proof in proofs}
        for proof in proofs:
            node = int(proof["node"])
            nodes.append(node)
            sent.update({(int(r), node): str(digest) for r, digest in proof["sent"].items()})
            for row in proof["heard"]:
                heard.setdefault((int(row["round"]), int(row["sender"])), {})[node] = str(row["digest"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError("A file is not what `sottovoce peer ledger --json` prints; make it anew.") from None
    if len(runs) > 1:
        raise ConfigError(f"The ledgers are of {len(runs)} different runs; compare those of one run.")
    if len(set(nodes)) < len(nodes):
        raise ConfigError("Two of the ledgers are of one member; compare those of different members.")
    conflicts = []
    for (r, sender), versions in sorted(heard.items()):
        if len(set(versions.values())) > 1:
            conflicts.append({"round": r, "sender": sender, "kind": "split", "members": sorted(versions)})
        own = sent.get((r, sender))
        others = sorted(node for node, digest in versions.items() if own is not None and digest != own)
        if others:
            conflicts.append({"round": r, "sender": sender, "kind": "sent", "members": others})
    return conflicts
