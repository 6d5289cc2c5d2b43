"""How an experiment is found: every module of this package that defines ``EXPERIMENTS`` offers its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import InvalidInput
from sottovoce.runners import Result

__all__ = ["Experiment", "find", "registry"]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes
    ----------
    title : one line for the list.
    paper : which paper, and which table or figure of it.
    run : ``run(quick=False, **options) -> Result``; ``quick`` is the form that the tests run. An experiment
        of independent trials has an option ``spread``, which runs them (`sottovoce.runners.sweep`).
    plot : optional, draws the record of a result: ``plot(record) -> matplotlib Figure``.

    Examples
    --------
    >>> made = Experiment("demo", "nobody 2024", lambda quick=False: Result("demo"))
    >>> made.run(quick=True).name
    'demo'
    """

    title: str
    paper: str
    run: Callable[..., Result]
    plot: Callable[[dict[str, Any]], Any] | None = None


def registry() -> dict[str, Experiment]:
    """Return every experiment by name, sorted.

    Examples
    --------
    >>> all(isinstance(e, Experiment) for e in registry().values())
    True
    """
    import sottovoce.experiments as package

    found: dict[str, Experiment] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name == "registry":
            continue
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        found.update(getattr(loaded, "EXPERIMENTS", {}))
    return dict(sorted(found.items()))


def find(name: str) -> Experiment:
    """Return one experiment by name, or say which there are.

    Examples
    --------
    >>> find("guess")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InvalidInput: there is no experiment 'guess'; `sottovoce reproduce list` shows them.
    """
    known = registry()
    if name not in known:
        raise InvalidInput(f"there is no experiment {name!r}; `sottovoce reproduce list` shows them.")
    return known[name]
