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
    sottovoce peer budget --raise 8 --adjacency add-remove --why "vote of 3 May"
    sottovoce peer budget --close 3f54dcc1 --why "south has left"
    sottovoce peer keygen identity --name north
    sottovoce peer draft plan.toml -o draft.toml
    sottovoce peer agree agreement.toml --sign identity
    sottovoce peer check agreement.toml --data mine.csv
    sottovoce peer run agreement.toml --data mine.csv --health 9400
    sottovoce peer run agreement.toml --identity identity --data mine.csv --state state
    sottovoce peer status state
    sottovoce peer ledger --verify
    sottovoce peer ledger --compact
    sottovoce peer compare north.json south.json
    sottovoce peer service agreement.toml --data mine.csv -o sottovoce-north.service
    sottovoce peer membership agreement.toml --without east -o next.toml
"""
peer = typer.Typer(help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False)
FIRST = (init, trust, budget, keygen, draft, agree, check)
for command in (*FIRST, run, status, ledger, compare, service, membership):
    peer.command()(command)
