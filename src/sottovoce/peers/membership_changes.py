"""Membership changes: a run goes on without a member, with one that has moved, or with a new key.

What a run does is fixed by its agreement, so what changes is a new agreement: the next membership version,
which names the run that it continues and the model it goes on from, and is signed by everybody who remains.
It has its own frames, mask keys and noise labels; the step that was under way is charged at its old cost and
done again at the new one. What was spent before is carried over: by the lifetime ledger, by the budget and by
every statement.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._format import compared, number
from sottovoce._io import atomic_write
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, ConfigError, LedgerError
from sottovoce.ledger.balance import Charge, RunClosure
from sottovoce.ledger.cost import view_name
from sottovoce.ledger.run_ledger import at_rest, read_ledger
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement, member_entry, write_agreement
from sottovoce.peers.identity import common_name
from sottovoce.peers.member_directory import MemberDirectory


@dataclass(frozen=True)
class EarlierVersions:
    """What earlier membership versions cost one member, carried from one ledger to the next.

    ``parts`` has one mapping per version, oldest first: run, releases, the guarantee they come to, and what
    that was read from. ``runs`` are the runs that this
    version goes on from, newest first; ``closings`` say how the lifetime ledger closes those that are open.
    """

    parts: tuple[dict[str, Any], ...] = ()
    runs: tuple[str, ...] = ()
    closings: tuple[RunClosure, ...] = ()
    state_folder: Path | None = None
    remarks: tuple[str, ...] = ()

    def spent(self, delta: float) -> float:
        """Return epsilon of the earlier versions."""
        return self.total([], delta) if self.parts else 0.0

    def total(self, now: Iterable[Guarantee], delta: float) -> float:
        """Return epsilon of all versions together, ``now`` being what the present one costs."""
        earlier = [Guarantee.from_dict(part["guarantee"]) for part in self.parts]
        return Curve.total([guarantee.curve for guarantee in (*earlier, *now)]).epsilon(delta)

    def require(self, agreed_run: AgreedRun, node: int) -> None:
        """Raise unless what was spent and what is planned fit the agreed budget together."""
        budget = agreed_run.agreement.budget
        total = self.total([agreed_run.charged_guarantee(node)], budget.delta)
        if self.parts and not total <= budget.epsilon:
            together, limit = compared(total, budget.epsilon, "spent")
            raise BudgetExceeded(
                f"The membership versions before cost {agreed_run.agreement.members[node].name} epsilon "
                f"{number(self.spent(budget.delta), 'spent')} at delta {number(budget.delta, 'delta')}, with "
                f"this one it is {together} of {limit}; agree on fewer steps, more noise or a larger budget."
            )


def earlier_versions(
    previous: Agreement | Iterable[Agreement] | None,
    agreement: Agreement,
    name: str,
    *,
    member_directory: MemberDirectory | None,
    state: str | Path | None = None,
    hold: ExitStack | None = None,
) -> EarlierVersions:
    """Return what a member spent in the run that ``agreement`` continues; changes nothing.

    ``previous`` is the agreement of the version before; where its ledger is lost, those of all versions
    before. ``state`` is the folder of the run before, without a member directory. ``hold`` keeps the folders
    that were counted from being opened by a peer, for as long as it is open; where one is running there
    `ConfigError` is raised. Without it a running peer's run is counted as planned.

    Guarantees
    ----------
    Everything the ledger lists is counted, the broken step included; where the ledger is lost, damaged, older
    than its head or still being written by a peer, everything that was planned. A version about which neither
    an agreement nor a ledger nor the lifetime ledger says anything is an error, never counted as nothing.
    Other versions of the same run that this member directory began, and gave up for this one, are counted.
    """
    if not agreement.continues:
        return EarlierVersions()
    agreements = [previous] if isinstance(previous, Agreement) else list(previous or ())
    by_run, folder = {each.run_id.hex(): each for each in agreements}, Path(state) if state else None
    return _VersionChain(by_run, agreement, name, member_directory, folder, hold).count()


@dataclass
class _VersionChain:
    """The membership versions behind an agreement, as one member knows them."""

    agreements: Mapping[str, Agreement]
    agreement: Agreement
    name: str
    member_directory: MemberDirectory | None
    state: Path | None
    hold: ExitStack | None
    parts: list[dict[str, Any]] = field(default_factory=list)  # newest first until the end
    runs: list[str] = field(default_factory=list)
    closings: list[RunClosure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    state_folder: Path | None = None

    @cached_property
    def known(self) -> dict[str, Charge]:
        """The runs in the lifetime ledger."""
        return {} if self.member_directory is None else self.member_directory.lifetime_ledger.runs

    def count(self) -> EarlierVersions:
        run_id = self.agreement.continues
        if run_id not in self.agreements:
            raise self._missing(run_id)
        while run_id:
            self.runs.append(run_id)
            run_id = self._add_version(run_id)
        self._siblings()
        parts, runs, closings = tuple(self.parts[::-1]), tuple(self.runs), tuple(self.closings)
        return EarlierVersions(parts, runs, closings, self.state_folder, tuple(self.remarks))

    def _missing(self, run_id: str) -> ConfigError:
        return ConfigError(
            f"This membership version continues the run {run_id[:16]}, and nothing here says what it cost; "
            "name its agreement (--previous, once for each membership version before this one)."
        )

    def _add_version(self, run_id: str) -> str:
        """Add what one version cost; return the run before, or nothing where that is counted, too.

        The table of cases is in docs/peers.md.
        """
        old, charge = self.agreements.get(run_id), self.known.get(run_id)
        if old is None:
            if charge is None:
                raise self._missing(run_id)
            # without an agreement: this version and those before it, as the lifetime ledger has them
            for each in (charge, *(self.known[run] for run in charge.continues if run in self.known)):
                self._add_charge(each, "closed in the lifetime ledger")
            self.runs += charge.continues
            return ""
        # signed perhaps, but a member directory begins no run that its lifetime ledger does not know
        if self.name not in old.names or (charge is None and self.member_directory is not None):
            return old.continues
        newest = run_id == self.agreement.continues
        if charge is not None and charge.status == "closed" and not newest:
            self._add_charge(charge, "closed in the lifetime ledger")
            return old.continues
        folder, head_file = (self.state if newest else None), None
        if charge is not None and self.member_directory is not None:
            folder = self.member_directory.folder / charge.state
            head_file = self.member_directory.head_file(old.run_id)
        if newest:
            self.state_folder = folder
        if charge is not None and charge.status == "charged":
            # nothing may be sent before the lifetime ledger says that the ledger exists
            return self._add_run(old, charge, (), "never started")
        if folder is not None:
            try:
                stored = self._read(folder, head_file)
            except LedgerError as error:
                self.remarks.append(f"the run {run_id[:16]} is counted as planned: {error}")
            else:
                return self._by_its_ledger(old, charge, folder, stored)
        return self._add_run(old, charge, None, "lost: everything planned is counted")

    def _by_its_ledger(
        self, old: Agreement, charge: Charge | None, folder: Path, stored: dict[str, Any]
    ) -> str:
        """Count what a ledger lists; where it lists the versions before it, too, nothing is left to count."""
        if stored["session"] != old.session.hex() or stored["node"] != old.index(self.name):
            raise ConfigError(f"The state folder {folder} belongs to another run than the one continued.")
        continues = self._add_run(old, charge, tuple(stored["saved"].releases), "whole")
        earlier = list(reversed(stored["about"].get("before", [])))
        if not earlier:
            return continues
        self.parts += earlier
        self.runs += [part["run_id"] for part in earlier]
        return ""

    def _siblings(self) -> None:
        """Count versions that were begun here from the same run and given up for this one."""
        own = {*self.runs, self.agreement.run_id.hex()}
        for run_id, charge in self.known.items():
            if run_id not in own and set(charge.continues) & own:
                self._add_charge(charge, "another membership version of the same run")

    def _add_run(
        self, old: Agreement, charge: Charge | None, left: tuple[Release, ...] | None, source: str
    ) -> str:
        """Add the releases of a run, with None those it planned, and close it in the lifetime ledger."""
        agreed_run, node, run_id = AgreedRun(old), old.index(self.name), old.run_id.hex()
        releases = tuple(agreed_run.plan.releases(node)) if left is None else left
        self._add(run_id, old.membership_version, releases, agreed_run.spent(node, releases), source)
        if charge is not None and charge.status != "closed":
            why = f"continued by membership version {self.agreement.membership_version}"
            guarantees = () if left is None else agreed_run.cost_of_interrupted(node, left)
            self.closings.append(RunClosure(run_id, left, why, guarantees))
        return old.continues

    def _read(self, folder: Path, head_file: Path | None) -> dict[str, Any]:
        """Return a ledger that no peer is writing."""
        with ExitStack() as here:
            try:
                (self.hold or here).enter_context(at_rest(folder))
            except LedgerError as error:
                if self.hold is None:
                    raise
                raise ConfigError(f"The run before this membership version is not at rest: {error}") from None
            return read_ledger(folder, head_file=head_file)

    def _add_charge(self, charge: Charge, source: str) -> None:
        """Add a run of which only the lifetime ledger tells: its cost against the view that is charged."""
        agreed_run = AgreedRun(self.agreement)
        view = view_name(agreed_run.charged_guarantee(self.agreement.index(self.name)))
        guarantee = charge.guarantee(agreed_run.plan.adjacency, view)
        self._add(charge.run_id, None, charge.releases, guarantee, source)

    def _add(
        self, run_id: str, version: int | None, releases: Iterable[Release], guarantee: Guarantee, source: str
    ) -> None:
        plain = [release.to_dict() for release in releases]
        part = {"run_id": run_id, "membership_version": version, "releases": plain}
        self.parts.append({**part, "guarantee": guarantee.to_dict(), "ledger": source})


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

    ``state`` is this member's state folder of the stopped run. ``without`` are members who leave, ``moved``
    new addresses by name, ``certificates`` new ones of members; ``graph`` is that of those who remain, by
    default the old one without those who leave.

    The new agreement is signed by nobody. Masked sums of fewer members get more noise each, so that what a
    member and its colluders see is as noisy as before.
    """
    if old.plan.query_kind == "value":
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
    if step >= old.plan.steps:
        raise ConfigError(f"The run has done all its {old.plan.steps} steps; there is nothing to go on with.")
    remaining = [v for v, member in enumerate(old.members) if member.name not in leaving]
    draft = _draft(old, remaining, graph, old.plan.steps - step)
    if old.plan.schedule(0).reaches_consensus:
        draft["start"] = model_digest(model)
    entries = []
    for member in (old.members[v] for v in remaining):
        certificate = renewed.get(member.name, member.certificate.encode())
        entries.append(member_entry(certificate, moves.get(member.name, member.address)))
    agreement = write_agreement(path, draft, entries)
    save_model(Path(path).with_suffix(".npz"), model)
    return agreement


def model_digest(model: np.ndarray) -> str:
    """Return the digest by which a membership version names the model it goes on from."""
    row = np.ascontiguousarray(model, "<f8")
    return hashlib.sha256(b"sottovoce start\n" + row.tobytes()).hexdigest()


def save_model(path: Path, row: np.ndarray) -> None:
    """Write a model for its owner alone, as `read_start` reads it."""
    atomic_write(path, lambda file: np.savez(file, parameters=row), mode=0o600)


def _read_model(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as stored:
        return np.asarray(stored["parameters"], np.float64)


def read_start(agreement: Agreement, *files: str | Path | None) -> np.ndarray | None:
    """Return the model that a run goes on from: the first file that is there and is the one signed for."""
    if not agreement.continues:
        return None
    model = None
    for file in files:
        if file is None or not Path(file).exists():
            continue
        try:
            model = _read_model(Path(file))
        except (OSError, ValueError, KeyError):
            continue
        if not agreement.start or model_digest(model) == agreement.start:
            return model
    if agreement.start:
        raise ConfigError(
            f"The model this membership version goes on from ({agreement.start[:16]}) is not here; get the "
            "file beside the agreement from whoever drafted it."
        )
    return model


def _reached(state: str | Path) -> tuple[int, np.ndarray]:
    """Return the steps done and the model of a stopped run's folder."""
    folder = Path(state)
    try:
        statement = json.loads((folder / "statement.json").read_text())
        return int(statement["steps"]), _read_model(folder / "model.npz")
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} holds no model and statement of a stopped run; stop its peer first (SIGTERM), or "
            "draft where the run was."
        ) from None


def _draft(old: Agreement, remaining: list[int], graph: str | None, steps: int) -> dict[str, Any]:
    """Return the tables of the next agreement, without its members."""
    left_out = {"signatures", "mask_keys", "members", "start"}
    content = old.model_dump(mode="json", exclude=left_out, exclude_unset=True, exclude_none=True)
    algorithm = {**content["algorithm"], "steps": steps}
    if len(remaining) < len(old.members):
        graph = graph or _smaller_graph(old, remaining)
        if old.plan.grid is not None:
            colluding = max(1, old.plan.schedule(0).tolerate or 1)
            if len(remaining) <= colluding:
                raise ConfigError("Too few members would remain for masked sums; agree on a new run.")
            # so that what a member and its colluders see is as noisy as before
            more = math.sqrt((len(old.members) - colluding) / (len(remaining) - colluding))
            algorithm["noise_multiplier"] = float(algorithm["noise_multiplier"]) * more
    version = old.membership_version + 1
    content |= {"algorithm": algorithm, "membership_version": version, "continues": old.run_id.hex()}
    return content if graph is None else {**content, "graph": graph}


def _smaller_graph(old: Agreement, remaining: list[int]) -> str:
    """Return the old graph without those who leave, as a list of edges."""
    import networkx as nx

    place = {v: k for k, v in enumerate(remaining)}
    pairs = [(place[u], place[v]) for u, v in old.network.edges.tolist() if u in place and v in place]
    graph = nx.Graph(pairs)
    if len(graph) < len(remaining) or not nx.is_connected(graph):
        raise ConfigError("Without them the graph falls apart; give the graph of those who remain (--graph).")
    return "edges:" + ",".join(f"{u}-{v}" for u, v in sorted(pairs))
