"""`sottovoce train FILE.toml`: a training plan, assessed, then run, in one process or over ranks.

Nothing here knows an algorithm or a kind of model: a file becomes a plan (`sottovoce.planfile`), a plan runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sottovoce._io import to_jsonable
from sottovoce.cli.options import Json, Population, TrainingFile
from sottovoce.cli.output import console, emit, if_stopped, require_writable, template
from sottovoce.cli.plan import assessment_text
from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    from sottovoce.planfile.read import LoadedPlan
    from sottovoce.runners import Cluster, Result

_STARTED = "SOTTOVOCE_RANKS"  # set for the ranks that this command starts
SHOWN = 100_000  # coefficients that a result may hold; larger models are saved as a folder


def train(
    file: TrainingFile,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="Write here: the model with its guarantee (a folder), or a .json result."),
    ] = None,
    checkpoint: Annotated[
        Path | None, Option(help="Folder: continue from it if it holds a run, and keep it up to date.")
    ] = None,
    logs: Annotated[str | None, Option(help="Folder for TensorBoard files, or a .csv file.")] = None,
    ranks: Annotated[int | None, Option(help="Split the agents over this many processes.")] = None,
    population: Population = None,
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
    if ranks is not None and not _is_rank():
        _start_ranks(ranks)
        return
    if checkpoint is not None and checkpoint.is_file():
        raise ConfigError(f"{checkpoint} is a file; a checkpoint is a folder; name another place.")
    with _rank(ranks) if _is_rank() else nullcontext() as cluster:
        # after the ranks have met: an import takes long, and the port they meet at is only chosen, not held
        from sottovoce.advice.assessment import assess, require_budget
        from sottovoce.ledger.charge import saved_step
        from sottovoce.planfile.training import load_training, run_training
        from sottovoce.runners.loggers import evaluation_log

        def prepare() -> tuple[LoadedPlan, dict[str, Any]]:
            loaded = load_training(file)
            assessment = assess(loaded)
            require_budget(assessment)
            return loaded, assessment

        def stopped() -> str:
            if not (step := saved_step(checkpoint)):
                return "nothing was saved; --checkpoint FOLDER saves a run while it trains."
            return f"saved at step {step:,} in {checkpoint}; the same command continues."

        prints = cluster is None or cluster.rank == 0  # of all ranks the first one prints
        if out is not None and out.suffix.lower() == ".json" and prints:
            require_writable(out)
        loaded, assessment = prepare() if cluster is None else cluster.agree("the plan file", prepare)
        folder = _model_folder(out, loaded, file) if prints else None
        if prints and not json:
            unassessed = f"not assessed here; sottovoce plan {file} simulates it"
            assessment_text(assessment, unassessed)(console())
            if step := saved_step(checkpoint):
                sentence = f"Continuing at step {step:,} of {loaded.plan.steps:,} from {checkpoint}."
                console(error=True).print(sentence, markup=False)
        try:
            with (
                if_stopped(stopped) if prints else nullcontext(),
                evaluation_log(logs if prints else None, loaded.plan, loaded.delta) as log,
            ):
                result = run_training(
                    loaded,
                    cluster,
                    checkpoint=checkpoint,
                    on_evaluation=log,
                    progress=prints and not json and sys.stderr.isatty(),
                    population=population,
                    guarantees=assessment["guarantees"],
                )
        except BaseException:
            if folder is not None and not any(folder.iterdir()):
                folder.rmdir()
            raise
        if result is not None:
            _finish(result, loaded, out, folder, file, json)


def _model_folder(out: Path | None, loaded: LoadedPlan, file: Path) -> Path | None:
    """Return the folder for the model, created before anything is spent; None if none is wanted.

    Protective noise is spent permanently, so such a run always saves its model.
    """
    if out is not None and out.suffix.lower() != ".json":
        folder = out
    elif loaded.simulates:
        return None
    else:
        stem = f"{file.stem}-model"
        tries = (Path(stem if k == 1 else f"{stem}-{k}") for k in range(1, 10_000))
        folder = next(path for path in tries if not path.exists())
    from sottovoce.models.saved import require_unused

    require_unused(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writing").touch()
        (folder / ".writing").unlink()
    except OSError as error:
        raise ConfigError(f"The model cannot be saved in {folder} ({error.strerror}).") from None
    return folder


def _finish(
    result: Result, loaded: LoadedPlan, out: Path | None, folder: Path | None, file: Path, json: bool
) -> None:
    """Score the model, write and print the result of a run."""
    from sottovoce.objectives.trivial import comparison
    from sottovoce.report.result_files import write_result

    fitted, coef = loaded.prepared.fitted(result), result.coef
    metrics = {**fitted.metrics, "cost": dict(loaded.plan.cost())}
    if loaded.accepted:
        metrics["accepted"] = list(loaded.accepted)
    result = replace(fitted.result, metrics=metrics)
    payload = to_jsonable(result.to_dict())
    if coef.size <= SHOWN:
        payload["outputs"] = {"coef": to_jsonable(coef)}
    if out is not None and out != folder:
        write_result(out, payload)
    if folder is not None:
        replace(fitted, result=result).save(folder, also={"plan.toml": file.read_bytes()})
        payload["saved_model"] = str(folder)
    shown = {"result": payload, "out": out, "folder": folder, "compared_sentence": comparison(metrics)}
    emit(payload, json, template("train", coefficients=_named_coefficients(payload, loaded), **shown))


def _named_coefficients(result: Mapping[str, Any], loaded: LoadedPlan) -> list[tuple[str, float]]:
    """Return the coefficients of a result beside the names of their columns, where these are known."""
    from sottovoce.models.adapters import LinearAdapter

    coef, adapter = result.get("outputs", {}).get("coef", []), loaded.adapter
    names = [*adapter.names, "intercept"][: len(coef)] if isinstance(adapter, LinearAdapter) else []
    return list(zip(names if len(names) == len(coef) else [""] * len(coef), coef, strict=True))


# ---- ranks: the same command once per rank on this machine; torchrun starts it on several ----------------


def _is_rank() -> bool:
    """Whether this process is a rank, started by `_start_ranks` or by torchrun."""
    return "RANK" in os.environ and (_STARTED in os.environ or "TORCHELASTIC_RUN_ID" in os.environ)


def _start_ranks(ranks: int) -> None:
    """Run this very command on ``ranks`` ranks and exit as they do."""
    from sottovoce.runners.launch import Ended, launch

    command = [sys.executable, "-m", "sottovoce.cli.main", *sys.argv[1:]]
    try:
        launch(command, ranks, environment={_STARTED: str(ranks)})
    except Ended as ended:
        if ended.explained:  # a rank has printed why
            sys.exit(1)
        raise


@contextmanager
def _rank(ranks: int | None) -> Iterator[Cluster]:
    """Join the other ranks for a command; only one rank prints an error."""
    from sottovoce.runners import Cluster

    cluster = None
    try:
        with Cluster.join(timeout=float(os.environ.get("SOTTOVOCE_TIMEOUT", "300"))) as cluster:
            if ranks is not None and ranks != cluster.size:
                raise ConfigError(f"--ranks is {ranks}, but {cluster.size} ranks were started.")
            yield cluster
    except Exception:  # which rank was lost is known once the cluster was left
        reports = os.environ["RANK"] == "0" if cluster is None else cluster.reports_errors
        if not reports:
            sys.exit(1)
        raise
