"""Charge a run on this machine to the lifetime ledger, before its first noise is drawn.

A peer's run spends a population's budget; so does every plan that runs on this machine with protective noise.
Both are rows of one lifetime ledger. `charge` serves the runners; peers and Flower's clients are charged when
their runs start, by `sottovoce.peers.member_directory`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write
from sottovoce.accounting.question import AccountablePlan
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.ledger.cost import lifetime_guarantees
from sottovoce.ledger.lifetime import LifetimeLedger

CHARGE_FILE = "charge.json"
CURRENT = "current.json"  # in the folder of a checkpoint: its step and files (`sottovoce.runners.checkpoint`)


class ChargedRun:
    """A run that was charged, and how far its checkpoints have come; `charge` makes one.

    ``summary`` has the population and the lifetime budgets after the charge.
    """

    def __init__(self, ledger: LifetimeLedger, name: str, summary: dict[str, Any]) -> None:
        self.summary = summary
        self._progress = _progress_file(ledger, name) if name else None

    def reached(self, step: int) -> None:
        """Record, outside the checkpoint folder, that ``step`` is saved: an older checkpoint is another run.

        It is recorded before anything of the step is shown. Until then the checkpoint before may go on, too.
        """
        if self._progress is not None:
            self._progress.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(self._progress, f"{step}\n", mode=0o600)


def charge(
    ledger: LifetimeLedger | None,
    plan: AccountablePlan,
    what: str,
    *,
    population: str | None = None,
    checkpoint: str | Path | None = None,
) -> ChargedRun | None:
    """Charge a run with protective noise to a lifetime ledger; None if this machine has none.

    ``what`` is the run in words ("fit of dp-sgd"), which the officer reads. The charge is noted in the folder
    ``checkpoint``, from which an interrupted training continues without another charge.

    Guarantees
    ----------
    What is charged is what `account` says of the plan, for each view of the population's lifetime budgets and
    about everybody. Returns only when the charge is durable in both copies of the ledger; beyond a lifetime
    budget `BudgetExceeded` is raised and nothing may run. A training continues without a charge only if the
    ledger holds its charge and its checkpoint is not older than the last one recorded: a folder restored from
    a backup is charged as a new training.
    """
    if ledger is None:
        if population is not None:
            raise ConfigError(
                f"There is no member directory on this machine to charge {population!r} in; `sottovoce peer "
                "init` makes one, or leave the population out."
            )
        return None
    guarantees = lifetime_guarantees(plan, ledger.views(population))
    folder = None if checkpoint is None else Path(checkpoint)
    name = _training_name(folder, ledger) if folder is not None else ""
    with contextlib.ExitStack() as undo:
        if folder is not None:  # before the charge, which an unwritable folder must not cost
            new = not folder.exists()
            note = atomic_write(folder / CHARGE_FILE, json.dumps({"training": name}) + "\n", mode=0o600)
            if new:
                undo.callback(folder.rmdir)
                undo.callback(note.unlink)
        summary = ledger.charge(population, _busiest(plan), what, guarantees, training=name)
        undo.pop_all()
    return ChargedRun(ledger, name, summary)


def _busiest(plan: AccountablePlan) -> list[Release]:
    """Return the releases of the agent that makes most of them."""
    lists = [list(plan.releases(agent)) for agent in range(plan.n)]
    return max(lists, key=lambda releases: sum(each.draws for each in releases if each.sensitivity))


def _progress_file(ledger: LifetimeLedger, name: str) -> Path:
    """Return the file, beside the second copy, that holds the last recorded step of a training."""
    return ledger.copy.parent / "heads" / f"training-{name}"


def _training_name(folder: Path, ledger: LifetimeLedger) -> str:
    """Return the name a training was charged under, or a new one if that charge is used up."""
    try:
        name = str(json.loads((folder / CHARGE_FILE).read_text())["training"])
    except (OSError, ValueError, KeyError, TypeError):
        return secrets.token_hex(16)
    try:
        recorded = int(_progress_file(ledger, name).read_text())
    except FileNotFoundError:
        recorded = 0
    except (OSError, ValueError):
        raise LedgerError(
            f"The recorded progress of the training in {folder} cannot be read; name another checkpoint "
            "folder, and it is charged as a new training."
        ) from None
    return name if saved_step(folder) >= recorded else secrets.token_hex(16)


def saved_step(folder: Path | None) -> int:
    """Return the step of a folder's checkpoint, 0 without one; the runner checks whether it is whole."""
    if folder is None:
        return 0
    try:
        return int(json.loads((folder / CURRENT).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
