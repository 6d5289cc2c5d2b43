"""What Bayrooti et al. print, and the settings of their cells: as printed, and tuned.

Bayrooti, Gao, Prorok, "Differentially Private Decentralized Deep Learning with Consensus Algorithms", 2023.
``printed`` is the paper's own clip, learning rates and 2,000 steps, ``tuned`` what `TUNED` says where it says
anything; `GRID` and `tuning` say what was tried.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from sottovoce.errors import InvalidInput

INF = float("inf")
FIEDLERS = (1.0, 0.7, 0.39, 0.06)

EPSILONS, SKEWS = (INF, 100.0, 10.0, 1.0, 0.5), (0.0, 0.25, 0.5, 0.75, 1.0)
_TABLES = tomllib.loads((files(__package__) / "settings.toml").read_text(encoding="utf-8"))


def _by_method(name: str) -> dict[tuple[str, float], Any]:
    """Return a table of ``settings.toml`` by method, and Fiedler value or epsilon."""
    return {(key.split()[0], float(key.split()[1])): row for key, row in _TABLES[name].items()}


TABLE1, TABLE2, TABLE4, RATES = map(_by_method, ("table1", "table2", "table4", "rates"))
HOURS: dict[str, tuple[float, float]] = _TABLES["hours"]


def printed(
    table: int, method: str, epsilon: float, fiedler: float = 1.0, skew: float = 1.0
) -> tuple[float, float] | None:
    """Return mean and standard deviation that a table prints for a cell, None where it prints none.

    Table 1 and Table 2 share cells at t = 1 and do not always agree: at epsilon 10 on the sparsest graph
    DP-DSGD has 84.12 in the first and 84.92 in the second.
    """
    if table == 1:
        row = TABLE1.get((method, 1.0 if method == "central" else fiedler))
        known = row is not None and epsilon in EPSILONS and (skew == 1 or method == "central")
        return tuple(row[EPSILONS.index(epsilon)]) if row is not None and known else None
    values = {2: TABLE2, 4: TABLE4}[table].get((method, epsilon))
    fits = fiedler == (0.06 if table == 2 else 0.39) or method == "central"
    return tuple(values[SKEWS.index(skew)]) if values is not None and fits and skew in SKEWS else None


WHICH = ("printed", "tuned")


@dataclass(frozen=True)
class Settings:
    """What may be tuned: clip, first and last learning rate, steps, and DiNNO's optimizer and penalty."""

    clip_norm: float
    first_rate: float
    last_rate: float
    steps: int | None = None
    optimizer: Literal["sgd", "momentum", "adam"] | None = None
    rho: float | None = None


def _tuned() -> dict[tuple[str, float, str], Settings]:
    """Return what was tuned, by method, epsilon and graph (dense, middle, sparse)."""
    split = {tuple(key.split()): row for key, row in _TABLES["tuned"].items()}
    return {
        (method, float(epsilon), graph): Settings(*row) for (method, epsilon, graph), row in split.items()
    }


TUNED = _tuned()
GRID = (
    "chosen on 10,000 training records held out. With noise: 500 steps, clip 3 or 1, steps 2 or 5 times as "
    "long as the paper's, last rate a hundredth; at epsilon 10 also 2,000 steps, clip 1, 2.5 times as long "
    "(DP-DSGT: 5, and a last rate of a tenth); DP-DiNNO by Adam, by plain steps with rho .1, at epsilon 10 "
    "the paper's own. "
    "Central and without noise: the paper's first rate times 1, 2.5, 6, two ways to fall, clip times "
    "1, 3, 1/3"
)


def settings_of(method: str, epsilon: float, fiedler: float = 0.06, which: str = "tuned") -> Settings:
    """Return clip, learning rates and steps of a method at a budget, as printed or tuned.

    Where nothing was tuned the two are the same. Exact consensus and masked sums, which the paper has not,
    have DP-DSGD's as printed, and tuned those of the central run: they compute what a curator would. Without
    noise they have DP-DSGD's on the complete graph: the central rate, found with batches of a tenth, diverged
    there.
    """
    if which not in WHICH:
        raise InvalidInput(f"settings must be printed or tuned, got {which!r}.")
    name, graph = method, "sparse" if fiedler < 0.39 else "middle" if fiedler < 1 else "dense"
    if like(method) != method:
        name, graph = "dsgd" if epsilon == INF else "central", "dense"
    chosen = TUNED.get((name, epsilon, graph))
    if graph == "middle" and chosen is None:
        chosen = TUNED.get((name, epsilon, "dense"))
    if chosen is not None and which == "tuned":
        return chosen
    known = {budget: rates for (name, budget), rates in RATES.items() if name == like(method)}
    nearest = min(known, key=lambda e: abs(np.log(min(e, 1e6)) - np.log(min(epsilon, 1e6))))
    return Settings(1.0 if method == "central" else 10.0, *known[nearest])


def like(method: str) -> str:
    """The method of the paper whose printed rates one that the paper has not starts from."""
    return "dsgd" if method in ("consensus", "masked") else method
