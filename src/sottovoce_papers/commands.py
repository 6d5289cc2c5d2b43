"""The commands that this package adds to `sottovoce` (entry point group ``sottovoce.commands``)."""

from __future__ import annotations

from sottovoce.cli.main import AFTER, Command

# the options depend on the experiment, so click leaves them to the command
_OWN_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
REPRODUCE = Command(
    "sottovoce_papers.reproduce:reproduce", "The papers' tables and figures.", AFTER, _OWN_OPTIONS
)
SWEEP = Command("sottovoce_papers.sweep:sweep", "Many trials on workers, one result each.", AFTER)
