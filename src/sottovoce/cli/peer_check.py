"""`sottovoce peer check, service`: checks before a run, and a systemd unit for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, safe
from sottovoce.cli.peer_options import (
    AgreementFile,
    DirectoryOption,
    Health,
    IdentityOption,
    Listen,
    Population,
    ProxyOption,
    RelayOption,
    StateOption,
    check_relay,
    exit_codes,
    identity_folder,
)

if TYPE_CHECKING:
    from rich.console import Console


@exit_codes()
def check(
    agreement: AgreementFile,
    data: Annotated[Path | None, Option(help="This member's records.")] = None,
    identity: IdentityOption = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    population: Population = None,
    listen: Listen = None,
    relay: RelayOption = "",
    proxy: ProxyOption = "",
    wait: Annotated[float, Option(help="Seconds to listen for neighbors, whether they reach us.")] = 0.0,
    json: Json = False,
) -> None:
    """Check everything before a run: files, records, privacy cost, disk, port and each neighbor.

    Draws no noise and sends only the greeting of a connection. Exit code 0: all is well. 75: only neighbors
    are missing. 78: something on this machine is wrong. With --wait on both sides two members see whether
    they can reach each other before the run.

    \b
    Examples:
        sottovoce peer check agreement.toml --data mine.csv
        sottovoce peer check agreement.toml --identity identity --state state --data mine.csv --wait 60
    """
    import asyncio

    from sottovoce.peers.connection import parse_proxy
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.preflight import check_files, check_neighbors

    own = find_member_directory(directory, identity=identity)
    key = identity_folder(identity, own, state, needs_state=False)
    http_proxy = parse_proxy(proxy) if proxy else None
    other_relay = check_relay(relay)
    files = check_files(
        agreement, identity=key, data=data, state=state, member_directory=own, population=population
    )
    findings = list(files.findings)
    if files.agreement is not None and files.identity is not None:
        neighbors = check_neighbors(
            files.agreement, files.identity, listen=listen, relay=other_relay, proxy=http_proxy, wait=wait
        )
        findings += asyncio.run(neighbors)
    problems = [each for each in findings if not each.well]

    def text(screen: Console) -> None:
        for each in findings:
            mark = "ok  " if each.well else "BAD " if each.fatal else "away"
            screen.print(safe(f"{mark} {each.what}: {each.says}"), soft_wrap=True)

    emit({"well": not problems, "findings": [each.to_dict() for each in findings]}, json, text)
    if problems:
        raise typer.Exit(78 if any(each.fatal for each in problems) else 75)


def service(
    agreement: AgreementFile,
    data: Annotated[Path, Option(help="This member's records.")],
    out: Annotated[Path, Option("--out", "-o", help="The unit file to write.")],
    identity: IdentityOption = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    user: Annotated[str, Option(help="The account it runs under; empty for a unit of a user.")] = "",
    health: Health = None,
    listen: Listen = None,
    relay: RelayOption = "",
    json: Json = False,
) -> None:
    """Write a systemd unit that runs this member's peer and restarts it when that can help.

    \b
    Example:
        sottovoce peer service agreement.toml --data mine.csv --user sottovoce -o sottovoce-north.service
    """
    from sottovoce._io import atomic_write
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.service import peer_unit

    agreed = read_agreement(agreement)
    own = find_member_directory(directory, identity=identity)
    program = Path(sys.argv[0]).resolve()
    installed = program.name == "sottovoce"
    command, unit = peer_unit(
        [program] if installed else [Path(sys.executable), "-m", "sottovoce.cli.main"],
        agreed,
        agreement,
        read_identity(identity_folder(identity, own, state)).name,
        data=data,
        identity=identity,
        state=state,
        member_directory=own,
        user=user,
        options={"--listen": listen, "--relay": relay or None, "--health": health},
    )
    atomic_write(out, unit)

    def text(screen: Console) -> None:
        screen.print(f"{safe(out)} is written. As root:")
        install = f"  cp {out} /etc/systemd/system/ && systemctl enable --now {out.name}"
        screen.print(safe(install), soft_wrap=True)
        screen.print(safe(f"  systemctl status {out.name}; journalctl -u {out.name}"), soft_wrap=True)

    emit({"unit": str(out), "command": [str(word) for word in command]}, json, text)
