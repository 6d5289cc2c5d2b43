"""How an experiment is found, what it takes, and how its record becomes a table.

Every module in `MODULES` defines ``EXPERIMENTS``. Their titles and claims, which table or figure of which
source each of them is, and what their options mean stand in ``experiments.toml``.
"""

from __future__ import annotations

import importlib
import math
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, wraps
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from sottovoce._format import Quantity
from sottovoce._validate import did_you_mean
from sottovoce.errors import InvalidInput
from sottovoce.runners import Result

MODULES = (
    "bayrooti2023.audit",
    "bayrooti2023.tables",
    "bayrooti2023.tuning",
    "bellet2023",
    "bellet2024_decentralized",
    "bellet2024_optimization.dp_cd",
    "bellet2024_optimization.dp_gcd",
    "bellet2024_optimization.fixed_points",
    "bellet2024_optimization.rates",
    "extensions.consensus_mnist",
    "extensions.convex_audits",
    "extensions.fine_tuning",
    "extensions.secure_sum",
    "muffliato2022.housing",
    "muffliato2022.losses",
    "muffliato2022.utility",
)
_INNER = {"quick", "spread"}  # arguments of `run` that are no options of the experiment
FROM_ZERO = {"attacker", "egos", "example", "l1", "l2", "noise", "rates", "seed", "skew", "tau", "tv"}
UNBOUNDED = {"epsilon", "epsilons"}  # infinite: no privacy


class ResultTable(NamedTuple):
    """A result as a table: headings, rows of text and numbers, a sentence, and what the columns hold."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    quantities: Mapping[str, Quantity] = MappingProxyType({})

    @property
    def kinds(self) -> tuple[Quantity, ...]:
        """What each column holds, by its heading: to that side its numbers are rounded."""
        return tuple(self.quantities.get(column, "value") for column in self.columns)


def pick(rows: Iterable[Mapping[str, Any]], *keys: str) -> tuple[tuple[Any, ...], ...]:
    """Return the values of some keys, one tuple per row."""
    return tuple(tuple(row[key] for key in keys) for row in rows)


class Option(NamedTuple):
    """One option of an experiment: its name, its default, and how its words are read."""

    name: str
    default: Any
    kind: str = "str"
    many: bool = False

    @property
    def expects(self) -> str:
        """What the option takes, in words."""
        least = "at least 0" if self.name in FROM_ZERO else "at least 1" if self.kind == "int" else "above 0"
        also = " (inf is one)" if self.name in UNBOUNDED else ""
        one = {
            "int": f"a whole number, {least}", "float": f"a number{also}, {least}", "bool": "true or false",
        }  # fmt: skip
        several = {
            "int": f"whole numbers, {least}, as 1,2", "float": f"numbers{also}, {least}, as 1,2",
        }  # fmt: skip
        return several.get(self.kind, "words, as a,b") if self.many else one.get(self.kind, "a word")

    def fits(self, value: Any) -> bool:
        """Whether a number lies where the experiments take it."""
        if self.kind not in ("int", "float"):
            return True
        least = 0 if self.name in FROM_ZERO else 1 if self.kind == "int" else math.ulp(0.0)
        return bool(value >= least and (math.isfinite(value) or self.name in UNBOUNDED))

    def read(self, words: str) -> Any:
        """Return the value that a person wrote, or say what was expected."""
        parts = words.split(",") if self.many else [words]
        try:
            values = tuple(_READ.get(self.kind, str)(part.strip()) for part in parts)
            if not all(map(self.fits, values)):
                raise ValueError(words)
        except (ValueError, KeyError):
            expected = "one value" if not self.many and "," in words else self.expects
            raise InvalidInput(
                f"--{self.name.replace('_', '-')} expects {expected}, got {words!r}."
            ) from None
        return values if self.many else values[0]


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_READ: dict[str, Callable[[str], Any]]
_READ = {"int": int, "float": float, "bool": lambda word: _TRUTH[word.lower()]}


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper: how it is run, shown and drawn, and what the paper claims.

    ``run(quick=False, **options)`` returns a `Result`; ``quick`` is the form that the tests run. With
    independent trials it has an option ``spread``, which runs them (`sottovoce.runners.sweep`). ``held`` says
    whether a result bears the claim out, None if it does not decide. ``config`` is the dataclass of options.
    """

    run: Callable[..., Result]
    plot: Callable[[dict[str, Any]], Any] | None = None
    table: Callable[[dict[str, Any]], ResultTable] | None = None
    held: Callable[[dict[str, Any]], bool | None] | None = None
    config: type | None = None
    title: str = ""
    paper: str = ""  # which paper, and which table or figure of it
    claim: str = ""

    @property
    def own(self) -> bool:
        """Whether the claim is this library's, and no source's."""
        return self.paper.startswith(("beyond", "no paper", "own"))

    def verdict(self, record: Mapping[str, Any]) -> str:
        """Say whether the claim held in a result; nothing of a quick form, whose data and steps are toys."""
        if not self.claim or record["provenance"].get("quick"):
            return ""
        held = None if self.held is None else self.held(dict(record))
        return {True: "held", False: "did not hold", None: "was not decided"}[held]


def registry() -> dict[str, Experiment]:
    """Return every experiment by name, sorted."""
    experiments: dict[str, Experiment] = {}
    for module in MODULES:
        experiments |= importlib.import_module(f"{__package__}.{module}").EXPERIMENTS
    words = texts()["experiments"]
    return {
        name: replace(one, run=_timed(one.run), **words[name]) for name, one in sorted(experiments.items())
    }


def _timed(run: Callable[..., Result]) -> Callable[..., Result]:
    """Return the function with the seconds it takes in the provenance of its result."""

    @wraps(run)
    def timed(*args: Any, **options: Any) -> Result:
        started = time.perf_counter()
        result = run(*args, **options)
        seconds = round(time.perf_counter() - started, 3)
        return replace(result, provenance={**result.provenance, "seconds": seconds})

    return timed


@cache
def texts() -> dict[str, Any]:
    """Return titles and claims of experiments, tables and figures of sources, and meanings of options."""
    return tomllib.loads((files(__package__) / "experiments.toml").read_text(encoding="utf-8"))


def find(name: str) -> Experiment:
    """Return one experiment by name, or say which there are."""
    known = registry()
    if name not in known:
        near = did_you_mean(name, known)
        raise InvalidInput(f"there is no experiment {name!r}{near}; `sottovoce reproduce list` shows all.")
    return known[name]


def options_of(experiment: Experiment) -> dict[str, Option]:
    """Return the options of an experiment by name, with their defaults."""
    from inspect import signature

    parameters: dict[str, tuple[str, Any]] = {}
    for argument in signature(experiment.run).parameters.values():
        if argument.name not in _INNER and argument.kind is not argument.VAR_KEYWORD:
            parameters[argument.name] = (str(argument.annotation), argument.default)
    if experiment.config is not None:
        for field in fields(experiment.config):
            parameters[field.name] = (str(field.type), field.default)
    return {name: _option(name, *described) for name, described in parameters.items()}


def _option(name: str, annotation: str, default: Any) -> Option:
    """Read a kind off an annotation, which is text here: "tuple[float, ...] | None" takes several numbers."""
    kind = next((kind for kind in ("bool", "int", "float") if kind in annotation), "str")
    return Option(name, default, kind, "tuple[" in annotation)


def meaning(experiment: str, option: str) -> str:
    """Return what an option of an experiment means; nothing for one that no line describes.

    Examples
    --------
    >>> meaning("table1", "settings")
    "printed (the paper's), tuned, or both"
    >>> meaning("dpcd-electricity", "steps") == meaning("dpsgd-rates", "steps")
    False
    """
    own: dict[str, str] = texts()["own"].get(experiment, {})
    return own.get(option) or str(texts()["options"].get(option, ""))
