"""One cell of the paper's tables, and one trial of it as a record.

Bayrooti, Gao, Prorok, "Differentially Private Decentralized Deep Learning with Consensus Algorithms", 2023.
Ten agents, 2,000 iterations, batch size 256, delta 1e-5, record level add/remove, every message visible.

A cell is (method, epsilon, normalized Fiedler value, data skew t); its trials differ in graph, split, start
and noise. Settings, as printed and tuned, stand in `settings`; `tables` makes tables of cells.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.algorithms.registry import algorithm
from sottovoce.data.images import load_images
from sottovoce.data.partition import by_label
from sottovoce.errors import InvalidInput
from sottovoce.runners.sweep import read_trial, write_trial
from sottovoce_papers.bayrooti2023.settings import INF, RATES, Settings, like, printed, settings_of
from sottovoce_papers.common import SIMULATED, made_here

DELTA = 1e-5
COLORED = "colored digits"  # a few of scikit-learn's in three channels: ResNet-9 on what is always there
# mean and standard deviation per channel; images of other names are normalized as CIFAR-100
NORMALIZATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.1307,), (0.3081,)),
    "digits": ((0.3,), (0.38,)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
METHODS = ("central", "dsgd", "dsgt", "dinno", "consensus", "masked")


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    method: str
    epsilon: float
    fiedler: float = 1.0
    skew: float = 1.0
    data: str = "mnist"
    steps: int = 2000
    batch_size: int = 256
    agents: int = 10

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if not self.epsilon > 0:
            raise InvalidInput(f"epsilon must be positive (inf for non-private), got {self.epsilon!r}.")
        _validate.probability(self.fiedler, "fiedler", zero=False)
        _validate.probability(self.skew, "skew")

    @property
    def key(self) -> str:
        """Name of the cell, for its records."""
        graph = "" if self.method == "central" else f"_fiedler{self.fiedler:g}_t{self.skew:g}"
        parts = f"{self.method}_eps{self.epsilon:g}{graph}"
        return parts if self.data == "mnist" else f"{self.data}_{parts}"

    def printed(self, table: int | None = None) -> tuple[float, float] | None:
        """Mean and standard deviation that the paper prints (by default in the first table with the cell)."""
        if self.data not in ("mnist", "cifar100"):
            return None
        tables = (4,) if self.data == "cifar100" else (1, 2)
        values = (
            printed(number, self.method, self.epsilon, self.fiedler, self.skew)
            for number in ((table,) if table else tables)
        )
        return next((value for value in values if value is not None), None)


def trial_key(cell: Cell, which: str, trial: int) -> str:
    """Return the name of a trial, and of its file."""
    return f"{cell.key}{'_printed' if which == 'printed' else ''}_trial{trial}"


def run_cell(
    cell: Cell,
    trial: int,
    *,
    which: str = "tuned",
    settings: Settings | None = None,
    results: str | Path | None = None,
    every: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run one trial of one cell and return its record; a record already in ``results`` is read instead.

    ``device`` is where the gradients of the ResNet are computed; the paper's small network has a kernel of
    its own.
    """
    chosen = settings or _settings(cell, which)
    path = None if results is None else Path(results) / f"{trial_key(cell, which, trial)}.json"
    named = {**asdict(cell), "epsilon": cell.epsilon if np.isfinite(cell.epsilon) else "inf"}
    stored = read_trial(path, cell=named, settings=asdict(chosen))
    if stored is not None:
        return stored
    started = time.perf_counter()
    rng = np.random.default_rng([20230601, trial])
    network = _graph(cell, rng)
    data = _split(cell, rng)
    plan = _plan(cell, chosen, network, data.sizes, device)
    result = plan.run(data, rng, every=every)
    private, where = np.isfinite(cell.epsilon), {} if device == "cpu" else {"device": device}
    # an adversary who sees every message; behind masks any one member who does
    seen: Any = {"central": "central", "masked": "network"}.get(cell.method, "local")
    record = {
        "name": "bayrooti2023-trial",
        "cell": named,
        "trial": trial,
        "which": which,
        "settings": asdict(chosen),
        "accuracy": round(100 * result.metrics["accuracy"], 2),
        "accuracy_least": round(100 * result.metrics["accuracy_least"], 2),
        "history": list(result.history),
        "printed": cell.printed(),
        "graph_fiedler": None if network is None else round(float(network.fiedler_normalized), 4),
        "noise_multiplier": [round(z, 4) for z in noise_multipliers(plan)],
        "epsilon_spent": round(plan.privacy(seen).epsilon(DELTA), 6) if private else "inf",
        "guarantee": plan.privacy(seen).statement(DELTA) if private else "none: no noise",
        "provenance": made_here(started, noise=SIMULATED, **where),
    }
    write_trial(path, record)
    return record


def _settings(cell: Cell, which: str = "tuned") -> Settings:
    if cell.data in ("mnist", "digits"):
        chosen = settings_of(cell.method, cell.epsilon, cell.fiedler, which)
        # digits are for quick runs: the number of steps is the cell's
        return chosen if cell.data == "mnist" else replace(chosen, steps=None)
    method = like(cell.method)
    rates = RATES.get((method, cell.epsilon), RATES[method, 10.0])
    return Settings(1.0 if cell.method == "central" else 10.0, *rates)


def _graph(cell: Cell, rng: np.random.Generator) -> Any:
    if cell.method == "central":
        return None
    if cell.fiedler == 1:
        return graphs.complete(cell.agents)
    return graphs.random_connected(cell.agents, cell.fiedler, rng)


@cache
def _images(name: str) -> Any:
    if name != COLORED:
        return load_images(name)
    grey = load_images("digits")
    x, x_test = (np.repeat(each, 3, axis=1) for each in (grey.x[:20], grey.x_test[:6]))
    return replace(grey, name=COLORED, x=x, y=grey.y[:20], x_test=x_test, y_test=grey.y_test[:6])


@cache
def _tensors(name: str) -> tuple[Any, ...]:
    """Normalized training and test tensors, kept: ten agents share one copy."""
    images = _images(name)
    mean, std = NORMALIZATION.get(name, NORMALIZATION["cifar100"])
    return tuple(images.floats(x, mean, std, 32) for x in (images.x, images.x_test))


def _split(cell: Cell, rng: np.random.Generator) -> Any:
    from sottovoce.data.agent_tensors import AgentData

    images = _images(cell.data)
    x, x_test = _tensors(cell.data)
    if cell.method == "central":
        parts: Sequence[Any] = [np.arange(len(x))]
    else:
        parts = by_label(images.y, cell.agents, cell.skew, rng)
    return AgentData(x, images.y, parts, test=(x_test, images.y_test), classes=images.classes)


def _plan(cell: Cell, chosen: Settings, network: Any, sizes: np.ndarray, device: str = "cpu") -> Any:
    names = {"central": "dp-sgd", "consensus": "consensus-sgd", "masked": "consensus-sgd"}
    private = np.isfinite(cell.epsilon)
    objective = _objective(cell, chosen.clip_norm if private else INF, device)
    options: dict[str, Any] = {
        "sizes": sizes, "steps": chosen.steps or cell.steps, "batch_size": cell.batch_size,
        "learning_rate": (chosen.first_rate, chosen.last_rate), "accounting": "rdp",
    }  # fmt: skip
    if chosen.optimizer is not None:
        options["optimizer"] = Optimizer(chosen.optimizer)
    if chosen.rho is not None:
        options["rho"] = chosen.rho
    if cell.method == "dinno" and cell.data in ("cifar100", COLORED):
        options["primal_steps"] = 2  # as printed for CIFAR-100; both releases are paid for
    if cell.method != "central":
        options["network"] = network
    make = algorithm(names.get(cell.method, f"dp-{cell.method}"))
    if not private:
        return make(objective, **options)
    if cell.method == "masked":
        options |= {"protocol": "masked", "view": "network"}
    elif cell.method != "central":
        options["view"] = "local"
    return make.for_budget(objective, epsilon=cell.epsilon, delta=DELTA, **options)


def _objective(cell: Cell, clip_norm: float, device: str = "cpu") -> Any:
    from sottovoce.objectives.nets import objective as nets
    from sottovoce.objectives.nets import zoo
    from sottovoce_papers.bayrooti2023.objective import BayrootiObjective

    if cell.data in ("mnist", "fashion_mnist", "digits"):
        return BayrootiObjective(clip_norm=clip_norm, initial="reset")
    images = _images(cell.data)
    net = zoo.resnet9(images.classes, images.x.shape[1])
    return nets.NetObjective(
        net, clip_norm=clip_norm, physical_batch=50 * cell.agents, initial="reset", device=device
    )


def cell_trial(
    *, cell: Mapping[str, Any], trial: int, settings: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Run one trial of one cell, given as plain values; the trial's number is its seed."""
    chosen = None if settings is None else Settings(**settings)
    return run_cell(Cell(**cell), trial, settings=chosen, **options)
