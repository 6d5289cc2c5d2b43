"""What commands share: the console, tables, progress bars, JSON.

Text goes to standard output and stays readable when piped; progress bars go to standard error and show
only on a terminal. Under ``--json`` standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import json as _json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sottovoce._format import FIELDS, Quantity, compared, number
from sottovoce._io import to_jsonable
from sottovoce.errors import DataError

if TYPE_CHECKING:
    import jinja2
    from rich.console import Console, Group

    from sottovoce.report.sections import Section


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


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    write: Callable[[Any, Quantity], str] = number,
    quantities: Sequence[Quantity] = (),
    right: Sequence[bool] = (),
) -> Group:
    """Return a table under its title; numbers are aligned to the right and never broken, text to the left.

    ``write`` says how numbers look, ``quantities`` what each column holds, which decides to which side its
    numbers are rounded, ``right`` which columns of text are numbers.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    by_row, kinds = [list(row) for row in rows], quantities or ["value"] * len(columns)
    written = [
        [cell if isinstance(cell, str) else write(cell, kind) for cell, kind in zip(row, kinds, strict=True)]
        for row in by_row
    ]
    longest = [max([1, *(len(row[k]) for row in written)]) for k in range(len(columns))]
    widths = [max(len(column), cells) + 2 for column, cells in zip(columns, longest, strict=True)]
    tight = sum(widths) > console().width
    for k, column in enumerate(columns):
        cells, texts = [row[k] for row in by_row if row[k] is not None], [row[k] for row in written]
        numeric = right[k] if right else bool(cells) and not any(isinstance(cell, str) for cell in cells)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        # names and short cells are never broken: lines of text give way to them, and no word is broken
        whole = longest[k] <= 13 or (longest[k] <= 40 and not any(" " in text for text in texts))
        word = max([1, *(len(word) for text in texts for word in text.split())])
        head = column.replace(" ", "\n") if tight and len(column) > longest[k] else column
        grid.add_column(head, justify=justify, overflow="fold", no_wrap=whole, min_width=min(word, 20))
    for texts in written:
        grid.add_row(*texts)
    return Group(Text(title, style="bold"), grid) if title else Group(grid)


def table_of(rows: Sequence[Mapping[str, object]], title: str | None = None) -> Group:
    """Return a table of rows with the same keys, which are its headings and say what the numbers are."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[safe(v) if isinstance(v := row.get(name), str) else v for name in names] for row in rows]
    kinds = [FIELDS.get(name, "value") for name in names]
    return table([name.replace("_", " ") for name in names], cells, title=title, quantities=kinds)


def section_values(section: Section, names: Sequence[str] | None = None) -> dict[str, object]:
    """Return what the template of a section prints of it; ``names`` are those of the nodes."""
    from sottovoce.report.sections import guarantee_row

    rows = []
    for row in [guarantee_row(guarantee, names) for guarantee in section.guarantees]:
        numbers = number(row["epsilon"], "epsilon"), number(row["delta"], "delta")
        rows.append([row["what"], row["adjacency"], row["against"], *numbers, row["label"]])
    first = 0 if any(row[0] for row in rows) else 1
    return {"section": section, "guarantees": [row[first:] for row in rows]}


class _Markup(str):
    """Text of a template in which brackets are styles."""


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    from sottovoce.accounting.wording import exception

    text = (files("sottovoce.cli") / "templates" / "output.txt").read_text(encoding="utf-8")
    templates = jinja2.Environment(
        loader=jinja2.DictLoader(dict(re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", text, re.M | re.S))),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, _Markup) else safe(value).replace("\0", ""),
    )
    templates.filters |= {"number": number, "exception": exception, "markup": _Markup}
    templates.globals["compared"] = compared
    return templates


def template(name: str, **values: object) -> Callable[[Console], None]:
    """Return what prints a part of ``templates/output.txt``: text in rich's markup, with tables in between.

    Brackets in values are not taken for styles.
    """

    def show(screen: Console) -> None:
        tables: list[Group] = []

        def place(group: Group) -> _Markup:
            tables.append(group)
            return _Markup(f"\0{len(tables) - 1}\0")

        def placed(columns: Sequence[str], rows: Iterable[Sequence[object]], **options: Any) -> _Markup:
            cells = [[safe(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
            return place(table(columns, cells, **options))

        named = {"table": placed, "table_of": lambda *arguments: place(table_of(*arguments))}
        text = _templates().get_template(name).render(values | named)
        for k, part in enumerate(re.split("\0(\\d+)\0\n?", text)):
            if k % 2:
                screen.print(tables[int(part)])
            elif part:
                screen.print(part.removesuffix("\n"))

    return show


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
    if last:  # the next command in this process prints its own sentence
        _stopped.clear()


@contextlib.contextmanager
def progress(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the body runs; yields a function that takes the count done."""
    from sottovoce.runners.progress import bar

    with bar(not quiet, what, total) as tell:
        yield lambda done: tell(done, {})
