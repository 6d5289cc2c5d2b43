"""What commands share: options, the console, tables, progress bars, JSON.

Text goes to standard output and stays readable when piped; progress bars go to standard error and show
only on a terminal. Under ``--json`` standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import json as _json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce._io import plain

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, Group


__all__ = [
    "Json", "as_record", "assumptions", "console", "emit", "finish", "if_stopped", "progress",
    "safe", "say_stopped", "table",
]  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def console(*, error: bool = False) -> Console:
    """Return a console for standard output, or standard error.

    Piped text is not cut to a terminal's width: it is 100 columns wide unless COLUMNS says otherwise.
    """
    import os

    from rich.console import Console

    screen = Console(stderr=error, highlight=False, soft_wrap=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen = Console(stderr=error, highlight=False, width=100)
    return screen


def emit(payload: Mapping[str, Any], json: bool, text: Callable[[Console], None]) -> None:
    """Print ``payload`` as JSON, or call ``text`` with a console.

    Examples
    --------
    >>> emit({"n": 3}, True, lambda out: None)
    {
     "n": 3
    }
    """
    if json:
        print(_json.dumps(plain(payload), indent=1))
    else:
        text(console())


def finish(payload: Mapping[str, Any], json: bool, out: Path | None, text: Callable[[Console], None]) -> None:
    """Print an answer as `emit` does, and write it where ``--out`` says: the same object, a result record.

    Examples
    --------
    >>> finish({"name": "sum", "metrics": {"n": 3}}, True, None, lambda screen: None)
    {
     "name": "sum",
     "metrics": {
      "n": 3
     }
    }
    """
    if out is not None:
        from sottovoce.report.result_files import write_result

        write_result(out, plain(payload))
    emit(payload, json, text)
    if out is not None and not json:
        console().print(f"Written to {safe(out)}.")


def as_record(name: str, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as a result record that keeps its own keys beside: one schema for --json and --out.

    Examples
    --------
    >>> answer = as_record("attack", {"graph": "ring:4"}, {"count": 2})
    >>> answer["count"], answer["metrics"]["count"], answer["name"]
    (2, 2, 'attack')
    """
    from sottovoce import __version__

    record = {
        "name": name, "config": dict(config), "metrics": dict(metrics), "history": [],
        "guarantees": metrics.get("guarantees", []), "provenance": {"version": __version__},
    }  # fmt: skip
    return {**config, **metrics, **record}


def assumptions(stated: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what stored statements rest on, each once, in order.

    >>> assumptions([{"assumptions": ["a", "b"]}, {"assumptions": ["b"]}])
    ['a', 'b']
    """
    return list(dict.fromkeys(line for one in stated for line in one["assumptions"]))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    write: Callable[[Any], str] | None = None,
) -> Group:
    """Return a quiet table under its title; numbers are aligned to the right, text to the left.

    One that is wider than the screen stands closer, and breaks lines between words as long as that is
    possible. ``write`` says how numbers look.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    values, put = [list(row) for row in rows], write or number
    texts = [[cell if isinstance(cell, str) else put(cell) for cell in row] for row in values]
    least = [_words(column, [row[k] for row in texts]) for k, column in enumerate(columns)]
    cells = [max(map(len, [row[k] for row in texts]), default=0) for k in range(len(columns))]
    whole = [max(few, cell) for few, cell in zip(least, cells, strict=True)]  # only headings break
    full = [max(few, len(column)) for few, column in zip(whole, columns, strict=True)]
    widths: list[int | None] = [None] * len(full)
    close: dict[str, Any] = {}
    room = console().width - 2 * (len(full) - 1)
    if sum(full) + 3 * len(full) > console().width:
        close = {"padding": (0, 1, 0, 0), "show_edge": False}
        few, many = (whole, full) if sum(whole) <= room else (least, whole)
        if sum(few) <= room:  # what is left goes to those that need it
            spare = min(1.0, (room - sum(few)) / max(1, sum(many) - sum(few)))
            widths = [a + int(spare * (b - a)) for a, b in zip(few, many, strict=True)]
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, **close)
    for k, column in enumerate(columns):
        numeric = any(isinstance(row[k], (int, float)) for row in values) and not any(
            isinstance(row[k], str) for row in values
        )
        grid.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            width=widths[k],
        )
    for row in texts:
        grid.add_row(*row)
    return Group(Text(title, style="bold"), grid) if title else Group(grid)


def _words(column: str, texts: Iterable[str]) -> int:
    """The longest word of a column, which a line should not break; numbers and short cells are words."""
    cells = [text.replace("\\[", "[") for text in texts]
    breakable = [column, *cells] if max(map(len, cells), default=0) > 13 else [column]
    whole = [] if breakable[1:] else cells
    return max(map(len, [word for text in breakable for word in text.split()] + whole), default=1)


def safe(text: Any) -> str:
    """Return text of the user's (a name, a label) so that its brackets are not taken for styles.

    Examples
    --------
    >>> safe("[red]")
    '\\\\[red]'
    """
    from rich.markup import escape

    return escape(str(text))


_stopped: list[str] = []  # what was said at Ctrl-C in this process: one sentence is enough


@contextlib.contextmanager
def if_stopped(sentence: Callable[[], str]) -> Iterator[None]:
    """Say at Ctrl-C what was kept and how to go on, on standard error, and let the interruption pass."""
    try:
        yield
    except KeyboardInterrupt:
        say_stopped(sentence())
        raise


def say_stopped(sentence: str = "nothing was written.", *, last: bool = False) -> None:
    """Say once, on standard error, that the command was stopped; ``last`` ends the command.

    Examples
    --------
    >>> import contextlib, io
    >>> _stopped.clear()
    >>> with contextlib.redirect_stderr(io.StringIO()) as stderr:
    ...     say_stopped("kept at step 2,596; the same command goes on.")
    ...     say_stopped()
    >>> stderr.getvalue()
    'sottovoce: stopped; kept at step 2,596; the same command goes on.\\n'
    >>> _stopped.clear()
    """
    if not _stopped:
        print(f"sottovoce: stopped; {sentence}", file=sys.stderr)
    _stopped.append(sentence)
    if last:  # the command ends; another one in this process speaks for itself
        _stopped.clear()


@contextlib.contextmanager
def progress(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the body runs; yields a function that takes the count done."""
    from sottovoce.runners.progress import bar

    with bar(not quiet, what, total) as tell:
        yield lambda done: tell(done, {})
