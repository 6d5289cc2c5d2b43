"""What commands share: options, the console, tables, progress bars, JSON.

Text goes to standard output and stays readable when piped; progress bars go to standard error and show
only on a terminal. Under ``--json`` standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import json as _json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, Group

    from sottovoce.privacy import Guarantee

__all__ = [
    "Json", "assumptions", "console", "emit", "number", "plain", "progress", "safe", "statements", "table",
    "write_out",
]  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def console(*, error: bool = False) -> Console:
    """Return a console for standard output, or standard error.

    Piped text is not cut to a terminal's width: it is 100 columns wide unless COLUMNS says otherwise.
    """
    import os

    from rich.console import Console

    made = Console(stderr=error, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=error, highlight=False, width=100)
    return made


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


def write_out(path: Path | None, name: str, payload: Mapping[str, Any]) -> None:
    """Write what a command found as a record for `sottovoce report`, where ``--out`` asks for one."""
    if path is None:
        return
    from sottovoce import __version__
    from sottovoce.report.records import write_record

    found = plain(payload)
    config = {key: value for key, value in found.items() if isinstance(value, (str, int, float))}
    write_record(path, {"name": name, "config": config, "metrics": found, "history": [], "guarantees": [],
                        "provenance": {"version": __version__}})  # fmt: skip


def plain(value: Any) -> Any:
    """Return ``value`` as JSON knows it: arrays become lists, NaN null, infinity a word.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"h": np.array([0.5, np.inf])})
    {'h': [0.5, 'inf']}
    """
    from sottovoce._files import plain as plain_values

    return plain_values(value)


def statements(guarantees: Iterable[Guarantee], delta: float) -> list[dict[str, Any]]:
    """Return guarantees as records and tables hold them: epsilon at ``delta``, and against whom, in words.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.Muffliato(sv.protocols.Exchange(8), noise_std=4.0, radius=1.0)
    >>> round(statements([plan.privacy("local")], 1e-5)[0]["epsilon"], 3)
    1.993
    """
    return [g.to_dict(delta=delta) | {"against": str(g.adversary)} for g in guarantees]


def assumptions(stated: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what stored statements rest on, each once, in order.

    >>> assumptions([{"assumptions": ["a", "b"]}, {"assumptions": ["b"]}])
    ['a', 'b']
    """
    return list(dict.fromkeys(line for one in stated for line in one["assumptions"]))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Group:
    """Return a quiet table under its title; numbers are aligned to the right, text to the left."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for k, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[k], (int, float)) for row in listed)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        made.add_row(*[cell if not isinstance(cell, (int, float)) else number(cell) for cell in row])
    return Group(Text(title, style="bold"), made) if title else Group(made)


def safe(text: Any) -> str:
    """Return text of the user's (a name, a label) so that its brackets are not taken for styles.

    Examples
    --------
    >>> safe("[red]")
    '\\\\[red]'
    """
    from rich.markup import escape

    return escape(str(text))


def number(value: Any) -> str:
    """Return a number as a person writes it, as pages and tables both show it.

    Examples
    --------
    >>> number(0.123456), number(3), number(1234567), number(float("inf")), number(2e-9)
    ('0.123', '3', '1,234,567', '∞', '2e-09')
    """
    from sottovoce.report.blocks import number as written

    return written(value)


@contextlib.contextmanager
def progress(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the body runs; yields a function that takes the count done."""
    from sottovoce.runners.progress import bar

    with bar(not quiet, what, total) as tell:
        yield lambda done: tell(done, {})
