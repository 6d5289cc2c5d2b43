"""Options and look-ups that the commands of `sottovoce peer` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sottovoce.peers.home import Home

__all__ = [
    "Adjacency", "Delta", "Epsilon", "HomeOption", "Population", "State", "View", "Why", "this_home",
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


def this_home(folder: Path | None) -> Home:
    """Return the home that is meant; a machine without one is refused."""
    from sottovoce.errors import ConfigError
    from sottovoce.peers.home import find_home

    own = find_home(folder)
    if own is None:
        raise ConfigError("This machine has no home yet; `sottovoce peer home` makes one, --home names one.")
    return own
