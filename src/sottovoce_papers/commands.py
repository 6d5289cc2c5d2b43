"""The commands that this package adds to `sottovoce` (entry point group ``sottovoce.commands``)."""

from __future__ import annotations

from sottovoce.cli.main import AFTER, Command

REPRODUCE = Command("sottovoce_papers.reproduce:reproduce", "The papers' tables and figures.", AFTER)
SWEEP = Command("sottovoce_papers.sweep:sweep", "Many trials on workers, one record each.", AFTER)
