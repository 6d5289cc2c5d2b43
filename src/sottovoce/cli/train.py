"""`sottovoce train FILE.toml`: a training plan, assessed, then run, in one process or over ranks.

Nothing here knows an algorithm or a kind of model: a file becomes a plan (`sottovoce.planfile`), a plan runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce._io import plain
from sottovoce.cli.distributed import Split, inside, start
from sottovoce.cli.output import Json, console, emit, if_stopped, safe
from sottovoce.cli.plan import show_assessment
from sottovoce.errors import ConfigError, DataError, InvalidInput

if TYPE_CHECKING:
    from sottovoce.algorithms import Plan
    from sottovoce.ledger.charge import TrainingCharge
    from sottovoce.models.saved import Fitted
    from sottovoce.planfile.read import LoadedPlan
    from sottovoce.runners import Cluster, Result

__all__ = ["charged_training", "read_training", "run_training", "train"]

SHOWN = 100_000  # coefficients that a record may hold; larger models are saved as a folder


def train(
    file: Annotated[Path, typer.Argument(help="A plan file with \\[data] and \\[train] sections.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write here: the model with its guarantee (a folder), or the result (.json)."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder: continue from it if it holds a run, and keep it up to date.")
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for TensorBoard files.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Split the agents over this many processes.")] = None,
    population: Annotated[
        str | None, typer.Option(help="Whose records they are, by the lifetime ledger of this machine.")
    ] = None,
    json: Json = False,
) -> None:
    """Train by a plan file: compute its privacy cost, then run it.

    The privacy cost is printed first; a plan that exceeds its budget is refused.
    --out DIR stores the model with its guarantee; sottovoce predict uses it. A
    run with protective noise always stores its model, by default in a folder
    named after the file. With --checkpoint an interrupted run continues; a
    simulation (\\[noise] seed) ends in the same bytes as without interruption.
    On a machine with a member directory (sottovoce peer init) protective noise
    is first charged to its lifetime ledger, and refused beyond the budget.

    \b
    Example (save as plan.toml, then run: sottovoce train plan.toml):
      version = 1
      accept = \\["standardize", "held-out score"]
      \\[data]
      name = "breast_cancer"
      standardize = true
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
      clip_norm = 1.0
      learning_rate = 2.0
      \\[budget]
      epsilon = 3.0
      delta = 1e-5
      view = "network"
    """
    if logs is not None:
        from sottovoce.report.tensorboard import require_tensorboard

        require_tensorboard()  # before anything is charged
    if ranks is not None and not inside():
        start(ranks)
        return
    if checkpoint is not None and checkpoint.is_file():
        raise ConfigError(f"{checkpoint} is a file; a checkpoint is a folder; name another place.")
    if not inside():
        train_on(None, file, out=out, checkpoint=checkpoint, logs=logs, population=population, json=json)
        return
    with Split(ranks) as cluster:
        train_on(cluster, file, out=out, checkpoint=checkpoint, logs=logs, population=population, json=json)


def train_on(
    cluster: Cluster | None,
    file: Path,
    *,
    out: Path | None = None,
    checkpoint: Path | None = None,
    logs: Path | None = None,
    population: str | None = None,
    json: bool = False,
) -> None:
    """Assess and run a file in this process, or as one rank of a cluster; rank 0 prints."""

    from sottovoce.advice.assessment import assess, require_budget

    def prepare() -> tuple[LoadedPlan, dict[str, Any]]:
        loaded = read_training(file)
        assessment = assess(loaded)
        require_budget(assessment)
        return loaded, assessment

    prints = cluster is None or cluster.rank == 0
    loaded, assessment = prepare() if cluster is None else cluster.agree("the plan file", prepare)
    folder = _place(out, loaded, file) if prints else None
    if prints and not json:
        show_assessment(console(), assessment)
    show = prints and not json and sys.stderr.isatty()

    def charge() -> TrainingCharge | None:  # the rank that prints for all of them
        return charged_training(loaded, population, checkpoint) if prints else None

    if prints and not json:
        _say_resumed(checkpoint, loaded.plan.steps)
    try:
        charged = charge() if cluster is None else cluster.agree("the lifetime budget", charge)
        with if_stopped(lambda: _interrupted_sentence(checkpoint)) if prints else nullcontext():
            result = run_training(
                loaded, cluster, checkpoint=checkpoint, logs=logs if prints else None, progress=show,
                charged=charged,
            )  # fmt: skip
    except BaseException:
        if folder is not None and not any(folder.iterdir()):
            folder.rmdir()
        raise
    if result is not None:
        _finish(result, loaded, assessment, out, folder, file, json)


def _place(out: Path | None, loaded: LoadedPlan, file: Path) -> Path | None:
    """Return the folder for the model, created before anything is spent; None if none is wanted.

    Protective noise is spent permanently, so such a run always stores its model.
    """
    protective = loaded.settings.noise.seed is None
    record_only = out is not None and out.suffix.lower() == ".json"
    if (out is None or record_only) and not protective:
        return None
    if out is None or record_only:
        beside = Path(f"{file.stem}-model")
        tries = (beside if k == 1 else Path(f"{beside}-{k}") for k in range(1, 10_000))
        place = next(path for path in tries if not path.exists())
    else:
        place = out
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place} is a file; a model is stored in a folder, name another one.")
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / ".writing").touch()
        (place / ".writing").unlink()
    except OSError as error:
        raise ConfigError(f"The model cannot be stored in {place} ({error.strerror}).") from None
    return place


def fitted_by_file(result: Result, loaded: LoadedPlan) -> Fitted:
    """Return the model that a run by a plan file has fitted."""
    from sottovoce.accounting.wording import uncharged
    from sottovoce.models.adapters import SIMULATED, TEST, fitted_model

    assert loaded.records is not None
    records, plan, budget = loaded.records, loaded.plan, loaded.settings.budget
    privacy = plan.guarantees()[0] if budget is None else plan.privacy(**budget.budget.adversary)
    notes = [uncharged(name) for name in loaded.accepted]
    if loaded.settings.noise.seed is not None:
        notes.append(SIMULATED)
    data = loaded.settings.data
    if data is not None and (data.test_file is not None or hasattr(records.columns, "side")):
        notes.append(TEST)
    return fitted_model(
        records.adapter, plan, result, replace(privacy, assumptions=(*privacy.assumptions, *notes)),
        1e-5 if budget is None else budget.delta, columns=records.columns, label=records.label,
        builder=records.builder,
    )  # fmt: skip


def _interrupted_sentence(checkpoint: Path | None) -> str:
    """Say what an interrupted training leaves behind."""
    from sottovoce.runners.checkpoint import kept_at

    step = None if checkpoint is None else kept_at(checkpoint)
    if step is not None:
        return f"saved at step {step:,} in {checkpoint}; the same command continues."
    return "nothing was saved; --checkpoint FOLDER saves a run while it trains."


def _say_resumed(checkpoint: Path | None, steps: int) -> None:
    from sottovoce.runners.checkpoint import kept_at

    step = None if checkpoint is None else kept_at(checkpoint)
    if step is not None:
        console(error=True).print(
            f"Continuing at step {step:,} of {steps:,} from {checkpoint}.", markup=False
        )


def read_training(file: Path, **changed: Any) -> LoadedPlan:
    """Return the plan of a training file and its records; `changed` options replace those of the file."""
    from sottovoce.planfile.read import plan_from_settings, read_plan_file

    settings = read_plan_file(file)
    if settings.train is None:
        raise ConfigError(f"{file.name} has no [train]; sottovoce average runs a file with [average].")
    loaded = plan_from_settings(settings, file.parent, file.name, **changed)
    if loaded.records is not None and loaded.records.data is None:
        assert settings.data is not None
        raise DataError(
            f"There is no file {file.parent / str(settings.data.file)}; the sizes in {file.name} are enough "
            "for sottovoce plan, training needs the records."
        )
    return loaded


def run_training(
    loaded: LoadedPlan,
    cluster: Cluster | None = None,
    *,
    checkpoint: Path | None = None,
    logs: Path | None = None,
    progress: bool = False,
    charged: TrainingCharge | None = None,
) -> Result | None:
    """Run a loaded plan, in this process or as a rank; the result is returned on rank 0."""
    from sottovoce.runners.progress import bar
    from sottovoce.runners.run import run_on_ranks

    plan, noise = loaded.plan, loaded.settings.noise.source
    assert loaded.records is not None
    assert loaded.settings.train is not None
    data, every = loaded.records.data, loaded.settings.train.evaluate_every or max(plan.steps // 20, 1)
    with _logged(logs, loaded) as log:

        def tell(step: int, entry: Mapping[str, Any]) -> None:
            if charged is not None:
                charged.saving(step)
            if log is not None:
                log(step, entry)

        if cluster is None:
            result = plan.run(
                data, noise, every=every, checkpoint=checkpoint, progress=progress, on_step=tell
            )
            return _handed_over(result, plan, charged)
        with bar(progress, f"{plan.name} on {cluster.size} ranks", plan.steps) as shown:
            ended = run_on_ranks(
                cluster, plan, data, noise, every=every, checkpoint=checkpoint, on_step=tell,
                progress=lambda done: shown(done, {}),
            )  # fmt: skip
            return None if ended is None else _handed_over(ended, plan, charged)


def charged_training(
    loaded: LoadedPlan, population: str | None = None, checkpoint: Path | None = None
) -> TrainingCharge | None:
    """Charge the lifetime ledger of this machine, if it has one and the noise is protective."""
    from sottovoce.ledger.charge import charge
    from sottovoce.ledger.lifetime import find_lifetime_ledger

    if not loaded.settings.noise.source.protective:
        return None
    statements = [each for each in (loaded.plan.privacy(), *loaded.plan.guarantees()) if each.valid]
    return charge(
        find_lifetime_ledger(),
        loaded.plan,
        f"training of {loaded.plan.name}",
        statements=statements,
        population=population,
        checkpoint=checkpoint,
    )


def _handed_over(result: Result, plan: Plan, charged: TrainingCharge | None) -> Result:
    if charged is None:
        return result
    charged.done(plan.steps)
    return replace(result, provenance={**result.provenance, "lifetime_budget": charged.summary})


@contextmanager
def _logged(
    logs: Path | None, loaded: LoadedPlan
) -> Iterator[Callable[[int, Mapping[str, Any]], None] | None]:
    """Give what to call with (step, figures), which writes them for TensorBoard with the epsilon so far."""
    if logs is None:
        yield None
        return
    from sottovoce.report.tensorboard import EventLog

    budget = loaded.settings.budget
    delta = 1e-5 if budget is None else budget.delta

    def tell(step: int, entry: Mapping[str, Any]) -> None:
        log.scalars(step, {**entry, **_spent(loaded.plan, delta, step)})

    with closing(EventLog(logs)) as log:
        yield tell


def _spent(plan: Plan, delta: float, step: int) -> dict[str, float]:
    """Return epsilon after ``step`` steps: the first statement of the plan, had it ended there."""
    try:
        shorter: Any = replace(plan, steps=step)
    except InvalidInput:  # a plan whose length is that of a path it was given
        return {}
    return {"epsilon": shorter.guarantees()[0].epsilon(delta)}


def _finish(
    result: Result,
    loaded: LoadedPlan,
    assessment: dict[str, Any],
    out: Path | None,
    folder: Path | None,
    file: Path,
    json: bool,
) -> None:
    """Score, write and print what a run has left."""
    assert loaded.records is not None
    coef = result.outputs["coef"]
    metrics = {**result.metrics, **loaded.records.score(coef), "cost": assessment["cost"]}
    if loaded.accepted:
        metrics["accepted"] = list(loaded.accepted)
    result = replace(result, metrics=metrics, guarantees=assessment["guarantees"])
    record = plain(result.to_dict())
    if coef.size <= SHOWN:
        record["outputs"] = {"coef": plain(coef)}
    if out is not None and out.suffix.lower() == ".json":
        from sottovoce.report.result_files import write_result

        write_result(out, record)
    if folder is not None:
        fitted_by_file(result, loaded).save(folder, also={"plan.toml": file.read_bytes()})
        record["saved_model"] = str(folder)
    emit(record, json, lambda screen: _show(screen, record, loaded, out, folder))


def _show(
    screen: Any, record: dict[str, Any], loaded: LoadedPlan, out: Path | None, folder: Path | None
) -> None:
    from sottovoce.accounting.wording import UNCHARGED

    coef = record.get("outputs", {}).get("coef", [])
    if 0 < len(coef) <= 1000:
        assert loaded.records is not None
        names = [*getattr(loaded.records.adapter, "names", ())]
        names += ["intercept"] * (len(names) == len(coef) - 1)
        named = len(names) == len(coef)
        shown = ", ".join((f"{safe(names[j])} " if named else "") + number(v) for j, v in enumerate(coef[:8]))
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
    lifetime = record["provenance"].get("lifetime_budget")
    for row in lifetime["budgets"] if lifetime else ():
        screen.print(
            f"Lifetime budget: {lifetime['population']} has spent {row['total']:.4g} of epsilon "
            f"{row['epsilon']:g} at delta {row['delta']:g} ({row['adjacency']}, {row['view']})."
        )
    if out is not None and out != folder:
        screen.print(f"Written to {safe(str(out))}.")
    if folder is not None:
        screen.print(
            f"The model is in {safe(str(folder))}: sottovoce predict {safe(str(folder))} new.csv uses it."
        )
