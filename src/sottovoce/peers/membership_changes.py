"""Membership membership versions: a run goes on without a member, with one that has moved, or with a new key.

What a run does is fixed by its agreement, so what changes is a new agreement: the next membership version,
which names the run that it continues and the model it goes on from, and is signed by everybody who remains.
It has its own frames, mask keys and noise labels; the step that was under way is paid for at its old price
and done again at the new one. What was spent before is carried over: by the lifetime ledger, by the budget
and by every statement.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adversary, Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, ConfigError, DataError, LedgerError
from sottovoce.ledger.lifetime import RunCharge, RunClosure, composed, view_name
from sottovoce.ledger.run_ledger import at_rest, read_ledger
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement, member_entry, write_agreement
from sottovoce.peers.identity import common_name
from sottovoce.peers.member_directory import MemberDirectory


class EarlierSpending:
    """What a member spent in the membership versions before: carried from one ledger to the next.

    Parameters
    ----------
    parts : one mapping per earlier membership version: run, releases, the guarantee they come to, and whether
        the ledger was there to say so or everything planned had to be counted.
    """

    def __init__(self, parts: Iterable[Mapping[str, Any]] = ()) -> None:
        self.parts = [dict(part) for part in parts]

    @property
    def curves(self) -> list[Curve]:
        """The losses of the earlier membership versions."""
        return [Guarantee.from_dict(part["guarantee"]).curve for part in self.parts]

    def spent(self, delta: float) -> float:
        """Return epsilon of the earlier membership versions."""
        return Curve.total(self.curves).epsilon(delta) if self.parts else 0.0

    def total(self, now: Guarantee, delta: float) -> float:
        """Return epsilon of all membership versions together, ``now`` being that of the present one."""
        return Curve.total([*self.curves, now.curve]).epsilon(delta)

    def require(self, agreed_run: AgreedRun, node: int) -> None:
        """Raise unless what was spent and what is planned fit the agreed budget together."""
        budget = agreed_run.agreement.budget
        total = self.total(agreed_run.charged_guarantee(node), budget.delta)
        if self.parts and not total <= budget.epsilon:
            spent = self.spent(budget.delta)
            raise BudgetExceeded(
                f"The membership versions before cost {agreed_run.agreement.members[node].name} epsilon "
                f"{spent:.4g} at delta "
                f"{budget.delta:g}, with this one it is {total:.4g} of {budget.epsilon:g}; agree on fewer "
                "steps, more noise or a larger budget."
            )


def model_digest(model: np.ndarray) -> str:
    """Return the digest by which a membership version names the model it goes on from."""
    row = np.ascontiguousarray(model, "<f8")
    return hashlib.sha256(b"sottovoce start\n" + row.tobytes()).hexdigest()


@dataclass(frozen=True)
class SettledSpending:
    """What the membership versions before cost one member, counted by their ledgers; nothing has been written
    yet.

    Parameters
    ----------
    before : what was spent, one part per earlier membership version.
    runs : the runs that the membership version goes on from, newest first.
    closings : how the lifetime ledger closes those that are still open there.
    place : the state folder of the run that is continued, where there is one.
    remarks : what whoever signs should know, one sentence each.
    """

    before: EarlierSpending = field(default_factory=EarlierSpending)
    runs: tuple[str, ...] = ()
    closings: tuple[RunClosure, ...] = ()
    place: Path | None = None
    remarks: tuple[str, ...] = ()


def settle(
    previous: Agreement | Iterable[Agreement] | None,
    agreement: Agreement,
    name: str,
    *,
    member_directory: MemberDirectory | None,
    state: str | Path | None = None,
    hold: ExitStack | None = None,
) -> SettledSpending:
    """Return what a member spent in the run that ``agreement`` continues; changes nothing.

    Parameters
    ----------
    previous : the agreement of the membership version before; where its ledger is lost, those of all
        membership versions before.
    agreement, name : the new membership version and this member's name.
    member directory : its member directory; the lifetime ledger says which runs are known and finds their
        ledgers.
    state : the folder of the run before, without a member directory.
    hold : keeps the folders that were counted from being opened by a peer, for as long as it is open; where
        one is running there `LedgerError` is raised. Without it a running peer's run is counted as planned.

    Guarantees
    ----------
    Everything the ledger lists is counted, the broken step included; where the ledger is lost, damaged, older
    than its head or still being written by a peer, everything that was planned. A membership version about
    which neither an agreement nor a ledger nor the lifetime ledger says anything is an error, never counted
    as nothing. Other membership versions of the same run that this member directory began, and gave up for
    this one, are counted too.

    Examples
    --------
    A run that continues nothing has nothing behind it.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> settle(None, read_agreement(example_agreement()[0]), "ada", member_directory=None).before.parts
    []
    """
    if not agreement.continues:
        return SettledSpending()
    agreements = [previous] if isinstance(previous, Agreement) else list(previous or ())
    return _Chain(
        {each.run.hex(): each for each in agreements}, agreement, name, member_directory, state, hold
    ).settled()


class _Chain:
    """The membership versions behind a membership version, as one member knows them."""

    def __init__(
        self,
        agreements: dict[str, Agreement],
        agreement: Agreement,
        name: str,
        member_directory: MemberDirectory | None,
        state: str | Path | None,
        hold: ExitStack | None,
    ) -> None:
        self.hold, self.agreed_run = hold, AgreedRun(agreement)
        self.agreements, self.agreement, self.name, self.member_directory = (
            agreements,
            agreement,
            name,
            member_directory,
        )
        self.state = None if state is None else Path(state)
        self.known: dict[str, RunCharge] = (
            {} if member_directory is None else member_directory.lifetime_ledger.runs
        )
        self.parts: list[dict[str, Any]] = []  # newest first until the end
        self.runs: list[str] = []
        self.remarks: list[str] = []
        self.closings: list[RunClosure] = []
        self.place: Path | None = None

    def settled(self) -> SettledSpending:
        direct = self.agreement.continues
        if direct not in self.agreements:
            raise self._missing(direct)
        run = direct
        while run:
            if run in self.runs:
                raise ConfigError(
                    f"The membership versions before this one go in a circle at {run[:16]}; nothing is run."
                )
            self.runs.append(run)
            run = self._step(run, newest=run == direct)
        self._siblings()
        before = EarlierSpending(reversed(self.parts))
        return SettledSpending(
            before, tuple(self.runs), tuple(self.closings), self.place, tuple(self.remarks)
        )

    def _missing(self, run: str) -> ConfigError:
        return ConfigError(
            f"This membership version continues the run {run[:16]}, and nothing here says what it cost; "
            "name its "
            "agreement (--previous, once for each membership version before this one)."
        )

    def _step(self, run: str, *, newest: bool) -> str:
        """Add what one membership version cost; return the run before it, empty at the first or where all
        is added.
        """
        old, charge = self.agreements.get(run), self.known.get(run)
        if old is None and charge is None:
            raise self._missing(run)
        if old is not None and self.name not in [member.name for member in old.members]:
            return old.continues
        if old is not None and charge is None and self.member_directory is not None:
            return (
                old.continues
            )  # signed perhaps, but a member directory begins no run that its lifetime ledger does not know
        earlier = None
        if old is None or (charge is not None and charge.status == "closed" and not newest):
            assert charge is not None
            self.parts.append(self._booked(charge, "closed in the lifetime ledger"))
        else:
            earlier = self._counted(old, charge, newest=newest)
        if earlier is not None:
            self.parts += reversed(earlier)
            self.runs += [part["run"] for part in reversed(earlier)]
            return ""
        if old is not None:
            return old.continues
        assert charge is not None
        rest = [self.known[each] for each in charge.continues if each in self.known]
        self.parts += [self._booked(each, "closed in the lifetime ledger") for each in rest]
        self.runs += charge.continues
        return ""

    def _counted(
        self, old: Agreement, charge: RunCharge | None, *, newest: bool
    ) -> list[dict[str, Any]] | None:
        """Add one membership version by its ledger, or all it planned; return the parts that its ledger
        holds.
        """
        agreed_run, node, run = AgreedRun(old), old.index(self.name), old.run.hex()
        place, witness = (self.state if newest else None), None
        if charge is not None and self.member_directory is not None:
            place, witness = (
                self.member_directory.folder / charge.state,
                self.member_directory.witness(old.run),
            )
        earlier: list[dict[str, Any]] | None = None
        left: tuple[Release, ...] | None = None
        source = "lost: everything planned is counted"
        if charge is not None and charge.status == "started":
            # nothing may be sent before the lifetime ledger says that the ledger exists
            left, source = (), "never begun"
        elif place is not None:
            try:
                stored = self._read(place, witness)
                if stored["run"] not in (run, old.session.hex()) or stored["node"] != node:
                    raise ConfigError(
                        f"The state folder {place} belongs to another run than the one continued."
                    )
                left, source = tuple(stored["saved"].releases), "whole"
                # without a word about membership versions before it, their agreements are asked for
                earlier = list(stored["about"].get("before", [])) or None
            except LedgerError as error:
                self.remarks.append(f"the run {run[:16]} is counted as planned: {error}")
        releases = tuple(agreed_run.plan.releases(node)) if left is None else left
        part = {
            "run": run,
            "membership_version": old.membership_version,
            "releases": [release.to_dict() for release in releases],
            "guarantee": agreed_run.spent(node, releases).to_dict(),
            "ledger": source,
        }
        self.parts.append(part)
        self.place = place if newest else self.place
        if charge is not None and charge.status != "closed":
            views = {} if left is None else agreed_run.cost_of_interrupted(node, left)
            self.closings.append(
                RunClosure(
                    run, left, f"continued by membership version {self.agreement.membership_version}", views
                )
            )
        return earlier

    def _read(self, place: Path, witness: Path | None) -> dict[str, Any]:
        """Return a ledger that no peer is writing."""
        if self.hold is None:
            with at_rest(place):
                return read_ledger(place, witness=witness)
        try:
            self.hold.enter_context(at_rest(place))
        except LedgerError as error:
            raise ConfigError(f"The run before this membership version is not at rest: {error}") from None
        return read_ledger(place, witness=witness)

    def _booked(self, charge: RunCharge, source: str) -> dict[str, Any]:
        """Return the part of a run of which only the lifetime ledger tells: against the view that is
        charged.
        """
        view = view_name(self.agreed_run.charged_guarantee(self.agreement.index(self.name)))
        adjacency: Any = self.agreed_run.plan.adjacency
        curve = composed([charge], adjacency, view)
        priced = Guarantee(Adversary("local"), adjacency, "ldp", curve)
        known = charge.against(view) if view != "local" else None
        if known is not None:
            priced = Guarantee(known.adversary, adjacency, known.label, curve, known.assumptions)
        return {
            "run": charge.run,
            "membership_version": None,
            "releases": [release.to_dict() for release in charge.releases],
            "guarantee": priced.to_dict(),
            "ledger": source,
        }

    def _siblings(self) -> None:
        """Count membership versions that were begun here from the same run and given up for this one."""
        own = {*self.runs, self.agreement.run.hex()}
        for run, charge in self.known.items():
            if run not in own and set(charge.continues) & own:
                self.parts.append(self._booked(charge, "another membership version of the same run"))


def draft_membership_change(
    path: str | Path,
    old: Agreement,
    state: str | Path,
    *,
    without: Iterable[str] = (),
    moved: Mapping[str, str] | None = None,
    certificates: Iterable[bytes] = (),
    graph: str | None = None,
) -> Agreement:
    """Write the agreement of the next membership version, and beside it the model it goes on from.

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
    An average is one step; it is done or not:

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> file = example_agreement()[0]
    >>> draft_membership_change(
    ...     file.with_name("next.toml"), read_agreement(file), file.parent / "none", without=["bo"])
    Traceback (most recent call last):
        ...
    sottovoce.errors.ConfigError: An average has one step, so nothing of it can go on; agree on a new run.
    """
    if old.plan.query == "value":
        raise ConfigError("An average has one step, so nothing of it can go on; agree on a new run.")
    leaving, moves = set(without), dict(moved or {})
    renewed = {common_name(each): each for each in certificates}
    for name in (*leaving, *moves, *renewed):
        old.index(name)
    if not (leaving or moves or renewed or graph):
        raise ConfigError(
            "A membership version changes something: who leaves, who has moved, or whose key is new."
        )
    step, model = _reached(state)
    remaining = old.plan.steps - step
    if remaining < 1:
        raise ConfigError(f"The run has done all its {old.plan.steps} steps; there is nothing to go on with.")
    remaining_nodes = [v for v, member in enumerate(old.members) if member.name not in leaving]
    draft = _drafted(old, remaining_nodes, graph, remaining)
    if old.plan.schedule(0).exact:
        draft["start"] = model_digest(model)
    entries = [
        member_entry(renewed.get(each.name, each.certificate.encode()), moves.get(each.name, each.address))
        for each in (old.members[v] for v in remaining_nodes)
    ]
    agreement = write_agreement(path, draft, entries)
    try:
        save_model(Path(path).with_suffix(".npz"), model)
    except DataError as error:
        raise ConfigError(f"The model to go on from cannot be written: {error}") from None
    return agreement


def cost_of_change(old: Agreement, new: Agreement, state: str | Path) -> dict[str, Any]:
    """Return what the member of ``state`` has spent so far, and what a new membership version adds for each.

    The totals assume that the other members have spent as much as this one; their own ledgers know exactly.
    """
    stored = read_ledger(state)
    agreed_run, delta = AgreedRun(new), new.budget.delta
    spent = AgreedRun(old).spent(stored["node"], stored["saved"].releases)
    earlier = EarlierSpending(stored["about"].get("before", ()))
    rows = []
    for node, member in enumerate(new.members):
        adds = agreed_run.charged_guarantee(node)
        total = Curve.total([*earlier.curves, spent.curve, adds.curve]).epsilon(delta)
        rows.append({"member": member.name, "adds": adds.epsilon(delta), "total": total, "view": adds.label})
    return {
        "spent_by": old.members[stored["node"]].name,
        "spent": earlier.total(spent, delta),
        "delta": delta,
        "members": rows,
    }


def save_model(path: Path, row: np.ndarray) -> None:
    """Write a model for its owner alone, as `read_start` reads it."""
    atomic_write(path, lambda file: np.savez(file, parameters=row), mode=0o600)


def read_start(agreement: Agreement, *files: str | Path | None) -> np.ndarray | None:
    """Return the model a membership version goes on from: the first file that is there and is the one
    signed for.
    """
    if not agreement.continues:
        return None
    model = None
    for file in files:
        if file is None or not Path(file).exists():
            continue
        try:
            with np.load(file, allow_pickle=False) as stored:
                model = np.asarray(stored["parameters"], np.float64)
        except (OSError, ValueError, KeyError):
            continue
        if not agreement.start or model_digest(model) == agreement.start:
            return model
    if agreement.start:
        raise ConfigError(
            f"The model this membership version goes on from ({agreement.start[:16]}) is not here; get the "
            "file beside "
            "the agreement from whoever drafted it."
        )
    return model


def other_model(agreement: Agreement, state: str | Path | None) -> tuple[str, ...]:
    """Return a sentence if a membership version goes on from another model than the one in this member's own
    folder.

    It costs no privacy: what is released is priced for any model. But whoever drafted it chose it, and a
    member that stood at the same step can see whether it is the common one.
    """
    if not agreement.start or state is None:
        return ()
    try:
        step, model = _reached(state)
    except ConfigError:
        return ()
    if model_digest(model) == agreement.start:
        return ()
    return (
        f"it goes on from another model than this member directory has after step {step}: ask whoever "
        "drafted it at "
        "which step it stood, and why",
    )


def _reached(state: str | Path) -> tuple[int, np.ndarray]:
    """Return the steps done and the model of a stopped run's folder."""
    folder = Path(state)
    try:
        source = json.loads((folder / "statement.json").read_text())
        with np.load(folder / "model.npz", allow_pickle=False) as stored:
            model = np.asarray(stored["parameters"], np.float64)
        return int(source["steps"]), model
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} holds no model and statement of a stopped run; stop its peer first (SIGTERM), or "
            "draft where the run was."
        ) from None


def _drafted(old: Agreement, remaining_nodes: list[int], graph: str | None, steps: int) -> dict[str, Any]:
    content = old.model_dump(
        mode="json", exclude={"signatures", "mask_keys", "members", "start"}, exclude_unset=True
    )
    part = dict(content["algorithm"])
    part["steps"] = steps
    if len(remaining_nodes) < len(old.members):
        graph = graph or _smaller(old, remaining_nodes)
        grid, protocol = old.plan.grid, old.plan.schedule(0)
        if grid is not None:
            colluding = max(1, int(protocol.tolerate or 1))
            if len(remaining_nodes) - colluding < 1:
                raise ConfigError("Too few members would remain for masked sums; agree on a new run.")
            more = math.sqrt((len(old.members) - colluding) / (len(remaining_nodes) - colluding))
            part["noise_multiplier"] = float(part["noise_multiplier"]) * more
    version = old.membership_version + 1
    content |= {"algorithm": part, "membership_version": version, "continues": old.run.hex()}
    if graph is not None:
        content["graph"] = graph
    return {key: value for key, value in content.items() if value is not None}


def _smaller(old: Agreement, remaining_nodes: list[int]) -> str:
    """Return the old graph without those who leave, as a list of edges."""
    place = {v: k for k, v in enumerate(remaining_nodes)}
    edges = [
        (place[int(u)], place[int(v)]) for u, v in old.network.edges if int(u) in place and int(v) in place
    ]
    met, reached = {0}, True
    while reached:
        more = {b for a, b in (*edges, *((v, u) for u, v in edges)) if a in met} - met
        met, reached = met | more, bool(more)
    if len(met) < len(remaining_nodes):
        raise ConfigError("Without them the graph falls apart; give the graph of those who remain (--graph).")
    return "edges:" + ",".join(f"{u}-{v}" for u, v in sorted(edges))
