"""`sottovoce peer`: one organization's side of a run."""

from __future__ import annotations

import typer

from sottovoce.cli.peer_agree import agree
from sottovoce.cli.peer_check import check, service
from sottovoce.cli.peer_directory import budget, init, keygen, trust
from sottovoce.cli.peer_draft import draft
from sottovoce.cli.peer_membership import membership
from sottovoce.cli.peer_run import compare, ledger, run, status

peer = typer.Typer(
    help="""One organization's side of a run: member directory, key, agreement, run, ledger, lifetime budget.

\b
Examples:
    sottovoce peer init ~/.sottovoce --name north --population patients --epsilon 5 --adjacency add-remove
    sottovoce peer trust south.pem --why "read aloud by Dr. Sud"
    sottovoce peer budget
    sottovoce peer keygen identity --name north
    sottovoce peer draft plan.toml -o draft.toml
    sottovoce peer agree agreement.toml --sign identity
    sottovoce peer run agreement.toml --identity identity --data mine.csv --state state
    sottovoce peer status state
""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    init,
    trust,
    budget,
    keygen,
    draft,
    agree,
    check,
    run,
    status,
    ledger,
    compare,
    service,
    membership,
)
for command in COMMANDS:
    peer.command()(command)
