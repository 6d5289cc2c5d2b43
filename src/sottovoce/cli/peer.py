"""`sottovoce peer`: one organisation's side of a run, from its key to its statement."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, safe, table

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.agreement import Agreement

__all__ = ["peer"]

peer = typer.Typer(
    help="""One organisation's side: its key, the agreement, the run, the ledger.

\b
Examples:
    sottovoce peer keygen identity --name north
    sottovoce peer agree agreement.toml --sign identity
    sottovoce peer run agreement.toml --identity identity --data mine.csv --state state
    sottovoce peer status state
""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

State = Annotated[Path, typer.Argument(help="The state folder of a running or stopped peer.")]


@peer.command()
def keygen(
    folder: Annotated[Path, typer.Argument(help="A new folder for the key and the certificate.")],
    name: Annotated[str, typer.Option(help="The member's name: lower-case letters, digits, hyphens.")],
    days: Annotated[float, typer.Option(help="How long the certificate is valid.")] = 730.0,
    json: Json = False,
) -> None:
    """Make an identity: a private key that stays here, and a certificate to give to the others.

    \b
    Example:
        sottovoce peer keygen identity --name north
    """
    from sottovoce.peers.identity import CERTIFICATE, make_identity

    identity = make_identity(folder, name, days=days)
    certificate = folder / CERTIFICATE
    found = {"name": name, "certificate": str(certificate), "fingerprint": identity.fingerprint}

    def text(out: Console) -> None:
        out.print(f"{name}: {identity.fingerprint}")
        out.print(
            f"Give {safe(certificate)} to the other members; read the fingerprint to them by telephone."
        )

    emit(found, json, text)


@peer.command()
def agree(
    file: Annotated[Path, typer.Argument(help="A draft (with --member and --output) or an agreement.")],
    member: Annotated[
        list[str] | None, typer.Option("--member", "-m", help="CERTIFICATE@HOST:PORT, in the graph's order.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the agreement here.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign with the identity in this folder.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Take over the signatures in another member's copy.")
    ] = None,
    json: Json = False,
) -> None:
    """Build, check, price and sign an agreement; what it costs is printed before anything is signed.

    \b
    Examples:
        sottovoce peer agree draft.toml -m north.pem@10.0.0.1:7000 -m south.pem@10.0.0.2:7000 -o a.toml
        sottovoce peer agree agreement.toml
        sottovoce peer agree agreement.toml --sign identity
        sottovoce peer agree agreement.toml --merge from-south.toml
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import merge_signatures, read_agreement, sign_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.jobs import Job

    if member:
        if output is None:
            raise ConfigError("Building an agreement needs --output, the file to write.")
        agreement, file = _build(file, member, output), output
    else:
        agreement = read_agreement(file)
    job = Job(agreement)
    rows = job.table()
    if not json:
        _show_price(console(), agreement, rows)
    for node in range(job.n):
        job.spending(node)
    for other in merge or ():
        agreement = merge_signatures(file, other)
    if sign is not None:
        agreement = sign_agreement(file, read_identity(sign))
    missing = [m.name for m in agreement.members if m.name not in agreement.signatures]
    found = {
        "file": str(file),
        "run": agreement.run.hex(),
        "rounds": job.rounds,
        "members": rows,
        "signed": sorted(agreement.signatures),
        "missing": missing,
    }
    emit(found, json, lambda out: _show_signatures(out, agreement, missing))


@peer.command()
def run(
    agreement: Annotated[Path, typer.Argument(help="The agreement, signed by all.")],
    identity: Annotated[Path, typer.Option(help="The folder with this member's key.")],
    data: Annotated[Path, typer.Option(help="This member's records, CSV or NPZ; they stay here.")],
    state: Annotated[Path, typer.Option(help="The state folder: ledger, model, statement.")],
    listen: Annotated[str | None, typer.Option(help="Listen here instead of at the agreed address.")] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(help="A certificate fingerprint that is no longer accepted.")
    ] = None,
    json: Json = False,
) -> None:
    """Run this member's peer until the model is there; start it again after a crash and it goes on.

    \b
    Example:
        sottovoce peer run agreement.toml --identity identity --data mine.npz --state state
    """
    import asyncio
    import signal

    from sottovoce.errors import PeerError
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.records import read_records
    from sottovoce.peers.runtime import MODEL, STATEMENT, Peer

    agreed = read_agreement(agreement)
    agreed.require_signatures(where=str(agreement))
    own = read_identity(identity)
    records = read_records(data, agreed)
    show = _lines if json else _progress(agreed)

    signals: list[int] = []

    async def live() -> Any:
        peer = Peer(agreed, own, records, state, log=show, listen=listen, revoked=revoke or ())

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
    files = {"model": str(state / MODEL), "statement": str(state / STATEMENT)}
    if json:
        _lines(
            {"event": "done", "rounds": outcome.rounds, **files, "guarantee": outcome.statement["guarantee"]}
        )
        return
    said = outcome.statement["guarantee"]
    out = console()
    out.print(
        f"Done after {outcome.rounds} rounds. Against everybody who sees all messages of {own.name}: "
        f"epsilon {said['epsilon']:.4g} at delta {said['delta']:g}, adjacency {said['adjacency']}, "
        f"label {said['label']}."
    )
    out.print(f"Model: {safe(files['model'])}   Statement: {safe(files['statement'])}")


@peer.command()
def status(state: State, json: Json = False) -> None:
    """Say how far a peer is, whom it has heard, what it has spent and what is left; disturbs nothing."""
    from sottovoce.peers.status import read_status

    found = read_status(state)

    def text(out: Console) -> None:
        mode = "running" if found["running"] else "finished" if found["finished"] else "stopped"
        out.print(f"{found['member']} in {safe(repr(found['title']))} ({found['run'][:16]}): {mode}")
        out.print(f"round {found['round']} of {found['rounds']}; {found['rows_sent']} rows sent")
        out.print("heard: " + (", ".join(f"{n} to round {r}" for n, r in found["heard"].items()) or "nobody"))
        out.print(
            f"spent epsilon {found['epsilon_spent']:.4g} of {found['epsilon_budget']:g} at delta "
            f"{found['delta']:g} (adjacency {found['adjacency']}, label ldp) in {found['releases']} releases"
        )
        out.print(f"ledger: {found['ledger_rows']} rows, chain intact, head {found['ledger_head'][:16]}")
        for incident in found["incidents"]:
            out.print(f"incident: {safe(incident)}")

    emit(found, json, text)


@peer.command()
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


def _build(draft: Path, members: list[str], output: Path) -> Agreement:
    import tomllib

    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import member_entry, write_agreement
    from sottovoce.peers.identity import read_certificate

    entries = []
    for text in members:
        certificate, at, address = text.rpartition("@")
        if not at or not certificate:
            raise ConfigError(f"A member is CERTIFICATE@HOST:PORT, got {text!r}.")
        entries.append(member_entry(read_certificate(certificate), address))
    try:
        content = tomllib.loads(draft.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The draft {draft} cannot be read: {error}.") from None
    for taken in ("members", "signatures"):
        if taken in content:
            raise ConfigError(f"The draft {draft} must not hold [{taken}]; members are given with --member.")
    return write_agreement(output, content, entries)


def _show_price(out: Console, agreement: Agreement, rows: list[dict[str, Any]]) -> None:
    part = agreement.algorithm
    out.print(safe(f"{agreement.title}: {part.name} over {part.protocol} on {agreement.graph}"))
    out.print(f"run {agreement.run.hex()}")
    shown = [
        (
            row["member"],
            row["releases"],
            *(
                f"{row[f'epsilon_{view}']:.4g} ({row[f'label_{view}']})"
                for view in ("local", "network", "mean")
            ),
            f"{row['budget']:g}",
        )
        for row in rows
    ]
    heads = ["member", "releases", "all messages seen", "worst member", "mean member", "budget"]
    title = f"epsilon at delta {agreement.budget.delta:g}, adjacency {part.adjacency}"
    out.print(table(heads, shown, title=title))


def _show_signatures(out: Console, agreement: Agreement, missing: list[str]) -> None:
    out.print(f"signed by {', '.join(sorted(agreement.signatures)) or 'nobody yet'}")
    if missing:
        out.print(f"still to sign: {', '.join(missing)}")


def _lines(event: dict[str, Any]) -> None:
    print(_json.dumps(event), flush=True)


def _progress(agreed: Agreement) -> Any:
    """Return a listener: a bar on a terminal, one line in ten otherwise."""
    out = console(error=True)
    said = {"tenth": -1}

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "listening":
            out.print(f"{event['member']} is listening; run {event['run'][:16]}, waiting for its neighbours")
            return
        tenth = 10 * event["at"] // max(event["of"], 1)
        if out.is_terminal:
            waiting = ", ".join(event["waiting"]) or "nobody"
            line = f"round {event['at']}/{event['of']}  releases {event['releases']}  waiting for {waiting}"
            out.print(line.ljust(78)[:78], end="\r")
        elif tenth != said["tenth"]:
            said["tenth"] = tenth
            out.print(f"round {event['at']} of {event['of']}, {event['releases']} releases")

    return show
