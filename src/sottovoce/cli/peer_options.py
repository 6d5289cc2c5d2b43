"""Options and look-ups that the commands of `sottovoce peer` share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sottovoce.peers.member_directory import MemberDirectory

__all__ = [
    "Adjacency", "Delta", "Epsilon", "HomeOption", "Population", "PreviousOption", "ProxyOption",
    "RelayOption", "State", "View", "Why", "checked_relay", "exit_codes", "this_home",
]  # fmt: skip

State = Annotated[Path, typer.Argument(help="The state folder of a running or stopped peer.")]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="The home; else SOTTOVOCE_HOME, else ~/.sottovoce where that is one."),
]
Why = Annotated[str, typer.Option("--why", help="The reason, kept in the book for good.")]
Epsilon = Annotated[float | None, typer.Option(help="A lifetime budget.")]
Delta = Annotated[float, typer.Option(help="The delta of that budget.")]
Adjacency = Annotated[str | None, typer.Option(help="add-remove, replace-one or user.")]
View = Annotated[str, typer.Option(help="Against whom: local, outsider, network or colluders:2.")]
Population = Annotated[
    str | None, typer.Option(help="Whose records they are, by the book's name; else its first population.")
]
PreviousOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--previous",
        help="Of an epoch, the agreement of the one before; of every one before, where that ledger is lost.",
    ),
]
RelayOption = Annotated[
    str, typer.Option(help="Another relay than the agreed one, for neighbors whom nobody can call.")
]
ProxyOption = Annotated[
    str,
    typer.Option(envvar="SOTTOVOCE_PROXY", help="Call others through this HTTP proxy, http://host:port."),
]


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Let a command that a service manager starts end with 75 or 78 where it should."""
    from sottovoce.cli.peer_log import exit_code
    from sottovoce.errors import SottovoceError

    try:
        yield
    except SottovoceError as error:
        error.exit_code = exit_code(error)  # type: ignore[attr-defined]
        raise


def checked_relay(address: str) -> str:
    """Return a relay's address, or nothing."""
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import check_address

    try:
        return check_address(address, "The relay") if address else ""
    except ValueError as error:
        raise ConfigError(f"{error}.") from None


def this_home(folder: Path | None) -> MemberDirectory:
    """Return the home that is meant; a machine without one is refused."""
    from sottovoce.errors import ConfigError
    from sottovoce.peers.member_directory import find_member_directory

    own = find_member_directory(folder)
    if own is None:
        raise ConfigError("This machine has no home yet; `sottovoce peer init` makes one, --home names one.")
    return own
