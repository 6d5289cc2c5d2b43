"""Plan files that train a network, and the search over learning rates and clips.

A file with a ``[model]`` section is about a network::

    [network]
    graph = "ring:5"
    [data]
    name = "digits"          # mnist, fashion_mnist, cifar10, cifar100
    skew = 1.0               # one owner per class
    [model]
    name = "mlp"
    options = { inputs = 64, hidden = 16 }
    [train]
    method = "dsgt"          # sgd, dsgd, dsgt, dinno, consensus, muffliato, walk
    steps = 100
    lot = 64
    max_grad_norm = 1.0
    learning_rate = [0.5, 0.1]
    [budget]
    epsilon = 5.0
    delta = 1e-5
    [noise]
    seed = 1                 # makes it a simulation
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field

from sottovoce.cli.config import BudgetSection, NetworkSection, NoiseSection, Section, checked, read_toml
from sottovoce.cli.output import Json, emit, plain, table
from sottovoce.errors import BudgetExceeded, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from sottovoce.algorithms import DeepPlan
    from sottovoce.objectives.lots import AgentData
    from sottovoce.runners import Result

__all__ = ["DeepFile", "price_file", "search", "train_file", "train_network"]

Method = Literal["sgd", "dsgd", "dsgt", "dinno", "consensus", "muffliato", "walk"]
_CLASSES: dict[str, str] = {
    "sgd": "DeepSGD", "dsgd": "DPDSGD", "dsgt": "DPDSGT", "dinno": "DPDiNNO", "consensus": "DeepConsensus",
    "muffliato": "DeepMuffliato", "walk": "DeepWalk",
}  # fmt: skip


class DataSection(Section):
    """``[data]``: which images, and how they are dealt out to the agents."""

    name: str = "digits"
    folder: Path | None = Field(None, description="where the official files are; else SOTTOVOCE_DATA")
    skew: float = Field(0.0, ge=0, le=1, description="t of A(t): 0 even, 1 one owner per class")
    seed: int = Field(0, ge=0, description="deals the records out")
    side: int | None = Field(None, ge=1, description="resize images to this side")
    mean: float = 0.0
    std: float = Field(1.0, gt=0)


class ModelSection(Section):
    """``[model]``: a network of the zoo."""

    name: str
    options: dict[str, int] = Field(default_factory=dict)


class TrainSection(Section):
    """``[train]``: the algorithm and what it needs."""

    method: Method = "dsgd"
    steps: int = Field(ge=1)
    lot: int | None = Field(None, ge=1, description="expected lot size; left out: all records")
    max_grad_norm: float = Field(1.0, gt=0)
    learning_rate: float | tuple[float, float] = 0.1
    optimiser: Literal["sgd", "momentum", "adam"] | None = None
    adjacency: Literal["add-remove", "replace-one", "user"] = "add-remove"
    accounting: Literal["pld", "rdp"] = "pld"
    physical_batch: int | None = Field(None, ge=1)
    device: str = "cpu"
    evaluate_every: int = Field(0, ge=0)
    options: dict[str, float | int | str | bool] = Field(
        default_factory=dict, description="options of the method, such as rho, primal_steps, averaging"
    )


class DeepFile(Section):
    """A plan file with a ``[model]`` section."""

    title: str = ""
    network: NetworkSection | None = None
    data: DataSection = Field(default_factory=DataSection)  # type: ignore[arg-type]
    model: ModelSection
    train: TrainSection
    noise: NoiseSection = Field(default_factory=NoiseSection)  # type: ignore[arg-type]
    budget: BudgetSection | None = None


def train_file(
    file: Path,
    tables: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    logs: Path | None = None,
    progress: bool = False,
) -> Result:
    """Run the plan of a file with a ``[model]`` section and return its result.

    ``checkpoint`` is written twenty times over the run; ``logs`` is a folder for TensorBoard.
    """
    found = checked(DeepFile, tables, file.name)
    plan, data = build(found, file.parent)
    with logged(logs, plan, found) as tell:
        return plan.run(
            data, noise_source(found), progress=progress, evaluate_every=evaluate_every(plan, found),
            checkpoint=checkpoint, checkpoint_every=max(plan.steps // 20, 1), resume=resume, on_step=tell,
        )  # fmt: skip


def evaluate_every(plan: DeepPlan, found: DeepFile) -> int:
    """Return after how many steps the rows are evaluated: as the file says, else twenty times."""
    return found.train.evaluate_every or max(plan.steps // 20, 1)


@contextmanager
def logged(
    logs: Path | None, plan: DeepPlan, found: DeepFile
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Give what to call with (step, figures), which writes them for TensorBoard with the epsilon so far."""
    from sottovoce.algorithms.event_log import EventLog

    if logs is None:
        yield lambda step, entry: None
        return
    with closing(EventLog(logs)) as log:
        yield lambda step, entry: log.scalars(step, {**entry, "epsilon": spent(plan, found, step)})


def train_network(
    file: Path,
    tables: Mapping[str, Any],
    *,
    out: Path | None = None,
    checkpoint: Path | None = None,
    logs: Path | None = None,
    json: bool = False,
) -> None:
    """Price a file with a ``[model]`` section, run it, print and write the record; see `sottovoce train`."""
    import sys

    from sottovoce.cli.average import show_price
    from sottovoce.cli.output import console

    found = price_file(file, tables)
    if found.get("feasible") is False:
        raise BudgetExceeded(found["verdict"])
    if not json:
        show_price(console(), found)
    show = not json and sys.stderr.isatty()
    result = train_file(
        file, tables, checkpoint=checkpoint, resume=checkpoint is not None, logs=logs, progress=show
    )
    show_network(result, found, out=out, json=json)


def show_network(result: Any, found: Mapping[str, Any], *, out: Path | None, json: bool) -> None:
    """Print and write the record of a finished run."""
    record = plain(result.record() | {"guarantees": found["guarantees"]})
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, record)

    def text(screen: Console) -> None:
        screen.print(f"Test accuracy: {result.metrics['accuracy']:.2f} % (mean of the agents).")
        screen.print(f"Noise: {record['provenance']['noise']}")
        if out is not None:
            screen.print(f"Written to {out}.")

    emit(record, json, text)


def price_file(file: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan of a file costs, as `sottovoce plan` prints it, before anything runs."""
    from sottovoce.cli.average import _verdict

    settings = checked(DeepFile, tables, file.name)
    plan, _ = build(settings, file.parent)
    budget = settings.budget
    delta = 1e-5 if budget is None else budget.delta
    stated = plan.guarantees() if any(plan.noise_multiplier) else []
    found: dict[str, Any] = {"title": settings.title, "plan": plain(dict(plan.describe())), "delta": delta}
    if budget is not None and stated:
        chosen = plan.privacy(budget.view, **budget.who)
        stated = [*stated, *([] if chosen in stated else [chosen])]
        found |= {"budget": budget.model_dump(exclude_none=True), **_verdict(chosen, budget)}
    found["guarantees"] = [g.to_dict(delta=delta) | {"against": str(g.adversary)} for g in stated]
    found["epsilon_by_agent"] = [plan.get_epsilon(delta, agent=i) for i in range(plan.n)] if stated else []
    found["cost"] = dict(plan.cost())
    return found


def spent(plan: DeepPlan, found: DeepFile, step: int) -> float:
    """Return epsilon of the worst agent after ``step`` steps."""
    delta = found.budget.delta if found.budget else 1e-5
    return plan.get_epsilon(delta, steps=step)


def build(
    found: DeepFile, folder: Path, *, rate: Any = None, clip: float | None = None
) -> tuple[DeepPlan, AgentData]:
    """Return the plan and the data of a file, with another learning rate or clip if given."""
    import numpy as np

    from sottovoce import algorithms
    from sottovoce.algorithms.schedules import Optimiser
    from sottovoce.data.images import load_images
    from sottovoce.data.partition import by_label
    from sottovoce.objectives.lots import AgentData
    from sottovoce.objectives.models import build as build_model
    from sottovoce.objectives.nets import NetObjective

    section = found.train
    images = load_images(found.data.name, found.data.folder and folder / found.data.folder)
    x, x_test = (
        images.floats(part, found.data.mean, found.data.std, found.data.side)
        for part in (images.x, images.x_test)
    )
    network = None if found.network is None else found.network.build(folder)
    if section.method != "sgd" and network is None:
        raise ConfigError(f"[network] is missing; {section.method} needs to know who talks to whom.")
    agents = 1 if network is None or section.method == "sgd" else network.n
    parts = by_label(images.y, agents, found.data.skew, np.random.default_rng(found.data.seed))
    data = AgentData(x, images.y, parts, test=(x_test, images.y_test), classes=images.classes)
    objective = NetObjective(
        build_model(found.model.name, **found.model.options),
        max_grad_norm=clip or section.max_grad_norm, physical_batch=section.physical_batch,
        device=section.device,
    )  # fmt: skip
    options: dict[str, Any] = {
        "sizes": data.sizes, "steps": section.steps, "lot": section.lot,
        "learning_rate": section.learning_rate if rate is None else rate,
        "adjacency": section.adjacency, "accounting": section.accounting, **section.options,
    }  # fmt: skip
    if section.optimiser is not None:
        options["optimiser"] = Optimiser(section.optimiser)
    if section.method != "sgd":
        options["network"] = network
    make = getattr(algorithms, _CLASSES[section.method])
    try:
        if found.noise.multiplier is not None:
            return make(objective, noise_multiplier=found.noise.multiplier, **options), data
        if found.budget is None:
            raise ConfigError("the file needs [budget] with epsilon and delta, or [noise] multiplier.")
        target = {"epsilon": found.budget.epsilon, "delta": found.budget.delta}
        return make.for_budget(objective, **target, **options), data
    except TypeError as problem:
        raise ConfigError(f"[train] options do not fit {section.method}: {problem}.") from None


def noise_source(found: DeepFile) -> Any:
    """Return a simulation's generator where the file names a seed, protective noise where it does not."""
    import numpy as np

    from sottovoce.privacy.noise import ProtectiveNoise

    return ProtectiveNoise() if found.noise.seed is None else np.random.default_rng(found.noise.seed)


def _spent_on(plans: list[DeepPlan], delta: float) -> float:
    """Return what all runs together cost the agent that pays most."""
    from sottovoce.privacy import Curve

    agents = range(plans[0].n)
    return Curve.worst(Curve.total(plan.curve(i) for plan in plans) for i in agents).epsilon(delta)


def search(
    file: Annotated[Path, typer.Argument(help="A plan file with a [model] section.")],
    rates: Annotated[str, typer.Option(help="Learning rates to try, separated by commas.")] = "0.05,0.1,0.5",
    clips: Annotated[str, typer.Option(help="Clip norms to try, separated by commas.")] = "1",
    json: Json = False,
) -> None:
    """Try learning rates and clips, and say what the search itself spends.

    Every run looks at the records, so every run is paid for: the last line is the
    loss of all of them together, which is what a participant has given away once
    the best setting is published. Tune on public data to avoid it.

    \b
    Example:
      sottovoce search plan.toml --rates 0.1,0.5 --clips 0.5,1 --json
    """
    tables = read_toml(file)
    found = checked(DeepFile, tables, file.name)
    delta = found.budget.delta if found.budget else 1e-5
    rows, paid = [], []
    for clip in _numbers(clips, "clips"):
        for rate in _numbers(rates, "rates"):
            plan, data = build(found, file.parent, rate=rate, clip=clip)
            result = plan.run(data, noise_source(found))
            rows.append({"clip": clip, "rate": rate, "accuracy": round(result.metrics["accuracy"], 2)})
            if any(plan.noise_multiplier):
                paid.append(plan)
    best = max(rows, key=lambda row: row["accuracy"])
    one = plan.get_epsilon(delta) if paid else None
    payload = {
        "tried": rows,
        "best": best,
        "runs": len(rows),
        "delta": delta,
        "epsilon_of_one_run": one,
        "epsilon_of_the_search": _spent_on(paid, delta) if paid else None,
    }

    def text(out: Console) -> None:
        out.print(table(("clip", "rate", "accuracy"), [(r["clip"], r["rate"], r["accuracy"]) for r in rows]))
        out.print(f"Best: clip {best['clip']:g}, rate {best['rate']:g}, accuracy {best['accuracy']:.2f}.")
        if payload["epsilon_of_the_search"] is None:
            out.print("Without noise nothing is protected.")
        else:
            out.print(
                f"One run costs epsilon {one:.3f} at delta {delta:g}; the search of {len(rows)} runs costs "
                f"{payload['epsilon_of_the_search']:.3f}, and this is what has been spent."
            )

    emit(payload, json, text)


def _numbers(text: str, name: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--{name} must be numbers separated by commas, got {text!r}.") from None
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"--{name} must be positive numbers, got {text!r}.")
    return values
