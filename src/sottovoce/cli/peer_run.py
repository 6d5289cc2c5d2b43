"""`sottovoce peer check, run, status, ledger, compare, service`: a run, its checks and its ledger."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from sottovoce._format import Quantity, significant
from sottovoce.cli.options import Json
from sottovoce.cli.output import console, emit, safe, table, template
from sottovoce.cli.peer_options import (
    AgreementFile,
    DirectoryOption,
    Health,
    IdentityOption,
    Listen,
    Population,
    PreviousOption,
    ProxyOption,
    Records,
    State,
    StateOption,
    exit_codes,
    find_member,
    private_process,
    require_directory,
)
from sottovoce.errors import ConfigError, LedgerError, PeerError

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.runtime import Outcome, Peer


@exit_codes()
@private_process()
def run(
    agreement: AgreementFile,
    data: Records,
    identity: IdentityOption = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    population: Population = None,
    previous: PreviousOption = None,
    listen: Listen = None,
    revoke: Annotated[list[str] | None, Option(help="A fingerprint that is no longer accepted.")] = None,
    module: Annotated[Path | None, Option(help="Your copy of the agreed module file.")] = None,
    weights: Annotated[Path | None, Option(help="Your copy of the agreed initial weights.")] = None,
    proxy: ProxyOption = "",
    health: Health = None,
    log_level: Annotated[str, Option(help="debug (every round), info, warning or error.")] = "info",
    json: Json = False,
) -> None:
    """Run this member's peer until the model is finished; after a crash, start it again to continue.

    The model, its statement and its columns are stored in STATE/saved_model;
    sottovoce predict STATE/saved_model new.csv uses it.

    Exit code 0: finished. 75: start the same command again later (stopped, a neighbor is away, disk full).
    78: a file, key or option is wrong. 1: anything else. SIGTERM stops it cleanly, SIGHUP is ignored.
    """
    import signal

    from sottovoce.cli.peer_log import Log
    from sottovoce.peers.agreement import check_address, read_agreement
    from sottovoce.peers.connection import parse_proxy
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.member_data import read_records
    from sottovoce.peers.runtime import MODEL, STATEMENT, Peer, PeerConfig

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes does not end the run
    log = Log(json=json, level=log_level)
    if listen:
        check_address(listen, "The address in --listen")
    agreed = read_agreement(agreement)
    agreed.require_signatures(where=str(agreement))
    own, key = find_member(directory, identity, state)
    member = read_identity(key)
    if own is None and not json:
        console(error=True).print(
            "Warning: no lifetime budget is kept on this machine (`sottovoce peer init` creates one)."
        )
    config = PeerConfig(
        agreed,
        member,
        read_records(data, agreed),
        state,
        log=log,
        listen=listen,
        revoked=revoke or (),
        secrets=key,
        member_directory=own,
        population=population,
        previous=[read_agreement(each) for each in previous or ()],
        start=agreement.with_suffix(".npz"),
        module=module,
        weights=weights,
        proxy=parse_proxy(proxy) if proxy else None,
        health=health,
    )
    peer = Peer(config)
    outcome = _run_until_done(peer)
    files = {"model": str(peer.state / MODEL), "statement": str(peer.state / STATEMENT)}
    if agreed.model.kind != "mean":
        files["saved_model"] = str(_save_model(peer, outcome, agreement))
    result = {"rounds": outcome.rounds, **files, "guarantee": outcome.statement["guarantee"]}
    if json:  # one line, as the events before it
        print(json_module.dumps({"event": "done", **result}))
    else:
        template("peer_run", **result)(console())


def _run_until_done(peer: Peer) -> Outcome:
    """Run a peer; SIGTERM and Ctrl-C stop it in order."""
    import asyncio
    import signal

    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        peer.request_stop()

    # the loop's own handlers wait for its turn, which a paced answer delays
    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        return asyncio.run(peer.run())
    except PeerError:
        if signal.SIGINT in received:
            raise KeyboardInterrupt from None
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _save_model(peer: Peer, outcome: Outcome, agreement: Path) -> Path:
    """Write the member's model next to its ledger, for `sottovoce predict`."""
    from sottovoce.peers.agreed_model import agreed_model

    plan, member = peer.agreed_run.plan, peer.identity.name
    spent = peer.agreed_run.spent(peer.node, peer.core.releases)
    about = {"noise": peer.noise_description, "member": member}
    fitted = agreed_model(peer.agreement, plan, outcome.model, spent, **about)
    return fitted.save(
        peer.state / "saved_model", also={"agreement.toml": agreement.read_bytes()}, replace=True
    )


def status(state: State, json: Json = False) -> None:
    """Print the progress and connections of a peer, and the privacy budget spent and left."""
    from sottovoce.peers.status import read_status

    now = read_status(state)
    emit(now, json, template("peer_status", status=now))


@exit_codes()
def ledger(
    state: Annotated[Path | None, Argument(help="The state folder of a running or stopped peer.")] = None,
    verify: Annotated[bool, Option("--verify", help="Only check; without a folder, every ledger.")] = False,
    compact: Annotated[
        bool, Option("--compact", help="Reduce the ledger of a finished run; without a folder, of all.")
    ] = False,
    directory: DirectoryOption = None,
    json: Json = False,
) -> None:
    """Print every release and the digest of every row sent and received; the whole chain is checked first.

    With --verify, for cron: exit code 0 if all ledgers are whole, 1 if one is damaged or older than its head.
    With --compact the releases of a finished run stay and its messages go: the run cannot be started again.
    """
    from sottovoce.peers.status import read_proof

    if verify and compact:
        raise ConfigError("--verify changes nothing and --compact does; give one of them.")
    if verify:
        _verify(state, directory, json)
        return
    if compact:
        folders = _compact(state, directory)
        emit({"compacted": folders}, json, [f"{len(folders)} ledgers are compacted.", *folders])
        return
    if state is None:
        raise ConfigError("Name the state folder whose ledger to print, or add --verify to check all.")
    proof = read_proof(state)

    # what protects: noise downwards, what moves it and how often upwards
    quantities: dict[str, Quantity] = {"sensitivity": "loss", "noise_std": "noise", "sample_rate": "loss"}

    def text(screen: Console) -> None:
        rows = [
            [each["step"], each["count"], *(significant(each[key], kind) for key, kind in quantities.items())]
            for each in proof["releases"]
        ]
        screen.print(table(["step", "count", *quantities], rows, title="Releases"))
        screen.print(f"{len(proof['sent'])} rows sent, {len(proof['heard'])} received; head {proof['head']}")

    emit(proof, json, text)


def _verify(state: Path | None, directory: Path | None, json: bool) -> None:
    from sottovoce.ledger.run_ledger import verify_ledger

    findings: list[dict[str, Any]]
    if state is None:
        findings = require_directory(directory).verify()
    else:
        findings = [{"ledger": str(state), "rows": verify_ledger(state), "problem": ""}]
    problems = [each["problem"] for each in findings if each["problem"]]
    if problems:
        raise LedgerError(f"{len(problems)} of {len(findings)} ledgers are not whole: {' '.join(problems)}")
    emit({"ledgers": findings}, json, [f"{len(findings)} ledgers are whole."])


def _compact(state: Path | None, directory: Path | None) -> list[str]:
    """Compact ledgers of the member directory, or that of a run without one."""
    from sottovoce.ledger.run_ledger import compact_ledger, read_charge

    if state is None or read_charge(state) is not None:
        return require_directory(directory).compact(state)
    compact_ledger(state)
    return [str(state)]


def compare(
    files: Annotated[list[Path], Argument(help="State folders, or outputs of `peer ledger --json`.")],
    json: Json = False,
) -> None:
    """Compare the ledgers of members, and name a member that sent different messages to different others."""
    from sottovoce.peers.status import compare_proofs, read_proof

    proofs = []
    for file in files:
        try:
            proofs.append(read_proof(file) if file.is_dir() else json_module.loads(file.read_bytes()))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read ({error.strerror}).") from None
        except ValueError:
            raise ConfigError(f"{file} is not JSON; `sottovoce peer ledger --json` prints it.") from None
    contradictions = compare_proofs(proofs)
    if contradictions:
        first = contradictions[0]
        raise PeerError(
            f"{len(contradictions)} contradictions: member {first['sender']} sent different rows in round "
            f"{first['round']}, by the ledgers of members {', '.join(map(str, first['members']))}, or a file "
            "was changed; compare the ledgers themselves."
        )
    result = {"ledgers": len(proofs), "contradictions": contradictions}
    emit(result, json, ["The ledgers agree."])


@exit_codes()
def check(
    agreement: AgreementFile,
    data: Annotated[Path | None, Option(help="This member's records.")] = None,
    identity: IdentityOption = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    population: Population = None,
    listen: Listen = None,
    proxy: ProxyOption = "",
    json: Json = False,
) -> None:
    """Check everything before a run: files, records, privacy cost, disk, port and each neighbor.

    Draws no noise and sends only the greeting of a connection. Exit code 0: all is well. 75: only neighbors
    are missing. 78: something on this machine is wrong.
    """
    import asyncio

    from sottovoce.peers.agreement import check_address
    from sottovoce.peers.connection import parse_proxy
    from sottovoce.peers.preflight import check_files, check_neighbors

    own, key = find_member(directory, identity, needs_state=False)
    http_proxy = parse_proxy(proxy) if proxy else None
    if listen:
        check_address(listen, "The address in --listen")
    files = check_files(
        agreement, identity=key, data=data, state=state, member_directory=own, population=population
    )
    findings = list(files.findings)
    if files.agreement is not None and files.identity is not None:
        neighbors = check_neighbors(files.agreement, files.identity, listen=listen, proxy=http_proxy)
        findings += asyncio.run(neighbors)
    problems = [each for each in findings if not each.passed]

    def text(screen: Console) -> None:
        for each in findings:
            mark = "ok  " if each.passed else "BAD " if each.fatal else "away"
            screen.print(safe(f"{mark} {each.what}: {each.says}"), soft_wrap=True)

    emit({"well": not problems, "findings": [each.to_dict() for each in findings]}, json, text)
    if problems:
        raise Exit(78 if any(each.fatal for each in problems) else 75)


def service(
    agreement: AgreementFile,
    data: Records,
    out: Annotated[Path, Option("--out", "-o", help="The unit file to write.")],
    identity: IdentityOption = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    user: Annotated[str, Option(help="The account it runs under; empty under systemctl --user.")] = "",
    health: Health = None,
    listen: Listen = None,
    json: Json = False,
) -> None:
    """Write a systemd unit that runs this member's peer and restarts it when that can help."""
    from sottovoce._io import atomic_write
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.service import peer_unit

    agreed = read_agreement(agreement)
    own, key = find_member(directory, identity, state)
    program = Path(sys.argv[0]).resolve()
    installed = program.name == "sottovoce"
    command, unit = peer_unit(
        [program] if installed else [Path(sys.executable), "-m", "sottovoce.cli.main"],
        agreed,
        agreement,
        read_identity(key).name,
        data=data,
        identity=identity,
        state=state,
        member_directory=own,
        user=user,
        options={"--listen": listen, "--health": health},
    )
    atomic_write(out, unit)

    def text(screen: Console) -> None:
        screen.print(f"{safe(out)} is written. As root:")
        install = f"  cp {out} /etc/systemd/system/ && systemctl enable --now {out.name}"
        screen.print(safe(install), soft_wrap=True)
        screen.print(safe(f"  systemctl status {out.name}; journalctl -u {out.name}"), soft_wrap=True)

    emit({"unit": str(out), "command": command}, json, text)
