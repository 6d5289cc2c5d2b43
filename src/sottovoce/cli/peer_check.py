"""`sottovoce peer check, service`: checks before a run, and a systemd unit for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, emit, safe
from sottovoce.cli.peer_options import (
    DirectoryOption,
    IdentityOption,
    Listen,
    Population,
    ProxyOption,
    RelayOption,
    StateOption,
    checked_relay,
    exit_codes,
    identity_folder,
)

if TYPE_CHECKING:
    from rich.console import Console

Agreed = Annotated[Path, typer.Argument(help="The agreement.")]


@exit_codes()
def check(
    agreement: Agreed,
    data: Annotated[Path | None, typer.Option(help="This member's records.")] = None,
    identity: IdentityOption = None,
    state: StateOption = None,
    home: DirectoryOption = None,
    population: Population = None,
    listen: Listen = None,
    relay: RelayOption = "",
    proxy: ProxyOption = "",
    wait: Annotated[
        float, typer.Option(help="Seconds to listen for neighbors, to see whether they reach this port.")
    ] = 0.0,
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

    directory = find_member_directory(home, identity=identity)
    key = identity_folder(identity, directory, state, needs_state=False)
    http_proxy = parse_proxy(proxy) if proxy else None
    other_relay = checked_relay(relay)
    checked = check_files(
        agreement, identity=key, data=data, state=state, member_directory=directory, population=population
    )
    findings = list(checked.findings)
    if checked.agreement is not None and checked.identity is not None:
        neighbors = check_neighbors(
            checked.agreement, checked.identity, listen=listen, relay=other_relay, proxy=http_proxy, wait=wait
        )
        findings += asyncio.run(neighbors)

    def text(screen: Console) -> None:
        for each in findings:
            mark = "ok  " if each.well else "BAD " if each.fatal else "away"
            screen.print(safe(f"{mark} {each.what}: {each.says}"), soft_wrap=True)

    well = all(each.well for each in findings)
    emit({"well": well, "findings": [each.to_dict() for each in findings]}, json, text)
    if not well:
        raise typer.Exit(78 if any(each.fatal and not each.well for each in findings) else 75)


def service(
    agreement: Agreed,
    data: Annotated[Path, typer.Option(help="This member's records.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The unit file to write.")],
    identity: IdentityOption = None,
    state: StateOption = None,
    home: DirectoryOption = None,
    user: Annotated[str, typer.Option(help="The account it runs under; empty for a unit of a user.")] = "",
    health: Annotated[int | None, typer.Option(help="As for `peer run`.", min=0, max=65535)] = None,
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
    directory = find_member_directory(home, identity=identity)
    own = read_identity(identity_folder(identity, directory, state))
    program = Path(sys.argv[0]).resolve()
    command, unit = peer_unit(
        [program] if program.name == "sottovoce" else [Path(sys.executable), "-m", "sottovoce.cli.main"],
        agreed, agreement, own.name, data=data, identity=identity, state=state, member_directory=directory,
        user=user, options={"--listen": listen, "--relay": relay or None, "--health": health},
    )  # fmt: skip
    atomic_write(out, unit)

    def text(screen: Console) -> None:
        screen.print(f"{safe(out)} is written. As root:")
        name = out.name
        screen.print(
            safe(f"  cp {out} /etc/systemd/system/ && systemctl enable --now {name}"), soft_wrap=True
        )
        screen.print(safe(f"  systemctl status {name}; journalctl -u {name}"), soft_wrap=True)

    emit({"unit": str(out), "command": [str(word) for word in command]}, json, text)
