"""Charge a training on this machine to the lifetime ledger, before its first noise is drawn.

A peer's run spends a population's budget; so do `sv.fit` and `sottovoce train` on the same records. Both are
rows of one lifetime ledger.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sottovoce._io import atomic_write
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.ledger.lifetime import LifetimeLedger, find_lifetime_ledger, view_name
from sottovoce.noise.run_randomness import RandomSource, RunRandomness

CHARGE_FILE, _CURRENT = "charge.json", "current.json"


class ReleasingPlan(Protocol):
    """A plan, as far as it is charged."""

    name: ClassVar[str]

    @property
    def n(self) -> int:
        """Number of agents."""

    def releases(self, agent: int) -> Sequence[Release]:
        """Return everything that ``agent`` will release."""


class ChargedTraining:
    """A training that was charged, and how far its checkpoints have come; `charge` makes one.

    ``summary`` has the population and the lifetime budgets after the charge.
    """

    def __init__(self, ledger: LifetimeLedger, name: str, summary: dict[str, Any], saved: int) -> None:
        self.summary = summary
        self._progress = _progress_file(ledger, name) if name else None
        self._saved = saved

    def saving(self, step: int) -> None:
        """Record, outside the checkpoint folder, that the checkpoint before ``step`` is on the disk."""
        self._write(self._saved)
        self._saved = step

    def done(self, step: int) -> None:
        """Record that the result was returned: an older checkpoint is from now on another training."""
        self._write(step)

    def _write(self, step: int) -> None:
        if self._progress is not None and step:
            self._progress.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(self._progress, f"{step}\n", mode=0o600)


def charge_here(
    plan: ReleasingPlan,
    rng: RandomSource,
    statements: Iterable[Guarantee],
    *,
    use: str,
    population: str | None = None,
    checkpoint: str | Path | None = None,
) -> ChargedTraining | None:
    """Charge a run to the lifetime ledger of this machine; None without one, or if the noise is simulated.

    ``use`` is the word for the run ("fit", "training"); the other options are those of `charge`.
    """
    if not RunRandomness.from_rng(rng).protective:
        return None
    return charge(
        find_lifetime_ledger(),
        plan,
        f"{use} of {plan.name}",
        statements=statements,
        population=population,
        checkpoint=checkpoint,
    )


def charge(
    ledger: LifetimeLedger | None,
    plan: ReleasingPlan,
    what: str,
    *,
    statements: Iterable[Guarantee] = (),
    population: str | None = None,
    checkpoint: str | Path | None = None,
) -> ChargedTraining | None:
    """Charge a training with protective noise to a lifetime ledger; None if this machine has none.

    Parameters
    ----------
    what : one line for the officer.
    statements : guarantees of the plan; exact ones count against their own view.
    population : whose records they are; None for the first.
    checkpoint : the folder from which an interrupted training continues. The charge is noted in it, and
        continuing is not charged again.

    Guarantees
    ----------
    Returns only when the charge is durable in both copies of the ledger; beyond a lifetime budget
    `BudgetExceeded` is raised and nothing may run. A training continues without a charge only if the ledger
    holds its charge and its checkpoint is not older than the last one recorded: a folder restored from a
    backup is charged as a new training.

    Examples
    --------
    >>> import tempfile
    >>> import sottovoce as sv
    >>> from sottovoce.ledger.lifetime import LifetimeBudget
    >>> folder = Path(tempfile.mkdtemp())
    >>> ledger = LifetimeLedger(folder / "lifetime.jsonl", folder / "copy.jsonl", folder / "lock")
    >>> ledger.create("north")
    >>> ledger.open_population("patients", [LifetimeBudget(3.0, 1e-5, "user", "local")], "vote 12")
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(2), noise_std=4.0, radius=1.0)
    >>> training = charge(ledger, plan, "a mean")
    >>> training.summary["population"], round(training.summary["budgets"][0]["total"], 3)
    ('patients', 1.993)
    """
    if ledger is None:
        if population is not None:
            raise ConfigError(
                f"There is no member directory on this machine to charge {population!r} in; `sottovoce peer "
                "init` makes one, or leave the population out."
            )
        return None
    views = {view_name(each): each for each in statements if each.label == "exact"}
    releases = dominating([plan.releases(agent) for agent in range(plan.n)])
    folder = None if checkpoint is None else Path(checkpoint)
    name = _training_name(folder, ledger) if folder is not None else ""
    summary = ledger.charge(population, releases, what, views, training=name)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / CHARGE_FILE, json.dumps({"training": name}) + "\n", mode=0o600)
    return ChargedTraining(ledger, name, summary, _checkpoint_step(folder))


def dominating(lists: Sequence[Sequence[Release]]) -> tuple[Release, ...]:
    """Return releases that cost at least as much as those of any one of several agents.

    The agents hold disjoint records, so a person loses what one agent releases. If all lists have the same
    shape, the worst release of each place is taken; else every kind of release as often as the agent with
    most of them makes it.
    """
    distinct = list(dict.fromkeys(tuple(replace(each, sender=0) for each in releases) for releases in lists))
    if len(distinct) == 1:
        return distinct[0]
    if len({tuple(_shape(each) for each in releases) for releases in distinct}) == 1:
        return tuple(_worst(place) for place in zip(*distinct, strict=True))
    most: Counter[Release] = Counter()
    for releases in distinct:
        counts: Counter[Release] = Counter()
        for each in releases:
            kind = replace(each, step=0, stream=0) if each.joint else replace(each, step=0, steps=1, stream=0)
            counts[kind] += 1 if each.joint else each.steps
        most |= counts
    # a joint release is one mechanism over all its steps: it is repeated, never lengthened
    return tuple(
        release
        for kind, times in most.items()
        for release in ([kind] * times if kind.joint else [replace(kind, steps=times)])
    )


def _shape(each: Release) -> Release:
    """Return a release without its amounts; noise without data costs nothing and cannot stand for another."""
    noisy, moves = float(each.noise_std > 0), float(each.sensitivity > 0)
    return replace(each, noise_std=noisy, sensitivity=moves, sample_rate=1.0, user_rate=1.0)


def _worst(place: Sequence[Release]) -> Release:
    least_noise = min(place, key=lambda each: each.noise_to_sensitivity)
    return replace(
        least_noise,
        sample_rate=max(each.sample_rate for each in place),
        user_rate=max(each.user_rate for each in place),
    )


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
    return name if _checkpoint_step(folder) >= recorded else secrets.token_hex(16)


def _checkpoint_step(folder: Path | None) -> int:
    """Return the step of a folder's checkpoint, 0 without one; the runner checks whether it is whole."""
    if folder is None:
        return 0
    try:
        return int(json.loads((folder / _CURRENT).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
