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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sottovoce import __version__
from sottovoce._format import compared, number
from sottovoce.errors import SottovoceError, TryLater
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement, read_agreement
from sottovoce.peers.connection import Proxy, client_context, read_message, write_message
from sottovoce.peers.forecast import forecast
from sottovoce.peers.identity import Identity, expiry, read_identity
from sottovoce.peers.listener import Listener
from sottovoce.peers.member_data import read_records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.status import read_status
from sottovoce.peers.transport import CLOCK, HELLO, Hello, TlsTransport, TransportConfig, apart_in_words

_SOON = 30  # days before its end that a certificate is worth a word


@dataclass(frozen=True)
class Finding:
    """One line of a check: what was checked, whether it passed, and why.

    ``fatal`` is true for a wrong file or key, false for what may pass by itself: a neighbor's peer is not
    running yet.
    """

    what: str
    passed: bool
    says: str
    fatal: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"what": self.what, "well": self.passed, "says": self.says, "fatal": self.fatal}


@dataclass
class Checked:
    """The findings about files, and the agreement and the identity as far as they could be read."""

    findings: list[Finding] = field(default_factory=list)
    agreement: Agreement | None = None
    identity: Identity | None = None

    def add(self, what: str, check: Callable[..., str], *arguments: object) -> None:
        """Add what ``check`` returns, or the reason why it raises."""
        try:
            self.findings.append(Finding(what, True, check(*arguments)))
        except (SottovoceError, OSError) as error:
            self.findings.append(Finding(what, False, str(error)))


def check_files(
    agreement: str | Path,
    *,
    identity: str | Path,
    data: str | Path | None = None,
    state: str | Path | None = None,
    member_directory: MemberDirectory | None = None,
    population: str | None = None,
) -> Checked:
    """Check everything on this machine: agreement, signatures, key, records, cost, ledgers, disk."""
    checked = Checked()
    checked.add("agreement", _agreement, checked, agreement)
    agreed = checked.agreement
    if agreed is None:
        return checked
    checked.add("signatures", _signatures, agreed, str(agreement))
    checked.add("identity", _identity, checked, agreed, identity)
    if data is not None:
        checked.add("data", _records, data, agreed)
    checked.add("privacy cost", _privacy_cost, agreed, checked.identity)
    if member_directory is not None:
        checked.add("lifetime budget", _lifetime_budget, member_directory, agreed, population)
        state = state or member_directory.folder / "runs" / agreed.run_id.hex()
    if state is not None:
        checked.add("ledger", _ledger, Path(state), agreed)
    return checked


def _agreement(checked: Checked, file: str | Path) -> str:
    checked.agreement = agreed = read_agreement(file)
    return f"{agreed.title!r}, run {agreed.run_id.hex()[:16]}, members {', '.join(agreed.names)}"


def _signatures(agreed: Agreement, where: str) -> str:
    agreed.require_signatures(where=where)
    return f"all {len(agreed.members)} members have signed this text"


def _identity(checked: Checked, agreed: Agreement, folder: str | Path) -> str:
    own = read_identity(folder)
    agreed.node_of(own)
    checked.identity = own
    until = dt.datetime.fromtimestamp(expiry(own.certificate), dt.UTC)
    days = (until - dt.datetime.now(dt.UTC)).days
    soon = ": renew it before a long run" if days < _SOON else ""
    return f"{own.name}, certificate valid until {until:%Y-%m-%d %H:%M} UTC, {days} days{soon}"


def _records(data: str | Path, agreed: Agreement) -> str:
    records = read_records(data, agreed)
    wanted = ", ".join(agreed.data.features) or "X"
    return f"{data} fits the agreement ({records.X.shape[1]} numbers per record: {wanted[:120]})"


def _privacy_cost(agreed: Agreement, identity: Identity | None) -> str:
    agreed_run = AgreedRun(agreed)
    node = agreed.index(identity.name) if identity is not None else 0
    agreed_run.spending(node)
    epsilon = agreed_run.charged_guarantee(node).epsilon(agreed.budget.delta)
    spent, limit = compared(epsilon, agreed.budget.epsilon)
    return (
        f"epsilon {spent} of {limit} at delta {number(agreed.budget.delta, 'delta')} in "
        f"{agreed_run.rounds} rounds"
    )


def _lifetime_budget(member_directory: MemberDirectory, agreed: Agreement, population: str | None) -> str:
    expected = forecast(member_directory, AgreedRun(agreed), population=population)
    if agreed.run_id.hex() in member_directory.lifetime_ledger.runs:
        return f"all certificates are pinned; the run is known and goes on in {member_directory.folder}"
    expected.require("the run will not start")
    sums = ((compared(row["total"], row["epsilon"], "spent"), row["view"]) for row in expected.lifetime)
    shown = "; ".join(f"{total} of {limit} after it ({view})" for (total, limit), view in sums)
    return f"all certificates are pinned; {shown}"


def _ledger(place: Path, agreed: Agreement) -> str:
    around = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    free = shutil.disk_usage(around).free
    if not os.access(around, os.W_OK):
        raise SottovoceError(f"{around} cannot be written by this user; give it another folder or owner")
    room = f"{free / 2**30:.1f} GiB free"
    if free < 64 * 2**20:
        raise SottovoceError(f"{around} has {free / 2**20:.0f} MiB free; a run needs more")
    if not place.exists():
        return f"{place} will be made; {room}"
    status = read_status(place)
    if status["session"] != agreed.session.hex():
        raise SottovoceError(f"{place} holds another run, {status['session'][:16]}; give it another folder")
    mode = "is running" if status["running"] else "finished" if status["finished"] else "goes on"
    return f"{place} {mode} at round {status['round']} of {status['rounds']}, chain intact; {room}"


# ---- neighbors ------------------------------------------------------------------------------------------


async def check_neighbors(
    agreement: Agreement, identity: Identity, *, listen: str | None = None, proxy: Proxy | None = None
) -> list[Finding]:
    """Try whether the own address is free, and call every neighbor that can be called."""
    config = TransportConfig(agreement.run_id, agreement.session, agreement.relay, proxy)
    probe = _Probe(agreement, identity, config)
    port = await probe.try_port(listen)
    errors = await asyncio.gather(*map(probe.ask, probe.contacts))
    neighbors = [probe.neighbor(s, error) for s, error in zip(probe.contacts, errors, strict=True)]
    return [port, *neighbors, *probe.clocks()]


class _Probe(TlsTransport):
    """The greeting of a connection and nothing after it."""

    def __init__(self, agreement: Agreement, identity: Identity, config: TransportConfig) -> None:
        node = agreement.index(identity.name)
        around, nothing = agreement.neighbors(node), lambda sender, raw: None
        super().__init__(agreement.members, node, identity, around, nothing, largest=1, config=config)
        self.hellos: dict[int, Hello] = {}

    def _hello(self, *, only_check: bool = True) -> Hello:
        return Hello(
            self.config.run_id, self.config.session, self.clock(), __version__, only_check=only_check
        )

    async def try_port(self, address: str | None) -> Finding:
        """Try whether this member's peer could listen."""
        own = self.members[self.node]
        if address is None and not own.reachable:
            return Finding("port", True, "outbound: this machine calls the others and listens nowhere")
        address = address or own.address
        listener = Listener(address, _close)
        try:
            await listener.open()
        except TryLater:
            return Finding("port", True, f"{address} is in use: by this member's peer, or by another process")
        except SottovoceError as error:
            return Finding("port", False, str(error))
        listener.close()
        return Finding("port", True, f"{address} is free")

    async def ask(self, s: int) -> str | None:
        """Call a neighbor; return why it did not answer, or None."""
        other = self.members[s]
        if not other.reachable and (self.members[self.node].reachable or not self.config.relay):
            return None
        try:
            async with asyncio.timeout(12.0):
                await self._call(s, client_context(self.identity, other.certificate))
        except (SottovoceError, OSError) as error:
            return str(error)
        return None

    async def _greet(self, tls: ssl.SSLSocket, to: int, *, calling: bool) -> None:
        try:
            await write_message(tls, self._hello().to_bytes())
            self.hellos[to] = Hello.read(await read_message(tls, HELLO.size))
        finally:
            tls.close()

    def neighbor(self, s: int, error: str | None) -> Finding:
        """Return the finding about one neighbor; ``error`` says why it did not answer."""
        name, hello = self.members[s].name, self.hellos.get(s)
        if hello is None and error is None:
            return Finding(name, True, f"{name} is outbound: it calls this machine when it runs")
        if hello is None:
            return Finding(name, False, f"{name} {error}", fatal=False)
        against = hello.against(self._hello(only_check=False))
        if against:
            return Finding(name, False, f"{name} {against}")
        return Finding(name, True, f"certificate as agreed, the same run, package {hello.package}")

    def clocks(self) -> list[Finding]:
        """Return the finding about the clocks of this machine and its neighbors, if one answered."""
        apart = {self.members[s].name: each.clock_apart(self.clock()) for s, each in self.hellos.items()}
        wrong = [
            f"{name}'s is {apart_in_words(seconds)}"
            for name, seconds in apart.items()
            if abs(seconds) > CLOCK
        ]
        if not wrong:
            within = f"within {max(map(abs, apart.values()), default=0):.0f} s of the neighbors'"
            return [Finding("clock", True, within)] if apart else []
        now = f"this machine says {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
        return [Finding("clock", False, f"{now}, {', '.join(wrong)}; set the wrong one by NTP")]


async def _close(sock: ssl.SSLSocket, host: str) -> None:
    sock.close()
