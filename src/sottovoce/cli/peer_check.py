"""`sottovoce peer check, service`: before a run, and for good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, emit, safe
from sottovoce.cli.peer_options import (
    HomeOption,
    Population,
    ProxyOption,
    RelayOption,
    checked_relay,
    exit_codes,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["check", "service"]

Agreed = Annotated[Path, typer.Argument(help="The agreement.")]
IdentityOption = Annotated[
    Path | None, typer.Option(help="The folder with this member's key; by default the home's.")
]
StateOption = Annotated[
    Path | None, typer.Option(help="The state folder of the run; by default in the home.")
]
Listen = Annotated[str | None, typer.Option(help="Listen here instead of at the agreed address.")]


def check(
    agreement: Agreed,
    data: Annotated[Path | None, typer.Option(help="This member's records.")] = None,
    identity: IdentityOption = None,
    state: StateOption = None,
    home: HomeOption = None,
    population: Population = None,
    listen: Listen = None,
    relay: RelayOption = "",
    proxy: ProxyOption = "",
    wait: Annotated[
        float, typer.Option(help="Seconds to listen for neighbors, to see whether they reach this port.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Look at everything before a run, one line each: files, records, price, disk, port, each neighbor.

    Draws nothing and sends nothing but the greeting of a connection. Ends with 0 if all is well, 75 if only
    neighbors are missing, 78 if something here is wrong. With --wait on both sides two members see whether
    they reach each other before anybody starts.

    \b
    Examples:
        sottovoce peer check agreement.toml --data mine.csv
        sottovoce peer check agreement.toml --identity identity --state state --data mine.csv --wait 60
    """
    import asyncio

    from sottovoce.errors import ConfigError
    from sottovoce.peers.connector import parse_proxy
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.preflight import check_files, check_neighbors

    with exit_codes():
        at = find_member_directory(home, identity=identity)
        if at is None and identity is None:
            raise ConfigError("Without a home a check needs --identity; `peer init` makes a home.")
        key = identity if identity is not None or at is None else at.identity_folder
        assert key is not None
        way = parse_proxy(proxy) if proxy else None
        other = checked_relay(relay)
        seen = check_files(
            agreement, identity=key, data=data, state=state, member_directory=at, population=population
        )
        findings = list(seen.findings)
        if seen.agreement is not None and seen.identity is not None:
            around = check_neighbors(
                seen.agreement, seen.identity, listen=listen, relay=other, proxy=way, wait=wait
            )
            findings += asyncio.run(around)

    def text(out: Console) -> None:
        for each in findings:
            mark = "ok  " if each.well else "BAD " if each.fatal else "away"
            out.print(safe(f"{mark} {each.what}: {each.says}"), soft_wrap=True)

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
    home: HomeOption = None,
    user: Annotated[str, typer.Option(help="The account it runs under; empty for a unit of a user.")] = "",
    health: Annotated[int | None, typer.Option(help="As for `peer run`.", min=0, max=65535)] = None,
    listen: Listen = None,
    relay: RelayOption = "",
    json: Json = False,
) -> None:
    """Write a systemd unit that runs this member's peer, and starts it again when that can help.

    \b
    Example:
        sottovoce peer service agreement.toml --data mine.csv --user sottovoce -o sottovoce-north.service
    """
    from sottovoce._io import atomic_write
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.listener import split_address
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.service import systemd_unit

    agreed = read_agreement(agreement)
    at = find_member_directory(home, identity=identity)
    if at is None and (identity is None or state is None):
        raise ConfigError("Without a home a unit needs --identity and --state; `peer init` makes a home.")
    own = read_identity(identity if identity is not None else at.identity_folder)  # type: ignore[union-attr]
    member = agreed.members[agreed.index(own.name)]
    program = Path(sys.argv[0]).resolve()
    begin = [program] if program.name == "sottovoce" else [Path(sys.executable), "-m", "sottovoce.cli.main"]
    words: list[str | Path] = [*begin, "peer", "run", agreement.resolve(), "--data", data.resolve()]
    writable: list[Path] = []
    for option, place in (
        ("--identity", identity),
        ("--state", state),
        ("--home", None if at is None else at.folder),
    ):
        if place is not None:
            words += [option, place.resolve()]
    if state is not None:
        writable.append(state.resolve().parent)
    if identity is not None and at is None:
        writable.append(identity.resolve())  # a mask key is erased there when the run has begun
    if at is not None:
        writable += [at.folder, at.copy]
    for option, value in (("--listen", listen), ("--relay", relay), ("--health", health)):
        if value not in (None, ""):
            words += [option, str(value)]
    where = listen or (member.address if member.reachable else "")
    low = bool(where) and split_address(where)[1] < 1024
    atomic_write(out, systemd_unit(words, title=agreed.title, writable=writable, user=user, low_port=low))
    found = {"unit": str(out), "command": [str(word) for word in words]}

    def text(shown: Console) -> None:
        shown.print(f"{safe(out)} is written. As root:")
        name = out.name
        shown.print(safe(f"  cp {out} /etc/systemd/system/ && systemctl enable --now {name}"), soft_wrap=True)
        shown.print(safe(f"  systemctl status {name}; journalctl -u {name}"), soft_wrap=True)

    emit(found, json, text)
