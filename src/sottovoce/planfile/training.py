"""Run the training plan of a file on its records, and make the model it has fitted.

`search` runs it with several learning rates and clip norms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.accounting.wording import uncharged
from sottovoce.data.images import ImageReading
from sottovoce.errors import ConfigError
from sottovoce.models.adapters import SIMULATED, TEST
from sottovoce.models.saved import Fitted
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.planfile.read import LoadedPlan, load_file
from sottovoce.runners import Cluster, Result
from sottovoce.runners.progress import bar
from sottovoce.runners.run import OnEvaluation, run_on_ranks

# scores in the order in which they are looked for, and how the best one is chosen
SCORES = {"accuracy": max, "rmse": min}


def load_training(file: Path, **options: object) -> LoadedPlan:
    """Return the plan of a training file, whose records are there; ``options`` replace the file's."""
    loaded = load_file(file, section="train", **options)
    _ = loaded.training_records
    return loaded


def run_training(
    loaded: LoadedPlan,
    cluster: Cluster | None = None,
    *,
    checkpoint: Path | None = None,
    on_evaluation: OnEvaluation | None = None,
    progress: bool = False,
    population: str | None = None,
    guarantees: Sequence[Mapping[str, Any]] | None = None,
) -> Result | None:
    """Run a loaded plan, in this process or as a rank; the result is returned on rank 0.

    With protective noise the runner charges the lifetime ledger of this machine, if it has one.
    """
    plan, records, section = loaded.plan, loaded.training_records, loaded.settings.train
    assert section is not None
    if guarantees is None:
        guarantees = [each.to_dict() for each in loaded.guarantees]
    options: dict[str, Any] = {
        "evaluate": records.adapter.evaluate,
        "every": section.evaluate_every or max(plan.steps // 20, 1),
        "checkpoint": checkpoint,
        "on_evaluation": on_evaluation,
        "purpose": "training",
        "population": population,
        "guarantees": guarantees,
    }
    noise = loaded.settings.noise.source
    if cluster is None:
        return plan.run(records.data, noise, progress=progress, **options)
    with bar(progress, f"{plan.name} on {cluster.size} ranks", plan.steps) as tell:
        options["progress"] = lambda done: tell(done, {})
        return run_on_ranks(cluster, plan, records.data, noise, **options)


def fitted_model(loaded: LoadedPlan, result: Result) -> Fitted:
    """Return the model that a run of the plan has fitted."""
    records, section = loaded.training_records, loaded.settings.data
    privacy = loaded.guarantees[0] if loaded.settings.budget is None else loaded.privacy
    notes = [uncharged(name) for name in loaded.accepted]
    if loaded.settings.noise.seed is not None:
        notes.append(SIMULATED)
    if (section and section.test_file) or isinstance(records.columns, ImageReading):
        notes.append(TEST)
    privacy = replace(privacy, assumptions=(*privacy.assumptions, *notes))
    columns, label, builder = records.columns, records.label, records.builder
    return records.adapter.fitted(
        loaded.plan, result, privacy, loaded.delta, columns=columns, label=label, builder=builder
    )


def search(
    file: Path, rates: Sequence[float], clip_norms: Sequence[float], tick: Callable[[int], None]
) -> dict[str, Any]:
    """Train once per learning rate and clip norm; return the scores, the best one and what all runs cost.

    ``tick`` is called with the number of runs done. Every run is charged, none before every setting was read
    and there are records to score on.
    """
    options = [
        {"clip_norm": clip_norm, "learning_rate": rate} for clip_norm, rate in product(clip_norms, rates)
    ]
    score = [_score_name(load_training(file, **each), file) for each in options][-1]
    rows: list[dict[str, float]] = []
    guarantees = []
    for each in options:
        loaded = load_training(file, **each)
        result = run_training(loaded)
        assert result is not None
        scores = {**result.metrics, **loaded.training_records.score(result.coef)}
        row = {"clip_norm": each["clip_norm"], "rate": each["learning_rate"], score: float(scores[score])}
        rows.append(row)
        guarantees.append(loaded.privacy)
        tick(len(rows))
    total, delta = reduce(add, guarantees), loaded.delta
    return {
        "tried": rows,
        "best": SCORES[score](rows, key=lambda row: row[score]),
        "runs": len(rows),
        "delta": delta,
        "against": str(total.adversary),
        "epsilon_of_one_run": guarantees[-1].epsilon(delta),
        "epsilon_of_the_search": total.epsilon(delta),
    }


def _score_name(loaded: LoadedPlan, file: Path) -> str:
    """Return the score by which runs of a plan are compared, tried on its starting rows; raise if none."""
    plan, records = loaded.plan, loaded.training_records
    random = RunRandomness.from_rng(np.random.default_rng(0))
    data = plan.prepared(records.data)
    first = plan.starting(data, random, range(plan.n))
    scores = {**plan.metrics(first, data, random), **records.score(first[0])}
    score = next((key for key in SCORES if key in scores), None)
    if score is None:
        raise ConfigError(f"{file.name} has no records to score on; [data] test_file names public ones.")
    return score
