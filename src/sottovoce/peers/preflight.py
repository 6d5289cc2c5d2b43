"""`sottovoce peer check`: everything that can be known before a run, one line each; nothing is drawn or sent.

To a neighbor goes only what every connection begins with: TLS with both certificates, and which agreement is
held here. Its answer shows its certificate, its agreement, its version and its clock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shutil
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce.errors import SottovoceError, TryLater
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement, read_agreement
from sottovoce.peers.connection import Proxy, client_context, read_message, server_context, write_message
from sottovoce.peers.identity import Identity, expiry, read_identity
from sottovoce.peers.listener import Listener
from sottovoce.peers.member_data import read_records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.status import read_status
from sottovoce.peers.transport import (
    CLOCK,
    HELLO,
    Hello,
    TlsTransport,
    TransportConfig,
    apart_in_words,
    shown_fingerprint,
)

_SOON = 30  # days before its end that a certificate is worth a word


@dataclass(frozen=True)
class Finding:
    """One line of a check: what was looked at, whether it is well, and what was found.

    ``fatal`` tells a wrong file or key from something that may pass, as a neighbor who is not there yet.
    """

    what: str
    well: bool
    says: str
    fatal: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"what": self.what, "well": self.well, "says": self.says, "fatal": self.fatal}


@dataclass
class Checked:
    """What the files gave, as far as they are well."""

    findings: list[Finding]
    agreement: Agreement | None = None
    identity: Identity | None = None


def check_files(
    agreement: str | Path,
    *,
    identity: str | Path,
    data: str | Path | None = None,
    state: str | Path | None = None,
    member_directory: MemberDirectory | None = None,
    population: str | None = None,
) -> Checked:
    """Look at everything on this machine: agreement, signatures, key, records, price, lifetime ledger,
    ledger, disk.
    """
    result = Checked([])

    def look(what: str, test: Callable[[], str], *, fatal: bool = True) -> bool:
        try:
            result.findings.append(Finding(what, True, test()))
        except (SottovoceError, OSError) as error:
            result.findings.append(Finding(what, False, str(error), fatal))
        return result.findings[-1].well

    def text() -> str:
        result.agreement = read_agreement(agreement)
        names = ", ".join(member.name for member in result.agreement.members)
        return f"{result.agreement.title!r}, run {result.agreement.run.hex()[:16]}, members {names}"

    if not look("agreement", text) or result.agreement is None:
        return result
    agreed = result.agreement

    def signed() -> str:
        agreed.require_signatures(where=str(agreement))
        return f"all {len(agreed.members)} members have signed this text"

    def own() -> str:
        key = read_identity(identity)
        member = agreed.members[agreed.index(key.name)]
        if member.fingerprint != key.fingerprint:
            raise SottovoceError(
                f"the agreement lists another certificate for {key.name} ({member.fingerprint[:16]}) than "
                f"{identity} holds ({key.fingerprint[:16]}); use the identity that signed it"
            )
        result.identity = key
        until = dt.datetime.fromtimestamp(expiry(key.certificate), dt.UTC)
        days = (until - dt.datetime.now(dt.UTC)).days
        soon = ": renew it before a long run" if days < _SOON else ""
        return f"{key.name}, certificate valid until {until:%Y-%m-%d %H:%M} UTC, {days} days{soon}"

    look("signatures", signed)
    look("identity", own)
    if data is not None:
        look("data", lambda: _records(data, agreed))
    look("privacy cost", lambda: _privacy_cost(agreed, result.identity))
    if member_directory is not None:
        look("lifetime budget", lambda: _lifetime_budget(member_directory, agreed, population))
    if state is not None or member_directory is not None:
        place = Path(state) if state is not None else member_directory.folder / "runs" / agreed.run.hex()  # type: ignore[union-attr]
        look("ledger", lambda: _ledger(place, agreed))
    return result


def _records(data: str | Path, agreed: Agreement) -> str:
    records = read_records(data, agreed)
    wanted = ", ".join(agreed.data.features) or "X"
    return f"{data} fits the agreement ({records.X.shape[1]} numbers per record: {wanted[:120]})"


def _privacy_cost(agreed: Agreement, identity: Identity | None) -> str:
    agreed_run = AgreedRun(agreed)
    node = agreed.index(identity.name) if identity is not None else 0
    agreed_run.spending(node)
    epsilon = agreed_run.charged_guarantee(node).epsilon(agreed.budget.delta)
    return (
        f"epsilon {epsilon:.4g} of {agreed.budget.epsilon:g} at delta {agreed.budget.delta:g} in "
        f"{agreed_run.rounds} rounds"
    )


def _lifetime_budget(member_directory: MemberDirectory, agreed: Agreement, population: str | None) -> str:
    member_directory.pinned_certificates.require(agreed, member_directory.identity.fingerprint)
    agreed_run = AgreedRun(agreed)
    if agreed.run.hex() in member_directory.lifetime_ledger.runs:
        return f"all certificates are pinned; the run is known and goes on in {member_directory.folder}"
    rows = member_directory.lifetime_ledger.forecast(
        member_directory.charge_of(agreed_run, agreed.index(member_directory.name), population=population)
    )
    for row in rows:
        if not row["total"] <= row["epsilon"]:
            raise SottovoceError(
                f"spent {row['spent']:.4g}, this adds {row['adds']:.4g}: {row['total']:.4g} of a lifetime "
                f"budget of {row['epsilon']:g}; `peer budget --raise` is the officer's act"
            )
    shown = "; ".join(f"{row['total']:.4g} of {row['epsilon']:g} after it ({row['view']})" for row in rows)
    return f"all certificates are pinned; {shown}"


def _ledger(place: Path, agreed: Agreement) -> str:
    around = place
    while not around.exists():
        around = around.parent
    free = shutil.disk_usage(around).free
    if not os.access(around, os.W_OK):
        raise SottovoceError(f"{around} cannot be written by this user; give it another folder or owner")
    room = f"{free / 2**30:.1f} GiB free"
    if free < 64 * 2**20:
        raise SottovoceError(f"{around} has {free / 2**20:.0f} MiB free; a run needs more")
    if not place.exists():
        return f"{place} will be made; {room}"
    status = read_status(place)
    if status["run"] not in (agreed.run.hex(), agreed.session.hex()):
        raise SottovoceError(f"{place} holds another run, {status['run'][:16]}; give it another folder")
    mode = "is running" if status["running"] else "finished" if status["finished"] else "goes on"
    return f"{place} {mode} at round {status['round']} of {status['rounds']}, chain intact; {room}"


# ---- the others -----------------------------------------------------------------------------------------


async def check_neighbors(
    agreement: Agreement,
    identity: Identity,
    *,
    listen: str | None = None,
    relay: str = "",
    proxy: Proxy | None = None,
    wait: float = 0.0,
) -> list[Finding]:
    """Call every neighbor that can be called; with ``wait`` also listen so long for those that call.

    Parameters
    ----------
    agreement, identity : as `check_files` found them.
    listen, relay, proxy : as for the run.
    wait : seconds to stay at the listener; 0 only tries whether the address is free.
    """
    node = agreement.index(identity.name)
    around = agreement.neighbors(node)
    config = TransportConfig(agreement.run, agreement.session, relay or agreement.relay, proxy)
    probe = _Probe(agreement.members, node, identity, around, lambda s, raw: None, largest=1, config=config)
    findings = [await _port(probe, listen, wait)]
    called = asyncio.gather(*[probe.ask(s, wait) for s in around])
    if probe.listener is not None and wait:
        await asyncio.sleep(wait)
        probe.listener.close()
    answers = dict(zip(around, await called, strict=True))
    for s in around:
        findings.append(_verdict(probe, agreement, s, answers[s], bool(wait)))
    ahead = [hello.clock_apart(probe.clock()) for hello in probe.hellos.values()]
    if ahead:
        worst = max(ahead, key=abs)
        well = abs(worst) <= CLOCK
        says = f"within {abs(worst):.0f} s of the neighbors'" if well else _clocks(probe, agreement)
        findings.append(Finding("clock", well, says))
    return findings


def _clocks(probe: _Probe, agreement: Agreement) -> str:
    now = dt.datetime.now(dt.UTC)
    apart = [
        f"{agreement.members[s].name}'s is {apart_in_words(hello.clock_apart(probe.clock()))}"
        for s, hello in probe.hellos.items()
        if abs(hello.clock_apart(probe.clock())) > CLOCK
    ]
    return f"this machine says {now:%Y-%m-%d %H:%M} UTC, {', '.join(apart)}; set the wrong one by NTP"


async def _port(probe: _Probe, listen: str | None, wait: float) -> Finding:
    own = probe.members[probe.node]
    if listen is None and not own.reachable:
        return Finding("port", True, "outbound: this machine calls the others and listens nowhere")
    address = listen or own.address
    roots = [probe.members[s].certificate for s in probe.contacts]
    listener = Listener(address, probe.answer, context=server_context(probe.identity, roots))
    try:
        await listener.open()
    except TryLater:
        return Finding("port", True, f"{address} is in use: by this member's peer, or by another process")
    except SottovoceError as error:
        return Finding("port", False, str(error))
    if wait:
        probe.listener = listener
    else:
        listener.close()
    return Finding("port", True, f"{address} is free" + (f", listening for {wait:g} s" if wait else ""))


def _verdict(probe: _Probe, agreement: Agreement, s: int, error: str | None, waited: bool) -> Finding:
    """Return the line of one neighbor, from what it said, whoever called."""
    name = agreement.members[s].name
    hello = probe.hellos.get(s)
    reached = "; it reached this machine" if s in probe.came else ""
    if hello is not None:
        own = Hello(agreement.run, agreement.session, probe.clock(), __version__)
        against = hello.against(own)
        if against:
            return Finding(name, False, f"{name} {against}")
        apart = hello.clock_apart(own.time)
        clock = f"clock within {CLOCK:g} s" if abs(apart) <= CLOCK else f"clock {apart_in_words(apart)}"
        says = f"certificate as agreed, the same run, package {hello.package}, {clock}{reached}"
        return Finding(name, True, says)
    if error is None:
        hint = "it has not called" if waited else "try --wait 60 while its peer runs"
        return Finding(name, not waited, f"{name} is outbound and has to call: {hint}", fatal=False)
    return Finding(name, False, f"{name} {error}", fatal=False)


class _Probe(TlsTransport):
    """The greeting of a connection and nothing after it."""

    def __init__(self, members: Iterable[Any], *arguments: Any, **options: Any) -> None:
        super().__init__(members, *arguments, **options)
        self.hellos: dict[int, Hello] = {}
        self.came: set[int] = set()

    def _hello(self) -> Hello:
        return Hello(self.config.run, self.config.session, self.clock(), __version__, only_check=True)

    async def ask(self, s: int, wait: float) -> str | None:
        """Call a neighbor; return why it did not answer, or None."""
        other = self.members[s]
        if not other.reachable and (self.members[self.node].reachable or not self.config.relay):
            return None
        try:
            async with asyncio.timeout(max(wait, 12.0)):
                await self._call(s, client_context(self.identity, other.certificate))
        except (SottovoceError, OSError) as error:
            return str(error)
        return None

    async def answer(self, tls: ssl.SSLSocket, host: str) -> None:
        """Answer somebody who calls while the listener is open."""
        sender = self._pins.get(shown_fingerprint(tls))
        if sender is None:
            tls.close()
            return
        self.came.add(sender)
        await self._greet(tls, sender, calling=False)

    async def _greet(self, tls: ssl.SSLSocket, to: int, *, calling: bool) -> None:
        try:
            await write_message(tls, self._hello().to_bytes())
            self.hellos[to] = Hello.read(await read_message(tls, HELLO.size))
        finally:
            tls.close()
