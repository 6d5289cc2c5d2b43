"""Trainings on a machine with a member directory: charged to its lifetime ledger before the first noise is
drawn.

A peer's run is one thing that spends a population's budget; `sv.fit` and `sottovoce train` on the same
records are another. Both are rows of one lifetime ledger.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.peers.lifetime_ledger import view_name
from sottovoce.peers.member_directory import MemberDirectory, find_member_directory

__all__ = ["Training", "charge_training", "dominating"]

MARK, _CURRENT = "charge.json", "current.json"


class Training:
    """A training that the lifetime ledger knows: what was charged, and how far its checkpoints have come.

    `charge_training` makes one.
    """

    def __init__(self, member_directory: MemberDirectory, name: str, said: dict[str, Any]) -> None:
        self.said = said
        self._witness = member_directory.copy / "heads" / f"training-{name}" if name else None
        self._saved = 0

    def saving(self, step: int) -> None:
        """Note, outside the checkpoint's folder, that the checkpoint before ``step`` is on the disk."""
        self._write(self._saved)
        self._saved = step

    def done(self, step: int) -> None:
        """Note that the result is handed over: from here on an older checkpoint is another training."""
        self._write(step)

    def _write(self, step: int) -> None:
        if self._witness is not None and step:
            self._witness.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(self._witness, f"{step}\n", mode=0o600)


def charge_training(
    plan: Any,
    what: str,
    *,
    statements: Iterable[Guarantee] = (),
    population: str | None = None,
    checkpoint: str | Path | None = None,
    member_directory: MemberDirectory | None = None,
) -> Training | None:
    """Charge a training with protective noise to this machine's member directory; None where there is no
    member directory.

    Parameters
    ----------
    plan : what will run.
    what : one line for the officer.
    statements : guarantees of the plan; those that are exact count against their own view.
    population : whose records they are, by the lifetime ledger's name; None for the first.
    checkpoint : the folder from which an interrupted training goes on: what was charged is noted in it, and
        going on is not charged again.
    member directory : by default the one that `find_member_directory` finds.

    Guarantees
    ----------
    Returns only when the charge is durable in both copies of the lifetime ledger; beyond a lifetime budget
    `BudgetExceeded` is raised and nothing may run. A training is free only if the lifetime ledger holds its
    charge and its checkpoint is not older than what was last seen of it: a folder set back is charged as a
    new training.

    Examples
    --------
    >>> import tempfile
    >>> import sottovoce as sv
    >>> from sottovoce.peers.lifetime_ledger import LifetimeBudget
    >>> folder = tempfile.mkdtemp()
    >>> directory = MemberDirectory.create(
    ...     folder + "/north", "north", population="patients", copy=folder + "/copy",
    ...     budgets=[LifetimeBudget(3.0, 1e-5, "user", "local")])
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(2), noise_std=4.0, radius=1.0)
    >>> training = charge_training(plan, "a mean", member_directory=directory)
    >>> training.said["population"], round(training.said["budgets"][0]["total"], 3)
    ('patients', 1.993)
    """
    member_directory = find_member_directory() if member_directory is None else member_directory
    if member_directory is None:
        if population is not None:
            raise ConfigError(
                f"There is no member directory on this machine to charge {population!r} in; `sottovoce peer "
                "init` makes "
                "one, or leave the population out."
            )
        return None
    views = {view_name(each): each for each in statements if each.label == "exact"}
    releases = dominating([plan.releases(agent) for agent in range(plan.n)])
    folder = None if checkpoint is None else Path(checkpoint)
    name = _named(folder, member_directory) if folder is not None else ""
    said = member_directory.lifetime_ledger.charge(population, releases, what, views, training=name)
    if folder is not None:
        _mark(folder, name)
    training = Training(member_directory, name, said)
    training._saved = _step(folder)
    return training


def dominating(lists: Sequence[Sequence[Release]]) -> tuple[Release, ...]:
    """Return releases that cost at least as much as those of any one of several agents.

    The agents hold disjoint records, so a person loses what its own agent releases. Where all lists have the
    same shape the worst of each place is taken, which is the list itself if they are equal; else every kind
    of release as often as the agent with most of them makes it.

    Examples
    --------
    >>> one = Release(0, 0, 1.0, noise_std=2.0, sample_rate=0.1, adjacency="add-remove", steps=9)
    >>> other = Release(1, 0, 1.0, noise_std=1.0, sample_rate=0.2, adjacency="add-remove", steps=9)
    >>> [(worst,)] = [dominating([[one], [other]])]
    >>> worst.ratio, worst.sample_rate, worst.draws
    (1.0, 0.2, 9)
    """
    kinds = list(dict.fromkeys(tuple(replace(each, sender=0) for each in listed) for listed in lists))
    if len(kinds) == 1:
        return kinds[0]
    shapes = {tuple(_shape(each) for each in listed) for listed in kinds}
    if len(shapes) == 1:
        return tuple(_worst(place) for place in zip(*kinds, strict=True))
    most: dict[Release, int] = {}
    for listed in kinds:
        counted: dict[Release, int] = {}
        for each in listed:
            kind = replace(each, step=0, stream=0) if each.joint else replace(each, step=0, steps=1, stream=0)
            counted[kind] = counted.get(kind, 0) + (1 if each.joint else each.steps)
        for kind, times in counted.items():
            most[kind] = max(most.get(kind, 0), times)
    # a joint release is one mechanism over all its steps: it is repeated, never made longer
    return tuple(
        made
        for kind, times in most.items()
        for made in ([kind] * times if kind.joint else [replace(kind, steps=times)])
    )


def _shape(each: Release) -> tuple[Any, ...]:
    # cover noise costs nothing, so it can stand for no other
    return (
        each.adjacency,
        each.mechanism,
        each.step,
        each.steps,
        each.count,
        each.joint,
        each.stream,
        each.sensitivity == 0,
        each.noise_std == 0,
    )


def _worst(place: Sequence[Release]) -> Release:
    loudest = min(place, key=lambda each: each.ratio)
    return replace(
        loudest,
        sample_rate=max(each.sample_rate for each in place),
        user_rate=max(each.user_rate for each in place),
    )


def _named(folder: Path, member_directory: MemberDirectory) -> str:
    """Return the name a training was charged under, or a new one where that charge is used up."""
    try:
        name = str(json.loads((folder / MARK).read_text())["training"])
    except (OSError, ValueError, KeyError, TypeError):
        return secrets.token_hex(16)
    try:
        seen = int((member_directory.copy / "heads" / f"training-{name}").read_text())
    except FileNotFoundError:
        seen = 0
    except (OSError, ValueError):
        raise LedgerError(
            f"What was last seen of the training in {folder} cannot be read; name another checkpoint folder, "
            "and it is charged as a new training."
        ) from None
    return name if _step(folder) >= seen else secrets.token_hex(16)


def _step(folder: Path | None) -> int:
    """Return the step of a folder's checkpoint, 0 without one; whether it is whole the runner will ask."""
    if folder is None:
        return 0
    try:
        return int(json.loads((folder / _CURRENT).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _mark(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / MARK, json.dumps({"training": name}) + "\n", mode=0o600)
