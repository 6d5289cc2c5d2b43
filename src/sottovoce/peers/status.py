"""What a state folder says about a running or stopped peer, read without disturbing it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.accounting.budget import Budget
from sottovoce.accounting.release import Spending
from sottovoce.errors import LedgerError
from sottovoce.ledger.run_ledger import LOCK, read_ledger
from sottovoce.ledger.store import is_locked

LIVE = "live.json"  # what a running peer last said of itself


def read_status(folder: str | Path) -> dict[str, Any]:
    """Return rounds, neighbors seen, spend and what is left; the whole chain is checked on the way.

    Examples
    --------
    >>> import tempfile
    >>> from sottovoce.ledger.run_ledger import RunLedger
    >>> about = {"members": ["alice", "bob"], "rounds": 3, "epsilon": 1.0, "delta": 1e-5, "adjacency": "user"}
    >>> folder = tempfile.mkdtemp()
    >>> RunLedger(folder, run=bytes(32), node=1, about=about).close()
    >>> status = read_status(folder)
    >>> status["member"], status["round"], status["epsilon_spent"], status["running"]
    ('bob', 0, 0.0, False)
    """
    stored = read_ledger(folder)
    about, saved = stored["about"], stored["saved"]
    try:
        names = about["members"]
        budget = Budget(about["epsilon"], about["delta"], adjacency=about["adjacency"])
        rounds, member = int(about["rounds"]), names[stored["node"]]
    except (KeyError, IndexError, TypeError) as error:
        raise LedgerError(f"The ledger in {folder} lacks {error}; it was not made by `peer run`.") from None
    # with masks the agreement charges what so many others together see, as the run itself does
    amplification, tolerate = float(about.get("noise_amplification", 1.0)), int(about.get("tolerate", 0))
    spending = Spending(budget)
    for release in saved.releases:
        spending.add(replace(release, noise_std=release.noise_std * amplification))
    spent = spending.epsilon() if spending.counts else 0.0
    newest: dict[int, int] = {}
    for r, sender in saved.heard:
        newest[sender] = max(newest.get(sender, -1), r)
    return {
        "run": stored["run"],
        "title": about.get("title", ""),
        "member": member,
        "population": about.get("charge", {}).get("population"),
        "running": is_locked(Path(folder) / LOCK),
        "finished": saved.state is not None and saved.at >= rounds,
        "round": saved.at,
        "rounds": rounds,
        "rows_sent": len(saved.sent),
        "heard": {names[s]: newest.get(s, -1) for s in about.get("contacts", sorted(newest))},
        "releases": sum(release.draws for release in saved.releases),
        "adjacency": budget.adjacency,
        "label": "exact" if tolerate else "ldp",
        "tolerate": tolerate,
        "delta": budget.delta,
        "epsilon_spent": spent,
        "epsilon_left": max(0.0, budget.epsilon - spent),
        "epsilon_budget": budget.epsilon,
        "incidents": [
            part for note in saved.notes for part in note.split("; ") if not part.startswith("proof ")
        ],
        "ledger_rows": stored["rows"],
        "ledger_head": stored["head"],
        "live": _live(Path(folder)),
    }


def _live(folder: Path) -> dict[str, Any] | None:
    """Return what the peer last said of its connections, with its age; None if it never ran here."""
    try:
        report = json.loads((folder / LIVE).read_text())
        age = time.time() - float(report["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    names = ("neighbors", "refused", "refused_frames", "listener", "waiting", "pace_missed")
    return {"age": round(max(0.0, age), 1), **{name: report[name] for name in names if name in report}}


def read_proof(folder: str | Path) -> dict[str, Any]:
    """Return the releases and the digests of all rows sent: what an auditor compares with the neighbors'."""
    stored = read_ledger(folder)
    saved = stored["saved"]
    return {
        "run": stored["run"],
        "node": stored["node"],
        "rows": stored["rows"],
        "head": stored["head"],
        "releases": [release.to_dict() for release in saved.releases],
        "sent": {str(r): digest.hex() for r, digest in sorted(saved.sent.items())},
        "heard": [
            {"round": r, "sender": s, "digest": proof[:32].hex(), "signature": proof[32:].hex()}
            for (r, s), proof in sorted(saved.heard.items())
        ],
    }
