"""`sottovoce peer`: one organization's side of a run, from its key to its statement."""

from __future__ import annotations

import typer

from sottovoce.cli.peer_agree import agree
from sottovoce.cli.peer_check import check, service
from sottovoce.cli.peer_draft import draft
from sottovoce.cli.peer_home import book, home, keygen, trust
from sottovoce.cli.peer_membership import epoch
from sottovoce.cli.peer_run import compare, ledger, run, status

__all__ = ["peer"]

peer = typer.Typer(
    help="""One organization's side: its home and book, its key, the agreement, the run, the ledger.

\b
Examples:
    sottovoce peer home ~/.sottovoce --name north --population patients --epsilon 5 --adjacency add-remove
    sottovoce peer trust south.pem --why "read aloud by Dr. Sud"
    sottovoce peer book
    sottovoce peer keygen identity --name north
    sottovoce peer draft plan.toml -o draft.toml
    sottovoce peer agree agreement.toml --sign identity
    sottovoce peer run agreement.toml --identity identity --data mine.csv --state state
    sottovoce peer status state
""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (home, trust, book, keygen, draft, agree, check, run, status, ledger, compare, service, epoch):
    peer.command()(command)
