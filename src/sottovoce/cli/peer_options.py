"""Options and look-ups that the commands of `sottovoce peer` share."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sottovoce.errors import ConfigError, SottovoceError, TryLater

if TYPE_CHECKING:
    from sottovoce.peers.member_directory import MemberDirectory

_IN_DIRECTORY = "by default in the member directory."

AgreementFile = Annotated[Path, Argument(help="The agreement.")]
Records = Annotated[Path, Option("--data", help="This member's records, CSV or NPZ; they stay here.")]
State = Annotated[Path, Argument(help="The state folder of a running or stopped peer.")]
DirectoryOption = Annotated[
    Path | None, Option("--directory", help="The member directory; else SOTTOVOCE_HOME, else ~/.sottovoce.")
]
IdentityOption = Annotated[Path | None, Option(help=f"The folder with the member's key; {_IN_DIRECTORY}")]
StateOption = Annotated[Path | None, Option(help=f"The state folder of the run; {_IN_DIRECTORY}")]
Listen = Annotated[str | None, Option(help="Listen here instead of at the agreed address.")]
Health = Annotated[int | None, Option(help="A local port for /healthz and /metrics.", min=0, max=65535)]
Days = Annotated[float, Option(help="How many days the certificate is valid.")]
Why = Annotated[str, Option("--why", help="The reason, stored permanently in the lifetime ledger.")]
Epsilon = Annotated[float | None, Option(help="The epsilon of the lifetime budget.")]
Delta = Annotated[float, Option(help="The delta of that budget.")]
Adjacency = Annotated[str | None, Option(help="add-remove, replace-one or user.")]
View = Annotated[str, Option(help="Against whom: local, outsider, network or colluders:2.")]
Population = Annotated[str | None, Option(help="The population the records belong to; by default the first.")]
PreviousOption = Annotated[
    list[Path] | None,
    Option("--previous", help="The agreement before a change of membership; if its ledger is lost, all."),
]
ProxyOption = Annotated[str, Option(envvar="SOTTOVOCE_PROXY", help="An HTTP proxy, http://host:port.")]


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Give errors of a command that a service manager starts their exit code, 75 or 78."""
    from sottovoce.cli.peer_log import exit_code, may_pass

    try:
        yield
    except SottovoceError as error:
        error.exit_code = exit_code(error)
        raise
    except OSError as error:
        if not may_pass(error):
            raise
        later = TryLater(f"The system lacks something now ({error.strerror}); start the same command again.")
        later.exit_code = exit_code(later)
        raise later from error


@contextlib.contextmanager
def private_process() -> Iterator[None]:
    """Let a command write files for its owner only, whatever the umask, and leave no memory on the disk.

    A core dump would hold records and keys.
    """
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def require_directory(folder: Path | None) -> MemberDirectory:
    """Return the member directory of this machine; a machine without one is refused."""
    from sottovoce.peers.member_directory import find_member_directory

    directory = find_member_directory(folder)
    if directory is None:
        raise ConfigError(
            "This machine has no member directory; `sottovoce peer init` creates one, --directory names one."
        )
    return directory


def find_member(
    directory: Path | None, identity: Path | None, state: Path | None = None, *, needs_state: bool = True
) -> tuple[MemberDirectory | None, Path]:
    """Return the member directory, if there is one, and the folder with the member's key."""
    from sottovoce.peers.member_directory import find_member_directory

    own = find_member_directory(directory, identity=identity)
    if own is not None:
        return own, own.identity_folder if identity is None else identity
    if identity is None or (needs_state and state is None):
        needed = "--identity and --state are" if needs_state else "--identity is"
        raise ConfigError(f"Without a member directory {needed} needed; `peer init` creates a directory.")
    return None, identity
