"""Membership epochs: a run goes on without a member, with one that has moved, or with a new key.

What a run does is fixed by its agreement, so what changes is a new agreement: the next epoch, which names the
run that it continues and the model it goes on from, and is signed by everybody who remains. It has its own
frames, mask keys and noise labels; the step that was under way is paid for at its old price and done again at
the new one. What was spent before is carried over: by the book, by the budget and by every statement.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._files import write_whole
from sottovoce.errors import BudgetExceeded, ConfigError, DataError, LedgerError
from sottovoce.peers.agreement import Agreement, member_entry, write_agreement
from sottovoce.peers.book import view_name
from sottovoce.peers.home import Home
from sottovoce.peers.identity import common_name
from sottovoce.peers.jobs import Job
from sottovoce.peers.ledger import read_ledger
from sottovoce.privacy.curves import Curve
from sottovoce.privacy.guarantees import Guarantee
from sottovoce.privacy.releases import Release
from sottovoce.protocols.names import is_exact

__all__ = ["Before", "draft_epoch", "model_digest", "read_start", "spent_before"]


class Before:
    """What a member spent in the epochs before: carried from one ledger to the next.

    Parameters
    ----------
    parts : one mapping per earlier epoch: run, releases, the guarantee they come to, and whether the ledger
        was there to say so or everything planned had to be counted.
    """

    def __init__(self, parts: Iterable[Mapping[str, Any]] = ()) -> None:
        self.parts = [dict(part) for part in parts]

    @property
    def curves(self) -> list[Curve]:
        """The losses of the earlier epochs."""
        return [Guarantee.from_dict(part["guarantee"]).curve for part in self.parts]

    def total(self, now: Guarantee, delta: float) -> float:
        """Return epsilon of all epochs together, ``now`` being that of the present one."""
        return Curve.total([*self.curves, now.curve]).epsilon(delta)

    def require(self, job: Job, node: int) -> None:
        """Raise unless what was spent and what is planned fit the agreed budget together."""
        budget = job.agreement.budget
        total = self.total(job.promised(node), budget.delta)
        if self.parts and not total <= budget.epsilon:
            spent = Curve.total(self.curves).epsilon(budget.delta)
            raise BudgetExceeded(
                f"The epochs before cost {job.agreement.members[node].name} epsilon {spent:.4g} at delta "
                f"{budget.delta:g}, with this one it is {total:.4g} of {budget.epsilon:g}; agree on fewer "
                "steps, more noise or a larger budget."
            )


def model_digest(model: np.ndarray) -> str:
    """Return the digest by which an epoch names the model it goes on from.

    Examples
    --------
    >>> model_digest(np.zeros(2)) == model_digest(np.zeros(3))
    False
    """
    row = np.ascontiguousarray(model, "<f8")
    return hashlib.sha256(b"sottovoce start\n" + row.tobytes()).hexdigest()


def spent_before(
    old: Agreement | None,
    agreement: Agreement,
    name: str,
    *,
    home: Home | None,
    state: str | Path | None = None,
) -> Before:
    """Return what this member spent in the run that ``agreement`` continues, and close that run in the book.

    Parameters
    ----------
    old : the agreement of the epoch before, whose price is taken; needed where this member was in it.
    agreement, name : the new epoch and this member's name.
    home : its home; the book says whether the run is known and finds its ledger.
    state : the run's state folder, without a home.

    Guarantees
    ----------
    Everything the ledger lists is counted, the broken step included; where the ledger is lost, damaged or
    older than its head, everything that was planned. In the book the old run is closed by this and can never
    be resumed.
    """
    if old is None or name not in [member.name for member in old.members]:
        if home is not None and agreement.continues in home.book.runs:
            raise ConfigError(
                f"This epoch continues the run {agreement.continues[:16]}, in which this home was; name "
                "its agreement (--previous)."
            )
        return Before()
    if old.run.hex() != agreement.continues:
        raise ConfigError(
            f"This epoch continues the run {agreement.continues[:16]}, the agreement given as the one before "
            f"is {old.run.hex()[:16]}; take the right one."
        )
    job, node = Job(old), old.index(name)
    earlier: list[dict[str, Any]] = []
    listed: list[Release] | None = None
    place: Path | None = None if state is None else Path(state)
    witness = None
    if home is not None and agreement.continues in home.book.runs:
        place = home.folder / home.book.runs[agreement.continues].state
        witness = home.witness(old.run)
    try:
        if place is None:
            raise LedgerError("no folder")
        stored = read_ledger(place, witness=witness)
        if stored["run"] not in (old.run.hex(), old.session.hex()) or stored["node"] != node:
            raise ConfigError(f"The state folder {place} belongs to another run than the one continued.")
        listed, earlier = list(stored["saved"].releases), list(stored["about"].get("before", []))
    except (LedgerError, OSError):
        listed = None
    releases = list(job.releases(node)) if listed is None else listed
    guarantee = job.spent(node, releases)
    if home is not None:
        known = home.book.runs.get(agreement.continues)
        if known is not None and known.status != "closed":
            views = {view_name(guarantee): guarantee} if job.tolerate and guarantee.label == "exact" else None
            home.book.close(agreement.continues, listed, f"continued by epoch {agreement.epoch}", views)
    part = {
        "run": agreement.continues,
        "epoch": old.epoch,
        "releases": [release.to_dict() for release in releases],
        "guarantee": guarantee.to_dict(),
        "ledger": "whole" if listed is not None else "lost: everything planned is counted",
    }
    return Before([*earlier, part])


def draft_epoch(
    path: str | Path,
    old: Agreement,
    state: str | Path,
    *,
    without: Iterable[str] = (),
    moved: Mapping[str, str] | None = None,
    certificates: Iterable[bytes] = (),
    graph: str | None = None,
) -> Agreement:
    """Write the agreement of the next epoch, and beside it the model it goes on from.

    Parameters
    ----------
    path : the new agreement; the model is written to the same name with ``.npz``.
    old : the agreement of the run that goes on.
    state : this member's state folder of that run, stopped.
    without : members who leave.
    moved : new addresses by name.
    certificates : new certificates of members, whether their key is new or only the date.
    graph : the graph of those who remain; by default the old one without those who leave.

    Returns
    -------
    The new agreement, signed by nobody. Masked sums of fewer members get more noise each, so that what a
    member and its colluders see is as noisy as before.

    Examples
    --------
    `sottovoce peer epoch agreement.toml --state state --without east -o next.toml` calls this.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> file, members = example_agreement()
    >>> draft_epoch(file.parent / "next.toml", read_agreement(file), file.parent, without=["bo"])
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: An average has one step, so nothing of it can go on; agree on a new run.
    """
    if old.plan.query == "value":
        raise ConfigError("An average has one step, so nothing of it can go on; agree on a new run.")
    leaving, moves = set(without), dict(moved or {})
    renewed = {common_name(each): each for each in certificates}
    for name in (*leaving, *moves, *renewed):
        old.index(name)
    if not (leaving or moves or renewed or graph):
        raise ConfigError("An epoch changes something: who leaves, who has moved, or whose key is new.")
    step, model = _reached(state)
    remaining = old.plan.steps - step
    if remaining < 1:
        raise ConfigError(f"The run has done all its {old.plan.steps} steps; there is nothing to go on with.")
    kept = [v for v, member in enumerate(old.members) if member.name not in leaving]
    draft = _drafted(old, kept, graph, remaining)
    if is_exact(old.plan.schedule(0)):
        draft["start"] = model_digest(model)
    entries = [
        member_entry(renewed.get(each.name, each.certificate.encode()), moves.get(each.name, each.address))
        for each in (old.members[v] for v in kept)
    ]
    made = write_agreement(path, draft, entries)
    buffer = io.BytesIO()
    np.savez(buffer, parameters=model)
    try:
        write_whole(Path(path).with_suffix(".npz"), buffer.getvalue(), mode=0o600)
    except DataError as error:
        raise ConfigError(f"The model to go on from cannot be written: {error}") from None
    return made


def read_start(agreement: Agreement, *files: str | Path | None) -> np.ndarray | None:
    """Return the model an epoch goes on from: the first file that is there and is the one signed for."""
    if not agreement.continues:
        return None
    found = None
    for file in files:
        if file is None or not Path(file).exists():
            continue
        try:
            with np.load(file, allow_pickle=False) as stored:
                found = np.asarray(stored["parameters"], np.float64)
        except (OSError, ValueError, KeyError):
            continue
        if not agreement.start or model_digest(found) == agreement.start:
            return found
    if agreement.start:
        raise ConfigError(
            f"The model this epoch goes on from ({agreement.start[:16]}) is not here; get the file beside "
            "the agreement from whoever drafted it."
        )
    return found


def _reached(state: str | Path) -> tuple[int, np.ndarray]:
    """Return the steps done and the model of a stopped run's folder."""
    folder = Path(state)
    try:
        said = json.loads((folder / "statement.json").read_text())
        with np.load(folder / "model.npz", allow_pickle=False) as stored:
            model = np.asarray(stored["parameters"], np.float64)
        return int(said["steps"]), model
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} holds no model and statement of a stopped run; stop its peer first (SIGTERM), or "
            "draft where the run was."
        ) from None


def _drafted(old: Agreement, kept: list[int], graph: str | None, steps: int) -> dict[str, Any]:
    content = old.model_dump(
        mode="json", exclude={"signatures", "mask_keys", "members", "start"}, exclude_unset=True
    )
    part = dict(content["algorithm"])
    part["steps"] = steps
    if len(kept) < len(old.members):
        graph = graph or _smaller(old, kept)
        grid, protocol = old.plan.grid, old.plan.schedule(0)
        if grid is not None:
            colluding = max(1, int(protocol.tolerate or 1))
            if len(kept) - colluding < 1:
                raise ConfigError("Too few members would remain for masked sums; agree on a new run.")
            more = math.sqrt((len(old.members) - colluding) / (len(kept) - colluding))
            part["noise_multiplier"] = float(part["noise_multiplier"]) * more
    content |= {"algorithm": part, "epoch": old.epoch + 1, "continues": old.run.hex()}
    if graph is not None:
        content["graph"] = graph
    return {key: value for key, value in content.items() if value is not None}


def _smaller(old: Agreement, kept: list[int]) -> str:
    """Return the old graph without those who leave, as a list of edges."""
    place = {v: k for k, v in enumerate(kept)}
    edges = [
        (place[int(u)], place[int(v)]) for u, v in old.network.edges if int(u) in place and int(v) in place
    ]
    met, reached = {0}, True
    while reached:
        more = {b for a, b in (*edges, *((v, u) for u, v in edges)) if a in met} - met
        met, reached = met | more, bool(more)
    if len(met) < len(kept):
        raise ConfigError("Without them the graph falls apart; give the graph of those who remain (--graph).")
    return "edges:" + ",".join(f"{u}-{v}" for u, v in sorted(edges))
