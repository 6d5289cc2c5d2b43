"""The command `sottovoce`: a table of commands, and the one place where errors become sentences.

To add a command, write ``cli/NAME.py`` with a typer function NAME (heavy imports inside it, its answer
through `cli.output.emit`) and one line about it in ``templates/commands.toml``. An installed package adds one
with an entry point in the group ``sottovoce.commands`` whose object is a `Command`. A module is imported
when its command is called, so ``sottovoce --help`` stays quick. Raise `SottovoceError` for whatever is wrong
with the input: `main` prints its sentence on standard error (with ``--json``: ``{"error": sentence}`` on
standard output) and exits with 1. Usage errors exit with 2, Ctrl-C with 130.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sottovoce import __version__
from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    import typer


class Command(NamedTuple):
    """Where a command lives (``module:name``), one line about it, and the group it is listed under.

    ``context`` holds settings for click, for a command that parses its own options.
    """

    target: str
    summary: str
    panel: str
    context: dict[str, object] | None = None

    def load(self) -> Callable[..., None] | typer.Typer:
        """Import the command."""
        module, _, name = self.target.partition(":")
        command: Callable[..., None] | typer.Typer = getattr(importlib.import_module(module), name)
        return command


COMPLETING = "_SOTTOVOCE_COMPLETE"  # set by the shell when it asks for completions
AFTER = "Check and show"
_HELP = ["-h", "--help"]
# panel: {name: summary}; the command NAME is the object NAME in cli/NAME.py
_SUMMARIES = tomllib.loads(
    (Path(__file__).parent / "templates" / "commands.toml").read_text(encoding="utf-8")
)
COMMANDS = {
    name: Command(f"sottovoce.cli.{name}:{name}", summary, panel)
    for panel, summaries in _SUMMARIES.items()
    for name, summary in summaries.items()
}


def commands() -> dict[str, Command]:
    """Return the commands of this package and those that installed packages add by entry points."""
    from importlib.metadata import entry_points

    added = {entry.name: entry for entry in entry_points(group="sottovoce.commands")}
    return COMMANDS | {name: entry.load() for name, entry in sorted(added.items()) if name not in COMMANDS}


ABOUT = """Private learning without a server: organizations exchange noisy numbers with their neighbors, and \
what each can learn about the others is computed before anything runs.

Start with [bold]sottovoce demo[/bold]; then see what a network would reveal:

\b
    sottovoce account --graph hypercube:4 --rounds 4 --observer 0
"""


def build(only: str | None = None) -> typer.Typer:
    """Return the application; only the command called ``only`` is imported, the others are names."""
    import typer  # here, so that Ctrl-C is met by `main` from the first import on

    def print_version(wanted: bool) -> None:
        if wanted:
            print(f"sottovoce {__version__}")
            raise typer.Exit

    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=print_version
        ),
    ) -> None:
        """Hold the options of the whole application."""

    app = typer.Typer(
        name="sottovoce",
        help=ABOUT,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP},
    )
    app.callback()(options)
    # the scan of installed packages is not needed for a command of this one
    for name, command in (COMMANDS if only in COMMANDS else commands()).items():
        target = command.load() if name == only else (lambda: None)  # listed, not called
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, rich_help_panel=command.panel)
        else:
            help_text = None if name == only else command.summary
            settings = command.context if name == only else None
            app.command(name, help=help_text, rich_help_panel=command.panel, context_settings=settings)(
                target
            )
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 refused or failed with a sentence, 2 usage, 130 Ctrl-C.

    Commands that a service manager starts also end with 75, try again, and 78, wrong configuration.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = typed.split()[1:] if COMPLETING in os.environ else argv  # the shell asks what could come next
    called = next((word for word in words if not word.startswith("-")), None)
    try:
        app = build(called)
        from typer.main import get_command

        command = get_command(app)
        _hide_flag_types(command)
        command(args=argv, prog_name="sottovoce")
    except KeyboardInterrupt:
        _stop(called)
    except SystemExit as stop:
        if stop.code == 130:  # typer has met Ctrl-C first
            _stop(called)
        raise
    except SottovoceError as error:
        _refuse(str(error), argv, error.exit_code)
    except OSError as error:
        reason = error.strerror or str(error)
        _refuse(f"{reason}: {error.filename}." if isinstance(error.filename, str) else f"{reason}.", argv)
    except MemoryError:
        _refuse("There is not enough memory for this; try fewer nodes, rounds or coordinates.", argv)
    except Exception as error:
        if os.environ.get("SOTTOVOCE_TRACEBACK"):
            raise
        _refuse(
            f"A bug in Sottovoce ({type(error).__name__}: {error}); "
            "set SOTTOVOCE_TRACEBACK=1, run it again, and report what it prints.",
            argv,
        )


def _hide_flag_types(command: object) -> None:
    """Let help show ``--json``, not ``--json <bool>``: a flag takes no value."""
    from typer.core import TyperCommand, TyperGroup, TyperOption

    if isinstance(command, (TyperCommand, TyperGroup)):
        context = command.context_class(command, help_option_names=_HELP)
        for option in (*command.params, command.get_help_option(context)):
            if isinstance(option, TyperOption) and option.is_flag:
                option.metavar = ""
    if isinstance(command, TyperGroup):
        for part in command.commands.values():
            _hide_flag_types(part)


def _stop(called: str | None) -> None:
    """Say that Ctrl-C was heard, unless the command has said more, and exit with 130."""
    if called not in ("peer", "relay"):  # which say themselves what a restart does
        from sottovoce.cli.output import say_stopped

        say_stopped(last=True)
    sys.exit(130)


def _refuse(sentence: str, argv: Sequence[str], code: int = 1) -> None:
    """Say why not, in one line, where the caller looks for it, and exit with ``code``."""
    line = " ".join(sentence.split())
    if "--json" in argv:
        print(json.dumps({"error": line}))
    else:
        print(f"sottovoce: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
