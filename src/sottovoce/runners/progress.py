"""One progress bar: on standard error, gone when the run is over, silent where nobody watches."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def bar(
    wanted: bool, name: str, steps: int | None, done: int = 0
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Show how far a run is while the body runs; yields a function of (steps done, numbers to show).

    A file or a pipe in place of a terminal shows nothing. ``steps`` is None where nobody knows how many there
    are; ``done`` were done before a checkpoint. Numbers stay until others come; other values are not shown.
    """
    if not wanted:
        yield lambda step, metrics: None
        return
    # rich and numba take half a second to import: only for those who want to see something
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda step, metrics: None
        return
    name_column = TextColumn("{task.description}", markup=False)
    numbers_column = TextColumn("{task.fields[numbers]}", markup=False)
    columns = (name_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), numbers_column)
    with (
        Progress(*columns, console=console, transient=True) as progress,
        _compilation(progress.console.print),
    ):
        task = progress.add_task(name, total=steps, completed=done, numbers="")

        def show(step: int, metrics: Mapping[str, Any]) -> None:
            progress.update(task, completed=step)
            if text := _words(metrics):
                progress.update(task, numbers=text)

        yield show


@contextlib.contextmanager
def _compilation(tell: Callable[[str], None]) -> Iterator[None]:
    """Say once that numba compiles; what was compiled on this machine before is read from disk."""
    from numba.core import event

    class Compilation(event.Listener):
        announced = False

        def on_start(self, started: object) -> None:
            if not self.announced:
                tell("compiling: the first run on this machine takes some seconds longer.")
            self.announced = True

        def on_end(self, ended: object) -> None:
            """Say nothing."""

    with event.install_listener("numba:compile", Compilation()):
        yield


def _words(metrics: Mapping[str, Any]) -> str:
    """Return the numbers among ``metrics`` as a person reads them."""
    shown = {k: v for k, v in metrics.items() if isinstance(v, numbers.Real) and not isinstance(v, bool)}
    return "  ".join(f"{name} {float(value):.4g}" for name, value in shown.items())
