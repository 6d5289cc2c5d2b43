"""`sottovoce train FILE.toml`: a training plan priced, then run, with progress, checkpoint and resume.

`ALGORITHMS` maps the word in ``[train] algorithm`` to the function that builds the plan and its data: a line
per algorithm, imported when named. Sections are described in docs/plan-files.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from pydantic import Field

from sottovoce.cli.config import (
    BudgetSection,
    NetworkSection,
    NoiseSection,
    ProtocolSection,
    Section,
    read_plan,
    read_toml,
)
from sottovoce.cli.output import Json, emit, number, plain
from sottovoce.errors import BudgetExceeded, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from sottovoce.algorithms import Plan
    from sottovoce.data import Dataset

__all__ = ["ALGORITHMS", "Built", "TrainFile", "build", "train"]


class DataSection(Section):
    """``[data]``: which records, how they are prepared, who holds them."""

    name: str | None = Field(None, description="a data set by name")
    file: Path | None = Field(None, description="a table of one's own: csv, npz, arff, svm")
    label: str | None = Field(None, description="column to predict, for csv and arff")
    group: str | None = Field(None, description="column that tells sites apart, for csv")
    missing: Literal["refuse", "drop"] = "refuse"
    standardise: bool = Field(False, description="by the records themselves: not private, and noted")
    unit_rows: bool = False
    intercept: bool = False
    test_share: float = Field(0.0, ge=0, lt=1)
    partition: Literal["equal", "label", "dirichlet", "column"] = "equal"
    users: int | None = Field(None, ge=1, description="defaults to the number of nodes")
    skew: float = Field(0.0, ge=0, le=1)
    concentration: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, description="splits and partitions; public")

    def load(self, folder: Path) -> Dataset:
        """Return the prepared data set."""
        import numpy as np

        from sottovoce.data import load, read_file

        if (self.name is None) == (self.file is None):
            raise ConfigError('[data] needs either name or file; for example name = "breast_cancer".')
        if self.name is not None:
            data = load(self.name)
        else:
            assert self.file is not None
            given = {"label": self.label, "group": self.group, "missing": self.missing}
            data = read_file(folder / self.file, **{k: v for k, v in given.items() if v is not None})
        if self.test_share > 0:
            data = data.split(self.test_share, np.random.default_rng(self.seed))
        if self.standardise:
            data = data.standardised()
        if self.unit_rows:
            data = data.unit_rows()
        return data.with_intercept() if self.intercept else data

    def parts(self, data: Dataset, users: int) -> list[np.ndarray]:
        """Return the row numbers of every user."""
        import numpy as np

        from sottovoce.data import by_column, by_label, dirichlet, equal

        rng = np.random.default_rng([self.seed, 1])
        if self.partition == "column":
            if data.groups is None:
                raise ConfigError(
                    '[data] partition = "column" needs data with sites; name the column as group.'
                )
            return by_column(data.groups)
        if self.partition == "label":
            return by_label(data.y, users, self.skew, rng)
        if self.partition == "dirichlet":
            return dirichlet(data.y, users, self.concentration, rng)
        return equal(data.n, users, rng)


class ObjectiveSection(Section):
    """``[objective]``: what is minimised."""

    loss: Literal["logistic", "squared", "huber"] = "logistic"
    l1: float = Field(0.0, ge=0)
    l2: float = Field(0.0, ge=0)
    box: float | None = Field(None, gt=0)
    ball: float | None = Field(None, gt=0)
    width: float = Field(1.0, gt=0)


class TrainSection(Section):
    """``[train]``: which algorithm, and its own numbers; a number the algorithm does not know is refused."""

    algorithm: str
    steps: int = Field(ge=1)
    learning_rate: float | None = Field(None, gt=0)
    step_scale: float | None = Field(None, gt=0)
    clip: float = Field(1.0, gt=0)
    lot: float | None = Field(None, gt=0)
    level: Literal["user", "record"] | None = None
    sample_rate: float | None = Field(None, gt=0, le=1)
    momentum: float | None = Field(None, ge=0, lt=1)
    smoothness: float | tuple[float, ...] | None = None
    bounds: tuple[float, ...] | None = None
    smoothness_mu: float | None = Field(None, gt=0)
    period: int | None = Field(None, ge=1)
    adjacency: Literal["replace-one", "add-remove"] | None = None
    gamma: float | None = Field(None, gt=0)
    relaxation: float | None = Field(None, gt=0, le=1)
    noise_in: Literal["mean", "increment", "state"] | None = None
    secure_sum: bool | None = None
    cap: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    final_public: bool | None = None
    feature_norm: float | None = Field(None, gt=0)
    pair_multiplier: float | None = Field(None, ge=0)
    fresh_graph: bool = Field(False, description="draw the graph (or tree) afresh for every step")


class TrainFile(Section):
    """A training plan file."""

    title: str = ""
    data: DataSection
    train: TrainSection
    objective: ObjectiveSection = Field(default_factory=ObjectiveSection)  # type: ignore[arg-type]
    network: NetworkSection | None = None
    protocol: ProtocolSection = Field(default_factory=ProtocolSection)  # type: ignore[arg-type]
    noise: NoiseSection = Field(default_factory=NoiseSection)  # type: ignore[arg-type]
    budget: BudgetSection | None = None


class Built(NamedTuple):
    """A plan, the data it runs on, and the data set these came from."""

    plan: Plan
    data: Any
    dataset: Any


# the word in [train] algorithm -> "module:function" of (settings, folder) -> Built
ALGORITHMS: dict[str, str] = {
    "dp-sgd": "sottovoce.cli.train:central",
    "dp-cd": "sottovoce.cli.train:central",
    "dp-gcd": "sottovoce.cli.train:central",
    "admm": "sottovoce.cli.train:central",
    "admm-federated": "sottovoce.cli.train:users",
    "admm-token": "sottovoce.cli.train:users",
    "muffliato-sgd": "sottovoce.cli.train:networked",
    "consensus-sgd": "sottovoce.cli.train:networked",
    "decor": "sottovoce.cli.train:networked",
    "mafalda-sgd": "sottovoce.cli.train:networked",
    "random-walk-sgd": "sottovoce.cli.train:networked",
}
_CLASSES = {
    "dp-sgd": "DPSGD", "dp-cd": "DPCD", "dp-gcd": "DPGCD", "admm": "CentralADMM",
    "admm-federated": "FederatedADMM", "admm-token": "TokenADMM", "muffliato-sgd": "MuffliatoSGD",
    "consensus-sgd": "ConsensusSGD", "decor": "Decor", "mafalda-sgd": "Mafalda",
    "random-walk-sgd": "RandomWalkSGD",
}  # fmt: skip


def build(settings: TrainFile, folder: Path) -> Built:
    """Return the plan that a training file describes, with the data it runs on."""
    word = settings.train.algorithm
    if word not in ALGORITHMS:
        raise ConfigError(f"[train] algorithm must be one of {', '.join(ALGORITHMS)}, got {word!r}.")
    module, _, name = ALGORITHMS[word].partition(":")
    built: Built = getattr(importlib.import_module(module), name)(settings, folder)
    return built


def central(settings: TrainFile, folder: Path) -> Built:
    """Build a plan with a trusted curator."""
    data = settings.data.load(folder)
    options: dict[str, Any] = {"records": data.n}
    if settings.train.algorithm == "dp-cd" and isinstance(settings.train.smoothness, (int, float)):
        options["smoothness"] = (float(settings.train.smoothness),) * data.dim
    return Built(_plan(settings, options), data, data)


def users(settings: TrainFile, folder: Path) -> Built:
    """Build a plan between users without a graph."""
    data = settings.data.load(folder)
    parts = settings.data.parts(data, settings.data.users or data.n)
    return Built(_plan(settings, {"users": len(parts)}), data.shards(parts), data)


def networked(settings: TrainFile, folder: Path) -> Built:
    """Build a plan on a network, one user per node."""
    if settings.network is None:
        raise ConfigError(f'{settings.train.algorithm} needs a [network]; for example graph = "ring:8".')
    network = settings.network.build(folder)
    data = settings.data.load(folder)
    shards = data.shards(settings.data.parts(data, network.n))
    if settings.train.algorithm == "random-walk-sgd":
        return Built(_plan(settings, {"network": network}), shards, data)
    protocol: Any = settings.protocol.build(network)
    if settings.train.fresh_graph:
        protocol = _fresh(settings, folder)
    options: dict[str, Any] = {"protocol": protocol}
    if settings.train.algorithm == "consensus-sgd":
        options["sizes"] = tuple(shards.sizes.tolist())
    return Built(_plan(settings, options), shards, data)


def _fresh(settings: TrainFile, folder: Path) -> Callable[[int], Any]:
    """Return a schedule that draws the graph (er, geometric) or the tree anew for every step."""
    network, seed = settings.network, settings.protocol.seed
    assert network is not None

    def at(k: int) -> Any:
        redrawn = network
        if network.graph is not None and network.graph.split(":")[0] in ("er", "geometric"):
            base = ":".join(part for part in network.graph.split(":") if not part.startswith("seed="))
            redrawn = network.model_copy(update={"graph": f"{base}:seed={seed * 1_000_003 + k}"})
        again = settings.protocol.model_copy(update={"seed": seed * 1_000_003 + k})
        return again.build(redrawn.build(folder))

    return at


def _plan(settings: TrainFile, options: dict[str, Any]) -> Plan:
    """Return the plan with the noise given, or the least noise that meets the budget."""
    from sottovoce import algorithms
    from sottovoce.algorithms.budget import least_noise
    from sottovoce.objectives import GLM

    word, noise, budget = settings.train.algorithm, settings.noise, settings.budget
    cls: Any = getattr(algorithms, _CLASSES[word])
    known = {f.name for f in fields(cls) if f.init}
    given = settings.train.model_dump(exclude_none=True, exclude={"algorithm", "fresh_graph"})
    for key in given:
        if key not in known:
            raise ConfigError(f"[train] {key} is not a setting of {word}; leave it out.")
    options = {"objective": GLM(**settings.objective.model_dump()), **given, **options}
    if noise.std is not None and noise.multiplier is not None:
        raise ConfigError("[noise] takes multiplier or std, got both; leave one out.")
    field = next(f for f in ("noise_multiplier", "noise_ratio", "noise_std") if f in known)
    needed = {f.name for f in fields(cls) if f.init and f.default is f.default_factory} - {field}
    missing = sorted(needed - set(options))
    if missing:
        raise ConfigError(f"[train] {missing[0]} is missing; {word} needs it.")
    if noise.std is not None or noise.multiplier is not None:
        value = noise.std if noise.std is not None else noise.multiplier
        assert value is not None
        if (noise.std is not None) and field != "noise_std":
            value = noise.std / settings.train.clip
        if noise.std is None and field == "noise_std":
            value = value * settings.train.clip
        return cls(**{field: value}, **options)  # type: ignore[no-any-return]
    if budget is None:
        raise ConfigError(
            "Neither [noise] nor [budget] is given; one of them decides how much noise is added."
        )
    if word == "dp-cd" and "bounds" in options:
        options.pop("smoothness_mu", None)
        return cls.for_budget(epsilon=budget.epsilon, delta=budget.delta, **options)  # type: ignore[no-any-return]
    return least_noise(  # type: ignore[no-any-return]
        lambda z: cls(**{field: z}, **options),
        budget.epsilon,
        budget.delta,
        statement=lambda plan: plan.privacy(budget.view, **budget.who),
    )


def price_file(file: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the price of a training file, as `sottovoce plan` prints it."""
    settings = read_plan(file, TrainFile, tables)
    return price(build(settings, file.parent), settings)


def price(built: Built, settings: TrainFile) -> dict[str, Any]:
    """Return what a training plan costs: guarantees, communication, and whether the budget is met."""
    from sottovoce.cli.average import _verdict

    plan, budget = built.plan, settings.budget
    delta = 1e-5 if budget is None else budget.delta
    stated = plan.guarantees()
    found: dict[str, Any] = {"title": settings.title, "plan": plain(dict(plan.describe())), "delta": delta}
    if budget is not None:
        chosen = plan.privacy(budget.view, **budget.who)
        stated = [*stated, *([] if chosen in stated else [chosen])]
        found |= {"budget": budget.model_dump(exclude_none=True), **_verdict(chosen, budget)}
    notes = list(getattr(built.dataset, "notes", ()))
    if settings.data.test_share > 0:
        notes.append("the score on held-out records is published beside the model and not charged")
    # what looked at private records without being charged stands beside every number, in every record
    stated = [replace(g, assumptions=(*g.assumptions, *notes)) for g in stated]
    found["guarantees"] = [g.to_dict(delta=delta) | {"against": str(g.adversary)} for g in stated]
    dim = built.dataset.dim
    cost: Any = plan.cost
    found["cost"] = dict(cost(dim=dim))
    return found | ({"notes": notes} if notes else {})


def train(
    file: Annotated[Path, typer.Argument(help="A plan file with [data] and [train] sections.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write record and model here (.json).")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Go on from this file if it exists, and keep it up to date.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard files (plans with a [model] section).")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(help="Split the agents over this many processes; --checkpoint is then a folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Train by a plan file: price it, then run it, with a progress bar.

    The price is printed first, and a budget that is not met refuses the run.
    With --checkpoint an interrupted run goes on where it was; a simulation
    ([noise] seed) ends in the same bytes as if it had not been interrupted.

    \b
    Example (save as plan.toml, then run: sottovoce train plan.toml):
      \\[data]
      name = "breast_cancer"
      standardise = true
      unit_rows = true
      test_share = 0.2
      \\[network]
      graph = "hypercube:4"
      \\[protocol]
      name = "exchange"
      \\[train]
      algorithm = "consensus-sgd"
      steps = 30
      learning_rate = 2.0
      \\[budget]
      epsilon = 3.0
      delta = 1e-5
      view = "network"
    """
    from sottovoce.cli import ranks as split
    from sottovoce.cli.average import _noise

    if ranks is not None and not split.inside():
        split.start(ranks)
        return
    if not split.inside() and checkpoint is not None and checkpoint.is_dir():
        raise ConfigError(f"{checkpoint} is a folder, as ranks keep it; give --ranks, or name a file.")
    if not split.inside() and "model" in read_toml(file):  # a network
        from sottovoce.cli.train_deep import train_network

        train_network(file, read_toml(file), out=out, checkpoint=checkpoint, logs=logs, json=json)
        return
    if split.inside():
        run_split = split.Split(ranks, checkpoint, show=not json)
        with run_split as cluster:
            if "model" in cluster.agree("the plan file", lambda: read_toml(file)):
                split.train_network(run_split, file, out=out, logs=logs, json=json)
                return
            settings, built, found = cluster.agree(
                "the plan file", lambda: _priced(file, json, logs, cluster.rank)
            )
            result = run_split.train(built, _noise(settings.noise.seed))
        if result is None:
            return
    else:
        settings, built, found = _priced(file, json, logs)
        options: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
        run: Any = built.plan.run
        result = run(
            built.data, _noise(settings.noise.seed), progress=not json and sys.stderr.isatty(), **options
        )
    metrics = {
        **result.metrics,
        **_test_score(result.outputs["coef"], built, settings),
        "cost": found["cost"],
    }
    record = plain(result.record() | {"metrics": metrics, "guarantees": found["guarantees"]})
    record["outputs"] = {"coef": plain(result.outputs["coef"])}
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, record)
    emit(record, json, lambda screen: _show(screen, record, out))


def _priced(
    file: Path, json: bool, logs: Path | None, rank: int = 0
) -> tuple[TrainFile, Built, dict[str, Any]]:
    """Return settings, plan with data, and price, which is shown; refuse what passes the budget."""
    from sottovoce.cli.average import show_price
    from sottovoce.cli.output import console

    if logs is not None:
        raise ConfigError("--logs is for plans with a [model] section; leave it out.")
    settings = read_plan(file, TrainFile, read_toml(file))
    built = build(settings, file.parent)
    found = price(built, settings)
    if found.get("feasible") is False:
        raise BudgetExceeded(found["verdict"])
    if not json and rank == 0:
        show_price(console(), found)
    return settings, built, found


def _test_score(coef: np.ndarray, built: Built, settings: TrainFile) -> dict[str, float]:
    """Return the score on held-out records, when some were held out."""
    data = built.dataset
    if data.X_test is None or data.y_test is None:
        return {}
    import numpy as np

    from sottovoce.data import signed_labels

    scores = np.asarray(data.X_test @ coef)
    if settings.objective.loss == "logistic":
        return {"test_accuracy": float(np.mean(np.sign(scores) == signed_labels(data.y_test)))}
    return {"test_mean_squared_error": float(np.mean((scores - data.y_test) ** 2))}


def _show(screen: Any, record: dict[str, Any], out: Path | None) -> None:
    shown = ", ".join(number(v) for v in record["outputs"]["coef"][:8])
    more = " ..." if len(record["outputs"]["coef"]) > 8 else ""
    screen.print(f"Coefficients: {shown}{more}")
    for key in ("test_accuracy", "test_mean_squared_error"):
        if key in record["metrics"]:
            screen.print(f"{key.replace('_', ' ').capitalize()}: {number(record['metrics'][key])}")
    screen.print(f"Noise: {record['provenance']['noise']}")
    if out is not None:
        screen.print(f"Written to {out}.")
