"""`sottovoce train FILE.toml`: a training plan priced, then run, in one process or over ranks.

Nothing here knows an algorithm or a kind of model: a file becomes a plan (`sottovoce.cli.plan`), a plan runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.config import read_plan
from sottovoce.cli.output import Json, console, emit, if_stopped, number, plain
from sottovoce.cli.plan import Built, built_plan, price, require_budget, show_price
from sottovoce.cli.ranks import Split, inside, start
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from sottovoce.algorithms import Plan
    from sottovoce.runners import Cluster, Result

__all__ = ["read_training", "run_training", "train"]

SHOWN = 100_000  # coefficients that a record may hold; larger models are saved as a folder


def train(
    file: Annotated[Path, typer.Argument(help="A plan file with \\[data] and \\[train] sections.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write here: the record (.json), or record and model (a folder)."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder: go on from it if it holds a run, and keep it up to date.")
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for TensorBoard files.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Split the agents over this many processes.")] = None,
    json: Json = False,
) -> None:
    """Train by a plan file: price it, then run it, with a progress bar.

    The price is printed first, and a budget that is not met refuses the run.
    With --checkpoint an interrupted run goes on where it was; a simulation
    (\\[noise] seed) ends in the same bytes as if it had not been interrupted.

    \b
    Example (save as plan.toml, then run: sottovoce train plan.toml):
      version = 2
      accept = \\["standardise", "held-out score"]
      \\[data]
      name = "breast_cancer"
      standardise = true
      unit_rows = true
      test_share = 0.2
      \\[network]
      graph = "hypercube:4"
      \\[protocol]
      name = "masked"
      \\[train]
      algorithm = "consensus-sgd"
      adjacency = "add-remove"
      steps = 30
      clip = 1.0
      learning_rate = 2.0
      \\[budget]
      epsilon = 3.0
      delta = 1e-5
      view = "network"
    """
    if ranks is not None and not inside():
        start(ranks)
        return
    if checkpoint is not None and checkpoint.is_file():
        raise ConfigError(f"{checkpoint} is a file; a checkpoint is a folder now, name another place.")
    if not inside():
        train_on(None, file, out=out, checkpoint=checkpoint, logs=logs, json=json)
        return
    with Split(ranks) as cluster:
        train_on(cluster, file, out=out, checkpoint=checkpoint, logs=logs, json=json)


def train_on(
    cluster: Cluster | None,
    file: Path,
    *,
    out: Path | None = None,
    checkpoint: Path | None = None,
    logs: Path | None = None,
    json: bool = False,
) -> None:
    """Price and run a file in this process, or as one of a cluster's ranks, the first of which speaks."""

    def prepare() -> tuple[Built, dict[str, Any]]:
        built = read_training(file)
        priced = price(built)
        require_budget(priced)
        return built, priced

    speaks = cluster is None or cluster.rank == 0
    built, priced = prepare() if cluster is None else cluster.agree("the plan file", prepare)
    if speaks and not json:
        show_price(console(), priced)
    show = speaks and not json and sys.stderr.isatty()
    if speaks and not json:
        _say_resumed(checkpoint, built.plan.steps)
    with if_stopped(lambda: _kept(checkpoint)) if speaks else nullcontext():
        result = run_training(
            built, cluster, checkpoint=checkpoint, logs=logs if speaks else None, progress=show
        )
    if result is not None:
        _finish(result, built, priced, out, json)


def _kept(checkpoint: Path | None) -> str:
    """Say what an interrupted training leaves behind."""
    from sottovoce.runners.checkpoint import kept_at

    step = None if checkpoint is None else kept_at(checkpoint)
    if step is not None:
        return f"kept at step {step:,} in {checkpoint}; the same command goes on."
    return "nothing was kept; --checkpoint FOLDER keeps a run while it trains."


def _say_resumed(checkpoint: Path | None, steps: int) -> None:
    from sottovoce.runners.checkpoint import kept_at

    step = None if checkpoint is None else kept_at(checkpoint)
    if step is not None:
        console(error=True).print(
            f"Going on at step {step:,} of {steps:,}, kept in {checkpoint}.", markup=False
        )


def read_training(file: Path, **changed: Any) -> Built:
    """Return the plan of a training file and its records; `changed` options replace those of the file."""
    settings = read_plan(file)
    if settings.train is None:
        raise ConfigError(f"{file.name} has no [train]; sottovoce average runs a file with [average].")
    return built_plan(settings, file.parent, file.name, **changed)


def run_training(
    built: Built,
    cluster: Cluster | None = None,
    *,
    checkpoint: Path | None = None,
    logs: Path | None = None,
    progress: bool = False,
) -> Result | None:
    """Run a built plan, in this process or as a rank; the result is returned on rank 0."""
    from sottovoce.runners.progress import bar
    from sottovoce.runners.run import run_on_ranks

    plan, noise = built.plan, built.settings.noise.source
    assert built.records is not None
    assert built.settings.train is not None
    data, every = built.records.data, built.settings.train.every or max(plan.steps // 20, 1)
    with _logged(logs, built) as tell:
        if cluster is None:
            return plan.run(data, noise, every=every, checkpoint=checkpoint, progress=progress, on_step=tell)
        with bar(progress, f"{plan.name} on {cluster.size} ranks", plan.steps) as shown:
            return run_on_ranks(
                cluster, plan, data, noise, every=every, checkpoint=checkpoint, on_step=tell,
                progress=lambda done: shown(done, {}),
            )  # fmt: skip


@contextmanager
def _logged(logs: Path | None, built: Built) -> Iterator[Callable[[int, Mapping[str, Any]], None] | None]:
    """Give what to call with (step, figures), which writes them for TensorBoard with the epsilon so far."""
    if logs is None:
        yield None
        return
    from sottovoce.report.tensorboard import EventLog

    budget = built.settings.budget
    delta = 1e-5 if budget is None else budget.delta

    def tell(step: int, entry: Mapping[str, Any]) -> None:
        log.scalars(step, {**entry, **_spent(built.plan, delta, step)})

    with closing(EventLog(logs)) as log:
        yield tell


def _spent(plan: Plan, delta: float, step: int) -> dict[str, float]:
    """Return epsilon after ``step`` steps: the first statement of the plan, had it ended there."""
    try:
        shorter: Any = replace(plan, steps=step)  # type: ignore[type-var]
    except InvalidInput:  # a plan whose length is that of a path it was given
        return {}
    return {"epsilon": shorter.guarantees()[0].epsilon(delta)}


def _finish(result: Result, built: Built, priced: dict[str, Any], out: Path | None, json: bool) -> None:
    """Score, write and print what a run has left."""
    assert built.records is not None
    coef = result.outputs["coef"]
    metrics = {**result.metrics, **built.records.score(coef), "cost": priced["cost"]}
    if built.accepted:
        metrics["accepted"] = list(built.accepted)
    result = replace(result, metrics=metrics, guarantees=priced["guarantees"])
    record = plain(result.record())
    if coef.size <= SHOWN:
        record["outputs"] = {"coef": plain(coef)}
    if out is not None and out.suffix.lower() == ".json":
        from sottovoce.report.records import write_record

        write_record(out, record)
    elif out is not None:
        result.save(out)
    emit(record, json, lambda screen: _show(screen, record, out))


def _show(screen: Any, record: dict[str, Any], out: Path | None) -> None:
    from sottovoce.privacy.words import UNCHARGED

    coef = record.get("outputs", {}).get("coef", [])
    if 0 < len(coef) <= 1000:
        shown = ", ".join(number(v) for v in coef[:8])
        screen.print(f"Coefficients: {shown}{' ...' if len(coef) > 8 else ''}")
    metrics = record["metrics"]
    for key in ("test_accuracy", "test_mean_squared_error"):
        if key in metrics:
            screen.print(f"{key.replace('_', ' ').capitalize()}: {number(metrics[key])}")
    if "accuracy" in metrics:
        screen.print(f"Test accuracy: {metrics['accuracy']:.2f} % (mean of the agents).")
    for name in metrics.get("accepted", ()):
        screen.print(f"[bold red]Not charged:[/bold red] {UNCHARGED[name]}.")
    screen.print(f"Noise: {record['provenance']['noise']}")
    if out is not None:
        screen.print(f"Written to {out}.")
