"""What commands share: the console, tables, progress bars, JSON.

Text goes to standard output and stays readable when piped; progress bars go to standard error and show
only on a terminal. Under ``--json`` standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import json as _json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce._format import Quantity, number
from sottovoce._io import to_jsonable
from sottovoce.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console, Group


def console(*, error: bool = False) -> Console:
    """Return a console for standard output, or standard error.

    Piped text is not cut to a terminal's width: it is 100 columns wide unless COLUMNS says otherwise.
    """
    from rich.console import Console

    screen = Console(stderr=error, highlight=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        return Console(stderr=error, highlight=False, width=100)
    return screen


def emit(
    payload: Mapping[str, object],
    json: bool,
    text: Callable[[Console], None] | Sequence[str],
    out: Path | None = None,
) -> None:
    """Print ``payload`` as JSON, or lines of text (or call ``text`` with a console); write it to ``out``."""
    if out is not None:
        from sottovoce.report.result_files import write_result

        write_result(out, to_jsonable(payload))
    if json:
        print(_json.dumps(to_jsonable(payload), indent=1))
        return
    screen = console()
    if callable(text):
        text(screen)
    else:
        for line in text:
            screen.print(line, markup=False)
    if out is not None:
        screen.print(f"Written to {out}.", markup=False)


def require_writable(path: Path | None) -> None:
    """Raise if a file could not be written, before anything is spent on its content; makes nothing."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file name.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise DataError(f"{path} cannot be written: {above} is not a folder that can be written.")


def as_result(name: str, config: Mapping[str, object], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with its settings and numbers also at the top: one schema for --json and --out."""
    from sottovoce.report.result_files import result_dict

    return {**config, **metrics, **result_dict(name, config, metrics, metrics.get("guarantees", []))}


def show_guarantees(screen: Console, rows: Sequence[Mapping[str, Any]], delta: float, title: str) -> None:
    """Print guarantees as a table, then what they assume, each assumption once."""
    at = number(delta, "delta")
    cells = [[g["against"], number(g["epsilon"], "epsilon"), at, g["adjacency"], g["label"]] for g in rows]
    screen.print(table(["against", "epsilon", "delta", "adjacency", "label"], cells, title=title))
    show_assumptions(screen, rows)


def show_assumptions(screen: Console, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print what guarantees assume, each assumption once."""
    for line in dict.fromkeys(line for row in rows for line in row["assumptions"]):
        screen.print(f"  assumes: {safe(line)}")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    write: Callable[[Any, Quantity], str] = number,
    quantities: Sequence[Quantity] = (),
) -> Group:
    """Return a table under its title; numbers are aligned to the right, text to the left.

    A table wider than the screen has less space between columns, and breaks lines between words as long as
    that is possible. ``write`` says how numbers look, ``quantities`` what each column holds, which decides
    to which side its numbers are rounded.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    by_row = [list(row) for row in rows]
    values = [[row[k] for row in by_row] for k in range(len(columns))]
    kinds = quantities or ["value"] * len(columns)
    texts = [
        [cell if isinstance(cell, str) else write(cell, kind) for cell in cells]
        for kind, cells in zip(kinds, values, strict=True)
    ]
    widths = _widths(columns, texts, console().width)
    close: dict[str, Any] = {} if widths is None else {"padding": (0, 1, 0, 0), "show_edge": False}
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, **close)
    for k, column in enumerate(columns):
        numeric = any(isinstance(cell, (int, float)) for cell in values[k])
        right = numeric and not any(isinstance(cell, str) for cell in values[k])
        width = widths[k] if widths else None
        grid.add_column(column, justify="right" if right else "left", overflow="fold", width=width)
    for line in zip(*texts, strict=True):
        grid.add_row(*line)
    return Group(Text(title, style="bold"), grid) if title else Group(grid)


def _widths(columns: Sequence[str], texts: Sequence[Sequence[str]], screen: int) -> list[int] | None:
    """Return widths for a table wider than the screen; empty if words must break, None if it fits."""
    words = [_longest_word(column, cells) for column, cells in zip(columns, texts, strict=True)]
    cells = [max([word, *map(len, column)]) for word, column in zip(words, texts, strict=True)]
    full = [max(cell, len(column)) for cell, column in zip(cells, columns, strict=True)]
    if sum(full) + 3 * len(full) <= screen:
        return None
    room = screen - 2 * (len(full) - 1)
    least, most = (cells, full) if sum(cells) <= room else (words, cells)  # headings break before cells
    if sum(least) > room:
        return []
    share = min(1.0, (room - sum(least)) / max(1, sum(most) - sum(least)))
    return [few + int(share * (many - few)) for few, many in zip(least, most, strict=True)]


def _longest_word(column: str, texts: Iterable[str]) -> int:
    """The longest word of a column, which a line should not break; numbers and short cells are words."""
    cells = [text.replace("\\[", "[") for text in texts]
    breaks = max(map(len, cells), default=0) > 13
    words = [word for text in ([column, *cells] if breaks else [column]) for word in text.split()]
    return max(map(len, words if breaks else [*words, *cells]), default=1)


def safe(text: object) -> str:
    """Return text of the user's (a name, a label) so that its brackets are not taken for styles."""
    from rich.markup import escape

    return escape(str(text))


_stopped: list[str] = []  # what was said at Ctrl-C in this process: one sentence is enough


@contextlib.contextmanager
def if_stopped(sentence: Callable[[], str]) -> Iterator[None]:
    """Say at Ctrl-C what was saved and how to continue, on standard error, and let the interruption pass."""
    try:
        yield
    except KeyboardInterrupt:
        say_stopped(sentence())
        raise


def say_stopped(sentence: str = "nothing was written.", *, last: bool = False) -> None:
    """Say once, on standard error, that the command was stopped; ``last`` ends the command."""
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
