"""How an experiment is found, what it takes, and how its record becomes a table.

Every module in `MODULES` defines ``EXPERIMENTS``. `paper_index` says which table or figure of which source
each of them is. `meaning` says what an option means, for `sottovoce reproduce NAME --help`: a name means the
same in every experiment, but for those that `OWN` lists.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
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


def _float(word: str) -> float:
    value = float(word)
    if math.isnan(value):
        raise ValueError(word)
    return value


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_READ: dict[str, Callable[[str], Any]]
_READ = {"int": int, "float": _float, "bool": lambda word: _TRUTH[word.lower()]}


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper: how it is run, shown and drawn, and what the paper claims.

    ``run(quick=False, **options)`` returns a `Result`; ``quick`` is the form that the tests run. With
    independent trials it has an option ``spread``, which runs them (`sottovoce.runners.sweep`). ``held`` says
    whether a result bears the claim out, None if it does not decide. ``config`` is the dataclass of options.
    """

    title: str
    paper: str  # which paper, and which table or figure of it
    run: Callable[..., Result]
    plot: Callable[[dict[str, Any]], Any] | None = None
    table: Callable[[dict[str, Any]], ResultTable] | None = None
    claim: str = ""
    held: Callable[[dict[str, Any]], bool | None] | None = None
    config: type | None = None

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
        experiments.update(importlib.import_module(f"{__package__}.{module}").EXPERIMENTS)
    return dict(sorted(experiments.items()))


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


MEANINGS: dict[str, str] = {
    "against": "who must not learn more: outsiders, one, three, tree, local, central",
    "agents": "number of agents",
    "algorithms": "which algorithms are audited",
    "alpha": "order of the Rényi loss",
    "attacker": "the node that attacks",
    "attackers": "how many nodes attack together",
    "central_steps": "steps of central DP-SGD",
    "clip_norm": "bound on the norm of one gradient",
    "clips": "bounds on a gradient, tried in turn",
    "confidence": "of all lower bounds together",
    "data": "which data sets",
    "delta": "delta of the budget",
    "density": "edges of an Erdős-Rényi graph, in ln n / n",
    "device": "where a network trains: cpu, or cuda",
    "dim": "number of parameters",
    "dimension": "of the hypercube, which has 2^dimension nodes",
    "draws": "random graphs, or walks, averaged over",
    "egos": "which Facebook ego graphs",
    "epochs": "passes of training on public data",
    "epsilon": "privacy budget; inf is no privacy",
    "epsilons": "privacy budgets, one curve over them",
    "example": "the node whose reconstructions are shown",
    "fiedler": "connectivity: 1, 0.7, 0.39 or 0.06; all without it",
    "gammas": "step parameters of ADMM, tried in turn",
    "gossip_steps": "gradient steps of gossip",
    "graphs": "random graphs per setting",
    "greedy": "numbers of greedy steps, tried in turn",
    "iterations": "of the search for an input",
    "keep": "folder where finished cells are kept, to go on after a stop",
    "l1": "weight of the l1 penalty",
    "l2": "weight of the l2 penalty",
    "learning_rate": "step size",
    "learning_rates": "step sizes, tried in turn",
    "level": "chance that any bound is wrong",
    "losses": "privacy losses at which methods are compared",
    "batch_size": "records per step",
    "batches": "shares of the records per step, tried in turn",
    "mean_mu": "mean privacy loss (Gaussian mu) of all methods",
    "members": "numbers of members",
    "method": "central, dsgd, dsgt, dinno; all without it",
    "models": "trained models per side",
    "n": "number of nodes",
    "nodes": "length of the line",
    "noise": "standard deviation of noise in the messages",
    "noise_multiplier": "noise over the sensitivity",
    "noise_std": "standard deviation of the noise",
    "noises": "standard deviations of the noise",
    "numbers": "how many numbers are averaged",
    "observers": "nodes whose view is taken, per graph",
    "passes": "passes over the data",
    "pretrain": "public records to start from",
    "probabilities": "edge probabilities",
    "radius": "nodes closer than this are joined (unit square)",
    "randomized_sizes": "numbers of nodes for randomized gossip",
    "rate": "learning rate of the attacked descent",
    "rates": "shares of the nodes that are silent",
    "records": "number of records",
    "relaxation": "step of the fixed-point iteration, 0 to 1",
    "relaxations": "steps of the iteration, tried in turn",
    "repeats": "draws of pictures",
    "results": "folder with one file per trial; what is there is not run again",
    "rounds": "rounds of gossip",
    "runs": "repetitions, of which median and extremes are shown",
    "scale": "of the second feature over the first",
    "seed": "of all random numbers",
    "settings": "printed (the paper's), tuned, or both",
    "share": "of the records in one batch",
    "short_rounds": "gossip cut short at these many rounds",
    "shown": "test records",
    "side": "of the grid",
    "sizes": "numbers of nodes or records",
    "skew": "how data are dealt out: 0 alike, 1 own classes only",
    "skip": "leave out trials that are not stored",
    "steps": "number of steps",
    "stored": "a file of what was tried, instead of trying it",
    "strong_convexity": "of the strongly convex problem",
    "support": "non-zero entries of the true vector",
    "tau": "contraction of the operator",
    "trials": "per cell, each with its own seed",
    "tv": "weight of total variation in the search",
    "users": "number of users",
    "visits": "visits per user",
}
OWN: dict[tuple[str, str], str] = {
    ("attack-line-cifar10", "steps"): "observed steps of descent; without it as many as the attack needs",
    ("audit-table5", "epsilon"): "nominal epsilon, to be refuted",
    ("bayrooti2023-tuning", "results"): "folder with what was tried; what is there is not run again",
    ("convex-audits", "runs"): "runs per side of every audit",
    ("dpcd-electricity", "records"): "number of records; all without it",
    ("dpcd-electricity", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("dpgcd-dorothea", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("dpgcd-madelon", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("muffliato-rate", "records"): "records per node",
    ("muffliato-utility", "epsilon"): "mean Rényi loss of all rows",
    ("secure-sum-network", "method"): "consensus, masked",
    ("walk-vs-gossip", "density"): "edges of the Erdős-Rényi graph, in ln n / n",
}


def meaning(experiment: str, option: str) -> str:
    """Return what an option of an experiment means; nothing for one that no line describes.

    Examples
    --------
    >>> meaning("table1", "settings")
    "printed (the paper's), tuned, or both"
    >>> meaning("dpcd-electricity", "steps") == meaning("dpsgd-rates", "steps")
    False
    """
    return OWN.get((experiment, option), MEANINGS.get(option, ""))
