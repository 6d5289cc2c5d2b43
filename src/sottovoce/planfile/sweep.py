"""A plan file with many settings: every combination is simulated, and its cost stands beside its score."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import digest, to_jsonable
from sottovoce.algorithms.averaging import PrivateAveraging, noise_in_result
from sottovoce.errors import ConfigError, InvalidInput, SottovoceError
from sottovoce.planfile.read import LoadedPlan, average_values, check_tables, plan_from_settings, read_toml
from sottovoce.planfile.schema import NOISE_OPTIONS
from sottovoce.planfile.training import run_training
from sottovoce.runners.sweep import Trial, grid, repeated

_SHORT = {"epsilon": "budget.epsilon", "network": "network.graph"}
_SCORES = ("accuracy", "rmse", "loss", "better_than_trivial")
SIMULATED = (
    "These numbers are of simulations, whose noise is reproducible and protects nobody: scores of private "
    "records tell about them, so sweep over public or synthetic ones before publishing a setting."
)


def plan_trials(file: Path, choices: Mapping[str, Sequence[Any]], repeats: int = 1) -> list[Trial]:
    """Return one trial per combination of settings; all combinations are read and checked before.

    ``choices`` are values by place: ``"epsilon"``, ``"network"``, or a section and key such as
    ``"train.steps"``; ``repeats`` is the number of trials per combination, which differ in their noise.
    """
    problems: dict[str, None] = {}  # one sentence each
    for values in itertools.product(*choices.values()):
        try:
            _load(file, dict(zip(choices, values, strict=True)), seed=0)
        except SottovoceError as error:
            problems[str(error)] = None
    if len(problems) == 1:
        raise ConfigError(next(iter(problems)))
    if problems:
        numbered = " ".join(f"({k}) {problem}" for k, problem in enumerate(problems, 1))
        raise ConfigError(f"the sweep has {len(problems)} problems: {numbered}")
    fixed = {"file": str(file.absolute()), "content": digest(file.read_text(encoding="utf-8"))}
    return repeated(grid(**choices), repeats, fixed)


def run_trial(*, seed: int, file: str, content: str, **settings: Any) -> dict[str, Any]:
    """Simulate a plan file with changed settings, and return its cost and scores; a job of a sweep.

    ``content`` is the digest of the file: a changed file is another trial.
    """
    loaded, values = _load(Path(file), settings, seed)
    plan = loaded.plan
    row: dict[str, Any] = {
        "spent": loaded.privacy.epsilon(loaded.delta),
        "delta": loaded.delta,
        "against": str(loaded.privacy.adversary),
        "messages": plan.cost()["messages"],
    }
    if isinstance(plan, PrivateAveraging) and values is not None:
        averages = plan.run(values, loaded.settings.noise.source).outputs["rows"]
        errors = averages - np.average(values, axis=0, weights=plan.site_weights)
        row |= {"rmse": float(np.sqrt(np.mean(errors**2))), "promised": noise_in_result(plan)}
    else:
        result = run_training(loaded)
        assert result is not None
        records = loaded.training_records
        scores = records.adapter.rescaled(result.metrics) | records.score(result.coef)
        row |= {name: scores[name] for name in _SCORES if name in scores}
    return dict(to_jsonable(row))


def _load(file: Path, settings: Mapping[str, Any], seed: int) -> tuple[LoadedPlan, np.ndarray | None]:
    """Return the plan of a file with changed settings and simulated noise, and the values of an average."""
    tables = read_toml(file)
    for name, value in settings.items():
        section, dot, key = _SHORT.get(name, name).partition(".")
        if not dot or not isinstance(tables.setdefault(section, {}), dict):
            raise InvalidInput(f"a setting is a section and a key, as train.steps=10,20, got {name!r}.")
        tables[section][key] = value
        if name == "network":
            tables[section].pop("matrix", None)
    stated = [key for key in NOISE_OPTIONS if key in tables.get("noise", {})]
    if "epsilon" in settings and stated:
        raise ConfigError(f"{file.name} states [noise] {stated[0]}, so epsilon changes nothing; remove it.")
    tables["noise"] = {**tables.get("noise", {}), "seed": seed % 2**31}
    checked = check_tables(tables, file.parent, file.name)
    if checked.average is None:
        loaded = plan_from_settings(checked, file.parent, file.name)
        loaded.plan.prepared(loaded.training_records.data)
        return loaded, None
    values = average_values(checked.average.values, file.parent)
    loaded = plan_from_settings(checked, file.parent, file.name, dim=values.shape[1])
    loaded.plan.prepared(values)
    return loaded, values


def summarized(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per combination of the settings ``names``: means over repeats, deviations as ``std``."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in names), []).append(row)
    answers = []
    for group in groups.values():
        answer = dict(group[0])
        if len(group) > 1:
            for key, value in group[0].items():
                # one plan has one cost
                if isinstance(value, float) and key not in (*names, "spent", "delta", "promised"):
                    values = np.array([row[key] for row in group], np.float64)
                    answer |= {key: float(values.mean()), f"{key} std": float(values.std(ddof=1))}
            answer["trials"] = len(group)
        answers.append(answer)
    return answers


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as the text of a CSV file with a header line."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
