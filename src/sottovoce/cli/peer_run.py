"""`sottovoce peer run, status, ledger, compare`: the run itself, and what it leaves to look at."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, safe, table
from sottovoce.cli.peer_options import (
    HomeOption,
    Population,
    PreviousOption,
    ProxyOption,
    RelayOption,
    State,
    checked_relay,
    exit_codes,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.runtime import Peer

__all__ = ["compare", "ledger", "run", "status"]


def run(
    agreement: Annotated[Path, typer.Argument(help="The agreement, signed by all.")],
    data: Annotated[Path, typer.Option(help="This member's records, CSV or NPZ; they stay here.")],
    identity: Annotated[
        Path | None, typer.Option(help="The folder with this member's key; by default the home's.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The state folder: ledger, model, statement; by default in the home.")
    ] = None,
    home: HomeOption = None,
    population: Population = None,
    new_data: Annotated[
        str, typer.Option("--new-data", help="Why the records differ from those the run began with.")
    ] = "",
    previous: PreviousOption = None,
    previous_state: Annotated[
        Path | None, typer.Option(help="Its state folder, for a run without a home.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Listen here instead of at the agreed address.")] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(help="A certificate fingerprint that is no longer accepted.")
    ] = None,
    module: Annotated[
        Path | None,
        typer.Option(help="The file that builds the agreed network, where it is the members' own."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The agreed weights that it starts from.")] = None,
    relay: RelayOption = "",
    proxy: ProxyOption = "",
    health: Annotated[
        int | None, typer.Option(help="A port of 127.0.0.1 for /healthz and /metrics.", min=0, max=65535)
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug (every round), info, warning or error.")] = "info",
    json: Json = False,
) -> None:
    """Run this member's peer until the model is there; start it again after a crash and it goes on.

    The model, its statement and how to use it are kept as a study in the
    state folder; sottovoce predict STATE/study new.csv uses it.

    Ends with 0 when the model is there, 75 when the same command goes on later (stopped, a neighbor away),
    78 when a file, key or option is wrong, 1 otherwise. SIGTERM ends it in order, SIGHUP does nothing.

    \b
    Examples:
        sottovoce peer run agreement.toml --identity identity --data mine.npz --state state
        sottovoce peer run agreement.toml --data mine.csv --health 9400 --proxy http://proxy.example:8080
    """
    with exit_codes():
        _run(
            agreement, data, identity, state, home, population, new_data, previous,
            previous_state, listen, revoke, module, weights,
            relay, proxy, health, log_level, json,
        )  # fmt: skip


def _run(
    agreement: Path,
    data: Path,
    identity: Path | None,
    state: Path | None,
    home: Path | None,
    population: str | None,
    new_data: str,
    previous: list[Path] | None,
    previous_state: Path | None,
    listen: str | None,
    revoke: list[str] | None,
    module: Path | None,
    weights: Path | None,
    relay: str,
    proxy: str,
    health: int | None,
    log_level: str,
    json: bool,
) -> None:
    import asyncio
    import signal

    from sottovoce.cli.peer_log import Log
    from sottovoce.errors import ConfigError, PeerError
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.connector import parse_proxy
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.member_data import read_records
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.runtime import MODEL, STATEMENT, Peer

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes is no reason to end
    log = Log(json=json, level=log_level)
    agreed = read_agreement(agreement)
    agreed.require_signatures(where=str(agreement))
    at = find_member_directory(home, identity=identity)
    if at is None and (identity is None or state is None):
        raise ConfigError("Without a home a run needs --identity and --state; `peer init` makes a home.")
    key = identity if identity is not None or at is None else at.identity_folder
    assert key is not None
    own = read_identity(key)
    if at is None and not json:
        console(error=True).print("no home on this machine: what this run costs is added to no book")
    if module is not None or weights is not None:
        if agreed.model.kind != "net":
            raise ConfigError("The agreement has no network; leave --module and --weights out.")
        agreed.plan.objective.supply(module, weights)
    records = read_records(data, agreed)
    signals: list[int] = []
    place: list[Path] = []
    ran: list[Peer] = []

    async def live() -> Any:
        peer = Peer(
            agreed, own, records, state, log=log, listen=listen, revoked=revoke or (), secrets=key,
            member_directory=at, population=population, new_records=new_data, previous_state=previous_state,
            previous=[read_agreement(each) for each in previous or ()],
            start=agreement.with_suffix(".npz"), relay=checked_relay(relay),
            proxy=parse_proxy(proxy) if proxy else None, health=health,
        )  # fmt: skip
        place.append(peer.state)
        ran.append(peer)

        def stop(number: int) -> None:
            signals.append(number)
            peer.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await peer.run()

    try:
        outcome = asyncio.run(live())
    except PeerError:
        if signal.SIGINT in signals:
            raise KeyboardInterrupt from None
        raise
    files = {"model": str(place[0] / MODEL), "statement": str(place[0] / STATEMENT)}
    if agreed.model.kind != "mean":
        files["study"] = str(_keep_study(ran[0], outcome.model, agreement))
    if json:
        guarantee = outcome.statement["guarantee"]
        print(_json.dumps({"event": "done", "rounds": outcome.rounds, **files, "guarantee": guarantee}))
        return
    said = outcome.statement["guarantee"]
    out = console()
    out.print(
        f"Done after {outcome.rounds} rounds. Against {safe(said['adversary'])}: "
        f"epsilon {said['epsilon']:.4g} at delta {said['delta']:g}, adjacency {said['adjacency']}, "
        f"label {said['label']}."
    )
    out.print(f"Model: {safe(files['model'])}   Statement: {safe(files['statement'])}")
    if "study" in files:
        out.print(f"To use it: sottovoce predict {safe(files['study'])} new.csv")


def status(
    state: State,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
    json: Json = False,
) -> None:
    """Say how far a peer is, whom it has heard, what it has spent and what is left; disturbs nothing.

    \b
    Examples:
        sottovoce peer status state
        sottovoce peer status ~/.sottovoce/runs/HASH --watch
    """
    import time

    while True:
        running = _show_status(state, json, clear=watch and not json)
        if not watch or not running:
            return
        time.sleep(2.0)


def _show_status(state: Path, json: bool, *, clear: bool = False) -> bool:
    """Print the status once; return whether the peer runs."""
    from sottovoce.peers.status import read_status

    found = read_status(state)

    def text(out: Console) -> None:
        if clear:
            out.clear()
        mode = "running" if found["running"] else "finished" if found["finished"] else "stopped"
        out.print(f"{found['member']} in {safe(repr(found['title']))} ({found['run'][:16]}): {mode}")
        out.print(f"round {found['round']} of {found['rounds']}; {found['rows_sent']} rows sent")
        many = found["tolerate"]
        against = "label ldp" if not many else f"label exact, against any {many} member{'s' * (many > 1)}"
        out.print("heard: " + (", ".join(f"{n} to round {r}" for n, r in found["heard"].items()) or "nobody"))
        out.print(
            f"spent epsilon {found['epsilon_spent']:.4g} of {found['epsilon_budget']:g} at delta "
            f"{found['delta']:g} (adjacency {found['adjacency']}, {against}) in {found['releases']} releases"
        )
        out.print(f"ledger: {found['ledger_rows']} rows, chain intact, head {found['ledger_head'][:16]}")
        for incident in found["incidents"]:
            out.print(f"incident: {safe(incident)}")
        _show_live(out, found["live"], found["running"])

    emit(found, json, text)
    return bool(found["running"])


def _show_live(out: Console, live: dict[str, Any] | None, running: bool) -> None:
    """Print whom a peer hears and what it refused, as it last said."""
    if live is None:
        return
    out.print(f"connections, {live['age']:.0f} s ago{'' if running else ' (not running now)'}:")
    for name, each in live.get("neighbors", {}).items():
        heard = each["seconds_since_heard"]
        last = "never heard" if heard is None else f"last heard {heard:.0f} s before"
        how = "connected" if each["connected"] else f"away: {each['why'] or 'it has not called'}"
        out.print(safe(f"  {name}: {how}; {last}; {each['frames']} frames; package {each['package'] or '?'}"))
    for each in live.get("refused", ()):
        out.print(safe(f"  refused from {each['from']}: {each['count']} ({each['why']})"))


def ledger(state: State, json: Json = False) -> None:
    """Print every release and the digest of every row sent and heard; the whole chain is checked first."""
    from sottovoce.peers.status import read_proof

    found = read_proof(state)

    def text(out: Console) -> None:
        rows = [
            (
                r["step"],
                r["count"],
                f"{r['sensitivity']:.4g}",
                f"{r['noise_std']:.4g}",
                f"{r['sample_rate']:g}",
            )
            for r in found["releases"]
        ]
        out.print(table(["step", "count", "sensitivity", "noise std", "sample rate"], rows, title="Releases"))
        out.print(f"{len(found['sent'])} rows sent, {len(found['heard'])} heard; head {found['head']}")

    emit(found, json, text)


def compare(
    files: Annotated[
        list[Path], typer.Argument(help="What `peer ledger --json` printed, of two members or more.")
    ],
    json: Json = False,
) -> None:
    """Say whether the members' ledgers fit each other: a member that sent different rows shows here.

    \b
    Example:
        sottovoce peer compare north.json south.json east.json
    """
    from sottovoce.errors import ConfigError, PeerError
    from sottovoce.peers.compare import compare_proofs

    proofs = []
    for file in files:
        try:
            proofs.append(_json.loads(file.read_bytes()))
        except ValueError:
            raise ConfigError(f"{file} is not JSON; `sottovoce peer ledger --json` prints it.") from None
    found = compare_proofs(proofs)
    if found:
        first = found[0]
        raise PeerError(
            f"{len(found)} contradictions: member {first['sender']} sent different rows in round "
            f"{first['round']}, by the ledgers of members {', '.join(map(str, first['members']))}, or a file "
            "was changed; compare the ledgers themselves."
        )
    emit({"ledgers": len(proofs), "contradictions": []}, json, lambda out: out.print("the ledgers fit"))


def _keep_study(ran: Peer, row: Any, agreement: Path) -> Path:
    """Write what the member has learned beside its ledger, ready for `sottovoce predict`."""
    from sottovoce.models.saved import agreed_study

    spent = ran.agreed_run.spent(ran.node, ran.core.releases)
    study = agreed_study(
        ran.agreement, ran.agreed_run.plan, row, spent, noise="protective", member=ran.identity.name
    )
    return study.save(ran.state / "study", also={"agreement.toml": agreement.read_bytes()})
