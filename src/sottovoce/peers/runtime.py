"""`sottovoce peer run`: the core driven by real sockets, a real disk, the clock and protective noise.

The path of one row:

1. Draw, clip, noise: the plan's mechanism samples a batch, clips and sums the gradients, adds noise and
   records the release.
2. Mask: where sums are masked, `MaskedRows.hide` places the row on the integer grid and adds the pair masks.
3. Record: `Core._publish` requires that the release fits the budget and commits release, frame and state to
   the run ledger, which returns when they are on the disk.
4. Send: the frame goes to the neighbors, with ``witness = 1`` only after all members hold the new head of the
   ledger.
5. Confirm: a neighbor's position says which rows it has used; until then the ledger keeps the frame, and a
   neighbor that asks gets the same bytes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.errors import (
    ConfigError,
    DataError,
    FrameError,
    IdentityError,
    LostPeer,
    PeerError,
    SottovoceError,
    TryLater,
)
from sottovoce.ledger.run_ledger import LEDGER, RunLedger, give_up, read_ledger
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource, ProtectiveNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.connection import Proxy
from sottovoce.peers.core import Core, Timing
from sottovoce.peers.identity import CertificateSigner, Identity
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.membership_changes import (
    EarlierVersions,
    earlier_versions,
    read_start,
    save_model,
)
from sottovoce.peers.paced_sender import head_start
from sottovoce.peers.run_keys import erase_mask_key, read_mask_key
from sottovoce.peers.statements import VERSION as STATEMENT_VERSION
from sottovoce.peers.statements import backup_assumptions, checks
from sottovoce.peers.status import LIVE, Health
from sottovoce.peers.systemd import SystemdNotifier
from sottovoce.peers.transport import (
    BAD_FRAME,
    CLOCK,
    TlsTransport,
    TransportConfig,
    apart_in_words,
)

MODEL, STATEMENT, START = "model.npz", "statement.json", "start.npz"
_PROTECTIVE = "protective: discrete Gaussian, of a key made for this run and erased at its end"
_LOG_WAITING_AFTER = 10.0  # seconds without a round before the members that are waited for are logged
_REPORT_EVERY = 2.0  # seconds between two reports for `peer status`
_SLICE = 0.05  # seconds after which a silent wait sees that it is to end
_FRAMES_PER_TURN = 64  # frames of one neighbor that are taken in one turn
Log = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    model: np.ndarray
    statement: dict[str, Any]
    rounds: int


@dataclass(frozen=True)
class PeerConfig:
    """Everything a peer needs.

    Parameters
    ----------
    agreement : signed by all members.
    identity : this member's key; its certificate must be the one listed.
    records : this member's data.
    state : the state folder; None for ``runs/HASH`` in the member directory. A run that the lifetime ledger
        knows continues in its own folder.
    log : gets one small mapping per event; none of them depends on data.
    noise : only to compare runs bit by bit in tests (a source, or a `RunRandomness` that also fixes the
        batches); by default protective.
    timing : by default as agreed.
    revoked : fingerprints that are no longer accepted.
    listen, relay : another address or relay than the agreed one.
    secrets : the folder of the mask key, which is erased once the first row is durable.
    transport : called with the arguments of `TlsTransport`.
    health : a port of the loopback interface for ``/healthz`` and ``/metrics``; None for neither.
    proxy : the HTTP proxy through which this machine calls others.
    member_directory : the run is charged to its lifetime ledger before anything else happens.
    population : whose records they are; None for the first.
    previous, previous_state : after a membership change, the agreement of the previous version (of all
        earlier ones if its ledger is lost) and, without a member directory, its folder; needed at the first
        start only.
    start : after a membership change, the file of the model it continues from.
    module, weights : this member's copies of the agreed module file and start weights, if members wrote it.
    """

    agreement: Agreement
    identity: Identity
    records: Records
    state: str | Path | None
    log: Log = lambda event: None
    noise: NoiseSource | RunRandomness | None = None
    timing: Timing | None = None
    revoked: Iterable[str] = ()
    listen: str | None = None
    secrets: str | Path | None = None
    transport: Callable[..., TlsTransport] = TlsTransport
    health: int | None = None
    relay: str = ""
    proxy: Proxy | None = None
    member_directory: MemberDirectory | None = None
    population: str | None = None
    previous: Agreement | Iterable[Agreement] | None = None
    previous_state: str | Path | None = None
    start: str | Path | None = None
    module: str | Path | None = None
    weights: str | Path | None = None

    def check(self) -> None:
        """Raise unless the agreement is signed by all and this identity is a member with a place to write."""
        self.agreement.require_signatures()
        self.agreement.node_of(self.identity)
        if self.member_directory is None and self.state is None:
            raise ConfigError(
                "A peer needs a member directory, or a state folder for a run without one; give one of them."
            )

    @property
    def secrets_folder(self) -> str | Path | None:
        """Where the mask key is, if sums are masked."""
        if not self.agreement.masked:
            return None
        if self.secrets is None and self.member_directory is not None:
            return self.member_directory.identity_folder
        return self.secrets

    @property
    def core_timing(self) -> Timing:
        """The timing of the state machine: given, or as agreed."""
        agreed = self.agreement.timing
        return self.timing or Timing(
            retry_row=agreed.ask_again,
            retry_longest=max(4.0, agreed.ask_again),
            give_up=agreed.give_up,
            drop_after=agreed.deadline if agreed.late == "drop" else math.inf,
            witness=self.agreement.witness,
        )


def _clock_ahead() -> float:
    """Return the wall clock minus a clock that nobody sets and that counts while the machine sleeps."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Peer:
    """One organization's side of a run.

    Guarantees
    ----------
    Nothing is sent before every check has passed: signatures, certificates, data, budget, ledger; with a
    member directory also pinned certificates, the lifetime budget, and that this run and these records are
    the lifetime ledger's.
    """

    def __init__(self, config: PeerConfig) -> None:
        config.check()
        self.config, self.agreement, self.identity = config, config.agreement, config.identity
        agreement, timing, self.names = config.agreement, config.agreement.timing, config.agreement.names
        self.node, self.timing = agreement.index(config.identity.name), config.core_timing
        self._clock_ahead = _clock_ahead()
        # spans are those of the wall clock at the start; setting it later does not move them
        self._spans_from = time.monotonic() - time.time()
        self.agreed_run = AgreedRun(agreement, module=config.module, weights=config.weights)
        self._secrets = config.secrets_folder
        key = read_mask_key(self._secrets, agreement.run_id, agreement.membership_version)
        with contextlib.ExitStack() as hold:  # the previous run may send nothing while it is counted
            start, self.before = self._continue_from(hold)
            program = self.agreed_run.program(self.node, config.records, config.noise, key, start)
            spending = self.agreed_run.spending(self.node)
            strays = set(program.contacts) - set(agreement.neighbors(self.node))
            if strays:
                raise ConfigError(
                    f"The protocol connects {self.identity.name} with {self.names[min(strays)]}, who are not "
                    "neighbors in the agreed graph; agree on a graph that has this edge."
                )
            self.before.require(self.agreed_run, self.node)
            self.ledger = self._open_ledger(program.contacts, key is not None)
        self.state = self.ledger.folder
        self.pace_missed = 0
        self._wake = asyncio.Event()
        self._logged_at, self._logged_incidents = -1, 0
        self._stopping, self._stop_requested = False, False
        self._tick_at = math.inf  # when the loop next lets the core act by itself
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._arrived: list[tuple[int, bytes]] = []
        self._progress_at = self._logged_waiting = self._reported_at = time.monotonic()
        try:
            if start is not None and not self.ledger.newest()[0]:
                save_model(self.state / START, start)  # a restart needs it before the first row
            if agreement.masked and key is None and self.ledger.load().state is None:
                raise self._no_key()
            certificates = [member.certificate.encode() for member in agreement.members]
            codec = replace(self.agreed_run.codec, signer=CertificateSigner(self.identity, certificates))
            self.core = Core(program, codec, self.ledger, spending, self.timing, bound=self.agreed_run.bound)
            relay, names = config.relay or agreement.relay, (agreement.run_id, agreement.session)
            self.transport = config.transport(
                agreement.members,
                self.node,
                self.identity,
                program.contacts,
                self._deliver,
                largest=codec.largest,
                revoked=config.revoked,
                config=TransportConfig(*names, relay, config.proxy, self.log, timing.pace, self._spans_from),
            )
        except BaseException:
            self.ledger.close()
            raise
        self._erase_key()
        self._health = None if config.health is None else Health(self.report, config.health)
        self._systemd = SystemdNotifier(os.environ)

    def _open_ledger(self, contacts: tuple[int, ...], keyed: bool) -> RunLedger:
        """Charge the run, then find or create its ledger."""
        agreement, config, directory = self.agreement, self.config, self.config.member_directory
        about, earlier, run_id = self._about(contacts), self.before, agreement.run_id.hex()
        if directory is None:
            assert config.state is not None
            # without a lifetime ledger the folder itself records that it is over
            if earlier.state_folder is not None:
                give_up(earlier.state_folder, run_id)
            return RunLedger(config.state, session=agreement.session, node=self.node, about=about)
        directory.pinned_certificates.require(agreement, directory.identity.fingerprint)
        if agreement.masked and not keyed and run_id not in directory.lifetime_ledger.runs:
            raise self._no_key()  # before it is charged: it could not begin
        ledger = directory.open_run(
            directory.charge_of(
                self.agreed_run, self.node, population=config.population, continues=earlier.runs
            ),
            config.records,
            node=self.node,
            session=agreement.session,
            about=about,
            state=config.state,
            closing=earlier.closings,
        )
        folder = config.state
        if folder is not None and Path(folder).expanduser().absolute() != ledger.folder.absolute():
            config.log({"event": "known", "run_id": run_id, "state": str(ledger.folder)})
        return ledger

    def _about(self, contacts: tuple[int, ...]) -> dict[str, Any]:
        """Return the public facts that the ledger keeps for `peer status`."""
        agreement = json.loads(self.agreement.canonical)
        about = {"agreement": agreement, "rounds": self.agreed_run.rounds, "contacts": list(contacts)}
        return {**about, "before": list(self.before.parts)} if self.before.parts else about

    def _continue_from(self, hold: contextlib.ExitStack) -> tuple[np.ndarray | None, EarlierVersions]:
        """Return the model that a membership change continues from, and what was spent before it."""
        agreement, config, directory = self.agreement, self.config, self.config.member_directory
        if not agreement.continues:
            return None, EarlierVersions()
        place = None if config.state is None else Path(config.state)
        previous = None if config.previous_state is None else Path(config.previous_state)
        if directory is not None:
            runs = directory.lifetime_ledger.runs
            if agreement.run_id.hex() in runs:
                place = directory.folder / runs[agreement.run_id.hex()].state
            if agreement.continues in runs:
                previous = directory.folder / runs[agreement.continues].state
        if place is not None and (place / LEDGER).exists():  # it has begun: its own ledger knows
            parts = read_ledger(place)["about"].get("before", ())
            runs_before = tuple(part["run_id"] for part in reversed(parts))
            model = read_start(agreement, place / START, config.start)
            return model, EarlierVersions(tuple(parts), runs_before)
        earlier = earlier_versions(
            config.previous,
            agreement,
            self.identity.name,
            member_directory=directory,
            state=config.previous_state,
            hold=hold,
        )
        return read_start(agreement, config.start, None if previous is None else previous / MODEL), earlier

    def _no_key(self) -> ConfigError:
        return ConfigError(
            f"The mask key that {self.identity.name} signed for this run is not in {self._secrets}; sign the "
            "agreement again with `peer agree`, and send the others the new signature."
        )

    def _erase_key(self) -> None:
        """Erase the signed mask key as soon as a durable state holds what was derived from it."""
        if self._secrets is not None and (self.core.sent or self.core.finished):
            erase_mask_key(self._secrets, self.agreement.run_id, self.agreement.membership_version)
            self._secrets = None

    async def run(self) -> Outcome:
        """Run to the end; write the model and the statement; close everything."""
        self._event_loop = asyncio.get_running_loop()
        try:
            if self._health is not None:
                await self._health.start()
            await self.transport.start(self.config.listen)
            own = self.agreement.members[self.node]
            calls = [self.names[s] for s in self.core.program.contacts]
            address = self.config.listen or (own.address if own.reachable else "")
            event = {"event": "listening", "member": own.name, "run_id": self.agreement.run_id.hex()}
            self.log({**event, "address": address, "calls": calls})
            self._systemd.ready()
            with self._systemd.step():
                out = self.core.start(time.monotonic())
            self._send(out)
            await self._loop()
            self._systemd.stopping()
            await self.transport.flush(1.0)
        finally:
            await self.transport.stop()
            self._send([])  # logs the incident that ended the run
            if self._health is not None:
                await self._health.stop()
            self._write_live()
            try:
                outcome = self._write()
            finally:
                if self.core.finished:
                    self._erase_key()
                self.ledger.close()
        if self.core.failed is not None:
            raise self._named(self.core.failed)
        if self.config.member_directory is not None and self.core.finished:
            lifetime_ledger, head = self.config.member_directory.lifetime_ledger, self.ledger.head.hex()
            lifetime_ledger.end(self.agreement.run_id.hex(), draws=self.core.draws, head=head)
        assert outcome is not None
        return outcome

    def stop(self) -> None:
        """End the run soon, as after a signal: the model so far and the statement are written.

        A peer that had finished and only waited for its neighbors ends without an error; another ends with an
        error that says how to go on.
        """
        self._stopping = True
        if not self.core.finished and self.core.failed is None:
            self.core.failed = TryLater(f"Stopped at {self._at}; start the same command again to go on.")
        self._wake.set()

    def request_stop(self) -> None:
        """Stop from the handler of a signal, whatever the process is doing; see `stop`."""
        self._stop_requested = True
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self.stop)

    # ---- driving ---------------------------------------------------------------------------------

    async def _loop(self) -> None:
        finished_at: float | None = None
        if self._stop_requested:  # before there was a loop
            self.stop()
        while not self.core.all_done and self.core.failed is None and not self._stopping:
            now = time.monotonic()
            expired = self.transport.expired()
            if expired and not self.core.finished:
                self.core.failed = self._expired(self.names[expired[0]])
                return
            if self.core.finished:
                finished_at = now if finished_at is None else finished_at
                if now - finished_at > self.timing.linger:
                    return
            self._log_waiting(now)
            if self.agreement.timing.pace is not None:
                await self._paced_turn(self.agreement.timing.pace)
                continue
            try:
                with self._systemd.step():
                    out = self.core.tick(now)
                self._send(out)
            except SottovoceError:
                return
            self._log_round()
            self._wake.clear()
            self._tick_at = self.core.next_tick
            pause = max(0.001, self._tick_at - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=min(pause, 1.0))

    def _expired(self, name: str) -> PeerError:
        jump = _clock_ahead() - self._clock_ahead
        if abs(jump) > CLOCK:
            return TryLater(
                f"This machine's clock jumped ({apart_in_words(jump)}), and now the certificate of {name} is "
                f"expired; stopped at {self._at}; correct the clock and start the same command again."
            )
        return IdentityError(
            f"The certificate of {name} expired during the run, which ends at {self._at}; renew it "
            "(`peer keygen --renew`) and continue with `peer membership --certificate`, or correct this "
            "machine's clock."
        )

    async def _paced_turn(self, pace: float) -> None:
        """Wait for the next span; take what has come by its beginning; answer in its middle or a later one's.

        The answer goes to the transport as soon as it is durable, and the transport holds it until the
        moment. Until then this process does nothing else, it does not even accept a connection: how long
        the computation took cannot be seen from outside, unless it took longer than half a span.
        """
        begin = self._spans_from + (math.floor((time.monotonic() - self._spans_from) / pace) + 1) * pace
        while not self._stopping and (left := begin - time.monotonic()) > 0:
            self._log_waiting(time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(left, 1.0))
        if self._stopping:
            return
        out, self._arrived, arrived = [], [], self._arrived
        try:
            with self._systemd.step():
                for sender, raw in arrived:
                    try:
                        out += self.core.receive(time.monotonic(), sender, raw)
                    except FrameError as error:
                        self.transport.refuse(sender, BAD_FRAME, str(error))
                out += self.core.tick(time.monotonic())
        except SottovoceError:
            if self.core.failed is None:
                raise
        self._send(out)
        answer = begin + pace / 2
        if time.monotonic() > answer - head_start(pace):
            self.pace_missed += 1
            self.log({"event": "pace", "seconds": round(time.monotonic() - begin, 3), "pace": pace})
        while answer - head_start(pace) < time.monotonic():
            answer += pace
        resume = answer + pace / 8  # when the answer has left
        while not self._stop_requested and (left := resume - time.monotonic()) > 0:
            self._systemd.alive()
            self.transport.push(min(left, _SLICE))
        self._log_round()

    def _deliver(self, sender: int, raw: bytes) -> None:
        if self.agreement.timing.pace is not None:
            if sum(1 for who, _ in self._arrived if who == sender) >= _FRAMES_PER_TURN:
                raise FrameError("More frames came in one span than a neighbor has to send.")
            self._arrived.append((sender, raw))
            return
        try:
            with self._systemd.step():
                out = self.core.receive(time.monotonic(), sender, raw)
            self._send(out)
        except SottovoceError:
            if self.core.failed is None:
                raise  # the frame was refused
            raise PeerError("this peer has stopped") from None  # the reason stays on this machine
        finally:
            if self.core.failed is not None or self.core.finished or self.core.next_tick < self._tick_at:
                self._wake.set()
            self._log_round()

    def _send(self, out: list[tuple[int, bytes]]) -> None:
        self._erase_key()
        for incident in self.core.incidents[self._logged_incidents :]:
            self._logged_incidents += 1
            self.log({"event": "incident", "what": incident})
        for author, details in self.core.witnesses.take_refused():
            self.transport.refuse(author, "too many heads or receipts", details)
        frames: dict[int, list[bytes]] = {}
        for to, raw in out:
            frames.setdefault(to, []).append(raw)
        for to, together in frames.items():
            self.transport.send(to, *together)

    # ---- reporting -------------------------------------------------------------------------------

    def log(self, event: dict[str, Any]) -> None:
        """Log an event; a run that can no longer be watched stops, to go on when it can."""
        try:
            self.config.log(event)
        except OSError as error:
            self.stop()
            if isinstance(self.core.failed, TryLater):
                self.core.failed = TryLater(
                    f"The log cannot be written ({error.strerror}), so the run stopped at {self._at}; make "
                    "room and start the same command again."
                )

    @property
    def _at(self) -> str:
        """Where the run is, for messages about its end."""
        return f"round {self.core.durable_at} of {self.agreed_run.rounds}, everything spent is recorded"

    def _log_round(self) -> None:
        at = self.core.durable_at
        if at == self._logged_at:
            return
        self._logged_at = at
        self._progress_at = self._logged_waiting = time.monotonic()
        event = {"event": "round", "at": at, "of": self.agreed_run.rounds, "releases": self.core.draws}
        self.log({**event, "waiting": self._waiting})

    def _log_waiting(self, now: float) -> None:
        """Log now and then who is waited for, and write what `peer status` shows of a running peer."""
        self._systemd.alive()
        silent = now - self._progress_at
        due = silent > _LOG_WAITING_AFTER and now - self._logged_waiting > max(_LOG_WAITING_AFTER, silent / 2)
        if due and not self.core.finished:
            self._logged_waiting, reasons = now, self._reasons_away()
            people = [{"member": name, "why": reasons.get(name, "")} for name in self._waiting]
            self.log(
                {"event": "waiting", "for": people, "seconds": round(silent), "at": self.core.durable_at}
            )
        if now - self._reported_at > _REPORT_EVERY:
            self._reported_at = now
            self._write_live()

    @property
    def _waiting(self) -> list[str]:
        """Names of the members that are waited for."""
        return [self.names[s] for s in self.core.waiting_for]

    def _reasons_away(self) -> dict[str, str]:
        neighbors = self.transport.report().get("neighbors", {})
        return {name: each["why"] for name, each in neighbors.items() if not each["connected"]}

    def _named(self, error: SottovoceError) -> SottovoceError:
        """Return the error with members by name, and with the last reason why each was away."""
        if not isinstance(error, LostPeer):
            return error
        reasons, missing = self._reasons_away(), self._waiting
        known = "; ".join(f"{name} {reasons[name]}" for name in missing if reasons.get(name))
        return LostPeer(
            f"{', '.join(missing) or 'A neighbor'} did not come back within {self.timing.give_up:g} seconds"
            f"{f' ({known})' if known else ''}; stopped at {self._at}; start the same command again to go on."
        )

    def report(self) -> dict[str, Any]:
        """Return how far this peer is and whom it hears; none of it depends on data."""
        return {
            "member": self.identity.name,
            "run_id": self.agreement.run_id.hex(),
            "time": time.time(),
            "process": os.getpid(),
            "round": self.core.durable_at,
            "rounds": self.agreed_run.rounds,
            "finished": self.core.finished,
            "failed": self.core.failed is not None,
            "releases": self.core.draws,
            "waiting": self._waiting,
            "seconds_since_round": round(time.monotonic() - self._progress_at, 1),
            "incidents": len(self.core.incidents),
            "pace_missed": self.pace_missed,
            **self.transport.report(),
        }

    def _write_live(self) -> None:
        """Write the report beside the ledger; it is for looking at and may be lost."""
        with contextlib.suppress(DataError):
            atomic_write(self.state / LIVE, json.dumps(self.report()), durable=False, mode=0o600)

    # ---- the result ------------------------------------------------------------------------------

    @property
    def noise_description(self) -> str:
        """Whether the noise that this member adds protects its people, in words."""
        return self.core.program.mechanism.random.description

    def statement(self) -> dict[str, Any]:
        """Return what this member has revealed, to whom, under which assumptions."""
        agreement, run, core = self.agreement, self.agreed_run, self.core
        budget, draws = agreement.budget, core.draws
        planned = sum(release.draws for release in run.plan.releases(self.node))
        spent = run.spent(self.node, core.releases)
        # against one member only the whole agreed schedule was accounted: half of it can reveal more
        as_agreed = core.finished and draws == planned and agreement.timing.late == "wait"
        cipher = "AES-256 in counter mode is a pseudorandom generator"
        return {
            "version": STATEMENT_VERSION,
            "run_id": agreement.run_id.hex(),
            "member": self.identity.name,
            "finished": core.finished,
            "rounds": core.durable_at,
            "of": run.rounds,
            "steps": core.program.progress()[0],
            "membership_version": agreement.membership_version,
            "before": list(self.before.parts),
            "epsilon_all_versions": self.before.total([spent], budget.delta),
            "algorithm": agreement.algorithm.name,
            "protocol": run.plan.schedule(0).name,
            "guarantee": {**run.stated(spent, self.node), "releases": draws},
            "ldp": run.stated(run.spent_locally(self.node, core.releases), self.node),
            "network": run.stated(run.guarantee_against_members(self.node), self.node) if as_agreed else None,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "accepted": list(agreement.accept),
            "noise": _PROTECTIVE if core.program.keys is not None else self.noise_description,
            "statistical_distance": ProtectiveNoise.distance(draws * run.plan.width),
            "assumptions": [cipher, *backup_assumptions(run)],
            "checks": checks(run),
            "compared": [self.names[v] for v in core.witnesses.agreeing(core.program.progress())],
            "left_out": [[r, self.names[s]] for r, s in sorted(core.dropped)],
            "incidents": list(core.incidents),
            "proofs": list(core.proofs),
        }

    def _write(self) -> Outcome | None:
        program = self.core.program
        if not program.begun or (self.core.durable_at == 0 and not self.core.sent):
            return None
        model = np.asarray(program.result())
        statement = self.statement()
        try:
            save_model(self.state / MODEL, model)
            atomic_write(self.state / STATEMENT, json.dumps(statement, indent=1) + "\n", mode=0o600)
        except DataError as error:
            if self.core.failed is None:
                raise ConfigError(
                    f"The run is done but its model is not on the disk: {error} Make room and start again, "
                    "the ledger is complete."
                ) from None
        return Outcome(model, statement, self.core.durable_at)
