"""A systemd unit for one member's peer: started with the machine, again after a failure that may pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from sottovoce.errors import ConfigError
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.connection import split_address
from sottovoce.peers.member_directory import MemberDirectory


def peer_unit(
    program: Sequence[str | Path],
    agreement: Agreement,
    file: Path,
    name: str,
    *,
    data: Path,
    identity: Path | None = None,
    state: Path | None = None,
    member_directory: MemberDirectory | None = None,
    user: str = "",
    options: Mapping[str, str | int | None] | None = None,
) -> tuple[list[str], str]:
    """Return the command of ``peer run`` for the member ``name`` and the text of its unit.

    ``user`` is the account it runs under, empty for a unit of one user. ``options`` are further options of
    the command; those that are None are left out.
    """
    extra = {option: value for option, value in (options or {}).items() if value is not None}
    directory = None if member_directory is None else member_directory.folder
    folders = {"--identity": identity, "--state": state, "--directory": directory}
    places = {option: folder.resolve() for option, folder in folders.items() if folder is not None}
    command = [*map(str, program), "peer", "run", str(file.resolve()), "--data", str(data.resolve())]
    for option, value in {**places, **extra}.items():
        command += [option, str(value)]
    writable: list[Path] = [] if state is None else [state.resolve().parent]
    if member_directory is not None:
        writable += [member_directory.folder, member_directory.copy]
    elif identity is not None:
        writable.append(identity.resolve())  # a mask key is erased there when the run has begun
    if not Path(command[0]).is_absolute():
        raise ConfigError(f"A unit starts a program by its whole path, got {command[0]!r}.")
    if not "".join((*command, user, *map(str, writable))).isprintable():
        raise ConfigError("A unit holds printable text only; rename the file.")
    if user and not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}\$?", user):
        raise ConfigError(f"{user!r} is not the name of an account.")
    member = agreement.members[agreement.index(name)]
    address = str(extra.get("--listen") or (member.address if member.reachable else ""))
    low_port = bool(address) and split_address(address)[1] < 1024
    capability = "CAP_NET_BIND_SERVICE" if low_port else ""
    template = resources.files("sottovoce") / "templates" / "peer.service"
    unit = template.read_text(encoding="utf-8").format(
        title=agreement.title.replace("%", "%%"),
        command=" ".join(map(_quoted, command)),
        user=f"User={user}\n" if user else "",
        home="no" if any(map(_at_home, writable)) else "read-only" if any(map(_at_home, command)) else "yes",
        writable=" ".join(_quoted(str(place)) for place in writable),
        capability=capability,
        ambient=f"AmbientCapabilities={capability}\n" if low_port else "",
    )
    return command, unit


def _at_home(place: str | Path) -> bool:
    """Whether systemd's ProtectHome would hide a path: it covers these three trees of a Linux machine."""
    parts = Path(place).parts[1:]
    return parts[:1] in (("home",), ("root",)) or parts[:2] == ("run", "user")


def _quoted(word: str) -> str:
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{inner}"'
