"""`sottovoce peer`: one organization's side of a run."""

from __future__ import annotations

import typer

from sottovoce.cli.peer_agreement import agree, draft, membership
from sottovoce.cli.peer_directory import budget, init, keygen, trust
from sottovoce.cli.peer_run import check, compare, ledger, run, service, status

ABOUT = """One organization's side of a run: member directory, key, agreement, run, ledger, lifetime budget.

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
"""
peer = typer.Typer(help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False)
FIRST = (init, trust, budget, keygen, draft, agree, check)
for command in (*FIRST, run, status, ledger, compare, service, membership):
    peer.command()(command)
